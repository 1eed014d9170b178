"""An order of rows and columns that depends on the values alone.

Starts are random and held-out entries are drawn. Both follow this order in place of the one in
which rows and columns happen to be given, so that the answer does not depend on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .packing import host

Array = Any

ROUNDS = 2
"""Refinements, each of which tells rows apart by the columns in which their values are."""

BITS = 30
"""Bits of the integers that are summed: sums are exact, and do not depend on their order."""


def ranks_by_value(y: Array, index: tuple[Array, Array], shape: tuple[int, int]) -> list[Any]:
    """Return the position of every row and column in an order that depends on values only.

    Equal rows keep their order, which changes nothing.

    Parameters
    ----------
    y : array of shape (m,)
        Values of magnitude about one.
    index : pair of integer arrays of shape (m,)
    shape : (n1, n2)
    """
    i, j = (host(k) for k in index)
    y = host(y).astype(np.float64)
    y = y / (1 + np.abs(y))  # division rounds alike everywhere
    sides = ((i, shape[0]), (j, shape[1]))
    keys = [np.bincount(k, _whole(y + 0.25), n) for k, n in sides]
    for _ in range(ROUNDS):
        places = [_shares(key) for key in keys]
        mixed = [y * places[1][j], y * places[0][i]]
        keys = [
            key + np.bincount(k, _whole(x), n)
            for key, x, (k, n) in zip(keys, mixed, sides, strict=True)
        ]
    return [np.argsort(np.argsort(key, kind="stable"), kind="stable") for key in keys]


def _whole(x: Any) -> Any:
    return np.rint(x * 2.0**BITS)


def _shares(key: Any) -> Any:
    """The rank of every key among the distinct ones, as a share of their number."""
    distinct, place = np.unique(key, return_inverse=True)
    return (place + 1.0) / (len(distinct) + 1.0)
