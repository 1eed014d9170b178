"""Tables in Parquet and Feather files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..failures import Failure, cause, shown
from . import batches
from .batches import Progress, RowBatch, nullable
from .dates import is_time
from .dialect import Dialect
from .files import find_column, reading

Array = Any


@dataclass(frozen=True, eq=False, kw_only=True)
class ArrowRows(RowBatch):
    """Rows with the Arrow columns that they were read from."""

    columns: pa.RecordBatch


class ArrowTable:
    """A table in a Parquet or Feather file.

    Parameters
    ----------
    path : path
    kind : {"parquet", "feather"}
    dialect : Dialect
        Only its words for missing cells are used.
    text_columns : list of str
        Columns to pass through, by name or position from 1, in addition to those that are not
        numeric and those that are the index of a pandas frame.
    """

    order = 2
    assumed: list[str] = []  # noqa: RUF012  (never changed)
    mixed: list[str] = []  # noqa: RUF012
    missing_hint = (
        "null and NaN mark missing cells; if a number does, name it with --missing NUMBER"
    )

    def __init__(self, path: Path, kind: str, dialect: Dialect, text_columns: list[str]) -> None:
        self.path, self.kind, self.dialect = path, kind, dialect
        with _reading(path, kind), self._open() as file:
            self._schema = file.schema_arrow if kind == "parquet" else file.schema
        names = list(self._schema.names)
        index = self._pandas_metadata().get("index_columns", [])
        self.names = names
        self.text_columns = {find_column(name, names, path) for name in text_columns}
        self.text_columns |= {j for j, field in enumerate(self._schema) if not _numeric(field.type)}
        self.text_columns |= {
            names.index(name) for name in index if isinstance(name, str) and name in names
        }

    def hint(self) -> str:
        return ""

    def _pandas_metadata(self) -> dict[str, Any]:
        try:
            metadata = json.loads((self._schema.metadata or {}).get(b"pandas", b"{}"))
        except ValueError:
            metadata = {}
        return metadata if isinstance(metadata, dict) else {}

    def _open(self) -> Any:
        if self.kind == "parquet":
            import pyarrow.parquet as pq

            return pq.ParquetFile(self.path)
        return pa.ipc.open_file(pa.memory_map(str(self.path)))

    def record_batches(self, progress: Progress) -> Iterator[pa.RecordBatch]:
        """Yield all rows as Arrow batches."""
        most = max(1, batches.BATCH_CELLS // max(1, len(self.names)))
        with _reading(self.path, self.kind), self._open() as file:
            if self.kind == "parquet":
                done, rows = 0, max(1, file.metadata.num_rows)
                for batch in file.iter_batches(batch_size=most):
                    done += batch.num_rows
                    progress(done / rows)
                    yield batch
                return
            for k in range(file.num_record_batches):
                progress((k + 1) / file.num_record_batches)
                batch = file.get_batch(k)
                for begin in range(0, batch.num_rows, most):
                    yield batch.slice(begin, most)

    def batches(self, progress: Progress) -> Iterator[ArrowRows]:
        first = 0
        for batch in self.record_batches(progress):
            values = np.full((batch.num_rows, batch.num_columns), np.nan)
            for j in range(batch.num_columns):
                if j not in self.text_columns:
                    values[:, j] = column_floats(batch.column(j))
            values = self.dialect.without_missing(values)
            infinite = np.argwhere(np.isinf(values))
            if len(infinite):
                row, j = infinite[0].tolist()
                raise Failure(
                    f"{self.path}: row {first + row + 1} has infinity in column "
                    f"{shown(self.names[j])}; replace it, or make it null"
                )
            yield ArrowRows(first=first, values=values, columns=batch)
            first += batch.num_rows

    def cells_of(self, batch: ArrowRows, j: int) -> pa.Array:
        column = batch.columns.column(j)
        if is_time(column.type):
            return column
        try:
            return column.cast(pa.string())
        except pa.ArrowException:  # lists and the like
            return pa.nulls(len(column), pa.string())

    def arrow_schema(self, floating: set[int], integer: set[int]) -> pa.Schema:
        fields = [
            field.with_type(pa.float64())
            if j in floating and not pa.types.is_floating(field.type)
            else field
            for j, field in enumerate(self._schema)
        ]
        metadata, about = dict(self._schema.metadata or {}), self._pandas_metadata()
        if about:
            # otherwise pandas would convert the estimates back to integers
            changed = {
                f.name for f, g in zip(fields, self._schema, strict=True) if f.type != g.type
            }
            for column in about.get("columns", []):
                if column.get("field_name") in changed:
                    column |= {"pandas_type": "float64", "numpy_type": "float64"}
            metadata[b"pandas"] = json.dumps(about).encode()
        return pa.schema(fields, metadata=metadata)

    def arrow_batch(
        self, batch: ArrowRows, new: dict[int, Array], schema: pa.Schema
    ) -> pa.RecordBatch:
        arrays = [
            nullable(_in_range(new[j], field.type)).cast(field.type)
            if j in new
            else batch.columns.column(j)
            for j, field in enumerate(schema)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _in_range(values: Array, kind: pa.DataType) -> Array:
    """Values that an integer type can hold."""
    if not pa.types.is_integer(kind):
        return values
    bounds = np.iinfo(kind.to_pandas_dtype())
    return np.clip(values, bounds.min, bounds.max)


def _numeric(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(test(kind) for test in tests)


def column_floats(column: pa.Array) -> Array:
    """Convert a numeric or boolean column to floats, NaN for null."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


@contextlib.contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """Turn errors of Arrow into a `Failure` that names the file."""
    try:
        with reading(path):
            yield
    except pa.ArrowException as error:
        raise Failure(
            f"{path} is not a {kind.capitalize()} file, or is damaged or truncated "
            f"({cause(error)}); copy it or write it again"
        ) from None
