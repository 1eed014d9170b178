"""Observed entries of any arrays of the standard: the reference the other kernels are held to."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device

Array = Any


def scatter(rows: Array, values: Array, n: int) -> Array:
    """Add columns of values up within sorted runs, by doubling.

    The standard has no scattered addition. Doubling takes log2(longest run) passes and
    adds in a tree, so it is also the most accurate.
    """
    xp = array_namespace(values)
    order = xp.argsort(rows, stable=True)
    rows, total = xp.take(rows, order), xp.take(values.T, order, axis=0)
    step = 1
    while step < total.shape[0] and bool(xp.any(rows[step:] == rows[:-step])):
        same = xp.astype(rows[step:] == rows[:-step], total.dtype)[:, None]
        total = xp.concat([total[:-step, :] + same * total[step:, :], total[-step:, :]])
        step *= 2
    # the first entry of each run now holds its sum; rows without entries get zero
    every = xp.arange(n, dtype=rows.dtype, device=device(rows))
    first = xp.searchsorted(rows, every)
    first = xp.where(first < rows.shape[0], first, xp.zeros_like(first))
    found = xp.astype(xp.take(rows, first) == every, total.dtype)[:, None]
    return found * xp.take(total, first, axis=0)
