"""The base class of measurements: A(X) of a factored X, the adjoint A*(w), and block solves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..ambient import Ambient
from ..factors import Factors
from ..kernels import RowSolution, RowSystem, RowSystems, RowUpdate, UnsureRows
from ..linalg import conjugate_gradients, unwarned
from ..losses import Loss
from ..namespaces import array_namespace

Array = Any

CORE_TOL = 1e-2
"""Share of the residual at which conjugate gradients stop, if rows are not separate systems."""

FORMED = 20_000_000
"""Measurements times squared size of a block up to which its normal equations are formed."""


@dataclass(frozen=True, eq=False)
class BlockProblem:
    """The least-squares problem of one block, all others fixed, under a frozen loss.

    Attributes
    ----------
    factors : Factors
    k : int
        The block.
    y : array of the shape of A(X)
    loss : Loss
        Frozen: the trimmed entries are fixed.
    ridge : array, optional
        λ of ½ Σ λ |B|²: one number per column of the block, or an array of its shape.
    steps : int
        Maximum number of conjugate-gradient steps, if rows are not separate systems.
    spread : bool
        Whether to compute the inverses of the row systems as well.
    residual : array, optional
        A(X) − y, if it is known.
    """

    factors: Factors
    k: int
    y: Array
    loss: Loss
    ridge: Array | None = None
    steps: int = 10
    spread: bool = False
    residual: Array | None = None

    @property
    def row_system(self) -> RowSystem | None:
        """The systems of the rows if the block is a mode matrix, or None."""
        design = self.factors.design(self.k)
        return None if design is None else RowSystem(design, self.k, self.ridge, self.spread)


class Operator:
    """A linear map from low-rank objects of a shape to measurements. Base class of operators.

    A subclass must have `shape`, `measured`, `apply` and `adjoint`. The adjoint is taken in
    the real inner product: Re⟨A(X), w⟩ = Re⟨X, A*(w)⟩.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> isinstance(sg.Full((3, 2)), sg.Operator), sg.Full((3, 2)).measured
    (True, (3, 2))
    """

    shape: tuple[int, ...]
    """The shape of X."""

    symmetric: ClassVar[bool] = False
    """Whether starts make `Symmetric` factors by default."""

    fused: ClassVar[bool] = False
    """Whether kernels over observed entries may replace `apply`, `adjoint` and `residual`.

    It is reset in a subclass that overrides one of them, unless the subclass declares it again: its
    own measurements must not be bypassed."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "fused" in vars(cls):
            return
        declared = next(base for base in cls.__mro__ if "fused" in vars(base))
        own = any(
            getattr(cls, name) is not getattr(declared, name)
            for name in ("apply", "adjoint", "residual")
        )
        cls.fused = bool(getattr(declared, "fused", False)) and not own

    @property
    def measured(self) -> tuple[int, ...]:
        """The shape of A(X)."""
        raise NotImplementedError(f"{type(self).__name__} must define measured")

    @property
    def coordinates(self) -> tuple[Array, ...] | None:
        """The coordinates of the observed entries, if some entries are observed."""
        return None

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays of the operator, by name; the data must be of the same library and device."""
        return {}

    def apply(self, factors: Factors) -> Array:
        """Return A(X).

        Parameters
        ----------
        factors : Factors

        Returns
        -------
        array of the shape `measured`
        """
        raise NotImplementedError(f"{type(self).__name__} must define apply(factors)")

    def adjoint(self, w: Array) -> Ambient:
        """Return A*(w).

        Parameters
        ----------
        w : array of the shape `measured`

        Returns
        -------
        Ambient
        """
        raise NotImplementedError(f"{type(self).__name__} must define adjoint(w)")

    def residual(self, factors: Factors, y: Array) -> Array:
        """Return A(X) − y.

        Parameters
        ----------
        factors : Factors
        y : array of the shape `measured`

        Returns
        -------
        array like y
        """
        return self.apply(factors) - y

    def fuses(self, factors: Factors, y: Array) -> bool:
        """Return whether one pass gives both the squares and the gradient of a block.

        Parameters
        ----------
        factors : Factors
        y : array of the shape `measured`

        Returns
        -------
        bool
        """
        return False

    def squares_and_gradient(
        self, factors: Factors, y: Array, k: int
    ) -> tuple[Array | float, Array]:
        """Return ‖A(X) − y‖² and the gradient of half of it with respect to block k.

        Parameters
        ----------
        factors : Factors
        y : array of the shape `measured`
        k : int

        Returns
        -------
        squares : float
        gradient : array like block k
        """
        raise NotImplementedError

    def rows(self, like: Array) -> RowSystems | None:
        """Return the observed entries, prepared for row systems; None if none are observed.

        Parameters
        ----------
        like : array
            Of the kind of the data.

        Returns
        -------
        RowSystems or None
        """
        return None

    def coverage(self, w: Array | None, like: Array) -> Ambient:
        """Return how much each entry of X counts: Σ w |A(E)|² for the unit matrix E there.

        Parameters
        ----------
        w : array of the shape `measured`, optional
            Weights; ones by default.
        like : array
            Of the kind of the data.

        Returns
        -------
        Ambient
        """
        raise TypeError(
            f"{type(self).__name__} does not observe entries one by one; use Alternating, or "
            "ScaledGD"
        )

    def spectral(self, y: Array, kept: int | None) -> Ambient:
        """Return what a spectral start decomposes: A*(y).

        Parameters
        ----------
        y : array of the shape `measured`
        kept : int, optional
            How many of the measurements are left in y (the truncated start of the l1 problems);
            these represent all of them.

        Returns
        -------
        Ambient
        """
        return self.adjoint(y if kept is None else y * (math.prod(self.measured) / kept))

    # ---- one block at a time

    def step_block(self, problem: BlockProblem) -> RowSolution:
        """Return the step to subtract from a block to minimise a frozen loss over it.

        The loss is replaced by the least squares that `Loss.curvature` gives. If entries are
        observed, each row of a mode matrix is a small separate system. Otherwise conjugate
        gradients with ScaledGD's preconditioner need only `apply` and `adjoint`; if the block is
        small, they need its normal equations only.

        Parameters
        ----------
        problem : BlockProblem

        Returns
        -------
        RowSolution
        """
        system = problem.row_system
        if system is not None and problem.loss.least_squares and self.fuses_rows(problem, system):
            return self.fused_step(problem, system)
        F, k, loss, ridge = problem.factors, problem.k, problem.loss, problem.ridge
        residual = problem.residual
        residual = self.residual(F, problem.y) if residual is None else residual
        gradient = F.pullback_block(self.adjoint(loss(residual)[1]), k)
        if ridge is not None:
            gradient = gradient + ridge * F.blocks[k]
        return self.solve_block(problem, gradient, loss.curvature(residual))

    def exact_step(self, problem: BlockProblem) -> Array:
        """Return the step to subtract from a block, exact if rows are separate systems.

        Parameters
        ----------
        problem : BlockProblem

        Returns
        -------
        array like the block
        """
        exact = problem.row_system is not None and self.rows(problem.y) is not None
        return self.step_block(replace(problem, spread=exact)).step

    def fuses_rows(
        self, problem: BlockProblem, system: RowSystem, root: Array | None = None
    ) -> bool:
        """Return whether `fused_step` applies.

        Parameters
        ----------
        problem : BlockProblem
        system : RowSystem
        root : array, optional
            Multiplies A(X).

        Returns
        -------
        bool
        """
        F, k = problem.factors, problem.k
        rows = self.rows(problem.y) if self.fused and F.alone(k) else None
        return rows is not None and rows.steps(system, root, F.blocks[k], problem.y)

    def fused_step(
        self, problem: BlockProblem, system: RowSystem, root: Array | None = None
    ) -> RowSolution:
        """Return `step_block` for least squares over the kept entries, by one kernel.

        Parameters
        ----------
        problem : BlockProblem
        system : RowSystem
        root : array, optional
            Multiplies A(X).

        Returns
        -------
        RowSolution
        """
        F, k, rows = problem.factors, problem.k, self.rows(problem.y)
        assert rows is not None
        x = F.as_mode(k, F.blocks[k])
        return rows.step_rows(system, x, problem.y, root, problem.loss.kept)

    def update_block(
        self, problem: BlockProblem, system: UnsureRows, root: Array | None = None
    ) -> RowUpdate | None:
        """Return `RowSystems.update_rows` of a block; None if there is no such kernel.

        Parameters
        ----------
        problem : BlockProblem
        system : UnsureRows
        root : array, optional
            Multiplies A(X).

        Returns
        -------
        RowUpdate or None
        """
        rows = self.rows(problem.y) if self.fused and problem.loss.least_squares else None
        if rows is None:
            return None
        x = problem.factors.blocks[problem.k]
        return rows.update_rows(system, x, problem.y, root, problem.loss.kept)

    def block_matrix(self, factors: Factors, k: int) -> Array | None:
        """Return the matrix J with A(X) = J vec(B) + const for block B = k.

        None if it is not cheap, or if an operator has none.

        Parameters
        ----------
        factors : Factors
        k : int

        Returns
        -------
        array of shape (m, size of the block), or None
        """
        return None

    def solve_block(
        self, problem: BlockProblem, gradient: Array, weights: Array | None = None
    ) -> RowSolution:
        """Return the D that minimises ½ Σ w |A(X_D)|² − Re⟨gradient, D⟩ + ½ Σ ridge |D|².

        Parameters
        ----------
        problem : BlockProblem
        gradient : array like the block
        weights : array of the shape `measured`, optional

        Returns
        -------
        RowSolution
        """
        F, k, ridge, system = problem.factors, problem.k, problem.ridge, problem.row_system
        rows = None if system is None else self.rows(problem.y)
        if rows is not None and system is not None:
            found = rows.solve_rows(system, F.as_mode(k, gradient), weights)
            return found._replace(step=F.as_mode(k, found.step))

        xp, J = array_namespace(gradient), self.block_matrix(F, k)
        small = J is not None and J.shape[0] * J.shape[1] ** 2 <= FORMED
        H = _normal_matrix(J, weights) if small else None

        @unwarned
        def normal(D: Array) -> Array:
            if H is not None:
                G = xp.reshape(H @ xp.reshape(D, (-1,)), D.shape)
            elif J is not None:
                G = xp.reshape(_weighted(J @ xp.reshape(D, (-1,)), weights) @ J, D.shape)
            else:
                measured = self.apply(F.linear(k, D))
                measured = measured if weights is None else weights * measured
                G = F.pullback_block(self.adjoint(measured), k)
            return G if ridge is None else G + ridge * D

        precondition = F.preconditioner(k)
        step = conjugate_gradients(normal, gradient, precondition, CORE_TOL, problem.steps)
        return RowSolution(step)


def _weighted(x: Array, weights: Array | None) -> Array:
    """Return the rows of x times their weights."""
    if weights is None:
        return x
    return array_namespace(x).reshape(weights, (-1,) + (1,) * (x.ndim - 1)) * x


@unwarned
def _normal_matrix(J: Array, weights: Array | None) -> Array:
    """Return Jᵀ diag(w) J."""
    return J.T @ _weighted(J, weights)
