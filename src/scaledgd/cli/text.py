"""Delimited text, block by block: where its cells are, what they hold, and with other cells.

Cells are found by where the delimiters are, and what is written is the bytes that were read
but for the cells that changed: so whatever is not filled comes back to the byte.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .failures import Failure, reading

Array = Any
Show = Callable[[float], None]

BLOCK = 1 << 24
"""Bytes that are read at once."""
LONGEST = 1 << 28
"""Bytes that a record may have: beyond, a quotation mark was not closed."""

NEWLINE, RETURN, QUOTE, MARK = ord("\n"), ord("\r"), ord('"'), b"\xef\xbb\xbf"

MISSING = (
    "",
    *("#N/A", "#NA", "<NA>", "N/A", "n/a", "NA", "na", "NaN", "nan", "NAN", "-nan", "-NaN"),
    *("NULL", "null", "Null", "None", "none", "#N/A N/A", "1.#QNAN", "-1.#IND"),
)
"""Words for a cell that is missing."""
TRUTHS = ("true", "True", "TRUE", "false", "False", "FALSE")
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:inf|infinity)$"
NAMES = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " ", "pipe": "|"}
"""What delimiters may be called in a shell."""


@dataclass(frozen=True)
class Dialect:
    """How text is to be read.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from scaledgd.cli.text import Dialect, floats
    >>> floats(Dialect(decimal=",").tidy(pa.array(["1,5", " 2 ", "NA"])))
    array([1.5, 2. , nan])
    """

    delimiter: str = ","
    decimal: str = "."
    header: bool | None = None
    """Whether the first record holds names; None looks at it."""
    missing: tuple[str, ...] = ()
    """Words besides the usual ones."""

    @cached_property
    def _missing(self) -> pa.Array:
        return pa.array([*MISSING, *(word.strip() for word in self.missing)])

    @cached_property
    def _absent(self) -> list[float]:
        """Numbers among these words."""
        found = []
        for word in self.missing:
            with contextlib.suppress(ValueError):
                found.append(float(word))
        return found

    def known(self, values: Array) -> Array:
        """Numbers, NaN where they are one that means missing."""
        return np.where(np.isin(values, self._absent), np.nan, values) if self._absent else values

    def tidy(self, cells: pa.Array) -> pa.Array:
        """Cells without the space around them, null where they are missing."""
        cells = pc.ascii_trim_whitespace(cells)
        cells = pc.if_else(pc.is_in(cells, value_set=self._missing), None, cells)
        if self.decimal != ".":
            cells = pc.replace_substring(cells, pattern=self.decimal, replacement=".")
        return cells

    def written(self, values: Array) -> pa.Array:
        """Numbers as cells, the shortest that read as the same floats."""
        cells = pa.array(values).cast(pa.string())
        if self.decimal != ".":
            cells = pc.replace_substring(cells, pattern=".", replacement=self.decimal)
        return cells


def floats(tidied: pa.Array) -> Array:
    """Numbers, NaN where there is null; `pyarrow.ArrowInvalid` where a cell is none."""
    return tidied.cast(pa.float64()).to_numpy(zero_copy_only=False)


def are_numbers(tidied: pa.Array) -> Array:
    """Which cells are numbers; those that are missing are."""
    found = pc.match_substring_regex(tidied, pattern=NUMBER)
    return pc.fill_null(found, True).to_numpy(zero_copy_only=False)


@dataclass(frozen=True, eq=False)
class Block:
    """Some records.

    Attributes
    ----------
    data : bytes
        Of the first block, with the header.
    starts, ends : integer arrays of shape (records, width)
        Where the cells are, quotation marks included.
    first : int
        The number of its first record.
    line : int
        The number of the line that `data` begins with.
    ended : bool
        Whether its last line was; if not, its end was added here.
    """

    data: bytes
    starts: Array
    ends: Array
    first: int
    line: int
    ended: bool = True

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def quoted(self) -> bool:
        return b'"' in self.data

    def cells(self, columns: Array) -> pa.Array:
        """The cells of some columns as text, record by record."""
        starts, ends = self.starts[:, columns].ravel(), self.ends[:, columns].ravel()
        n = len(starts)
        if not n:
            return pa.array([], pa.string())
        # between two cells there is something else: every other piece is a cell
        offsets = np.empty(2 * n, dtype=np.int32)
        offsets[0::2], offsets[1::2] = starts, ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        pieces = pa.Array.from_buffers(pa.binary(), 2 * n - 1, buffers)
        cells = pieces.take(pa.array(np.arange(0, 2 * n - 1, 2)))
        return _unquoted(cells).view(pa.string()) if self.quoted else cells.view(pa.string())

    def line_of(self, record: int) -> int:
        return self.line + self.data.count(b"\n", 0, int(self.starts[record, 0]))

    def patched(self, records: Array, columns: Array, new: pa.Array) -> bytes:
        """The bytes with new text in some cells, which are given in order."""
        if not len(new):
            return self._as_ended(self.data)
        starts, ends = self.starts[records, columns], self.ends[records, columns]
        n = len(starts)
        offsets = np.empty(2 * n + 1, dtype=np.int32)
        offsets[0], offsets[1::2], offsets[2::2] = 0, starts, ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        pieces = pa.Array.from_buffers(pa.binary(), 2 * n, buffers)
        kept = pieces.take(pa.array(np.arange(0, 2 * n, 2)))
        joined = pc.binary_join_element_wise(kept, new.view(pa.binary()), b"")
        return self._as_ended(_bytes(joined) + self.data[int(ends[-1]) :])

    def extended(self, new: pa.Array, delimiter: str, name: str | None) -> bytes:
        """The bytes with one more cell at the end of every record, and of the header."""
        n, data = len(self), self.data
        offsets = np.concatenate([[0], self.ends[:, -1]]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        kept = pa.Array.from_buffers(pa.binary(), n, buffers)
        sign = delimiter.encode()
        joined = pc.binary_join_element_wise(kept, new.view(pa.binary()), sign)
        out = _bytes(joined) + data[int(self.ends[-1, -1]) :]
        if name is not None:
            title = out[: int(self.starts[0, 0])]
            body = out[len(title) :]
            stem = title.rstrip(b"\r\n")
            out = stem + sign + name.encode() + title[len(stem) :] + body
        return self._as_ended(out)

    def _as_ended(self, data: bytes) -> bytes:
        return data if self.ended else data[:-1]


def _bytes(pieces: pa.Array) -> bytes:
    """All pieces, one after the other."""
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


class Text:
    """A file of delimited text, perhaps compressed.

    Attributes
    ----------
    names : list of str
        Of the columns; "1", "2", … where there is no header.
    header : bool
    """

    def __init__(self, path: Path, dialect: Dialect) -> None:
        self.path, self.dialect = path, dialect
        with reading(path), _opened(path) as (file, _):
            self.size = path.stat().st_size
            self._sample = _beginning(file)
        self._check_sample()
        records = self._first_records()
        first, others = records[0], {len(record) for record in records[1:]}
        self.header = _is_header(records, dialect) if dialect.header is None else dialect.header
        if self.header and others == {len(first) + 1}:
            first = ["", *first]  # the names of rows have none themselves
        self.width = len(first)
        self.names = first if self.header else [str(k + 1) for k in range(self.width)]
        if self.width == 1:
            single = f"{path} has a single column where it is cut at {_called(dialect.delimiter)}; "
            raise Failure(single + (self.advice() or "a table needs two at least"))

    def _check_sample(self) -> None:
        sample, path = self._sample, self.path
        if not sample.strip():
            raise Failure(f"{path} is empty; give a file with a table in it")
        if sample[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise Failure(f"{path} is UTF-16; convert it: iconv -f UTF-16 -t UTF-8")
        if b"\0" in sample:
            raise Failure(f"{path} is not text; give it the suffix of what it is")
        if b"\n" not in sample and b"\r" in sample:
            raise Failure(f"{path} ends its lines with carriage returns; convert them to newlines")

    def _first_records(self) -> list[list[str]]:
        sample = self._sample.removeprefix(MARK)
        found = _cells_of(sample if b"\n" in sample else sample + b"\n", self.dialect.delimiter)
        if found is None:
            raise Failure(f"{self.path}: a quotation mark in line 1 is not closed; close it")
        records = []
        stops = np.cumsum(found.widths)
        for begin, end in list(zip(stops - found.widths, stops, strict=True))[:20]:
            part = slice(int(begin), int(end))
            one = Block(sample, found.starts[None, part], found.ends[None, part], 0, 1)
            cells = one.cells(slice(None)).view(pa.binary()).to_pylist()
            records.append([cell.decode(errors="replace") for cell in cells])
        return records

    def advice(self) -> str:
        """What to say about the delimiter where another one fits the file."""
        lines = self._sample.decode(errors="replace").splitlines()
        lines = [line for line in lines[: min(20, max(1, len(lines) - 1))] if line]
        best, fits = 1, ("", [[""]])
        for sign in ";\t|, ":
            with contextlib.suppress(csv.Error):
                rows = list(csv.reader(lines, delimiter=sign))
                widths = {len(row) for row in rows}
                if sign != self.dialect.delimiter and len(widths) == 1 and max(widths) > best:
                    best, fits = max(widths), (sign, rows)
        sign, rows = fits
        commas = _with_commas([cell for row in rows for cell in row])
        if sign:
            also = " --decimal ','" if sign != "," and commas else ""
            word = {"\t": "tab", " ": "space"}.get(sign, f"'{sign}'")
            return f"cut at {_called(sign)} it has {best}: say --delimiter {word}{also}"
        cells = [cell for line in lines for cell in line.split(self.dialect.delimiter)]
        if self.dialect.delimiter != "," != self.dialect.decimal and _with_commas(cells):
            return "its numbers have decimal commas: say --decimal ','"
        return ""

    def blocks(self, show: Show = lambda share: None) -> Iterator[Block]:
        """The records, some at a time."""
        left, first, line, ended = b"", 0, 1, True
        with reading(self.path), _opened(self.path) as (file, raw):
            while True:
                fresh = file.read(BLOCK)
                show(min(1.0, raw.tell() / max(1, self.size)))
                data = left + fresh
                if not fresh and data and not data.endswith(b"\n"):
                    data, ended = data + b"\n", False
                found = _cells_of(data, self.dialect.delimiter) if data else None
                if found is None and data and (not fresh or len(data) > LONGEST):
                    raise Failure(
                        f"{self.path}: a quotation mark in line {line} or after it is not "
                        "closed; close it or remove it"
                    )
                left = data
                if found is not None:
                    cut, left = data[: found.cut], data[found.cut :]
                    block = self._block(cut, found, first, line, ended)
                    first, line = first + len(block), line + cut.count(b"\n")
                    if len(block):
                        yield block
                if not fresh:
                    return

    def _block(self, data: bytes, found: _Found, first: int, line: int, ended: bool) -> Block:
        starts, ends, widths = found.starts, found.ends, found.widths
        if line == 1:
            starts[0] += len(MARK) if data.startswith(MARK) else 0
            if self.header:
                starts, ends, widths = starts[widths[0] :], ends[widths[0] :], widths[1:]
        wrong = np.flatnonzero(widths != self.width)
        if len(wrong):
            before = data[: int(starts[int(widths[: wrong[0]].sum())])].count(b"\n")
            sign = _called(self.dialect.delimiter)
            raise Failure(
                f"{self.path}: line {line + before} has {widths[wrong[0]]} cells where the first "
                f"has {self.width}; "
                + (self.advice() or _repair(int(widths[wrong[0]]) < self.width, sign))
            )
        shape = (-1, self.width)
        return Block(data, starts.reshape(shape), ends.reshape(shape), first, line, ended)


def _repair(short: bool, sign: str) -> str:
    if short:
        return f"write {sign} for every cell, also for those that are empty"
    return f"put cells that hold {sign} in quotation marks"


@dataclass(frozen=True, eq=False)
class _Found:
    """Where all cells of some bytes are, and how many each record has; blank lines left out."""

    starts: Array
    ends: Array
    widths: Array
    cut: int
    """Where the last whole record ends."""


def _cells_of(data: bytes, delimiter: str) -> _Found | None:
    """The cells of all whole records, or None where there is none."""
    a = np.frombuffer(data, dtype=np.uint8)
    stops = np.flatnonzero((a == ord(delimiter)) | (a == NEWLINE))
    quotes = np.flatnonzero(a == QUOTE) if b'"' in data else stops[:0]
    if len(quotes):
        # between an odd quotation mark and the next, a delimiter is a part of the cell
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
    return _Found(starts, ends, widths, int(stops[-1]) + 1)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A file as plain bytes, and the file below that."""
    with open(path, "rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield (gzip.GzipFile(fileobj=raw) if zipped else raw), raw  # type: ignore[misc]


def _beginning(file: IO[bytes]) -> bytes:
    """At least a line, where there is one."""
    sample = b""
    while len(sample) < LONGEST and (fresh := file.read(1 << 18)):
        sample += fresh
        if b"\n" in sample:
            break
    return sample


def _is_header(records: list[list[str]], dialect: Dialect) -> bool:
    """Whether the first record holds names.

    Words are names, and so are numbers that count, as 2001, 2002, 2003 do, unless those of the
    next record count as well.
    """
    first = dialect.tidy(pa.array(records[0]))
    if not bool(are_numbers(first).all()):
        return True
    return _counting(first) and not any(
        _counting(dialect.tidy(pa.array(record))) for record in records[1:2]
    )


def _counting(cells: pa.Array) -> bool:
    seen = cells.drop_null().to_pylist()
    if not all(re.fullmatch(r"-?\d{1,18}", cell) for cell in seen):
        return False
    numbers = [int(cell) for cell in seen]
    steps = set(np.diff(numbers).tolist())
    return numbers == [0, 1] or (len(numbers) > 2 and len(steps) == 1 and steps != {0})


def _called(sign: str) -> str:
    return {"\t": "tabs", " ": "spaces"}.get(sign, f"'{sign}'")


def _with_commas(cells: list[str]) -> bool:
    """Whether numbers among some cells have decimal commas."""
    return any(re.fullmatch(r"\s*[+-]?\d+,\d+\s*", cell) for cell in cells)
