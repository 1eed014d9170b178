"""Sheets of Excel workbooks, read as text so that all rules for text apply."""

from __future__ import annotations

import csv
import datetime
import io
import zipfile
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

from ..failures import Failure, cause, listed, shown
from .dialect import ERRORS, Dialect
from .text_table import TextTable


@dataclass(frozen=True)
class Sheet:
    """The cells of a sheet.

    Attributes
    ----------
    name : str
    rows : list of list
        Values, without empty rows and without lines above the table.
    numbers : list of int
        Their row numbers in the sheet, from 1.
    left : int
        Number of empty columns before the table.
    assumed : list of str
        What was detected, and how to override it.
    """

    name: str
    rows: list[list[Any]]
    numbers: list[int]
    left: int
    assumed: list[str]


class ExcelTable(TextTable):
    """A table in a sheet of an Excel workbook.

    Parameters
    ----------
    path : path
    dialect : Dialect
    text_columns : list of str
        Columns to pass through, by name or position from 1.
    sheet : str, optional
        Name of the sheet; by default the first one that is not empty.
    """

    missing_hint = (
        "empty cells are missing; if a word or a number marks them, name it with --missing WORD"
    )

    def __init__(
        self, path: Path, dialect: Dialect, text_columns: list[str], sheet: str | None
    ) -> None:
        self.sheet = read_sheet(path, sheet)
        marks = replaced(dialect, delimiter=",", decimal=dialect.decimal or ".")
        super().__init__(path, marks, text_columns, as_text(self.sheet, marks.decimal))

    @property
    def assumed(self) -> list[str]:
        return [*self.sheet.assumed, *super().assumed]

    def cell_of(self, record: int, column: int) -> tuple[int, int]:
        """Return the row and the column of a cell in the sheet, from 1."""
        row = self.sheet.numbers[record + self.file.skipped]
        return row, column + 1 + self.sheet.left


def open_workbook(path: Path, **how: Any) -> Any:
    """Open a workbook with openpyxl, or fail with a message that names the file."""
    import warnings

    import openpyxl

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about parts of workbooks that openpyxl leaves out
            return openpyxl.load_workbook(path, **how)
    except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise Failure(
            f"{path} is not an Excel workbook, or is damaged ({cause(error)}); save it again"
        ) from None


def read_sheet(path: Path, name: str | None) -> Sheet:
    """Read a sheet of a workbook.

    Parameters
    ----------
    path : path
    name : str, optional
        By default the first sheet that is not empty.
    """
    book = open_workbook(path, data_only=True, read_only=True)
    try:
        names = [sheet.title for sheet in book.worksheets]
        if name is not None and name not in names:
            raise Failure(f"{path} has no sheet {shown(name)}; it has {listed(names, 8)}")
        for sheet in book.worksheets if name is None else [book[name]]:
            rows = [list(row) for row in sheet.iter_rows(values_only=True)]
            if any(_full(value) for row in rows for value in row):
                found = _table(sheet.title, rows)
                if name is None and len(names) > 1:
                    others = listed([other for other in names if other != sheet.title])
                    found.assumed.append(
                        f"sheet {shown(sheet.title)} was read, of {len(names)} (--sheet chooses "
                        f"another: {others})"
                    )
                return found
    finally:
        book.close()
    where = "its sheets are" if name is None else f"sheet {shown(name)} is"
    raise Failure(f"{path}: {where} empty; give a workbook with a table in it")


def _full(value: Any) -> bool:
    return value is not None and (not isinstance(value, str) or bool(value.strip()))


def _table(name: str, rows: list[list[Any]]) -> Sheet:
    """Cut the table out of a sheet: without empty rows, titles above it and remarks below it."""
    counts = [sum(map(_full, row)) for row in rows]
    kept = [k for k, count in enumerate(counts) if count]
    most = sorted(counts[k] for k in kept)[len(kept) // 2]
    first = next((k for k in kept if counts[k] > 1), kept[0]) if most > 2 else kept[0]
    titles = [k for k in kept if k < first]
    kept = [k for k in kept if k >= first]
    remarks: list[int] = []
    # a single cell of text after an empty row
    while most > 2 and len(kept) > 2 and counts[kept[-1]] == 1 and kept[-2] < kept[-1] - 1:
        if not isinstance(next(filter(_full, rows[kept[-1]])), str):
            break
        remarks.insert(0, kept.pop())
    used = [j for k in kept for j, value in enumerate(rows[k]) if _full(value)]
    left, right = min(used), max(used) + 1
    cells = [(rows[k] + [None] * right)[left:right] for k in kept]
    assumed = []
    if titles:
        lines = "row 1 of the sheet is" if first == 1 else f"rows 1 to {first} of the sheet are"
        assumed.append(f"{lines} above the table, and copied")
    if remarks:
        assumed.append(f"the sheet from row {remarks[0] + 1} on is below the table, and copied")
    return Sheet(name, cells, [k + 1 for k in kept], left, assumed)


def as_text(sheet: Sheet, decimal: str) -> bytes:
    """Return a sheet as delimited text, with dates as 2024-03-04 06:00."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerows([_word(value, decimal) for value in row] for row in sheet.rows)
    return text.getvalue().encode()


def _word(value: Any, decimal: str) -> str:
    if value is None or value in ERRORS:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        word = str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        return word.replace(".", decimal)
    if isinstance(value, datetime.datetime):
        midnight = value.time() == datetime.time()
        return value.date().isoformat() if midnight else value.isoformat(" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)
