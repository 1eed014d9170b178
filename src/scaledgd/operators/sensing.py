"""Operators that measure X through inner products and quadratic forms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from array_api_compat import is_array_api_obj

from .. import checks
from ..ambient import Ambient, Dense, RankOneSum
from ..factors import Factors, LowRank, Tucker
from ..linalg import conj, is_complex, mode_product, unwarned
from ..namespaces import array_namespace
from .base import Operator

Array = Any


@dataclass(frozen=True, eq=False)
class Sensing(Operator):
    """Linear measurements y = A vec(X), with vec in C order.

    Parameters
    ----------
    A : array of shape (m, n1, ..., nd), or (m, n1 ⋯ nd) with `shape`, or a linear operator
        A linear operator has `shape` (m, n1 ⋯ nd), `matvec` and `rmatvec`, as in SciPy and PyLops.
        It is never made dense, and its results are converted to the precision of the data. An array
        is not conjugated, so it means the same as an operator with that matrix: for complex data
        the measurements ⟨A_i, X⟩ of the monograph are `Sensing(conj(A))`.
    shape : tuple of int, optional
        The shape of X, if A does not determine it.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> A = sg.Sensing(np.ones((1, 2, 2)))
    >>> A.apply(sg.Symmetric(np.asarray([[1.0], [2.0]])))
    array([9.])
    """

    A: Any
    shape: tuple[int, ...] = ()
    matrix: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size = tuple(getattr(self.A, "shape", ()))
        if self.dense:
            checks.floating(A=self.A)
            if len(size) < 2 or (len(size) == 2 and not self.shape):
                raise ValueError(
                    f"A must be a stack of shape (m, n1, n2, ...), or (m, n1·n2) with "
                    f"shape=(n1, n2); it has shape {size}"
                )
            checks.finite("A", self.A)
        elif not (hasattr(self.A, "matvec") and hasattr(self.A, "rmatvec") and len(size) == 2):
            raise TypeError(
                "A must be an array or a linear operator with shape, matvec and rmatvec, "
                f"not {type(self.A).__name__}"
            )
        elif not self.shape:
            raise ValueError("give shape=(n1, n2), the shape of X, with a linear operator")
        shape = checks.shape("shape", self.shape or size[1:])
        if math.prod(shape) != math.prod(size[1:]) or (len(size) > 2 and shape != size[1:]):
            raise ValueError(
                f"A of shape {size} does not measure objects of shape {shape}: {size[1:]} "
                f"is not {shape}"
            )
        if 0 in size:
            raise ValueError(f"A of shape {size} makes no measurement")
        object.__setattr__(self, "shape", shape)
        matrix = self.A
        if self.dense:
            matrix = array_namespace(self.A).reshape(self.A, (size[0], math.prod(shape)))
        object.__setattr__(self, "matrix", matrix)

    @property
    def dense(self) -> bool:
        """Whether A is an array."""
        return bool(is_array_api_obj(self.A))

    @property
    def measured(self) -> tuple[int, ...]:
        return (int(self.A.shape[0]),)

    @property
    def arrays(self) -> dict[str, Array]:
        return {"A": self.A} if self.dense else {}

    @unwarned
    def apply(self, factors: Factors) -> Array:
        X = factors.full()
        x = array_namespace(X).reshape(X, (-1,))
        return (
            self.matrix @ x if self.dense else _like(self.matrix.matvec(x), x, self.matrix.shape[0])
        )

    @unwarned
    def adjoint(self, w: Array) -> Ambient:
        x = (
            conj(self.matrix.T @ conj(w))
            if self.dense
            else _like(self.matrix.rmatvec(w), w, self.matrix.shape[1])
        )
        return Dense(array_namespace(w).reshape(x, self.shape))

    @unwarned
    def block_matrix(self, factors: Factors, k: int) -> Array | None:
        if not self.dense or is_complex(self.matrix) or is_complex(factors.blocks[0]):
            return None
        if isinstance(factors, Tucker):
            return self._tucker_matrix(factors, k)
        if not isinstance(factors, LowRank):
            return None
        xp, (n1, n2), r = array_namespace(self.matrix), self.shape, factors.rank
        if k == 0:
            return xp.reshape(xp.reshape(self.matrix, (-1, n2)) @ factors.R, (-1, n1 * r))
        designs = xp.reshape(self.matrix, (-1, n1, n2))
        products = xp.permute_dims(designs, (0, 2, 1)) @ factors.L
        return xp.reshape(products, (-1, n2 * r))

    def _tucker_matrix(self, factors: Tucker, k: int) -> Array:
        """The matrix J of a factor, or of the core."""
        xp, order = array_namespace(self.matrix), len(self.shape)
        products = xp.reshape(self.matrix, (-1, *self.shape))
        for j, U in enumerate(factors.factors):
            if j != k:
                products = mode_product(products, U.T, j + 1)
        if k != order:
            others = [j for j in range(order) if j != k]
            axes = [j + 1 for j in others], others
            products = xp.tensordot(products, factors.core, axes=axes)
        return xp.reshape(products, (products.shape[0], -1))

    def spectral(self, y: Array, kept: int | None) -> Ambient:
        # the l1 problems take measurements of unit variance, so a mean estimates X
        return self.adjoint(y if kept is None else y / kept)


def _like(result: Array, given: Array, n: int) -> Array:
    """Return the result of a linear operator in the dtype of its argument."""
    xp = checks.namespace(data=given, **{"what A returned": result})
    if tuple(result.shape) != (n,):
        raise ValueError(f"A must return vectors of shape ({n},), not {tuple(result.shape)}")
    if is_complex(result) and not is_complex(given):
        raise TypeError("A is complex but the data are real; make y complex")
    return xp.astype(result, given.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class RankOne(Operator):
    """Quadratic sampling: y_k = a_kᴴ X a_k.

    Parameters
    ----------
    a : array of shape (m, n)
        The sensing vectors, in rows.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> A = sg.RankOne(np.asarray([[1.0, 1.0]]))
    >>> A.apply(sg.Symmetric(np.asarray([[1.0], [2.0]])))
    array([9.])
    """

    a: Array
    symmetric = True

    def __post_init__(self) -> None:
        checks.floating(a=self.a)
        checks.dimensions("a", self.a, 2)
        checks.finite("a", self.a)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape of X."""
        n = int(self.a.shape[1])
        return n, n

    @property
    def measured(self) -> tuple[int, ...]:
        return (int(self.a.shape[0]),)

    @property
    def arrays(self) -> dict[str, Array]:
        return {"a": self.a}

    def apply(self, factors: Factors) -> Array:
        xp = array_namespace(self.a)
        left, right = factors.modes
        left = conj(self.a) @ left
        if factors.bilinear:
            return xp.sum(left * (self.a @ right), axis=1)
        return xp.sum(factors.assemble((left, right)) * self.a, axis=1)

    def adjoint(self, w: Array) -> Ambient:
        return RankOneSum(self.a, w)

    def spectral(self, y: Array, kept: int | None) -> Ambient:
        # for Gaussian a, E y a aᴴ = c X + tr(X) I with c = 2 (real) or 1 (complex), E y = tr X
        xp = array_namespace(y)
        fold = 1 if is_complex(self.a) else 2
        w = y / (fold * (self.measured[0] if kept is None else kept))
        return RankOneSum(self.a, w, shift=-xp.sum(w))
