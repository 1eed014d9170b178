"""Observed entries of NumPy arrays, multiplied by SciPy's sparse kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..linalg import adjoint, conj
from . import Index, Pattern

Array = Any


def scatter(rows: Array, values: Array, n: int) -> Array:
    """Add columns of values up: a sparse matrix with one 1 per column, times them."""
    from scipy.sparse import csc_array

    m = rows.shape[0]
    ones = np.ones(m, dtype=values.dtype)
    return csc_array((ones, rows, np.arange(m + 1)), shape=(n, m)) @ values.T


class CSRPattern(Pattern):
    """Entries of a matrix, sorted by rows once; weights are permuted at each product, if at all."""

    def __init__(self, index: Index, shape: tuple[int, ...]) -> None:
        super().__init__(index, shape)
        i, j = index
        small = max(*shape, i.shape[0]) < np.iinfo(np.int32).max
        dtype = np.int32 if small else np.int64
        ordered = bool(np.all((i[1:] > i[:-1]) | ((i[1:] == i[:-1]) & (j[1:] > j[:-1]))))
        self.order = None if ordered else np.lexsort((j, i))
        self.columns = (j if self.order is None else j[self.order]).astype(dtype)
        self.starts = np.zeros(shape[0] + 1, dtype=dtype)
        np.cumsum(np.bincount(i, minlength=shape[0]), out=self.starts[1:])

    def contract(self, weights: Array, modes: tuple[Array, ...], skip: int | None = None) -> Array:
        from scipy.sparse import csr_array

        values = weights if self.order is None else weights[self.order]
        n1, n2 = self.shape
        Z = csr_array((values, self.columns, self.starts), shape=(n1, n2))
        if skip == 1:
            return (Z.T @ conj(modes[0])).T
        ZM = Z @ conj(modes[1])
        return ZM if skip == 0 else adjoint(modes[0]) @ ZM
