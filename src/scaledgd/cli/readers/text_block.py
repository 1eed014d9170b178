"""Records of delimited text: the byte offsets of their cells, and bytes with other cells.

Writing copies the bytes that were read and replaces only the cells that changed, so all other
cells are preserved byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .batches import RowBatch

Array = Any

NEWLINE, RETURN, QUOTE = ord("\n"), ord("\r"), ord('"')


@dataclass(frozen=True, eq=False, kw_only=True)
class TextBlock(RowBatch):
    """Consecutive records of a text file: their bytes and the offsets of their cells.

    Attributes
    ----------
    data : bytes
        The bytes of the records. The first block also contains the header.
    starts, ends : integer arrays of shape (records, columns)
        Byte offsets of the cells, with their quotation marks.
    line : int
        Line number of the first byte of `data`, from 1.
    ended : bool
        False if the last line of the file has no newline; then `data` has one added.
    values : float array of shape (records, columns), optional
        None until a `TextTable` has parsed the cells.
    """

    data: bytes
    starts: Array
    ends: Array
    line: int
    ended: bool = True
    values: Array = None

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def _quoted(self) -> bool:
        return b'"' in self.data

    def cells(self, columns: Array) -> pa.Array:
        """Return the cells of some columns as text, record by record."""
        starts, ends = self.starts[:, columns].ravel(), self.ends[:, columns].ravel()
        n = len(starts)
        if not n:
            return pa.array([], pa.string())
        # delimiters lie between the cells, so every other piece is a cell
        offsets = np.empty(2 * n, dtype=np.int32)
        offsets[0::2], offsets[1::2] = starts, ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        pieces = pa.Array.from_buffers(pa.binary(), 2 * n - 1, buffers)
        cells = pieces.take(pa.array(np.arange(0, 2 * n - 1, 2)))
        return _unquoted(cells).view(pa.string()) if self._quoted else cells.view(pa.string())

    def line_of(self, record: int) -> int:
        """Return the line number of a record."""
        return self.line + self.data.count(b"\n", 0, int(self.starts[record, 0]))

    def patched(self, records: Array, columns: Array, new: pa.Array) -> bytes:
        """Return the bytes with new text in some cells.

        Parameters
        ----------
        records, columns : integer arrays of shape (cells,)
            Positions of the cells, in the order of the file. `columns` may be one number.
        new : pyarrow.Array of strings, shape (cells,)
        """
        if not len(new):
            return self._with_original_end(self.data)
        starts, ends = self.starts[records, columns], self.ends[records, columns]
        n = len(starts)
        offsets = np.empty(2 * n + 1, dtype=np.int32)
        offsets[0], offsets[1::2], offsets[2::2] = 0, starts, ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        pieces = pa.Array.from_buffers(pa.binary(), 2 * n, buffers)
        kept = pieces.take(pa.array(np.arange(0, 2 * n, 2)))
        joined = pc.binary_join_element_wise(kept, new.view(pa.binary()), b"")
        return self._with_original_end(_bytes(joined) + self.data[int(ends[-1]) :])

    def extended(self, new: pa.Array, delimiter: str, name: str | None) -> bytes:
        """Return the bytes with a cell appended to every record, and `name` to the header."""
        n, data = len(self), self.data
        offsets = np.concatenate([[0], self.ends[:, -1]]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        kept = pa.Array.from_buffers(pa.binary(), n, buffers)
        mark = delimiter.encode()
        joined = pc.binary_join_element_wise(kept, new.view(pa.binary()), mark)
        out = _bytes(joined) + data[int(self.ends[-1, -1]) :]
        if name is not None:
            header = out[: int(self.starts[0, 0])]
            body = out[len(header) :]
            names = header.rstrip(b"\r\n")
            out = names + mark + name.encode() + header[len(names) :] + body
        return self._with_original_end(out)

    def _with_original_end(self, data: bytes) -> bytes:
        return data if self.ended else data[:-1]


def _bytes(pieces: pa.Array) -> bytes:
    """Concatenate the pieces."""
    _, where, text = pieces.buffers()
    offsets = np.frombuffer(where, dtype=np.int32)
    first, last = offsets[pieces.offset], offsets[pieces.offset + len(pieces)]
    return text.slice(int(first), int(last - first)).to_pybytes()  # type: ignore[no-any-return]


def _unquoted(cells: pa.Array) -> pa.Array:
    quoted = pc.starts_with(cells, pattern=b'"')
    if not pc.any(quoted).as_py():
        return cells
    inner = pc.replace_substring(pc.binary_slice(cells, 1, -1), pattern=b'""', replacement=b'"')
    return pc.if_else(quoted, inner, cells)


@dataclass(frozen=True, eq=False)
class Cells:
    """Offsets of the cells of all complete records, without blank lines.

    Attributes
    ----------
    starts, ends : integer arrays of shape (cells,)
    widths : integer array of shape (records,)
        Number of cells of each record.
    stop : int
        Where the last complete record ends.
    """

    starts: Array
    ends: Array
    widths: Array
    stop: int


def locate_cells(data: bytes, delimiter: str) -> Cells | None:
    """Locate the cells of all complete records; None if there is no complete record."""
    a = np.frombuffer(data, dtype=np.uint8)
    stops = np.flatnonzero((a == ord(delimiter)) | (a == NEWLINE))
    quotes = np.flatnonzero(a == QUOTE) if b'"' in data else stops[:0]
    if len(quotes):
        # a delimiter after an odd number of quotation marks is part of a cell
        stops = stops[np.searchsorted(quotes, stops) % 2 == 0]
    ended = a[stops] == NEWLINE
    last = np.flatnonzero(ended)
    if not len(last):
        return None
    stops, ended = stops[: last[-1] + 1], ended[: last[-1] + 1]
    starts = np.concatenate([[0], stops[:-1] + 1])
    ends = stops - (ended & (a[stops - 1] == RETURN) & (stops > starts))
    widths = np.diff(last, prepend=-1)
    blank = (widths == 1) & (ends[last] == starts[last])
    if blank.any():
        kept = np.ones(len(stops), dtype=bool)
        kept[last[blank]] = False
        starts, ends, widths = starts[kept], ends[kept], widths[~blank]
    return Cells(starts, ends, widths, int(stops[-1]) + 1)
