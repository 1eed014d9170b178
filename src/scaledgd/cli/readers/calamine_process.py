"""A process that reads a workbook with calamine, run by `books` as a file of its own.

It sends pickled pairs: ("names", names of the sheets) or ("rows", some rows), and at last ("end",
None) or ("error", message). Without the last one, there was no memory.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import sys
from collections.abc import Iterator
from typing import Any

AT_ONCE = 1000
"""Number of rows of a message."""


def main(memory: int, path: str, *sheet: str) -> None:
    """Send the names of the sheets, or the rows of the given one."""
    _limit(memory)
    try:
        import python_calamine

        with python_calamine.CalamineWorkbook.from_path(path) as book:
            if sheet:
                rows = _rows(book.get_sheet_by_name(*sheet))
                while some := list(itertools.islice(rows, AT_ONCE)):
                    _send("rows", some)
            else:
                tables = python_calamine.SheetTypeEnum.WorkSheet
                _send("names", [each.name for each in book.sheets_metadata if each.typ == tables])
    except BaseException as error:  # a panic of Rust is no `Exception`
        _send("error", str(error))
    else:
        _send("end", None)


def _limit(memory: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limits
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        low = memory if most == resource.RLIM_INFINITY else min(memory, most)
        resource.setrlimit(resource.RLIMIT_AS, (low, most))


def _rows(sheet: Any) -> Iterator[list[Any]]:
    if sheet.start is None:
        return
    left = [None] * sheet.start[1]
    for row in sheet.iter_rows():  # from the first row, but from the first used column
        yield left + [None if value == "" else value for value in row]


def _send(kind: str, said: Any) -> None:
    pickle.dump((kind, said), sys.stdout.buffer)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
