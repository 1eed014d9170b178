"""Observed entries of NumPy arrays, multiplied by SciPy's sparse kernels."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Any

import numpy as np

from ..linalg import adjoint, conj
from . import Design, Index, Pattern, Rows

Array = Any


def scatter(rows: Array, values: Array, n: int) -> Array:
    """Add columns of values up: a sparse matrix with one 1 per column, times them."""
    from scipy.sparse import csc_array

    m = rows.shape[0]
    ones = np.ones(m, dtype=values.dtype)
    return csc_array((ones, rows, np.arange(m + 1)), shape=(n, m)) @ values.T


def part_of(index: Index, shape: tuple[int, ...]) -> list[Array]:
    """For every mode the number of the part that each slice is in.

    Parts are those of the graph that joins the slices that share an entry; a slice without
    entries is one of its own.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    offsets = np.concatenate([[0], np.cumsum(shape)])
    total = int(offsets[-1])
    ends = [(index[0], index[k] + offsets[k]) for k in range(1, len(index))]
    rows, columns = (np.concatenate(side) for side in zip(*ends, strict=True))
    ones = np.ones(len(rows), dtype=bool)
    edges = coo_array((ones, (rows, columns)), shape=(total, total))
    labels = connected_components(edges.tocsr(), directed=False)[1]
    return [labels[a:b] for a, b in itertools.pairwise(offsets)]


def parts(index: Index, shape: tuple[int, ...]) -> int:
    """How many parts there are, those without entries left out."""
    labels = part_of(index, shape)
    return len(np.unique(labels[0][index[0]]))


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

    def row_grams(self, design: Design, mode: int, first: int, last: int, weights: Any) -> Array:
        """One sparse product with the products of two columns each."""
        if not isinstance(design, Rows):
            return super().row_grams(design, mode, first, last, weights)
        from scipy.sparse import csr_array

        order, starts, columns = self._by(mode)
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

    def _by(self, mode: int) -> tuple[Array, Array, Array]:
        """The order of the entries, where rows start and the columns, of this or its transpose."""
        if mode == 0:
            return self.order, self.starts, self.columns
        order, starts = self.sorted(1)
        return order, starts, self._transposed

    @cached_property
    def _transposed(self) -> Array:
        return self.index[0][self.sorted(1)[0]].astype(self.columns.dtype)
