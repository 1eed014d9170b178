"""Recognise entries and rows of a fit, so that a model is not scored on its own data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..kernels import numbered
from .local_observations import LocalObservations
from .packing import host


def in_common(data: LocalObservations, fitted: LocalObservations) -> tuple[Any, bool, bool]:
    """Compare entries with those of a fit at the same coordinates.

    They are the same if the values agree far more often than values of different rows.

    Returns
    -------
    seen : boolean array
        Which entries are at coordinates of fitted ones.
    same : bool
        Whether their values are the same.
    alike : bool
        Whether their values are at least similar.
    """
    index = [tuple(host(i) for i in c.coordinates) for c in (data, fitted)]
    here, there = (np.asarray(numbered(i, data.shape)) for i in index)
    order = np.argsort(there, kind="stable")
    place = np.minimum(np.searchsorted(there[order], here), len(there) - 1)
    seen = there[order][place] == here
    if not seen.any():
        return seen, False, False
    new, old = host(data.flat)[seen], host(fitted.flat)[order][place][seen]
    fibre = np.asarray(numbered(index[0], data.shape, skip=0))[seen]
    column = np.unique(fibre, return_inverse=True)[1]
    # the value that another row has in the same column
    turn = np.argsort(column, kind="stable")
    other = np.empty_like(old)
    other[turn] = np.roll(old[turn], 1)

    def agreement(x: Any) -> float:
        return float(np.mean(np.abs(new - x) <= 1e-6 * np.abs(x)))

    def centred(x: Any) -> Any:
        return x - (np.bincount(column, x) / np.bincount(column))[column]

    chance = agreement(other)
    same = agreement(old) - chance > 0.9 * (1 - chance) or chance == agreement(old) == 1
    a, b = centred(new), centred(old)
    return seen, same, bool(float(a @ b) > 0.5 * math.sqrt(float(a @ a) * float(b @ b)) > 0)


def remembered(data: LocalObservations, fitted: LocalObservations) -> bool:
    """Whether rows are those of the fit, more often than by chance."""
    (now, several), (then, also) = row_marks(data), row_marks(fitted)
    if not several.any():
        return False
    _, place, times = np.unique(then[also], return_inverse=True, return_counts=True)
    usual = float((times[place] > 1).mean()) if len(place) else 0.0
    return bool(np.isin(now[several], then[also]).mean() > max(0.5, usual + 0.25))


def row_marks(data: LocalObservations) -> tuple[Any, Any]:
    """A number that identifies every row, and whether the row has two entries."""
    index = tuple(host(i) for i in data.coordinates)
    where = numbered(index, data.shape, skip=0).astype(np.uint64)
    # in single precision, because the same row may have been rounded differently
    bits = (host(data.flat) + 0.0).astype(np.float32).view(np.uint32).astype(np.uint64)
    mixed = (where + np.uint64(0x9E3779B97F4A7C15)) * (bits | np.uint64(1))
    mixed = (mixed ^ (mixed >> np.uint64(29)) ^ bits) * np.uint64(0xBF58476D1CE4E5B9)
    marks = np.zeros(data.shape[0], dtype=np.uint64)
    np.add.at(marks, index[0], mixed ^ (mixed >> np.uint64(32)))
    return marks, np.bincount(index[0], minlength=data.shape[0]) > 1


def some_of_each_row(rows: Any) -> Any:
    """A fifth of the entries of every row, at least one if there are two; always the same."""
    u = np.random.default_rng(0).random(len(rows))
    order = np.lexsort((u, rows))
    starts = np.searchsorted(rows[order], rows[order])
    counts = np.bincount(rows)[rows[order]] if len(rows) else rows
    quota = np.where(counts > 1, np.maximum(1, counts // 5), 0)
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[order] = np.arange(len(rows)) - starts < quota
    return chosen
