"""``complete`` and ``clean`` for long files.

Long files are read and written in batches and never made dense. Memory holds the row and column
number of each entry, four bytes each, and the values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...estimators.plausible import ColumnValues, Plausible
from ...kernels import backend
from .. import fits
from ..failures import Failure, shown
from ..fitted import Cleaned, Fitted
from ..progress import progress_bar
from ..readers.batches import Progress
from ..readers.long import (
    LongEntries,
    LongReader,
    decoded,
    open_long,
    open_pairs,
    read_long,
    read_sparse_entries,
)
from ..writers.files import check_named_columns, open_outputs
from ..writers.long import open_long_writer, value_name
from ..writers.outliers import write_long_cells, write_long_outliers
from ..writers.pictures import Picture
from ..writers.report_page import write_report
from .options import TableOptions
from .summary import Summary

if TYPE_CHECKING:
    from ...estimators.local_observations import LocalObservations

Array = Any

PICTURE_CELLS = 200_000
"""Number of estimates in a picture."""


def run(options: TableOptions) -> Summary:
    """Read, fit and write a long file; return what happened."""
    check_named_columns("-o", options.out)
    reader, pairs = _open(options)
    outputs = open_outputs(options.out, options.outliers, options.second)
    with outputs as (file, outlier_file, second_file):
        entries = _read(options, reader)
        known, axes = _observed(options, entries)
        wanted = _wanted(options, entries, axes)
        if not options.robust:
            entries = replace(entries, rows=None, columns=None, values=None)  # to free memory
        before, pictures = _described(known), {}
        plausible = None if options.raw else _plausible(known)
        if options.report is not None:
            pictures["input"] = _picture_of_values(known)
        handed = [known]  # so that the fit can free the cells after copying them
        del known
        fit = fits.clean if options.robust else fits.complete
        # rows of a long file are in no order
        fitted = fit(handed.pop(), replace(options.settings(), smooth="none"))
        values = fitted.at(wanted.rows, wanted.columns)
        also: dict[str, Any] = {}
        if isinstance(fitted, Cleaned):
            limit = fitted.limit(wanted.columns)
            also["failed"] = fitted.failed
            wrong = _outliers(options, reader, entries, values, limit, outlier_file)
            also["outliers"] = len(wrong)
            if options.only_outliers:
                chosen = np.isnan(entries.values)
                chosen[wrong] = True
                wanted, values = wanted.some(chosen), values[chosen]
            else:
                plausible = None
        if plausible is not None:
            values = fitted._clipped(plausible.values(values[:, None])[:, 0])
        second = _Second(options, fitted, plausible)
        if pairs is None:
            second.add_places(axes, wanted, values)
        with progress_bar("writing", options.verbose) as progress:
            if pairs is None:
                assert reader is not None
                _write_filled(options.out, reader, wanted, values, file, progress)
            else:
                name = value_name(reader)
                wanted = _write_pairs(
                    options.out, pairs, name, axes, fitted, second, file, progress
                )
        if second_file is not None and options.second is not None:
            second.write(second_file, options.second, reader or pairs)
            also["intervals"] = str(options.second)
        if options.report is not None:
            pictures["estimates"] = picture_of_estimates(before["shape"], fitted)
        summary = Summary(
            command=options.command,
            file=options.file,
            out=options.out,
            missing=wanted.missing,
            fitted=fitted,
            pictures=pictures,
            notes=wanted.notes(),
            assumed=list(getattr(reader, "assumed", ())),
            also=wanted.facts() | also,
            **before,
        )
        if options.report is not None:
            write_report(options.report, summary)
    return summary


def _open(options: TableOptions) -> tuple[LongReader | None, LongReader | None]:
    """Open the long file, None for Matrix Market, and the pairs to predict, if any."""
    dialect = options.dialect()
    reader = None
    if options.long:
        reader = open_long(options.file, options.long, dialect, options.sheet)
    if options.predict is None:
        return reader, None
    return reader, open_pairs(options.predict, reader, options.file, dialect)


def _read(options: TableOptions, reader: LongReader | None) -> LongEntries:
    with progress_bar("reading", options.verbose) as progress:
        if reader is None:
            return read_sparse_entries(options.file)
        return read_long(reader, progress)


# ---- what is known


@dataclass(frozen=True, eq=False)
class AxisNames:
    """Names of all rows, or of all columns.

    Attributes
    ----------
    names : pyarrow.Array
    place : integer array of the same length
        Position of each in the fit; −1 if it has no value.
    """

    names: pa.Array
    place: Array

    @property
    def fitted(self) -> int:
        """Number of rows, or columns, in the fit."""
        return int((self.place >= 0).sum())

    def find(self, names: pa.Array) -> Array:
        """Return the positions of some names in the fit; −1 if a name is unknown."""
        names, known = decoded(names), self.names
        if names.type != known.type:
            names, known = names.cast(pa.string()), known.cast(pa.string())
        found = pc.fill_null(pc.index_in(names, value_set=known), -1)
        return np.append(self.place, -1)[found.to_numpy(zero_copy_only=False)]


Axes = tuple[AxisNames, AxisNames]
"""Rows and columns."""


def _observed(options: TableOptions, entries: LongEntries) -> tuple[LocalObservations, Axes]:
    """Return the entries with a value, each pair once, among the rows and columns that have any."""
    from ...estimators.local_observations import LocalObservations

    seen = ~np.isnan(entries.values)
    axes = []
    for codes, names in zip((entries.rows, entries.columns), entries.names, strict=True):
        used = np.bincount(codes[seen], minlength=len(names)) > 0
        place = np.where(used, np.cumsum(used) - 1, -1).astype(np.int32)
        axes.append(AxisNames(names, place))
    rows, columns = axes
    index = rows.place[entries.rows[seen]], columns.place[entries.columns[seen]]
    known = LocalObservations(index, entries.values[seen], (rows.fitted, columns.fitted))
    if not known.size:
        raise Failure(
            f"{options.file}: no line has a value, so there is nothing to learn from; check which "
            "column holds the values"
        )
    return _without_duplicates(options, known, (rows, columns)), (rows, columns)


def _without_duplicates(
    options: TableOptions, known: LocalObservations, axes: Axes
) -> LocalObservations:
    """Apply ``--duplicates`` to pairs with several values."""
    index: Any = tuple(i.astype(np.int64) for i in known.coordinates)
    if backend(*index).distinct(index, known.shape):
        return known
    keys = index[0] * known.shape[1] + index[1]
    del index
    order = np.argsort(keys, kind="stable")
    begins = np.diff(keys[order], prepend=-1) > 0
    if options.duplicates == "error":
        again = int(order[~begins].min())
        pair = (
            axis.names.filter(pa.array(axis.place == int(i[again])))[0].as_py()
            for axis, i in zip(axes, known.coordinates, strict=True)
        )
        raise Failure(
            f"{options.file}: {', '.join(shown(name) for name in pair)} has more than one value "
            f"({int((~begins).sum()):,} rows repeat a pair); choose with --duplicates mean, first "
            "or last"
        )
    starts = np.flatnonzero(begins)
    if options.duplicates == "mean":
        counts = np.diff(np.append(starts, len(order)))
        values = np.add.reduceat(known.y[order], starts) / counts
        return known.some(order[starts]).with_values(values)
    ends = np.append(starts[1:], len(order)) - 1
    return known.some(order[starts if options.duplicates == "first" else ends])


def _plausible(known: LocalObservations) -> Plausible:
    """What values the file holds."""
    seen = ColumnValues(1)
    seen.add_rows(known.y[:, None])
    return seen.found()


class _Second:
    """Collects intervals and standard deviations of cells, and writes them.

    Parameters
    ----------
    options : TableOptions
    fitted : Fitted
    plausible : Plausible, optional
        Bounds of the intervals.
    """

    def __init__(self, options: TableOptions, fitted: Fitted, plausible: Plausible | None) -> None:
        self.options, self.fitted, self.plausible = options, fitted, plausible
        self.names: tuple[list[Any], list[Any]] = ([], [])
        self.values: dict[str, list[Any]] = {}

    def add(self, names: tuple[pa.Array, ...], index: tuple[Array, ...], values: Array) -> None:
        """Add cells: the names of their rows and columns, and their positions in the fit."""
        options = self.options
        if options.second is None:
            return
        sides = self.fitted.sides(index, options.interval, options.std, self.plausible)
        found = {"value": values} | sides
        for side, part in zip(self.names, names, strict=True):
            side.append(decoded(part))
        for title, part in found.items():
            self.values.setdefault(title, []).append(part)

    def add_places(self, axes: Axes, wanted: Wanted, values: Array) -> None:
        """Add the wanted cells of a long file."""
        if self.options.second is None:
            return
        assert wanted.codes is not None
        names = tuple(
            axis.names.take(pa.array(code)) for axis, code in zip(axes, wanted.codes, strict=True)
        )
        self.add(names, (wanted.rows, wanted.columns), values)

    def write(self, file: IO[bytes], path: Path, reader: LongReader | None) -> None:
        assert reader is not None
        titles = [reader.names[k] for k in reader.at[:2] if k is not None]
        names = [pa.chunked_array(side).combine_chunks() for side in self.names]
        values = {title: np.concatenate(parts) for title, parts in self.values.items()}
        write_long_cells(file, path, dict(zip(titles, names, strict=True)), values)


def _described(known: LocalObservations) -> dict[str, Any]:
    """Return what the summary says about the known cells."""
    sides = zip(("rows", "columns"), known.coordinates, strict=True)
    counts = {side: np.bincount(i) for side, i in sides}
    return {"shape": known.shape, "observed": known.size, "counts": counts}


def _picture_of_values(known: LocalObservations) -> Picture:
    picture = Picture(*known.shape)
    picture.add_cells(known.coordinates, known.y)
    return picture


def picture_of_estimates(shape: tuple[int, ...], fitted: Fitted) -> Picture:
    """Return estimates of a random sample of cells; all of them would be too many."""
    picture, rng = Picture(*shape), np.random.default_rng(0)
    i, j = (rng.integers(0, n, PICTURE_CELLS) for n in shape)
    picture.add_cells((i, j), fitted.at(i, j))
    return picture


# ---- what is wanted


@dataclass(frozen=True, eq=False)
class Wanted:
    """The entries that get a new value.

    Attributes
    ----------
    position : integer array
        Numbers of the lines.
    rows, columns : integer arrays of the same shape
        Positions in the fit; −1 for a row or a column without any value.
    missing : int
        Number of entries without a value.
    unknown : tuple of int
        Number of rows, and of columns, without any value.
    codes : pair of integer arrays of the same shape, optional
        Positions of their names.
    """

    position: Array
    rows: Array
    columns: Array
    missing: int
    unknown: tuple[int, ...]
    codes: tuple[Array, ...] | None = None

    def some(self, chosen: Array) -> Wanted:
        """Return some of the entries."""
        codes = None if self.codes is None else tuple(code[chosen] for code in self.codes)
        at, rows, columns = (x[chosen] for x in (self.position, self.rows, self.columns))
        return Wanted(at, rows, columns, self.missing, self.unknown, codes)

    def facts(self) -> dict[str, int]:
        return dict(zip(("unknown_rows", "unknown_columns"), self.unknown, strict=True))

    def notes(self) -> list[str]:
        sides = zip(self.unknown, ("rows", "columns"), strict=True)
        found = " and ".join(f"{n:,} {side}" for n, side in sides if n)
        return [f"{found} have no value at all, and are filled like typical ones"] if found else []


def _wanted(options: TableOptions, entries: LongEntries, axes: Axes) -> Wanted:
    holes = np.isnan(entries.values)
    missing = int(holes.sum())
    if not missing and options.predict is None and not options.robust:
        raise Failure(
            f"{options.file}: nothing is missing, so there is nothing to fill; add lines with an "
            "empty value, or give pairs with --predict PAIRS"
        )
    position = np.arange(len(holes)) if options.robust else np.flatnonzero(holes)
    codes = entries.rows[position], entries.columns[position]
    i, j = (axis.place[k] for axis, k in zip(axes, codes, strict=True))
    unknown = tuple(len(np.unique(k[at < 0])) for k, at in zip(codes, (i, j), strict=True))
    kept = codes if options.second is not None or options.robust else None
    return Wanted(position, i, j, missing, unknown, kept)


# ---- what is written


def _write_filled(
    out: Path,
    reader: LongReader,
    wanted: Wanted,
    values: Array,
    file: IO[bytes],
    progress: Progress,
) -> None:
    """Write the long file with new values at the wanted positions."""
    with open_long_writer(file, out, reader) as write:
        for batch in reader.batches(progress):
            begin, end = np.searchsorted(wanted.position, [batch.first, batch.first + len(batch)])
            write(batch, wanted.position[begin:end] - batch.first, values[begin:end])


def _outliers(
    options: TableOptions,
    reader: LongReader | None,
    entries: LongEntries,
    low: Array,
    limit: Array | float,
    file: IO[bytes] | None,
) -> Array:
    """Return the entries that differ by more than `limit` from the low-rank part; write them."""
    deviation = entries.values - low
    wrong = np.flatnonzero(np.abs(deviation) > limit)
    if file is not None and options.outliers is not None and reader is not None:
        write_long_outliers(file, options.outliers, reader, entries, wrong, deviation[wrong])
    return wrong


def _write_pairs(
    out: Path,
    pairs: LongReader,
    name: str,
    axes: Axes,
    fitted: Fitted,
    second: _Second,
    file: IO[bytes],
    progress: Progress,
) -> Wanted:
    """Write the pairs with their estimates, in a column called `name` if they have none.

    These estimates are not rounded, because whole stars could not rank the items of a user.
    """
    unknown: tuple[set[Any], set[Any]] = (set(), set())
    count = 0
    with open_long_writer(file, out, pairs, name) as write:
        for batch in pairs.batches(progress):
            names = batch.rows, batch.columns
            i, j = (axis.find(x) for axis, x in zip(axes, names, strict=True))
            for k, place in enumerate((i, j)):
                unknown[k].update(pc.unique(names[k].filter(pa.array(place < 0))).to_pylist())
            at = np.arange(len(batch))
            if batch.values is not None:
                at = np.flatnonzero(np.isnan(batch.values))
            count += len(at)
            values = fitted.at(i[at], j[at])
            if second.plausible is not None:
                values = second.plausible.values(values[:, None], rounded=False)[:, 0]
            write(batch, at, values)
            picked = tuple(x.take(pa.array(at)) for x in names)
            second.add(picked, (i[at], j[at]), values)
    none = np.empty(0, dtype=np.int64)
    return Wanted(none, none, none, count, tuple(map(len, unknown)))
