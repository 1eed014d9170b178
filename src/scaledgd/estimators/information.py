"""What measurements say about the parameters of a low-rank coefficient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device

from ..factors import LowRank, Tucker
from ..linalg import identity, mode_product, unwarned
from .packing import packable
from .uncertainty import PART

Array = Any
Coefficient = LowRank | Tucker

LARGEST = 1500
"""Largest number of parameters for which the whole matrix is kept."""


@packable
@dataclass(frozen=True, eq=False)
class Information:
    """What measurements say about the parameters of a low-rank coefficient.

    Attributes
    ----------
    total : array of shape (q, q), or None if there are too many parameters
        Σ g gᵀ + ridge over the measurements, g the gradient of one by the parameters, centred
        if there is an intercept.
    mean : array of shape (q,)
        The mean of the gradients; zero if there is no intercept.
    square : float
        The mean of ‖g‖², centred.
    m : int
    intercept : bool
    """

    total: Array | None
    mean: Array
    square: float
    m: int
    intercept: bool

    @classmethod
    def of(cls, F: Coefficient, A: Array, intercept: bool, ridge: float) -> Information:
        """Return the information of a design; a Tucker model has a ridge on its core only."""
        xp = array_namespace(A)
        q, m = sum(math.prod(B.shape) for B in F.blocks), A.shape[0]
        mean: Any = xp.zeros_like(A[0, :1]) * xp.ones(q, dtype=A.dtype, device=device(A))
        parts = _parts(A, q)
        if intercept:
            mean = sum(xp.sum(gradients(F, A[part]), axis=0) for part in parts) / m
        held = q if isinstance(F, LowRank) else math.prod(F.blocks[-1].shape)
        last = xp.astype(xp.arange(q, device=device(A)) >= q - held, A.dtype)
        total: Any = 0.0 if q > LARGEST else ridge * last[None, :] * identity(q, like=A)
        square = 0.0
        for part in parts:
            g = gradients(F, A[part]) - mean
            square += float(xp.sum(g * g)) / m
            total = total if q > LARGEST else total + g.T @ g
        return cls(None if q > LARGEST else total, mean, square, m, intercept)

    def leverage(self, F: Coefficient, A: Array, centred: bool = True) -> Array:
        """Return the variance of ⟨A, coefficient⟩ (and the intercept) relative to the noise."""
        xp, root = array_namespace(A), self._root
        # without the full matrix, as if all parameters were measured equally often
        each = 1 / math.sqrt(self.m * self.square / self.mean.shape[0] or 1.0)
        found = []
        for part in _parts(A, self.mean.shape[0]):
            g = gradients(F, A[part]) - (self.mean if centred else 0.0)
            found.append(xp.sum((g * each if root is None else g @ root) ** 2, axis=1))
        constant = 1 / self.m if self.intercept and centred else 0.0
        return xp.concat(found) + constant if found else A[:, 0]

    @property
    def _root(self) -> Array | None:
        """T with T Tᵀ the inverse of the total, along the directions that were measured."""
        if self.total is None:
            return None
        xp = array_namespace(self.mean)
        values, Q = xp.linalg.eigh(self.total)
        seen = values > 1e-10 * values[-1]
        safe = xp.where(seen, values, xp.ones_like(values))
        return Q * xp.where(seen, 1 / xp.sqrt(safe), xp.zeros_like(values))[None, :]


def _parts(A: Array, q: int) -> list[slice]:
    step = max(1, PART // max(1, q, A.shape[1]))
    return [slice(s, s + step) for s in range(0, A.shape[0], step)]


@unwarned
def gradients(F: Coefficient, A: Array) -> Array:
    """Return the gradients of ⟨A_i, X⟩ by all numbers in all blocks, of shape (m, q)."""
    xp, shape = array_namespace(A), F.shape
    T = xp.reshape(A, (-1, *shape))
    modes = list(F.blocks[: len(shape)])
    found = []
    for k in range(len(shape)):
        G = T
        for j, M in enumerate(modes):
            if j != k:
                G = mode_product(G, M.T, j + 1)
        if isinstance(F, LowRank):
            # the rank of the other matrix is where its rows were
            G = G if k == 0 else xp.matrix_transpose(G)
        else:
            core, others = xp.moveaxis(F.core, k, 0), tuple(range(1, len(shape)))
            rest = tuple(j + 1 for j in others)
            G = xp.tensordot(xp.moveaxis(G, k + 1, 1), core, axes=(rest, others))
        found.append(xp.reshape(G, (T.shape[0], -1)))
    if not isinstance(F, LowRank):
        for j, M in enumerate(modes):
            T = mode_product(T, M.T, j + 1)
        found.append(xp.reshape(T, (T.shape[0], -1)))
    return xp.concat(found, axis=1)
