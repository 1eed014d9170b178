"""Tables in delimited text."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..failures import Failure, shown
from .batches import Progress, nullable
from .dialect import BOOLEANS, Dialect, are_numbers, to_floats
from .files import find_column
from .text import TextBlock, TextFile

Array = Any


class TextTable:
    """A table in delimited text.

    The cells of a column decide whether it holds numbers, booleans (which count as 1 and 0) or
    text. A word in a column with at least as many numbers is an error.

    Parameters
    ----------
    path : path
    dialect : Dialect
    text_columns : list of str
        Columns to pass through, by name or position from 1.
    """

    order = 2
    missing_hint = "if a word marks missing cells, name it with --missing WORD"

    def __init__(self, path: Path, dialect: Dialect, text_columns: list[str]) -> None:
        self.path, self.file = path, TextFile(path, dialect)
        self.names, self.dialect = self.file.names, dialect
        self.text_columns = {
            find_column(name, self.names, path, self.file.hint) for name in text_columns
        }
        self.boolean_columns: set[int] = set()
        self._numbers_seen = np.zeros(len(self.names), dtype=np.int64)
        self._first_words: dict[int, str] = {}

    def hint(self) -> str:
        return self._written_otherwise() or self.file.hint()

    def _written_otherwise(self) -> str:
        """Return advice if columns of text are numbers with separators or units."""
        for pattern, what in OTHERWISE:
            for j, word in self._first_words.items():
                if re.fullmatch(pattern, word):
                    return (
                        f"the cells of column {shown(self.names[j])} look like numbers with {what} "
                        f"({shown(word)}); remove these"
                    )
        return ""

    def batches(self, progress: Progress) -> Iterator[TextBlock]:
        for block in self.file.blocks(progress):
            yield replace(block, values=self._values(block))

    def _values(self, block: TextBlock) -> Array:
        values = np.full(block.starts.shape, np.nan)
        special = self.text_columns | self.boolean_columns
        plain = np.asarray([j for j in range(len(self.names)) if j not in special], dtype=int)
        try:
            cells = to_floats(self.dialect.normalised(block.cells(plain)))
            values[:, plain] = cells.reshape(len(block), -1)
        except pa.ArrowInvalid:
            for j in plain.tolist():
                values[:, j] = self._classified_column(block, j)
        for j in self.boolean_columns:
            values[:, j] = self._boolean_column(block, j)
        self._numbers_seen += np.sum(~np.isnan(values), axis=0)
        values = self.dialect.without_missing(values)
        infinite = np.argwhere(np.isinf(values))
        if len(infinite):
            row, j = infinite[0].tolist()
            raise Failure(
                f"{self.path}: line {block.line_of(row)} has infinity in column "
                f"{shown(self.names[j])}; replace it, or count it as missing with --missing inf"
            )
        return values

    def _classified_column(self, block: TextBlock, j: int) -> Array:
        """Return the numbers of a column; NaN if it turns out to hold booleans or text."""
        cells = self.dialect.normalised(block.cells(j))
        with contextlib.suppress(pa.ArrowInvalid):
            return to_floats(cells)
        good = are_numbers(cells)
        words = int((~good).sum())
        numbers = len(cells) - cells.null_count - words + int(self._numbers_seen[j])
        booleans = pc.fill_null(pc.is_in(cells, value_set=pa.array(BOOLEANS)), False)
        if not numbers and pc.sum(booleans).as_py() == words:
            self.boolean_columns.add(j)
        elif numbers >= words or self._numbers_seen[j]:
            refuse_word(self.file, block, j, cells, ~good, self._alternative(j))
        else:
            self._refuse_misread_numbers(j, cells.drop_null())
            self.text_columns.add(j)
            self._first_words[j] = cells.drop_null()[0].as_py().strip()
        return np.nan

    def _boolean_column(self, block: TextBlock, j: int) -> Array:
        cells = self.dialect.normalised(block.cells(j))
        lower = pc.ascii_lower(cells)
        good = pc.is_in(lower, value_set=pa.array(["true", "false", None]))
        if not pc.all(good).as_py():
            wrong = ~good.to_numpy(zero_copy_only=False)
            refuse_word(self.file, block, j, cells, wrong, self._alternative(j))
        return pc.equal(lower, "true").cast(pa.float64()).to_numpy(zero_copy_only=False)

    def _alternative(self, j: int) -> str:
        return f"pass the column through with --text {shlex.quote(self.names[j])}"

    def _refuse_misread_numbers(self, j: int, words: pa.Array) -> None:
        """Fail if most words would be numbers with another delimiter or decimal mark."""

        def most_match(pattern: str) -> bool:
            found = pc.sum(pc.match_substring_regex(words, pattern=pattern)).as_py() or 0
            return 2 * found > len(words)

        name = shown(self.names[j])
        if self.dialect.decimal != "," != self.dialect.delimiter and most_match(r"^[+-]?\d+,\d+$"):
            raise Failure(
                f"{self.path}: the numbers of column {name} have decimal commas; use --decimal ','"
            )
        if most_match(r"^[-+.\d]*[;|\t][-+.\d;|\t]*$"):
            raise Failure(
                f"{self.path}: column {name} has the cell {shown(words[0].as_py())}, which is "
                f"more than one number; {self.hint() or 'use --delimiter'}"
            )

    def cells_of(self, batch: TextBlock, j: int) -> pa.Array:
        return self.dialect.trimmed(batch.cells(j))

    def arrow_schema(self, floating: set[int], integer: set[int]) -> pa.Schema:
        def kind(j: int) -> pa.DataType:
            if j in self.text_columns:
                return pa.string()
            if j in self.boolean_columns and j not in floating:
                return pa.bool_()
            return pa.int64() if j in integer and j not in floating else pa.float64()

        return pa.schema([(name, kind(j)) for j, name in enumerate(self.names)])

    def arrow_batch(
        self, batch: TextBlock, new: dict[int, Array], schema: pa.Schema
    ) -> pa.RecordBatch:
        arrays = []
        for j, field in enumerate(schema):
            if j in self.text_columns:
                arrays.append(as_utf8(batch.cells(j), self.path, field.name))
            else:
                values = new[j] if j in new else batch.values[:, j]
                arrays.append(nullable(values).cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


OTHERWISE = (
    (r"[+-]?\d{1,3}([,'\u2019 \u00a0\u202f]\d{3})+(\.\d+)?", "thousands separators"),
    (r"[+-]?\d+([.,]\d+)?\s*%", "percent signs"),
    (r"[€$£¥]\s*[+-]?\d[\d.,]*|[+-]?\d[\d.,]*\s*[€$£¥]", "currency signs"),
    (r"[+-]?\d+([.,]\d+)?\s*(°\s*[A-Za-z]?|[A-Za-zµ/²³]{1,4})", "units"),
)
"""How cells of numbers may be written that are read as text."""


def refuse_word(
    file: TextFile, block: TextBlock, j: int, cells: pa.Array, wrong: Array, alternative: str
) -> NoReturn:
    """Fail because of a word in a column of numbers.

    Parameters
    ----------
    file : TextFile
    block : TextBlock
    j : int
        The column.
    cells : pyarrow.Array
        Its normalised cells.
    wrong : boolean array
        Which of them are words.
    alternative : str
        What else can be done, for the message.
    """
    row = int(np.flatnonzero(wrong)[0])
    word, name = cells[row].as_py(), file.names[j]
    commas = "" if file.dialect.decimal == "," else _decimal_comma_hint(word)
    raise Failure(
        f"{file.path}: line {block.line_of(row)} has {shown(word)} in column {shown(name)}, which "
        f"holds numbers; {commas}count the word as missing with --missing {shlex.quote(word)}, or "
        f"{alternative}"
    )


def as_utf8(cells: pa.Array, path: Path, name: str) -> pa.Array:
    """Check that cells are UTF-8, which typed formats require."""
    try:
        return cells.view(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raise Failure(
            f"{path}: column {shown(name)} is not UTF-8; convert it, or write delimited text "
            "with the same delimiter"
        ) from None


def _decimal_comma_hint(word: str) -> str:
    point = word.replace(",", ".", 1)
    try:
        float(point)
    except ValueError:
        return ""
    return "read a decimal comma with --decimal ',', or " if point != word else ""
