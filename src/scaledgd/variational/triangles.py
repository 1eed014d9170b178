"""Symmetric matrices as rows of numbers: their upper triangles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from array_api_compat import device

from ..namespaces import array_namespace

Array = Any
Places = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Triangle:
    """Positions of the numbers of an upper triangle.

    Attributes
    ----------
    width : int
        Of the square.
    rows, columns : integer arrays of shape (width (width + 1) / 2,)
        Of every number of the triangle.
    places : integer array of shape (width²,)
        The index in the triangle of each position of the square.
    """

    width: int
    rows: Places
    columns: Places
    places: Places

    def packed(self, S: Array) -> Array:
        """Return the triangles of squares, an array of shape (n, pairs)."""
        flat = array_namespace(S).reshape(S, (S.shape[0], -1))
        return taken(flat, self.rows * self.width + self.columns)

    def unpacked(self, T: Array) -> Array:
        """Return the squares of triangles, an array of shape (n, width, width)."""
        square = taken(T, self.places)
        return array_namespace(T).reshape(square, (-1, self.width, self.width))

    def counts(self, like: Array) -> Array:
        """Return how often every number of the triangle occurs in the square."""
        twice = np.where(self.rows == self.columns, 1.0, 2.0)
        return array_namespace(like).asarray(twice, dtype=like.dtype, device=device(like))


@cache
def triangle(width: int) -> Triangle:
    """Return the upper triangle of squares of a width."""
    places = np.zeros((width, width), dtype=np.int64)
    rows, columns = np.triu_indices(width)
    places[rows, columns] = places[columns, rows] = np.arange(len(rows))
    return Triangle(width, rows, columns, places.ravel())


def taken(M: Array, chosen: Places) -> Array:
    """Return some columns of a matrix."""
    xp = array_namespace(M)
    return xp.take(M, xp.asarray(chosen, device=device(M)), axis=1)
