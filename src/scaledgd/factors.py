"""Low-rank objects held as factors: X = φ(F).

A factorisation knows how to evaluate X, to pull an ambient gradient Z back to its blocks
by the chain rule, and to precondition those gradients with inverse Gram matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from array_api_compat import array_namespace

from . import checks, kernels
from .ambient import Ambient
from .kernels import Contracted, Design, Rows
from .linalg import adjoint, conj, gram, identity, inner, inverse, mode_products, unfold

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

    @property
    def free(self) -> tuple[int, ...]:
        """Which blocks a method updates unless told otherwise."""
        return tuple(range(len(self.blocks)))

    def with_blocks(self, blocks: Blocks) -> Self:
        return type(self)(*blocks)

    def assemble(self, modes: Blocks) -> Array:
        """X with other matrices in the places of its mode matrices, dense."""
        raise NotImplementedError

    def full(self) -> Array:
        """X itself, dense."""
        return self.assemble(self.modes)

    def at(self, index: tuple[Array, ...]) -> Array:
        """The entries of X at coordinates, without forming X."""
        return self.gather(checks.index(index, self.shape))

    def gather(self, index: tuple[Array, ...], y: Array | None = None) -> Array:
        """The same for coordinates that were checked before; less y."""
        return kernels.gather(self.modes, index, None, y)

    def norm(self) -> Array:
        """‖X‖_F from Gram matrices."""
        raise NotImplementedError

    def pullback(self, Z: Ambient) -> Blocks:
        """The gradient of every block, given the gradient Z with respect to X."""
        raise NotImplementedError

    def precondition(self, grads: Blocks, damping: float | Array = 0.0) -> Blocks:
        """ScaledGD's direction: the gradients times inverse (damped) Gram matrices."""
        raise NotImplementedError

    def moved(self, k: int, D: Array) -> Self:
        """Block k plus D, the others as they are."""
        blocks = (B + D if j == k else B for j, B in enumerate(self.blocks))
        return self.with_blocks(tuple(blocks))

    def linear(self, k: int, D: Array) -> Factors:
        """What X changes by where block k changes by D: X is linear in each block."""
        return self.with_blocks((*self.blocks[:k], D, *self.blocks[k + 1 :]))

    def pullback_block(self, Z: Ambient, k: int) -> Array:
        """The gradient of block k alone."""
        raise NotImplementedError

    def precondition_block(self, grad: Array, k: int) -> Array:
        """ScaledGD's direction for block k alone."""
        raise NotImplementedError

    def design(self, k: int) -> Design | None:
        """What mode matrix k is multiplied by in the entries of X; None if block k is none."""
        return None

    def alone(self, k: int) -> bool:
        """Whether X is mode matrix k times its design, and nothing besides."""
        return True

    def part(self, k: int, G: Array) -> Array:
        """The columns of mode matrix k that are block k."""
        return G

    def as_mode(self, k: int, B: Array) -> Array:
        """Block k as mode matrix k, and the other way round: R is the conjugate of its own."""
        return B

    def clip_rows(self, radius: float) -> Self:
        """The scaled projection P_B with B = radius."""
        raise NotImplementedError

    def imbalance(self, level: float = 1.0) -> tuple[Array, Blocks]:
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


class _MatrixFactors(Factors):
    """What L Rᴴ and L Lᴴ share; the fields are L and, for the first, R."""

    L: Array
    R: Array

    default_step = 0.5

    @property
    def modes(self) -> Blocks:
        return self.L, conj(self.R)

    @property
    def rank(self) -> int:
        return int(self.L.shape[1])

    def assemble(self, modes: Blocks) -> Array:
        return modes[0] @ modes[1].T

    def norm(self) -> Array:
        return array_namespace(self.L).sqrt(abs(inner(gram(self.L), gram(self.R))))


