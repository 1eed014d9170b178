"""Tables and tensors in files, some rows at a time: what they hold, and how they are written.

A table is gone through twice: to learn what its columns are and to gather the rows of the
fit, and to fill and write it. So a file need not fit into memory, as long as a part of its
rows does.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..estimators.tables import DENSE_LIMIT, available_memory
from .failures import Failure, listed, reading, shown
from .formats import Show, column_of, format_of
from .text import TRUTHS, Block, Dialect, Text, are_numbers, floats

Array = Any

CELLS = 2_000_000
"""Cells that are worked on at once."""
BYTES = 450
"""Memory that a fit takes for a cell."""
SHARE = 0.5
"""Of the memory that is free, what a fit may take."""
ROWS = 200_000
"""Rows of a fit, unless there are as many columns: more would hardly change what it learns."""
INDEXES = ("", "index", "id", "unnamed: 0", "__index_level_0__")
"""What columns are called that number the rows."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows: their numbers, NaN where there is none, and the rows as they came."""

    first: int
    values: Array
    raw: Any = None


class Source(Protocol):
    """A table or a tensor in a file."""

    path: Path
    names: list[str]
    """Of all columns; a tensor has none."""
    text: set[int]
    """Columns that are passed through; of delimited text this is known after one pass."""
    order: int

    def parts(self, show: Show) -> Iterator[Part]:
        """All rows, some at a time."""
        ...

    def batch(self, part: Part, columns: dict[int, Array], schema: pa.Schema) -> pa.RecordBatch:
        """Rows with some columns replaced."""
        ...

    def schema(self, floating: set[int], whole: set[int]) -> pa.Schema:
        """Of the batches; columns that are floats now, and those that could be integers."""
        ...

    marks: str
    """What to say about how missing cells are marked."""

    def advice(self) -> str:
        """What to say where there are no numbers at all."""
        ...


# ---- delimited text


