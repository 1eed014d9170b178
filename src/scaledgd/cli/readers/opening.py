"""Open a table by its format."""

from __future__ import annotations

from pathlib import Path

from ..failures import Failure
from ..formats import ARRAYS, BOOKS, format_of
from .arrays import ArrayTable
from .arrow import ArrowTable
from .batches import TableReader
from .dialect import Dialect
from .text_table import TextTable


def open_table(
    path: Path,
    dialect: Dialect,
    text_columns: list[str],
    array: str | None,
    date: str | None = None,
    index: str | None = None,
    sheet: str | None = None,
) -> TableReader:
    """Open a table or a tensor.

    Parameters
    ----------
    path : path
        Its suffix gives the format.
    dialect : Dialect
    text_columns : list of str
        Columns to pass through, by name or position from 1.
    array : str, optional
        Which array of an NPZ file.
    date : str, optional
        The column that holds the times of the rows, by name or position from 1.
    index : str, optional
        The column that names the rows, by name or position from 1.
    sheet : str, optional
        Which sheet of a workbook.
    """
    kind = format_of(path).kind
    # times and names are passed through, also if they are numbers
    passed = [*text_columns, *(name for name in (date, index) if name)]
    if array is not None and kind != "npz":
        raise Failure("--array applies to NPZ files only")
    if kind == "text":
        return TextTable(path, dialect, passed)
    if kind in BOOKS:
        from .excel import ExcelTable

        return ExcelTable(path, dialect, passed, sheet)
    if kind in ARRAYS:
        if index:
            raise Failure(f"--index applies to tables with names of rows; {path} has none")
        if date:
            raise Failure(f"--date applies to tables with columns of times; {path} has none")
        if text_columns:
            raise Failure(f"--text applies to tables with text columns; {path} has none")
        return ArrayTable(path, kind, dialect, array)
    return ArrowTable(path, kind, dialect, passed)
