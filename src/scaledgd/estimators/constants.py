"""Constant rows, columns and slices: their holes are filled with the constant, exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from ..linalg import like
from .local_observations import LocalObservations
from .observations import Observations
from .packing import host

Array = Any
Levels = tuple[Array | None, ...]

CHANCE = 0.01
"""Probability that some line of a table is taken as constant because its values agree by chance."""

FEW = 16
"""Stride of the entries that are compared first."""

MANY = 2**20
"""Number of entries that are compared at a time."""

FEWEST = 4
"""Number of entries that a row needs to count as constant."""


def column_levels(data: LocalObservations) -> Array | None:
    """Return the constant of every column, NaN where there is none; None if no column has one.

    A column whose entries are equal is constant, unless the value is so common in other columns
    that some column may well have no other value by chance. A single column is as good as constant:
    its level is its mean.

    Parameters
    ----------
    data : LocalObservations
        Of shape (n1, n2).

    Returns
    -------
    levels : array of shape (n2,), optional
    """
    if data.shape[1] == 1 and data.size:
        first = data.flat[:1]
        # rounding may change the mean of equal numbers
        same = bool(array_namespace(first).all(data.flat == first[0]))
        return first if same else data.means(1)
    return _levels_of(data, 1)


def slice_levels(data: LocalObservations) -> Levels:
    """Return the constants of the slices of every mode of a tensor but the first.

    Parameters
    ----------
    data : LocalObservations
        Of shape (n1, ..., nd).

    Returns
    -------
    levels : tuple of arrays or None, one per mode
    """
    return (None, *(_levels_of(data, mode) for mode in range(1, len(data.shape))))


def _levels_of(data: LocalObservations, mode: int) -> Array | None:
    value, count = equal(data, mode)
    if not count.any():
        return None
    share, some = np.ones(len(value)), count > 0
    # Jeffreys' estimate of how common the value is in other lines
    others = common(data, value[some]) - count[some]
    share[some] = (others + 0.5) / (data.size - count[some] + 1)
    return _levels(value, count, share, data)


def row_levels(data: LocalObservations, known: LocalObservations) -> Array | None:
    """Return the constant of every row, as `column_levels` does.

    Each depends only on the row and on the entries of the fit. Entries of different columns may
    agree more easily than those of one column, so a few of them are not enough evidence.

    Parameters
    ----------
    data : LocalObservations
        Of shape (n, n2).
    known : LocalObservations
        The entries of the fit.

    Returns
    -------
    levels : array of shape (n,), optional
    """
    if known.shape[0] == 1 and known.size and data.shape[1] > 1:
        xp = array_namespace(data.y)
        counts = data.counts(0)
        return xp.where(counts > 0, data.means(0), counts + known.means(0)[0])
    value, count = equal(data, 0)
    if not count.any():
        return None
    count = np.where(count >= FEWEST, count, 0)
    share, some = np.ones(len(value)), count > 0
    share[some] = (common(known, value[some]) + 1) / (known.size + 1)
    return _levels(value, count, share, known)


def equal(data: LocalObservations, mode: int) -> tuple[Any, Any]:
    """Return a value of every line, and how often it occurs if the line has no other, or 0.

    As NumPy arrays, because there are only as many as lines.
    """
    if not isinstance(data, LocalObservations):
        found: tuple[Any, Any] = data.equal(mode)
        return found
    xp, n = array_namespace(data.y), data.shape[mode]
    if data.index is None:
        lines, others = xp.moveaxis(data.y, mode, 0), tuple(range(1, len(data.shape)))
        each = data.size // n
        first = lines[:, *(0 for _ in others)]
        # two entries rule out nearly all lines
        same = host(first == lines[:, *(lines.shape[k] // 2 for k in others)])
        # none of them, as a rule: a choice of none would copy columns that are not in one piece
        parts = -(-same.sum() * each // MANY)
        for some in np.array_split(np.flatnonzero(same), parts) if parts else ():
            chosen = xp.take(lines, xp.asarray(some, device=device(lines)), axis=0)
            level = chosen[:, *(slice(1) for _ in others)]
            same[some] = host(xp.all(chosen == level, axis=others))
        value, count = host(first).copy(), np.where(same, each, 0)
    elif is_torch_array(data.y):
        first = xp.zeros(n, dtype=data.y.dtype, device=device(data.y))
        first[data.index[mode]] = data.y
        differ = data.number(mode, data.y != xp.take(first, data.index[mode]))
        value, count = host(first), np.where(host(differ) > 0, 0, host(data.counts(mode)))
    else:
        line = data.index[mode]
        value = np.zeros(n, dtype=data.y.dtype)
        other = np.zeros(n, dtype=np.bool_)
        few = slice(None, None, FEW)  # which rule out nearly all lines
        value[line[few]] = data.y[few]
        other[line[few][data.y[few] != value[line[few]]]] = True
        if not other.all():
            value[line] = data.y
            for rows, y in data.stretches(mode):
                other[rows[y != value[rows]]] = True
        count = np.where(other, 0, host(data.counts(mode)).astype(np.int64))
    return value, np.where(count > 1, count, 0)


def common(data: LocalObservations, values: Any) -> Any:
    """Return how often values occur in the data."""
    if not isinstance(data, LocalObservations):
        return data.common(values)
    xp = array_namespace(data.y)
    ordered, values = xp.sort(data.flat), like(values, data.y)
    ends, begins = (xp.searchsorted(ordered, values, side=side) for side in ("right", "left"))
    return host(ends - begins)


def _levels(value: Any, count: Any, share: Any, data: LocalObservations) -> Array | None:
    if data.size and _all_equal(data, value[count > 0]):
        constant = count > 0
    else:
        constant = (count > 0) & (share**count * len(value) < CHANCE)
    if not constant.any():
        return None
    levels = np.where(constant, value, np.asarray(np.nan, dtype=value.dtype))
    return like(levels, data.example)


def _all_equal(data: LocalObservations, candidates: Any) -> bool:
    if not isinstance(data, LocalObservations):
        return bool(len(candidates)) and int(data.common(candidates[:1])[0]) == data.size
    return bool(array_namespace(data.y).all(data.flat == data.flat[0]))


def levelled(values: Array, levels: Levels, index: tuple[Array, ...] | None) -> Array:
    """Return estimates with the levels of slices filled in; those of later modes prevail.

    Parameters
    ----------
    values : array of shape (m,), or of the whole shape with index=None
    levels : tuple of arrays or None, one per mode
        NaN where a slice is not constant.
    index : tuple of integer arrays of shape (m,), one per mode, optional
    """
    xp = array_namespace(values)
    for mode, known in enumerate(levels):
        if known is not None:
            if index is not None:
                here = xp.take(known, index[mode])
            else:
                here = xp.reshape(known, [-1 if k == mode else 1 for k in range(len(levels))])
                here = here + 0 * values
            here = xp.astype(here, values.dtype, copy=False)
            values = xp.where(xp.isnan(here), values, here)
    return values


def varying(data: Observations, levels: Levels) -> int:
    """Return how many entries are outside constant slices, which say nothing about other slices.

    It is a lower bound if constant slices of different modes share entries.

    Parameters
    ----------
    data : Observations
    levels : tuple of arrays or None, one per mode
    """
    left = data.size
    for mode, known in enumerate(levels):
        if known is not None:
            left -= int(np.sum(host(data.counts(mode))[~np.isnan(host(known))]))
    return max(0, left)


def varying_at(fit: LocalObservations, test: LocalObservations) -> Array:
    """Return which held-out entries are outside the constant slices of the others.

    Parameters
    ----------
    fit : LocalObservations
    test : LocalObservations
        The held-out entries.

    Returns
    -------
    varying : boolean array of shape (m,)
    """
    if len(fit.shape) == 2:
        levels: Levels = (row_levels(fit, fit), column_levels(fit))
    else:
        levels = slice_levels(fit)
    nowhere = test.flat + math.nan
    return array_namespace(nowhere).isnan(levelled(nowhere, levels, test.coordinates))


def unlike(outliers: Any, levels: Levels) -> Any:
    """Return outliers without the entries of slices that are constant, and estimated so.

    Parameters
    ----------
    outliers : sparse array in coordinates
    levels : tuple of arrays or None, one per mode
    """
    keep = np.ones(outliers.nnz, dtype=bool)
    for known, index in zip(levels, outliers.coords, strict=True):
        if known is not None:
            keep &= np.isnan(host(known))[index]
    if keep.all():
        return outliers
    some = outliers.data[keep], tuple(index[keep] for index in outliers.coords)
    return type(outliers)(some, shape=outliers.shape)
