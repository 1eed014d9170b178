"""What can go wrong with files and options: one line that says what, and what to do."""

from __future__ import annotations

import contextlib
import gzip
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .. import files


class Failure(Exception):  # noqa: N818  (what a user gave or asked for, not a defect)
    """An end that the user can do something about; the message is one line."""


def shown(text: object, most: int = 40) -> str:
    r"""A word of a file between quotes, on one line, cut where it is long.

    Examples
    --------
    >>> from scaledgd.cli.failures import shown
    >>> shown("two\nlines"), shown("a long word", most=6)
    ("'two lines'", "'a lon…'")
    """
    plain = " ".join(str(text).split())
    return f"'{plain if len(plain) <= most else plain[: most - 1] + '…'}'"


def listed(names: list[str], most: int = 4) -> str:
    """Some names, and how many more there are."""
    more = len(names) - most
    return ", ".join(map(shown, names[:most])) + (f" and {more} more" if more > 0 else "")


def within(option: str, value: Any, low: float, high: float) -> Any:
    """A number between two others."""
    if not low <= value <= high:
        raise Failure(f"{option} must be between {low} and {high}, not {value}")
    return value


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say which file cannot be read, and why."""
    try:
        yield
    except FileNotFoundError:
        raise Failure(f"there is no file {path}; check the name") from None
    except IsADirectoryError:
        raise Failure(f"{path} is a folder; give a file") from None
    except PermissionError:
        raise Failure(f"{path} cannot be read: no permission") from None
    except (EOFError, zlib.error, zipfile.BadZipFile, OSError) as error:
        why = " ".join(str(error).split())
        raise Failure(
            f"{path} is damaged or cut off ({why[:80]}); copy it or write it again"
        ) from None


def check_output(option: str, path: Path, inputs: list[Path], force: bool) -> None:
    """Refuse a place that cannot be written to, or that holds something already."""
    if path.is_dir():
        raise Failure(f"{option} {path} is a folder; give the name of a file in it")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise Failure(f"{option} {path} cannot be written: there is no folder {folder}; make it")
    if not os.access(folder, os.W_OK):
        raise Failure(
            f"{option} {path} cannot be written: no permission in {folder}; choose another folder"
        )
    if not path.exists():
        return
    if not stat.S_ISREG(path.stat().st_mode):
        raise Failure(f"{option} {path} is not a regular file; give the name of a file")
    if force:
        return
    if any(given.exists() and path.samefile(given) for given in inputs):
        raise Failure(
            f"{option} {path} is the input itself; give another name, or --force to replace it"
        )
    raise Failure(f"{option} {path} exists; give another name, or --force to replace it")


def check_chlorine(path: Path | None) -> None:
    """Refuse what is not a copy of the monograph's data; None is the bundled simulation."""
    from ..datasets import load_chlorine

    try:
        load_chlorine(path)
    except (OSError, ValueError) as error:
        raise Failure(f"--chlorine {path} is not the data: {error}") from None


@contextlib.contextmanager
def writing(option: str, path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its place when it is whole, with the permissions of what was there.

    Compressed, if its name ends with .gz.
    """
    try:
        files.clear(path)
        with files.replacing(path) as f:
            if path.exists():
                os.fchmod(f.fileno(), stat.S_IMODE(path.stat().st_mode))
            if path.suffix.lower() == ".gz":
                with gzip.GzipFile(filename="", fileobj=f, mode="wb", mtime=0) as zipped:
                    yield zipped  # type: ignore[misc]
            else:
                yield f
    except OSError as error:
        why = error.strerror or " ".join(str(error).split())
        raise Failure(f"{option} {path} cannot be written: {why}; choose another place") from None
