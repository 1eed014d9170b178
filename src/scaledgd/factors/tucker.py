"""Tucker factors: tensors of low multilinear rank, of any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from .. import checks
from ..ambient import Ambient
from ..kernels import Contracted, Design, backend
from ..linalg import adjoint, gram, identity, inner, inverse, mode_products, unfold
from ..namespaces import array_namespace
from .base import Blocks, Factors, clipped_rows

Array = Any


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
    units of σ², and λ those of σ as for matrices. Damping then keeps superfluous columns of U_k in
    place, to which the core gives no weight. The factors themselves stay well conditioned, so the
    core needs no damping.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> X = sg.Tucker((np.ones((2, 1)), np.ones((3, 1)), np.ones((4, 1))), 5 * np.ones((1, 1, 1)))
    >>> X.full().shape, float(X.full()[1, 2, 3])
    ((2, 3, 4), 5.0)
    """

    factors: tuple[Array, ...]
    core: Array

    multilinear = True

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
    def default_step(self) -> float:
        # beyond 2/(d + 1) a step diverges even if everything is observed
        return min(0.3, 1.5 / (len(self.factors) + 1))

    @property
    def blocks(self) -> Blocks:
        return (*self.factors, self.core)

    @property
    def modes(self) -> Blocks:
        return self.factors

    @property
    def ranks(self) -> tuple[int, ...]:
        """The multilinear ranks, the shape of the core."""
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
        return backend(y, self.core, *self.modes).gather(self.modes, index, self.core, y)

    def norm(self) -> Array:
        xp = array_namespace(self.core)
        grams = [gram(U) for U in self.factors]
        return xp.sqrt(xp.abs(inner(self.core, mode_products(self.core, grams))))

    def pullback(self, Z: Ambient) -> Blocks:
        return Z.tucker_gradients(self.modes, self.core)

    def _partner_gram(self, grams: list[Array], k: int) -> Array:
        """Return Ŭ_kᵀ conj(Ŭ_k), from the Grams of the factors."""
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

    def preconditioner(self, k: int) -> Callable[[Array], Array]:
        grams = [gram(U) for U in self.factors]
        if k == len(self.factors):
            inverses = [inverse(G) for G in grams]
            return lambda grad: mode_products(grad, inverses)
        of_partner = inverse(self._partner_gram(grams, k))
        return lambda grad: grad @ of_partner

    def design(self, k: int) -> Design | None:
        if k == len(self.factors):
            return None  # the core is one system
        others = tuple(j for j in range(len(self.factors)) if j != k)
        return Contracted(unfold(self.core, k), tuple(self.factors[j] for j in others), others)

    def clip_rows(self, radius: float) -> Self:
        partners = self._partner_grams([gram(U) for U in self.factors])
        clipped = (
            clipped_rows(U, partners[k], radius) if k in self.free else U
            for k, U in enumerate(self.factors)
        )
        return type(self)(tuple(clipped), self.core)

    def imbalance(self, level: float = 1.0) -> tuple[Array, Blocks]:
        # ½ Σ_k ‖U_kᴴU_k − level² I‖²_F (Han, Willett and Zhang 2020)
        gaps = [gram(U) - level**2 * identity(U.shape[1], like=U) for U in self.factors]
        value = 0.5 * sum(inner(D, D) for D in gaps)
        pulls = (2 * U @ D for U, D in zip(self.factors, gaps, strict=True))
        return value, (*pulls, 0 * self.core)
