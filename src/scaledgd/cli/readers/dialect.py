"""How the cells of delimited text are read as numbers, and how numbers are written."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = Any

ERRORS = ("#N/A", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!")
"""What a formula without a result shows in a spreadsheet."""
MISSING = (
    "",
    *("#NA", "<NA>", "N/A", "n/a", "NA", "na", "n.a.", "N.A.", "NaN", "nan", "NAN", "-nan", "-NaN"),
    *("NULL", "null", "Null", "None", "none", "#N/A N/A", "1.#QNAN", "-1.#IND"),
    *("missing", "Missing", "MISSING", "n.d.", "N.D."),
    *("-", "--", "–", "—", "?", ".", "..", "...", "…", ":"),
    *ERRORS,
)
"""Words for a missing cell."""
BOOLEANS = (("true", "false"), ("yes", "no"), ("y", "n"), ("t", "f"), ("on", "off"))
"""Words for true and false, in lower case."""
BLANK = " \t\r\n\u00a0\u202f\u200b\ufeff"
"""What is stripped from cells that are not ASCII: also spaces that cannot be seen."""
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:inf|infinity)$"


@dataclass(frozen=True)
class Dialect:
    """Options of delimited text.

    Attributes
    ----------
    delimiter, decimal : str
        One character each; empty if they are to be detected.
    header : bool, optional
        Whether the first record holds names. None decides by its cells.
    missing : tuple of str
        Words for a missing cell, in addition to `MISSING`.
    thousands : str
        The separator of thousands; empty if it is to be detected, "none" if there is none.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from scaledgd.cli.readers.dialect import Dialect, to_floats
    >>> to_floats(Dialect(decimal=",").normalised(pa.array(["1,5", " 2 ", "NA"])))
    array([1.5, 2. , nan])
    """

    delimiter: str = ","
    decimal: str = "."
    header: bool | None = None
    missing: tuple[str, ...] = ()
    thousands: str = ""

    @cached_property
    def _missing_words(self) -> pa.Array:
        return pa.array([*MISSING, *(word.strip() for word in self.missing)])

    @cached_property
    def _missing_numbers(self) -> list[float]:
        numbers = []
        for word in self.missing:
            with contextlib.suppress(ValueError):
                numbers.append(float(word))
        return numbers

    def without_missing(self, values: Array) -> Array:
        """Replace numbers that mean missing by NaN."""
        if not self._missing_numbers:
            return values
        return np.where(np.isin(values, self._missing_numbers), np.nan, values)

    def trimmed(self, cells: pa.Array) -> pa.Array:
        """Strip cells, and set missing ones to null."""
        cells = pc.ascii_trim_whitespace(cells)
        if not pc.all(pc.string_is_ascii(cells)).as_py():
            with contextlib.suppress(pa.ArrowInvalid):  # it is no UTF-8
                cells = pc.utf8_trim(cells, BLANK)
        return pc.if_else(pc.is_in(cells, value_set=self._missing_words), None, cells)

    def normalised(self, cells: pa.Array) -> pa.Array:
        """Strip cells, set missing ones to null, and use decimal points."""
        cells = self.trimmed(cells)
        if self.decimal != ".":
            cells = pc.replace_substring(cells, pattern=self.decimal, replacement=".")
        return cells

    def formatted(self, values: Array) -> pa.Array:
        """Write numbers as text, with the fewest digits that read back as the same floats."""
        cells = pa.array(values).cast(pa.string())
        if self.decimal != ".":
            cells = pc.replace_substring(cells, pattern=".", replacement=self.decimal)
        return cells


def to_floats(normalised: pa.Array) -> Array:
    """Convert normalised cells to floats, NaN for null.

    Raises
    ------
    pyarrow.ArrowInvalid
        If a cell is not a number.
    """
    return normalised.cast(pa.float64()).to_numpy(zero_copy_only=False)


def are_numbers(normalised: pa.Array) -> Array:
    """Return which normalised cells are numbers or missing."""
    found = pc.match_substring_regex(normalised, pattern=NUMBER)
    return pc.fill_null(found, True).to_numpy(zero_copy_only=False)
