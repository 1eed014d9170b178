"""Choose entries at random by a hash of their coordinates.

The choice depends on the seed and the coordinates only: not on the order of the entries, nor on
the array library, nor on how the entries are distributed over machines.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

Array = Any
Index = tuple[Array, ...]

MOST = 195_000
"""Largest expected number of held-out entries, so that there are hardly ever 200,000."""

_BITS = 53


def _signed(x: int) -> int:
    """A 64-bit number as a signed one, because all array libraries have signed integers."""
    x &= (1 << 64) - 1
    return x - (1 << 64) if x >> 63 else x


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shifted(x: Array, by: int) -> Array:
    """A logical right shift; that of signed numbers copies their sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _mixed(x: Array) -> Array:
    """The finaliser of SplitMix64."""
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def hashed(index: Index, seed: int) -> Array:
    """Return a uniform integer below 2⁵³ for every entry.

    Parameters
    ----------
    index : tuple of integer arrays of shape (m,), one per mode
    seed : int

    Returns
    -------
    array of int64 of shape (m,)
    """
    xp = array_namespace(*index)
    x = xp.zeros_like(index[0], dtype=xp.int64) + _signed(seed * _GOLDEN)
    for i in index:
        x = _mixed((x ^ xp.astype(i, xp.int64)) + _GOLDEN)
    return _shifted(x, 64 - _BITS)


def bounds_of(fraction: float, size: int, parts: int) -> list[int]:
    """Return the ranges of hashes of disjoint choices of a fraction of `size` entries."""
    share = min(fraction, MOST / max(size, 1))
    return [int(share * k * 2**_BITS) for k in range(parts + 1)]


def chosen_by_hash(index: Index, fraction: float, seed: int, parts: int) -> list[Array]:
    """Return disjoint choices of a fraction of the entries, each a boolean array of shape (m,)."""
    bounds = bounds_of(fraction, index[0].shape[0], parts)
    x = hashed(index, seed)
    return [(x >= bounds[k]) & (x < bounds[k + 1]) for k in range(parts)]
