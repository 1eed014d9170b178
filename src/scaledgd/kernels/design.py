"""Row systems: every row of a mode matrix is a separate small least-squares problem.

X at an entry is the row of the mode matrix times a vector v, which a `Design` computes from the
other factors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..linalg import adjoint, conj, epsilon, gram, identity, mode_product, unfold
from ..namespaces import array_namespace

Array = Any
Index = tuple[Array, ...]

LEAST = 1e-4
"""Least eigenvalue of correlations for which row systems are formed without a change of basis."""


class Design(Protocol):
    """The vectors v that multiply the rows of a mode matrix."""

    def columns(self, index: Index, part: Array | slice) -> Array:
        """Return v for some entries, as an array of shape (q, entries)."""

    def everything(self) -> Array:
        """Return v for all entries of one row of X in C order, one per row."""

    def gram(self) -> Array:
        """Return Σ v vᴴ over all entries of one row of X."""

    def transformed(self, T: Array) -> Design:
        """Return the design whose vectors are vᵀ T."""

    @property
    def width(self) -> int:
        """q, the length of v."""

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of the design."""


@dataclass(frozen=True, eq=False)
class Rows:
    """v is a row of the matrix M of X = L Mᵀ; M belongs to the mode `other`."""

    M: Array
    other: int

    def columns(self, index: Index, part: Array | slice) -> Array:
        return array_namespace(self.M).take(self.M, index[self.other][part], axis=0).T

    def everything(self) -> Array:
        return self.M

    def gram(self) -> Array:
        return self.M.T @ conj(self.M)

    def transformed(self, T: Array) -> Rows:
        return Rows(self.M @ T, self.other)

    @property
    def width(self) -> int:
        return int(self.M.shape[1])

    @property
    def arrays(self) -> tuple[Array, ...]:
        return (self.M,)


@dataclass(frozen=True, eq=False)
class Contracted:
    """v is the core, unfolded along one mode, times the rows of all other mode matrices."""

    core: Array
    modes: tuple[Array, ...]
    others: tuple[int, ...]

    def columns(self, index: Index, part: Array | slice) -> Array:
        xp = array_namespace(self.core)
        rows = [
            xp.take(M, index[j][part], axis=0).T
            for M, j in zip(self.modes, self.others, strict=True)
        ]
        return self.core @ kronecker(rows)

    def everything(self) -> Array:
        return self.core_of(self.modes).T

    def core_of(self, matrices: tuple[Array, ...]) -> Array:
        """Return the unfolded core times matrices in the other modes."""
        xp = array_namespace(self.core)
        tensor = xp.reshape(self.core, (-1, *(M.shape[1] for M in self.modes)))
        for axis, M in enumerate(matrices):
            tensor = mode_product(tensor, M, axis + 1)
        return unfold(tensor, 0)

    def gram(self) -> Array:
        return self.core_of(tuple(gram(M) for M in self.modes)) @ adjoint(self.core)

    def transformed(self, T: Array) -> Contracted:
        return Contracted(T.T @ self.core, self.modes, self.others)

    @property
    def width(self) -> int:
        return int(self.core.shape[0])

    @property
    def arrays(self) -> tuple[Array, ...]:
        return (self.core, *self.modes)


@dataclass(frozen=True, eq=False)
class Products:
    """v is the entrywise product of the rows of all other mode matrices, times `turn`."""

    modes: tuple[Array, ...]
    others: tuple[int, ...]
    turn: Array | None = None

    def columns(self, index: Index, part: Array | slice) -> Array:
        xp = array_namespace(*self.modes)
        rows = [
            xp.take(M, index[j][part], axis=0).T
            for M, j in zip(self.modes, self.others, strict=True)
        ]
        v = math.prod(rows[1:], start=rows[0])
        return v if self.turn is None else self.turn.T @ v

    def everything(self) -> Array:
        xp, V = array_namespace(*self.modes), self.modes[0]
        for M in self.modes[1:]:
            V = xp.reshape(V[:, None, :] * M[None, :, :], (-1, M.shape[1]))
        return V if self.turn is None else V @ self.turn

    def gram(self) -> Array:
        grams = [M.T @ conj(M) for M in self.modes]
        G = math.prod(grams[1:], start=grams[0])
        return G if self.turn is None else self.turn.T @ G @ conj(self.turn)

    def transformed(self, T: Array) -> Products:
        return Products(self.modes, self.others, T if self.turn is None else self.turn @ T)

    @property
    def width(self) -> int:
        return int((self.modes[0] if self.turn is None else self.turn).shape[1])

    @property
    def arrays(self) -> tuple[Array, ...]:
        return self.modes


def kronecker(rows: list[Array]) -> Array:
    """Return the Kronecker products of columns, in C order: (product of heights, entries)."""
    xp = array_namespace(*rows)
    result = rows[0]
    for M in rows[1:]:
        result = xp.reshape(result[:, None, :] * M[None, :, :], (-1, M.shape[1]))
    return result


@dataclass(frozen=True, eq=False)
class RowSystem:
    """The least-squares problems of all rows of one mode matrix.

    Attributes
    ----------
    design : Design
    mode : int
    ridge : array of shape (q,) or (n, q), optional
        Diagonals to add to the Gram matrices of the rows.
    spread : bool
        Whether to compute the inverses of the systems as well.
    """

    design: Design
    mode: int
    ridge: Array | None = None
    spread: bool = False


