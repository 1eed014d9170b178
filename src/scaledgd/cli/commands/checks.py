"""Checks of options and files before the work begins. They import nothing heavy."""

from __future__ import annotations

from pathlib import Path

from ..failures import Failure
from ..formats import BOOKS, format_of
from ..readers.files import check_readable
from ..writers.files import check_output
from .options import TableOptions

NEEDED = {
    "excel": ("openpyxl", "defusedxml"),
    "workbook": ("openpyxl", "defusedxml", "python_calamine"),
}
"""Packages that workbooks need; openpyxl refuses hostile XML only if defusedxml is there."""


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
    _check_same_workbook(options)
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


def _check_same_workbook(options: TableOptions) -> None:
    """Fail if a workbook would be replaced by a copy without its charts and the like."""
    from ..writers.workbook_parts import check_not_itself

    if options.is_long or options.force or format_of(options.file).kind != "excel":
        return
    if options.out.exists() and options.out.samefile(options.file):
        check_not_itself(options.file, options.out)


def check_workbook(options: TableOptions) -> None:
    """Fail if a workbook cannot be read or written, or --sheet does not apply."""
    from importlib.util import find_spec

    files = [path for path in (options.file, options.out, options.predict) if path is not None]
    if options.sheet is not None and format_of(options.file).kind not in BOOKS:
        raise Failure("--sheet applies to workbooks only")
    outputs = {"-o": options.out, "--outliers": options.outliers}
    for option, path in outputs.items():
        if path is not None and format_of(path).kind == "workbook":
            raise Failure(f"{option} {path}: such workbooks are only read; write .xlsx or .csv")
    for path in files:
        for needed in NEEDED.get(format_of(path).kind, ()):
            if find_spec(needed) is None:
                raise Failure(
                    f'{path} is a workbook, which needs {needed}: pip install "scaledgd[cli]"'
                )


def check_chlorine(path: Path | None) -> None:
    """Fail if a file is not a copy of the monograph's data. None is the bundled simulation."""
    from ...datasets import load_chlorine

    try:
        load_chlorine(path)
    except (OSError, ValueError) as error:
        raise Failure(f"--chlorine {path} is not the data: {error}") from None
