"""Long files, some rows at a time: one row for every cell, with its names and its value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrays import read_mtx
from .failures import Failure, shown
from .formats import Show, column_of, format_of
from .frames import ArrowTable, numbers_of, refuse_word
from .jobs import Job
from .text import Dialect, Text, are_numbers, floats

Array = Any


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
                    values = self.dialect.known(floats(cells))
                except pa.ArrowInvalid:
                    wrong, other = ~are_numbers(cells), "name another column with --long"
                    refuse_word(self.file, block, k, cells, wrong, other)
            yield Chunk(block.first, block.cells(i), block.cells(j), values, block)


class LongArrow:
    """A long file with types."""

    def __init__(
        self, path: Path, kind: str, dialect: Dialect, at: tuple[int, int, int | None]
    ) -> None:
        self.path, self.table, self.at = path, ArrowTable(path, kind, dialect, []), at
        self.names = self.table.names
        if at[2] is not None and at[2] in self.table.text:
            raise Failure(f"{path}: column {shown(self.names[at[2]])} does not hold numbers")

    def chunks(self, show: Show) -> Iterator[Chunk]:
        i, j, k = self.at
        first = 0
        for batch in self.table.batches(show):
            values = None if k is None else self.table.dialect.known(numbers_of(batch.column(k)))
            yield Chunk(first, batch.column(i), batch.column(j), values, batch)
            first += batch.num_rows


def opened(job: Job) -> Source:
    """The long file of a job."""
    assert job.long is not None
    form = format_of(job.file)
    if form.kind == "text":
        dialect = job.dialect
        text = Text(job.file, replace(dialect, header=dialect.header is not False))
        i, j, k = (column_of(w, text.names, job.file, text.advice) for w in job.long)
        if dialect.header is None:
            named = all(name in text.names for name in job.long)
            value = dialect.tidy(pa.array([text.names[k]]))
            dialect = replace(dialect, header=named or not bool(are_numbers(value).all()))
        _distinct(job, (i, j, k))
        return LongText(job.file, dialect, (i, j, k))
    if form.kind not in ("parquet", "feather"):
        raise Failure(f"--long goes with delimited text, Parquet and Feather, not {job.file}")
    names = ArrowTable(job.file, form.kind, job.dialect, []).names
    i, j, k = (column_of(wanted, names, job.file) for wanted in job.long)
    _distinct(job, (i, j, k))
    return LongArrow(job.file, form.kind, job.dialect, (i, j, k))


def _distinct(job: Job, at: tuple[int, ...]) -> None:
    if len(set(at)) < 3:
        raise Failure(f"--long {','.join(job.long or ())} names a column twice; give three")


def opened_pairs(job: Job, known: Source | None) -> Source:
    """The pairs to predict: in the columns of the same names, or in the first two."""
    source = _opened_pairs(job, known)
    if next(source.chunks(lambda share: None), None) is None:
        raise Failure(f"{source.path} has no rows; give a file with pairs in it")
    return source


def _opened_pairs(job: Job, known: Source | None) -> Source:
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
    names = ArrowTable(path, form.kind, job.dialect, []).names
    for name in wanted or []:
        column_of(name, names, path)
    i, j = _places(names, wanted)
    k = names.index(value) if value in names else None
    return LongArrow(path, form.kind, job.dialect, (i, j, k))


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
