"""Long files: one row for every cell, with the names of its row and its column and its value.

They are read and written some rows at a time, and never made dense: what is kept are the
numbers of rows and columns, four bytes each, and the values.
"""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import kernels
from . import fits, pages
from .failures import Failure, shown, writing
from .fits import Cleaned, Fitted, Triplets
from .formats import Show, column_of, format_of
from .jobs import Job, progress
from .sinks import alike, check_long, writer
from .stories import Picture, Story
from .tables import ArrowTable, numbers_of, read_mtx, refuse_word
from .text import Dialect, Text, are_numbers, floats

Array = Any

SAMPLED = 200_000
"""Cells that a picture of the estimates is made of."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows of a long file."""

    first: int
    rows: pa.Array
    columns: pa.Array
    values: Array | None
    """NaN where missing; None where there is no column of values."""
    raw: Any

    def __len__(self) -> int:
        return len(self.rows)


class Source(Protocol):
    """A long file."""

    path: Path
    names: list[str]
    at: tuple[int, int, int | None]
    """Where rows, columns and values are."""

    def chunks(self, show: Show) -> Iterator[Chunk]:
        """All rows, some at a time."""
        ...


class LongText:
    """A long file of delimited text."""

    def __init__(self, path: Path, dialect: Dialect, at: tuple[int, int, int | None]) -> None:
        self.path, self.file, self.dialect, self.at = path, Text(path, dialect), dialect, at
        self.names = self.file.names

    def chunks(self, show: Show) -> Iterator[Chunk]:
        i, j, k = self.at
        for block in self.file.blocks(show):
            values = None
            if k is not None:
                cells = self.dialect.tidy(block.cells(k))
                try:
                    values = floats(cells)
                except pa.ArrowInvalid:
                    wrong, other = ~are_numbers(cells), "name another column with --long"
                    refuse_word(self.file, block, k, cells, wrong, other)
            yield Chunk(block.first, block.cells(i), block.cells(j), values, block)


class LongArrow:
    """A long file with types."""

    def __init__(self, path: Path, kind: str, at: tuple[int, int, int | None]) -> None:
        self.path, self.table, self.at = path, ArrowTable(path, kind, []), at
        self.names = self.table.names
        if at[2] is not None and at[2] in self.table.text:
            raise Failure(f"{path}: column {shown(self.names[at[2]])} does not hold numbers")

    def chunks(self, show: Show) -> Iterator[Chunk]:
        i, j, k = self.at
        first = 0
        for batch in self.table.batches(show):
            values = None if k is None else numbers_of(batch.column(k))
            yield Chunk(first, batch.column(i), batch.column(j), values, batch)
            first += batch.num_rows


def opened(job: Job) -> Source:
    """The long file of a job."""
    assert job.long is not None
    form = format_of(job.file)
    if form.kind == "text":
        dialect = job.dialect
        text = Text(job.file, replace(dialect, header=dialect.header is not False))
        i, j, k = (column_of(w, text.names, job.file, text.advice()) for w in job.long)
        if dialect.header is None:
            named = all(name in text.names for name in job.long)
            value = dialect.tidy(pa.array([text.names[k]]))
            dialect = replace(dialect, header=named or not bool(are_numbers(value).all()))
        _distinct(job, (i, j, k))
        return LongText(job.file, dialect, (i, j, k))
    if form.kind not in ("parquet", "feather"):
        raise Failure(f"--long goes with delimited text, Parquet and Feather, not {job.file}")
    names = ArrowTable(job.file, form.kind, []).names
    i, j, k = (column_of(wanted, names, job.file) for wanted in job.long)
    _distinct(job, (i, j, k))
    return LongArrow(job.file, form.kind, (i, j, k))


def _distinct(job: Job, at: tuple[int, ...]) -> None:
    if len(set(at)) < 3:
        raise Failure(f"--long {','.join(job.long or ())} names a column twice; give three")


def opened_pairs(job: Job, known: Source | None) -> Source:
    """The pairs to predict: in the columns of the same names, or in the first two."""
    assert job.predict is not None
    path = job.predict
    form = format_of(path)
    wanted = None if known is None else [known.names[k] for k in known.at[:2]]
    value = "value" if known is None else known.names[known.at[2]]  # type: ignore[index]
    if form.kind == "text":
        same = format_of(job.file).suffix == form.suffix
        sign = job.dialect.delimiter if same else form.delimiter
        dialect = replace(job.dialect, delimiter=sign, header=True)
        names = Text(path, dialect).names
        header = wanted is not None and all(name in names for name in wanted)
        plain = known is None or (isinstance(known, LongText) and not known.file.header)
        if not header and not plain:
            assert wanted is not None
            for name in wanted:
                column_of(name, names, path)
        if not header and known is None:
            cells = dialect.tidy(pa.array(names[:2]))
            header = not bool(are_numbers(cells).all())
        i, j = _places(names, wanted)
        at = (i, j, names.index(value) if header and value in names else None)
        return LongText(path, replace(dialect, header=header), at)
    if form.kind not in ("parquet", "feather"):
        raise Failure(f"--predict goes with delimited text, Parquet and Feather, not {path}")
    names = ArrowTable(path, form.kind, []).names
    for name in wanted or []:
        column_of(name, names, path)
    i, j = _places(names, wanted)
    return LongArrow(path, form.kind, (i, j, names.index(value) if value in names else None))