class _Bilinear(_MatrixFactors):
    """What is linear in L and in R, each with a partner: X changes by D partnerᴴ with L."""

    @property
    def blocks(self) -> Blocks:
        return self.L, self.R

    def partner(self, k: int) -> Array:
        """What block k is multiplied by."""
        return self.blocks[1 - k]

    def pullback(self, Z: Ambient) -> Blocks:
        return self.pullback_block(Z, 0), self.pullback_block(Z, 1)

    def pullback_block(self, Z: Ambient, k: int) -> Array:
        # ∇_L = Z R and ∇_R = Zᴴ L
        return Z.times(self.partner(0)) if k == 0 else Z.adjoint_times(self.partner(1))

    def precondition(self, grads: Blocks, damping: float | Array = 0.0) -> Blocks:
        # (1.4): ∇_L (RᴴR + λI)⁻¹ and ∇_R (LᴴL + λI)⁻¹
        return tuple(g @ inverse(gram(self.partner(k)), damping) for k, g in enumerate(grads))

    def precondition_block(self, grad: Array, k: int) -> Array:
        return grad @ inverse(gram(self.partner(k)))

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
            (_clipped(self.L, gram(self.R), radius), _clipped(self.R, gram(self.L), radius))
        )

    def imbalance(self, level: float = 1.0) -> tuple[Array, Blocks]:
        """½‖LᴴL − RᴴR‖²_F (Tu et al. 2016) and its gradient."""
        D = gram(self.L) - gram(self.R)
        return 0.5 * inner(D, D), (2 * self.L @ D, -2 * self.R @ D)


