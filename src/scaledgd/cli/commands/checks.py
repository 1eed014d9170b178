"""Checks of options and files before the work begins. They import nothing heavy."""

from __future__ import annotations

from pathlib import Path

from ..failures import Failure
from ..formats import format_of
from ..readers.files import check_readable
from ..writers.files import check_output
from .options import TableOptions


def check_table_options(options: TableOptions) -> None:
    """Fail if options contradict each other, or if a file cannot be read or written."""
    inputs = [path for path in (options.file, options.predict) if path is not None]
    for path in inputs:
        check_readable(path)
    _check_long_options(options)
    given = [
        (option, path)
        for option, path in (
            ("-o", options.out),
            ("--outliers", options.outliers),
            ("--report", options.report),
        )
        if path is not None
    ]
    for option, path in given:
        check_output(option, path, inputs, options.force)
    check_workbook(options)
    if options.second is not None:
        check_output("--interval", options.second, inputs, options.force)
        given.append(("--interval", options.second))
    for k, (option, path) in enumerate(given):
        for other, before in given[:k]:
            if path.resolve() == before.resolve():
                raise Failure(f"{option} and {other} are the same file; give two names")


def _check_long_options(options: TableOptions) -> None:
    form = format_of(options.file)
    if options.predict is not None and not options.long and form.kind != "mtx":
        raise Failure("--predict needs --long ROW,COLUMN,VALUE, or a Matrix Market file")
    if options.is_long:
        for option, value in (
            ("--text", options.text),
            ("--array", options.array),
            ("--index", options.index),
            ("--fit-rows", options.fit_rows),
            ("--date", options.date),
            ("--smooth", options.smooth in ("rows", "columns")),
        ):
            if value:
                raise Failure(f"{option} applies to tables, not to long files")


def check_workbook(options: TableOptions) -> None:
    """Fail if a workbook is read or written without openpyxl, or --sheet does not apply."""
    from importlib.util import find_spec

    files = [path for path in (options.file, options.out, options.predict) if path is not None]
    if options.sheet is not None and format_of(options.file).kind != "excel":
        raise Failure("--sheet applies to Excel workbooks only")
    books = [path for path in files if format_of(path).kind == "excel"]
    if books and find_spec("openpyxl") is None:
        raise Failure(
            f'{books[0]} is an Excel workbook, which needs openpyxl: pip install "scaledgd[cli]"'
        )


def check_chlorine(path: Path | None) -> None:
    """Fail if a file is not a copy of the monograph's data. None is the bundled simulation."""
    from ...datasets import load_chlorine

    try:
        load_chlorine(path)
    except (OSError, ValueError) as error:
        raise Failure(f"--chlorine {path} is not the data: {error}") from None
