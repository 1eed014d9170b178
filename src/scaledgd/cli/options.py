"""From what was typed to what is to be done."""

from __future__ import annotations

import csv
from typing import Any

from .failures import Failure, within
from .fits import Settings
from .formats import TEXT, format_of
from .jobs import Job
from .text import NAMES, Dialect


def job_of(robust: bool, **given: Any) -> Job:
    """A job from the options of `complete` or `clean`."""
    if given["output"] is None:
        command, what = ("clean", "low-rank part") if robust else ("complete", "filled table")
        raise Failure(f"{command} needs -o OUT, the file to write the {what} to")
    settings = Settings(
        _rank(given["rank"]),
        str(given["center"]),
        str(given["scale"]),
        _bounds(given["clip"]),
        within("--seed", given["seed"], 0, 2**32 - 1),
        within("--hold-out", given.get("hold_out", 0.0), 0, 0.5),
        verbose=0 if given["quiet"] else 1,
    )
    natural = TEXT.get(format_of(given["file"]).suffix, ",")
    dialect = Dialect(
        _sign("--delimiter", given["delimiter"] or natural),
        _sign("--decimal", given["decimal"]),
        given["header"],
        tuple(given["missing"]),
    )
    if dialect.delimiter == dialect.decimal:
        raise Failure("--delimiter and --decimal are the same sign; give two")
    return Job(
        given["file"],
        given["output"],
        robust,
        settings,
        dialect,
        long=_columns(given["long"]),
        predict=given.get("predict"),
        duplicates=str(given["duplicates"]),
        passed=tuple(given["text"]),
        array=given["array"],
        fit_rows=given["fit_rows"],
        outliers=given.get("outliers"),
        report=given["report"],
        force=given["force"],
        quiet=given["quiet"],
        json=given["json"],
    )


def _columns(text: str | None) -> tuple[str, str, str] | None:
    if text is None:
        return None
    names = next(csv.reader([text]), [])
    if len(names) != 3:
        raise Failure(f"--long takes three columns, ROW,COLUMN,VALUE, not {text!r}")
    return names[0], names[1], names[2]


def _rank(text: str) -> Any:
    if text == "auto":
        return text
    try:
        ranks = tuple(int(word) for word in text.split(","))
    except ValueError:
        ranks = ()
    if not ranks or min(ranks) < 1:
        raise Failure(f"--rank must be auto, a number from 1, or several: 3,3,2; not {text!r}")
    return ranks[0] if len(ranks) == 1 else ranks


def _bounds(text: str | None) -> tuple[float | None, float | None] | None:
    if text is None:
        return None
    try:
        low, high = (float(word) if word.strip() else None for word in text.split(","))
    except ValueError:
        raise Failure(
            f"--clip takes two bounds, LO,HI, one of them perhaps empty; not {text!r}"
        ) from None
    if low is not None and high is not None and not low <= high:
        raise Failure(f"--clip takes LO,HI with LO below HI, not {text!r}")
    return low, high


def _sign(option: str, word: str) -> str:
    sign = NAMES.get(word, word)
    if len(sign) != 1 or not sign.isascii() or sign in '"\n\r' or sign.isalnum():
        raise Failure(f"{option} must be one sign, such as ',' or ';' or tab, not {word!r}")
    return sign
