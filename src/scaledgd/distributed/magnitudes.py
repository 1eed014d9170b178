"""What workers compute about the magnitudes of values and residuals of one shard."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..kernels import backend
from .shards import Chain, Shard
from .tasks import Other, Own, factors_of, residual_of

Array = Any

COUNTED = 16
"""Bits of magnitudes that are counted by at a time."""


def within(
    shard: Shard, own: Own | None, other: Other | None, chain: Chain, limit: float
) -> tuple[int, float, float]:
    """Return how many residuals do not exceed a limit, their squares, and the largest of them."""
    r = residual_of(shard, own, other, chain)
    _, count, squares, largest = backend(r).within(r, limit)
    return int(count), float(squares), float(largest)


class Group(NamedTuple):
    """Magnitudes with the same leading bits.

    Attributes
    ----------
    known : int
        How many bits.
    bits : int
        The number that they are.
    """

    known: int = 0
    bits: int = 0

    def within(self, number: int) -> Group:
        """Return the group with more leading bits."""
        return Group(self.known + COUNTED, (self.bits << COUNTED) | number)

    def value(self, dtype: Any) -> Any:
        """Return the magnitude, once all bits are known."""
        kind = np.dtype(f"u{np.dtype(dtype).itemsize}")
        return np.asarray(self.bits, dtype=kind).view(dtype)[()]


def magnitudes(
    shard: Shard, own: Own | None, group: Group, other: Other | None, chain: Chain
) -> Array:
    """Count the residuals of a group by their next bits."""
    bits, left = _bits_in(residual_of(shard, own, other, chain), group)
    kind = bits.dtype.type
    next_ones = (bits >> kind(left - COUNTED)) & kind((1 << COUNTED) - 1)
    return np.bincount(next_ones.astype(np.int64), minlength=1 << COUNTED)


def magnitudes_in(
    shard: Shard, own: Own | None, other: Other | None, chain: Chain, group: Group
) -> Array:
    """Return the magnitudes of the residuals of a group."""
    r = residual_of(shard, own, other, chain)
    return _bits_in(r, group)[0].view(r.dtype)


def _bits_in(r: Array, group: Group) -> tuple[Array, int]:
    """The bits of magnitudes, which have the same order, and how many of them are unknown."""
    kind = np.dtype(f"u{r.dtype.itemsize}").type
    bits, left = np.abs(r).view(kind), 8 * r.dtype.itemsize - group.known
    if group.known:
        bits = bits[(bits >> kind(left)) == kind(group.bits)]
    return bits, left


def rows_without_outliers(
    shard: Shard, own: Own, ridge: Array | None, other: Other, chain: Chain, floor: float
) -> Array:
    """Return the rows of the shard solved again, each without its outliers."""
    F, mode = factors_of(shard, own, other), shard.mode
    return shard.local(chain).rows_without_outliers(F, mode, floor, ridge).blocks[mode]


def spreads(shard: Shard, chain: Chain) -> tuple[Array, Array]:
    """Return the medians of all slices, and the median distances to them."""
    return shard.local(chain).spreads(shard.mode)


def outside(shard: Shard, chain: Chain, *ends: Any) -> bool:
    """Return whether some value is not between the ends of its slice."""
    return shard.local(chain).outside(*shard.cut_all(ends))
