"""Numbers with separators, units, percent, currency and unusual minus signs, read and written."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .sniff import MONEY

Array = Any

SEPARATORS = ",.'’ \u00a0\u202f"
CELL = re.compile(
    rf"(?P<open>\(?)(?P<sign>[-+−]?)\s*(?P<prefix>{MONEY}?)\s*(?P<inner>[-+−]?)"
    r"(?P<number>\d[\d.,'’ \u00a0\u202f]*\d|\d|\.\d+)(?P<power>[eE][-+]?\d+)?"
    r"(?P<space>[ \u00a0\u202f]?)"
    r"(?P<suffix>%|‰|[€$£¥]|°\s?[A-Za-z]?|[A-Za-zµμΩ][A-Za-zµμΩ/²³0-9]{0,7})?(?P<close>\)?)"
)
MOST = 0.5
"""Share of the cells that must have a unit, for the column to have one."""


@dataclass(frozen=True)
class Notation:
    """How the numbers of a column are written.

    Attributes
    ----------
    prefix, suffix : str
        The text before and after the digits, with its space.
    thousands : str
        The separator of thousands; empty if there is none.
    minus : str
        How negative numbers are marked: "-", "−", or "()" for brackets.
    """

    prefix: str = ""
    suffix: str = ""
    thousands: str = ""
    minus: str = "-"

    def in_words(self) -> str:
        """Return what was found, for a message."""
        found = []
        if self.thousands:
            found.append(f"{_named(self.thousands)} between thousands")
        sign = (self.prefix or self.suffix).strip()
        if sign == "%":
            found.append("percent signs (5% is read as 5, and written as 5%)")
        elif sign:
            found.append(f"the unit '{sign}'")
        if self.minus == "()":
            found.append("brackets where they are negative")
        elif self.minus == "−":
            found.append("true minus signs")
        return " and ".join([", ".join(found[:-1]), found[-1]] if found[1:] else found)

    def plain(self, cells: pa.Array, decimal: str) -> pa.Array:
        """Return cells as plain numbers with decimal points; others stay as they are."""
        words = pc.replace_substring(cells, pattern="−", replacement="-")
        if self.minus == "()":
            words = pc.replace_substring_regex(words, pattern=r"^\((.*)\)$", replacement=r"-\1")
        for sign in (self.prefix.strip(), self.suffix.strip()):
            if sign:
                mark = re.escape(sign)
                pattern = f"^([-+]?)\\s*{mark}\\s*|[\\s\u00a0\u202f]*{mark}$"
                words = pc.replace_substring_regex(words, pattern=pattern, replacement=r"\1")
        if self.thousands:
            mark = re.escape(self.thousands)
            grouped = rf"^[-+]?\d{{1,3}}({mark}\d{{3}})+({re.escape(decimal)}\d*)?$"
            whole = pc.match_substring_regex(words, grouped)
            joined = pc.replace_substring(words, pattern=self.thousands, replacement="")
            words = pc.if_else(whole, joined, words)
            if self.thousands == ".":
                # a cell that still has a point is not a number if commas are decimal marks
                pointed = pc.match_substring(words, ".")
                words = pc.if_else(pointed, pc.binary_join_element_wise(words, "?", ""), words)
        if decimal != ".":
            words = pc.replace_substring(words, pattern=decimal, replacement=".")
        return words

    def written(self, numbers: list[str], decimal: str) -> list[str]:
        """Return numbers, as text with decimal points, in this notation."""
        return [self._cell(number, decimal) for number in numbers]

    def _cell(self, number: str, decimal: str) -> str:
        if self.thousands and re.fullmatch(r"-?\d+(\.\d+)?", number):
            whole, point, rest = number.partition(".")
            whole = re.sub(r"(?<=\d)(?=(\d{3})+$)", self.thousands, whole)
            number = whole + (decimal if point else "") + rest
        else:
            number = number.replace(".", decimal)
        cell = f"{self.prefix}{number.removeprefix('-')}{self.suffix}"
        if not number.startswith("-"):
            return cell
        return f"({cell})" if self.minus == "()" else self.minus + cell


PLAIN = Notation()


def find_notation(cells: list[str], decimal: str) -> tuple[Notation | None, list[str]]:
    """Return the notation of the numbers of a column, and its units if there are several.

    Parameters
    ----------
    cells : list of str
        Cells that are not missing.
    decimal : str

    Returns
    -------
    notation : Notation or None
        None if the cells are not numbers in one notation.
    units : list of str
        The units, if the cells are numbers with different ones.

    Examples
    --------
    >>> from scaledgd.cli.readers.notation import find_notation
    >>> find_notation(["1,200 kg", "900 kg"], ".")[0]
    Notation(prefix='', suffix=' kg', thousands=',', minus='-')
    """
    found = [CELL.fullmatch(cell.strip()) for cell in cells]
    if not cells or not all(found):
        return None, []
    parts = [part for part in found if part is not None]
    if any(bool(p["open"]) != bool(p["close"]) for p in parts):
        return None, []
    thousands = {mark for part in parts for mark in _separators(part["number"], decimal)}
    if len(thousands) > 1 or any(not _fits(p["number"], thousands, decimal) for p in parts):
        return None, []
    signs = Counter(((p["prefix"], p["suffix"] or "")) for p in parts)
    named = {pair for pair in signs if any(pair)}
    if len(named) > 1:
        return None, sorted({a or b for a, b in named})
    prefix, suffix = named.pop() if named else ("", "")
    if (prefix or suffix) and signs[prefix, suffix] < MOST * len(parts):
        return None, []
    spaces = Counter(p["space"] for p in parts if p["suffix"])
    if suffix:
        suffix = spaces.most_common(1)[0][0] + suffix
    if prefix and any(f"{prefix} " in cell for cell in cells):
        prefix += " "
    minus = "−" if any("−" in p["sign"] + p["inner"] for p in parts) else "-"
    minus = "()" if any(p["open"] for p in parts) else minus
    return Notation(prefix, suffix, thousands.pop() if thousands else "", minus), []


def _separators(number: str, decimal: str) -> set[str]:
    whole = number.rpartition(decimal)[0] if decimal in number else number
    return {mark for mark in whole if mark in SEPARATORS and mark != decimal}


def _fits(number: str, thousands: set[str], decimal: str) -> bool:
    """Whether a number has at most one decimal mark, and groups of three digits."""
    mark = "".join(map(re.escape, thousands)) or "(?!)"
    dot = re.escape(decimal)
    return bool(re.fullmatch(rf"(\d+|\d{{1,3}}({mark}\d{{3}})+)?({dot}\d+)?", number))


def _named(mark: str) -> str:
    names = {",": "commas", ".": "points", " ": "spaces", "\u00a0": "spaces", "\u202f": "spaces"}
    return names.get(mark, "apostrophes")


def formatted(values: Array, places: int | None, fixed: bool) -> list[str]:
    """Write numbers with decimal points.

    Parameters
    ----------
    values : float array of shape (cells,)
    places : int, optional
        Number of decimal places; None writes as many as it takes to read the same floats back.
    fixed : bool
        Whether zeros at the end are written.

    Examples
    --------
    >>> from scaledgd.cli.readers.notation import formatted
    >>> formatted([1.5, 2.0], 2, True), formatted([1.5, 2.0], 2, False)
    (['1.50', '2.00'], ['1.5', '2'])
    """
    if places is None or not fixed:
        return pa.array(np.asarray(values, dtype=float)).cast(pa.string()).to_pylist()  # type: ignore[no-any-return]
    # adding 0 turns −0 into 0
    return [f"{value + 0.0:.{places}f}" for value in np.asarray(values).tolist()]
