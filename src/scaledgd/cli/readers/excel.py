"""Sheets of workbooks, read as text so that all rules for text apply."""

from __future__ import annotations

import csv
import datetime
import io
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

from ..failures import Failure, listed, shown
from .books import MOST_BYTES, Rows, open_sheets
from .dialect import ERRORS, Dialect
from .text_table import TextTable

MOST_ROWS = 1_048_576
"""Number of rows of a sheet, at most."""
MOST_CELLS = 50_000_000
"""Number of cells of a table in a sheet, with empty ones between others, at most."""


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
    """A table in a sheet of a workbook.

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


def read_sheet(path: Path, name: str | None) -> Sheet:
    """Read a sheet of a workbook.

    Parameters
    ----------
    path : path
    name : str, optional
        By default the first sheet that is not empty.
    """
    with open_sheets(path) as (names, rows_of):
        if name is not None and name not in names:
            raise Failure(f"{path} has no sheet {shown(name)}; it has {listed(names, 8)}")
        for title in names if name is None else [name]:
            rows = _full_rows(path, title, rows_of(title))
            if rows:
                found = _table(path, title, rows)
                if name is None and len(names) > 1:
                    others = listed([other for other in names if other != title])
                    found.assumed.append(
                        f"sheet {shown(title)} was read, of {len(names)} (--sheet chooses "
                        f"another: {others})"
                    )
                return found
    where = "its sheets are" if name is None else f"sheet {shown(name)} is"
    raise Failure(f"{path}: {where} empty; give a workbook with a table in it")


def _full(value: Any) -> bool:
    return value is not None and (not isinstance(value, str) or bool(value.strip()))


def _full_rows(path: Path, title: str, rows: Rows) -> dict[int, list[Any]]:
    """Return the rows that hold a value by their numbers from 0, each up to its last value."""
    kept, cells = {}, 0
    for k, given in enumerate(rows):
        end = next((j for j in reversed(range(len(given))) if _full(given[j])), -1) + 1
        cells += end
        if k >= MOST_ROWS or cells > MOST_CELLS:
            raise Failure(
                f"{path}: sheet {shown(title)} has more than {MOST_ROWS:,} rows or "
                f"{MOST_CELLS:,} cells; save the table as .csv"
            )
        if end:
            kept[k] = list(given[:end])
    return kept


def _table(path: Path, title: str, rows: dict[int, list[Any]]) -> Sheet:
    """Cut the table out of a sheet: without empty rows, titles above it and remarks below it."""
    counts = {k: sum(map(_full, row)) for k, row in rows.items()}
    kept = list(rows)
    most = sorted(counts.values())[len(kept) // 2]
    first = next((k for k in kept if counts[k] > 1), kept[0]) if most > 2 else kept[0]
    titles = [k for k in kept if k < first]
    kept = [k for k in kept if k >= first]
    remarks: list[int] = []
    # a single cell of text after an empty row
    while most > 2 and len(kept) > 2 and counts[kept[-1]] == 1 and kept[-2] < kept[-1] - 1:
        if not isinstance(next(filter(_full, rows[kept[-1]])), str):
            break
        remarks.insert(0, kept.pop())
    left = min(next(j for j, value in enumerate(rows[k]) if _full(value)) for k in kept)
    right = max(len(rows[k]) for k in kept)
    _check_area(path, title, rows, kept, left)
    cells = [(rows[k] + [None] * (right - len(rows[k])))[left:] for k in kept]
    assumed = []
    if titles:
        lines = "row 1 of the sheet is" if first == 1 else f"rows 1 to {first} of the sheet are"
        assumed.append(f"{lines} above the table, and copied")
    if remarks:
        assumed.append(f"the sheet from row {remarks[0] + 1} on is below the table, and copied")
    return Sheet(title, cells, [k + 1 for k in kept], left, assumed)


def _check_area(
    path: Path, title: str, rows: dict[int, list[Any]], kept: list[int], left: int
) -> None:
    """Fail if cells lie so far apart that the table between them would not fit into memory."""
    from openpyxl.utils import get_column_letter

    right = max(len(rows[k]) for k in kept)
    area = (kept[-1] - kept[0] + 1) * (right - left)
    if area > MOST_CELLS:
        far = f"{get_column_letter(right)}{kept[-1] + 1}"
        full = sum(_full(value) for k in kept for value in rows[k])
        raise Failure(
            f"{path}: the table of sheet {shown(title)} would reach to {far} and have {area:,} "
            f"cells, of which {full:,} hold a value; at most {MOST_CELLS:,} are read: delete cells "
            "that do not belong to it, or save it as .csv"
        )


def as_text(sheet: Sheet, decimal: str) -> bytes:
    """Return a sheet as delimited text, with dates as 2024-03-04 06:00."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    for row in sheet.rows:
        lines.writerow([_word(value, decimal) for value in row])
        if text.tell() > MOST_BYTES:  # a text is stored once, however many cells have it
            raise Failure(f"sheet {shown(sheet.name)} has too much text; save it as .csv")
    return text.getvalue().encode()


def _word(value: Any, decimal: str) -> str:
    if value is None or value in ERRORS:
        return ""
    if isinstance(value, datetime.timedelta):
        seconds = round(value.total_seconds())
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
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
