"""Tables in delimited text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..failures import Failure, listed, shown
from .batches import Progress, nullable
from .dialect import BOOLEANS, Dialect, are_numbers, to_floats
from .files import find_column
from .notation import CELL, PLAIN, Notation, find_notation, formatted
from .text import TextFile
from .text_block import TextBlock

Array = Any


class TextTable:
    """A table in delimited text.

    The cells of a column decide whether it holds numbers, booleans (which count as 1 and 0) or
    text. Numbers may have thousands separators and one unit. A word in a column with at least
    as many numbers is an error.

    Parameters
    ----------
    path : path
    dialect : Dialect
    text_columns : list of str
        Columns to pass through, by name or position from 1.
    data : bytes, optional
        The text, if it is not that of the file.

    Attributes
    ----------
    notations : dict
        How numbers are written, for columns in which they are not plain.
    boolean_columns : set of int
        Columns of two words for true and false.
    codes : set of int
        Columns whose first cells have leading zeros, or more digits than a float holds. They are
        codes if they contain only integers.
    """

    order = 2
    missing_hint = "if a word or a number marks missing cells, name it with --missing WORD"

    def __init__(
        self, path: Path, dialect: Dialect, text_columns: list[str], data: bytes | None = None
    ) -> None:
        self.path, self.file = path, TextFile(path, dialect, data, units=True)
        self.names, self.dialect = self.file.names, self.file.dialect
        self.text_columns = {
            find_column(name, self.names, path, self.file.hint) for name in text_columns
        }
        self.boolean_columns: set[int] = set()
        self._truths: dict[int, tuple[str, str]] = {}
        self.codes = {
            j for r in self.file.records for j, cell in enumerate(r) if CODE.fullmatch(cell.strip())
        }
        self._numbers_seen = np.zeros(len(self.names), dtype=np.int64)
        self.notations: dict[int, Notation] = {}
        self._units: dict[int, list[str]] = {}

    @property
    def assumed(self) -> list[str]:
        """What was detected, and how to override it."""
        found = list(self.file.assumed)
        by_notation: dict[Notation, list[str]] = {}
        for j, notation in sorted(self.notations.items()):
            by_notation.setdefault(notation, []).append(self.names[j])
        for notation, names in by_notation.items():
            columns = "column" if len(names) == 1 else "columns"
            whose = "its" if len(names) == 1 else "their"
            otherwise = f"--text {shlex.quote(names[0])} passes it through as text"
            if notation.thousands:
                otherwise += ", --thousands none reads no separators"
            what = f"{whose} numbers have {notation.in_words()}"
            found.append(f"{columns} {listed(names)}: {what}; {otherwise}")
        for j, pair in sorted(self._truths.items()):
            if pair != BOOLEANS[0]:
                true, false = self._boolean_words(j)
                found.append(
                    f"column {shown(self.names[j])}: '{true}' and '{false}' are read as true and "
                    f"false; --text {shlex.quote(self.names[j])} passes it through as text"
                )
        return found

    @property
    def mixed(self) -> list[str]:
        """Warnings about columns of numbers with several units."""
        by_units: dict[tuple[str, ...], list[str]] = {}
        for j, units in sorted(self._units.items()):
            by_units.setdefault(tuple(units), []).append(self.names[j])
        return [
            f"{'column' if len(names) == 1 else 'columns'} {listed(names)}: numbers with several "
            f"units ({listed(list(units))}), passed through as text; convert them to one unit to "
            "have them filled"
            for units, names in by_units.items()
        ]

    def hint(self) -> str:
        return "; ".join(self.mixed) or self.file.hint() or self._example()

    def _example(self) -> str:
        """A cell of a column of text, if it has digits."""
        for j, cells in enumerate(zip(*self.file.records, strict=False)):
            word = next((cell for cell in cells if re.search(r"\d", cell)), "")
            if word and j in self.text_columns:
                return (
                    f"{shown(word)} in column {shown(self.names[j])} is not read as a number; "
                    "leave only digits, a decimal mark and a unit in such cells"
                )
        return ""

    def places(self, j: int) -> int | None:
        """Return the number of decimal places that all of the first cells of a column have."""
        cells = [record[j].strip() for record in self.file.records if j < len(record)]
        missing = {word.strip() for word in self.dialect.missing}
        cells = [cell for cell in cells if re.search(r"\d", cell) and cell not in missing]
        mark = re.escape(self.dialect.decimal)
        found = {len(m[1]) if (m := re.search(rf"{mark}(\d+)\D*$", c)) else 0 for c in cells}
        return found.pop() if len(found) == 1 and len(cells) > 1 else None

    def batches(self, progress: Progress) -> Iterator[TextBlock]:
        for block in self.file.blocks(progress):
            yield replace(block, values=self._values(block))

    def _values(self, block: TextBlock) -> Array:
        values = np.full(block.starts.shape, np.nan)
        special = self.text_columns | self.boolean_columns | set(self.notations)
        plain = np.asarray([j for j in range(len(self.names)) if j not in special], dtype=int)
        try:
            cells = block.cells(plain)
            if self.dialect.decimal != "." and pc.any(pc.match_substring(cells, ".")).as_py():
                raise pa.ArrowInvalid("points are not decimal marks here")
            floats = to_floats(self.dialect.normalised(cells))
            values[:, plain] = floats.reshape(len(block), -1)
        except pa.ArrowInvalid:
            for j in plain.tolist():
                values[:, j] = self._classified_column(block, j)
        for j in self.boolean_columns:
            values[:, j] = self._boolean_column(block, j)
        for j, notation in self.notations.items():
            values[:, j] = self._written_column(block, j, notation)
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
        """Return the numbers of a column; NaN if it turns out to hold something else."""
        raw = self.dialect.trimmed(block.cells(j))
        cells, good = self.dialect.normalised(raw), are_numbers(self.dialect.normalised(raw))
        if self.dialect.decimal != ".":
            pointed = pc.fill_null(pc.match_substring(raw, "."), False)
            good &= ~pointed.to_numpy(zero_copy_only=False)
        if good.all():
            return to_floats(cells)
        words = int((~good).sum())
        numbers = len(cells) - cells.null_count - words + int(self._numbers_seen[j])
        if not numbers and self._has_truths(j, raw):
            self.boolean_columns.add(j)
        elif self._has_notation(j, raw):
            pass  # its numbers are read together with those of other such columns
        elif numbers >= words or self._numbers_seen[j]:
            refuse_word(self.file, block, j, cells, ~good, self._alternative(j))
        else:
            self._refuse_misread_numbers(j, cells.drop_null())
            self.text_columns.add(j)
        return np.nan

    def _has_truths(self, j: int, cells: pa.Array) -> bool:
        """Find out whether a column holds two words for true and false."""
        seen = set(pc.ascii_lower(cells.drop_null()).unique().view(pa.binary()).to_pylist())
        for pair in BOOLEANS:
            words = {word.encode() for word in pair}
            # "no" alone may mean anything
            if seen == words or (seen <= words and pair == BOOLEANS[0]):
                self._truths[j] = pair
                return True
        return False

    def _has_notation(self, j: int, cells: pa.Array) -> bool:
        """Detect how the numbers of a column are written."""
        distinct = cells.drop_null().unique().view(pa.binary()).to_pylist()[:LOOK]
        words = [word.decode(errors="replace") for word in distinct]
        notation, units = find_notation(words, self.dialect.decimal)
        wanted = self.dialect.thousands
        if notation is not None and notation.thousands and wanted not in ("", notation.thousands):
            return False
        if notation is not None:
            self.notations[j] = notation
        elif units and len(units) <= MOST_UNITS:
            self._units[j] = units
        return notation is not None

    def _written_column(self, block: TextBlock, j: int, notation: Notation) -> Array:
        cells = notation.plain(self.dialect.trimmed(block.cells(j)), self.dialect.decimal)
        try:
            return to_floats(cells)
        except pa.ArrowInvalid:
            wrong = ~are_numbers(cells)
            refuse_word(self.file, block, j, cells, wrong, self._alternative(j))

    def _boolean_column(self, block: TextBlock, j: int) -> Array:
        cells = self.dialect.normalised(block.cells(j))
        lower = pc.ascii_lower(cells)
        true, false = self._truths[j]
        good = pc.is_in(lower, value_set=pa.array([true, false, None]))
        if not pc.all(good).as_py():
            wrong = ~good.to_numpy(zero_copy_only=False)
            refuse_word(self.file, block, j, cells, wrong, self._alternative(j))
        return pc.equal(lower, true).cast(pa.float64()).to_numpy(zero_copy_only=False)

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
                f"{self.path}: column {name} has the cell {shown(worded(words[0]))}, which is "
                f"more than one number; {self.hint() or 'use --delimiter'}"
            )

    def written(self, j: int, values: Array, places: int | None) -> list[str]:
        """Return numbers of a column as they are written in it.

        Parameters
        ----------
        j : int
        values : float array of shape (cells,)
        places : int, optional
            Decimal places of the column.
        """
        if places is not None and j in self.boolean_columns:
            true, false = self._boolean_words(j)
            return [true if value else false for value in values.tolist()]
        fixed = self.places(j)
        exact = places is not None and fixed is not None and fixed >= places
        numbers = formatted(values, fixed if exact else places, exact)
        return self.notations.get(j, PLAIN).written(numbers, self.dialect.decimal)

    def _boolean_words(self, j: int) -> tuple[str, str]:
        """How true and false are written in a column."""
        true, false = self._truths[j]
        cells = (record[j].strip() for record in self.file.records)
        first = next((cell for cell in cells if cell.lower() in (true, false)), true)
        if first.isupper():
            return true.upper(), false.upper()
        return (true.title(), false.title()) if first[0].isupper() else (true, false)

    def cells_of(self, batch: TextBlock, j: int) -> pa.Array:
        return self.dialect.trimmed(batch.cells(j))

    @property
    def no_columns(self) -> set[int]:
        """Columns without a name and a value, as delimiters at the ends of lines make them.

        Complete after one pass. They are copied in text, and left out of other formats.
        """
        unnamed = {j for j, name in enumerate(self.names) if not name.strip()}
        special = self.text_columns | self.boolean_columns
        return {j for j in unnamed - special if not self._numbers_seen[j]}

    def arrow_schema(self, floating: set[int], integer: set[int]) -> pa.Schema:
        def kind(j: int) -> pa.DataType:
            if j in self.text_columns:
                return pa.string()
            if j in self.boolean_columns and j not in floating:
                return pa.bool_()
            return pa.int64() if j in integer and j not in floating else pa.float64()

        unused = self.no_columns
        return pa.schema([(n, kind(j)) for j, n in enumerate(self.names) if j not in unused])

    def arrow_batch(
        self, batch: TextBlock, new: dict[int, Array], schema: pa.Schema
    ) -> pa.RecordBatch:
        arrays, unused = [], self.no_columns
        for j, field in zip(
            [j for j in range(len(self.names)) if j not in unused], schema, strict=True
        ):
            if j in self.text_columns:
                arrays.append(as_utf8(batch.cells(j), self.path, field.name))
            else:
                values = new[j] if j in new else batch.values[:, j]
                arrays.append(nullable(values).cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


CODE = re.compile(r"0\d+|\d{17,}")
"""Integers that are no numbers."""
LOOK = 2000
"""Number of distinct cells that are examined to find out how numbers are written."""
MOST_UNITS = 4
"""Numbers with more units than this are taken as text."""


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
    word, name = worded(cells[row]), file.names[j]
    commas = "" if file.dialect.decimal == "," else _decimal_comma_hint(word)
    if word == name.strip():
        raise Failure(
            f"{file.path}: line {block.line_of(row)} repeats the names of the columns; remove it, "
            "or put what follows into a file of its own"
        )
    number = CELL.fullmatch(word)
    if number and (number["suffix"] or number["prefix"]):
        commas = "write the unit in all of its cells or in none, or "
    elif re.fullmatch(r"\([\d.,]+\)", word):
        commas = f"write a negative number as -{word[1:-1]}, or "
    elif re.fullmatch(r"[<>≤≥~*]?\s*[-+]?\d[\d.,]*\s*[*†‡#!?]*", word):
        commas = "leave only the number in such cells, or "
    raise Failure(
        f"{file.path}: line {block.line_of(row)} has {shown(word)} in column {shown(name)}, which "
        f"holds numbers; {commas}count the word as missing with --missing {shlex.quote(word)}, or "
        f"{alternative}"
    )


def worded(cell: pa.Scalar) -> str:
    """Return the text of a cell for a message; bytes that are not UTF-8 are replaced."""
    return str(cell.as_buffer().to_pybytes().decode(errors="replace"))


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
