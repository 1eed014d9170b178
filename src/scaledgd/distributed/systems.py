"""The systems of columns, solved from sums that all shards of rows contribute to.

Where the factor of the rows is too large to be sent, its rows stay with the entries. For every
column they add up the Gram matrix of their vectors and what else its system consists of. What is
done here with the sums is what the kernels do with entries.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..kernels import JITTER, RowSolution, RowUpdate, Sums
from ..kernels.design import RowSystem
from ..kernels.entries import RowSystems
from ..linalg import epsilon, smallest, whitening
from .tasks import Ask

Array = Any


class Systems:
    """Sums over the entries of some columns, as `tasks.column_systems` arranges them.

    Parameters
    ----------
    total : array of shape (columns, numbers)
    width : int
        Columns of the factor, q.
    """

    def __init__(self, total: Array, width: int) -> None:
        triangle = width * (width + 1) // 2
        doubts = total.shape[1] - triangle - 2 - width
        ends = np.cumsum([triangle, 1, doubts, 1])
        self.upper, count, self.doubts, squares, self.slope = np.split(total, ends, axis=1)
        self.count, self.squares, self.width = count[:, 0], squares[:, 0], width

    @cached_property
    def grams(self) -> Array:
        """The Gram matrices, of shape (columns, q, q)."""
        q = self.width
        a, b = np.triu_indices(q)
        found = np.empty((len(self.upper), q, q))
        found[:, a, b] = found[:, b, a] = self.upper
        return found


class _Known(NamedTuple):
    """A design of which nothing is needed but Gram matrices."""

    whole: Array
    turn: Array | None = None

    def gram(self) -> Array:
        return self.whole

    def transformed(self, turn: Array) -> _Known:
        return _Known(self.whole, turn)


class _Formed(RowSystems):
    """Row systems whose Gram matrices were added up already."""

    def __init__(self, grams: Array) -> None:
        self.grams = grams

    def row_grams(self, design: Any, mode: int, first: int, last: int, weights: Any) -> Array:
        return design.turn.T @ self.grams[first:last] @ design.turn


class Asked(NamedTuple):
    """How columns are to be solved for.

    Attributes
    ----------
    whole : array of shape (q, q)
        The Gram matrix of the vectors of all rows.
    ridge : array of shape (q,) or (columns, q), optional
    spread : bool
    dtype : dtype
    """

    whole: Array
    ridge: Array | None
    spread: bool
    dtype: Any


def stepped(total: Array, ask: Ask, asked: Asked) -> RowSolution:
    """Return what columns are to be moved by, as `tasks.step` does."""
    x, ridge = np.asarray(ask.x, dtype=np.float64), asked.ridge
    systems = Systems(total, x.shape[1])
    target = systems.slope if ridge is None else systems.slope + ridge * x
    design: Any = _Known(np.asarray(asked.whole, dtype=np.float64))
    system = RowSystem(design, 1, ridge, asked.spread)
    found = _Formed(systems.grams).solve_rows(system, target)
    return RowSolution(*(None if z is None else z.astype(asked.dtype) for z in found[:3]))


class Unsure(NamedTuple):
    """The same for columns whose rows are not known exactly; see `kernels.UnsureRows`.

    Attributes
    ----------
    sizes : array of shape (q,)
        The diagonal of the Gram matrix of the vectors of all rows.
    units : array of shape (r,)
        What the variances of rows were divided by.
    ridge : array of shape (q,)
    noise, jitter : float
    dtype : dtype
    """

    sizes: Array
    units: Array
    ridge: Array
    noise: float
    jitter: float
    dtype: Any


def updated(total: Array, ask: Ask, asked: Unsure) -> RowUpdate:
    """Return solved columns and their variances, as `tasks.update` does."""
    x, own = np.asarray(ask.x, dtype=np.float64), ask.border
    systems = Systems(total, x.shape[1])
    G, r = systems.grams, len(asked.units)
    seen = np.linalg.diagonal(G).copy()
    near = np.zeros_like(x)
    near[:, :r] = systems.doubts[:, :r] * asked.units
    safe = np.where(asked.sizes > 0, asked.sizes, 1.0)
    size = np.max(np.where(asked.sizes > 0, seen / safe, 0.0), axis=1, initial=0.0)
    ridge = asked.ridge + near
    held = ridge + asked.jitter * size[:, None] * asked.sizes
    slope = systems.slope + ridge * x
    a = np.arange(x.shape[1])
    G[:, a, a] += held
    inverse = np.linalg.inv(G)
    inverse = 0.5 * (inverse + np.swapaxes(inverse, 1, 2))
    step = np.linalg.solve(G, slope[:, :, None])[:, :, 0]
    solved, spread = x - step, np.linalg.diagonal(inverse)
    taken = np.sum(step * (slope + held * step - 2 * ridge * x))
    beside = 0.0 if own is None else float(np.sum(systems.doubts[:, r] * own.astype(float) ** 2))
    squares = float(np.sum(systems.squares))
    variance = asked.noise * spread
    sums = Sums(
        squares,
        squares - float(taken),
        float(np.sum(systems.count)),
        float(np.sum((seen + near) * spread)),
        float(np.sum(near * solved * solved)) + beside,
    )
    kind = asked.dtype
    return RowUpdate(
        solved.astype(kind),
        variance.astype(kind),
        (asked.noise * np.sum(inverse, axis=0)).astype(kind),
        np.sum(solved * solved + variance, axis=0).astype(kind),
        sums,
    )


class Doubts(NamedTuple):
    """Entries whose columns are asked how much they add to the variance.

    Attributes
    ----------
    whole : array of shape (q, q)
        The Gram matrix of the vectors of all rows.
    ridge : array of shape (q,) or (columns, q)
    vectors : array of shape (m, q)
        Those of the rows of the entries.
    columns : integer array of shape (m,)
    """

    whole: Array
    ridge: Array
    vectors: Array
    columns: Array


def shares(total: Array, ask: Ask, asked: Doubts) -> Array:
    """Return what columns add to the variance of entries, over the noise; as `Spread` does."""
    if not len(asked.columns):
        return np.zeros(0)
    wanted, place = np.unique(asked.columns, return_inverse=True)
    grams = Systems(total, asked.whole.shape[0]).grams[wanted]
    T = whitening(np.asarray(asked.whole, dtype=np.float64))
    G = T.T @ grams @ T
    size = np.max(np.linalg.diagonal(G), axis=1)
    size = np.where(size > 0, size, 1.0)
    ridge = asked.ridge if asked.ridge.ndim == 1 else asked.ridge[wanted]
    most = smallest(G) ** -0.25
    held = np.clip(np.sqrt(ridge)[..., None] * T, -most, most)
    G = G + np.swapaxes(held, -1, -2) @ held
    little = max(JITTER, len(T) * epsilon(G)) * size
    inverses = np.linalg.inv(G + little[:, None, None] * np.eye(len(T)))
    V = asked.vectors @ T
    return np.einsum("ea,eab,eb->e", V, inverses[place], V)


def as_they_are(total: Array, ask: Ask, dtype: Any) -> Array:
    """Return the sums themselves."""
    return total.astype(dtype)
