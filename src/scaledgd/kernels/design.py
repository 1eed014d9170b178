"""Row systems: where every row of a mode matrix is a small least-squares problem of its own.

X at an entry is the row of the mode matrix times a vector v, which a `Design` computes from the
other factors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from array_api_compat import array_namespace

from ..linalg import adjoint, conj, gram, mode_product, unfold

Array = Any
Index = tuple[Array, ...]


class Design(Protocol):
    """The vectors v that the rows of a mode matrix are multiplied by."""

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
        """The arrays that the design holds."""


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
        Diagonals that are added to the Gram matrices of the rows.
    spread : bool
        Whether the inverses of the systems are wanted too.
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
        What the prior adds to the diagonal of every system.
    noise : float or 0-d array
        Its variance, which inverses are multiplied by.
    mode : int
    own : array, optional
        One number for every row, beside the rows that are solved for.
    given : array of shape (n, 2), optional
        What those are multiplied by, and its variances.
    """

    M: Array
    variance: Array
    ridge: Array
    noise: Any
    mode: int
    own: Array | None = None
    given: Array | None = None


class Sums(NamedTuple):
    """Sums over all entries, by weight, at which rows were solved for: numbers, or 0-d arrays.

    Squared residuals before and after; weights; and the variance of X, as far as it comes from
    the rows (in units of the noise), and the rest of it.
    """

    before: Any
    after: Any
    seen: Any
    from_rows: Any
    from_others: Any


class RowUpdate(NamedTuple):
    """The solutions of `UnsureRows`.

    The rows and their variances, both of shape (n, q); the sum of their covariances; the sums of
    their squares and variances, one number per column; and what is known about the entries.
    """

    solved: Array
    variance: Array
    total: Array
    moments: Array
    sums: Sums


@dataclass(frozen=True, eq=False)
class WholeRows:
    """Row systems of a matrix x Mᵀ where some columns of x are sought and rows of M are uncertain.

    Attributes
    ----------
    x : array of shape (n_k, q)
    M : array of shape (n, q)
        The matrix of the other mode.
    covariance : array of shape (n, g, g), optional
        The covariances of some columns of the rows of M. The others are certain.
    known : list of int
        Those g columns, rising.
    free : list of int
        The columns of x that are sought, rising.
    ridge : array
        What the prior adds to the diagonal of every system, one number per free column.
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

    The free columns of the rows, their covariances, the sum of these, and what is known about
    the entries.
    """

    solved: Array
    covariance: Array
    total: Array
    sums: Sums


class Cleaning(NamedTuple):
    """How rows are fitted in spite of gross errors.

    Limits begin at `multiple` times the median of the magnitudes in a row and fall with it, at
    least to the share `fall` in each of some rounds, down to the floor.
    """

    multiple: float
    fall: float
    floor: float
    rounds: int


class RowSolution(NamedTuple):
    """The solutions of the row systems, of shape (n, q).

    Where the inverses were wanted, also their diagonals, of shape (n, q), and their sum, of
    shape (q, q). Where they came for free, the sums of squared residuals before and after the step.
    """

    step: Array
    diagonal: Array = None
    total: Array = None
    squares: tuple[float, float] | None = None
