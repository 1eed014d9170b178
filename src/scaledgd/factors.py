"""Low-rank objects held as factors: X = φ(F).

A factorisation knows how to evaluate X, to pull an ambient gradient Z back to its blocks
by the chain rule, and to precondition those gradients with inverse Gram matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from array_api_compat import array_namespace

from . import checks, kernels
from .ambient import Ambient
from .linalg import adjoint, conj, gram, inner, inverse

Array = Any
Blocks = tuple[Array, ...]


class Factors:
    """What the loop needs of a factorisation.

    Subclasses are frozen dataclasses whose fields are the blocks.
    """

    default_step: float
    """The step ScaledGD takes where none is given."""

    copies: ClassVar[int] = 1
    """How often each block occurs in X. The gradient of a block is so many times larger
    than its share, and a step means the same for every factorisation once divided by it."""

    @property
    def blocks(self) -> Blocks:
        """The arrays a method updates."""
        raise NotImplementedError

    @property
    def modes(self) -> Blocks:
        """The mode matrices M₁, M₂, … that span the modes of X."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of X."""
        return tuple(M.shape[0] for M in self.modes)

    def with_blocks(self, blocks: Blocks) -> Self:
        return type(self)(*blocks)

    def full(self) -> Array:
        """X itself, dense."""
        raise NotImplementedError

    def at(self, index: tuple[Array, ...]) -> Array:
        """The entries of X at coordinates, without forming X."""
        raise NotImplementedError

    def norm(self) -> Array:
        """‖X‖_F from Gram matrices."""
        raise NotImplementedError

    def pullback(self, Z: Ambient) -> Blocks:
        """The gradient of every block, given the gradient Z with respect to X."""
        raise NotImplementedError

    def precondition(self, grads: Blocks, damping: float | Array = 0.0) -> Blocks:
        """ScaledGD's direction: the gradients times inverse (damped) Gram matrices."""
        raise NotImplementedError

    def clip_rows(self, radius: float) -> Self:
        """The scaled projection P_B with B = radius."""
        raise NotImplementedError

    def imbalance(self) -> tuple[Array, Blocks]:
        """The balancing regulariser of the earlier literature, and its gradient."""
        raise NotImplementedError


def _clipped(M: Array, partner_gram: Array, radius: float) -> Array:
    """Rows of M scaled so that √n · ‖M_i Pᴴ‖ ≤ radius, with the norm taken from PᴴP."""
    xp = array_namespace(M)
    square = xp.real(xp.sum(M @ partner_gram * conj(M), axis=1))
    # rounding can leave a vanishing row a tiny negative square; zero rows get factor 1
    size = math.sqrt(M.shape[0]) * xp.sqrt(xp.where(square > 0, square, xp.zeros_like(square)))
    ones = xp.ones_like(size)
    scale = xp.where(size > radius, radius / xp.where(size > 0, size, ones), ones)
    return M * xp.astype(scale, M.dtype)[:, None]


@dataclass(frozen=True, eq=False)
class LowRank(Factors):
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

    default_step = 0.5

    def __post_init__(self) -> None:
        checks.floating(L=self.L, R=self.R)
        checks.dimensions("L", self.L, 2)
        checks.dimensions("R", self.R, 2)
        if self.L.shape[1] != self.R.shape[1]:
            raise ValueError(
                f"L and R must have as many columns as each other, the rank; their shapes are "
                f"{tuple(self.L.shape)} and {tuple(self.R.shape)}"
            )

    @property
    def blocks(self) -> Blocks:
        return self.L, self.R

    @property
    def modes(self) -> Blocks:
        return self.L, conj(self.R)

    @property
    def rank(self) -> int:
        return int(self.L.shape[1])

    def full(self) -> Array:
        return self.L @ adjoint(self.R)

    def at(self, index: tuple[Array, ...]) -> Array:
        return kernels.gather(self.modes, index)

    def norm(self) -> Array:
        xp = array_namespace(self.L)
        return xp.sqrt(xp.abs(inner(gram(self.L), gram(self.R))))

    def pullback(self, Z: Ambient) -> Blocks:
        # ∇_L = Z R and ∇_R = Zᴴ L
        return Z.contract(self.modes, skip=0), adjoint(Z.contract(self.modes, skip=1))

    def precondition(self, grads: Blocks, damping: float | Array = 0.0) -> Blocks:
        # (1.4): ∇_L (RᴴR + λI)⁻¹ and ∇_R (LᴴL + λI)⁻¹
        grad_L, grad_R = grads
        return (
            grad_L @ inverse(gram(self.R), damping),
            grad_R @ inverse(gram(self.L), damping),
        )

    def clip_rows(self, radius: float) -> Self:
        return self.with_blocks(
            (_clipped(self.L, gram(self.R), radius), _clipped(self.R, gram(self.L), radius))
        )

    def imbalance(self) -> tuple[Array, Blocks]:
        """½‖LᴴL − RᴴR‖²_F (Tu et al. 2016) and its gradient."""
        D = gram(self.L) - gram(self.R)
        return 0.5 * inner(D, D), (2 * self.L @ D, -2 * self.R @ D)


@dataclass(frozen=True, eq=False)
class Symmetric(Factors):
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

    default_step = 0.5
    copies = 2

    def __post_init__(self) -> None:
        checks.floating(L=self.L)
        checks.dimensions("L", self.L, 2)

    @property
    def blocks(self) -> Blocks:
        return (self.L,)

    @property
    def modes(self) -> Blocks:
        return self.L, conj(self.L)

    @property
    def rank(self) -> int:
        return int(self.L.shape[1])

    def full(self) -> Array:
        return self.L @ adjoint(self.L)

    def at(self, index: tuple[Array, ...]) -> Array:
        return kernels.gather(self.modes, index)

    def norm(self) -> Array:
        xp = array_namespace(self.L)
        G = gram(self.L)
        return xp.sqrt(inner(G, G))

    def pullback(self, Z: Ambient) -> Blocks:
        # (Z + Zᴴ) L: Z need not be Hermitian
        return (Z.contract(self.modes, skip=0) + adjoint(Z.contract(self.modes, skip=1)),)

    def precondition(self, grads: Blocks, damping: float | Array = 0.0) -> Blocks:
        return (grads[0] @ inverse(gram(self.L), damping) / self.copies,)

    def clip_rows(self, radius: float) -> Self:
        return self.with_blocks((_clipped(self.L, gram(self.L), radius),))

    def imbalance(self) -> tuple[Array, Blocks]:
        """Zero: the two factors are one."""
        return 0.0 * inner(self.L, self.L), (0.0 * self.L,)
