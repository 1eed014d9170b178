"""Errors when a file is opened or read, and columns by name or position."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ..failures import Failure, cause, listed, shown


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into a `Failure` that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise Failure(f"there is no file {path}; check the name") from None
    except IsADirectoryError:
        raise Failure(f"{path} is a folder; give a file") from None
    except PermissionError:
        raise Failure(f"{path} cannot be read: no permission") from None
    except (EOFError, zlib.error, zipfile.BadZipFile, OSError) as error:
        raise Failure(
            f"{path} is damaged or truncated ({cause(error)}); copy it or write it again"
        ) from None


def check_readable(path: Path) -> None:
    """Fail if a file cannot be opened."""
    with reading(path), open(path, "rb"):
        pass


def find_column(
    wanted: str, names: list[str], path: Path, hint: Callable[[], str] = lambda: ""
) -> int:
    """Return the position of a column that is given by name, or by position from 1.

    Parameters
    ----------
    wanted : str
        A name, or a position from 1.
    names : list of str
        Names of all columns.
    path : path
        The file, for the message of the failure.
    hint : callable
        Returns advice for the message, or an empty string.

    Examples
    --------
    >>> from pathlib import Path
    >>> from scaledgd.cli.readers.files import find_column
    >>> [find_column(name, ["user", "item"], Path("x.csv")) for name in ("item", "1")]
    [1, 0]
    """
    if wanted in names:
        return names.index(wanted)
    if wanted.isdecimal() and 1 <= int(wanted) <= len(names):
        return int(wanted) - 1
    raise Failure(
        f"{path} has no column {shown(wanted)}; " + (hint() or f"it has {listed(names, 8)}")
    )
