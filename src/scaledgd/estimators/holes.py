"""Hold out entries that resemble the missing ones.

Held-out entries stand for the missing ones. If gaps are runs in time, whole days or groups of
sensors, single entries drawn at random are easier to predict than the missing ones, because their
neighbours are observed. So the holes of another row, some rows away, are copied to each row, and
its entries there are held out. This preserves runs along columns, and columns that are missing
together.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .hashing import MOST, chosen_by_hash
from .packing import host

Array = Any
Index = tuple[Array, ...]

DENSEST = 0.5
"""Share of missing entries above which the observed ones, not the holes, are the pattern."""

LARGEST = 20_000_000
"""Number of entries above which holes are not examined."""

MOST_OF_COLUMN = 0.5
"""Largest share of the observed entries of a column that is held out: without an entry, nothing is
known about it."""

WIDEST = 0.2
"""Largest share of the observed entries that is held out."""


def held_out(
    index: Index, shape: tuple[int, ...], fraction: float, seed: int, parts: int
) -> list[Array]:
    """Return disjoint choices of observed entries, each a boolean array of shape (m,).

    Parameters
    ----------
    index : tuple of integer arrays of shape (m,), one per mode
    shape : tuple of int
    fraction : float
        Approximate share of the entries in each choice.
    seed : int
    parts : int
    """
    holes = _holes(index, shape)
    if holes is None:
        return chosen_by_hash(index, fraction, seed, parts)
    found = moved_holes(holes, fraction, seed, parts)
    if any(part.sum() < min(0.3 * fraction, 0.01) * (~holes).sum() for part in found):
        return chosen_by_hash(index, fraction, seed, parts)
    xp, flat = array_namespace(*index), _numbers(index, shape)
    return [xp.asarray(part.ravel()[flat], device=device(index[0])) for part in found]


def in_time(index: Index, stamps: tuple[Any, ...]) -> Index:
    """Return coordinates as they would be if rows, or columns, with times were in their order.

    Parameters
    ----------
    index : tuple of integer arrays of shape (m,), one per mode
    stamps : tuple of numpy arrays of shape (n_k,) or None
        Times along the modes; empty if there are none.
    """
    found = list(index)
    for mode, known in enumerate(stamps):
        if known is None or bool(np.all(known[:-1] <= known[1:])):
            continue
        i, place = index[mode], np.argsort(np.argsort(known, kind="stable"))
        xp = array_namespace(i)
        found[mode] = xp.take(xp.asarray(place, device=device(i)), i)
    return tuple(found)


def _numbers(index: Index, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.asarray(np.ravel_multi_index(tuple(host(i) for i in index), shape))


def _holes(index: Index, shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """Where entries are missing, if the holes are larger than single entries."""
    size, seen = math.prod(shape), index[0].shape[0]
    if size > LARGEST or not (1 - DENSEST) * size <= seen < size:
        return None
    holes = np.ones(size, dtype=bool)
    holes[_numbers(index, shape)] = False
    holes = holes.reshape(shape)
    return holes if any(_in_runs(holes, mode) for mode in range(len(shape))) else None


def _in_runs(holes: np.ndarray[Any, Any], mode: int) -> bool:
    """Whether neighbours along a mode are missing together more often than other slices are."""
    along = np.moveaxis(holes, mode, 0).reshape(holes.shape[mode], -1)
    both = int((along[:-1] & along[1:]).sum())
    counts = along.sum(axis=0, dtype=float)
    if holes.ndim > 2:
        # fibres that are missing as a whole, and are predicted from other slices
        lost = int((counts == len(along)).sum())
        if lost > 3 + 2 * holes.mean() ** len(along) * along.shape[1]:
            return True
    chance = float((counts * (counts - 1)).sum()) / len(along)
    return both > 1.3 * chance + 4 * math.sqrt(chance) + 4


def moved_holes(
    holes: np.ndarray[Any, Any], fraction: float, seed: int, parts: int
) -> list[np.ndarray[Any, Any]]:
    """Observed entries where other rows have holes, disjoint parts."""
    rng, n = np.random.default_rng(seed), holes.shape[0]
    seen = ~holes
    wanted = min(fraction, MOST / max(1, int(seen.sum()))) * seen.sum()
    taken, found = holes.copy(), []
    shifts = rng.permutation(np.arange(1, n)) if n > 1 else np.zeros(1, dtype=int)
    tried = 0
    for _ in range(parts):
        part = np.zeros_like(holes)
        while part.sum() < 0.7 * wanted and tried < min(len(shifts), 30 * parts):
            fresh = np.roll(holes, int(shifts[tried]), axis=0) & ~taken & ~part
            tried += 1
            most = max(wanted, WIDEST * seen.sum()) - part.sum()
            if fresh.sum() > most:
                # only some adjacent rows, but all of their holes
                start = int(rng.integers(n))
                counts = fresh.reshape(n, -1).sum(axis=1)
                order = (start + np.arange(n)) % n
                inside = np.cumsum(counts[order]) <= most
                rows = np.zeros(n, dtype=bool)
                rows[order[inside]] = True
                fresh = fresh & rows.reshape((n,) + (1,) * (holes.ndim - 1))
            part |= _thinned(fresh, part, seen, int(shifts[tried - 1]))
        taken |= part
        found.append(part)
    return found


def _thinned(fresh: Array, part: Array, seen: Array, start: int) -> Array:
    """Those of some fresh entries of a table that leave others in every column.

    Rows count from `start`, in all columns alike, so that what is missing together stays together.
    Fibres of tensors may be missing as a whole.
    """
    if seen.ndim > 2:
        return fresh
    room = MOST_OF_COLUMN * seen.sum(axis=0) - part.sum(axis=0)
    if not np.any(fresh.sum(axis=0) > room):
        return fresh
    order = (start + np.arange(len(seen))) % len(seen)
    kept = np.zeros_like(fresh)
    kept[order] = fresh[order] & (np.cumsum(fresh[order], axis=0) <= room)
    return kept
