"""Matrix factors: L Rᴴ, L Lᴴ, and L Rᵀ with offsets of rows and columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from .. import checks
from ..ambient import Ambient
from ..kernels import Design, Rows, backend
from ..linalg import adjoint, conj, epsilon, gram, inner, inverse
from ..namespaces import array_namespace
from .base import Blocks, Factors, clipped_rows

Array = Any


class _MatrixFactors(Factors):
    """The parts common to L Rᴴ and L Lᴴ; the fields are L and, for the first, R."""

    L: Array
    R: Array

    bilinear = True

    @property
    def default_step(self) -> float:
        return 0.5

    @property
    def modes(self) -> Blocks:
        return self.L, conj(self.R)

    @property
    def rank(self) -> int:
        """The number of columns of L."""
        return int(self.L.shape[1])

    def assemble(self, modes: Blocks) -> Array:
        return modes[0] @ modes[1].T

    def gather(self, index: tuple[Array, ...], y: Array | None = None) -> Array:
        modes = self.modes
        return backend(y, *modes).gather(modes, index, None, y)

    def distance(self, other: Factors, level: float = 0.0) -> float:
        if not other.bilinear or self.modes[0].shape != other.modes[0].shape:
            return super().distance(other, level)
        xp = array_namespace(self.L)
        # X − X' = (L − L') Rᵀ + L' (R − R')ᵀ: accurate, unless the two cancel
        (L, R), (K, S) = self.modes, other.modes
        left, right = xp.concat([L - K, K], axis=1), xp.concat([R, R - S], axis=1)
        products = gram(left) * gram(right)
        square, size = float(xp.sum(products)), float(xp.sum(xp.abs(products)))
        lost = 100 * epsilon(L) * size
        if square > 1e-3 * size or lost <= (0.1 * level) ** 2:
            return math.sqrt(max(square, 0.0) + lost)
        return super().distance(other, level)

    def norm(self) -> Array:
        return array_namespace(self.L).sqrt(abs(inner(gram(self.L), gram(self.R))))


class _Bilinear(_MatrixFactors):
    """Matrices that are linear in L and in R: X changes by D partnerᴴ if L changes by D."""

    multilinear = True
    rowwise = True

    @property
    def blocks(self) -> Blocks:
        return self.L, self.R

    @property
    def shape(self) -> tuple[int, ...]:
        return int(self.L.shape[0]), int(self.R.shape[0])

    @property
    def width(self) -> int:
        """The number of columns of the mode matrices."""
        return int(self.L.shape[1])

    def partner(self, k: int) -> Array:
        """Return the matrix that multiplies block k.

        Parameters
        ----------
        k : int

        Returns
        -------
        array of shape (n, r)
        """
        return self.blocks[1 - k]

    def pullback(self, Z: Ambient) -> Blocks:
        return self.pullback_block(Z, 0), self.pullback_block(Z, 1)

    def pullback_block(self, Z: Ambient, k: int) -> Array:
        # ∇_L = Z R and ∇_R = Zᴴ L
        return Z.times(self.partner(0)) if k == 0 else Z.adjoint_times(self.partner(1))

    def precondition(self, grads: Blocks, damping: float | Array = 0.0) -> Blocks:
        # (1.4): ∇_L (RᴴR + λI)⁻¹ and ∇_R (LᴴL + λI)⁻¹
        return tuple(g @ inverse(gram(self.partner(k)), damping) for k, g in enumerate(grads))

    def preconditioner(self, k: int) -> Callable[[Array], Array]:
        of_partner = inverse(gram(self.partner(k)))
        return lambda grad: grad @ of_partner

    def as_mode(self, k: int, B: Array) -> Array:
        return B if k == 0 else conj(B)

    def design(self, k: int) -> Design:
        return Rows(self.as_mode(1 - k, self.partner(k)), 1 - k)


@dataclass(frozen=True, eq=False)
class LowRank(_Bilinear):
    """A matrix X = L Rᴴ.

    Parameters
    ----------
    L : array of shape (n1, r)
    R : array of shape (n2, r)

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> X = sg.LowRank(np.asarray([[1.0], [2.0]]), np.asarray([[3.0], [4.0], [5.0]]))
    >>> X.full()
    array([[ 3.,  4.,  5.],
           [ 6.,  8., 10.]])
    >>> X.at((np.asarray([0, 1]), np.asarray([2, 0])))
    array([5., 6.])
    """

    L: Array
    R: Array

    def __post_init__(self) -> None:
        checks.floating(L=self.L, R=self.R)
        checks.dimensions("L", self.L, 2)
        checks.dimensions("R", self.R, 2)
        if self.L.shape[1] != self.R.shape[1]:
            raise ValueError(
                f"L and R must have as many columns as each other, the rank; their shapes are "
                f"{tuple(self.L.shape)} and {tuple(self.R.shape)}"
            )

    def clip_rows(self, radius: float) -> Self:
        return self.with_blocks(
            (clipped_rows(self.L, gram(self.R), radius), clipped_rows(self.R, gram(self.L), radius))
        )

    def imbalance(self, level: float = 1.0) -> tuple[Array, Blocks]:
        # ½‖LᴴL − RᴴR‖²_F (Tu et al. 2016)
        D = gram(self.L) - gram(self.R)
        return 0.5 * inner(D, D), (2 * self.L @ D, -2 * self.R @ D)


@dataclass(frozen=True, eq=False)
class Bordered(_Bilinear):
    """A low-rank matrix with offsets of rows and columns: X = L Rᵀ + b vᵀ + u cᵀ.

    b and c are estimated together with the factors, as the last columns of the blocks; u and v are
    given, and are vectors of ones unless the rows or columns of X are scaled.

    Parameters
    ----------
    L : array of shape (n1, r), or (n1, r + 1) with b in its last column if v is given
    R : array of shape (n2, r), or (n2, r + 1) with c in its last column if u is given
    u : array of shape (n1,), optional
    v : array of shape (n2,), optional

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> b, c = np.asarray([[1.0], [2.0]]), np.asarray([[10.0], [20.0], [30.0]])
    >>> sg.Bordered(b, c, np.ones(2), np.ones(3)).full()
    array([[11., 21., 31.],
           [12., 22., 32.]])
    """

    L: Array
    R: Array
    u: Array | None = None
    v: Array | None = None

    def __post_init__(self) -> None:
        given = {name: x for name, x in (("u", self.u), ("v", self.v)) if x is not None}
        checks.floating(L=self.L, R=self.R, **given)
        if self.L.shape[1] - (self.v is not None) != self.R.shape[1] - (self.u is not None):
            raise ValueError(
                f"L and R of shapes {tuple(self.L.shape)} and {tuple(self.R.shape)} do not have "
                "one rank; if v is given L has one more column, if u is given R has"
            )

    @property
    def rank(self) -> int:
        return int(self.L.shape[1]) - (self.v is not None)

    @property
    def modes(self) -> Blocks:
        xp, r = array_namespace(self.L), self.rank
        left, right = self.L, self.R
        if self.u is not None:
            left = xp.concat([left, self.u[:, None]], axis=1)
        if self.v is not None:
            right = xp.concat([right[:, :r], self.v[:, None], right[:, r:]], axis=1)
        return left, right

    @property
    def width(self) -> int:
        """The number of columns of the mode matrices."""
        return int(self.L.shape[1]) + (self.u is not None)

    def partner(self, k: int) -> Array:
        border = (self.v, self.u)[k]
        inside = self.blocks[1 - k][:, : self.rank]
        if border is None:
            return inside
        return array_namespace(inside).concat([inside, border[:, None]], axis=1)

    def with_blocks(self, blocks: Blocks) -> Self:
        L, R = blocks
        if L.shape != self.L.shape or R.shape != self.R.shape:
            return replace(self, L=L, R=R)
        # a step makes many of these, so shapes are not checked again
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, L=L, R=R)
        return other

    def alone(self, k: int) -> bool:
        return (self.u, self.v)[k] is None

    def part(self, k: int, G: Array) -> Array:
        width, r = self.blocks[k].shape[1], self.rank
        if k == 0 or self.v is None:
            return G[:, :width]
        return array_namespace(G).concat([G[:, :r], G[:, r + 1 :]], axis=1)

    def linear(self, k: int, D: Array) -> Factors:
        return LowRank(D, self.partner(0)) if k == 0 else LowRank(self.partner(1), D)

    def norm(self) -> Array:
        left, right = self.modes
        return array_namespace(left).sqrt(abs(inner(gram(left), gram(right))))


@dataclass(frozen=True, eq=False)
class Symmetric(_MatrixFactors):
    """A Hermitian positive semidefinite matrix X = L Lᴴ.

    Parameters
    ----------
    L : array of shape (n, r)

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> sg.Symmetric(np.asarray([[1.0], [2.0]])).full()
    array([[1., 2.],
           [2., 4.]])
    """

    L: Array

    copies = 2

    def __post_init__(self) -> None:
        checks.floating(L=self.L)
        checks.dimensions("L", self.L, 2)

    @property
    def blocks(self) -> Blocks:
        return (self.L,)

    @property
    def R(self) -> Array:
        """L again."""
        return self.L

    def pullback(self, Z: Ambient) -> Blocks:
        # (Z + Zᴴ) L: Z need not be Hermitian
        return (Z.contract(self.modes, skip=0) + adjoint(Z.contract(self.modes, skip=1)),)

    def precondition(self, grads: Blocks, damping: float | Array = 0.0) -> Blocks:
        return (grads[0] @ inverse(gram(self.L), damping) / self.copies,)

    def clip_rows(self, radius: float) -> Self:
        return self.with_blocks((clipped_rows(self.L, gram(self.L), radius),))

    def imbalance(self, level: float = 1.0) -> tuple[Array, Blocks]:
        # zero: the two factors are one
        return 0.0 * inner(self.L, self.L), (0.0 * self.L,)
