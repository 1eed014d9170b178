"""Errors that the user can fix, and how names and values appear in their messages."""

from __future__ import annotations

import re
from typing import Any


class Failure(Exception):  # noqa: N818  (an expected end, not a defect of the program)
    """Bad input or options. The message is one line that says what is wrong and what to do."""


class Interruption(Exception):  # noqa: N818  (Ctrl-C is not a defect)
    """Ctrl-C, with the message to print."""


def shown(text: object, most: int = 40) -> str:
    r"""Quote a text on one line, shortened to `most` characters.

    Examples
    --------
    >>> from scaledgd.cli.failures import shown
    >>> shown("two\nlines"), shown("a long word", most=6)
    ("'two lines'", "'a lon…'")
    """
    plain = " ".join(str(text).split())
    return f"'{plain if len(plain) <= most else plain[: most - 1] + '…'}'"


REWORDED: tuple[tuple[str, Any], ...] = (
    (r"; raise max_(iter|time).*", "; the estimates may be rough"),
    (r"made max_iter=(\d+) updates", r"made \1 updates"),
    (r'set (center|scale)="(\w+)"', r"use --\1 \2"),
    (
        r'set ((?:rank|center|scale)[\w, ]*) to "auto"',
        lambda found: "leave out " + re.sub(r"rank|center|scale", r"--\g<0>", found[1]),
    ),
    (r"use predict_entries\(index\) for the entries you need", "use --predict for some of them"),
    (r"; number only those that have an entry, .*", "; renumber the rows or columns"),
    (r"divide (X|values) by a constant", "use another unit"),
)
"""Advice in messages of the library, and its counterpart on the command line."""


def reworded(message: str) -> str:
    """Return a message of the library whose advice names options of the command line.

    Examples
    --------
    >>> from scaledgd.cli.failures import reworded
    >>> reworded('factors have no offsets; set center="none"')
    'factors have no offsets; use --center none'
    """
    for pattern, ours in REWORDED:
        message = re.sub(pattern, ours, message)
    return message


def listed(names: list[str], most: int = 4) -> str:
    """Quote the first `most` names and say how many more there are."""
    more = len(names) - most
    return ", ".join(map(shown, names[:most])) + (f" and {more} more" if more > 0 else "")


def cause(error: Exception, most: int = 80) -> str:
    """Return the message of an exception on one line of at most `most` characters."""
    return " ".join(str(error).split())[:most]


def within(option: str, value: Any, low: float, high: float) -> Any:
    """Return the value of an option, or fail if it is not between `low` and `high`."""
    if not low <= value <= high:
        raise Failure(f"{option} must be between {low} and {high}, not {value}")
    return value
