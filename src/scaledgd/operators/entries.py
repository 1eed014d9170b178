"""Operators that observe entries of X: all of them, some of them, or with weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from .. import checks
from ..ambient import Ambient, Dense, Ones, Sparse
from ..factors import Factors, Tucker
from ..kernels import (
    Pattern,
    RowSolution,
    RowSystem,
    RowSystems,
    RowUpdate,
    UnsureRows,
    backend,
)
from ..linalg import is_complex, kronecker, row_products
from ..namespaces import array_namespace
from .base import FORMED, BlockProblem, Operator

Array = Any


@dataclass(frozen=True, eq=False)
class Full(Operator):
    """Every entry is observed.

    Parameters
    ----------
    shape : tuple of int
        The shape of X and of y.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> X = sg.Symmetric(np.asarray([[1.0], [2.0]]))
    >>> sg.Full((2, 2)).apply(X)
    array([[1., 2.],
           [2., 4.]])
    """

    shape: tuple[int, ...]

    fused = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checks.shape("shape", self.shape))

    @property
    def measured(self) -> tuple[int, ...]:
        return self.shape

    def apply(self, factors: Factors) -> Array:
        return factors.full()

    def adjoint(self, w: Array) -> Ambient:
        return Dense(w)

    def residual(self, factors: Factors, y: Array) -> Array:
        if not (self.fused and factors.bilinear):
            return super().residual(factors, y)
        L, R = factors.modes
        return backend(L, R, y).dense_residual(L, R, y)

    def coverage(self, w: Array | None, like: Array) -> Ambient:
        if not self.fused:
            return super().coverage(w, like)
        return Ones(self.shape, like) if w is None else Dense(w)

    def rows(self, like: Array) -> RowSystems | None:
        return backend(like).grid(self.shape) if self.fused else None

    def block_matrix(self, factors: Factors, k: int) -> Array | None:
        small = self.fused and _is_small_core(factors, k, math.prod(self.shape))
        return kronecker(factors.modes) if small else None

    def solve_block(
        self, problem: BlockProblem, gradient: Array, weights: Array | None = None
    ) -> RowSolution:
        F, k = problem.factors, problem.k
        if weights is None and problem.ridge is None and self.fused and _is_core(F, k):
            # the preconditioner is the inverse if all entries count equally
            return RowSolution(F.preconditioner(k)(gradient))
        return super().solve_block(problem, gradient, weights)


@dataclass(frozen=True, eq=False)
class Entries(Operator):
    """Some entries are observed.

    Parameters
    ----------
    index : tuple of integer arrays, each of shape (m,)
        The coordinates of the observed entries, one array per mode, no entry twice.
    shape : tuple of int
        The shape of X.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> A = sg.Entries((np.asarray([0, 1]), np.asarray([1, 1])), (2, 2))
    >>> A.apply(sg.Symmetric(np.asarray([[1.0], [2.0]])))
    array([2., 4.])
    """

    index: tuple[Array, ...]
    shape: tuple[int, ...]
    pattern: Pattern = field(init=False, repr=False)

    fused = True

    def __post_init__(self) -> None:
        shape = checks.shape("shape", self.shape)
        index = checks.index(self.index, shape)
        if index[0].shape[0] == 0:
            raise ValueError("index is empty: no entry is observed, so nothing can be recovered")
        if math.prod(shape) >= 2**63:
            raise ValueError(f"shape {shape} has more entries than 64-bit integers can number")
        kernels = backend(*index)
        if not kernels.distinct(index, shape):
            raise ValueError(
                "index names some entry more than once; average repeated observations first"
            )
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "pattern", kernels.pattern(index, shape))

    @property
    def measured(self) -> tuple[int, ...]:
        return (int(self.index[0].shape[0]),)

    @property
    def coordinates(self) -> tuple[Array, ...]:
        return self.index

    @property
    def arrays(self) -> dict[str, Array]:
        return {"index": self.index[0]}

    def apply(self, factors: Factors) -> Array:
        return self._values(factors, None)

    def residual(self, factors: Factors, y: Array) -> Array:
        return self._values(factors, y) if self.fused else super().residual(factors, y)

    def _values(self, factors: Factors, y: Array | None) -> Array:
        if factors.bilinear:
            return self.pattern.residual(factors.modes, y)
        return factors.gather(self.index, y)

    def fuses(self, factors: Factors, y: Array) -> bool:
        if not (self.fused and factors.bilinear and factors.rowwise):
            return False
        return self.pattern.fuses(y, *factors.modes)

    def squares_and_gradient(
        self, factors: Factors, y: Array, k: int
    ) -> tuple[Array | float, Array]:
        modes = factors.modes
        squares, gradient = self.pattern.squares_and_gradient(modes[k], modes[1 - k], y, k)
        return squares, factors.part(k, gradient)

    def adjoint(self, w: Array) -> Ambient:
        return Sparse(self.pattern, w)

    def coverage(self, w: Array | None, like: Array) -> Ambient:
        if not self.fused:
            return super().coverage(w, like)
        return Sparse(self.pattern, self.pattern.ones(like) if w is None else w)

    def rows(self, like: Array) -> RowSystems | None:
        return self.pattern if self.fused else None

    def block_matrix(self, factors: Factors, k: int) -> Array | None:
        if not (self.fused and _is_small_core(factors, k, self.measured[0])):
            return None
        xp = array_namespace(factors.modes[0])
        pairs = zip(factors.modes, self.index, strict=True)
        return row_products([xp.take(U, i, axis=0) for U, i in pairs])


def _is_core(factors: Factors, k: int) -> bool:
    return isinstance(factors, Tucker) and k == len(factors.factors)


def _is_small_core(factors: Factors, k: int, count: int) -> bool:
    """Whether a block is a core, small enough for the normal equations of some entries."""
    if not _is_core(factors, k) or is_complex(factors.blocks[k]):
        return False
    return bool(count * math.prod(factors.blocks[k].shape) ** 2 <= FORMED)


class Around(Operator):
    """An operator derived from the measurements of another one, its field `operator`."""

    operator: Operator

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape of X."""
        return self.operator.shape

    @property
    def measured(self) -> tuple[int, ...]:
        return self.operator.measured

    @property
    def coordinates(self) -> tuple[Array, ...] | None:
        return self.operator.coordinates

    @property
    def arrays(self) -> dict[str, Array]:
        return self.operator.arrays


