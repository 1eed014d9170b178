"""Tables with names and columns of other kinds: delimited text, Parquet and Feather."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import parts
from .failures import Failure, reading, shown
from .formats import Show, column_of
from .parts import Part, nullable
from .text import TRUTHS, Block, Dialect, Text, are_numbers, floats

Array = Any


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
        self.text = {column_of(name, self.names, path, self.file.advice) for name in passed}
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
            for j in plain.tolist():
                values[:, j] = self._column(block, j)
        for j in self.truths:
            values[:, j] = self._truths(block, j)
        self._numbers += np.sum(~np.isnan(values), axis=0)
        values = self.dialect.known(values)
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
            self._refuse_numbers(j, cells.drop_null())
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

    def _refuse_numbers(self, j: int, words: pa.Array) -> None:
        """Say of words that they would be numbers, cut or read in another way."""

        def alike(pattern: str) -> bool:
            found = pc.sum(pc.match_substring_regex(words, pattern=pattern)).as_py() or 0
            return 2 * found > len(words)

        name = shown(self.names[j])
        if self.dialect.decimal != "," != self.dialect.delimiter and alike(r"^[+-]?\d+,\d+$"):
            raise Failure(
                f"{self.path}: the numbers of column {name} have decimal commas; say --decimal ','"
            )
        if alike(r"^[-+.\d]*[;|\t][-+.\d;|\t]*$"):
            advice = self.advice() or "say --delimiter"
            raise Failure(
                f"{self.path}: column {name} holds {shown(words[0].as_py())}, which is more than "
                f"one number; {advice}"
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
                arrays.append(checked_text(part.raw.cells(j), self.path, field.name))
            else:
                values = columns[j] if j in columns else part.values[:, j]
                arrays.append(nullable(values).cast(field.type))
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


def checked_text(cells: pa.Array, path: Path, name: str) -> pa.Array:
    """Cells that can be written in a format that wants to know what letters they are."""
    try:
        return cells.view(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raise Failure(
            f"{path}: column {shown(name)} is not UTF-8; convert it, or write the same kind of "
            "delimited text"
        ) from None


def _with_comma(word: str) -> str:
    point = word.replace(",", ".", 1)
    try:
        float(point)
    except ValueError:
        return ""
    return "read a decimal comma with --decimal ',', or " if point != word else ""


class ArrowTable:
    """A table in a Parquet or Feather file, whose columns have types."""

    order = 2
    marks = "null and NaN mark missing cells, and a number can be made to with --missing NUMBER"

    def __init__(self, path: Path, kind: str, dialect: Dialect, passed: list[str]) -> None:
        self.path, self.kind, self.dialect = path, kind, dialect
        with arrow_reading(path, kind), self._opened() as file:
            self._schema = file.schema_arrow if kind == "parquet" else file.schema
        self.names = list(self._schema.names)
        self.text = {column_of(name, self.names, path) for name in passed}
        self.text |= {j for j, field in enumerate(self._schema) if not _numeric(field.type)}
        self.text |= {self.names.index(name) for name in self._index() if name in self.names}

    def advice(self) -> str:
        return ""

    def _about(self) -> dict[str, Any]:
        """What pandas left about its frame."""
        try:
            about = json.loads((self._schema.metadata or {}).get(b"pandas", b"{}"))
        except ValueError:
            about = {}
        return about if isinstance(about, dict) else {}

    def _index(self) -> list[str]:
        """Columns that are the index of a frame."""
        return [name for name in self._about().get("index_columns", []) if isinstance(name, str)]

    def _opened(self) -> Any:
        if self.kind == "parquet":
            import pyarrow.parquet as pq

            return pq.ParquetFile(self.path)
        return pa.ipc.open_file(pa.memory_map(str(self.path)))

    def batches(self, show: Show, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Its rows as they are."""
        width = len(self.names) if columns is None else len(columns)
        most = max(1, parts.CELLS // max(1, width))
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
            values = self.dialect.known(values)
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
        metadata, about = dict(self._schema.metadata or {}), self._about()
        if about:
            # pandas would make integers of estimates again
            changed = {
                f.name for f, g in zip(fields, self._schema, strict=True) if f.type != g.type
            }
            for column in about.get("columns", []):
                if column.get("field_name") in changed:
                    column |= {"pandas_type": "float64", "numpy_type": "float64"}
            metadata[b"pandas"] = json.dumps(about).encode()
        return pa.schema(fields, metadata=metadata)

    def batch(self, part: Part, columns: dict[int, Array], schema: pa.Schema) -> pa.RecordBatch:
        arrays = [
            nullable(columns[j]).cast(field.type) if j in columns else part.raw.column(j)
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
