"""Folders that are replaced as a whole, and only if this library wrote them.

A folder is written beside its place and then exchanged with what is there. It holds a marker,
``_scaledgd.json``, with the names of its files: a folder without a marker, or with anything else in
it, is never touched. On Linux the exchange is a single step. Elsewhere, and on file systems that
cannot do this, the old folder is set aside for a moment; if the process is killed in that moment,
`recover` puts it back.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import platform
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from . import files
from .files import FileError

MARKER = "_scaledgd.json"
"""Readers of folders of Parquet files leave out names that begin with an underscore."""
FORMAT = 1
KINDS = {"model": "a saved model", "table": "Parquet files"}
PATIENCE = 1.0
"""Seconds in which an exchange by another process surely ends."""

_serial = itertools.count()


def check(path: str | os.PathLike[str], kind: str, inputs: Iterable[Path] = ()) -> None:
    """Raise an error unless a folder can be written without loss: nothing is there, or our own.

    Parameters
    ----------
    path : str or path
    kind : str
        One of `KINDS`. A folder of another kind is not replaced.
    inputs : iterable of path
        Files and folders that are read, none of which may be replaced.

    Raises
    ------
    FileError
        If something else is there.
    """
    target, shown = _real(path), os.fspath(path)
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise FileError(f"{shown} is not a folder; give another name")
    if _holds(target, Path.cwd()):
        raise FileError(f"{shown} is the current folder, or holds it; give another folder")
    for given in map(_real, inputs):
        if _holds(target, given) or _holds(given, target):
            raise FileError(f"{shown} holds the input {given}, or lies in it; give another folder")
    found = _marked(target)
    if found is None:
        raise FileError(
            f"{shown} exists and has no {MARKER}, so another program wrote it, or an earlier "
            "version of scaledgd; remove or rename it yourself, or give another folder"
        )
    if isinstance(found.get("format"), int) and found["format"] > FORMAT:
        version = str(found.get("version"))[:20]
        raise FileError(f"{shown} was written by a newer version, {version}; upgrade scaledgd")
    if found.get("kind") != kind:
        other = KINDS.get(str(found.get("kind")), "something else")
        raise FileError(f"{shown} holds {other}, not {KINDS[kind]}; give another folder")
    _, others = _divided(target, found)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise FileError(
            f"{shown} also holds {others[0]}{more}, which scaledgd did not write; move what you "
            "need elsewhere, or give another folder"
        )


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], kind: str, version: str, inputs: Iterable[Path] = ()
) -> Iterator[Path]:
    """Give an empty folder, which replaces that at `path` at the end if nothing fails.

    A new folder has the permissions of the one that it replaces. If something else has come to
    its place meanwhile, the result is left beside it, under a name that the error tells.

    Parameters
    ----------
    path : str or path
    kind : str
        As in `check`.
    version : str
        Version of the library, for messages.
    inputs : iterable of path
        As in `check`.

    Raises
    ------
    FileError
        If `check` fails, before or after the work, or if the folders cannot be exchanged.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from scaledgd import folders
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "parts"
    >>> for text in ("old", "new"):
    ...     with folders.replacing(path, "table", "1.0") as folder:
    ...         _ = (folder / "part").write_text(text)
    >>> (path / "part").read_text(), sorted(p.name for p in path.iterdir())
    ('new', ['_scaledgd.json', 'part'])
    """
    recover(path)
    given = list(inputs)
    check(path, kind, given)
    target = _real(path)
    _clear(target)
    before = target.exists()
    fresh = target.with_name(f".{target.name}.{_host()}-{os.getpid()}-{next(_serial)}.new")
    fresh.mkdir()
    if before:
        fresh.chmod(stat.S_IMODE(target.stat().st_mode) | stat.S_IRWXU)
    try:
        yield fresh
        _finish(fresh, kind, version)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    try:
        check(path, kind, given)
        if before and target.exists():
            _exchange(fresh, target)
        else:
            _move(fresh, target)
    except (FileError, OSError) as error:
        kept = _kept(fresh, target)
        why = error if isinstance(error, FileError) else f"{target}: {error.strerror or error}"
        raise FileError(f"{why}; what was to be written there is in {kept}") from error
    files.sync_folder(target.parent)
    _remove(fresh)  # the old one


def recover(path: str | os.PathLike[str]) -> None:
    """Put back a folder that a killed process had set aside.

    Call this before a folder that may have been written by `replacing` is read or replaced. It
    does nothing where the folder is in its place.
    """
    target = _real(path)
    until = time.monotonic() + PATIENCE
    while not os.path.lexists(target) and _marked(_aside(target)) is not None:
        if time.monotonic() >= until:  # before, another process may be in the middle of it
            with contextlib.suppress(FileNotFoundError):
                os.rename(_aside(target), target)
            return
        time.sleep(PATIENCE / 20)


# ---- names


def _real(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(path))


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.scaledgd-old")


def _host() -> str:
    """Return a name of this machine: others may write to the same disk."""
    return re.sub(r"[^A-Za-z0-9]", "_", platform.node())


# ---- what is in a folder


def _marked(folder: Path) -> dict[str, Any] | None:
    """Return what the marker of a folder says; None if there is none that makes sense."""
    marker = folder / MARKER
    try:
        found = json.loads(marker.read_text(encoding="utf-8")) if marker.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    names = found.get("files") if isinstance(found, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return found


def _divided(folder: Path, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the files in a folder that its marker lists, and the names of all else in it."""
    listed = set(found["files"])
    ours: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            regular = entry.is_file(follow_symlinks=False)
            if not (regular and entry.name == MARKER):
                (ours if regular and entry.name in listed else others).append(entry.name)
    return ours, sorted(others)


