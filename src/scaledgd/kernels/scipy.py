"""NumPy arrays, multiplied by SciPy's sparse kernels."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Any

import numpy as np

from ..linalg import adjoint, conj
from .design import Design, Index, Rows
from .entries import Pattern
from .generic import Generic

Array = Any


class SciPy(Generic):
    """Products of observed entries by SciPy, order statistics by NumPy."""

    name = "scipy"

    def pattern(self, index: Index, shape: tuple[int, ...]) -> Pattern:
        return SciPyPattern(index, shape, self)

    def scatter(self, rows: Array, values: Array, n: int) -> Array:
        """Multiply a sparse matrix that has one 1 per column by the values."""
        from scipy.sparse import csc_array

        m = rows.shape[0]
        ones = np.ones(m, dtype=values.dtype)
        return csc_array((ones, rows, np.arange(m + 1)), shape=(n, m)) @ values.T

    def sums(self, rows: Array, values: Array | None, n: int, like: Array) -> Array:
        if values is not None and values.dtype.kind != "f":
            return super().sums(rows, values, n, like)
        return np.bincount(rows, values, n).astype(like.dtype, copy=False)

    def kth_largest(self, x: Array, k: int, axis: int) -> Array:
        n = x.shape[axis]
        return np.take(np.partition(x, n - k, axis=axis), [n - k], axis=axis)

    def labels(self, index: Index, shape: tuple[int, ...]) -> list[Array]:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        offsets = np.concatenate([[0], np.cumsum(shape)])
        total = int(offsets[-1])
        ends = [(index[0], index[k] + offsets[k]) for k in range(1, len(index))]
        rows, columns = (np.concatenate(side) for side in zip(*ends, strict=True))
        ones = np.ones(len(rows), dtype=bool)
        edges = coo_array((ones, (rows, columns)), shape=(total, total))
        found = connected_components(edges.tocsr(), directed=False)[1]
        return [found[a:b] for a, b in itertools.pairwise(offsets)]


class SciPyPattern(Pattern):
    """Entries sorted by row; for matrices, products are those of a CSR matrix."""

    @cached_property
    def _index_dtype(self) -> Any:
        small = max(*self.shape, self.index[0].shape[0]) < np.iinfo(np.int32).max
        return np.int32 if small else np.int64

    @cached_property
    def _rows(self) -> tuple[Array | None, Array, Array]:
        """The order of the entries, where rows start, and the columns in that order.

        The order is None if the entries are already sorted.
        """
        i, j = self.index
        ordered = bool(np.all((i[1:] > i[:-1]) | ((i[1:] == i[:-1]) & (j[1:] > j[:-1]))))
        order = None if ordered else np.lexsort((j, i))
        columns = (j if order is None else j[order]).astype(self._index_dtype)
        starts = np.zeros(self.shape[0] + 1, dtype=self._index_dtype)
        np.cumsum(np.bincount(i, minlength=self.shape[0]), out=starts[1:])
        return order, starts, columns

    @cached_property
    def _columns(self) -> tuple[Array, Array, Array]:
        """The same for the transpose."""
        order, starts = self.sorted(1)
        return order, starts, self.index[0][order].astype(self._index_dtype)

    def contract(self, weights: Array, modes: tuple[Array, ...], skip: int | None = None) -> Array:
        if len(self.shape) != 2:
            return super().contract(weights, modes, skip)
        from scipy.sparse import csr_array

        order, starts, columns = self._rows
        Z = csr_array((weights if order is None else weights[order], columns, starts), self.shape)
        if skip == 1:
            return (Z.T @ conj(modes[0])).T
        ZM = Z @ conj(modes[1])
        return ZM if skip == 0 else adjoint(modes[0]) @ ZM

    def row_grams(self, design: Design, mode: int, first: int, last: int, weights: Any) -> Array:
        """Multiply one sparse matrix by the products of pairs of columns."""
        if not isinstance(design, Rows) or len(self.shape) != 2:
            return super().row_grams(design, mode, first, last, weights)
        from scipy.sparse import csr_array

        order, starts, columns = self._rows if mode == 0 else self._columns
        begin, end = starts[first], starts[last]
        part = slice(begin, end)
        if weights is None:
            values = np.ones(end - begin, dtype=design.M.dtype)
        else:
            values = weights[part if order is None else order[part]]
        size = (last - first, self.shape[1 - mode])
        P = csr_array((values, columns[part], starts[first : last + 1] - begin), shape=size)
        a, b = np.triu_indices(design.M.shape[1])
        upper = P @ (design.M[:, a] * conj(design.M[:, b]))
        G = np.empty((last - first, *2 * design.M.shape[1:]), dtype=upper.dtype)
        G[:, a, b] = upper
        G[:, b, a] = conj(upper)
        return G
