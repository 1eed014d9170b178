"""Entries in shards as an operator.

The loop of a fit runs here, on factors that are here. Whatever needs entries is asked of the
shards: of those of rows if it is about rows, and of those of columns if it is about columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace, device

from ..ambient import Ambient, Modes
from ..factors import Bordered, Factors, LowRank, Tucker
from ..kernels import RowSolution, RowUpdate, Sums, UnsureRows
from ..kernels.design import sizes_of
from ..kernels.entries import compact, jitter
from ..linalg import conjugate_gradients, gram, mode_product
from ..operators import BlockProblem, Operator
from ..operators.base import CORE_TOL
from . import systems, tasks
from .shards import concatenated
from .tall import is_tall
from .tasks import Other, Own, Trim, Unsure
from .trimming import Afar, Within
from .workers import Work, the_sum

if TYPE_CHECKING:
    from .in_shards import InShards

Array = Any


@dataclass(frozen=True, eq=False)
class Distant:
    """One number per entry, in the shards: the values, or what factors leave of them.

    Attributes
    ----------
    data : InShards
    factors : LowRank or Bordered, optional
        The numbers are X − y for these, and otherwise y.
    kept : Within, optional
        Where they are not zero.
    """

    data: InShards
    factors: Any = None
    kept: Within | None = None

    backend = Afar()

    @property
    def whole(self) -> Any:
        """The factors; zero if there are none."""
        if self.factors is not None:
            return self.factors
        columns = tuple(self.data.blank(k, 1) for k in range(len(self.data.shape)))
        if len(columns) == 2:
            return LowRank(*columns)
        return Tucker(columns, np.zeros((1,) * len(columns), dtype=self.dtype))

    def each(self, work: Work, *more: Any) -> list[Any]:
        """Return what every shard of rows answers about its numbers."""
        own, other = self._sides
        return self.data.each(work, 0, [(x,) for x in own], other, self.data.chain, *more)

    def total(self, work: Work, ask: Any) -> Any:
        """Return the sum of what every shard answers."""
        own, other = self._sides
        rows, data = [(x,) for x in own], self.data
        return data.added(work, rows, [(ask,)], the_sum, other, data.chain)[0]

    @property
    def _sides(self) -> tuple[list[Any], Any]:
        if self.factors is None:
            return [None] * len(self.data.shards[0]), None
        return own_of(self.data, self.factors, 0), other_of(self.factors, 0)

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


def own_of(data: InShards, F: Factors, mode: int) -> list[Own]:
    """Return the rows of a block of factors that belong to each shard of a mode."""
    border = (F.u, F.v)[mode] if isinstance(F, Bordered) else None
    blocks, borders = data.cut(F.blocks[mode], mode), data.cut(border, mode)
    return [Own(x, b) for x, b in zip(blocks, borders, strict=True)]


def _same_rows(F: Any, G: Any, mode: int) -> bool:
    """Whether two factors have the same block of a mode, and the same vector beside it."""
    borders = [(X.u, X.v)[mode] if isinstance(X, Bordered) else None for X in (F, G)]
    return F.blocks[mode] is G.blocks[mode] and borders[0] is borders[1]


def own_width(F: Factors) -> int:
    """Return the columns of the factor of the rows."""
    return int(F.blocks[0].shape[1])


def other_of(F: Factors, mode: int) -> Other:
    """Return the factors that all shards of a mode are sent."""
    if isinstance(F, Tucker):
        return Other((*F.blocks[:mode], *F.blocks[mode + 1 :]), None)
    border = (F.v, F.u)[mode] if isinstance(F, Bordered) else None
    return Other(F.blocks[1 - mode], border)


@dataclass(frozen=True, eq=False)
class ShardedEntries(Operator):
    """Some entries are observed, and live in shards.

    Parameters
    ----------
    data : InShards
    """

    data: InShards

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
        kept = w if isinstance(w, Within) else self.data.kept
        return ShardedAmbient(self.data, None, kept)

    def residual(self, factors: Factors, y: Any) -> Any:
        return replace(y, factors=factors)

    def squares(self, F: Factors, y: Distant, kept: Within | None = None) -> Any:
        """Return ‖A(X) − y‖², over the entries that are kept."""
        data = y.data
        was, trim = self._trim(F, kept, 0)
        own = list(zip(own_of(data, F, 0), was, strict=True))
        found = data.each(tasks.squares, 0, own, other_of(F, 0), data.chain, trim)
        return sum(found)

    def _trim(self, F: Any, kept: Within | None, mode: int) -> tuple[list[Any], Trim | None]:
        """Return what each shard, and what all shards, need to tell which entries are kept.

        Parameters
        ----------
        F : LowRank or Bordered, optional
            What they are sent anyway.
        kept : Within, optional
        mode : int
        """
        none: list[Any] = [None] * len(self.data.shards[mode])
        if kept is None:
            return none, None
        own, other = own_of(self.data, kept.factors, mode), other_of(kept.factors, mode)
        if F is None:
            return own, Trim(kept.limit, other)
        same = all(a is b for a, b in zip(other_of(F, mode), other, strict=True))
        here = _same_rows(F, kept.factors, mode)
        return none if here else own, Trim(kept.limit, None if same else other)

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
        F, k, data = problem.factors, problem.k, problem.y.data
        if k == len(data.shape):
            return self._core_step(problem)
        ridge: list[Any] = [problem.ridge] * len(data.shards[k])
        if problem.ridge is not None and problem.ridge.ndim == 2:
            ridge = data.cut(problem.ridge, k)
        if is_tall(F.blocks[0]):
            return self._tall_step(problem, ridge)
        was, trim = self._trim(F, problem.loss.kept, k)
        own = list(zip(own_of(data, F, k), was, ridge, strict=True))
        found = data.each(tasks.step, k, own, other_of(F, k), data.chain, trim, problem.spread)
        step = concatenated([one.step for one in found])
        if not problem.spread:
            return RowSolution(step)
        return RowSolution(
            step,
            concatenated([one.diagonal for one in found]),
            sum(one.total for one in found),
        )

    def _core_step(self, problem: BlockProblem) -> RowSolution:
        """The step of the core of a tensor, which is one system: a pass for every product."""
        F, data = problem.factors, problem.y.data
        assert isinstance(F, Tucker)
        assert problem.ridge is None
        was, trim = self._trim(None, problem.loss.kept, 0)
        own = list(zip(own_of(data, F, 0), was, strict=True))

        def sums(core: Array, residual: bool) -> Array:
            """The gradient by the core, or that of what is linear in it."""
            asked = [((core, residual),)]
            # the factors stay on the workers from one pass to the next
            return data.added(
                tasks.core_sums, own, asked, the_sum, F.factors[1:], data.chain, trim
            )[0]

        gradient, precondition = sums(F.core, True), F.preconditioner(problem.k)
        step = conjugate_gradients(
            lambda core: sums(core, False), gradient, precondition, CORE_TOL, problem.steps
        )
        return RowSolution(step)

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
        was, trim = self._trim(F, problem.loss.kept, k)
        own = list(zip(own_of(data, F, k), was, strict=True))
        unsure = Unsure(system.variance, system.ridge, system.noise, system.given)
        found = data.each(tasks.update, k, own, other_of(F, k), unsure, data.chain, trim)
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
    """A matrix that is zero except at the entries.

    Parameters
    ----------
    data : InShards
    weights : Distant, optional
        The numbers there; ones by default.
    kept : Within, optional
        Where the ones are.
    """

    data: InShards
    weights: Distant | None
    kept: Within | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def contract(self, modes: Modes, skip: int | None = None) -> Array:
        if skip is None:
            rows = self.contract(modes, 0)
            return modes[0].T @ rows if rows.ndim == 2 else mode_product(rows, modes[0].T, 0)
        data = self.data
        if data.far:
            return self._tall(modes[1 - skip], skip)
        matrices = tuple(compact(M) for k, M in enumerate(modes) if k != skip)
        own, about = self.asked(skip)
        sums = concatenated(data.each(tasks.product, skip, own, matrices, *about))
        return array_namespace(sums).moveaxis(sums, 0, skip)

    def asked(self, mode: int) -> tuple[list[Any], tuple[Any, ...]]:
        """Return what each shard of a mode, and what all, need to know the numbers."""
        data, w = self.data, self.weights
        F = None if w is None else w.factors
        was, trim = data.operator._trim(F, self.kept if w is None else w.kept, mode)
        mine: list[Any] = [None] * len(was) if F is None else own_of(data, F, mode)
        other = None if F is None else other_of(F, mode)
        return list(zip(mine, was, strict=True)), (other, data.chain, trim, w is None)

    def unfold(self, mode: int) -> Ambient:
        return _Unfolded(self, mode)

    def squares(self, mode: int) -> Array:
        own, about = self.asked(mode)
        return concatenated(self.data.each(tasks.slice_squares, mode, own, *about))

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


@dataclass(frozen=True, eq=False)
class _Unfolded(Ambient):
    """The unfolding of a tensor along a mode, of which only the Gram matrix is needed."""

    Z: ShardedAmbient
    mode: int

    @property
    def shape(self) -> tuple[int, ...]:
        n = self.Z.shape[self.mode]
        return n, math.prod(self.Z.shape) // n

    def gram_times(self, V: Array) -> Array:
        data, other = self.Z.data, 1 if self.mode == 0 else 0
        own, about = self.Z.asked(other)
        question = ((self.mode, compact(V)),)
        work, shards = tasks.gram_times, data.shards[other]
        return data.workers.added(work, shards, own, [question], the_sum, *about)[0]