def _holds(folder: Path, path: Path) -> bool:
    """Whether a path is a folder or lies in it."""
    around = (p for p in (path, *path.parents) if p.exists())
    return folder.exists() and any(p.samefile(folder) for p in around)


def _finish(folder: Path, kind: str, version: str) -> None:
    """Write the marker, last, and bring everything to the disk."""
    names = sorted(p.name for p in folder.iterdir())
    for name in names:
        with contextlib.suppress(OSError), open(folder / name, "rb+") as f:
            os.fsync(f.fileno())
    marker = {"format": FORMAT, "kind": kind, "version": version, "files": names}
    with open(folder / MARKER, "x", encoding="utf-8") as text:
        json.dump(marker, text, indent=1)
        text.flush()
        os.fsync(text.fileno())
    files.sync_folder(folder)


# ---- moves


def _move(fresh: Path, target: Path) -> None:
    """Move a folder to a place where nothing is."""
    if os.path.lexists(target):  # it was not there when the work began
        raise FileError(f"{target} exists now; give another folder")
    os.rename(fresh, target)


def _exchange(fresh: Path, target: Path) -> None:
    """Exchange two folders, in one step where the system can."""
    if _exchanged(fresh, target):
        return
    aside = _aside(target)
    os.rename(target, aside)
    try:
        os.rename(fresh, target)
    except BaseException:
        os.rename(aside, target)
        raise
    with contextlib.suppress(OSError):  # `_clear` removes it later
        os.rename(aside, fresh)


def _exchanged(a: Path, b: Path) -> bool:
    """Exchange two folders in one step; False if this system, or file system, cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        call = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):  # another C library than that of GNU
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(call(here, os.fsencode(a), here, os.fsencode(b), swap) == 0)


def _kept(fresh: Path, target: Path) -> Path:
    """Give a finished folder that cannot go to its place a name beside it."""
    for k in itertools.count(1):
        kept = target.with_name(f"{target.name}-new-{k}")
        if not os.path.lexists(kept):
            os.rename(fresh, kept)
            return kept
    raise AssertionError


# ---- leftovers


def _remove(folder: Path) -> None:
    """Remove the files that the marker of a folder lists, and the folder if nothing else is in it.

    The marker goes last, so that it is known until then whose files these are.
    """
    found = _marked(folder)
    if found is None:
        return
    with contextlib.suppress(OSError):
        ours, others = _divided(folder, found)
        for name in ours:
            (folder / name).unlink()
        if not others:
            (folder / MARKER).unlink()
            folder.rmdir()


def _clear(target: Path) -> None:
    """Remove what killed processes left beside a folder."""
    if target.exists():
        _remove(_aside(target))
    pattern = re.compile(rf"\.{re.escape(target.name)}\.{_host()}-(\d+)-\d+\.new")
    with contextlib.suppress(OSError):
        for left in target.parent.iterdir():
            found = pattern.fullmatch(left.name)
            if found is None or files.alive(int(found[1])):
                continue
            if _marked(left) is None:
                shutil.rmtree(left, ignore_errors=True)
            else:
                _remove(left)
