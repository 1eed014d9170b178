"""Methods: a preconditioner and a step rule, or exact solutions of one block after another.

Gradient descent, ScaledGD, ScaledGD(λ) and the subgradient methods differ in nothing else. A method
is a callable: ``method(problem, state)`` returns the next factors and what to remember.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from . import checks
from .factors import Blocks, Bordered, Factors, LowRank
from .linalg import inner, is_complex
from .namespaces import array_namespace
from .problems import Problem
from .state import Found, State
from .steps import (
    Descent,
    Projection,
    StepMemory,
    check_projection,
    checked_step,
    checked_update,
    line_search,
)

Array = Any

ADVICE = "lower the step, use step=line_search(), or set damping > 0"


def _step_memory(state: State) -> StepMemory | None:
    """Return what step rules remember; None if another kind of method ran before."""
    memory = state.memory.method
    return memory if isinstance(memory, StepMemory) else None


@dataclass(frozen=True, eq=False)
class ScaledGD:
    """Scaled gradient descent; with damping, ScaledGD(λ).

    Each block moves along its gradient times the inverse of a small Gram matrix, all
    blocks at once: L − η ∇_L (RᴴR + λI)⁻¹ and R − η ∇_R (LᴴL + λI)⁻¹.

    Parameters
    ----------
    step : number, schedule, rule, or a tuple with one per block
        η. By default 0.5 for L Rᴴ and L Lᴴ, min(0.3, 1.5/(d+1)) for Tucker. A schedule is a
        function of t; rules are `polyak` and `line_search`.
    damping : number, or function of the state
        λ, in the units of σ_r(X).
    project : callable, optional
        Applied after each update, such as `incoherence(radius)`.
    update : tuple of int, optional
        The blocks to update; by default all but the factors of modes that are not compressed.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_sensing(30, 20, rank=2, kappa=50, m=1000, rng=0)
    >>> result = sg.solve(problem, sg.spectral(2), sg.ScaledGD(0.5), max_iter=60)
    >>> bool(sg.metrics.relative_error(result.factors, truth) < 1e-7)
    True
    """

    step: Any = None
    damping: Any = 0.0
    project: Projection | None = None
    update: tuple[int, ...] | None = None

    advice: ClassVar[str] = ADVICE

    def __post_init__(self) -> None:
        if self.step is not None:
            object.__setattr__(self, "step", checked_step(self.step))
        if not callable(self.damping):
            damping = checks.number("damping", self.damping, least=0)
            object.__setattr__(self, "damping", damping)
        check_projection(self.project)
        object.__setattr__(self, "update", checked_update(self.update))

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Any]:
        step = state.factors.default_step if self.step is None else self.step
        damping = self.damping
        if callable(damping):
            damping = checks.number("damping(state)", damping(state), least=0)
        direction = state.factors.precondition(state.gradient, damping)
        descent = Descent(state, direction, self.project, self.update)
        return descent.by(step, _step_memory(state))


@dataclass(frozen=True)
class Relaxation:
    """What `Alternating` remembers: how fast the loss falls, and the over-relaxation.

    Solving two blocks in turn is a Gauss-Seidel iteration. If a sweep multiplies its error by μ²,
    steps that are ω = 2 / (1 + √(1 − μ²)) times as long multiply it by ω − 1, which is much less.
    μ² follows from the observed factor λ: (λ + ω − 1)² = λ ω² μ² (Young).

    Parameters
    ----------
    values : tuple of float
        The losses of the last iterates, three at most.
    shares : tuple of float
        λ of the last sweeps, two at most: the square root of the ratio of one decrease of the loss
        to the one before.
    factor : float
        ω. Between 0 and 2 the loss falls with every block.
    ahead : bool
        Whether the values include the loss of the next iterate, because the sweep computed it. A
        resumed run would round it differently.
    """

    values: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    factor: float = 1.0
    ahead: bool = False

    def seeing(self, value: float) -> Relaxation:
        """Return the memory after another loss.

        Parameters
        ----------
        value : float

        Returns
        -------
        Relaxation
        """
        values = (*self.values, value)[-3:]
        if len(values) < 3 or not values[0] > values[1] > values[2]:
            return replace(self, values=values)
        share = math.sqrt((values[1] - values[2]) / (values[0] - values[1]))
        shares = (*self.shares, min(share, MOST))[-2:]
        # the smaller of two, because a fit that finds a small component stalls for a sweep
        seen, over = min(shares), self.factor - 1
        factor = 1 + 0.7 * over  # the loss cannot fall faster than this: ω may be too large
        if seen > 1.1 * over:
            rate = min((seen + over) ** 2 / (seen * self.factor**2), MOST)
            factor = 2 / (1 + math.sqrt(1 - rate))
        # the first shares say little
        return Relaxation(values, shares, factor if self.shares else min(factor, 1.1))


MOST = 0.8
"""Largest share of the error that a sweep is assumed to leave."""

TRACE = 1e-6
"""Share of the loss before a step below which the loss after it is recomputed."""


@dataclass(frozen=True, eq=False)
class Alternating:
    """Solve one block after the other; each is a least-squares problem.

    X must be linear in each block. If entries are observed, every *row* of a mode matrix is a small
    separate system, and is solved exactly; otherwise conjugate gradients with ScaledGD's
    preconditioner are used. If all entries are observed, this is ScaledGD with step 1, one block at
    a time. There is no step size, and neither κ nor the normalisation of the operator matters.
    Losses other than least squares need a `curvature`; trimmed entries are fixed within an
    iteration.

    Parameters
    ----------
    steps : int
        The largest number of conjugate-gradient steps for a block that is not solved row by row.
    project : callable, optional
        Applied after each update of all blocks.
    update : tuple of int, optional
        The blocks to update, in this order; by default all but the factors of modes that
        are not compressed.
    relax : bool
        Whether steps are lengthened according to the decrease of the loss (`Relaxation`), which
        takes fewer sweeps to a high accuracy.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_completion(90, 80, rank=3, kappa=1e3, p=0.4, rng=0)
    >>> result = sg.solve(problem, sg.small_random(3, 1.0, rng=0), sg.Alternating(), max_iter=25)
    >>> bool(sg.metrics.relative_error(result.factors, truth) < 1e-7)
    True
    """

    steps: int = 10
    project: Projection | None = None
    update: tuple[int, ...] | None = None
    relax: bool = False

    advice: ClassVar[str] = (
        "the curvature of the loss does not bound it, or a ridge is missing: check "
        "Loss.curvature, give a ridge, or use ScaledGD"
    )

    def __post_init__(self) -> None:
        checks.count("steps", self.steps, least=1)
        check_projection(self.project)
        object.__setattr__(self, "update", checked_update(self.update))

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Any]:
        factors = state.factors
        if not factors.multilinear:
            raise TypeError(
                f"Alternating needs factors in whose blocks X is linear; for "
                f"{type(factors).__name__} use ScaledGD"
            )
        order = factors.free if self.update is None else self.update
        # offsets of one side, without factors, leave the other block without columns
        order = tuple(k for k in order if 0 not in factors.blocks[k].shape)
        memory = state.memory.method
        loss: float | None = None
        pace = memory if self.relax and isinstance(memory, Relaxation) else Relaxation()
        if self.relax and not pace.ahead:
            pace = pace.seeing(float(state.value))
        by = pace.factor
        for k in order:
            found = state.view.block_move(k, steps=self.steps, at=factors)
            factors = factors.moved(k, -found.step if by == 1 else -by * found.step)
            loss = None
            if found.squares is not None:
                before, after = found.squares
                left = before - by * (2 - by) * (before - after)
                # the systems are not solved to enough digits to know a vanishing loss
                loss = 0.5 * left if left > TRACE * before else None
        if self.project is not None:
            factors, loss = self.project(factors), None
        if self.relax:
            known = pace if loss is None else pace.seeing(loss)
            memory = replace(known, ahead=loss is not None)
        return Found(factors, memory, loss)


@dataclass(frozen=True, eq=False)
class NonNegative:
    """Fit factors without negative entries, one column of a block at a time.

    This is hierarchical alternating least squares: given all other columns, each entry of the best
    column has a closed form, cut at zero. It is for `LowRank` factors of observed entries.

    Parameters
    ----------
    update : tuple of int
        The blocks to update, in this order.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> X = np.outer([1.0, 2.0, 0.0], [3.0, 0.0, 1.0]) + np.outer([0.0, 1.0, 1.0], [1.0, 1.0, 0.0])
    >>> start = sg.LowRank(np.ones((3, 2)) + np.eye(3, 2), np.ones((3, 2)))
    >>> result = sg.solve(sg.Observed(sg.Full((3, 3)), X), start, sg.NonNegative(), max_iter=300)
    >>> bool(np.min(result.factors.L) >= 0), bool(np.allclose(result.factors.full(), X, atol=1e-3))
    (True, True)
    """

    update: tuple[int, ...] = (0, 1)

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Any]:
        view, first = state.view, state.factors
        offsets = isinstance(first, Bordered) and (first.u is not None or first.v is not None)
        if not isinstance(first, LowRank | Bordered) or offsets or is_complex(first.L):
            raise TypeError(
                "NonNegative needs real LowRank factors without offsets, not "
                f"{type(first).__name__}; use ScaledGD with a projection"
            )
        ridge: Any = getattr(problem, "ridge", None) or (None, None)
        for k in self.update:
            other, seen = view.factors.blocks[1 - k], view.coverage()
            squares = seen.times(other * other) if k == 0 else seen.adjoint_times(other * other)
            squares = squares / problem.sampling
            if ridge[k] is not None:
                squares = squares + ridge[k]
            for c in range(other.shape[1]):
                F, Z = view.factors, view.ambient()
                B, M = F.blocks[k], other[:, c : c + 1]
                gradient = Z.times(M) if k == 0 else Z.adjoint_times(M)
                if ridge[k] is not None:
                    gradient = gradient + ridge[k][..., c : c + 1] * B[:, c : c + 1]
                square = squares[:, c : c + 1]
                xp = array_namespace(B)
                step = gradient / xp.where(square > 0, square, xp.ones_like(square))
                column = B[:, c : c + 1] - step
                column = xp.where(column > 0, column, xp.zeros_like(column))
                blocks = list(F.blocks)
                blocks[k] = xp.concat([B[:, :c], column, B[:, c + 1 :]], axis=1)
                view = view.moved(F.with_blocks(tuple(blocks)))
        return view.factors, state.memory.method


@dataclass(frozen=True, eq=False)
class CurvatureMemory:
    """What `ScaledLBFGS` remembers: pairs of moves and gradient changes, and the last iterate."""

    pairs: tuple[tuple[Blocks, Blocks], ...] = ()
    blocks: Blocks | None = None
    gradient: Blocks | None = None
    steps: StepMemory | None = None


@dataclass(frozen=True, eq=False)
class ScaledLBFGS:
    """L-BFGS in ScaledGD's coordinates, for few observations and extreme κ.

    The curvature in the last gradients corrects ScaledGD's preconditioner instead of a multiple of
    the identity. This is L-BFGS in the coordinates L (RᴴR)^½ and R (LᴴL)^½, without forming them.

    Parameters
    ----------
    pairs : int
        The number of updates to remember.
    step : number, schedule or rule
        By default a line search that starts with 1 at every iterate.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_completion(90, 80, rank=3, kappa=1e2, p=0.4, rng=0)
    >>> result = sg.solve(problem, sg.spectral(3), sg.ScaledLBFGS(), max_iter=60)
    >>> bool(sg.metrics.relative_error(result.factors, truth) < 1e-7)
    True
    """

    pairs: int = 20
    step: Any = field(default_factory=lambda: line_search(grow=None))

    advice: ClassVar[str] = "begin with a start such as grown(rank), or use ScaledGD"

    def __post_init__(self) -> None:
        checks.count("pairs", self.pairs, least=1)
        object.__setattr__(self, "step", checked_step(self.step))

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Any]:
        F, grads = state.factors, state.gradient
        last = state.memory.method
        last = last if isinstance(last, CurvatureMemory) else CurvatureMemory()
        pairs = last.pairs
        if last.blocks is not None and last.gradient is not None:
            moves = tuple(B - A for A, B in zip(last.blocks, F.blocks, strict=True))
            turns = tuple(h - g for g, h in zip(last.gradient, grads, strict=True))
            if float(_dot(moves, turns)) > 1e-12 * float(_dot(turns, F.precondition(turns))):
                pairs = (*pairs, (moves, turns))[-self.pairs :]
        direction = _two_loops(pairs, grads, F.precondition)
        if not float(_dot(direction, grads)) > 0:
            pairs, direction = (), F.precondition(grads)
        factors, steps = Descent(state, direction).by(self.step, last.steps)
        return factors, CurvatureMemory(pairs, F.blocks, grads, steps)


def _dot(a: Blocks, b: Blocks) -> Array:
    return sum(inner(x, y) for x, y in zip(a, b, strict=True))


def _two_loops(
    pairs: tuple[tuple[Blocks, Blocks], ...],
    grads: Blocks,
    precondition: Callable[[Blocks], Blocks],
) -> Blocks:
    """Return the inverse curvature according to the pairs, times the gradient."""

    def plus(a: Blocks, weight: Array, b: Blocks) -> Blocks:
        return tuple(x + weight * y for x, y in zip(a, b, strict=True))

    q, weights = grads, []
    for moves, turns in reversed(pairs):
        weights.append(_dot(moves, q) / _dot(moves, turns))
        q = plus(q, -weights[-1], turns)
    direction = precondition(q)
    if pairs:
        moves, turns = pairs[-1]
        size = _dot(moves, turns) / _dot(turns, precondition(turns))
        direction = tuple(size * d for d in direction)
    for (moves, turns), weight in zip(pairs, reversed(weights), strict=True):
        direction = plus(direction, weight - _dot(turns, direction) / _dot(moves, turns), moves)
    return direction


@dataclass(frozen=True, eq=False)
class GradientDescent:
    """Plain gradient descent on the factors, the baseline; its step size depends on σ₁(X).

    Parameters
    ----------
    step : number, schedule, rule, or a tuple with one per block
        In the monograph's experiments η / σ₁(X⋆) for matrices, and for tensors
        η / σ_max(X⋆)² for the factors and η for the core.
    balance : float
        The weight of the balancing regulariser of the earlier literature: ½‖LᴴL − RᴴR‖²_F
        for matrices, ½ Σ_k ‖U_kᴴU_k − level² I‖²_F for tensors.
    project : callable, optional
        Applied after each update.
    update : tuple of int, optional
        The blocks to update; by default all but the factors of modes that are not compressed.
    level : float
        The size that the balancing regulariser gives to tensor factors.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_sensing(30, 20, rank=2, kappa=50, m=1000, rng=0)
    >>> result = sg.solve(problem, sg.spectral(2), sg.GradientDescent(0.5), max_iter=60)
    >>> bool(sg.metrics.relative_error(result.factors, truth) < 1e-7)
    False
    """

    step: Any
    balance: float = 0.0
    project: Projection | None = None
    update: tuple[int, ...] | None = None
    level: float = 1.0

    advice: ClassVar[str] = "lower the step, or use step=line_search()"

    def __post_init__(self) -> None:
        if self.step is None:
            raise TypeError("step must be a number or a rule such as line_search()")
        object.__setattr__(self, "step", checked_step(self.step))
        object.__setattr__(self, "balance", checks.number("balance", self.balance, least=0))
        object.__setattr__(self, "level", checks.number("level", self.level, least=0, open_=True))
        check_projection(self.project)
        object.__setattr__(self, "update", checked_update(self.update))

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Any]:
        grads, penalty = state.gradient, None
        if self.balance:
            penalty = self._penalty
            pull = penalty(state.factors)[1]
            grads = tuple(g + h for g, h in zip(grads, pull, strict=True))
        direction = tuple(g / state.factors.copies for g in grads)
        descent = Descent(state, direction, self.project, self.update, penalty)
        return descent.by(self.step, _step_memory(state))

    def _penalty(self, factors: Factors) -> tuple[Array, Blocks]:
        """Return the weighted balancing regulariser, and its gradient."""
        value, pull = factors.imbalance(self.level)
        return self.balance * value, tuple(self.balance * h for h in pull)
