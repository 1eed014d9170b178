"""What a table in a file holds, and the rows that a fit is to be made of.

A table is gone through twice: to learn what its columns are and to gather the rows of the
fit, and to fill and write it. So a file need not fit into memory, as long as a part of its
rows does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..estimators.reading import available_memory
from .arrays import READERS, ArrayTable
from .failures import Failure
from .formats import Show, format_of
from .frames import ArrowTable, TextTable
from .parts import Source
from .text import Dialect

Array = Any

BYTES = 450
"""Memory that a fit takes for a cell."""
SHARE = 0.5
"""Of the memory that is free, what a fit may take."""
ROWS = 200_000
"""Rows of a fit, unless there are as many columns: more would hardly change what it learns."""
INDEXES = ("", "index", "id", "unnamed: 0")
"""What columns are called that number the rows."""


def opened(path: Path, dialect: Dialect, passed: list[str], array: str | None) -> Source:
    """A table or a tensor in a file, by its suffix."""
    kind = format_of(path).kind
    if array is not None and kind != "npz":
        raise Failure("--array goes with NPZ files, which hold several")
    if kind == "text":
        return TextTable(path, dialect, passed)
    if kind in READERS:
        if passed:
            raise Failure(f"--text goes with tables that have text; {path} has none")
        return ArrayTable(path, kind, dialect, array)
    return ArrowTable(path, kind, dialect, passed)


@dataclass(frozen=True, eq=False)
class Contents:
    """What one pass over a table found.

    Attributes
    ----------
    shape : tuple of int
        Of the whole, without the columns that are not used.
    used : list of int
        Columns of numbers; all of them of a tensor.
    passed : list of int
        Columns that are passed through: text, and a first column that numbers the rows.
    empty : list of int
        Columns of which nothing is known, which stay empty.
    missing : array of int
        Missing cells of every used column.
    whole : set of int
        Columns of whole numbers.
    fitted : int
        Rows that the fit is made of.
    """

    shape: tuple[int, ...]
    used: list[int]
    passed: list[int]
    empty: list[int]
    missing: Array
    whole: set[int]
    fitted: int

    @property
    def rows(self) -> int:
        return self.shape[0]


def contents(source: Source, fit_rows: int | None, seed: int, show: Show) -> tuple[Contents, Array]:
    """Go through a table once: what is in it, and the rows that the fit is to be made of."""
    rng = np.random.default_rng(seed)
    kept: list[Any] = []
    keys: list[Any] = []
    bound, held, rows, last = 1.0, 0, 0, -math.inf
    seen: Any = 0
    whole: Any = True
    numbering = True
    most = fit_rows
    for part in source.parts(show):
        flat = part.values.reshape(len(part.values), -1)
        if most is None:
            enough = max(ROWS, 20 * flat.shape[1])
            most = max(100, min(enough, int(SHARE * available_memory() / BYTES / flat.shape[1])))
        known = ~np.isnan(flat)
        seen = seen + known.sum(axis=0)
        whole = whole & np.all((flat == np.rint(flat)) | ~known, axis=0)
        if numbering and source.order == 2:
            ahead = np.concatenate([[last], flat[:, 0]])
            numbering, last = bool(np.all(np.diff(ahead) > 0)), float(flat[-1, 0])
        key = rng.random(len(flat))
        chosen = key < bound
        kept.append(part.values[chosen])
        keys.append(key[chosen])
        rows, held = rows + len(flat), held + int(chosen.sum())
        if held > 2 * most:
            bound, kept, keys = _fewer(kept, keys, most)
            held = most
    if not rows:
        raise Failure(f"{source.path} has no rows; give a file with a table in it")
    assert most is not None
    if held > most:
        _, kept, keys = _fewer(kept, keys, most)
    data = np.concatenate(kept)
    del kept
    if source.order > 2:
        missing = rows - seen
        shape = (rows, *data.shape[1:])
        return Contents(shape, [], [], [], missing, set(), len(data)), data
    named = source.names[0].strip().lower() in INDEXES
    index = {0} if numbering and whole[0] and seen[0] == rows and (named or rows >= 5) else set()
    if isinstance(source, ArrayTable):
        index = set()
    numbers = [j for j in range(len(source.names)) if j not in source.text | index]
    used = [j for j in numbers if seen[j]]
    found = Contents(
        (rows, len(used)),
        used,
        sorted(source.text | index),
        [j for j in numbers if not seen[j]],
        rows - seen[used],
        {j for j in numbers if whole[j] and seen[j] == rows} | index - source.text,
        len(data),
    )
    return found, data[:, used]


def _fewer(kept: list[Any], keys: list[Any], most: int) -> tuple[float, list[Any], list[Any]]:
    """The rows with the smallest keys: every row has the same chance to stay."""
    key = np.concatenate(keys)
    bound = float(np.partition(key, most)[most])
    chosen = key < bound
    return bound, [np.concatenate(kept)[chosen]], [key[chosen]]
