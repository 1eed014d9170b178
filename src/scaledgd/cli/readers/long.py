"""Long files: one row per cell, with the names of its row and column, and its value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..failures import Failure, shown
from ..formats import BOOKS, format_of
from .arrays import read_matrix_market
from .arrow import ArrowTable, column_floats
from .batches import Progress
from .dialect import Dialect, are_numbers, to_floats
from .files import find_column
from .notation import PLAIN, find_notation
from .text import TextFile
from .text_block import TextBlock
from .text_table import LOOK, refuse_word

Array = Any
Columns = tuple[int, int, int | None]
"""Positions of the columns of row names, column names and values."""


@dataclass(frozen=True, eq=False)
class LongBatch:
    """Consecutive rows of a long file.

    Attributes
    ----------
    first : int
        Number of the first row, from 0.
    rows, columns : pyarrow.Array
        Names of the row and the column of each cell.
    values : float array, optional
        NaN where missing; None if the file has no column of values.
    raw : TextBlock or pyarrow.RecordBatch
        All columns.
    """

    first: int
    rows: pa.Array
    columns: pa.Array
    values: Array | None
    raw: Any

    def __len__(self) -> int:
        return len(self.rows)


class LongReader(Protocol):
    """A long file.

    Attributes
    ----------
    path : path
    names : list of str
        Names of all columns.
    at : tuple of int
        Positions of the columns of row names, column names and values.
    """

    path: Path
    names: list[str]
    at: Columns

    def batches(self, progress: Progress) -> Iterator[LongBatch]:
        """Yield all rows."""
        ...


class LongText:
    """A long file of delimited text."""

    def __init__(
        self, path: Path, dialect: Dialect, at: Columns, data: bytes | None = None
    ) -> None:
        self.path, self.file, self.at = path, TextFile(path, dialect, data), at
        self.dialect, self.names = self.file.dialect, self.file.names
        self.notation = PLAIN

    def batches(self, progress: Progress) -> Iterator[LongBatch]:
        i, j, _ = self.at
        for block in self.file.blocks(progress):
            values = self._values(block)
            yield LongBatch(block.first, block.cells(i), block.cells(j), values, block)

    def _values(self, block: TextBlock) -> Array | None:
        k = self.at[2]
        if k is None:
            return None
        raw = self.dialect.trimmed(block.cells(k))
        cells = self.notation.plain(raw, self.dialect.decimal)
        if not are_numbers(cells).all():
            distinct = raw.drop_null().unique().to_pylist()
            self.notation = find_notation(distinct[:LOOK], self.dialect.decimal)[0] or self.notation
            cells = self.notation.plain(raw, self.dialect.decimal)
        try:
            return self.dialect.without_missing(to_floats(cells))
        except pa.ArrowInvalid:
            wrong, alternative = ~are_numbers(cells), "name another column with --long"
            refuse_word(self.file, block, k, cells, wrong, alternative)

    @property
    def assumed(self) -> list[str]:
        """What was detected, and how to override it."""
        found = list(self.file.assumed)
        if self.notation != PLAIN and self.at[2] is not None:
            name = shown(self.names[self.at[2]])
            found.append(f"the numbers of column {name} have {self.notation.in_words()}")
        return found


class LongArrow:
    """A long Parquet or Feather file."""

    def __init__(self, path: Path, kind: str, dialect: Dialect, at: Columns) -> None:
        self.path, self.table, self.at = path, ArrowTable(path, kind, dialect, []), at
        self.names = self.table.names
        if at[2] is not None and at[2] in self.table.text_columns:
            raise Failure(f"{path}: column {shown(self.names[at[2]])} does not hold numbers")

    def batches(self, progress: Progress) -> Iterator[LongBatch]:
        i, j, k = self.at
        first = 0
        for batch in self.table.record_batches(progress):
            values = None
            if k is not None:
                values = self.table.dialect.without_missing(column_floats(batch.column(k)))
            yield LongBatch(first, batch.column(i), batch.column(j), values, batch)
            first += batch.num_rows


# ---- opening


def open_long(
    path: Path, columns: tuple[str, str, str], dialect: Dialect, sheet: str | None = None
) -> LongReader:
    """Open a long file.

    Parameters
    ----------
    path : path
    columns : tuple of str
        Columns of row names, column names and values, by name or position from 1.
    dialect : Dialect
    sheet : str, optional
        Which sheet of a workbook.
    """
    form, data = format_of(path), None
    if form.kind in BOOKS:
        from .excel import as_text, read_sheet

        dialect = replace(dialect, delimiter=",", decimal=dialect.decimal or ".")
        data = as_text(read_sheet(path, sheet), dialect.decimal)
    if form.kind in ("text", *BOOKS):
        text = TextFile(path, replace(dialect, header=dialect.header is not False), data)
        i, j, k = (find_column(wanted, text.names, path, text.hint) for wanted in columns)
        if dialect.header is None:
            named = all(name in text.names for name in columns)
            value = text.dialect.normalised(pa.array([text.names[k]]))
            dialect = replace(dialect, header=named or not bool(are_numbers(value).all()))
        _check_distinct(columns, (i, j, k))
        return LongText(path, dialect, (i, j, k), data)
    if form.kind not in ("parquet", "feather"):
        raise Failure(f"--long applies to delimited text, Parquet and Feather, not to {path}")
    names = ArrowTable(path, form.kind, dialect, []).names
    i, j, k = (find_column(wanted, names, path) for wanted in columns)
    _check_distinct(columns, (i, j, k))
    return LongArrow(path, form.kind, dialect, (i, j, k))


def _check_distinct(columns: tuple[str, str, str], at: tuple[int, int, int]) -> None:
    if len(set(at)) < 3:
        raise Failure(f"--long {','.join(columns)} names a column twice; give three columns")


def open_pairs(path: Path, known: LongReader | None, file: Path, dialect: Dialect) -> LongReader:
    """Open a file of pairs to predict.

    Parameters
    ----------
    path : path
        The pairs.
    known : LongReader, optional
        The long file with the known values. The pairs are in the columns of the same names. If
        it has no names, or if it is None, they are in the first two columns.
    file : path
        The file with the known values. Pairs in the same format have the same delimiter.
    dialect : Dialect
        How `file` is read.
    """
    kind = format_of(path).kind
    if kind == "text":
        reader: LongReader = _open_text_pairs(path, known, file, dialect)
    elif kind in ("parquet", "feather"):
        reader = _open_arrow_pairs(path, kind, known, dialect)
    else:
        raise Failure(f"--predict applies to delimited text, Parquet and Feather, not to {path}")
    if next(reader.batches(lambda share: None), None) is None:
        raise Failure(f"{path} has no rows; give a file with pairs in it")
    return reader


def _open_text_pairs(
    path: Path, known: LongReader | None, file: Path, dialect: Dialect
) -> LongText:
    form = format_of(path)
    same = format_of(file).suffix == form.suffix
    dialect = replace(dialect, delimiter=dialect.delimiter if same else "", header=True)
    text = TextFile(path, dialect)
    dialect, names, (wanted, value) = text.dialect, text.names, _wanted_names(known)
    header = wanted is not None and all(name in names for name in wanted)
    named = known is not None and not (isinstance(known, LongText) and not known.file.header)
    if not header and named:
        assert wanted is not None
        for name in wanted:
            find_column(name, names, path)
    if not header and known is None:
        cells = dialect.normalised(pa.array(names[:2]))
        header = not bool(are_numbers(cells).all())
    i, j = _pair_columns(names, wanted)
    k = names.index(value) if header and value in names else None
    return LongText(path, replace(dialect, header=header), (i, j, k))


def _open_arrow_pairs(
    path: Path, kind: str, known: LongReader | None, dialect: Dialect
) -> LongArrow:
    names, (wanted, value) = ArrowTable(path, kind, dialect, []).names, _wanted_names(known)
    for name in wanted or []:
        find_column(name, names, path)
    i, j = _pair_columns(names, wanted)
    k = names.index(value) if value in names else None
    return LongArrow(path, kind, dialect, (i, j, k))


def _wanted_names(known: LongReader | None) -> tuple[list[str] | None, str]:
    """Return the names of the columns of pairs, and that of the values."""
    if known is None:
        return None, "value"
    i, j, k = known.at
    assert k is not None
    return [known.names[i], known.names[j]], known.names[k]


def _pair_columns(names: list[str], wanted: list[str] | None) -> tuple[int, int]:
    if wanted is not None and all(name in names for name in wanted):
        return names.index(wanted[0]), names.index(wanted[1])
    return 0, 1


# ---- reading


@dataclass(frozen=True, eq=False)
class LongEntries:
    """The contents of a long file.

    Attributes
    ----------
    rows, columns : int32 arrays of shape (entries,)
        Positions in `names` of the row and the column of each entry.
    values : float array of shape (entries,)
        NaN where missing.
    names : tuple of pyarrow.Array
        Names of all rows, and of all columns.
    """

    rows: Array
    columns: Array
    values: Array
    names: tuple[pa.Array, pa.Array]


def read_long(reader: LongReader, progress: Progress) -> LongEntries:
    """Read a whole long file."""
    codes: tuple[list[Any], list[Any]] = ([], [])
    values: list[Any] = []
    for batch in reader.batches(progress):
        for side, names in enumerate((batch.rows, batch.columns)):
            encoded = decoded(names).dictionary_encode()
            _check_names(reader, side, encoded, batch.first)
            codes[side].append(encoded)
        assert batch.values is not None
        values.append(batch.values)
        infinite = np.flatnonzero(np.isinf(batch.values))
        if len(infinite):
            row = batch.first + int(infinite[0])
            raise Failure(f"{reader.path}: value {row + 1} is infinity; replace it or empty it")
    if not values:
        raise Failure(f"{reader.path} has no rows; give a file with values in it")
    (rows, row_names), (columns, column_names) = (_unified(side) for side in codes)
    return LongEntries(rows, columns, np.concatenate(values), (row_names, column_names))


def decoded(names: pa.Array) -> pa.Array:
    """Return names as a plain array, not as a dictionary array."""
    return names.dictionary_decode() if isinstance(names, pa.DictionaryArray) else names


def _check_names(reader: LongReader, side: int, codes: pa.DictionaryArray, first: int) -> None:
    """Fail if a row has no name for its row or column."""
    missing = codes.null_count > 0
    if pa.types.is_string(codes.dictionary.type):
        missing = missing or pc.any(pc.equal(codes.dictionary, "")).as_py()
    if missing:
        i, j, _ = reader.at
        name = shown(reader.names[(i, j)[side]])
        empty = pc.equal(pc.fill_null(codes.dictionary_decode().cast(pa.string()), ""), "")
        row = int(np.flatnonzero(empty.to_numpy(zero_copy_only=False))[0])
        raise Failure(
            f"{reader.path}: row {first + row + 1} has an empty cell in column {name}; fill it, "
            "or remove the row"
        )


def _unified(batches: list[Any]) -> tuple[Array, pa.Array]:
    """Merge dictionary arrays; return the codes and the dictionary."""
    merged = pa.chunked_array(batches).unify_dictionaries()
    codes = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in merged.chunks]
    return np.concatenate(codes).astype(np.int32, copy=False), merged.chunk(0).dictionary


def read_sparse_entries(path: Path) -> LongEntries:
    """Read the stored entries of a Matrix Market file. Rows and columns are named from 1."""
    from scipy.sparse import coo_array

    matrix = read_matrix_market(path)
    matrix = matrix if not isinstance(matrix, np.ndarray) else coo_array(matrix)
    i, j = (c.astype(np.int32) for c in matrix.coords)
    rows, columns = (pa.array(np.arange(1, n + 1)) for n in matrix.shape)
    return LongEntries(i, j, matrix.data.astype(np.float64), (rows, columns))
