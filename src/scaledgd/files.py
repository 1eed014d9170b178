"""Trees of plain values and arrays in one file: no pickle, a checksum, written atomically.

A file is an uncompressed zip archive of ``tree.json`` and one ``.npy`` file per array, so
`numpy.load` opens it too. Its last 64 bytes, in the comment of the archive, are the SHA-256 of all
bytes before them. The checksum is verified first. Because anybody can compute a checksum, a file
with a valid one is not trusted either: nothing in it is executed, and no more memory is allocated
than its size justifies.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import itertools
import json
import math
import os
import re
import stat
import sys
import threading
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

Tree = Any
"""Nested dict with string keys, list, tuple, None, bool, int, float, str, numpy.ndarray."""

FORMAT = 1
MARK = b"scaledgd sha256 "
DIGITS = 64
TREE_LIMIT = 1 << 20
"""Largest size of ``tree.json`` in bytes. Many numbers belong in arrays."""
PLAIN = "biufMmU"
"""Allowed kinds of dtypes. None of them can hold Python objects."""

_serial = itertools.count()


class FileError(ValueError):
    """A file is damaged, of another kind, or not written by this library."""


# ---- writing


def write(path: str | os.PathLike[str], tree: Tree, kind: str, version: str) -> None:
    """Write a tree atomically: a reader finds the old file or the new one, even after a crash.

    Parameters
    ----------
    path : str or path
    tree : nested dict, list, tuple, None, bool, int, float, str, numpy.ndarray
    kind : str
        The kind that `read` must be given.
    version : str
        Version of the library, for messages.

    Examples
    --------
    >>> import numpy as np, os, tempfile
    >>> from scaledgd import files
    >>> path = os.path.join(tempfile.mkdtemp(), "tree.npz")
    >>> files.write(path, {"L": np.eye(2), "rank": (2, 1)}, "example", "1.0")
    >>> files.read(path, "example")["rank"]
    (2, 1)
    """
    arrays: list[Any] = []
    head = {"format": FORMAT, "kind": kind, "version": version, "tree": _encoded(tree, arrays)}
    text = json.dumps(head, allow_nan=False).encode()
    if len(text) > TREE_LIMIT:
        raise ValueError(f"{len(text)} bytes of names and numbers are too many; use arrays")
    with replacing(path) as f:
        with zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
            z.comment = MARK + b"0" * DIGITS
            z.writestr(_member("tree.json"), text)
            for k, array in enumerate(arrays):
                with z.open(_member(f"{k}.npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)
        digest = _digest(f, f.tell())
        f.seek(-DIGITS, os.SEEK_END)
        f.write(digest)


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name)  # with a fixed date, so that equal trees give equal files


def _encoded(x: Any, arrays: list[Any]) -> Any:
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in PLAIN:
            raise TypeError(f"an array of {x.dtype} cannot be written")
        arrays.append(x if x.ndim == 0 else np.ascontiguousarray(x))
        return {"$array": len(arrays) - 1}
    if isinstance(x, tuple):
        return {"$tuple": [_encoded(y, arrays) for y in x]}
    if isinstance(x, list):
        return [_encoded(y, arrays) for y in x]
    if isinstance(x, dict):
        if not all(isinstance(k, str) and not k.startswith("$") for k in x):
            raise TypeError("keys must be strings that do not begin with $")
        return {k: _encoded(y, arrays) for k, y in x.items()}
    if x is None or isinstance(x, (bool, str)):
        return x
    if isinstance(x, (int, np.integer)):
        return int(x)
    if isinstance(x, (float, np.floating)):
        return float(x) if math.isfinite(x) else {"$float": repr(float(x))}
    raise TypeError(f"{type(x).__name__} cannot be written")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Any:
    """Open a temporary file that replaces `path` at the end, if nothing fails.

    It keeps the permissions of the file that it replaces; those of a new file follow the umask.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        # a pipe or a device would be lost
        raise FileError(f"{os.fspath(path)} is not a regular file; give the name of a file")
    name = f".{target.name}.{os.getpid()}-{threading.get_ident()}-{next(_serial)}.tmp"
    temporary = target.with_name(name)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None

    def opened(path: str, flags: int) -> int:
        # nobody who could not read the old file may open the new one, not even at first
        return os.open(path, flags, 0o666 if mode is None else mode & 0o600)

    try:
        with open(temporary, "x+b", opener=opened) as f:
            if mode is not None:
                os.chmod(temporary, mode)
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, so that renames survive a power failure."""
    with contextlib.suppress(OSError):  # on Windows a folder cannot be opened
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def clear(path: str | os.PathLike[str]) -> None:
    """Remove temporary files of `path` whose processes no longer exist."""
    target = Path(os.path.realpath(path))
    pattern = re.compile(rf"\.{re.escape(target.name)}\.(\d+)-\d+-\d+\.tmp")
    for left in target.parent.iterdir():
        found = pattern.fullmatch(left.name)
        if found is not None and not alive(int(found[1])):
            with contextlib.suppress(OSError):
                left.unlink()


def alive(process: int) -> bool:
    """Whether there is a process with this number; True if the system does not say."""
    if sys.platform == "win32":  # where signal 0 is Ctrl-C
        return _alive_on_windows(process)
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _alive_on_windows(process: int) -> bool:
    synchronize, denied, timeout = 0x100000, 5, 258
    kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined,unused-ignore]
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = kernel.OpenProcess(synchronize, False, process)
    if not handle:
        return bool(ctypes.get_last_error() == denied)  # type: ignore[attr-defined,unused-ignore]
    try:
        return bool(kernel.WaitForSingleObject(ctypes.c_void_p(handle), 0) == timeout)
    finally:
        kernel.CloseHandle(ctypes.c_void_p(handle))


def _digest(f: IO[bytes], size: int) -> bytes:
    """Return the SHA-256 of a file of `size` bytes without its last `DIGITS` bytes."""
    f.seek(0)
    sha, left = hashlib.sha256(), size - DIGITS
    while left > 0:
        part = f.read(min(left, 1 << 20))
        if not part:
            break
        sha.update(part)
        left -= len(part)
    return sha.hexdigest().encode()


# ---- reading


def read(path: str | os.PathLike[str], kind: str) -> Tree:
    """Read the tree in a file.

    Parameters
    ----------
    path : str or path
    kind : str
        The kind that was given to `write`.

    Returns
    -------
    tree : nested dict, list, tuple, None, bool, int, float, str, numpy.ndarray

    Raises
    ------
    FileError
        If the file is not exactly as it was written.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise FileError(f"{os.fspath(path)} is not a regular file")
    with open(path, "rb") as f:
        size = os.fstat(f.fileno()).st_size
        _check_sum(f, size, path)
        try:
            return _tree(f, size, kind)
        except FileError as error:
            raise FileError(f"{os.fspath(path)} {error}") from None
        except Exception as error:  # a hostile file can make the parsers raise anything
            raise FileError(f"{os.fspath(path)} cannot be read: {error}") from None


