"""Trace the path from a table to the loop: functions, files and frames of a fit, and loose types.

    python scripts/trace.py

Prints, for a fit and for a command, how many functions in how many files run, and which frames are
above `solve`; how many containers hold a cell along the way; and how often types in the source are
loose.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import scaledgd as sg

PACKAGE = Path(sg.__file__).parent
BOOKKEEPING = re.compile(
    r"remember|journal|all_or_nothing|atomic|\bwhole\b|\.work$|\.run$|supervis"
)
"""Names of frames that carry no decision and no mathematics."""
CONTAINERS = re.compile(r"Block|Batch|Part|Triplets|EntryTable|Cells|Observations|Pattern|Entries")
"""Names of classes that hold cells."""


def room(frame: FrameType) -> str | None:
    """Return the module of a frame of this package, or None."""
    path = Path(frame.f_code.co_filename)
    return str(path.relative_to(PACKAGE)) if PACKAGE in path.parents else None


def trace(
    work: Callable[[], Any],
) -> tuple[set[tuple[str, str]], set[str], list[str], int]:
    """Return functions that ran, classes made, the frames above the first `solve`, the depth."""
    seen: set[tuple[str, str]] = set()
    made: set[str] = set()
    above: list[str] = []
    deepest = 0

    def look(frame: FrameType, event: str, arg: object) -> None:
        nonlocal deepest
        if event != "call":
            return
        maker = frame.f_locals.get("self") if frame.f_code.co_name == "__init__" else None
        if type(maker).__module__.startswith(sg.__name__ + "."):
            made.add(type(maker).__name__)
        where = room(frame)
        if where is None:
            return
        name = frame.f_code.co_qualname
        seen.add((where, name))
        frames, step = [], frame.f_back
        while step is not None:
            inside = room(step)
            if inside is not None:
                frames.append(f"{inside.removesuffix('.py')}: {step.f_code.co_qualname}")
            step = step.f_back
        deepest = max(deepest, len(frames) + 1)
        if not above and where.startswith("solve") and name == "solve":
            above.extend(reversed(frames))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return seen, made, above, deepest


def show(title: str, work: Callable[[], Any]) -> set[str]:
    """Print the path of a call, and return the classes that it made."""
    work()  # imports and caches are not part of it
    seen, made, above, deepest = trace(work)
    files = {where for where, _ in seen}
    book = [frame for frame in above if BOOKKEEPING.search(frame.replace(".<locals>", ""))]
    print(f"{title}: {len(seen)} functions in {len(files)} files, {deepest} frames at the deepest")
    print(f"  {len(above)} frames above solve, {len(book)} of them bookkeeping:")
    for frame in above:
        print(f"    {frame}{'  (bookkeeping)' if frame in book else ''}")
    return made


def loose_types() -> None:
    """Print how often types in the source are loose."""
    text = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    factorisations = r"isinstance\([^()]*\b(Tucker|LowRank|Symmetric|Bordered)\b"
    kinds = r"is_(numpy|torch)_(namespace|array)\("
    counted = {
        "type: ignore": r"type: ignore",
        "F: Any": r"\bF: Any\b|: Any = state\.factors",
        "Any": r"\bAny\b",
        "isinstance on a factorisation": factorisations,
        "decisions by the kind of array": kinds,
    }
    for name, pattern in counted.items():
        count = sum(len(re.findall(pattern, source)) for source in text.values())
        print(f"{name}: {count}")
    longest = sorted(((source.count("\n"), path) for path, source in text.items()), reverse=True)
    total = sum(lines for lines, _ in longest)
    print(f"{len(text)} modules, {total} lines; the longest:")
    for lines, path in longest[:5]:
        print(f"  {lines} {path.relative_to(PACKAGE)}")


def table() -> np.ndarray[Any, Any]:
    """Return 60 × 40 readings of rank 3 with noise, six tenths of them seen."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 40))
    X += 0.1 * rng.standard_normal(X.shape)
    return np.where(rng.random(X.shape) < 0.6, X, np.nan)


def command(folder: str) -> Callable[[], Any]:
    """Return ``scaledgd complete f.csv -o out.csv --report page.html``."""
    from scaledgd import cli

    X = table()
    source, out, page = (os.path.join(folder, name) for name in ("f.csv", "out.csv", "page.html"))
    with open(source, "w") as file:
        file.write(",".join(f"c{j}" for j in range(X.shape[1])) + "\n")
        for row in X:
            file.write(",".join("" if np.isnan(x) else repr(float(x)) for x in row) + "\n")
    words = ["scaledgd", "complete", source, "-o", out, "--report", page, "--force", "--quiet"]

    def work() -> None:
        before, sys.argv = sys.argv, words
        try:
            cli.main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.argv = before

    return work


def main() -> None:
    """Print everything."""
    X = table()
    show("MatrixCompletion().fit(X)", lambda: sg.MatrixCompletion(random_state=0).fit(X))
    show("MatrixCompletion(3).fit(X)", lambda: sg.MatrixCompletion(3, random_state=0).fit(X))
    with tempfile.TemporaryDirectory() as folder:
        made = show("scaledgd complete f.csv --report", command(folder))
    held = sorted(name for name in made if CONTAINERS.search(name))
    print(f"classes that hold a cell on its way: {', '.join(held)}")
    loose_types()


if __name__ == "__main__":
    main()
