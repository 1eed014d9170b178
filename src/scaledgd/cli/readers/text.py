"""Delimited text, read in blocks of records and written back with some cells replaced.

Cells are located by their byte offsets. Writing copies the bytes that were read and replaces
only the cells that changed, so all other cells are preserved byte for byte.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..failures import Failure
from ..formats import format_of
from .batches import Progress, RowBatch
from .dialect import Dialect, are_numbers
from .files import reading
from .sniff import DATE, Marks, lines_above, look

Array = Any

BLOCK_BYTES = 1 << 24
"""Number of bytes read at once."""
SAMPLE_BYTES = 1 << 18
"""Number of bytes that are examined first, or a line if it is longer."""
RECORD_LIMIT = 1 << 28
"""Number of bytes of a record, at most. A longer one has an unclosed quotation mark."""

TOTAL = re.compile(
    r"(?i)((grand[ -]?|sub-?)?totals?|sums?|summe|gesamt|insgesamt|somme|suma"
    r"|means?|averages?|avg|mittelwert|durchschnitt|moyenne|promedio)[.:]?"
)
"""Names of a row that sums up those above it."""
TOTALS = "the last rows are totals or means by their names, and copied"

NEWLINE, RETURN, QUOTE = ord("\n"), ord("\r"), ord('"')
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


class TextFile:
    """A file of delimited text, which may be compressed with gzip.

    Parameters
    ----------
    path : path
    dialect : Dialect
    data : bytes, optional
        The text, if it is not that of the file.
    units : bool
        Whether a line of units, or of more names, may follow the names of the columns, and
        totals or means the rows.

    Attributes
    ----------
    encoding : str
        The encoding of the file. Blocks are always UTF-8.
    dialect : Dialect
        With the detected marks.
    assumed : list of str
        What was detected, for messages.
    names : list of str
        Names of the columns; "1", "2", … if there is no header.
    header : bool
        Whether there is a record of names.
    skipped : int
        Number of records before the first row: titles, names and units.
    records : list of list of str
        The first rows.
    """

    def __init__(
        self, path: Path, dialect: Dialect, data: bytes | None = None, units: bool = False
    ) -> None:
        self.path, self._data, self.encoding, self._table = path, data, UTF_8, units
        with reading(path), self._open() as (file, _):
            self.size = path.stat().st_size if data is None else len(data)
            self.encoding = _encoding(_first_bytes(file))
        with reading(path), self._open() as (file, _):
            self._sample = _first_bytes(file)
        self._check_sample()
        lines, usual = self._lines(), format_of(path).delimiter
        for_excel = re.fullmatch(r"sep=(.)", lines[0])
        given = dialect.delimiter or (for_excel[1] if for_excel else "")
        marks = look(lines, usual, given, dialect.decimal)
        runs = any(re.search(r"\S {2,}\S", line) for line in lines[:20])
        if runs and not dialect.delimiter and (marks.delimiter == " " or _unsplit(lines, marks)):
            raise Failure(
                f"{path} has runs of spaces between its columns; make them commas: tr -s ' ' ',' "
                f"< {path.name} > new.csv"
            )
        dialect = replace(dialect, delimiter=marks.delimiter, decimal=marks.decimal)
        self.dialect, self.assumed = dialect, list(marks.assumed)
        records = self._first_records()
        above = 0 if dialect.header is False else lines_above(records)
        above = max(above, 1 if for_excel else 0)
        if above:
            lines_are = "the first line is" if above == 1 else f"the first {above} lines are"
            self.assumed.append(f"{lines_are} above the table, and copied")
        records = records[above:]
        if not records:
            raise Failure(f"{path} has no rows; give a file with a table in it")
        first, others = records[0], {len(record) for record in records[1:]}
        self.header = _is_header(records, dialect) if dialect.header is None else dialect.header
        if self.header and others == {len(first) + 1}:
            first = ["", *first]  # the column of row names has no name
        self.width = len(first)
        self.records = records[1:] if self.header else records
        self.names = first if self.header else [str(k + 1) for k in range(self.width)]
        self.skipped = above + int(self.header)
        if units and self.header and _names_follow(self.records, dialect):
            below, self.records = self.records[0], self.records[1:]
            if len(set(below)) > len(set(first)):
                self.names = below  # the first line names groups of columns
            self.skipped += 1
            self.assumed.append("the second line of the table holds no numbers, and is copied")
        if self.width == 1:
            mark = _plural(dialect.delimiter)
            raise Failure(
                f"{path} has a single column when split at {mark}; "
                + (self.hint() or "a table needs at least two")
            )

    @contextlib.contextmanager
    def _open(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        if self._data is None:
            with _open_bytes(self.path) as (file, raw):
                yield (file if self.encoding == UTF_8 else _Recoded(file, self.encoding)), raw  # type: ignore[misc]
        else:
            memory = io.BytesIO(self._data)
            yield memory, memory

    def _lines(self) -> list[str]:
        """The first lines, without the last one if it may be cut."""
        lines = self._sample.removeprefix(BYTE_ORDER_MARK).decode(errors="replace").splitlines()
        return lines[:-1] if len(self._sample) >= SAMPLE_BYTES and len(lines) > 1 else lines

    def _check_sample(self) -> None:
        sample, path = self._sample, self.path
        if not sample.strip():
            raise Failure(f"{path} is empty; give a file with a table in it")
        if b"\0" in sample:
            raise Failure(f"{path} is not text; give it the suffix of its format")
        if b"\n" not in sample and b"\r" in sample:
            raise Failure(f"{path} has carriage returns as line ends; convert them to newlines")

    def _first_records(self) -> list[list[str]]:
        sample = self._sample.removeprefix(BYTE_ORDER_MARK)
        cells = _locate_cells(sample if b"\n" in sample else sample + b"\n", self.dialect.delimiter)
        if cells is None:
            raise Failure(f"{self.path}: a quotation mark in line 1 is not closed; close it")
        records = []
        stops = np.cumsum(cells.widths)
        for begin, end in list(zip(stops - cells.widths, stops, strict=True))[:20]:
            record = slice(int(begin), int(end))
            starts, ends = cells.starts[None, record], cells.ends[None, record]
            block = TextBlock(data=sample, starts=starts, ends=ends, first=0, line=1)
            words = block.cells(slice(None)).view(pa.binary()).to_pylist()
            records.append([word.decode(errors="replace") for word in words])
        return records

    def encoded(self, data: bytes) -> bytes:
        """Return bytes of blocks in the encoding of the file."""
        return data if self.encoding == UTF_8 else data.decode().encode(self.encoding, SAME_BYTE)

    def hint(self) -> str:
        """Return advice if another delimiter or decimal mark fits the file better."""
        lines = self._sample.decode(errors="replace").splitlines()
        lines = [line for line in lines[: min(20, max(1, len(lines) - 1))] if line]
        mark, rows = self._better_delimiter(lines)
        if mark:
            width = len(rows[0])
            commas = mark != "," and _has_decimal_commas([cell for row in rows for cell in row])
            also = " --decimal ','" if commas else ""
            word = {"\t": "tab", " ": "space"}.get(mark, f"'{mark}'")
            return f"split at {_plural(mark)} it has {width}: use --delimiter {word}{also}"
        cells = [cell for line in lines for cell in line.split(self.dialect.delimiter)]
        if self.dialect.delimiter != "," != self.dialect.decimal and _has_decimal_commas(cells):
            return "its numbers have decimal commas: use --decimal ','"
        return ""

    def _better_delimiter(self, lines: list[str]) -> tuple[str, list[list[str]]]:
        """Return the delimiter that splits the lines into most equal rows, and the rows."""
        most, best, split = 1, "", [[""]]
        for mark in ";\t|, ":
            with contextlib.suppress(csv.Error):
                rows = list(csv.reader(lines, delimiter=mark))
                widths = {len(row) for row in rows}
                if mark != self.dialect.delimiter and len(widths) == 1 and max(widths) > most:
                    most, best, split = max(widths), mark, rows
        return best, split

    def blocks(self, progress: Progress = lambda share: None) -> Iterator[TextBlock]:
        """Yield all records in blocks; blank lines, and empty records at the end, are skipped."""
        left, first, line, ended = b"", 0, 1, True
        with reading(self.path), self._open() as (file, raw):
            fresh = file.read(BLOCK_BYTES)
            while True:
                ahead = file.read(BLOCK_BYTES) if fresh else b""
                progress(min(1.0, raw.tell() / max(1, self.size)))
                data = left + fresh
                if not ahead and data and not data.endswith(b"\n"):
                    data, ended = data + b"\n", False
                cells = _locate_cells(data, self.dialect.delimiter) if data else None
                if cells is None and data and (not fresh or len(data) > RECORD_LIMIT):
                    raise Failure(
                        f"{self.path}: a quotation mark in line {line} or after it is not "
                        "closed; close it or remove it"
                    )
                left = data
                if cells is not None:
                    whole, left = data[: cells.stop], data[cells.stop :]
                    block = self._block(whole, cells, first, line, ended, last=not ahead)
                    first, line = first + len(block), line + whole.count(b"\n")
                    if len(block):
                        yield block
                if not fresh:
                    return
                fresh = ahead

    def _block(
        self, data: bytes, cells: _Cells, first: int, line: int, ended: bool, last: bool
    ) -> TextBlock:
        starts, ends, widths = cells.starts, cells.ends, cells.widths
        if line == 1:
            starts[0] += len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
            before = int(widths[: self.skipped].sum())
            starts, ends, widths = starts[before:], ends[before:], widths[self.skipped :]
        if last and len(widths):
            # spreadsheets leave records of nothing but delimiters at the end
            full = np.flatnonzero(np.add.reduceat(ends - starts, np.cumsum(widths) - widths))
            if len(full):
                widths = widths[: full[-1] + 1]
                starts, ends = starts[: widths.sum()], ends[: widths.sum()]
            if self._table and (rest := _rows_before_totals(data, starts, ends, widths)):
                widths = widths[:rest]
                starts, ends = starts[: widths.sum()], ends[: widths.sum()]
                if TOTALS not in self.assumed:
                    self.assumed.append(TOTALS)
        wrong = np.flatnonzero(widths != self.width)
        if len(wrong):
            before = data[: int(starts[int(widths[: wrong[0]].sum())])].count(b"\n")
            self._refuse_width(line + before, int(widths[wrong[0]]))
        shape = (-1, self.width)
        return TextBlock(
            data=data,
            starts=starts.reshape(shape),
            ends=ends.reshape(shape),
            first=first,
            line=line,
            ended=ended,
        )

    def _refuse_width(self, line: int, width: int) -> None:
        mark = _plural(self.dialect.delimiter)
        repair = f"put cells that contain {mark} in quotation marks"
        if width < self.width:
            repair = f"separate all cells by {mark}, empty ones too"
        cells = "1 cell" if width == 1 else f"{width} cells"
        if width == 1:
            repair = f"remove it if it is a remark, or {repair}"
        raise Failure(
            f"{self.path}: line {line} has {cells}, but the first line has {self.width}; "
            + (self.hint() or repair)
        )


def _rows_before_totals(data: bytes, starts: Array, ends: Array, widths: Array) -> int:
    """Return the number of records before the totals at the end; 0 if there are none."""
    begins = np.cumsum(widths) - widths
    for k in reversed(range(len(widths))):
        record = slice(int(begins[k]), int(begins[k] + widths[k]))
        cells = (data[a:b].strip(b' "') for a, b in zip(starts[record], ends[record], strict=True))
        if not TOTAL.fullmatch(next(filter(None, cells), b"").decode(errors="replace")):
            return k + 1 if k + 1 < len(widths) else 0
    return 0


@dataclass(frozen=True, eq=False)
class _Cells:
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


def _locate_cells(data: bytes, delimiter: str) -> _Cells | None:
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
    return _Cells(starts, ends, widths, int(stops[-1]) + 1)


@contextlib.contextmanager
def _open_bytes(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file; yield the decompressed stream, and the file on disk."""
    with open(path, "rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield (gzip.GzipFile(fileobj=raw) if zipped else raw), raw  # type: ignore[misc]


class _Recoded:
    """Text in another encoding, read as UTF-8."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self._file, self._decoder = file, codecs.getincrementaldecoder(encoding)(SAME_BYTE)

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        return self._decoder.decode(data, not data).encode()


def _encoding(sample: bytes) -> str:
    """Return the encoding of a file that begins with these bytes."""
    if sample[:2] in UTF_16:
        return UTF_16[sample[:2]]
    try:
        sample.decode()
    except UnicodeDecodeError as error:
        # the last character may be cut
        return UTF_8 if error.start > len(sample) - 4 and len(sample) > 4 else WESTERN
    return UTF_8


def _first_bytes(file: IO[bytes]) -> bytes:
    """Read the first line at least."""
    sample = b""
    while len(sample) < RECORD_LIMIT and (fresh := file.read(SAMPLE_BYTES)):
        sample += fresh
        if b"\n" in sample:
            break
    return sample


def _is_header(records: list[list[str]], dialect: Dialect) -> bool:
    """Return whether the first record holds names.

    Words are names. Equally spaced integers such as 2001, 2002, 2003 are names too, unless the
    integers of the second record are also equally spaced. A date or a number with decimals is not a
    name if the cell below it is such a value, too.
    """
    first = dialect.normalised(pa.array(records[0]))
    if not bool(are_numbers(first).all()):
        return not any(
            _is_value(cell, dialect) and _is_value(below, dialect)
            for cell, below in zip(records[0], records[min(1, len(records) - 1)], strict=False)
        )
    return _equally_spaced(first) and not any(
        _equally_spaced(dialect.normalised(pa.array(record))) for record in records[1:2]
    )


def _names_follow(records: list[list[str]], dialect: Dialect) -> bool:
    """Return whether the first record holds words in columns that hold numbers below."""
    if len(records) < 4 or len({len(record) for record in records}) > 1:
        return False
    top, *rows = (dialect.normalised(pa.array(record)) for record in records)
    words = ~are_numbers(top)
    below = np.asarray([are_numbers(row) for row in rows])
    empty = np.asarray([row.is_null().to_numpy(zero_copy_only=False) for row in rows])
    numeric = below.all(axis=0) & ~empty.all(axis=0)
    named = words & numeric
    numbers = ~words & top.is_valid().to_numpy(zero_copy_only=False)
    return bool(named.sum() >= 2 and 2 * named.sum() >= numeric.sum() and not numbers.any())


def _is_value(cell: str, dialect: Dialect) -> bool:
    """Return whether a cell is a date, or a number with decimals."""
    mark = re.escape(dialect.decimal)
    return bool(DATE.fullmatch(cell) or re.fullmatch(rf"\s*[-+−]?\d*{mark}\d+\D*", cell))


def _equally_spaced(cells: pa.Array) -> bool:
    seen = cells.drop_null().to_pylist()
    if not all(re.fullmatch(r"-?\d{1,18}", cell) for cell in seen):
        return False
    numbers = [int(cell) for cell in seen]
    steps = set(np.diff(numbers).tolist())
    return numbers == [0, 1] or (len(numbers) > 2 and len(steps) == 1 and steps != {0})


def _unsplit(lines: list[str], marks: Marks) -> bool:
    """Return whether no line contains the delimiter."""
    return not any(marks.delimiter in line for line in lines)


def _plural(delimiter: str) -> str:
    return {"\t": "tabs", " ": "spaces"}.get(delimiter, f"'{delimiter}'")


def _has_decimal_commas(cells: list[str]) -> bool:
    """Return whether any cell is a number with a decimal comma."""
    return any(re.fullmatch(r"\s*[+-]?\d+,\d+\s*", cell) for cell in cells)
