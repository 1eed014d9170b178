"""Tables and tensors in files, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from .formats import Show

Array = Any

CELLS = 2_000_000
"""Cells that are worked on at once."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows: their numbers, NaN where there is none, and the rows as they came."""

    first: int
    values: Array
    raw: Any = None


class Source(Protocol):
    """A table or a tensor in a file."""

    path: Path
    names: list[str]
    """Of all columns; a tensor has none."""
    text: set[int]
    """Columns that are passed through; of delimited text this is known after one pass."""
    order: int

    def parts(self, show: Show) -> Iterator[Part]:
        """All rows, some at a time."""
        ...

    def batch(self, part: Part, columns: dict[int, Array], schema: pa.Schema) -> pa.RecordBatch:
        """Rows with some columns replaced."""
        ...

    def schema(self, floating: set[int], whole: set[int]) -> pa.Schema:
        """Of the batches; columns that are floats now, and those that could be integers."""
        ...

    marks: str
    """What to say about how missing cells are marked."""

    def advice(self) -> str:
        """What to say where there are no numbers at all."""
        ...


def nullable(values: Array) -> pa.Array:
    """Numbers, null where they are NaN."""
    return pa.array(values, mask=np.isnan(values) if values.dtype.kind == "f" else None)
