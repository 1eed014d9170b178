"""Find the column of a table that holds the times of its rows, and read them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..failures import Failure, shown

Array = Any

DATES = (
    *("%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d"),
    *("%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
    *("%a, %d %b %Y", "%a %d %b %Y", "%a %b %d %Y", "%b %Y", "%b-%Y", "%B %Y", "%b-%y"),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y"),
)
CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
FORMATS = ("ISO8601", *(d + c for d, c in itertools.product(DATES, CLOCKS)))
"""Formats of times, except those that consist of digits only."""
NUMBERS = ("%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S", "%Y")
"""Formats of times as numbers. A column of numbers is read as times only if it is named."""
COUNTS = {
    "seconds": (1e8, 1.9e9, "s", "unix"),
    "milliseconds": (5e11, 1.9e12, "ms", "unix"),
    "spreadsheet days": (20_000, 80_000, "D", "1899-12-30"),
}
"""Counts of time: smallest and largest number, unit and origin. They must be named, too."""
TIMES_OF_DAY = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%H.%M.%S", "%I:%M %p", "%I:%M:%S %p")
"""Formats of times of day, for tables with the date in another column."""
ISO = r"^\d{4}-\d{2}"
DIGITS = r"\d.*\D.*\d{2}"
LOOK = 100
"""Number of cells that are examined first."""
MOST = 0.9
"""Share of those that must be times, for the column to hold times."""
FIRST, LAST = np.datetime64("1678-01-01"), np.datetime64("2262-01-01")
"""Times that can be counted in nanoseconds."""

NONE, AUTO = "none", "auto"


@dataclass(frozen=True, eq=False)
class Dates:
    """The times of the rows of a table.

    Attributes
    ----------
    column : int
    times : datetime64 array of shape (rows,)
        UTC if the cells have UTC offsets.
    clock : int, optional
        The column of the times of day, if they are not in the column of dates.
    """

    column: int
    times: Array
    clock: int | None = None

    @property
    def seconds(self) -> Array:
        """Times in seconds since 1970."""
        return self.times.astype("datetime64[us]").astype(np.int64) / 1e6


@dataclass(eq=False)
class _Reading:
    """Cells of a column, read in one format.

    Attributes
    ----------
    times : list of datetime64 arrays
    fault : str
        Where the first cell is that is not a time, in words.
    """

    times: list[Any] = field(default_factory=list)
    fault: str = ""

    def whole(self) -> Array:
        return np.concatenate(self.times)

    def joined(self, clock: _Reading) -> _Reading:
        """Dates with the times of day of another column."""
        of_day = clock.whole()
        fault = self.fault or ("a time of day is missing" if np.isnat(of_day).any() else "")
        return _Reading([self.whole() + (of_day - of_day.astype("datetime64[D]"))], fault)


class DateFinder:
    """Read the columns that may hold times, batch by batch.

    Parameters
    ----------
    table : TableReader
    wanted : int or None
        The column that holds the times; None looks for it.
    """

    def __init__(self, table: Any, wanted: int | None) -> None:
        self._table, self._wanted = table, wanted
        self._readings: dict[int, dict[str, _Reading]] = {}
        self._rejected: set[int] = set()
        self._several: list[str] = []
        self._clocks: dict[int, dict[str, _Reading]] = {}

    def add(self, batch: Any) -> None:
        """Read rows."""
        columns = self._table.text_columns if self._wanted is None else {self._wanted}
        for j in sorted(columns - self._rejected):
            self._add(batch, j, self._table.cells_of(batch, j))
        for j in self._table.text_columns:
            if not batch.first:
                cells = self._table.cells_of(batch, j)
                self._clocks[j] = {f: _Reading() for f in _forms(cells, TIMES_OF_DAY)}
            for form, reading in self._clocks.get(j, {}).items():
                reading.times.append(read_times(self._table.cells_of(batch, j), form))

    def _add(self, batch: Any, j: int, cells: pa.Array) -> None:
        if j not in self._readings:
            if batch.first:  # it became a column of text late: the cells before are not times
                self._rejected.add(j)
                return
            self._readings[j] = {form: _Reading() for form in self._likely(cells)}
        if not self._readings[j]:
            if self._in_several_formats(cells):
                self._several.append(shown(self._table.names[j]))
            self._reject(batch, j, cells)
            return
        for form, reading in self._readings[j].items():
            times = read_times(cells, form)
            wrong = np.flatnonzero(np.isnat(times))
            if len(wrong) and not reading.fault:
                reading.fault = self._fault(batch, int(wrong[0]), j, cells)
            reading.times.append(times)

    def _likely(self, cells: pa.Array) -> list[str]:
        """The formats in which most of the first cells can be read."""
        if is_time(cells.type):
            return [""]
        return _forms(cells, FORMATS if self._wanted is None else (*FORMATS, *NUMBERS, *COUNTS))

    def _in_several_formats(self, cells: pa.Array) -> bool:
        """Whether most of the first cells are times, but not in one format."""
        sample = cells.drop_null()[:LOOK]
        if not len(sample) or not pc.any(pc.match_substring_regex(sample, DIGITS)).as_py():
            return False
        return bool(np.mean(np.any([~np.isnat(read_times(sample, f)) for f in FORMATS], 0)) >= MOST)

    def _reject(self, batch: Any, j: int, cells: pa.Array) -> None:
        self._rejected.add(j)
        if self._wanted is not None:
            first = cells.drop_null()[:1].to_pylist()
            what = f"holds {shown(first[0])}, which is" if first else "holds"
            raise Failure(
                f"{self._table.path}: column {shown(self._table.names[j])} {what} no time in a "
                "format that is known; write times as 2024-03-04 06:00, or give --date none"
            )

    def _fault(self, batch: Any, row: int, j: int, cells: pa.Array) -> str:
        word = cells[row].as_py()
        where = f"line {batch.line_of(row)}" if hasattr(batch, "line_of") else ""
        where = where or f"row {batch.first + row + 1}"
        return f"{where} has {'no time' if word is None else shown(word)}"

    def found(self) -> tuple[Dates | None, list[str]]:
        """Return the times of the rows, and warnings about columns that almost hold times.

        A named column must hold times, without repetition.
        """
        complaints = [
            f"the column {name} holds times in several formats; it was passed through, and the "
            "rows have no times; write all of them as 2024-03-04 06:00"
            for name in self._several
        ]
        for j, readings in self._readings.items():
            if not readings:
                continue
            name = shown(self._table.names[j])
            times, complaint = _settled(list(readings.values()))
            if times is not None:
                return Dates(j, times), []
            for clock, of_day in self._clocks.items():
                both = [a.joined(b) for a in readings.values() for b in of_day.values()]
                times = _settled(both)[0] if both else None
                if times is not None:
                    return Dates(j, times, clock), []
            if self._wanted is not None:
                raise Failure(
                    f"{self._table.path}: {complaint} in column {name}; repair it, or give "
                    "--date none to pass the column through"
                )
            complaints.append(
                f"the column {name} holds times, but {complaint}; it was passed through, and "
                "the rows have no times"
            )
        return None, complaints[:1]


def _forms(cells: pa.Array, known: tuple[str, ...]) -> list[str]:
    """The formats in which most of the first cells can be read."""
    sample = cells.drop_null()[:LOOK]
    if is_time(cells.type) or not len(sample):
        return []
    if not pc.any(pc.match_substring_regex(sample, r"\d")).as_py():
        return []
    iso = bool(pc.any(pc.match_substring_regex(sample, ISO)).as_py())
    return [
        form
        for form in known
        if (iso or form != "ISO8601") and np.mean(~np.isnat(read_times(sample, form))) >= MOST
    ]


def _settled(readings: list[_Reading]) -> tuple[Array | None, str]:
    """The times that a column holds, or what is wrong with it."""
    good = [reading.whole() for reading in readings if not reading.fault]
    if not good:
        return None, readings[0].fault
    distinct = [times for times in good if len(np.unique(times)) == len(times)]
    if not distinct:
        times = np.sort(good[0])
        same = times[1:][times[1:] == times[:-1]]
        return None, f"{moment(same[0])} is repeated ({len(same)} repeated in all)"
    # 03/04/2024 is in March or in April: choose the reading with the fewest different steps
    steps = [len(np.unique(np.diff(np.sort(times)))) for times in distinct]
    best = [t for t, n in zip(distinct, steps, strict=True) if n == min(steps)]
    if any(not np.array_equal(best[0], other) for other in best[1:]):
        return None, "days and months cannot be told apart"
    return best[0], ""


def moment(time: Any) -> str:
    """Return a time as text, without seconds and hours if it has none.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledgd.cli.readers.dates import moment
    >>> moment(np.datetime64("2024-03-04T00:00")), moment(np.datetime64("2024-03-04T06:00"))
    ('2024-03-04', '2024-03-04 06:00')
    """
    word = str(time.astype("datetime64[s]")).replace("T", " ")
    return word.removesuffix(":00").removesuffix(" 00:00")


def is_time(kind: pa.DataType) -> bool:
    """Return whether an Arrow column holds times."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def read_times(cells: pa.Array, form: str) -> Array:
    """Return cells as datetime64, NaT where they cannot be read.

    Parameters
    ----------
    cells : pyarrow.Array
        Of text, or of times if the format is empty.
    form : str
        "ISO8601", codes as those of `datetime.strptime`, or one of `COUNTS`.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from scaledgd.cli.readers.dates import read_times
    >>> read_times(pa.array(["4.3.2024 06:00", "soon"]), "%d.%m.%Y %H:%M").astype(str).tolist()
    ['2024-03-04T06:00:00.000000', 'NaT']
    """
    if not form:
        times = cells.to_numpy(zero_copy_only=False).astype("datetime64[us]")
    else:
        import pandas as pd

        words = pd.Series(cells.to_pylist(), dtype=object)
        if form in COUNTS:
            low, high, unit, origin = COUNTS[form]
            counts = pd.to_numeric(words, errors="coerce")
            counts = counts.where((counts >= low) & (counts <= high))
            read = pd.to_datetime(counts, unit=unit, origin=origin, errors="coerce", utc=True)
        else:
            read = pd.to_datetime(words, format=form, errors="coerce", utc=True)
        times = read.dt.tz_localize(None).to_numpy().astype("datetime64[us]")
    return np.where((times >= FIRST) & (times < LAST), times, np.datetime64("NaT"))