class TextTable:
    """A table in delimited text.

    A column is numbers, truths (which count as 1 and 0) or text, whichever its cells are; of
    more numbers than words the first word is an error.
    """

    order = 2
    marks = "if a word marks missing cells, name it with --missing WORD"

    def __init__(self, path: Path, dialect: Dialect, passed: list[str]) -> None:
        self.path, self.file = path, Text(path, dialect)
        self.names, self.dialect = self.file.names, dialect
        self.text = {column_of(name, self.names, path, self.file.advice()) for name in passed}
        self.truths: set[int] = set()
        self._numbers = np.zeros(len(self.names), dtype=np.int64)

    def advice(self) -> str:
        return self.file.advice()

    def parts(self, show: Show) -> Iterator[Part]:
        for block in self.file.blocks(show):
            yield Part(block.first, self._values(block), block)

    def _values(self, block: Block) -> Array:
        values = np.full(block.starts.shape, np.nan)
        special = self.text | self.truths
        plain = np.asarray([j for j in range(len(self.names)) if j not in special], dtype=int)
        try:
            cells = floats(self.dialect.tidy(block.cells(plain)))
            values[:, plain] = cells.reshape(len(block), -1)
        except pa.ArrowInvalid:
            self.truths = set(self.truths)
            for j in plain.tolist():
                values[:, j] = self._column(block, j)
        for j in self.truths:
            values[:, j] = self._truths(block, j)
        self._numbers += np.sum(~np.isnan(values), axis=0)
        wrong = np.argwhere(np.isinf(values))
        if len(wrong):
            row, j = wrong[0].tolist()
            raise Failure(
                f"{self.path}: line {block.line_of(row)} has infinity in column "
                f"{shown(self.names[j])}; replace it, or count it as missing with --missing inf"
            )
        return values

    def _column(self, block: Block, j: int) -> Array:
        """The numbers of a column, or nothing where it turns out to be none of numbers."""
        cells = self.dialect.tidy(block.cells(j))
        with contextlib.suppress(pa.ArrowInvalid):
            return floats(cells)
        good = are_numbers(cells)
        words = int((~good).sum())
        numbers = len(cells) - cells.null_count - words + int(self._numbers[j])
        truths = pc.fill_null(pc.is_in(cells, value_set=pa.array(TRUTHS)), False)
        if not numbers and pc.sum(truths).as_py() == words:
            self.truths.add(j)
        elif numbers >= words or self._numbers[j]:
            refuse_word(self.file, block, j, cells, ~good, self._way_out(j))
        else:
            self._refuse_commas(j, cells)
            self.text.add(j)
        return np.nan

    def _truths(self, block: Block, j: int) -> Array:
        cells = self.dialect.tidy(block.cells(j))
        lower = pc.ascii_lower(cells)
        known = pc.is_in(lower, value_set=pa.array(["true", "false", None]))
        if not pc.all(known).as_py():
            wrong = ~known.to_numpy(zero_copy_only=False)
            refuse_word(self.file, block, j, cells, wrong, self._way_out(j))
        return pc.equal(lower, "true").cast(pa.float64()).to_numpy(zero_copy_only=False)

    def _way_out(self, j: int) -> str:
        return f"pass the column through with --text {shlex.quote(self.names[j])}"

    def _refuse_commas(self, j: int, cells: pa.Array) -> None:
        words = cells.drop_null()
        alike = pc.sum(pc.match_substring_regex(words, pattern=r"^[+-]?\d+,\d+$")).as_py() or 0
        if self.dialect.decimal != "," != self.dialect.delimiter and 2 * alike > len(words):
            raise Failure(
                f"{self.path}: the numbers of column {shown(self.names[j])} have decimal commas; "
                "say --decimal ','"
            )

    def schema(self, floating: set[int], whole: set[int]) -> pa.Schema:
        def kind(j: int) -> pa.DataType:
            if j in self.text:
                return pa.string()
            if j in self.truths and j not in floating:
                return pa.bool_()
            return pa.int64() if j in whole and j not in floating else pa.float64()

        return pa.schema([(name, kind(j)) for j, name in enumerate(self.names)])

    def batch(self, part: Part, columns: dict[int, Array], schema: pa.Schema) -> pa.RecordBatch:
        arrays = []
        for j, field in enumerate(schema):
            if j in self.text:
                cells = part.raw.cells(j)
                if not _valid(cells):
                    raise Failure(
                        f"{self.path}: column {shown(field.name)} is not UTF-8; convert it, or "
                        "write delimited text"
                    )
                arrays.append(cells)
            else:
                values = columns[j] if j in columns else part.values[:, j]
                arrays.append(_arrow(values).cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def refuse_word(
    file: Text, block: Block, j: int, cells: pa.Array, wrong: Array, way_out: str
) -> None:
    """Say of a word that it does not belong into its column."""
    row = int(np.flatnonzero(wrong)[0])
    word, name = cells[row].as_py(), file.names[j]
    commas = "" if file.dialect.decimal == "," else _with_comma(word)
    raise Failure(
        f"{file.path}: line {block.line_of(row)} has {shown(word)} in column {shown(name)}, which "
        f"holds numbers; {commas}count the word as missing with --missing {shlex.quote(word)}, or "
        f"{way_out}"
    )


def _valid(cells: pa.Array) -> bool:
    try:
        cells.view(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _with_comma(word: str) -> str:
    point = word.replace(",", ".", 1)
    try:
        float(point)
    except ValueError:
        return ""
    return "read a decimal comma with --decimal ',', or " if point != word else ""


def _arrow(values: Array) -> pa.Array:
    """Numbers, null where they are NaN."""
    return pa.array(values, mask=np.isnan(values) if values.dtype.kind == "f" else None)


# ---- Parquet and Feather


class ArrowTable:
    """A table in a Parquet or Feather file, whose columns have types."""

    order = 2
    marks = "null and NaN mark missing cells"

    def __init__(self, path: Path, kind: str, passed: list[str]) -> None:
        self.path, self.kind = path, kind
        with arrow_reading(path, kind), self._opened() as file:
            self._schema = file.schema_arrow if kind == "parquet" else file.schema
        self.names = list(self._schema.names)
        self.text = {column_of(name, self.names, path) for name in passed}
        self.text |= {j for j, field in enumerate(self._schema) if not _numeric(field.type)}

    def advice(self) -> str:
        return ""

    def _opened(self) -> Any:
        if self.kind == "parquet":
            import pyarrow.parquet as pq

            return pq.ParquetFile(self.path)
        return pa.ipc.open_file(pa.memory_map(str(self.path)))

    def batches(self, show: Show, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Its rows as they are."""
        width = len(self.names) if columns is None else len(columns)
        most = max(1, CELLS // max(1, width))
        with arrow_reading(self.path, self.kind), self._opened() as file:
            if self.kind == "parquet":
                done, rows = 0, max(1, file.metadata.num_rows)
                for batch in file.iter_batches(batch_size=most, columns=columns):
                    done += batch.num_rows
                    show(done / rows)
                    yield batch
                return
            for k in range(file.num_record_batches):
                show((k + 1) / file.num_record_batches)
                batch = file.get_batch(k)
                batch = batch if columns is None else batch.select(columns)
                for begin in range(0, batch.num_rows, most):
                    yield batch.slice(begin, most)

    def parts(self, show: Show) -> Iterator[Part]:
        first = 0
        for batch in self.batches(show):
            values = np.full((batch.num_rows, batch.num_columns), np.nan)
            for j in range(batch.num_columns):
                if j not in self.text:
                    values[:, j] = numbers_of(batch.column(j))
            wrong = np.argwhere(np.isinf(values))
            if len(wrong):
                row, j = wrong[0].tolist()
                raise Failure(
                    f"{self.path}: row {first + row + 1} has infinity in column "
                    f"{shown(self.names[j])}; replace it, or make it null"
                )
            yield Part(first, values, batch)
            first += batch.num_rows

    def schema(self, floating: set[int], whole: set[int]) -> pa.Schema:
        fields = [
            field.with_type(pa.float64())
            if j in floating and not pa.types.is_floating(field.type)
            else field
            for j, field in enumerate(self._schema)
        ]
        return pa.schema(fields, metadata=self._schema.metadata)

    def batch(self, part: Part, columns: dict[int, Array], schema: pa.Schema) -> pa.RecordBatch:
        arrays = [
            _arrow(columns[j]).cast(field.type) if j in columns else part.raw.column(j)
            for j, field in enumerate(schema)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _numeric(kind: pa.DataType) -> bool:
    types = pa.types
    plain = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(test(kind) for test in plain)


def numbers_of(column: pa.Array) -> Array:
    """A column as floats, NaN where it is null."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


@contextlib.contextmanager
def arrow_reading(path: Path, kind: str) -> Iterator[None]:
    """Say of a file that it is not what its name says."""
    name = kind.capitalize()
    try:
        with reading(path):
            yield
    except pa.ArrowException as error:
        why = " ".join(str(error).split())[:80]
        raise Failure(
            f"{path} is no {name} file, or is damaged or cut off ({why}); copy it or write it again"
        ) from None


# ---- arrays


class ArrayTable:
    """A matrix or a tensor in an NPY, NPZ or Matrix Market file."""

    text: set[int] = frozenset()  # type: ignore[assignment]
    marks = "NaN marks missing cells"

    def __init__(self, path: Path, kind: str, name: str | None) -> None:
        self.path = path
        with reading(path):
            self.array, self.name = _ARRAYS[kind](path, name)
        if self.array.dtype.kind not in "fiub":
            raise Failure(
                f"{path} is an array of {self.array.dtype}, not of real numbers; convert it"
            )
        if self.array.ndim < 2 or 0 in self.array.shape:
            raise Failure(f"{path} is an array of shape {self.array.shape}, which is no table")
        self.order = self.array.ndim
        columns = self.array.shape[1] if self.order == 2 else 0
        self.names = [str(k) for k in range(columns)]

    def advice(self) -> str:
        return ""

    def parts(self, show: Show) -> Iterator[Part]:
        rows = self.array.shape[0]
        most = max(1, CELLS // math.prod(self.array.shape[1:]))
        for first in range(0, rows, most):
            values = np.asarray(self.array[first : first + most], dtype=np.float64)
            show(min(1.0, (first + most) / rows))
            if np.isinf(values).any():
                raise Failure(f"{self.path} holds infinity; replace it with NaN to have it filled")
            yield Part(first, values)

    def schema(self, floating: set[int], whole: set[int]) -> pa.Schema:
        return pa.schema([(name, pa.float64()) for name in self.names])

    def batch(self, part: Part, columns: dict[int, Array], schema: pa.Schema) -> pa.RecordBatch:
        arrays = [_arrow(columns.get(j, part.values[:, j])) for j in range(len(schema))]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _npy(path: Path, name: str | None) -> tuple[Array, str | None]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False), None
    except ValueError as error:
        why = " ".join(str(error).split())[:80]
        raise Failure(f"{path} is no NPY file of numbers, or is cut off ({why})") from None


def _npz(path: Path, name: str | None) -> tuple[Array, str | None]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if not hasattr(arrays, "files"):
                raise Failure(f"{path} is no NPZ file; give it the suffix .npy")
            found = list(arrays.files)
            if name is None and len(found) > 1:
                raise Failure(f"{path} holds {listed(found)}; say which with --array NAME")
            name = found[0] if name is None and found else name
            if name not in found:
                raise Failure(f"{path} has no array {shown(name)}; it has {listed(found)}")
            return arrays[name], name
    except (ValueError, zipfile.BadZipFile) as error:
        why = " ".join(str(error).split())[:80]
        raise Failure(f"{path} is no NPZ file of numbers, or is cut off ({why})") from None


def _mtx(path: Path, name: str | None) -> tuple[Array, str | None]:
    matrix = read_mtx(path)
    if isinstance(matrix, np.ndarray):
        return matrix, None
    if math.prod(matrix.shape) > DENSE_LIMIT:
        rows, columns = matrix.shape
        raise Failure(
            f"{path} is {rows} x {columns}, and filled it would be dense; ask for the cells you "
            "need with --predict PAIRS"
        )
    dense = np.full(matrix.shape, np.nan)
    dense[matrix.coords] = matrix.data
    return dense, None


def read_mtx(path: Path) -> Any:
    """A matrix of the Matrix Market: dense, or sparse with what is stored."""
    from scipy.io import mminfo, mmread
    from scipy.sparse import coo_array

    try:
        field = mminfo(path)[4]
        if field in ("pattern", "complex"):
            kind = "no values" if field == "pattern" else "complex values"
            raise Failure(f"{path} has {kind}; write one with real values")
        matrix: Any = mmread(path)
    except (ValueError, OverflowError) as error:
        why = " ".join(str(error).split())[:80]
        raise Failure(
            f"{path} is no Matrix Market file, or is damaged or cut off ({why})"
        ) from None
    return matrix if isinstance(matrix, np.ndarray) else coo_array(matrix)


_ARRAYS: dict[str, Any] = {"npy": _npy, "npz": _npz, "mtx": _mtx}


def opened(path: Path, dialect: Dialect, passed: list[str], array: str | None) -> Source:
    """A table or a tensor in a file, by its suffix."""
    kind = format_of(path).kind
    if array is not None and kind != "npz":
        raise Failure("--array goes with NPZ files, which hold several")
    if kind == "text":
        return TextTable(path, dialect, passed)
    if kind in _ARRAYS:
        if passed:
            raise Failure(f"--text goes with tables that have text; {path} has none")
        return ArrayTable(path, kind, array)
    return ArrowTable(path, kind, passed)


# ---- what is in a table


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
    index |= {j for j, name in enumerate(source.names) if name == INDEXES[-1]}
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
