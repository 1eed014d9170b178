"""Reduce large tables to blocks of rows and columns, at most one per pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any

PIXELS = 600
"""Largest number of rows and columns of an image; larger tables are drawn in blocks."""


def block_edges(n: int, most: int | None = None) -> Array:
    """Return where the blocks of n rows begin, followed by n.

    Parameters
    ----------
    n : int
    most : int, optional
        Largest number of blocks, by default PIXELS.

    Returns
    -------
    int array of shape (blocks + 1,)
    """
    return np.linspace(0, n, min(n, most or PIXELS) + 1).round().astype(np.int64)


def cell_sums(
    index: Sequence[Array], shape: Sequence[int], weights: Array = None, most: int | None = None
) -> Array:
    """Return the sums of single cells over blocks of a table.

    Parameters
    ----------
    index : pair of int arrays of shape (m,)
        Rows and columns of the cells.
    shape : (n1, n2)
    weights : array of shape (m,), optional
        Values of the cells; by default the cells are counted.
    most : int, optional
        Largest number of blocks along a side, by default PIXELS.

    Returns
    -------
    array of shape (b1, b2)
    """
    edges = [block_edges(n, most) for n in shape]
    i, j = (np.searchsorted(e, k, side="right") - 1 for e, k in zip(edges, index, strict=True))
    blocks = tuple(len(e) - 1 for e in edges)
    flat = np.bincount(i * blocks[1] + j, weights, minlength=math.prod(blocks))
    return flat.reshape(blocks).astype(np.float64)


def cell_means(index: Sequence[Array], shape: Sequence[int], values: Array) -> Array:
    """Return the means of single cells over blocks of a table, NaN where a block has none.

    Parameters
    ----------
    index, shape : as of `cell_sums`
    values : array of shape (m,)

    Returns
    -------
    array of shape (b1, b2)
    """
    return _means(cell_sums(index, shape, values), cell_sums(index, shape))


def block_means(x: Array) -> Array:
    """Return the means of the finite values of blocks, NaN where a block has none.

    Parameters
    ----------
    x : array of shape (n,) or (n1, n2)
        A small array is returned as it is.

    Returns
    -------
    array of at most PIXELS rows and columns
    """
    if max(x.shape) <= PIXELS:
        return x
    known = np.isfinite(x)
    return _means(_reduced(np.add, np.where(known, x, 0.0)), _reduced(np.add, known.astype(float)))


def block_extremes(x: Array) -> Array:
    """Return the value of every block that is farthest from 0; means would hide single cells.

    Parameters
    ----------
    x : array of shape (n1, n2)

    Returns
    -------
    array of at most PIXELS rows and columns
    """
    if max(x.shape) <= PIXELS:
        return x
    high, low = _reduced(np.maximum, x), _reduced(np.minimum, x)
    return np.where(high >= -low, high, low)


def _means(sums: Array, counts: Array) -> Array:
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _reduced(ufunc: Any, x: Array) -> Array:
    """Reduce every axis to blocks."""
    for axis in range(x.ndim):
        x = ufunc.reduceat(x, block_edges(x.shape[axis])[:-1], axis=axis)
    return x
