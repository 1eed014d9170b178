"""What a command was asked to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..estimators.progress import display
from .fits import Settings
from .formats import Show
from .text import Dialect


@dataclass(frozen=True)
class Job:
    """A command with its options.

    Attributes
    ----------
    file, out : path
    robust : bool
        Whether gross errors are looked for (`clean`).
    long : tuple of str, optional
        The columns of rows, columns and values of a long file.
    predict : path, optional
        Pairs to predict, instead of the empty values of the file.
    outliers, report : path, optional
        Where else to write.
    """

    file: Path
    out: Path
    robust: bool
    settings: Settings
    dialect: Dialect
    long: tuple[str, str, str] | None = None
    predict: Path | None = None
    duplicates: str = "error"
    passed: tuple[str, ...] = ()
    array: str | None = None
    fit_rows: int | None = None
    outliers: Path | None = None
    report: Path | None = None
    force: bool = False
    quiet: bool = False
    json: bool = False

    @property
    def command(self) -> str:
        return "clean" if self.robust else "complete"


@contextlib.contextmanager
def progress(stage: str, verbose: int) -> Iterator[Show]:
    """A bar over a file, where there is a terminal."""
    with display(stage, verbose) as bar:
        yield lambda share: bar.show(stage, f"{100 * share:.0f} %", share)