def _check_sum(f: IO[bytes], size: int, path: Any) -> None:
    end = len(MARK) + DIGITS
    f.seek(max(0, size - end))
    tail = f.read(end)
    if not tail.startswith(MARK) or len(tail) != end:
        raise FileError(
            f"{os.fspath(path)} was not written by this library, or is truncated; if it is a "
            "copy, copy it again"
        )
    if _digest(f, size) != tail[len(MARK) :]:
        raise FileError(
            f"{os.fspath(path)} is damaged: its checksum does not agree; if it is a copy, copy it "
            "again"
        )


def _tree(f: IO[bytes], size: int, kind: str) -> Tree:
    with zipfile.ZipFile(f) as z:
        members = z.infolist()
        names = {m.filename for m in members}
        stored = all(m.compress_type == zipfile.ZIP_STORED for m in members)
        begins = min((m.header_offset for m in members), default=0) == 0
        if not stored or not begins or len(names) != len(members) or "tree.json" not in names:
            raise FileError("has parts that this library does not write")
        if sum(m.file_size for m in members) > size:
            raise FileError("claims to hold more than its own size")
        if z.getinfo("tree.json").file_size > TREE_LIMIT:
            raise FileError("has a description that is too long")
        head = json.loads(z.read("tree.json"))
        if not isinstance(head, dict) or not isinstance(head.get("format"), int):
            raise FileError("has no description")
        if head["format"] > FORMAT:
            raise FileError(
                f"was written by a newer version, {str(head.get('version'))[:20]}; upgrade scaledgd"
            )
        if head.get("kind") != kind:
            raise FileError(f"is a {str(head.get('kind'))[:20]}, not a {kind}")
        used: set[str] = set()

        def array(k: Any) -> Any:
            name = f"{k}.npy"
            if not isinstance(k, int) or name not in names or name in used:
                raise FileError("refers to an array that it does not hold")
            used.add(name)
            return _array(z, name, size)

        tree = _decoded(head["tree"], array)
        if len(used) + 1 != len(members):
            raise FileError("has parts that nothing refers to")
        return tree


def _array(z: zipfile.ZipFile, name: str, whole: int) -> Any:
    size = z.getinfo(name).file_size
    with z.open(name) as raw:
        member = io.BytesIO(raw.read(size))
    if np.lib.format.read_magic(member) != (1, 0):
        raise FileError("has an array in a format that this library does not write")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(member)
    if dtype.kind not in PLAIN or dtype.names is not None or dtype.subdtype is not None:
        raise FileError(f"has an array of {str(dtype)[:40]}, which this library does not write")
    left = size - member.tell()
    # an empty array takes no space, but its shape may still be huge
    large = max(dtype.itemsize, math.prod(max(n, 1) for n in shape)) > whole
    wrong = fortran or large or min(shape, default=0) < 0
    if wrong or math.prod(shape) * dtype.itemsize != left:
        raise FileError(f"has an array whose size is not that of its shape {str(shape)[:60]}")
    values = np.frombuffer(member.getbuffer()[member.tell() :], dtype=dtype).reshape(shape).copy()
    if dtype.kind == "b" and bool(np.any(values.view(np.uint8) > 1)):
        raise FileError("has a boolean that is neither true nor false")
    if dtype.kind == "U":
        values.tolist()  # raises if a code point is invalid
    return values


def _decoded(x: Any, array: Any) -> Any:
    if isinstance(x, list):
        return [_decoded(y, array) for y in x]
    if not isinstance(x, dict):
        return x
    if len(x) == 1:
        ((key, value),) = x.items()
        if key == "$array":
            return array(value)
        if key == "$tuple":
            return tuple(_decoded(y, array) for y in value)
        if key == "$float" and value in ("nan", "inf", "-inf"):
            return float(value)
    if any(k.startswith("$") for k in x):
        raise FileError("has a description that this library does not write")
    return {k: _decoded(y, array) for k, y in x.items()}
