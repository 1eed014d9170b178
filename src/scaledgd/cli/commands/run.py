"""Run ``complete`` or ``clean``, and print the summary."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import typer

from .checks import check_table_options
from .options import TableOptions

if TYPE_CHECKING:
    from .summary import Summary

NO_OUTLIERS = 3
"""Exit code if errors could not be told from the rest, and a fit without outliers was written."""


def run(options: TableOptions) -> None:
    """Run the command that the options ask for."""
    began = time.perf_counter()
    try:
        summary = _done(options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; nothing was written") from None
    seconds = time.perf_counter() - began
    for note in [] if options.quiet else summary.assumed:
        print(f"scaledgd: note: {note}", file=sys.stderr)
    for note in summary.warnings:
        print(f"scaledgd: warning: {note}", file=sys.stderr)
    if options.json:
        print(json.dumps(summary.facts(seconds)))
    elif not options.quiet:
        print("\n".join(summary.lines(seconds)))
    if summary.also.get("failed"):
        raise typer.Exit(NO_OUTLIERS)


def _done(options: TableOptions) -> Summary:
    if options.in_parts:
        from . import folders

        folders.check(options)
        return folders.run(options)
    check_table_options(options)
    # imported after the checks, so that a mistyped name is reported at once
    from . import long_files, tables

    return long_files.run(options) if options.is_long else tables.run(options)