@dataclass(frozen=True, eq=False)
class Bordered(_Bilinear):
    """A low-rank matrix with offsets of rows and columns: X = L Rᵀ + b vᵀ + u cᵀ.

    b and c are estimated with the factors, as the last columns of the blocks; u and v are
    given, vectors of ones unless the rows or columns of X are scaled.

    Parameters
    ----------
    L : array of shape (n1, r), or (n1, r + 1) with b in its last column where v is given
    R : array of shape (n2, r), or (n2, r + 1) with c in its last column where u is given
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
                "one rank; where v is given L has one more column, where u is given R has"
            )

    @property
    def rank(self) -> int:
        return int(self.L.shape[1]) - (self.v is not None)

    @property
    def modes(self) -> Blocks:
        xp, r = array_namespace(self.L), self.rank
        left = [self.L] if self.u is None else [self.L, self.u[:, None]]
        border = [] if self.v is None else [self.v[:, None]]
        return xp.concat(left, axis=1), xp.concat([self.R[:, :r], *border, self.R[:, r:]], axis=1)

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
        # of the shapes that were checked before: a step makes many of these
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
        return self.with_blocks((_clipped(self.L, gram(self.L), radius),))

    def imbalance(self, level: float = 1.0) -> tuple[Array, Blocks]:
        """Zero: the two factors are one."""
        return 0.0 * inner(self.L, self.L), (0.0 * self.L,)


@dataclass(frozen=True, eq=False)
class Tucker(Factors):
    """A tensor X = core ×₁ U₁ ×₂ U₂ … of order d ≥ 2.

    A mode that is not compressed (r_k = n_k) is not updated unless a method is told to:
    its factor, the identity in every start, can be absorbed by the core.

    Parameters
    ----------
    factors : tuple of d arrays of shapes (n_k, r_k)
    core : array of shape (r_1, ..., r_d)

    Notes
    -----
    With Ŭ_k = M_k(core ×_{j≠k} U_j)ᵀ, ScaledGD moves U_k by ∇_k (Ŭ_kᵀ conj(Ŭ_k) + λ²I)⁻¹ and
    the core by ∇ ×_k (U_kᴴU_k)⁻¹. The damping λ enters squared because these Grams have the
    units of σ², and λ those of σ as for matrices. Columns that an over-specified rank adds
    to U_k are then held where the core gives them no weight; the factors themselves stay
    well conditioned, so that the core needs no damping.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> X = sg.Tucker((np.ones((2, 1)), np.ones((3, 1)), np.ones((4, 1))), 5 * np.ones((1, 1, 1)))
    >>> X.full().shape, float(X.full()[1, 2, 3])
    ((2, 3, 4), 5.0)
    """

    factors: tuple[Array, ...]
    core: Array

    def __post_init__(self) -> None:
        if not isinstance(self.factors, (tuple, list)):
            raise TypeError("factors must be a tuple of arrays, one per mode")
        factors = tuple(self.factors)
        named = {f"factors[{k}]": U for k, U in enumerate(factors)}
        checks.floating(**named, core=self.core)
        if len(factors) < 2 or self.core.ndim != len(factors):
            raise ValueError(
                f"a core of shape {tuple(self.core.shape)} needs {self.core.ndim} factors, at "
                f"least 2, one per mode; there are {len(factors)}"
            )
        checks.dimensions("core", self.core, len(factors))
        for k, (name, U) in enumerate(named.items()):
            checks.dimensions(name, U, 2)
            if U.shape[1] != self.core.shape[k]:
                raise ValueError(
                    f"{name} has {U.shape[1]} columns, but the core has size "
                    f"{self.core.shape[k]} in mode {k}"
                )
        object.__setattr__(self, "factors", factors)

    @property
    def default_step(self) -> float:  # type: ignore[override]
        # beyond 2/(d + 1) a step diverges even where everything is observed
        return min(0.3, 1.5 / (len(self.factors) + 1))

    @property
    def blocks(self) -> Blocks:
        return (*self.factors, self.core)

    @property
    def modes(self) -> Blocks:
        return self.factors

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.core.shape)

    @property
    def free(self) -> tuple[int, ...]:
        compressed = (k for k, U in enumerate(self.factors) if U.shape[0] != U.shape[1])
        return (*compressed, len(self.factors))

    def with_blocks(self, blocks: Blocks) -> Self:
        return type(self)(blocks[:-1], blocks[-1])

    def assemble(self, modes: Blocks) -> Array:
        return mode_products(self.core, modes)

    def gather(self, index: tuple[Array, ...], y: Array | None = None) -> Array:
        return kernels.gather(self.modes, index, self.core, y)

    def norm(self) -> Array:
        xp = array_namespace(self.core)
        grams = [gram(U) for U in self.factors]
        return xp.sqrt(xp.abs(inner(self.core, mode_products(self.core, grams))))

    def pullback(self, Z: Ambient) -> Blocks:
        return Z.tucker_gradients(self.modes, self.core)

    def _partner_gram(self, grams: list[Array], k: int) -> Array:
        """Ŭ_kᵀ conj(Ŭ_k), from the Grams of the factors."""
        return unfold(mode_products(self.core, grams, skip=k), k) @ adjoint(unfold(self.core, k))

    def _partner_grams(self, grams: list[Array]) -> list[Array]:
        return [self._partner_gram(grams, k) for k in range(len(self.factors))]

    def precondition(self, grads: Blocks, damping: float | Array = 0.0) -> Blocks:
        grams = [gram(U) for U in self.factors]
        partners = self._partner_grams(grams)
        factors = (g @ inverse(P, damping**2) for g, P in zip(grads[:-1], partners, strict=True))
        return (*factors, mode_products(grads[-1], [inverse(G) for G in grams]))

    def pullback_block(self, Z: Ambient, k: int) -> Array:
        if k == len(self.factors):
            return Z.contract(self.modes)
        return unfold(Z.contract(self.modes, skip=k), k) @ adjoint(unfold(self.core, k))

    def precondition_block(self, grad: Array, k: int) -> Array:
        grams = [gram(U) for U in self.factors]
        if k == len(self.factors):
            return mode_products(grad, [inverse(G) for G in grams])
        return grad @ inverse(self._partner_gram(grams, k))

    def design(self, k: int) -> Design | None:
        if k == len(self.factors):
            return None  # the core is one system
        others = tuple(j for j in range(len(self.factors)) if j != k)
        return Contracted(unfold(self.core, k), tuple(self.factors[j] for j in others), others)

    def clip_rows(self, radius: float) -> Self:
        partners = self._partner_grams([gram(U) for U in self.factors])
        clipped = (
            _clipped(U, partners[k], radius) if k in self.free else U
            for k, U in enumerate(self.factors)
        )
        return type(self)(tuple(clipped), self.core)

    def imbalance(self, level: float = 1.0) -> tuple[Array, Blocks]:
        """½ Σ_k ‖U_kᴴU_k − level² I‖²_F (Han, Willett and Zhang 2020) and its gradient."""
        gaps = [gram(U) - level**2 * identity(U.shape[1], like=U) for U in self.factors]
        value = 0.5 * sum(inner(D, D) for D in gaps)
        pulls = (2 * U @ D for U, D in zip(self.factors, gaps, strict=True))
        return value, (*pulls, 0 * self.core)
