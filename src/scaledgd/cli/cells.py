"""Observed cells."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

Array = Any


@dataclass(frozen=True, eq=False)
class Triplets:
    """Observed cells: coordinates, one array per mode, and values."""

    index: tuple[Array, ...]
    values: Array
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.values)

    def some(self, chosen: Array) -> Triplets:
        return replace(self, index=tuple(i[chosen] for i in self.index), values=self.values[chosen])

    @classmethod
    def of(cls, values: Array) -> Triplets:
        """The cells of an array that are not NaN."""
        seen = ~np.isnan(values)
        index = np.unravel_index(np.flatnonzero(seen), values.shape)
        return cls(tuple(i.astype(np.int32) for i in index), values[seen], values.shape)

    @cached_property
    def columns(self) -> Array:
        """The number of the column of every cell; of tensors, of the fibre along mode 0."""
        return np.ravel_multi_index(tuple(i for i in self.index[1:]), self.shape[1:])
