"""The problem of fitting entries in shards."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from array_api_compat import array_namespace

from ..ambient import Ambient
from ..factors import Blocks, Factors
from ..losses import HardTrim
from ..problems import Observed
from ..problems.observed import ObservedView
from .operator import Distant, ShardedEntries

Array = Any


class ShardedView(ObservedView):
    """How the problem looks from one iterate."""

    problem: ShardedProblem

    @cached_property
    def value(self) -> Array:
        known = getattr(self.loss, "known", None)
        return self.objective(self.factors) if known is None else self._with_penalty(known[1])

    def pullback(self) -> Blocks:
        problem, F = self.problem, self.factors
        grads: Blocks
        if self.loss.kept is None and F.bilinear:
            grads = tuple(problem.operator.squares_and_gradient(F, problem.y, k)[1] for k in (0, 1))
        else:
            grads = F.pullback(self.ambient())
        return self._with_ridge(grads)

    def objective(self, factors: Factors) -> Array:
        problem = self.problem
        squares = problem.operator.squares(factors, problem.y, self.loss.kept)
        return self._with_penalty(squares, factors)

    def _with_penalty(self, squares: Any, factors: Factors | None = None) -> Array:
        problem, half = self.problem, 0.5 * squares
        value = array_namespace(problem.example).asarray(half, dtype=problem.dtype)
        return value + problem.penalty(self.factors if factors is None else factors)

    def moved(self, factors: Factors) -> ShardedView:
        return ShardedView(self.problem, factors, self.loss, self.memory)

    def ambient(self) -> Ambient:
        return self.problem.operator.adjoint(replace(self.residual, kept=self.loss.kept))

    def coverage(self) -> Ambient:
        return self.problem.operator.coverage(self.loss.kept, self.problem.y)

    def pulled(self) -> Ambient:
        return self.problem.operator.adjoint(replace(self.problem.y, kept=self.loss.kept))

    def reweighted(self, weight: Array) -> ObservedView:
        self._missing("reweighted")


class ShardedProblem(Observed):
    """Least squares over entries in shards, or over those that are not rejected."""

    operator: ShardedEntries
    y: Distant

    def __post_init__(self) -> None:
        """Skip the checks: entries were checked when they were read."""

    @property
    def dtype(self) -> Any:
        """The precision of the values."""
        return self.y.dtype

    @property
    def example(self) -> Array:
        return self.y.data.example

    @property
    def blas_threads(self) -> int | None:  # type: ignore[override]
        return None

    def view(self, factors: Factors, t: int = 0, memory: Any = None) -> ShardedView:
        if self.loss.least_squares:
            return ShardedView(self, factors, self.loss, memory)
        residual = self.operator.residual(factors, self.y)
        loss, memory = self.loss.freeze(residual, t, memory)
        return ShardedView(self, factors, loss, memory, residual)

    @cached_property
    def value_at_zero(self) -> float:
        if self.loss.least_squares:
            return 0.5 * self.y.data.sum_of_squares
        return super().value_at_zero

    @cached_property
    def gradient_at_zero(self) -> Ambient:
        return self.operator.adjoint(self.operator.residual(self.y.whole, self.y))

    def measured_square(self, factors: Factors) -> Array:
        zero = self.y.data.with_zeros()
        return array_namespace(self.example).asarray(self.operator.squares(factors, Distant(zero)))

    def backproject(self, keep: float | None = None) -> Ambient:
        if keep is not None:
            raise TypeError("a start from some of the measurements needs them on one machine")
        if isinstance(self.loss, HardTrim):
            return self.operator.adjoint(replace(self.y, kept=self.loss.clear(self.y)))
        return self.operator.adjoint(self.y)
