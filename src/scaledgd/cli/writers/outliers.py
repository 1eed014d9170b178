"""Write single cells, such as outliers: one line each, with position and values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from ..formats import format_of
from ..readers.batches import RowBatch, TableReader, nullable
from ..readers.long import LongEntries, LongReader
from ..readers.survey import Survey
from .batches import open_batch_writer
from .long import value_name

Array = Any


class CellWriter:
    """Write some cells of a table or a tensor, one per line, batch by batch.

    Parameters
    ----------
    writer : object with ``write_batch``
    schema : pyarrow.Schema
    table : TableReader
    found : Survey
    """

    def __init__(self, writer: Any, schema: pa.Schema, table: TableReader, found: Survey) -> None:
        self._writer, self._schema, self._table = writer, schema, table
        self._names, self._index = [table.names[j] for j in found.used], found.index

    def write(self, batch: RowBatch, chosen: Array, *values: Array) -> None:
        """Write some cells of a batch.

        Parameters
        ----------
        batch : RowBatch
        chosen : boolean array of shape (rows, used columns), or slices of a tensor
            Which cells to write.
        *values : arrays of shape (chosen cells,)
            What to write of each.
        """
        rows, *others = np.nonzero(chosen)
        where: list[Any] = [batch.first + rows, *others]
        if self._index is not None:
            where[0] = self._table.cells_of(batch, self._index).take(pa.array(rows))
            where[0] = where[0].cast(pa.string())
        if self._names:
            where[1] = pa.array(self._names).take(pa.array(others[0]))
        arrays = [x if isinstance(x, pa.Array) else pa.array(x) for x in where]
        arrays += [nullable(np.asarray(x)) for x in values]
        self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))


@contextlib.contextmanager
def open_cell_writer(
    file: IO[bytes] | None, path: Path | None, table: TableReader, found: Survey, titles: list[str]
) -> Iterator[CellWriter | None]:
    """Open a writer for some cells of a table; None if there is no file.

    Parameters
    ----------
    file : binary file, optional
    path : path, optional
        The final name of the file, which gives the format.
    table : TableReader
    found : Survey
    titles : list of str
        Names of the values.
    """
    if file is None or path is None:
        yield None
        return
    fields = [("row", pa.int64()), ("column", pa.string())]
    if found.index is not None:
        fields[0] = (table.names[found.index] or "row", pa.string())
    if table.order > 2:
        fields = [(f"mode {k}", pa.int64()) for k in range(table.order)]
    schema = pa.schema([*fields, *((title, pa.float64()) for title in titles)])
    with contextlib.closing(open_batch_writer(file, format_of(path), schema)) as out:
        yield CellWriter(out, schema, table, found)


def write_long_cells(
    file: IO[bytes], path: Path, names: dict[str, pa.Array], values: dict[str, Array]
) -> None:
    """Write some cells of a long file, one per line.

    Parameters
    ----------
    file : binary file
    path : path
        The final name of the file, which gives the format.
    names : dict
        Names of rows and of columns, by title.
    values : dict
        What to write of each cell, by title.
    """
    arrays = [*names.values(), *(nullable(np.asarray(x, dtype=float)) for x in values.values())]
    batch = pa.RecordBatch.from_arrays(arrays, names=[*names, *values])
    with contextlib.closing(open_batch_writer(file, format_of(path), batch.schema)) as out:
        out.write_batch(batch)


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
    write_long_cells(
        file,
        path,
        dict(zip((reader.names[i], reader.names[j]), names, strict=True)),
        {value_name(reader): off},
    )
