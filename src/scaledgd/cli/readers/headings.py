"""Which records of a table are not rows: names and units above them, totals below them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa

from .dialect import Dialect, are_numbers
from .sniff import DATE

Array = Any

TOTAL = re.compile(
    r"(?i)((grand[ -]?|sub-?)?totals?|sums?|summe|gesamt|insgesamt|somme|suma"
    r"|means?|averages?|avg|mittelwert|durchschnitt|moyenne|promedio)[.:]?"
)
"""Names of a row that sums up those above it."""


def is_header(records: list[list[str]], dialect: Dialect) -> bool:
    """Return whether the first record holds names.

    Words are names. Equally spaced integers such as 2001, 2002, 2003 are names too, unless the
    integers of the second record are also equally spaced. A date is not a name if the cell below it
    is a date, too, nor is a number with decimals above another one.
    """
    first = dialect.normalised(pa.array(records[0]))
    if not bool(are_numbers(first).all()):
        return not any(
            _kind(cell, dialect) and _kind(cell, dialect) == _kind(below, dialect)
            for cell, below in zip(records[0], records[min(1, len(records) - 1)], strict=False)
        )
    return _equally_spaced(first) and not any(
        _equally_spaced(dialect.normalised(pa.array(record))) for record in records[1:2]
    )


def names_follow(records: list[list[str]], dialect: Dialect) -> bool:
    """Return whether the first record holds words in columns that hold numbers below."""
    if len(records) < 4 or len({len(record) for record in records}) > 1:
        return False
    top, *rows = (dialect.normalised(pa.array(record)) for record in records)
    words = ~are_numbers(top)
    below = np.asarray([are_numbers(row) for row in rows])
    empty = np.asarray([row.is_null().to_numpy(zero_copy_only=False) for row in rows])
    numeric = below.all(axis=0) & ~empty.all(axis=0)
    named = words & numeric
    numbers = ~words & top.is_valid().to_numpy(zero_copy_only=False)
    return bool(named.sum() >= 2 and 2 * named.sum() >= numeric.sum() and not numbers.any())


def _kind(cell: str, dialect: Dialect) -> str:
    """Return whether a cell is a "date" or a number with "decimals"; otherwise an empty word."""
    if DATE.fullmatch(cell):
        return "date"
    mark = re.escape(dialect.decimal)
    return "decimals" if re.fullmatch(rf"\s*[-+−]?\d*{mark}\d+\D*", cell) else ""


def _equally_spaced(cells: pa.Array) -> bool:
    seen = cells.drop_null().to_pylist()
    if not all(re.fullmatch(r"-?\d{1,18}", cell) for cell in seen):
        return False
    numbers = [int(cell) for cell in seen]
    steps = set(np.diff(numbers).tolist())
    return numbers == [0, 1] or (len(numbers) > 2 and len(steps) == 1 and steps != {0})


def rows_before_totals(data: bytes, starts: Array, ends: Array, widths: Array) -> int:
    """Return the number of records before the totals at the end; 0 if there are none."""
    begins = np.cumsum(widths) - widths
    for k in reversed(range(len(widths))):
        record = slice(int(begins[k]), int(begins[k] + widths[k]))
        cells = (data[a:b].strip(b' "') for a, b in zip(starts[record], ends[record], strict=True))
        if not TOTAL.fullmatch(next(filter(None, cells), b"").decode(errors="replace")):
            return k + 1 if k + 1 < len(widths) else 0
    return 0
