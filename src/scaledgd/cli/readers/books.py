"""The rows of the sheets of a workbook, whatever its format, with limits on hostile ones.

openpyxl reads ``.xlsx`` and ``.xlsm`` cell by cell. calamine, which reads the others, allocates
every cell between the first one and the last one, and ends its process if there is no memory for
them. It therefore works in a process of its own.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from ..failures import Failure, cause
from ..formats import format_of
from . import calamine_process

Rows = Iterator[Sequence[Any]]
"""All rows of a sheet from its first one, each from its first cell; None is an empty cell."""

BY_OPENPYXL = (".xlsx", ".xlsm")
MOST_BYTES = 2 << 30
"""Bytes of all parts of a workbook when unpacked, at most."""
READER_MEMORY = 4 << 30
"""Bytes that the process of calamine may take, where the system has such limits."""


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (
        *(KeyError, ValueError, TypeError, AttributeError, IndexError, OSError, EOFError),
        *(ParseError, zipfile.BadZipFile, zlib.error),
    ) as error:
        first = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise Failure(
            f"{path} is not an Excel workbook, or is damaged ({cause(first)}); save it again"
        ) from None


def open_workbook(path: Path, **how: Any) -> Any:
    """Open a workbook with openpyxl, or fail with a message that names the file."""
    import openpyxl

    with _readable(path):
        with zipfile.ZipFile(path) as parts:
            size = sum(part.file_size for part in parts.infolist())
        if size > MOST_BYTES:
            raise Failure(
                f"{path} has {size:,} bytes when unpacked, more than the {MOST_BYTES:,} that are "
                "read; save the sheet as .csv"
            )
        return openpyxl.load_workbook(path, **how)


@contextlib.contextmanager
def open_sheets(path: Path) -> Iterator[tuple[list[str], Callable[[str], Rows]]]:
    """Open a workbook; yield the names of its sheets and a function that reads the rows of one."""
    if format_of(path).suffix not in BY_OPENPYXL:
        yield _names(path), lambda name: _rows(path, name)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what copies leave out
        book = open_workbook(path, data_only=True, read_only=True)

        def rows(name: str) -> Rows:
            sheet = book[name]
            sheet.reset_dimensions()  # rows end at their last cells, whatever the file says
            with _readable(path):
                yield from sheet.iter_rows(values_only=True)

        try:
            yield [sheet.title for sheet in book.worksheets], rows
        finally:
            book.close()


# ---- calamine


def _names(path: Path) -> list[str]:
    return [name for names in _sent(path) for name in names]


def _rows(path: Path, name: str) -> Rows:
    for rows in _sent(path, name):
        yield from rows


def _sent(path: Path, *sheet: str) -> Iterator[Any]:
    """What a process of calamine sends; nothing is imported from the folder of the data."""
    command = [sys.executable, "-P", calamine_process.__file__, str(READER_MEMORY), str(path)]
    with subprocess.Popen(
        [*command, *sheet], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        try:
            while True:
                kind, said = pickle.load(child.stdout)
                if kind == "error" and "limit exceeded" in said:
                    raise EOFError
                if kind == "error":
                    why = cause(ValueError(said))
                    raise Failure(f"{path} cannot be read ({why}); save it again, or as .xlsx")
                if kind == "end":
                    return
                yield said
        except (EOFError, pickle.UnpicklingError):
            raise Failure(
                f"{path} has a sheet that is too large for the memory of its reader "
                f"({READER_MEMORY >> 30} GiB); if a cell stands far from the table, delete it; "
                "otherwise save the sheet as .csv"
            ) from None
        finally:
            child.kill()
