"""Small pictures of large tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = Any

PICTURE_SIDE = 120
"""Number of blocks of a picture along each side, at most."""


class Picture:
    """Block means of a table, accumulated a few rows or cells at a time.

    Parameters
    ----------
    rows, columns : int
        Size of the table.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.shape = rows, columns
        self.sides = tuple(min(n, PICTURE_SIDE) for n in self.shape)
        self.sums, self.counts = np.zeros(self.sides), np.zeros(self.sides)

    def _block(self, mode: int, i: Array) -> Array:
        """Return the blocks that rows (mode 0) or columns (mode 1) belong to."""
        return np.asarray(i, dtype=np.int64) * self.sides[mode] // self.shape[mode]

    def add_rows(self, first: int, values: Array) -> None:
        """Add rows from number `first` on; NaN cells are left out."""
        rows, columns = values.shape
        edges = np.flatnonzero(np.diff(self._block(1, np.arange(columns)), prepend=-1))
        seen = ~np.isnan(values)
        blocks = self._block(0, first + np.arange(rows))
        sums = np.add.reduceat(np.where(seen, values, 0.0), edges, axis=1)
        np.add.at(self.sums, blocks, sums)
        np.add.at(self.counts, blocks, np.add.reduceat(seen.astype(float), edges, axis=1))

    def add_cells(self, index: tuple[Array, ...], values: Array) -> None:
        """Add single cells, given their rows and columns."""
        flat = self._block(0, index[0]) * self.sides[1] + self._block(1, index[1])
        n = math.prod(self.sides)
        self.counts += np.bincount(flat, minlength=n).reshape(self.sides)
        self.sums += np.bincount(flat, values, minlength=n).reshape(self.sides)

    def add(self, other: Picture) -> None:
        """Add what was seen elsewhere of the same table."""
        self.sums += other.sums
        self.counts += other.counts

    def block_starts(self, mode: int) -> list[int]:
        """Return the first row (mode 0) or column (mode 1) of each block."""
        n, blocks = self.shape[mode], self.sides[mode]
        return [-(-k * n // blocks) for k in range(blocks)]

    @property
    def means(self) -> Array:
        """Mean of each block, NaN where it is empty."""
        return np.where(self.counts > 0, self.sums / np.maximum(self.counts, 1), np.nan)
