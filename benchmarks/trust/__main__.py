"""Print what goes wrong on random instances of every estimator and option.

``python -m benchmarks.trust --count 500 --record trust.jsonl`` runs the instances that the file
does not have yet, and prints the failures of all. Every instance follows from ``--seed`` and its
number: ``--only 17`` runs it alone, ``--shrink 17`` looks for the smallest case that fails like it.
Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .instances import Recipe, drawn
from .judge import judged, verdict
from .processes import apart
from .shrink import shrunk

Line = dict[str, Any]

CLASSES = (
    "crash",
    "slow",
    "not finite",
    "unclear exception",
    "RuntimeWarning",
    "constant",
    "bad, determined",
    "bad",
)
"""Failures, the gravest first. What is refused with a sentence is no failure."""


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trust", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--count", type=int, default=300, help="instances, from number 0")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--record", type=Path, help="JSONL file of the results, resumable")
    parser.add_argument("--only", type=int, help="run one instance, and print all about it")
    parser.add_argument("--shrink", type=int, help="print the smallest case that fails like this")
    return parser.parse_args(arguments)


def recorded(path: Path | None, seed: int) -> dict[int, Line]:
    """Read the lines of a record by number; those of other seeds are left out."""
    if path is None or not path.exists():
        return {}
    lines = []
    for text in path.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue  # a run was ended while it wrote
    return {line["number"]: line for line in lines if line["seed"] == seed}


def results(given: argparse.Namespace) -> Iterator[Line]:
    """Yield the lines of all instances; those that are not recorded are run."""
    done = recorded(given.record, given.seed)
    yield from (done[n] for n in range(given.count) if n in done)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.trust.judge"])
    left = [n for n in range(given.count) if n not in done]
    if given.record is not None and given.record.exists():
        text = given.record.read_text()
        if text and not text.endswith("\n"):
            given.record.write_text(text[: text.rfind("\n") + 1])  # a run was ended as it wrote
    with ThreadPoolExecutor(given.jobs) as pool:
        for line in pool.map(lambda n: apart(context, given.seed, n), left):
            if given.record is not None:
                with given.record.open("a") as file:
                    print(json.dumps(line), file=file)
            yield line


def shown(line: Line) -> str:
    """Return a row of the table of failures."""
    ratio = ""
    if "error" in line:
        ratio = f"error {line['error']:.3g}, means {line['means']:.3g}"
        ratio += f", offsets {line['offsets']:.3g}"
    told = line.get("message") or line.get("runtime_warning") or ratio
    recipe = Recipe.of(line["recipe"])
    shape = "x".join(map(str, recipe.shape))
    what = ", ".join(line["failures"])
    where = f" at {line['at']}" if "at" in line else ""
    return (
        f"{line['number']:>6}  {what:<20} {recipe.estimator:<17} {shape:<12} "
        f"{line.get('cpu', 0):>6.1f} s  {told}{where}"
    )


def table(lines: list[Line]) -> list[str]:
    """Return the table of failures: those of each class, then counts."""
    rows = []
    for name in CLASSES:
        rows += [shown(line) for line in lines if line["failures"] and line["failures"][0] == name]
    counts = Counter(name for line in lines for name in line["failures"])
    answered = [line for line in lines if "error" in line]
    sure = sum(line["determined"] for line in answered)
    warned = sum(line["warned"] for line in answered)
    rows.append(f"{len(lines)} instances, {len(answered)} answered, {sure} of them determined;")
    rows.append(f"{warned} with a warning, {counts.pop('refused', 0)} refused with a sentence")
    rows += [f"{counts[name]:>6}  {name}" for name in CLASSES if counts[name]]
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run instances, or one, or look for a smaller one; return 1 if something failed."""
    given = parsed(arguments)
    if given.shrink is not None:
        recipe, found = shrunk(drawn(given.seed, given.shrink), verdict)
        print(f"Recipe.of({recipe.plain})")
        print(json.dumps(found, indent=1))
        return int(bool(found["failures"]))
    if given.only is not None:
        line = judged(given.seed, given.only)
        print(json.dumps(line, indent=1))
        return int(bool(set(line["failures"]) - {"refused"}))
    lines = []
    for line in results(given):
        lines.append(line)
        if set(line["failures"]) - {"refused"}:
            print(shown(line), flush=True)
    print("\n".join(["", *table(sorted(lines, key=lambda line: line["number"]))]))
    return int(any(set(line["failures"]) - {"refused"} for line in lines))


if __name__ == "__main__":
    sys.exit(main())
