"""Write Excel workbooks: new ones, or copies of the input with new numbers in some cells."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import pyarrow as pa

from ..failures import Failure
from ..readers.books import open_workbook
from ..readers.excel import MOST_ROWS, ExcelTable
from ..readers.survey import Survey
from ..readers.text_block import TextBlock
from .workbook_parts import counted, extensions, parts_of

Array = Any


class SheetWriter:
    """Write Arrow batches as the only sheet of a new workbook."""

    def __init__(self, file: IO[bytes], names: list[str]) -> None:
        import openpyxl

        self._file, self._book = file, openpyxl.Workbook(write_only=True)
        self._sheet = self._book.create_sheet("Sheet1")
        self._rows = 0
        if names:
            self._append(names)

    def _append(self, row: list[Any]) -> None:
        self._rows += 1
        if self._rows > MOST_ROWS:
            raise Failure(
                f"a sheet of Excel has at most {MOST_ROWS:,} rows; write .csv or .parquet"
            )
        self._sheet.append(row)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            self._append([_value(cell) for cell in row])

    def close(self) -> None:
        self._book.save(self._file)


def _value(cell: Any) -> Any:
    """A value that a cell can hold: times without a zone, and no lists."""
    if hasattr(cell, "tzinfo") and cell.tzinfo is not None:
        return cell.replace(tzinfo=None)
    return (
        cell
        if cell is None or isinstance(cell, bool | int | float | str) or hasattr(cell, "isoformat")
        else str(cell)
    )


class WorkbookPatcher:
    """Write a workbook as it was read, except for the cells that changed."""

    def __init__(self, file: IO[bytes], table: ExcelTable, found: Survey) -> None:
        self._file, self._table, self._found = file, table, found
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._book = open_workbook(table.path)
        self._left_out = extensions([str(w.message) for w in caught])
        self._sheet = self._book[table.sheet.name]

    def write(self, batch: TextBlock, new: Array, changed: Array) -> None:
        for i, k in zip(*(x.tolist() for x in np.nonzero(changed)), strict=True):
            j = self._found.used[k]
            row, column = self._table.cell_of(batch.first + i, j)
            value: Any = float(new[i, k])
            if j in self._table.boolean_columns and value in (0, 1):
                value = bool(value)
            elif j in self._table.notations:
                value = self._table.written(j, np.asarray([value]), None)[0]
            elif value.is_integer():
                value = int(value)
            self._sheet.cell(row, column).value = value

    def save(self) -> None:
        """Write the copy, and add a note of what it lacks."""
        copy = io.BytesIO()
        self._book.save(copy)
        lost = counted(parts_of(self._table.path) - parts_of(copy)) + self._left_out
        if lost:
            self._found.notes.append(f"not kept of {self._table.path}: {', '.join(lost)}")
        self._file.write(copy.getbuffer())


@contextlib.contextmanager
def open_workbook_patcher(
    file: IO[bytes], table: ExcelTable, found: Survey
) -> Iterator[WorkbookPatcher]:
    """Open a writer for a copy of the workbook that a table is in."""
    patcher = WorkbookPatcher(file, table, found)
    yield patcher
    patcher.save()
