"""Order statistics of numbers in shards, and entries that a fit rejects.

The k-th largest magnitude is found exactly: shards count magnitudes by their leading bits, the
counts are added up, and what is left of them within one group is brought here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..kernels.generic import Generic
from . import magnitudes
from .magnitudes import Group

if TYPE_CHECKING:
    from .operator import Distant

Array = Any

FEW = 200_000
"""Numbers that are brought here to be sorted."""


@dataclass(frozen=True, eq=False)
class Within:
    """Entries whose residual does not exceed a limit.

    Attributes
    ----------
    factors : LowRank or Bordered
    limit : float
    """

    factors: Any
    limit: float


class Afar(Generic):
    """Answers what threshold rules ask, about numbers that are in shards."""

    name = "afar"

    def kth_magnitude(self, x: Distant, k: int) -> Array:
        group, above = Group(), 0
        bits = 8 * np.dtype(x.dtype).itemsize
        while group.known < bits:
            counts = x.total(magnitudes.magnitudes, group)
            below = np.cumsum(counts[::-1])  # the largest first
            at = int(np.searchsorted(below, k - above))
            number = len(counts) - 1 - at
            above += int(below[at] - counts[number])
            group = group.within(number)
            if counts[number] <= FEW and group.known < bits:
                found = np.concatenate(x.each(magnitudes.magnitudes_in, group))
                return np.asarray(-np.sort(-found)[k - above - 1], dtype=x.dtype)
        return np.asarray(group.value(x.dtype))

    def within(self, x: Distant, threshold: Any) -> tuple[Any, Any, Any, Any]:
        limit = float(threshold)
        counts, squares, largest = zip(*x.each(magnitudes.within, limit), strict=True)
        kept: Any = Within(x.whole, limit)
        return kept, sum(counts), sum(squares), np.asarray(max(largest), dtype=x.dtype)

    def kept_squares(self, x: Distant, kept: Any) -> Array:
        return np.asarray(x.data.operator.squares(x.whole, x, kept), dtype=x.dtype)
