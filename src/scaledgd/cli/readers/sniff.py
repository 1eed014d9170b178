"""Detect the delimiter and the decimal mark of delimited text from its first lines."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass

DELIMITERS = ",;\t|"
"""Delimiters that are tried."""
LINES = 50
"""Number of lines that are examined."""
CLEARLY = 0.8
"""The usual delimiter is kept if it explains this share of what the best one explains."""

MONEY = r"(?:[A-Z]{0,2}\$|[€£¥₹₩₽]|AUD|BRL|CAD|CHF|CNY|DKK|EUR|GBP|INR|JPY|NOK|PLN|SEK|USD|ZAR)"
"""Signs and names of currencies that stand before a number."""
UNIT = r"(?:\s*(?:%|‰|[€$£¥]|°\s?[A-Za-z]?|[A-Za-zµμΩ/²³]{1,6}))?"
PLAIN = re.compile(
    rf"\s*\(?(?:{MONEY}\s*)?[-+−]?(?:\d[\d.,'’ \u00a0\u202f]*|\.\d+)(?:[eE][-+]?\d+)?{UNIT}\)?\s*"
)
DATE = re.compile(r"\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(?:[ T]\d{1,2}:\d{2}.*)?\s*")
DECIMAL_COMMA = re.compile(r"[-+−]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,})|\d{1,3}(?:\.\d{3})+,\d+)")
DECIMAL_POINT = re.compile(r"[-+−]?(?:0?\.\d+|\d+\.(?:\d{1,2}|\d{4,})|\d{1,3}(?:,\d{3})+\.\d+)")
NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars", " ": "spaces"}


@dataclass(frozen=True)
class Marks:
    """The delimiter and the decimal mark of a file, and which of them were detected."""

    delimiter: str
    decimal: str
    assumed: tuple[str, ...] = ()


def look(lines: list[str], usual: str, delimiter: str, decimal: str) -> Marks:
    """Return the marks of some lines of text.

    Parameters
    ----------
    lines : list of str
    usual : str
        The usual delimiter of such files.
    delimiter, decimal : str
        The given marks; empty if they are to be detected.

    Examples
    --------
    >>> from scaledgd.cli.readers.sniff import look
    >>> look(["a;b", "1,5;2", "0,5;3"], ",", "", "").assumed[1]
    'numbers have decimal commas (otherwise give --decimal .)'
    """
    lines = [line for line in lines if line.strip()][:LINES]
    assumed = []
    found = delimiter or _delimiter(lines, usual, decimal)
    if not delimiter and found != usual:
        other = "tab" if usual == "\t" else f"'{usual}'"
        assumed.append(
            f"cells are separated by {NAMES[found]} (otherwise give --delimiter {other})"
        )
    mark = decimal
    if not mark:
        mark = "," if _has_decimal_commas(split(lines, found)) else "."
        if mark == ",":
            assumed.append("numbers have decimal commas (otherwise give --decimal .)")
    return Marks(found, mark, tuple(assumed))


def split(lines: list[str], delimiter: str) -> list[list[str]]:
    """Split lines into cells; empty if they cannot be split."""
    try:
        return [row for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error:
        return []


def lines_above(rows: list[list[str]]) -> int:
    """Return how many rows are above a table: titles and remarks, with one cell or few.

    Examples
    --------
    >>> from scaledgd.cli.readers.sniff import lines_above
    >>> lines_above([["Readings", "", ""], ["a", "b", "c"], ["1", "2", "3"]])
    1
    """
    width, count = Counter(len(row) for row in rows).most_common(1)[0]
    above = next((k for k, row in enumerate(rows) if not _is_title(row, width)), 0)
    rest = rows[above:]
    whole = all(len(row) == width for row in rest[1:]) and len(rest[0]) in (width, width - 1)
    return above if whole and len(rest) > 1 and count > 1 else 0


def _is_title(row: list[str], width: int) -> bool:
    cells = [cell for cell in row if cell.strip()]
    if width < 3 or len(cells) > 1:
        return len(row) < width - 1
    return not cells or not (PLAIN.fullmatch(cells[0]) or DATE.fullmatch(cells[0]))


def _delimiter(lines: list[str], usual: str, decimal: str) -> str:
    """The delimiter that gives rows of one length with the most numbers or dates."""
    shares = {}
    # names that the usual delimiter splits are not split at spaces, as those of films are
    named = bool(lines) and usual in lines[0] and bool(re.search(r"[^\W\d_]", lines[0]))
    for mark in (usual, *(c for c in DELIMITERS + " " if c != usual)):
        if mark == decimal or (mark == " " and named):
            continue
        rows = split(lines, mark)
        share = _share(rows[lines_above(rows) :] if rows else rows)
        if share is not None:
            shares[mark] = share
    if not shares:
        return usual
    best = max(shares, key=lambda mark: shares[mark])
    if usual in shares and shares[usual] >= CLEARLY * shares[best]:
        return usual
    return best


def _share(rows: list[list[str]]) -> float | None:
    """The share of cells that are numbers or dates; None if rows are not of one length."""
    if len(rows) < 2:
        # a single line, which may be names: any delimiter that splits it
        return 0.0 if rows and len(rows[0]) > 1 else None
    width, count = Counter(len(row) for row in rows[1:]).most_common(1)[0]
    if width < 2 or count < len(rows) - 1 or len(rows[0]) not in (width, width - 1):
        return None
    cells = [cell for row in rows[1:] for cell in row if cell.strip()]
    if not cells:
        return 0.0
    return sum(bool(_single(cell) or DATE.fullmatch(cell)) for cell in cells) / len(cells)


def _single(cell: str) -> bool:
    """Whether a cell is one number, and not two with a comma or a space between them."""
    return bool(PLAIN.fullmatch(cell)) and len(re.findall(r"\d{4,}|\d+", cell)) <= 4


def _has_decimal_commas(rows: list[list[str]]) -> bool:
    cells = [cell.strip(" \u00a0()%€$£¥") for row in rows[1:] or rows for cell in row]
    commas = sum(bool(DECIMAL_COMMA.match(cell)) and _tail(DECIMAL_COMMA, cell) for cell in cells)
    points = sum(bool(DECIMAL_POINT.match(cell)) and _tail(DECIMAL_POINT, cell) for cell in cells)
    return commas > points


def _tail(pattern: re.Pattern[str], cell: str) -> bool:
    """Whether nothing but a unit follows the number."""
    found = pattern.match(cell)
    return found is not None and bool(re.fullmatch(UNIT, cell[found.end() :]))
