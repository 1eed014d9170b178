"""Write long files: the rows that were read, with new values in some of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..formats import format_of
from ..readers.long import LongArrow, LongBatch, LongReader, LongText
from ..readers.notation import PLAIN, formatted
from ..readers.text_table import as_utf8
from .batches import open_batch_writer
from .tables import quoted, same_text_format

Array = Any
Write = Callable[[LongBatch, Array, Array], Any]
"""Takes a batch, positions in it, and their new values."""


@contextlib.contextmanager
def open_long_writer(
    file: Any, path: Path, reader: LongReader, name: str = "value"
) -> Iterator[Write]:
    """Open a writer for the rows of a long file.

    Parameters
    ----------
    file : binary file
    path : path
        The final name of the file, which gives the format.
    reader : LongReader
        Where the rows come from.
    name : str
        Name of the column of values that is added if `reader` has none. Then every row must
        get a value.
    """
    form = format_of(path)
    if isinstance(reader, LongText) and same_text_format(form, reader):
        yield lambda batch, at, values: file.write(_patched(reader, batch, at, values, name))
    else:
        schema = _schema(reader, name)
        with contextlib.closing(open_batch_writer(file, form, schema)) as out:
            yield lambda batch, at, values: out.write_batch(
                _arrow_batch(reader, batch, at, values, schema)
            )


def value_name(reader: LongReader | None) -> str:
    """Return the name of the column of values; "value" if it has none."""
    if reader is None or reader.at[2] is None:
        return "value"
    named = not isinstance(reader, LongText) or reader.file.header
    return reader.names[reader.at[2]] if named else "value"


def _patched(reader: LongText, batch: LongBatch, at: Array, values: Array, name: str) -> bytes:
    cells, k = reader.dialect.formatted(values), reader.at[2]
    if reader.notation != PLAIN:
        numbers = formatted(values, None, False)
        cells = pa.array(reader.notation.written(numbers, reader.dialect.decimal), pa.string())
    cells = quoted(cells, reader.dialect.delimiter)
    if k is not None:
        return reader.file.encoded(batch.raw.patched(at, k, cells))
    header = name if reader.file.header and not batch.first else None
    return reader.file.encoded(batch.raw.extended(cells, reader.dialect.delimiter, header))


def _schema(reader: LongReader, name: str) -> pa.Schema:
    k = reader.at[2]
    if isinstance(reader, LongArrow):
        schema = reader.table.arrow_schema(set() if k is None else {k}, set())
    else:
        kinds = [pa.float64() if j == k else pa.string() for j in range(len(reader.names))]
        schema = pa.schema(list(zip(reader.names, kinds, strict=True)))
    return schema if k is not None else schema.append(pa.field(name, pa.float64()))


def _arrow_batch(
    reader: LongReader, batch: LongBatch, at: Array, values: Array, schema: pa.Schema
) -> pa.RecordBatch:
    k = reader.at[2]
    new = np.full(len(batch), np.nan) if batch.values is None else batch.values.copy()
    new[at] = values
    arrays = [
        pa.array(new).cast(schema.field(j).type) if j == k else _column(reader, batch, j)
        for j in range(len(reader.names))
    ]
    if k is None:
        arrays.append(pa.array(new))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(reader: LongReader, batch: LongBatch, j: int) -> pa.Array:
    if isinstance(reader, LongText):
        return as_utf8(batch.raw.cells(j), reader.path, reader.names[j])
    return batch.raw.column(j)
