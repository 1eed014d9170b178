"""Output files: checks of their names, and files that appear only when they are complete."""

from __future__ import annotations

import contextlib
import gzip
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..failures import Failure, cause
from ..formats import ARRAYS, format_of


def check_output(option: str, path: Path, inputs: list[Path], force: bool) -> None:
    """Fail if a file cannot be written, or exists and must not be replaced.

    Parameters
    ----------
    option : str
        The option that names the file, for messages.
    path : path
    inputs : list of path
        Files that the command reads.
    force : bool
        Whether existing files may be replaced.
    """
    if path.is_dir():
        raise Failure(f"{option} {path} is a folder; give the name of a file in it")
    check_place(option, path)
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


def check_place(option: str, path: Path) -> None:
    """Fail if nothing can be written beside a path."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise Failure(f"{option} {path} cannot be written: there is no folder {folder}; make it")
    if not os.access(folder, os.W_OK):
        raise Failure(
            f"{option} {path} cannot be written: no permission in {folder}; choose another folder"
        )


def check_named_columns(option: str, path: Path) -> None:
    """Fail if the format of a file cannot hold names beside values."""
    if format_of(path).kind in ARRAYS:
        raise Failure(
            f"{option} {path} must hold rows, columns and values; write .csv, .tsv, .parquet or "
            ".feather"
        )


@contextlib.contextmanager
def replacing(option: str, path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` at the end, if nothing fails.

    The file is compressed if the name ends with .gz. It keeps the permissions of the file that
    it replaces.
    """
    from ... import files  # needs NumPy, which is slow to import

    try:
        files.clear(path)
        with files.replacing(path) as f:
            if path.suffix.lower() == ".gz":
                with gzip.GzipFile(filename="", fileobj=f, mode="wb", mtime=0) as zipped:
                    yield zipped  # type: ignore[misc]
            else:
                yield f
    except OSError as error:
        why = error.strerror or cause(error)
        raise Failure(f"{option} {path} cannot be written: {why}; choose another place") from None


@contextlib.contextmanager
def open_outputs(
    out: Path, outliers: Path | None, second: Path | None = None
) -> Iterator[tuple[IO[bytes], IO[bytes] | None, IO[bytes] | None]]:
    """Open the output, and the files of outliers and of intervals if there are any.

    They are opened before the work begins, so that errors are reported at once.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(replacing("-o", out))
        others: list[IO[bytes] | None] = [None, None]
        for k, (option, path) in enumerate((("--outliers", outliers), ("--interval", second))):
            if path is not None:
                check_named_columns(option, path)
                others[k] = stack.enter_context(replacing(option, path))
        yield file, others[0], others[1]
