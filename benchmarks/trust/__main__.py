"""Find failures on random instances of every estimator and option.

``python -m benchmarks.trust --count 500 --record trust.jsonl`` runs the instances that the file
does not have yet, and prints the failures of all. Every instance follows from ``--seed`` and its
number: ``--only 17`` runs it alone, ``--shrink 17`` looks for the smallest case that fails like it.
``--report trust.jsonl`` prints the failures that a file has. A run can be stopped and continued at
any time. Times are CPU seconds. ``--kills 300 --files 2000 --interrupts 60 --threads 8 --forks 3``
tests other guarantees instead of instances.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from .instances import drawn
from .judge import judged, verdict
from .processes import apart, one_thread
from .record import Line, Record, failed, kinds, shown, table
from .shrink import shrunk

PROMISES = {
    "kills": "kill processes that save, checkpoint or write tables",
    "files": "read corrupted models and mangled tables",
    "interrupts": "interrupt fits",
    "threads": "fit in as many threads at once",
    "forks": "fork after a fit, and fit in the child",
}
"""Guarantees other than those about answers, each tested so many times."""


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trust", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--count", type=int, default=300, help="instances, from number --first on")
    parser.add_argument("--first", type=int, default=0, help="the first number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--minutes", type=float, help="begin no instance after this time")
    parser.add_argument("--record", type=Path, help="JSONL file of the results, resumable")
    parser.add_argument("--report", type=Path, nargs="+", help="print the failures in such files")
    parser.add_argument("--again", action="store_true", help="run the recorded failures again")
    parser.add_argument("--only", type=int, help="run one instance, and print all about it")
    parser.add_argument("--shrink", type=int, help="print the smallest case that fails like this")
    for name, what in PROMISES.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=what)
    return parser.parse_args(arguments)


def results(given: argparse.Namespace) -> Iterator[Line]:
    """Yield the lines of all instances; those that are not recorded are run."""
    record, ends = Record(given.record), None
    if given.minutes is not None:
        ends = time.monotonic() + 60 * given.minutes
    numbers = range(given.first, given.first + given.count)
    done = {line["number"]: line for line in record.lines(given.seed)}
    if given.again:
        done = {n: line for n, line in done.items() if not failed(line)}
    yield from (done[n] for n in numbers if n in done)
    # polars may have threads, which no fork takes along
    able = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if able else "spawn")
    if able:
        context.set_forkserver_preload(["benchmarks.trust.judge", "pandas", "xarray"])
    record.begin()

    def run(number: int) -> Line | None:
        if ends is not None and time.monotonic() > ends:
            return None
        line = apart(context, given.seed, number)
        record.add(line)
        return line

    with ThreadPoolExecutor(given.jobs) as pool:
        left = [pool.submit(run, n) for n in numbers if n not in done]
        try:
            for future in as_completed(left):
                line = future.result()
                if line is not None:
                    yield line
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)


def main(arguments: list[str] | None = None) -> int:
    """Run instances, or one, or look for a smaller one; return 1 if something failed."""
    given = parsed(arguments)
    promised = {name: getattr(given, name) for name in PROMISES if getattr(given, name)}
    if promised:
        from ..estimators import run_part
        from .promises import PARTS

        parts = {name: partial(PARTS[name], count) for name, count in promised.items()}
        return sum(run_part(name, part, PROMISES[name]) for name, part in parts.items())
    if given.report is not None:
        lines = [line for path in given.report for line in Record(path).lines()]
        print("\n".join([*table(lines), *kinds(lines)]))
        return int(any(map(failed, lines)))
    if given.shrink is not None:
        recipe, found = shrunk(drawn(given.seed, given.shrink), verdict)
        print(f"Recipe.of({recipe.plain})")
        print(json.dumps(found, indent=1))
        return int(bool(found["failures"]))
    if given.only is not None:
        line = judged(given.seed, given.only)
        print(json.dumps(line, indent=1))
        return int(failed(line))
    lines = []
    for line in results(given):
        lines.append(line)
        if failed(line):
            print(shown(line), flush=True)
    print("\n".join(["", *table(lines), *kinds(lines)]))
    return int(any(map(failed, lines)))


if __name__ == "__main__":
    one_thread()
    sys.exit(main())
