"""Files of delimited text, read in blocks of records."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from ..failures import Failure
from ..formats import format_of
from .batches import Progress
from .dialect import Dialect
from .encodings import BYTE_ORDER_MARK, SAME_BYTE, UTF_8, Recoded, encoding_of, open_bytes
from .files import reading
from .headings import is_header, names_follow, rows_before_totals
from .sniff import Marks, lines_above, look
from .text_block import Cells, TextBlock, locate_cells

Array = Any

BLOCK_BYTES = 1 << 24
"""Number of bytes read at once."""
SAMPLE_BYTES = 1 << 18
"""Number of bytes that are examined first, or a line if it is longer."""
RECORD_LIMIT = 1 << 28
"""Number of bytes of a record, at most. A longer one has an unclosed quotation mark."""

MARKUP = re.compile(rb"(?i)(\xef\xbb\xbf)?\s*([\[{]\s*[\[{\"]|<(!doctype|html|table|\?xml))")
"""How files begin that hold JSON, HTML or XML."""
TOTALS = "the last rows are totals or means by their names, and copied"


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
            self.encoding = encoding_of(_first_bytes(file))
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
                f"< {shlex.quote(str(path))} > new.csv"
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
        self.header = is_header(records, dialect) if dialect.header is None else dialect.header
        if self.header and others == {len(first) + 1}:
            first = ["", *first]  # the column of row names has no name
        self.width = len(first)
        self.records = records[1:] if self.header else records
        self.names = first if self.header else [str(k + 1) for k in range(self.width)]
        self.skipped = above + int(self.header)
        if units and self.header and names_follow(self.records, dialect):
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
            with open_bytes(self.path) as (file, raw):
                yield (file if self.encoding == UTF_8 else Recoded(file, self.encoding)), raw  # type: ignore[misc]
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
        if MARKUP.match(sample):
            raise Failure(f"{path} holds JSON or a web page, not a table; save it as .csv or .xlsx")
        if b"\0" in sample:
            raise Failure(f"{path} is not text; give it the suffix of its format")
        if b"\n" not in sample and b"\r" in sample:
            raise Failure(f"{path} has carriage returns as line ends; convert them to newlines")

    def _first_records(self) -> list[list[str]]:
        sample = self._sample.removeprefix(BYTE_ORDER_MARK)
        cells = locate_cells(sample if b"\n" in sample else sample + b"\n", self.dialect.delimiter)
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
                cells = locate_cells(data, self.dialect.delimiter) if data else None
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
        self, data: bytes, cells: Cells, first: int, line: int, ended: bool, last: bool
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
            if self._table and (rest := rows_before_totals(data, starts, ends, widths)):
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


def _first_bytes(file: IO[bytes]) -> bytes:
    """Read the first line at least."""
    sample = b""
    while len(sample) < RECORD_LIMIT and (fresh := file.read(SAMPLE_BYTES)):
        sample += fresh
        if b"\n" in sample:
            break
    return sample


def _unsplit(lines: list[str], marks: Marks) -> bool:
    """Return whether no line contains the delimiter."""
    return not any(marks.delimiter in line for line in lines)


def _plural(delimiter: str) -> str:
    return {"\t": "tabs", " ": "spaces"}.get(delimiter, f"'{delimiter}'")


def _has_decimal_commas(cells: list[str]) -> bool:
    """Return whether any cell is a number with a decimal comma."""
    return any(re.fullmatch(r"\s*[+-]?\d+,\d+\s*", cell) for cell in cells)
