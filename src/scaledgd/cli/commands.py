"""Doing what was asked for, and saying what was done."""

from __future__ import annotations

import json
import sys
import time

from . import long, wide
from .failures import Failure, check_output, reading
from .formats import format_of
from .jobs import Job


def carry_out(job: Job) -> None:
    """Do it, and say what was done."""
    began = time.perf_counter()
    _check(job)
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
    if job.long is not None or job.predict is not None:
        for option, value in (
            ("--text", job.passed),
            ("--array", job.array),
            ("--fit-rows", job.fit_rows),
        ):
            if value:
                raise Failure(f"{option} goes with tables, not with long files")
    outputs = [("-o", job.out), ("--outliers", job.outliers), ("--report", job.report)]
    given = [(option, path) for option, path in outputs if path is not None]
    for option, path in given:
        check_output(option, path, inputs, job.force)
    format_of(job.out)
    for k, (option, path) in enumerate(given):
        for other, before in given[:k]:
            if path.resolve() == before.resolve():
                raise Failure(f"{option} and {other} are the same file; give two names")
