"""What workers find among the entries of one shard: parts, common values, and what they join.

All functions are pure, as those of `tasks`.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ..estimators import constants
from ..estimators.hashing import bounds_of, hashed
from ..kernels import backend
from .shards import Chain, Shard

Array = Any

GROUPS = 1 << 16
"""Into which values are put to find those that are common."""
_GOLDEN = 0x9E3779B97F4A7C15


def fingerprint(shard: Shard) -> int:
    """Return a number that depends on the entries, but neither on their order nor on shards."""
    xp = array_namespace(shard.y)
    bits = xp.astype(shard.y, xp.float64).view(xp.int64)
    with np.errstate(over="ignore"):
        return int(xp.sum(hashed((*shard.places_in_whole, bits), 0))) & (2**63 - 1)


def reach(shard: Shard, places: tuple[Array, ...], length: int) -> Array:
    """Count entries by the largest of their places, where the slices of every mode are ordered."""
    reached = _reached(_placed(shard, places))
    return array_namespace(reached).bincount(reached, minlength=length)


def _reached(placed: tuple[Array, ...]) -> Array:
    return reduce(array_namespace(*placed).maximum, placed)


def _placed(shard: Shard, places: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(place[i] for place, i in zip(places, shard.places_in_whole, strict=True))


def nearest(shard: Shard, places: tuple[Array, ...], last: int, chain: Chain) -> tuple[Array, ...]:
    """Return the entries all of whose places are below `last`, renumbered, and their values."""
    placed = _placed(shard, places)
    chosen = _reached(placed) < last
    return *(i[chosen] for i in placed), shard.values(chain)[chosen]


def entries(shard: Shard, chosen: Array | None, chain: Chain) -> tuple[Array, ...]:
    """Return coordinates and values, of some slices of the shard's mode or of all."""
    found = *shard.places_in_whole, shard.values(chain)
    if chosen is None:
        return found
    own = found[shard.mode]
    inside = array_namespace(own).isin(own, chosen)
    return tuple(x[inside] for x in found)


def hidden(shard: Shard, fraction: float, size: int, seed: int, parts: int, part: int) -> Array:
    """Return which entries are held out, by a hash of their coordinates."""
    low, high = bounds_of(fraction, size, parts)[part : part + 2]
    x = hashed(shard.places_in_whole, seed)
    return (x >= low) & (x < high)


def held(shard: Shard, chain: Chain, *choice: Any) -> tuple[Array, ...]:
    """Return the entries that are held out."""
    chosen = hidden(shard, *choice)
    return tuple(x[chosen] for x in entries(shard, None, chain))


def kept(shard: Shard, *choice: Any) -> Shard:
    """Return the shard without the entries that are held out."""
    return shard.some(~hidden(shard, *choice))


# ---- what constants and graphs need


def equal(shard: Shard, chain: Chain) -> tuple[Array, Array]:
    """Return a value of every slice, and how often it occurs if the slice has no other."""
    return constants.equal(shard.local(chain), shard.mode)


def common(shard: Shard, values: Array, chain: Chain) -> Array:
    """Return how often values occur."""
    return constants.common(shard.local(chain), values)


def frequent(shard: Shard, share: float, chain: Chain) -> Array:
    """Return the values that make up at least a share of the shard."""
    y = shard.values(chain) + 0  # both zeros become one
    # values are counted together with others first: mostly no group is large enough
    group = _group(y)
    many = np.bincount(group, minlength=GROUPS) >= share * len(y)
    values, counts = np.unique(y[many[group]], return_counts=True)
    return values[counts >= share * shard.size]


def _group(y: Array) -> Array:
    """The number of a group that all equal values are in."""
    kind, factor = (np.uint32, 2654435769) if y.dtype.itemsize == 4 else (np.uint64, _GOLDEN)
    bits = 8 * y.dtype.itemsize - GROUPS.bit_length() + 1
    return ((y.view(kind) * kind(factor)) >> kind(bits)).astype(np.intp)


def joined(shard: Shard) -> tuple[Array, Array]:
    """Return the connected part of every slice, and that of every other one, within the shard.

    Slices of several other modes follow each other. −1 where there are no entries.
    """
    n, width = shard.slices, sum(shard.sizes)
    others = [i + first for i, first in zip(shard.beside, _firsts(shard.sizes), strict=True)]
    seen = np.zeros(width, dtype=bool)
    for i in others:
        seen[i] = True
    index = shard.index
    if backend(*index).parts(index, shard.shape) == 1:  # which is soon seen
        found = np.zeros(n + width, dtype=np.int32)
    else:
        own, ends = np.tile(shard.own, len(others)), np.concatenate(others)
        ones = np.ones(len(own), dtype=np.int8)
        edges = coo_array((ones, (own, n + ends)), shape=(n + width, n + width))
        found = connected_components(edges.tocsr(), directed=False)[1]
    own = np.where(np.diff(shard.starts) > 0, found[:n], -1)
    return own, np.where(seen, found[n:], -1)


def _firsts(sizes: tuple[int, ...]) -> list[int]:
    return [0, *np.cumsum(sizes[:-1]).tolist()]


def extremes(shard: Shard, chain: Chain) -> tuple[float, float]:
    """Return the smallest and the largest value."""
    y = shard.values(chain)
    return float(y.min()), float(y.max())
