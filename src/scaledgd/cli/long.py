"""Long files: filling them, and separating them from gross errors.

They are read and written some rows at a time, and never made dense: what is kept are the
numbers of rows and columns, four bytes each, and the values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import kernels
from . import fits, pages
from .cells import Triplets
from .entries import (
    Cells,
    Chunk,
    LongArrow,
    LongText,
    Names,
    Source,
    opened,
    opened_pairs,
    read,
    read_matrix,
)
from .failures import Failure, shown
from .fits import Cleaned, Fitted
from .formats import Show, format_of
from .frames import checked_text
from .jobs import Job, progress
from .sinks import alike, check_long, outputs, writer
from .stories import Picture, Story

Array = Any

SAMPLED = 200_000
"""Cells that a picture of the estimates is made of."""


def observed(job: Job, cells: Cells) -> tuple[Triplets, Names, Names]:
    """The values that are there, with rows and columns numbered anew, each pair once."""
    seen = ~np.isnan(cells.values)
    sides = []
    for codes, ids in zip((cells.rows, cells.columns), cells.names, strict=True):
        used = np.bincount(codes[seen], minlength=len(ids)) > 0
        place = np.where(used, np.cumsum(used) - 1, -1).astype(np.int32)
        sides.append(Names(ids, place))
    rows, columns = sides
    index = rows.place[cells.rows[seen]], columns.place[cells.columns[seen]]
    known = Triplets(index, cells.values[seen], (rows.known, columns.known))
    if not known.size:
        raise Failure(
            f"{job.file}: no value is known, so nothing can be learnt; check which column holds "
            "the values"
        )
    return _once(job, known, rows, columns), rows, columns


def _once(job: Job, known: Triplets, rows: Names, columns: Names) -> Triplets:
    """Every pair once, as was asked for."""
    index: Any = tuple(i.astype(np.int64) for i in known.index)
    if kernels.distinct(index, known.shape):
        return known
    keys = index[0] * known.shape[1] + index[1]
    del index
    order = np.argsort(keys, kind="stable")
    begins = np.diff(keys[order], prepend=-1) > 0
    if job.duplicates == "error":
        again = int(order[~begins].min())
        pair = (
            names.ids.filter(pa.array(names.place == int(i[again])))[0].as_py()
            for names, i in zip((rows, columns), known.index, strict=True)
        )
        raise Failure(
            f"{job.file}: {', '.join(shown(name) for name in pair)} has more than one value "
            f"({int((~begins).sum()):,} rows repeat a pair); say --duplicates mean, first or last"
        )
    starts = np.flatnonzero(begins)
    if job.duplicates == "mean":
        counts = np.diff(np.append(starts, len(order)))
        values = np.add.reduceat(known.values[order], starts) / counts
        return replace(known.some(order[starts]), values=values)
    ends = np.append(starts[1:], len(order)) - 1
    return known.some(order[starts if job.duplicates == "first" else ends])


def run(job: Job) -> Story:
    """Do what was asked for."""
    check_long("-o", job.out)
    if job.predict is not None and job.robust:
        raise Failure("--predict goes with complete")
    source = None if job.long is None else opened(job)
    pairs = None if job.predict is None else opened_pairs(job, source)
    with contextlib.ExitStack() as stack:
        file, errors = outputs(job, stack)
        with progress("reading", job.settings.verbose) as show:
            cells = read_matrix(job.file) if source is None else read(source, show)
        known, rows, columns = observed(job, cells)
        wanted = _wanted(job, cells, rows, columns)
        cells = cells if job.robust else replace(cells, rows=None, columns=None, values=None)
        size, shape, counts = known.size, known.shape, _counts(known)
        before = _before(job, known)
        handed = [known]  # the fit lets go of what it has copied
        del known
        fitted = (fits.clean if job.robust else fits.complete)(handed.pop(), job.settings)
        values = fitted.at(wanted.rows, wanted.columns)
        also = {}
        if isinstance(fitted, Cleaned):
            also["outliers"] = _outliers(job, source, cells, wanted, values, fitted, errors)
        with progress("writing", job.settings.verbose) as show:
            if pairs is not None:
                wanted = _predicted(job, pairs, source, (rows, columns), fitted, file, show)
            elif source is not None:
                _rewritten(job, source, wanted, values, file, show)
        story = Story(
            job.command,
            job.file,
            job.out,
            shape,
            size,
            wanted.missing,
            fitted,
            counts=counts,
            pictures=before | _after(job, shape, fitted),
            notes=wanted.notes(),
            also={
                "unknown_rows": wanted.unknown[0],
                "unknown_columns": wanted.unknown[1],
                **also,
            },
        )
        if job.report is not None:
            pages.write(job.report, story)
    return story


@dataclass(frozen=True, eq=False)
class Wanted:
    """Which rows of a file get a new value: their positions, and where they are in the fit."""

    position: Array
    rows: Array
    columns: Array
    missing: int
    unknown: tuple[int, ...]
    """Rows and columns of which nothing is known."""

    def notes(self) -> list[str]:
        sides = zip(self.unknown, ("rows", "columns"), strict=True)
        found = " and ".join(f"{n:,} {side}" for n, side in sides if n)
        return [f"{found} have no value at all, and are filled like typical ones"] if found else []


def _wanted(job: Job, cells: Cells, rows: Names, columns: Names) -> Wanted:
    holes = np.isnan(cells.values)
    missing = int(holes.sum())
    if not missing and job.predict is None and not job.robust:
        raise Failure(
            f"{job.file}: nothing is missing, so there is nothing to fill; add rows with an empty "
            "value, or give pairs with --predict PAIRS"
        )
    at = np.arange(len(holes)) if job.robust else np.flatnonzero(holes)
    i, j = cells.rows[at], cells.columns[at]
    sides = ((i, rows), (j, columns))
    unknown = tuple(len(np.unique(codes[names.place[codes] < 0])) for codes, names in sides)
    return Wanted(at, rows.place[i], columns.place[j], missing, unknown)


def _rewritten(
    job: Job, source: Source, wanted: Wanted, values: Array, file: IO[bytes], show: Show
) -> None:
    """The file with new values where they are wanted."""
    with _target(job, source, None, file) as write:
        for chunk in source.chunks(show):
            begin, end = np.searchsorted(wanted.position, [chunk.first, chunk.first + len(chunk)])
            write(chunk, wanted.position[begin:end] - chunk.first, values[begin:end])


def _predicted(
    job: Job,
    pairs: Source,
    source: Source | None,
    sides: tuple[Names, Names],
    fitted: Fitted,
    file: IO[bytes],
    show: Show,
) -> Wanted:
    """The pairs with their values; how many there were, and of how much nothing is known."""
    unknown: tuple[set[Any], set[Any]] = (set(), set())
    count = 0
    with _target(job, pairs, _value_name(source), file) as write:
        for chunk in pairs.chunks(show):
            ids = chunk.rows, chunk.columns
            i, j = (names.find(x) for names, x in zip(sides, ids, strict=True))
            for k, place in enumerate((i, j)):
                unknown[k].update(pc.unique(ids[k].filter(pa.array(place < 0))).to_pylist())
            at = np.arange(len(chunk))
            if chunk.values is not None:
                at = np.flatnonzero(np.isnan(chunk.values))
            count += len(at)
            write(chunk, at, fitted.at(i[at], j[at]))
    none = np.empty(0, dtype=np.int64)
    return Wanted(none, none, none, count, tuple(map(len, unknown)))


def _value_name(source: Source | None) -> str:
    if source is None or source.at[2] is None:
        return "value"
    named = not isinstance(source, LongText) or source.file.header
    return source.names[source.at[2]] if named else "value"


Write = Callable[[Chunk, Array, Array], Any]


@contextlib.contextmanager
def _target(job: Job, source: Source, name: str | None, file: Any) -> Iterator[Write]:
    """Where rows go: as they came, with new values at some positions.

    A file without a column of values gets one, of the given name; then there is one for every
    row.
    """
    form = format_of(job.out)
    if form.kind == "text" and isinstance(source, LongText) and alike(form, source):
        yield lambda chunk, at, values: file.write(_patched(source, chunk, at, values, name))
    else:
        schema = _schema(source, name)
        with contextlib.closing(writer(file, form, schema)) as out:
            yield lambda chunk, at, values: out.write_batch(
                _batch(source, chunk, at, values, schema)
            )


def _patched(source: LongText, chunk: Chunk, at: Array, values: Array, name: str | None) -> bytes:
    cells, k = source.dialect.written(values), source.at[2]
    if k is not None:
        return chunk.raw.patched(at, k, cells)  # type: ignore[no-any-return]
    title = name if source.file.header and not chunk.first else None
    return chunk.raw.extended(cells, source.dialect.delimiter, title)  # type: ignore[no-any-return]


def _schema(source: Source, name: str | None) -> pa.Schema:
    if isinstance(source, LongArrow):
        k = source.at[2]
        schema = source.table.schema(set() if k is None else {k}, set())
    else:
        kinds = [
            pa.float64() if k == source.at[2] else pa.string() for k in range(len(source.names))
        ]
        schema = pa.schema(list(zip(source.names, kinds, strict=True)))
    return schema if source.at[2] is not None else schema.append(pa.field(name, pa.float64()))


def _batch(
    source: Source, chunk: Chunk, at: Array, values: Array, schema: pa.Schema
) -> pa.RecordBatch:
    k = source.at[2]
    new = np.full(len(chunk), np.nan) if chunk.values is None else chunk.values.copy()
    new[at] = values
    arrays = []
    for j in range(len(source.names)):
        if j == k:
            arrays.append(pa.array(new).cast(schema.field(j).type))
        else:
            arrays.append(_as_it_is(source, chunk, j))
    if k is None:
        arrays.append(pa.array(new))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as_it_is(source: Source, chunk: Chunk, j: int) -> pa.Array:
    """A column of a file."""
    if isinstance(source, LongText):
        return checked_text(chunk.raw.cells(j), source.path, source.names[j])
    return chunk.raw.column(j)


def _outliers(
    job: Job,
    source: Source | None,
    cells: Cells,
    wanted: Wanted,
    low: Array,
    fitted: Cleaned,
    file: Any,
) -> int:
    """Write what is off in long form; how much that is."""
    assert source is not None
    off = cells.values - low
    wrong = np.flatnonzero(np.abs(off) > fitted.limit(wanted.columns))
    if job.outliers is not None:
        i, j, _ = source.at
        ids = [
            names.take(pa.array(codes[wrong]))
            for names, codes in zip(cells.names, (cells.rows, cells.columns), strict=True)
        ]
        arrays = [*ids, pa.array(off[wrong])]
        names = [source.names[i], source.names[j], _value_name(source)]
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        with contextlib.closing(writer(file, format_of(job.outliers), batch.schema)) as out:
            out.write_batch(batch)
    return len(wrong)


def _counts(known: Triplets) -> dict[str, Array]:
    sides = zip(("rows", "columns"), known.index, strict=True)
    return {side: np.bincount(i) for side, i in sides}


def _before(job: Job, known: Triplets) -> dict[str, Picture]:
    """Means of what is known."""
    if job.report is None:
        return {}
    picture = Picture(*known.shape)
    picture.add_cells(known.index, known.values)
    return {"as it came": picture}


def _after(job: Job, shape: tuple[int, ...], fitted: Fitted) -> dict[str, Picture]:
    """Means of estimates, of as many cells as can be looked at."""
    if job.report is None:
        return {}
    picture, rng = Picture(*shape), np.random.default_rng(0)
    i, j = (rng.integers(0, n, SAMPLED) for n in shape)
    picture.add_cells((i, j), fitted.at(i, j))
    return {"estimates": picture}
