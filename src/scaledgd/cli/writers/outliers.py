"""Write outliers: one line per cell, with its position and its deviation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from ..formats import format_of
from ..readers.batches import RowBatch, TableReader
from ..readers.long import LongEntries, LongReader
from ..readers.survey import Survey
from .batches import open_batch_writer
from .long import value_name

Array = Any


class OutlierWriter:
    """Write the outliers of a table or a tensor, batch by batch.

    Parameters
    ----------
    writer : object with ``write_batch``
    schema : pyarrow.Schema
    names : list of str
        Names of the used columns; empty for a tensor.
    """

    def __init__(self, writer: Any, schema: pa.Schema, names: list[str]) -> None:
        self._writer, self._schema, self._names = writer, schema, names

    def write(self, batch: RowBatch, deviation: Array, wrong: Array) -> None:
        """Write some cells of a batch.

        Parameters
        ----------
        batch : RowBatch
        deviation : array of shape (rows, used columns), or slices of a tensor
            The cells less the low-rank part.
        wrong : boolean array of the same shape
            Which cells to write.
        """
        rows, *others = np.nonzero(wrong)
        where: list[Any] = [batch.first + rows, *others]
        if self._names:
            where[1] = pa.array(self._names).take(pa.array(others[0]))
        arrays = [pa.array(x) for x in (*where, deviation[wrong])]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))


@contextlib.contextmanager
def open_outlier_writer(
    file: IO[bytes] | None, path: Path | None, table: TableReader, found: Survey
) -> Iterator[OutlierWriter | None]:
    """Open a writer for the outliers of a table; None if there is no file."""
    if file is None or path is None:
        yield None
        return
    fields = [("row", pa.int64()), ("column", pa.string())]
    if table.order > 2:
        fields = [(f"mode {k}", pa.int64()) for k in range(table.order)]
    schema = pa.schema([*fields, ("value", pa.float64())])
    with contextlib.closing(open_batch_writer(file, format_of(path), schema)) as out:
        yield OutlierWriter(out, schema, [table.names[j] for j in found.used])


def write_long_outliers(
    file: IO[bytes], path: Path, reader: LongReader, entries: LongEntries, wrong: Array, off: Array
) -> None:
    """Write the outliers of a long file.

    Parameters
    ----------
    file : binary file
    path : path
        The final name of the file, which gives the format.
    reader : LongReader
        The long file, for the names of its columns.
    entries : LongEntries
    wrong : integer array
        Positions of the outliers in `entries`.
    off : float array of the same shape
        Their values less the low-rank part.
    """
    i, j, _ = reader.at
    names = [
        names.take(pa.array(codes[wrong]))
        for names, codes in zip(entries.names, (entries.rows, entries.columns), strict=True)
    ]
    titles = [reader.names[i], reader.names[j], value_name(reader)]
    batch = pa.RecordBatch.from_arrays([*names, pa.array(off)], names=titles)
    with contextlib.closing(open_batch_writer(file, format_of(path), batch.schema)) as out:
        out.write_batch(batch)
