"""Entries in shards as an operator, and the problem of fitting them.

The loop of a fit runs here, on factors that are here. Whatever needs entries is asked of the
shards: of those of rows if it is about rows, and of those of columns if it is about columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from array_api_compat import array_namespace, device

from ..ambient import Ambient, Modes
from ..factors import Blocks, Bordered, Factors, LowRank
from ..kernels import RowSolution, RowUpdate, Sums, UnsureRows
from ..kernels.cpp import sizes_of
from ..kernels.entries import compact, jitter
from ..linalg import gram
from ..operators import BlockProblem, Operator
from ..problems import Observed
from ..problems.observed import ObservedView
from . import systems, tasks
from .shards import concatenated
from .tall import is_tall
from .tasks import Other, Own, Unsure

if TYPE_CHECKING:
    from .observations import ShardedObservations

Array = Any


@dataclass(frozen=True, eq=False)
class Distant:
    """One number per entry, in the shards: the values, or what factors leave of them.

    Attributes
    ----------
    data : ShardedObservations
    factors : LowRank or Bordered, optional
        The numbers are X − y for these, and otherwise y.
    """

    data: ShardedObservations
    factors: Any = None

    @property
    def device(self) -> Any:
        return device(self.data.example)

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def shape(self) -> tuple[int]:
        return (self.data.size,)

    @property
    def ndim(self) -> int:
        return 1

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return array_namespace(self.data.example)


def own_of(data: ShardedObservations, F: Factors, mode: int) -> list[Own]:
    """Return the rows of a block of factors that every shard of a mode has."""
    border = (F.u, F.v)[mode] if isinstance(F, Bordered) else None
    blocks, borders = data.cut(F.blocks[mode], mode), data.cut(border, mode)
    return [Own(x, b) for x, b in zip(blocks, borders, strict=True)]


def own_width(F: Factors) -> int:
    """Return the columns of the factor of the rows."""
    return int(F.blocks[0].shape[1])


def other_of(F: Factors, mode: int) -> Other:
    """Return what all shards of a mode are sent of factors."""
    border = (F.v, F.u)[mode] if isinstance(F, Bordered) else None
    return Other(F.blocks[1 - mode], border)


@dataclass(frozen=True, eq=False)
class ShardedEntries(Operator):
    """Some entries are observed, and live in shards.

    Parameters
    ----------
    data : ShardedObservations
    """

    data: ShardedObservations

    fused = True

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.data.shape

    @property
    def measured(self) -> tuple[int, ...]:
        return (self.data.size,)

    def adjoint(self, w: Any) -> Ambient:
        return ShardedAmbient(w.data, w)

    def coverage(self, w: Any, like: Any) -> Ambient:
        return ShardedAmbient(self.data, None)

    def residual(self, factors: Factors, y: Any) -> Any:
        return replace(y, factors=factors)

    def squares(self, F: Factors, y: Distant) -> Any:
        """Return ‖A(X) − y‖²."""
        data = y.data
        own = [(x,) for x in own_of(data, F, 0)]
        found = data.each(tasks.squares, 0, own, other_of(F, 0), data.chain)
        return sum(found)

    def squares_and_gradient(self, factors: Factors, y: Any, k: int) -> tuple[Array | float, Array]:
        data = y.data
        own = [(x,) for x in own_of(data, factors, k)]
        squares = self.squares(factors, y)
        if not is_tall(factors.blocks[0]):
            found = data.each(tasks.gradient, k, own, other_of(factors, k), data.chain)
            return squares, concatenated(found)
        if k == 0:
            return squares, data.tall(
                tasks.gradient_kept,
                own,
                other_of(factors, 0),
                data.chain,
                widths=[own_width(factors)],
            )[0]
        questions = [(ask, data.dtype) for ask in data.questions(factors)]
        rows = [(x,) for x in own_of(data, factors, 0)]
        found = data.added(tasks.column_gradient, rows, questions, systems.as_they_are, data.chain)
        return squares, concatenated(found)

    def step_block(self, problem: BlockProblem) -> RowSolution:
        F, k, y, data = problem.factors, problem.k, problem.y, problem.y.data
        ridge: list[Any] = [problem.ridge] * len(data.shards[k])
        if problem.ridge is not None and problem.ridge.ndim == 2:
            ridge = data.cut(problem.ridge, k)
        if is_tall(F.blocks[0]):
            return self._tall_step(problem, ridge)
        own = list(zip(own_of(data, F, k), ridge, strict=True))
        found = y.data.each(tasks.step, k, own, other_of(F, k), data.chain, problem.spread)
        step = concatenated([one.step for one in found])
        if not problem.spread:
            return RowSolution(step)
        return RowSolution(
            step,
            concatenated([one.diagonal for one in found]),
            sum(one.total for one in found),
        )

    def _tall_step(self, problem: BlockProblem, ridge: list[Any]) -> RowSolution:
        """The same where rows stay on the workers."""
        F, k, data, spread = problem.factors, problem.k, problem.y.data, problem.spread
        assert isinstance(F, LowRank | Bordered)
        width = F.blocks[k].shape[1]
        if k == 0:
            own = list(zip(own_of(data, F, 0), ridge, strict=True))
            solved, *more, totals = data.tall(
                *(tasks.step_kept, own, other_of(F, 0), data.chain, spread),
                widths=[width, width][: 1 + spread],
                solves=True,
            )
            step = F.blocks[0].leading_to(solved)
            return RowSolution(step, more[0], sum(totals)) if spread else RowSolution(step)
        rows = [(x, None) for x in own_of(data, F, 0)]
        whole = gram(F.partner(1))
        held = problem.ridge
        questions = []
        for ask in data.questions(F, systems=True):
            some = held if held is None or held.ndim == 1 else held[ask.first : ask.last]
            questions.append((ask, systems.Asked(whole, some, spread, data.dtype)))
        found = data.added(tasks.column_systems, rows, questions, systems.stepped, data.chain)
        step = concatenated([one.step for one in found])
        if not spread:
            return RowSolution(step)
        diagonal = concatenated([one.diagonal for one in found])
        return RowSolution(step, diagonal, sum(one.total for one in found))

    def _tall_update(self, problem: BlockProblem, system: UnsureRows) -> RowUpdate | None:
        """`update_block` where rows stay on the workers."""
        F, k, data = problem.factors, problem.k, problem.y.data
        assert isinstance(F, LowRank | Bordered)
        width = F.blocks[k].shape[1]
        if k == 0:
            own = [(x,) for x in own_of(data, F, 0)]
            unsure = Unsure(system.variance, system.ridge, system.noise, system.given)
            solved, variance, known = data.tall(
                *(tasks.update_kept, own, other_of(F, 0), unsure, data.chain),
                widths=[width, width],
                solves=True,
            )
            if any(one is None for one in known):
                return None
            total, moments, sums = zip(*known, strict=True)
            added = Sums(*map(sum, zip(*sums, strict=True)))
            return RowUpdate(solved, variance, sum(total), sum(moments), added)
        M, xp = system.M, array_namespace(system.M)
        sizes = sizes_of(gram(M), system.ridge)
        if sizes is None:
            return None
        # variances are summed in single precision, as the kernels do
        units = xp.astype(xp.max(system.variance, axis=0), xp.float64)
        inverse = xp.where(units > 0, 1 / xp.where(units > 0, units, 1.0), 0.0)
        doubt = xp.astype(xp.astype(system.variance, xp.float64) * inverse, xp.float32)
        if system.given is not None:
            doubt = xp.concat([doubt, system.given[:, 1:]], axis=1)
        rows = list(zip(own_of(data, F, 0), data.cut(doubt, 0), strict=True))
        asked = systems.Unsure(
            *(sizes, units, system.ridge, float(system.noise), jitter(M), data.dtype)
        )
        questions = [(ask, asked) for ask in data.questions(F, systems=True)]
        found = data.added(tasks.column_systems, rows, questions, systems.updated, data.chain)
        return RowUpdate(
            concatenated([one.solved for one in found]),
            concatenated([one.variance for one in found]),
            sum(one.total for one in found),
            sum(one.moments for one in found),
            Sums(*map(sum, zip(*(one.sums for one in found), strict=True))),
        )

    def exact_step(self, problem: BlockProblem) -> Array:
        return self.step_block(replace(problem, spread=True)).step

    def update_block(
        self, problem: BlockProblem, system: UnsureRows, root: Array | None = None
    ) -> RowUpdate | None:
        F, k, data = problem.factors, problem.k, problem.y.data
        if data.crowded:
            return None
        if is_tall(F.blocks[0]):
            return self._tall_update(problem, system)
        own = [(x,) for x in own_of(data, F, k)]
        unsure = Unsure(system.variance, system.ridge, system.noise, system.given)
        found = data.each(tasks.update, k, own, other_of(F, k), unsure, data.chain)
        if any(one is None for one in found):
            return None
        sums = Sums(*map(sum, zip(*(one.sums for one in found), strict=True)))
        return RowUpdate(
            concatenated([one.solved for one in found]),
            concatenated([one.variance for one in found]),
            sum(one.total for one in found),
            sum(one.moments for one in found),
            sums,
        )


@dataclass(frozen=True, eq=False)
class ShardedAmbient(Ambient):
    """A matrix that is zero but at the entries.

    Parameters
    ----------
    data : ShardedObservations
    weights : Distant, optional
        The numbers there; ones by default.
    """

    data: ShardedObservations
    weights: Distant | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def contract(self, modes: Modes, skip: int | None = None) -> Array:
        if skip is None:
            return modes[0].T @ self.contract(modes, 0)
        data, w = self.data, self.weights
        if data.far:
            return self._tall(modes[1 - skip], skip)
        M = compact(modes[1 - skip])
        own: list[Any] = [(None,)] * len(data.shards[skip])
        other = None
        if w is not None and w.factors is not None:
            own = [(x,) for x in own_of(data, w.factors, skip)]
            other = other_of(w.factors, skip)
        chain = None if w is None else data.chain
        sums = concatenated(data.each(tasks.product, skip, own, M, other, chain))
        return sums if skip == 0 else sums.T

    def _tall(self, M: Array, skip: int) -> Array:
        """The same where rows stay on the workers."""
        data, w = self.data, self.weights
        F = None if w is None else w.factors
        chain = None if w is None else data.chain
        mine = [None] * len(data.shards[0]) if F is None else own_of(data, F, 0)
        if skip == 0:
            other = None if F is None else other_of(F, 0)
            own = [(x,) for x in mine]
            return data.tall(
                *(tasks.product_kept, own, compact(M), other, chain), widths=[M.shape[1]]
            )[0]
        both = list(zip(mine, data.cut(M, 0), strict=True))
        questions = [(ask, data.dtype) for ask in data.questions(F)]
        found = data.added(tasks.column_products, both, questions, systems.as_they_are, chain)
        return concatenated(found).T


class ShardedView(ObservedView):
    """How the problem looks from one iterate."""

    problem: ShardedProblem

    @property
    def residual(self) -> Any:
        return self.problem.operator.residual(self.factors, self.problem.y)

    @cached_property
    def value(self) -> Array:
        return self.objective(self.factors)

    def pullback(self) -> Blocks:
        problem, F = self.problem, self.factors
        grads: Blocks = tuple(
            problem.operator.squares_and_gradient(F, problem.y, k)[1] for k in (0, 1)
        )
        if problem.ridge is None:
            return grads
        triples = zip(grads, F.blocks, problem.ridge, strict=True)
        return tuple(g if G is None else g + G * B for g, B, G in triples)

    def objective(self, factors: Factors) -> Array:
        problem = self.problem
        half = 0.5 * problem.operator.squares(factors, problem.y)
        value = array_namespace(problem.example).asarray(half, dtype=problem.dtype)
        return value + problem.penalty(factors)

    def moved(self, factors: Factors) -> ShardedView:
        return ShardedView(self.problem, factors, self.loss, self.memory)

    def ambient(self) -> Ambient:
        return self.problem.operator.adjoint(self.residual)

    def reweighted(self, weight: Array) -> ObservedView:
        self._missing("reweighted")


class ShardedProblem(Observed):
    """Least squares over entries in shards."""

    operator: ShardedEntries
    y: Distant

    def __post_init__(self) -> None:
        """Nothing is to be checked: entries were checked when they were read."""

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
        return ShardedView(self, factors, self.loss, memory)

    @cached_property
    def value_at_zero(self) -> float:
        return 0.5 * self.y.data.sum_of_squares

    @cached_property
    def gradient_at_zero(self) -> Ambient:
        blank = LowRank(*(self.y.data.blank(k, 1) for k in (0, 1)))
        return self.operator.adjoint(self.operator.residual(blank, self.y))

    def measured_square(self, factors: Factors) -> Array:
        zero = self.y.data.with_zeros()
        return array_namespace(self.example).asarray(self.operator.squares(factors, Distant(zero)))

    def backproject(self, keep: float | None = None) -> Ambient:
        if keep is not None:
            raise TypeError("a start from some of the measurements needs them on one machine")
        return self.operator.adjoint(self.y)
