"""Recovery from measurements: an operator, data, and a loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .. import checks
from ..ambient import Ambient
from ..factors import Blocks, Factors
from ..kernels import RowSolution, RowUpdate, UnsureRows
from ..linalg import inner, is_complex, magnitude2
from ..losses import Loss, Reweighted, Squared
from ..namespaces import array_namespace
from ..operators import BlockProblem, Operator
from .base import Problem, View

Array = Any


class ObservedView(View):
    """A view of an `Observed` problem with a frozen loss; everything is computed on demand."""

    problem: Observed

    def __init__(
        self,
        problem: Observed,
        factors: Factors,
        loss: Loss,
        memory: Any = None,
        residual: Array | None = None,
    ) -> None:
        self.problem, self.factors, self.loss, self.memory = problem, factors, loss, memory
        self._residual = residual

    @property
    def residual(self) -> Array:
        """A(X) − y, formed when it is first needed."""
        if self._residual is None:
            self._residual = self.problem.operator.residual(self.factors, self.problem.y)
        return self._residual

    def forget(self) -> None:
        self._residual = None
        self.__dict__.pop("_kept", None)
        self.loss = self.loss.without_residual()

    @cached_property
    def _first(self) -> tuple[Array | float, Array] | None:
        """Squares and the gradient of block 0, if one pass over the data gives both."""
        operator, y = self.problem.operator, self.problem.y
        plain = self.loss.least_squares and self.loss.kept is None
        if self._residual is not None or not plain or not operator.fuses(self.factors, y):
            return None
        return operator.squares_and_gradient(self.factors, y, 0)

    @cached_property
    def value(self) -> Array:
        """The loss, a 0-d array."""
        problem = self.problem
        if self._first is None:
            value = self.loss.value(self.residual)
        else:
            xp = array_namespace(problem.y)
            value = xp.asarray(0.5 * self._first[0], dtype=problem.y.dtype)
        return problem.scale * value + problem.penalty(self.factors)

    def pullback(self) -> Blocks:
        problem, F = self.problem, self.factors
        if self._first is None:
            grads = F.pullback(self.ambient())
        else:
            second = problem.operator.squares_and_gradient(F, problem.y, 1)[1]
            grads = problem.scale * self._first[1], problem.scale * second
        return self._with_ridge(grads)

    def _with_ridge(self, grads: Blocks) -> Blocks:
        """Add the gradients of the penalty."""
        if self.problem.ridge is None:
            return grads
        triples = zip(grads, self.factors.blocks, self.problem.ridge, strict=True)
        return tuple(g if G is None else g + G * B for g, B, G in triples)

    def objective(self, factors: Factors) -> Array:
        problem = self.problem
        value = self.loss.value(problem.operator.residual(factors, problem.y))
        return problem.scale * value + problem.penalty(factors)

    def moved(self, factors: Factors) -> ObservedView:
        return ObservedView(self.problem, factors, self.loss, self.memory)

    def reweighted(self, weight: Array) -> ObservedView:
        loss = Reweighted(weight, self.loss)
        return ObservedView(self.problem, self.factors, loss, self.memory, self._residual)

    @cached_property
    def _kept(self) -> Array | None:
        """The weight of every measurement; None if all weights are equal."""
        # the shape and dtype of the data are enough if the residual itself does not matter
        return self.loss.curvature(self.problem.y if self.loss.fixed else self.residual)

    def pulled(self) -> Ambient:
        y, kept = self.problem.y, self._kept
        return self.problem.operator.adjoint(y if kept is None else kept * y)

    def ambient(self) -> Ambient:
        weight, scale = self.loss(self.residual)[1], self.problem.scale
        return self.problem.operator.adjoint(weight if scale == 1 else scale * weight)

    def coverage(self) -> Ambient:
        return self.problem.operator.coverage(self._kept, self.problem.y)

    def block_step(
        self, k: int, *, at: Factors | None = None, ridge: Array | None = None, steps: int = 10
    ) -> Array:
        return self._block(k, at, ridge, steps, False).step

    def block_move(self, k: int, *, at: Factors | None = None, steps: int = 10) -> RowSolution:
        found = self._block(k, at, None, steps, False)
        whole = self.plain and self.loss.kept is None
        return found if whole else found._replace(squares=None)

    def block_solution(
        self, k: int, *, at: Factors | None = None, ridge: Array | None = None
    ) -> RowSolution:
        return self._block(k, at, ridge, 10, True)

    @property
    def plain(self) -> bool:
        problem = self.problem
        return problem.scale == 1 and problem.ridge is None and self.loss.least_squares

    def block_update(self, system: UnsureRows, *, at: Factors) -> RowUpdate | None:
        problem = self.problem
        if not self.plain:
            return None
        block = BlockProblem(at, system.mode, problem.y, self.loss)
        return problem.operator.update_block(block, system)

    def _block(
        self, k: int, at: Factors | None, ridge: Array | None, steps: int, spread: bool
    ) -> RowSolution:
        problem, ridge = self.problem, self.problem.ridge_of(k, ridge)
        where = self.factors if at is None else at
        known = self._residual if where is self.factors else None
        return problem.operator.step_block(
            BlockProblem(where, k, problem.y, self.loss, ridge, steps, spread, known)
        )


@dataclass(frozen=True, eq=False)
class Observed(Problem):
    """Recover X from y ≈ A(X): minimise scale · loss(A(X) − y).

    Parameters
    ----------
    operator : Operator
        `Full`, `Entries`, `Sensing`, `RankOne`.
    y : array of the shape of A(X)
        The data. Its library, dtype and device are those of the factors.
    loss : Loss
        `Squared`, `Absolute`, `TopTrim`, `SoftTrim`.
    scale : float
        Multiplies the value and the backprojection: 1/p for completion.
    ridge : tuple of arrays or None, one per block, optional
        Adds ½ Σ_k Σ λ_k |B_k|², which regularises rows with few data. λ_k has one number per column
        of block k, or the shape of the block.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> rows, columns = np.nonzero(np.ones((3, 2)))
    >>> problem = sg.Observed(sg.Entries((rows, columns), (3, 2)), np.ones(6))
    >>> sg.solve(problem, sg.spectral(1), sg.ScaledGD(), max_iter=5).factors.full().round(6)
    array([[1., 1.],
           [1., 1.],
           [1., 1.]])
    """

    operator: Operator
    y: Array
    loss: Loss = field(default_factory=Squared)
    scale: float = 1.0
    ridge: tuple[Array | None, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.operator, Operator):
            raise TypeError(
                "operator must be Full, Entries, Sensing, RankOne or another Operator, "
                f"not {self.operator!r}"
            )
        if not isinstance(self.loss, Loss):
            raise TypeError(
                "loss must be Squared(), Absolute(), TopTrim(fraction), SoftTrim(schedule) or "
                f"another Loss, not {self.loss!r}"
            )
        xp = checks.namespace(y=self.y, **self.operator.arrays)
        checks.floating(y=self.y)
        for name, x in self.operator.arrays.items():
            if xp.isdtype(x.dtype, "integral"):
                continue
            # quadratic samples of a complex X are real
            same = x.dtype == self.y.dtype
            if not (same or (is_complex(x) and xp.real(x[:0, ...]).dtype == self.y.dtype)):
                raise TypeError(
                    f"y is {self.y.dtype} but {name} is {x.dtype}; convert them to one dtype"
                )
        if tuple(self.y.shape) != self.operator.measured:
            raise ValueError(
                f"y has shape {tuple(self.y.shape)}, but {type(self.operator).__name__} measures "
                f"{self.operator.measured}"
            )
        checks.finite("y", self.y)
        scale = checks.number("scale", self.scale, least=0, open_=True)
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "loss", self.loss.bind(self.operator))

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape of X."""
        return self.operator.shape

    @property
    def example(self) -> Array:
        """An array of the kind, dtype and device that the factors must have."""
        complex_arrays = (x for x in self.operator.arrays.values() if is_complex(x))
        return next(complex_arrays, self.y)

    @property
    def size(self) -> int:
        """The number of measurements."""
        return math.prod(self.operator.measured)

    @property
    def sampling(self) -> float:
        """The share of the entries that is observed: 1 / scale."""
        return 1 / self.scale

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        """Whether starts make `Symmetric` factors by default."""
        return self.operator.symmetric

    @property
    def blas_threads(self) -> int | None:  # type: ignore[override]
        """1 if the kernels do the work, and only small products are left to the BLAS."""
        light = isinstance(self.y, np.ndarray) and self.y.ndim < 3
        return 1 if light and self.operator.rows(self.y) is not None else None

    @property
    def comparable(self) -> bool:  # type: ignore[override]
        """Whether the values of different iterates are values of one function."""
        return self.loss.comparable

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        """Whether the gradients are gradients, not only subgradients."""
        return self.loss.smooth

    def view(self, factors: Factors, t: int = 0, memory: Any = None) -> ObservedView:
        if self.loss.least_squares:  # nothing to freeze: the residual may never be formed
            return ObservedView(self, factors, self.loss, memory)
        residual = self.operator.residual(factors, self.y)
        loss, memory = self.loss.freeze(residual, t, memory)
        return ObservedView(self, factors, loss, memory, residual)

    def block_step(self, factors: Factors, k: int, ridge: Array | None = None) -> Array:
        """Return the step to subtract from block k, for least squares.

        It is exact if rows are separate systems.

        Parameters
        ----------
        factors : Factors
        k : int
        ridge : array, optional
            One number per column of the block, or an array of its shape.

        Returns
        -------
        array like block k
        """
        ridge = self.ridge_of(k, ridge)
        return self.operator.exact_step(BlockProblem(factors, k, self.y, self.loss, ridge))

    def ridge_of(self, k: int, given: Array | None = None) -> Array | None:
        """Return the ridge of block k for a loss that is not multiplied by `scale`.

        Parameters
        ----------
        k : int
        given : array, optional
            Replaces the ridge of the problem.

        Returns
        -------
        array or None
        """
        if given is None and self.ridge is not None:
            given = self.ridge[k]
        return None if given is None else given / self.scale

    def penalty(self, factors: Factors) -> Array | float:
        """Return ½ Σ_k Σ λ_k |B_k|².

        Parameters
        ----------
        factors : Factors

        Returns
        -------
        0-d array
        """
        if self.ridge is None:
            return 0.0
        pairs = zip(factors.blocks, self.ridge, strict=True)
        return 0.5 * sum(inner(B, G * B) for B, G in pairs if G is not None)

    @cached_property
    def value_at_zero(self) -> float:
        """The loss of X = 0, as a reference for values."""
        residual = self.y if self.loss.even else -self.y
        return float(self.scale * self.loss.freeze(residual, 0, None)[0].value(residual))

    @cached_property
    def gradient_at_zero(self) -> Ambient:
        """The ambient gradient at X = 0, as a reference for gradients."""
        return self.operator.adjoint(self.scale * self.loss(-self.y)[1])

    def measured_square(self, factors: Factors) -> Array:
        """Return scale · ‖A(X)‖², the curvature of the loss along the factors.

        Parameters
        ----------
        factors : Factors

        Returns
        -------
        0-d array
        """
        measured = self.operator.apply(factors)
        return self.scale * array_namespace(measured).sum(magnitude2(measured))

    def backproject(self, keep: float | None = None) -> Ambient:
        """Return what a spectral start decomposes: scale · A*(y), with y cleaned by the loss.

        The operator may modify it: `RankOne` averages and removes the part along the identity.

        Parameters
        ----------
        keep : float in (0, 1], optional
            The share of the measurements to use, those of smallest magnitude.

        Returns
        -------
        Ambient
        """
        y = self.loss.clean(self.y)
        y = y if self.scale == 1 else self.scale * y
        if keep is None:
            return self.operator.spectral(y, None)
        keep = checks.number("keep", keep, least=0, most=1, open_=True)
        xp = array_namespace(y)
        flat = xp.reshape(y, (-1,))
        kept = math.ceil(keep * flat.shape[0] - 1e-9)
        ranks = xp.argsort(xp.argsort(xp.abs(flat), stable=True), stable=True)
        flat = xp.where(ranks < kept, flat, xp.zeros_like(flat))
        return self.operator.spectral(xp.reshape(flat, y.shape), kept)
