"""Entries in order, in time proportional to their number.

Slices are small integers, so entries are counted into place. Comparing keys, as `numpy.argsort`
does, takes four times as long for millions of entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csc_array, csr_array

Array = Any

WIDE = 8
"""Places along the other mode, for each entry or slice, beyond which entries are compared."""


def counted_order(slices: Array, n: int) -> tuple[Array, Array]:
    """Return where entries go when they are sorted by slice, and where every slice begins.

    Parameters
    ----------
    slices : integer array of shape (m,)
        Below n.
    n : int

    Returns
    -------
    order : integer array of shape (m,)
        Entries of one slice stay in the order they have.
    starts : integer array of shape (n + 1,)
    """
    m = len(slices)
    numbers = np.arange(m, dtype=np.int32 if m < 2**31 else np.int64)
    row = csr_array((numbers, slices, np.asarray([0, m])), shape=(1, n)).tocsc()
    return row.data, row.indptr


def by_slice(
    own: Array, others: Array, y: Array, shape: tuple[int, int]
) -> tuple[Array, Array, Array]:
    """Sort entries by slice, and within a slice along the other mode.

    Parameters
    ----------
    own, others : integer arrays of shape (m,)
        Coordinates along the mode of the slices, and along the other one.
    y : array of shape (m,)
    shape : (n, width)
        What they are below.

    Returns
    -------
    starts : int64 array of shape (n + 1,)
    others : array of shape (m,), of the type of `others`
    y : array of shape (m,)
    """
    kind, (n, width) = others.dtype, shape
    if width > WIDE * max(n, len(y)):  # cells of several modes: too many to count into
        order = np.lexsort((others, own))
        starts = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=n))])
        return starts.astype(np.int64), others[order], y[order]
    if bool(np.all(others[1:] >= others[:-1])):
        starts = np.concatenate([[0], np.cumsum(np.bincount(others, minlength=width))])
    else:
        order, starts = counted_order(others, width)
        own, y = own[order], y[order]
    # a matrix whose columns are in order is turned into one whose rows are
    table = csc_array((y, own, starts), shape=(n, width)).tocsr()
    return table.indptr.astype(np.int64), table.indices.astype(kind, copy=False), table.data


def repeated(starts: Array, others: Array) -> Array:
    """Return which entries that are in order are like the one before them.

    Parameters
    ----------
    starts : integer array of shape (n + 1,)
    others : integer array of shape (m,)

    Returns
    -------
    integer array
    """
    same = others[1:] == others[:-1]
    first = starts[1:-1]
    same[first[(first > 0) & (first < len(others))] - 1] = False
    return np.flatnonzero(same) + 1
