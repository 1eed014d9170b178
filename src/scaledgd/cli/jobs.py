"""What a command was asked to do, and who does it."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..estimators.progress import display
from .failures import Failure, check_output, reading
from .fits import Settings
from .formats import Show, format_of
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


def carry_out(job: Job) -> None:
    """Do it, and say what was done."""
    began = time.perf_counter()
    _check(job)
    # pyarrow and scikit-learn take long to import: wrong names are told of at once
    from . import long, wide

    pairs = job.long is not None or job.predict is not None
    try:
        story = (long.run if pairs else wide.run)(job)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; nothing was written") from None
    seconds = time.perf_counter() - began
    for note in (*story.fitted.warnings, *story.notes):
        print(f"scaledgd: warning: {note}", file=sys.stderr)
    if job.json:
        print(json.dumps(story.facts(seconds)))
    elif not job.quiet:
        print("\n".join(story.lines(seconds)))


def _check(job: Job) -> None:
    with reading(job.file), open(job.file, "rb"):
        pass
    inputs = [job.file]
    if job.predict is not None:
        inputs.append(job.predict)
        with reading(job.predict), open(job.predict, "rb"):
            pass
    form = format_of(job.file)
    if job.predict is not None and job.long is None and form.kind != "mtx":
        raise Failure("--predict goes with --long ROW,COLUMN,VALUE, or with a Matrix Market file")
    outputs = [("-o", job.out), ("--outliers", job.outliers), ("--report", job.report)]
    given = [(option, path) for option, path in outputs if path is not None]
    for option, path in given:
        check_output(option, path, inputs, job.force)
    format_of(job.out)
    for k, (option, path) in enumerate(given):
        for other, before in given[:k]:
            if path.resolve() == before.resolve():
                raise Failure(f"{option} and {other} are the same file; give two names")