def _places(names: list[str], wanted: list[str] | None) -> tuple[int, int]:
    if wanted is not None and all(name in names for name in wanted):
        return names.index(wanted[0]), names.index(wanted[1])
    return 0, 1


# ---- reading


@dataclass(frozen=True, eq=False)
class Names:
    """What rows or columns are called, and which of them have a value somewhere.

    Attributes
    ----------
    ids : pyarrow.Array
    place : integer array
        Where each is in the fit; −1 where nothing is known of it.
    """

    ids: pa.Array
    place: Array

    @property
    def known(self) -> int:
        return int((self.place >= 0).sum())

    def find(self, ids: pa.Array) -> Array:
        """Where some are in the fit."""
        if isinstance(ids, pa.DictionaryArray):
            ids = ids.dictionary_decode()
        known = self.ids
        if ids.type != known.type:
            ids, known = ids.cast(pa.string()), known.cast(pa.string())
        found = pc.fill_null(pc.index_in(ids, value_set=known), -1).to_numpy(zero_copy_only=False)
        return np.append(self.place, -1)[found]


@dataclass(frozen=True, eq=False)
class Cells:
    """All of a long file: the numbers of rows and columns, and values, NaN where missing."""

    rows: Array
    columns: Array
    values: Array
    names: tuple[pa.Array, pa.Array]


def read(source: Source, show: Show) -> Cells:
    """Read a long file."""
    coded: tuple[list[Any], list[Any]] = ([], [])
    values: list[Any] = []
    for chunk in source.chunks(show):
        for side, ids in enumerate((chunk.rows, chunk.columns)):
            codes = _encoded(ids)
            _check_ids(source, side, codes, chunk)
            coded[side].append(codes)
        found: Any = chunk.values
        values.append(found)
        if np.isinf(found).any():
            row = chunk.first + int(np.flatnonzero(np.isinf(found))[0])
            raise Failure(f"{source.path}: value {row + 1} is infinity; replace it or empty it")
    if not values:
        raise Failure(f"{source.path} has no rows; give a file with values in it")
    rows, columns = (_unified(codes) for codes in coded)
    return Cells(rows[0], columns[0], np.concatenate(values), (rows[1], columns[1]))


def _encoded(ids: pa.Array) -> pa.DictionaryArray:
    if isinstance(ids, pa.DictionaryArray):
        ids = ids.dictionary_decode()
    return ids.dictionary_encode()


def _check_ids(source: Source, side: int, codes: pa.DictionaryArray, chunk: Chunk) -> None:
    gone = codes.null_count > 0
    if pa.types.is_string(codes.dictionary.type):
        gone = gone or pc.any(pc.equal(codes.dictionary, "")).as_py()
    if gone:
        name = shown(source.names[source.at[side]])  # type: ignore[index]
        plain = pc.equal(pc.fill_null(codes.dictionary_decode().cast(pa.string()), ""), "")
        row = int(np.flatnonzero(plain.to_numpy(zero_copy_only=False))[0])
        raise Failure(
            f"{source.path}: row {chunk.first + row + 1} has nothing in column {name}; remove the "
            "row, or name what it belongs to"
        )


def _unified(parts: list[Any]) -> tuple[Array, pa.Array]:
    """The numbers of all parts, and what they stand for."""
    whole = pa.chunked_array(parts).unify_dictionaries()
    codes = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in whole.chunks]
    return np.concatenate(codes).astype(np.int32, copy=False), whole.chunk(0).dictionary


def read_matrix(path: Path) -> Cells:
    """The stored entries of a Matrix Market file; rows and columns are numbered from 1."""
    from scipy.sparse import coo_array

    matrix = read_mtx(path)
    matrix = matrix if not isinstance(matrix, np.ndarray) else coo_array(matrix)
    i, j = (c.astype(np.int32) for c in matrix.coords)
    names = tuple(pa.array(np.arange(1, n + 1)) for n in matrix.shape)
    return Cells(i, j, matrix.data.astype(np.float64), names)


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


# ---- doing it


def run(job: Job) -> Story:
    """Do what was asked for."""
    check_long("-o", job.out)
    if job.predict is not None and job.robust:
        raise Failure("--predict goes with complete")
    source = None if job.long is None else opened(job)
    pairs = None if job.predict is None else opened_pairs(job, source)
    with contextlib.ExitStack() as stack:
        # opened at once: a place that cannot be written to is found out before the work
        file = stack.enter_context(writing("-o", job.out))
        errors = None
        if job.outliers is not None:
            check_long("--outliers", job.outliers)
            errors = stack.enter_context(writing("--outliers", job.outliers))
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
    plain = gzip.GzipFile(fileobj=file, mode="wb", mtime=0) if form.zipped else file
    if form.kind == "text" and isinstance(source, LongText) and alike(form, source):
        yield lambda chunk, at, values: plain.write(_patched(source, chunk, at, values, name))
    else:
        schema = _schema(source, name)
        with contextlib.closing(writer(plain, form, schema)) as out:
            yield lambda chunk, at, values: out.write_batch(
                _batch(source, chunk, at, values, schema)
            )
    if form.zipped:
        plain.close()


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
            arrays.append(
                chunk.raw.cells(j) if isinstance(source, LongText) else chunk.raw.column(j)
            )
    if k is None:
        arrays.append(pa.array(new))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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