@dataclass(frozen=True, eq=False)
class UnsureRows:
    """Row systems of a matrix x Mᵀ + own givenᵀ with a prior, where M and given are uncertain.

    Attributes
    ----------
    M : array of shape (n, q)
        The vectors v, rows of the matrix of the other mode.
    variance : array of shape (n, r), r ≤ q
        The variances of the first columns of M. The others are certain.
    ridge : array of shape (q,)
        Diagonal that the prior adds to every system.
    noise : float or 0-d array
        Its variance, which inverses are multiplied by.
    mode : int
    own : array, optional
        One given number for every row, in addition to the unknowns.
    given : array of shape (n, 2), optional
        The numbers that multiply those, and their variances.
    """

    M: Array
    variance: Array
    ridge: Array
    noise: Any
    mode: int
    own: Array | None = None
    given: Array | None = None


class Sums(NamedTuple):
    """Weighted sums over all entries of the solved rows: numbers, or 0-d arrays.

    They are the squared residuals before and after; the weights; the variance of X due to the rows,
    in units of the noise; and the rest of its variance.
    """

    before: Any
    after: Any
    seen: Any
    from_rows: Any
    from_others: Any


class RowUpdate(NamedTuple):
    """The solutions of `UnsureRows`.

    The rows and their variances, both of shape (n, q); the sum of their covariances; the sums of
    their squares and variances, one number per column; and the sums over the entries.
    """

    solved: Array
    variance: Array
    total: Array
    moments: Array
    sums: Sums


@dataclass(frozen=True, eq=False)
class WholeRows:
    """Row systems of a matrix x Mᵀ with some unknown columns of x and uncertain rows of M.

    Attributes
    ----------
    x : array of shape (n_k, q)
    M : array of shape (n, q)
        The matrix of the other mode.
    covariance : array of shape (n, g, g), optional
        The covariances of some columns of the rows of M. The others are certain.
    known : list of int
        Those g columns, in ascending order.
    free : list of int
        The unknown columns of x, in ascending order.
    ridge : array
        Diagonal that the prior adds to every system, one number per free column.
    noise : float
        Its variance, which inverses are multiplied by.
    mode : int
    """

    x: Array
    M: Array
    covariance: Array | None
    known: list[int]
    free: list[int]
    ridge: Array
    noise: float
    mode: int


class WholeUpdate(NamedTuple):
    """The solutions of `WholeRows`.

    The free columns of the rows, their covariances, the sum of these, and the sums over the
    entries.
    """

    solved: Array
    covariance: Array
    total: Array
    sums: Sums


class Cleaning(NamedTuple):
    """How rows are fitted despite gross errors.

    Limits start at `multiple` times the median magnitude in a row and fall with it, by at least the
    factor `fall` per round, down to the floor.
    """

    multiple: float
    fall: float
    floor: float
    rounds: int


class RowSolution(NamedTuple):
    """The solutions of the row systems, of shape (n, q).

    If inverses were requested, also their diagonals, of shape (n, q), and their sum, of shape (q,
    q). If they come for free, the sums of squared residuals before and after the step.
    """

    step: Array
    diagonal: Array = None
    total: Array = None
    squares: tuple[float, float] | None = None


class Conditionals(NamedTuple):
    """Rows of a Gaussian given their observed entries.

    The rows with conditional means in place of what is missing, of shape (n, d); the sum of their
    conditional covariances, of shape (d, d); predictions of all entries from the other observed
    ones; and variances, all if not requested None.
    """

    filled: Array
    total: Array = None
    predicted: Array = None
    variances: Array = None


def decoupled(G: Array, ridge: Array | None) -> Array:
    """Return a Gram matrix without its products with columns that the ridge holds at zero.

    In coordinates that mix such a column with others, rounding would hold these, too.

    Parameters
    ----------
    G : array of shape (q, q)
    ridge : array of shape (q,) or (n, q), optional
    """
    if ridge is None or not G.shape[0]:
        return G
    xp = array_namespace(G)
    sizes, nothing = xp.real(xp.linalg.diagonal(G)), xp.zeros_like(G)
    held = ridge if ridge.ndim == 1 else xp.min(ridge, axis=0)
    free = ~(epsilon(G) * held > sizes)  # NaN stays
    if isinstance(G, np.ndarray) and free.all():  # a device would have to wait for this
        return G
    largest = xp.max(xp.where(free, sizes, xp.zeros_like(sizes)))
    largest = xp.where(largest > 0, largest, xp.ones_like(largest))
    alone = identity(G.shape[0], like=G) * xp.where(free, nothing[0, :], largest + nothing[0, :])
    return xp.where(free[:, None] & free[None, :], G, nothing) + alone


def sizes_of(G: Array, ridge: Array) -> Array | None:
    """Return the diagonal of a Gram matrix, if its vectors are well conditioned.

    Then their systems can be solved accurately without a change of basis.
    """
    G = G.astype(np.float64)
    sizes = np.ascontiguousarray(np.diagonal(G))
    whole = G + np.diag(ridge.astype(np.float64))
    # one at a time, because products of tiny numbers vanish
    root = np.sqrt(np.maximum(np.diagonal(whole), 0.0))
    if not np.all(np.isfinite(whole)) or not np.all(root > 0):
        return None
    correlations = whole / root[:, None] / root[None, :]
    return sizes if np.linalg.eigvalsh(correlations)[0] > LEAST else None
