"""The first pass over a table: what its columns hold, and a sample of rows for the fit.

A table is read twice: once for the survey, and once to fill and write it. Only the rows of the
fit must fit into memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...estimators.reading import available_memory
from ..failures import Failure
from .arrays import ArrayTable
from .batches import Progress, TableReader
from .dates import AUTO, NONE, DateFinder, Dates
from .files import find_column

Array = Any

CELL_BYTES = 450
"""Memory that a fit takes per cell."""
MEMORY_SHARE = 0.5
"""Share of the free memory that a fit may take."""
ENOUGH_ROWS = 200_000
"""Number of rows of a fit, unless there are many columns. More would hardly change it."""
INDEX_NAMES = ("", "index", "id", "unnamed: 0")
"""Usual names of a column that numbers the rows."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What a table contains.

    Attributes
    ----------
    shape : tuple of int
        Rows and used columns, or the shape of a tensor.
    used : list of int
        Numeric columns with at least one value; empty for a tensor.
    passed_through : list of int
        Columns of text, and a first column that numbers the rows.
    empty : list of int
        Numeric columns without any value, which stay empty.
    missing : integer array
        Number of missing cells of each used column; for a tensor, of each fibre along mode 0.
    integer : set of int
        Columns of integers without missing cells.
    fitted_rows : int
        Number of rows in the sample for the fit.
    dates : Dates, optional
        The times of the rows; their column is among those passed through.
    notes : list of str
        Warnings about columns that hold almost times.
    """

    shape: tuple[int, ...]
    used: list[int]
    passed_through: list[int]
    empty: list[int]
    missing: Array
    integer: set[int]
    fitted_rows: int
    dates: Dates | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.shape[0]


def survey(
    table: TableReader,
    fit_rows: int | None,
    seed: int,
    progress: Progress,
    date: str = AUTO,
) -> tuple[Survey, Array, Array]:
    """Read a table once.

    Parameters
    ----------
    table : TableReader
    fit_rows : int, optional
        Number of rows to draw for the fit. By default as many as memory allows, and no more
        than are useful.
    seed : int
        Decides which rows are drawn.
    progress : callable
    date : str
        The column that holds the times of the rows, by name or position from 1; "auto" looks
        for it, "none" does not.

    Returns
    -------
    found : Survey
    sample : array of shape (rows, used columns), or slices of a tensor
        Rows for the fit, NaN where missing.
    drawn : integer array of shape (rows,)
        Which rows these are.
    """
    columns, sample = _ColumnCounts(), _RowSample(fit_rows, seed)
    wanted = None if date in (AUTO, NONE) else find_column(date, table.names, table.path)
    times = DateFinder(table, wanted)
    for batch in table.batches(progress):
        columns.add(batch.values.reshape(len(batch.values), -1))
        sample.add(batch.values)
        if date != NONE and table.order == 2:
            times.add(batch)
    if not columns.rows:
        raise Failure(f"{table.path} has no rows; give a file with a table in it")
    data, drawn = sample.drawn()
    if table.order > 2:
        shape = (columns.rows, *data.shape[1:])
        missing = columns.rows - columns.observed
        return Survey(shape, [], [], [], missing, set(), len(data)), data, drawn
    found = _classified(table, columns, len(data))
    dates, notes = times.found()
    return replace(found, dates=dates, notes=notes), data[:, found.used], drawn


def _classified(table: TableReader, columns: _ColumnCounts, fitted_rows: int) -> Survey:
    """Decide which columns are used, passed through or left empty."""
    index = set()
    if not isinstance(table, ArrayTable) and columns.first_numbers_rows(table.names[0]):
        index = {0}
    observed, rows = columns.observed, columns.rows
    numeric = [j for j in range(len(table.names)) if j not in table.text_columns | index]
    complete = {j for j in numeric if columns.whole[j] and observed[j] == rows}
    used = [j for j in numeric if observed[j]]
    return Survey(
        (rows, len(used)),
        used,
        sorted(table.text_columns | index),
        [j for j in numeric if not observed[j]],
        rows - observed[used],
        complete | index - table.text_columns,
        fitted_rows,
    )


class _ColumnCounts:
    """Counts over all rows, column by column.

    Attributes
    ----------
    rows : int
    observed : integer array of shape (columns,)
        Number of values.
    whole : boolean array of shape (columns,)
        Whether all values are integers.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.observed: Any = 0
        self.whole: Any = True
        self._increasing, self._last = True, -math.inf

    def add(self, values: Array) -> None:
        observed = ~np.isnan(values)
        self.rows += len(values)
        self.observed = self.observed + observed.sum(axis=0)
        self.whole = self.whole & np.all((values == np.rint(values)) | ~observed, axis=0)
        if self._increasing:
            first = np.concatenate([[self._last], values[:, 0]])
            self._increasing, self._last = bool(np.all(np.diff(first) > 0)), float(values[-1, 0])

    def first_numbers_rows(self, name: str) -> bool:
        """Return whether the first column holds increasing integers, as an index does."""
        usual = name.strip().lower() in INDEX_NAMES
        complete = self.observed[0] == self.rows
        return bool(self._increasing and self.whole[0] and complete and (usual or self.rows >= 5))


class _RowSample:
    """Rows drawn at random in one pass: those with the smallest random keys."""

    def __init__(self, size: int | None, seed: int) -> None:
        self._size = size
        self._rng = np.random.default_rng(seed)
        self._rows: list[Any] = []
        self._keys: list[Any] = []
        self._places: list[Any] = []
        self._bound, self._held, self._seen = 1.0, 0, 0

    def add(self, values: Array) -> None:
        if self._size is None:
            self._size = _affordable_rows(math.prod(values.shape[1:]))
        key = self._rng.random(len(values))
        chosen = key < self._bound
        self._rows.append(values[chosen])
        self._keys.append(key[chosen])
        self._places.append(self._seen + np.flatnonzero(chosen))
        self._seen += len(values)
        self._held += int(chosen.sum())
        if self._held > 2 * self._size:
            self._shrink(self._size)

    def _shrink(self, size: int) -> None:
        key = np.concatenate(self._keys)
        self._bound = float(np.partition(key, size)[size])
        chosen = key < self._bound
        self._rows = [np.concatenate(self._rows)[chosen]]
        self._places = [np.concatenate(self._places)[chosen]]
        self._keys, self._held = [key[chosen]], size

    def drawn(self) -> tuple[Array, Array]:
        """Return the sample, in the order of the file, and which rows it is; release it."""
        assert self._size is not None
        if self._held > self._size:
            self._shrink(self._size)
        rows, self._rows = self._rows, []
        return np.concatenate(rows), np.concatenate(self._places)


def _affordable_rows(columns: int) -> int:
    enough = max(ENOUGH_ROWS, 20 * columns)
    return max(100, min(enough, int(MEMORY_SHARE * available_memory() / CELL_BYTES / columns)))
