"""CP factors: tensors that are sums of a few outer products, of any order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from .. import checks
from ..ambient import Ambient
from ..kernels import Design, Products, backend
from ..linalg import conj, gram, inverse
from ..namespaces import array_namespace
from .base import Blocks, Factors

Array = Any


@dataclass(frozen=True, eq=False)
class CP(Factors):
    """A tensor X = Σ_c U₁[:, c] ∘ U₂[:, c] ∘ …, the sum of r outer products, of order d ≥ 2.

    An order-2 CP is a matrix U₁ U₂ᵀ. The blocks are the factors of the modes.

    Parameters
    ----------
    factors : tuple of d arrays of shapes (n_k, r)

    Notes
    -----
    The unfolding of mode k is U_k Z_kᵀ, where the rows of Z_k are the products of rows of all other
    factors. ScaledGD moves U_k by ∇_k (Z_kᵀ conj(Z_k) + λI)⁻¹; that Gram matrix is the entrywise
    product of those of the other factors. The damping is given in the units of X.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> X = sg.CP((np.ones((2, 1)), np.ones((3, 1)), 5 * np.ones((4, 1))))
    >>> X.full().shape, float(X.full()[1, 2, 3]), X.rank
    ((2, 3, 4), 5.0, 1)
    """

    factors: tuple[Array, ...]

    multilinear = True

    def __post_init__(self) -> None:
        if not isinstance(self.factors, (tuple, list)):
            raise TypeError("factors must be a tuple of arrays, one per mode")
        factors = tuple(self.factors)
        named = {f"factors[{k}]": U for k, U in enumerate(factors)}
        checks.floating(**named)
        if len(factors) < 2:
            raise ValueError(f"there must be at least 2 factors, one per mode, not {len(factors)}")
        for name, U in named.items():
            checks.dimensions(name, U, 2)
            if U.shape[1] != factors[0].shape[1]:
                raise ValueError(
                    f"{name} has {U.shape[1]} columns, but factors[0] has {factors[0].shape[1]}"
                )
        object.__setattr__(self, "factors", factors)

    @property
    def default_step(self) -> float:
        # beyond 2/d a step diverges even if everything is observed
        return 1 / len(self.factors)

    @property
    def blocks(self) -> Blocks:
        return self.factors

    @property
    def modes(self) -> Blocks:
        return self.factors

    @property
    def rank(self) -> int:
        """The number of outer products."""
        return int(self.factors[0].shape[1])

    def with_blocks(self, blocks: Blocks) -> Self:
        return type(self)(tuple(blocks))

    def assemble(self, modes: Blocks) -> Array:
        xp = array_namespace(*modes)
        rows = modes[0]
        for M in modes[1:-1]:
            rows = xp.reshape(rows[:, None, :] * M[None, :, :], (-1, M.shape[1]))
        return xp.reshape(rows @ modes[-1].T, tuple(M.shape[0] for M in modes))

    def gather(self, index: tuple[Array, ...], y: Array | None = None) -> Array:
        xp, found = array_namespace(*self.factors), []
        if len(self.factors) == 2:
            return backend(y, *self.factors).gather(self.factors, index, None, y)
        columns = [U.T for U in self.factors]
        for part in backend(*self.factors).chunks(index[0], 2 * max(1, self.rank)):
            product = xp.take(columns[0], index[0][part], axis=1)
            for U, i in zip(columns[1:], index[1:], strict=True):
                product = product * xp.take(U, i[part], axis=1)
            found.append(xp.sum(product, axis=0))
        if not found:
            return xp.zeros_like(self.factors[0][:0, 0])
        values = found[0] if len(found) == 1 else xp.concat(found)
        return values if y is None else values - y

    def norm(self) -> Array:
        xp = array_namespace(self.factors[0])
        square = xp.real(xp.sum(self._partner_gram(None)))
        return xp.sqrt(xp.where(square > 0, square, xp.zeros_like(square)))

    def distance(self, other: Factors, level: float = 0.0) -> float:
        if not isinstance(other, CP):
            return super().distance(other, level)
        xp = array_namespace(self.factors[0])
        ours, theirs = self.factors, other.factors
        if other.rank != self.rank:
            pairs = zip(ours, (-theirs[0], *theirs[1:]), strict=True)
            return float(CP(tuple(xp.concat([A, B], axis=1) for A, B in pairs)).norm())
        # X − X' is the sum over k of X with the factors before k replaced and U_k − U'_k at k:
        # accurate, unless these cancel
        d = range(len(ours))
        gap = CP(
            tuple(
                xp.concat(
                    [theirs[j] if j < k else ours[j] - theirs[j] if j == k else ours[j] for k in d],
                    axis=1,
                )
                for j in d
            )
        )
        return float(gap.norm())

    def _partner_gram(self, k: int | None) -> Array:
        """Return Z_kᵀ conj(Z_k), the entrywise product of the Grams of all factors but k."""
        grams = [conj(gram(U)) for j, U in enumerate(self.factors) if j != k]
        return math.prod(grams[1:], start=grams[0])

    def pullback(self, Z: Ambient) -> Blocks:
        return tuple(self.pullback_block(Z, k) for k in range(len(self.factors)))

    def pullback_block(self, Z: Ambient, k: int) -> Array:
        return Z.columnwise(self.modes, k)

    def precondition(self, grads: Blocks, damping: float | Array = 0.0) -> Blocks:
        # the Grams of d − 1 factors have the units of X to the power 2(d − 1)/d
        held = damping ** (2 - 2 / len(self.factors)) if damping else damping
        return tuple(g @ inverse(self._partner_gram(k), held) for k, g in enumerate(grads))

    def preconditioner(self, k: int) -> Callable[[Array], Array]:
        of_partner = inverse(self._partner_gram(k))
        return lambda grad: grad @ of_partner

    def design(self, k: int) -> Design:
        others = tuple(j for j in range(len(self.factors)) if j != k)
        return Products(tuple(self.factors[j] for j in others), others)
