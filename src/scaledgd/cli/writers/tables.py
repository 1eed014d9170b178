"""Write a table or a tensor batch by batch, in the format that the suffix names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..failures import Failure
from ..formats import ARRAYS, Format, format_of
from ..readers.arrays import ArrayTable
from ..readers.batches import TableReader
from ..readers.survey import Survey
from ..readers.text_block import QUOTE, TextBlock
from ..readers.text_table import TextTable
from .arrays import open_array_writer
from .batches import open_batch_writer

Array = Any


class TableWriter(Protocol):
    """Something that rows of a table can be written to."""

    def write(self, batch: Any, new: Array, changed: Array) -> None:
        """Write rows with new numbers in some cells.

        Parameters
        ----------
        batch : RowBatch
            As read.
        new : array of shape (rows, used columns), or slices of a tensor
        changed : boolean array of the same shape
            Cells that differ from those in `batch`.
        """
        ...


@dataclass(frozen=True, eq=False)
class TextPatcher:
    """Write text as it was read, except for the cells that changed.

    Attributes
    ----------
    file : binary file
    table : TextTable
    used : integer array
        The used columns.
    places : list of int or None
        Decimal places of the used columns; None writes all digits.
    rewritten : boolean array of shape (used columns,)
        Columns whose cells are all rewritten: booleans that now contain estimates.
    """

    file: IO[bytes]
    table: TextTable
    used: Array
    places: list[int | None]
    rewritten: Array

    def write(self, batch: TextBlock, new: Array, changed: Array) -> None:
        changed = changed | self.rewritten[None, :]
        records, k = np.nonzero(changed)
        if self._plain:
            cells = self.table.dialect.formatted(new[changed])
        else:
            order = np.argsort(k, kind="stable")
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            words: list[str] = []
            for column in np.unique(k).tolist():
                values = new[changed[:, column], column]
                words += self.table.written(self.used[column], values, self.places[column])
            cells = pa.array(words, pa.string()).take(pa.array(back))
        begin = batch.starts[records, self.used[k]]
        quotes = np.frombuffer(batch.data, dtype=np.uint8)[begin] == QUOTE
        cells = quoted(cells, self.table.dialect.delimiter, quotes)
        data = batch.patched(records, self.used[k], cells)
        self.file.write(self.table.file.encoded(data))

    @cached_property
    def _plain(self) -> bool:
        """Whether all columns use the shortest way to write a number."""
        table, used = self.table, self.used.tolist()
        special = table.notations.keys() | table.boolean_columns
        return not special & set(used) and all(
            places is None or not table.places(j)
            for j, places in zip(used, self.places, strict=True)
        )


def quoted(cells: pa.Array, delimiter: str, also: Array = None) -> pa.Array:
    """Put cells that contain the delimiter, and some others, in quotation marks."""
    special = pc.match_substring(cells, delimiter)
    if also is not None:
        special = pc.or_(special, pa.array(also))
    if not len(cells) or not pc.any(special).as_py():
        return cells
    return pc.if_else(special, pc.binary_join_element_wise('"', cells, '"', ""), cells)


@dataclass(frozen=True, eq=False)
class ColumnWriter:
    """Write rows as Arrow batches.

    Attributes
    ----------
    writer : object with ``write_batch``
    table : TableReader
    used : integer array
        The used columns.
    estimated : set of int
        Columns that contain estimates.
    schema : pyarrow.Schema
    """

    writer: Any
    table: TableReader
    used: Array
    estimated: set[int]
    schema: pa.Schema

    def write(self, batch: Any, new: Array, changed: Array) -> None:
        columns = {int(j): new[:, k] for k, j in enumerate(self.used) if int(j) in self.estimated}
        self.writer.write_batch(self.table.arrow_batch(batch, columns, self.schema))


@contextlib.contextmanager
def open_table_writer(
    file: IO[bytes],
    path: Path,
    table: TableReader,
    found: Survey,
    estimated: set[int],
    places: list[int | None],
) -> Iterator[TableWriter]:
    """Open a writer for the rows of a table.

    Parameters
    ----------
    file : binary file
    path : path
        The final name of the file, which gives the format.
    table : TableReader
    found : Survey
    estimated : set of int
        Columns that contain estimates.
    places : list of int or None
        Decimal places of the used columns; None writes all digits.
    """
    form, used = format_of(path), np.asarray(found.used, dtype=int)
    whole = {j for j, n in zip(found.used, places, strict=False) if n == 0}
    if form.kind in ARRAYS:
        with open_array_writer(file, form.kind, table, found) as writer:
            yield writer
    elif form.kind == "excel" and format_of(table.path).kind == "excel":
        from .excel import open_workbook_patcher

        with open_workbook_patcher(file, table, found) as patcher:  # type: ignore[arg-type]
            yield patcher
    elif isinstance(table, TextTable) and same_text_format(form, table):
        booleans = table.boolean_columns & estimated - whole
        rewritten = np.asarray([j in booleans for j in found.used])
        yield TextPatcher(file, table, used, places, rewritten)
    else:
        schema = table.arrow_schema(estimated - whole, found.integer | whole)
        header = not isinstance(table, ArrayTable)
        with contextlib.closing(open_batch_writer(file, form, schema, header)) as out:
            yield ColumnWriter(out, table, used, estimated, schema)


def same_text_format(form: Format, table: Any) -> bool:
    """Return whether output in a format has the delimiter of a text input."""
    if form.kind != "text":
        return False
    read = format_of(table.path)
    same = read.suffix == form.suffix and read.kind == "text"
    return same or form.delimiter == table.dialect.delimiter


def check_table_format(path: Path, table: TableReader) -> None:
    """Fail if a format cannot hold a tensor."""
    form = format_of(path)
    if table.order > 2 and form.kind not in ("npy", "npz"):
        raise Failure(f"a tensor of order {table.order} can only be written as .npy or .npz")


def dropped_columns(path: Path, table: TableReader, found: Survey) -> list[str]:
    """Return the names of the columns that the output format cannot hold."""
    if format_of(path).kind not in ARRAYS:
        return []
    return [table.names[j] for j in found.passed_through]