@dataclass(frozen=True, eq=False)
class Weighted(Around):
    """Weighted measurements: A(X) times the square root of the weights.

    The data must be multiplied by `root`, too.

    Parameters
    ----------
    operator : Operator
    root : array of the shape of A(X), nonnegative
        Square roots of the weights.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> A = sg.Weighted(sg.Full((2, 2)), np.asarray([[1.0, 2.0], [0.0, 1.0]]))
    >>> A.apply(sg.Symmetric(np.asarray([[1.0], [2.0]])))
    array([[1., 4.],
           [0., 4.]])
    """

    operator: Operator
    root: Array

    fused = True

    def __post_init__(self) -> None:
        checks.floating(root=self.root)
        checks.finite("root", self.root)
        if tuple(self.root.shape) != self.measured:
            raise ValueError(
                f"root must have the shape of the measurements, {self.measured}, "
                f"not {tuple(self.root.shape)}"
            )

    @property
    def arrays(self) -> dict[str, Array]:
        return {"root": self.root, **self.operator.arrays}

    def apply(self, factors: Factors) -> Array:
        return self.root * self.operator.apply(factors)

    def adjoint(self, w: Array) -> Ambient:
        return self.operator.adjoint(self.root * w)

    def rows(self, like: Array) -> RowSystems | None:
        return self.operator.rows(like) if self.fused else None

    def coverage(self, w: Array | None, like: Array) -> Ambient:
        if not self.fused:
            return super().coverage(w, like)
        return self.operator.coverage(self.root**2 if w is None else self.root**2 * w, like)

    def solve_block(
        self, problem: BlockProblem, gradient: Array, weights: Array | None = None
    ) -> RowSolution:
        if not self.fused:
            return super().solve_block(problem, gradient, weights)
        whole = self.root**2 if weights is None else self.root**2 * weights
        return self.operator.solve_block(problem, gradient, whole)

    def fuses_rows(
        self, problem: BlockProblem, system: RowSystem, root: Array | None = None
    ) -> bool:
        return self.fused and self.operator.fuses_rows(problem, system, self._times(root))

    def fused_step(
        self, problem: BlockProblem, system: RowSystem, root: Array | None = None
    ) -> RowSolution:
        return self.operator.fused_step(problem, system, self._times(root))

    def update_block(
        self, problem: BlockProblem, system: UnsureRows, root: Array | None = None
    ) -> RowUpdate | None:
        if not self.fused:
            return None
        return self.operator.update_block(problem, system, self._times(root))

    def _times(self, root: Array | None) -> Array:
        return self.root if root is None else root * self.root
