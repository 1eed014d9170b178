"""Observed entries of any array of the standard: the reference the other kernels are held to."""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device

from ..linalg import adjoint, conj

Array = Any


class SegmentPattern:
    """Entries sorted by rows and by columns; each run is summed by doubling.

    The standard has no scattered addition. Pairwise doubling within the runs takes
    log2(longest run) passes and adds in a tree, so it is also the most accurate.
    """

    def __init__(self, index: tuple[Array, ...], shape: tuple[int, ...]) -> None:
        xp = array_namespace(*index)
        self.index, self.shape = index, shape
        self.orders = tuple(xp.argsort(i, stable=True) for i in index)

    def contract(self, weights: Array, modes: tuple[Array, ...], skip: int | None) -> Array:
        if skip == 1:
            return self._add(weights, conj(modes[0]), to=1).T
        ZM = self._add(weights, conj(modes[1]), to=0)
        return ZM if skip == 0 else adjoint(modes[0]) @ ZM

    def _add(self, weights: Array, M: Array, to: int) -> Array:
        """Row i of the result is Σ w M[j] over the entries (i, j), i along axis `to`."""
        xp = array_namespace(weights)
        order = self.orders[to]
        rows, columns = xp.take(self.index[to], order), xp.take(self.index[1 - to], order)
        total = xp.take(weights, order)[:, None] * xp.take(M, columns, axis=0)
        step = 1
        while step < total.shape[0] and bool(xp.any(rows[step:] == rows[:-step])):
            same = xp.astype(rows[step:] == rows[:-step], total.dtype)[:, None]
            total = xp.concat([total[:-step, :] + same * total[step:, :], total[-step:, :]])
            step *= 2
        # the first entry of each run now holds its sum; rows without entries get zero
        every = xp.arange(self.shape[to], dtype=rows.dtype, device=device(rows))
        first = xp.searchsorted(rows, every)
        first = xp.where(first < rows.shape[0], first, xp.zeros_like(first))
        found = xp.astype(xp.take(rows, first) == every, total.dtype)[:, None]
        return found * xp.take(total, first, axis=0)
