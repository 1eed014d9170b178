"""What every reader of a table provides: batches of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

Array = Any
Progress = Callable[[float], None]
"""Called with the share of a file that has been processed."""

BATCH_CELLS = 2_000_000
"""Number of cells in a batch of a binary format, at most."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RowBatch:
    """Consecutive rows of a table, or slices of a tensor.

    Attributes
    ----------
    first : int
        Number of the first row, from 0.
    values : float array of shape (rows, columns), or (rows, ...) for a tensor
        NaN where a cell is missing, or where its column is not numeric.
    """

    first: int
    values: Array


class TableReader(Protocol):
    """A table or a tensor in a file.

    Attributes
    ----------
    path : path
    names : list of str
        Names of all columns. A tensor has none.
    text_columns : set of int
        Columns that are passed through. For delimited text the set is complete after one pass.
    order : int
        Number of modes: 2 for a table.
    missing_hint : str
        How missing cells can be marked, for messages.
    assumed, mixed : list of str
        What was detected, and warnings about columns with several units; complete after one pass.
    """

    path: Path
    names: list[str]
    text_columns: set[int]
    order: int
    missing_hint: str

    @property
    def assumed(self) -> list[str]: ...

    @property
    def mixed(self) -> list[str]: ...

    def batches(self, progress: Progress) -> Iterator[Any]:
        """Yield all rows as `RowBatch` objects."""
        ...

    def cells_of(self, batch: Any, j: int) -> pa.Array:
        """Return the cells of a column that is passed through, as text or as times.

        Missing cells are null.
        """
        ...

    def arrow_schema(self, floating: set[int], integer: set[int]) -> pa.Schema:
        """Return the schema to write.

        Parameters
        ----------
        floating : set of int
            Columns that contain estimates, which must be floats.
        integer : set of int
            Columns of integers without missing cells.
        """
        ...

    def arrow_batch(self, batch: Any, new: dict[int, Array], schema: pa.Schema) -> pa.RecordBatch:
        """Convert a batch of this reader to Arrow, with the columns in `new` replaced."""
        ...

    def hint(self) -> str:
        """Return advice for a table without numbers, or an empty string."""
        ...


def nullable(values: Array) -> pa.Array:
    """Convert numbers to Arrow, with null for NaN."""
    return pa.array(values, mask=np.isnan(values) if values.dtype.kind == "f" else None)
