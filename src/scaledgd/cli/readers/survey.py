"""The first pass over a table: what its columns hold, and a sample of rows for the fit.

A table is read twice: once for the survey, and once to fill and write it. Only the rows of the
fit must fit into memory.
"""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from ...estimators.plausible import ColumnValues, Plausible
from ...estimators.reading import available_memory
from ..failures import Failure, listed, shown
from .arrays import ArrayTable
from .batches import Progress, TableReader
from .dates import AUTO, NONE, DateFinder, Dates
from .files import find_column
from .text_table import TextTable

Array = Any

CELL_BYTES = 450
"""Memory that a fit takes per cell."""
MEMORY_SHARE = 0.5
"""Share of the free memory that a fit may take."""
FEWEST_LINES = 10
"""Smallest number of lines of a table that may look like a long file."""
ENOUGH_ROWS = 200_000
"""Number of rows of a fit, unless there are many columns. More would hardly change it."""
INDEX_NAMES = ("", "index", "id", "unnamed: 0")
"""Usual names of a column that numbers the rows."""
IDENTIFIER = re.compile(
    r"(?i:(.*[\s_.-])?(id|uuid|plz|zip|zip[\s_-]?code|post(al)?[\s_-]?code))|.*[a-z]I[dD]"
)
"""Usual names of columns of integers that are not measurements."""
CODES = [sign * code for code in (99, 999, 9999, 99999, 999999, 99.9, 999.9) for sign in (-1, 1)]
"""Numbers that often stand for a missing value."""
OFTEN = 5
"""How often another number occurs in a column if it may stand for a missing value."""
TIMELY = re.compile(r"(?i)(.*[\s_.-])?(date|day|time|timestamp|datetime|epoch|year)")
"""Usual names of columns of integers that stand for times."""


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
        Columns of text, a first column that numbers the rows, and columns of identifiers.
    empty : list of int
        Numeric columns without any value, which stay empty. Unnamed ones do not count.
    missing : integer array
        Number of missing cells of each used column; for a tensor, of each fibre along mode 0.
    integer : set of int
        Columns of integers without missing cells.
    fitted_rows : int
        Number of rows in the sample for the fit.
    dates : Dates, optional
        The times of the rows; their column is among those passed through.
    notes : list of str
        Warnings about columns that almost hold times.
    assumed : list of str
        Which columns were taken as identifiers.
    plausible : Plausible, optional
        What values the used columns hold; for a tensor, all of its entries.
    index : int, optional
        The column that names the rows, if it was given.
    codes : dict
        Numbers that may mean missing, and how often they occur in the sample.
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
    assumed: list[str] = field(default_factory=list)
    plausible: Plausible | None = None
    index: int | None = None
    codes: dict[float, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.shape[0]


def survey(
    table: TableReader,
    fit_rows: int | None,
    seed: int,
    progress: Progress,
    date: str = AUTO,
    index: str | None = None,
    wide: bool = False,
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
    index : str, optional
        The column that names the rows, by name or position from 1.
    wide : bool
        Whether the file is a table even if it looks like a long file.

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
    named = None if index is None else find_column(index, table.names, table.path)
    times, values = DateFinder(table, wanted), None
    for batch in table.batches(progress):
        if values is None and table.order == 2 and not wide:
            refuse_long(table, batch)
        flat = batch.values.reshape(len(batch.values), -1) if table.order == 2 else None
        flat = batch.values.reshape(-1, 1) if flat is None else flat
        values = ColumnValues(flat.shape[1]) if values is None else values
        values.add_rows(flat)
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
        assert values is not None
        found = Survey(shape, [], [], [], missing, set(), len(data), plausible=values.found())
        return found, data, drawn
    assert values is not None
    found = _classified(table, columns, len(data))
    dates, notes = times.found()
    found = replace(found, dates=dates, notes=[*table.mixed, *notes], index=named)
    if dates is not None and dates.clock is not None:
        both = listed([table.names[dates.column], table.names[dates.clock]])
        found.assumed.append(f"columns {both}: the dates and the times of day of the rows")
    found = replace(found, plausible=values.some(found.used).found())
    data = data[:, found.used]
    return replace(found, codes=codes_for_missing(data)), data, drawn


def refuse_long(table: TableReader, batch: Any) -> None:
    """Fail if a table has one value per line, with the names of its row and column.

    Such a file has three to five columns. The first two have few names, each of which occurs many
    times, but no pair twice. The third holds numbers.
    """
    cells = [table.cells_of(batch, j) for j in range(2)] if len(table.names) in (3, 4, 5) else []
    rows = len(batch.values)
    if not cells or rows < FEWEST_LINES or 2 in table.text_columns:
        return
    codes = []
    for j, column in enumerate(cells):
        if j not in table.text_columns:
            column = pa.array(batch.values[:, j])
            whole = batch.values[:, j]
            if np.isnan(whole).any() or (whole != np.rint(whole)).any():
                return
        codes.append(column.dictionary_encode())
    sizes = [len(code.dictionary) for code in codes]
    # a name occurs in several lines, and few pairs of the grid of names are missing
    if min(sizes) < 2 or any(2 * n > rows for n in sizes):
        return
    first, second = (code.indices.to_numpy(zero_copy_only=False) for code in codes)
    if any(code.null_count for code in codes):
        return
    if len(np.unique(first * float(sizes[1]) + second)) < rows:
        return
    names = ",".join(table.names[:3])
    raise Failure(
        f"{table.path} looks like a long file, with row, column and value in every line: use "
        f"--long {shlex.quote(names)}, or --long none to read it as a table"
    )


def codes_for_missing(values: Array) -> dict[float, int]:
    """Return which numbers may mean missing, and how often they occur outside the other values.

    Such a number occurs more than once, and is farther from all other values of its column than
    these are from each other. It is one of `CODES`, or the smallest or largest number of a column
    in which it occurs at least `OFTEN` times, and in which other values vary.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledgd.cli.readers.survey import codes_for_missing
    >>> codes_for_missing(np.array([[1.0, -999.0], [-999.0, 4.0], [2.0, 5.0]]))
    {-999.0: 2}
    """
    counts: dict[float, int] = {}
    far: set[float] = set()
    for column in values.T:
        seen = column[~np.isnan(column)]
        ends = {float(seen.min()), float(seen.max())} if len(seen) else set()
        plain = seen
        if not ends.isdisjoint(CODES):  # else a code would lie among the others
            coded = np.isin(seen, CODES)
            plain = seen[~coded]
            ends = set(np.unique(seen[coded]).tolist())
            ends |= {float(plain.min()), float(plain.max())} if len(plain) else set()
        for code in ends:
            others, count = plain[plain != code], int(np.sum(seen == code))
            if not len(others) or (code not in CODES and count < OFTEN):
                continue
            low, high = others.min(), others.max()
            away = max(low - code, code - high)
            if away > 0:
                counts[code] = counts.get(code, 0) + count
            if away > high - low and (code in CODES or len(np.unique(others)) >= OFTEN):
                far.add(code)
    return {code: n for code, n in sorted(counts.items()) if n > 1 and code in far}


def _classified(table: TableReader, columns: _ColumnCounts, fitted_rows: int) -> Survey:
    """Decide which columns are used, passed through or left empty."""
    observed, rows = columns.observed, columns.rows
    index, assumed = set(), []
    if not isinstance(table, ArrayTable):
        if columns.first_numbers_rows(table.names[0]):
            index = {0}
            if TIMELY.fullmatch(table.names[0].strip()) and 0 not in table.text_columns:
                name = table.names[0]
                assumed.append(
                    f"column {shown(name)}: passed through, because it numbers the rows; "
                    f"--date {shlex.quote(name)} reads them as times"
                )
        whole = columns.whole & (observed == rows)
        named = {j for j, name in enumerate(table.names) if IDENTIFIER.fullmatch(name.strip())}
        codes = table.codes if isinstance(table, TextTable) else set()
        free = index | table.text_columns
        for found, why in (
            (named, "by name, and passed through (rename columns of measurements)"),
            (codes - named, "by leading zeros or by length, and passed through"),
        ):
            identifiers = {j for j in found - free if whole[j]}
            if identifiers:
                names = [table.names[j] for j in sorted(identifiers)]
                which = f"{'column' if len(names) == 1 else 'columns'} {listed(names)}"
                assumed.append(f"{which}: taken as identifiers {why}")
            index |= identifiers
    numeric = [j for j in range(len(table.names)) if j not in table.text_columns | index]
    complete = {j for j in numeric if columns.whole[j] and observed[j] == rows}
    used = [j for j in numeric if observed[j]]
    return Survey(
        (rows, len(used)),
        used,
        sorted(table.text_columns | index),
        [j for j in numeric if not observed[j] and table.names[j].strip()],
        rows - observed[used],
        complete | index - table.text_columns,
        fitted_rows,
        assumed=assumed,
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
