"""Bytes of a text file as UTF-8, whatever its encoding, and also if it is compressed."""

from __future__ import annotations

import codecs
import contextlib
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_8, WESTERN = "utf-8", "cp1252"
UTF_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
"""Encodings by the bytes that a file begins with."""


def _same_byte(error: UnicodeError) -> tuple[str | bytes, int]:
    """Map bytes that an encoding leaves undefined to themselves, in both directions."""
    if isinstance(error, UnicodeDecodeError):
        return "".join(map(chr, error.object[error.start : error.end])), error.end
    assert isinstance(error, UnicodeEncodeError)
    return bytes(map(ord, error.object[error.start : error.end])), error.end


SAME_BYTE = "scaledgd.same_byte"
codecs.register_error(SAME_BYTE, _same_byte)


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file; yield the decompressed stream, and the file on disk."""
    with open(path, "rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield (gzip.GzipFile(fileobj=raw) if zipped else raw), raw  # type: ignore[misc]


class Recoded:
    """Text in another encoding, read as UTF-8."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder(encoding)(SAME_BYTE)

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        return self._decoder.decode(data, not data).encode()


def encoding_of(sample: bytes) -> str:
    """Return the encoding of a file that begins with these bytes."""
    if sample[:2] in UTF_16:
        return UTF_16[sample[:2]]
    try:
        sample.decode()
    except UnicodeDecodeError as error:
        # the last character may be cut
        return UTF_8 if error.start > len(sample) - 4 and len(sample) > 4 else WESTERN
    return UTF_8
