"""Results of instances: a file that grows line by line, and the table of what failed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from .instances import Recipe

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
"""Failures, the most serious first. A refusal with a clear error is not a failure."""

HARMLESS = {"refused", "skipped"}
"""Outcomes that are not failures: a refusal, and a missing library."""

ALLOWED = 5e-3
"""Share of the answers that may be bad without a warning if the truth is not determined."""


FAR = 0.05
"""Error, as a share of the truth and beyond five times the noise, that is far from the truth."""


class Record:
    """A file of results, one per line, that survives a run that is killed at any moment.

    Parameters
    ----------
    path : Path, optional
        Without one nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self._lock = path, Lock()

    def lines(self, seed: int | None = None) -> list[Line]:
        """Return the recorded results of one seed or of all, the last one of every instance."""
        if self.path is None or not self.path.exists():
            return []
        found: dict[tuple[int, int], Line] = {}
        for text in self.path.read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # a run was killed while it wrote
            if seed in (None, line["seed"]):
                found[line["seed"], line["number"]] = line
        return list(found.values())

    def begin(self) -> None:
        """End a line that a killed run has left unfinished."""
        if self.path is not None and self.path.exists():
            text = self.path.read_bytes()
            if text and not text.endswith(b"\n"):
                with self.path.open("ab") as file:
                    file.write(b"\n")

    def add(self, line: Line) -> None:
        """Write a result at once."""
        if self.path is not None:
            with self._lock, self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def failed(line: Line) -> bool:
    """Whether something went wrong."""
    return bool(set(line["failures"]) - HARMLESS)


def asked_for(line: Line) -> bool:
    """Whether a warning says only that a given limit was met."""
    asked = line["recipe"].get("options", {})
    said = line.get("said", ())
    limited = "max_iter" in asked or "max_time" in asked
    return limited and bool(said) and all(x.startswith("ConvergenceWarning") for x in said)


def lost(line: Line) -> bool:
    """Whether an answer is far from a truth that the data determine, and no warning says so.

    Being better than means is a weak demand. Options that exclude the truth are excused.
    """
    recipe = Recipe.of(line["recipe"])
    asked, rank = recipe.options, recipe.options.get("rank")
    if "error" not in line or not line["determined"] or line.get("doubted", line["warned"]):
        return False
    if {"ridge", "max_time", "max_iter"} & {k for k, v in asked.items() if v is not None}:
        return False
    if asked.get("non_negative") and recipe.offset:
        return False  # the truth has negative entries
    needed = recipe.rank + (len(recipe.shape) if recipe.offset else 0)
    if rank not in (None, "auto") and np.min(rank) < needed:
        return False
    unit = 0.05 if recipe.kind == "int64" else 0.0  # values are rounded
    least = FAR + 5 * (recipe.noise + unit)
    return bool(min(line["error"], line.get("plain error", line["error"])) > least)


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
    asked = {k: v for k, v in recipe.options.items() if k != "random_state"}
    return (
        f"--seed {line['seed']} --only {line['number']:<6} {what:<20} {recipe.estimator:<17} "
        f"{shape:<12} {line.get('cpu', 0):>6.1f} s  {told}{where}  {asked or ''}"
    ).rstrip()


def table(lines: list[Line]) -> list[str]:
    """Return the table of failures: those of each class, then counts."""
    lines = sorted(lines, key=lambda line: (line["seed"], line["number"]))
    rows = []
    for name in CLASSES:
        rows += [shown(line) for line in lines if line["failures"] and line["failures"][0] == name]
    counts = Counter(name for line in lines for name in line["failures"])
    answered = [line for line in lines if "error" in line]
    sure = sum(line["determined"] for line in answered)
    warned = sum(line["warned"] for line in answered)
    rows.append(f"{len(lines)} instances, {len(answered)} answered, {sure} of them determined;")
    rows.append(
        f"{warned} with a warning, {counts['refused']} refused with a sentence, "
        f"{counts['skipped']} skipped for want of a library"
    )
    for words, some in (("determined", True), ("other", False)):
        said = [line for line in answered if line["warned"] and line["determined"] == some]
        limited = sum(map(asked_for, said))
        rows.append(
            f"{len(said)} {words} answers with a warning, {limited} of them of nothing but a limit "
            "that was asked for"
        )
    for name in CLASSES:
        allowed = ""
        if name == "bad" and counts[name]:
            allowed = f"  ({ALLOWED * (len(answered) - sure):.0f} are allowed)"
        rows += [f"{counts[name]:>6}  {name}{allowed}"] if counts[name] else []
    far = [line for line in lines if lost(line)]
    rows += [f"{shown(line)}  far from the truth" for line in far]
    rows.append(f"{len(far):>6}  far from the truth that the data determine, without a warning")
    if answered:
        slowest = max(answered, key=lambda line: line["cpu"])
        total = sum(line.get("cpu", 0) for line in lines)
        rows.append(
            f"{total:.0f} s of CPU, {slowest['cpu']:.1f} s for the slowest "
            f"(--seed {slowest['seed']} --only {slowest['number']})"
        )
    return rows


def kinds(lines: list[Line]) -> list[str]:
    """Return a row per estimator: answers, warnings, and failures of every class."""
    rows = []
    by: dict[str, list[Line]] = {}
    for line in lines:
        by.setdefault(line["recipe"]["estimator"], []).append(line)
    for name, some in sorted(by.items()):
        answered = [line for line in some if "error" in line]
        counts = Counter(c for line in some for c in line["failures"])
        wrong = ", ".join(f"{counts[c]} {c}" for c in CLASSES if counts[c])
        warned = sum(line["warned"] for line in answered)
        rows.append(
            f"{name:<17} {len(some):>6} instances, {len(answered):>6} answered, {warned:>6} with a "
            f"warning; {wrong or 'no failure'}"
        )
    return rows
