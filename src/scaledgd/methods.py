"""Methods: a preconditioner and a step rule.

Gradient descent, ScaledGD, ScaledGD(λ) and the subgradient methods differ in nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from array_api_compat import array_namespace

from . import checks
from .factors import Blocks, Factors
from .linalg import epsilon, inner
from .solve import Memory, Problem, State

Array = Any
Number = Any
Projection = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Ray:
    """What a step rule may look at: the way down from one iterate.

    Parameters
    ----------
    state : State
        The iterate, with its value and objective.
    slope : 0-d array
        Re⟨g, d⟩: how fast the objective falls along the direction −d.
    move : callable
        The factors at a step.
    remembered : object
        What the rule returned to be remembered when it was last asked, or None.
    """

    state: State
    slope: Array
    move: Callable[[Number], Factors]
    remembered: Any


@runtime_checkable
class StepRule(Protocol):
    """Chooses a step, and what to remember for the next time."""

    def pick(self, ray: Ray) -> tuple[Number, Any]: ...


Step = float | Callable[[int], float] | StepRule


@dataclass(frozen=True)
class polyak:  # noqa: N801  (called like a function, as the other rules are)
    """Polyak's step (f − best) / ⟨g, d⟩, for nonsmooth losses.

    Where the optimal value is not known (``best=None``) the step aims at a level below the
    best value seen: by a gap that grows while the values keep up with it, and shrinks by
    0.7 each second time that they do not. It starts at half of the first value. A step
    that would raise the value by more than the gap is halved.

    Parameters
    ----------
    best : float, optional
        The optimal value; ‖y⋆ − y‖₁ for l1 problems with outliers.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((1, 1)), np.asarray([[4.0]]), sg.Absolute())
    >>> start = sg.LowRank(np.asarray([[1.0]]), np.asarray([[1.0]]))
    >>> float(sg.solve(problem, start, sg.ScaledGD(sg.polyak()), max_iter=8).factors.full()[0, 0])
    4.0
    """

    best: float | None = 0.0

    def __post_init__(self) -> None:
        if self.best is not None:
            object.__setattr__(self, "best", checks.number("best", self.best))

    def pick(self, ray: Ray) -> tuple[Number, Any]:
        if self.best is None:
            return self._at_level(ray)
        xp = array_namespace(ray.slope)
        zero = xp.zeros_like(ray.slope)
        gap = ray.state.value - self.best
        # no gradient or below `best` by rounding: stay
        safe = xp.where(ray.slope > 0, ray.slope, zero + 1)
        return xp.where((ray.slope > 0) & (gap > 0), gap / safe, zero), None

    def _at_level(self, ray: Ray) -> tuple[Number, Any]:
        value, slope = float(ray.state.value), float(ray.slope)
        known = isinstance(ray.remembered, tuple)
        best, gap, failures = ray.remembered if known else (math.inf, 0.5 * value / 1.1, 0)
        if value <= best - 0.5 * gap:
            gap, failures = 1.1 * gap, 0
        else:
            failures += 1
            if failures == 2:
                gap, failures = 0.7 * gap, 0
        best = min(best, value)
        for _ in range(60 if slope > 0 else 0):
            step = (value - best + gap) / slope
            # far from convex, aiming too low throws the iterate away
            if float(ray.state.objective(ray.move(step))) <= value + gap:
                return step, (best, gap, failures)
            best, gap = value - 0.5 * (value - best), 0.5 * gap
        return 0.0, (best, gap, failures)


def geometric(first: float, ratio: float) -> Callable[[int], float]:
    """The schedule first · ratioᵗ, for steps and for thresholds.

    Examples
    --------
    >>> import scaledgd as sg
    >>> sg.geometric(1.0, 0.5)(3)
    0.125
    """
    first = checks.number("first", first, least=0, open_=True)
    ratio = checks.number("ratio", ratio, least=0, most=1, open_=True)
    return lambda t: first * ratio**t


@dataclass(frozen=True)
class line_search:  # noqa: N801
    """A step found by trying: works for every operator and loss.

    For smooth losses it backtracks on the objective of the iterate. The first trial is
    `grow` times the last accepted step. A step is accepted where the objective fell by at least
    `decrease` of what the slope promised; otherwise the next trial is the minimiser of the
    parabola through what is known, so that operators which are not normalised cost one or
    two evaluations more, once. If nothing is accepted before the promise is lost in
    rounding, the iterate stays where it is. Nonsmooth losses would make it jam where many
    residuals vanish: there it is `polyak(best=None)`.

    Parameters
    ----------
    first : float
        The very first trial.
    grow : float, optional
        None begins with `first` at every iterate.
    decrease : float in (0, 1)
    max_trials : int

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> Y = np.outer([1.0, 2.0], [3.0, 4.0])
    >>> problem = sg.Observed(sg.Full((2, 2)), Y)
    >>> result = sg.solve(problem, sg.spectral(1), sg.GradientDescent(sg.line_search()))
    >>> bool(np.allclose(result.factors.full(), Y))
    True
    """

    first: float = 1.0
    grow: float | None = 2.0
    decrease: float = 0.1
    max_trials: int = 60

    def __post_init__(self) -> None:
        checks.number("first", self.first, least=0, open_=True)
        if self.grow is not None:
            checks.number("grow", self.grow, least=1)
        if checks.number("decrease", self.decrease, least=0, open_=True) >= 1:
            raise ValueError(f"decrease must be below 1, not {self.decrease!r}")
        checks.count("max_trials", self.max_trials, least=1)

    def pick(self, ray: Ray) -> tuple[Number, Any]:
        if not ray.state.problem.smooth:
            return polyak(best=None).pick(ray)
        value, slope = float(ray.state.value), float(ray.slope)
        known = isinstance(ray.remembered, float) and self.grow is not None
        step = self.grow * ray.remembered if known else self.first
        if not slope > 0:
            return 0.0, ray.remembered
        rounding = epsilon(ray.slope) * value
        for _ in range(self.max_trials):
            if self.decrease * step * slope <= rounding:
                break
            trial = float(ray.state.objective(ray.move(step)))
            if trial <= value - self.decrease * step * slope:
                return step, step
            excess = trial - value + step * slope
            ideal = step * (step * slope / (2 * excess)) if excess < math.inf else 0.0
            step = min(max(ideal, 1e-6 * step), 0.5 * step)
        return 0.0, ray.remembered


def _checked(step: Any) -> Any:
    """A step, or a tuple of steps, with every number checked."""
    if isinstance(step, (tuple, list)):
        return tuple(_checked(s) for s in step)
    if isinstance(step, type):
        raise TypeError(f"write {step.__name__}(), not {step.__name__}")
    if isinstance(step, StepRule) or callable(step):
        return step
    return checks.number("step", step, least=0)


def check_projection(project: Any) -> None:
    if project is not None and not callable(project):
        raise TypeError(f"project must be a function of factors, not {project!r}")
    if getattr(project, "__name__", "") == "incoherence":
        raise TypeError("write project=incoherence(radius), not project=incoherence")


def _checked_update(update: Any) -> tuple[int, ...] | None:
    if update is None:
        return None
    try:
        blocks = tuple(checks.count("update", k) for k in update)
    except TypeError:
        blocks = ()
    if not blocks or len(set(blocks)) < len(blocks):
        raise ValueError(f"update must be a tuple of distinct block numbers, not {update!r}")
    return blocks


@dataclass(frozen=True, eq=False)
class _Move:
    """Some blocks that move by one step, and what its rule remembers."""

    part: tuple[int, ...]
    rule: Any
    remembered: Any


def _moves(state: State, step: Any, update: tuple[int, ...] | None) -> list[_Move]:
    """Which blocks move by which rule: all by one, or each by its own."""
    factors, n = state.factors, len(state.factors.blocks)
    free = factors.free if update is None else update
    if max(free) >= n:
        raise ValueError(
            f"update must name blocks 0 .. {n - 1} of {type(factors).__name__}, not {free}"
        )
    if not isinstance(step, tuple):
        parts: list[tuple[tuple[int, ...], Any]] = [(free, step)]
    elif len(step) == n:
        parts = [((k,), step[k]) for k in free]
    else:
        raise ValueError(
            f"step has {len(step)} entries but {type(factors).__name__} has {n} blocks; give "
            "one step, or one per block"
        )
    # what another rule remembered, before a run was resumed with this one, means nothing here
    last = {part: (rule, kept) for part, rule, kept in state.memory.get("step", ())}
    known = [(part, rule, last.get(part, (None, None))) for part, rule in parts]
    return [_Move(part, rule, kept if rule == old else None) for part, rule, (old, kept) in known]


def _descend(
    state: State,
    direction: Blocks,
    step: Any,
    project: Projection | None,
    update: tuple[int, ...] | None,
) -> tuple[Factors, Memory]:
    """Move the blocks along −direction by what the step, a number or a rule, says.

    With a tuple of steps each block has its own: a rule then sees the direction of its
    block alone, and of several such moves the mean is made, because together they would
    go too far.
    """
    factors = state.factors
    moves = _moves(state, step, update)
    share = max(1, sum(isinstance(move.rule, StepRule) for move in moves))

    def moved(amounts: dict[int, Number]) -> Factors:
        result = factors.with_blocks(
            tuple(
                B - amounts[k] * direction[k] if k in amounts else B
                for k, B in enumerate(factors.blocks)
            )
        )
        return result if project is None else project(result)

    def ray(move: _Move) -> Ray:
        slope = sum(inner(state.gradient[k], direction[k]) for k in move.part)
        return Ray(state, slope, lambda a: moved(dict.fromkeys(move.part, a)), move.remembered)

    amounts: dict[int, Number] = {}
    remembered = []
    for move in moves:
        amount = move.rule
        if isinstance(move.rule, StepRule):
            amount, kept = move.rule.pick(ray(move))
            remembered.append((move.part, move.rule, kept))
            amount = amount / share
        elif callable(move.rule):
            amount = checks.number(f"step({state.t})", move.rule(state.t), least=0)
        amounts |= dict.fromkeys(move.part, amount)
    memory = {**state.memory, "step": tuple(remembered)} if remembered else state.memory
    return moved(amounts), memory


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

    def __post_init__(self) -> None:
        if self.step is not None:
            object.__setattr__(self, "step", _checked(self.step))
        if not callable(self.damping):
            damping = checks.number("damping", self.damping, least=0)
            object.__setattr__(self, "damping", damping)
        check_projection(self.project)
        object.__setattr__(self, "update", _checked_update(self.update))

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Memory]:
        step = state.factors.default_step if self.step is None else self.step
        damping = self.damping
        if callable(damping):
            damping = checks.number("damping(state)", damping(state), least=0)
        direction = state.factors.precondition(state.gradient, damping)
        return _descend(state, direction, step, self.project, self.update)


@dataclass(frozen=True, eq=False)
class Alternating:
    """One block after the other, each by the least-squares problem that it is.

    X is linear in each block. Where entries are observed every *row* of a mode matrix is a
    small system of its own, and is solved exactly; otherwise conjugate gradients with
    ScaledGD's preconditioner. Where all entries are observed this is ScaledGD with step 1,
    one block at a time. There is no step size, and neither κ nor how the operator is
    normalised matters. Losses that trim are majorised by least squares: what they trim is
    fixed within an iteration.

    Parameters
    ----------
    steps : int
        Conjugate-gradient steps at most, for each block that is not solved row by row.
    project : callable, optional
        Applied after each update of all blocks.
    update : tuple of int, optional
        The blocks to update, in this order; by default all but the factors of modes that
        are not compressed.

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

    def __post_init__(self) -> None:
        checks.count("steps", self.steps, least=1)
        check_projection(self.project)
        object.__setattr__(self, "update", _checked_update(self.update))

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Memory]:
        factors, memory = state.factors, state.memory
        if state.block_step is None or factors.copies > 1:
            raise TypeError(
                f"Alternating needs blocks in which the residual is linear; for "
                f"{type(problem).__name__} with {type(factors).__name__} use ScaledGD"
            )
        order = factors.free if self.update is None else self.update
        # offsets of one side, and no factors yet, leave the other block without columns
        order = tuple(k for k in order if 0 not in factors.blocks[k].shape)
        for k in order:
            factors = factors.moved(k, -state.block_step(k, steps=self.steps, at=factors))
        return factors if self.project is None else self.project(factors), memory


@dataclass(frozen=True, eq=False)
class NonNegative:
    """Factors without negative entries: one column of a block after the other, exactly.

    Hierarchical alternating least squares: given all others, the best column has a closed
    form for each of its entries, cut at zero. For `LowRank` factors of observed entries.

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

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Memory]:
        if state.coverage is None or state.again is None or state.ambient is None:
            raise TypeError("NonNegative is for observed entries")
        scale = float(getattr(problem, "scale", 1.0))
        for k in self.update:
            for c in range(state.factors.blocks[k].shape[1]):
                B, M = state.factors.blocks[k], state.factors.blocks[1 - k][:, c : c + 1]
                Z, seen = state.ambient(), state.coverage()
                gradient = Z.times(M) if k == 0 else Z.adjoint_times(M)
                square = scale * (seen.times(M * M) if k == 0 else seen.adjoint_times(M * M))
                xp = array_namespace(B)
                step = gradient / xp.where(square > 0, square, xp.ones_like(square))
                column = B[:, c : c + 1] - step
                column = xp.where(column > 0, column, xp.zeros_like(column))
                blocks = list(state.factors.blocks)
                blocks[k] = xp.concat([B[:, :c], column, B[:, c + 1 :]], axis=1)
                state = state.again(state.factors.with_blocks(tuple(blocks)))
        return state.factors, state.memory


@dataclass(frozen=True, eq=False)
class ScaledLBFGS:
    """L-BFGS in ScaledGD's coordinates, for few observations and extreme κ.

    The curvature that the last gradients show corrects ScaledGD's preconditioner instead of
    a multiple of the identity. That is L-BFGS in the coordinates L (RᴴR)^½ and R (LᴴL)^½,
    without making them.

    Parameters
    ----------
    pairs : int
        Updates to remember.
    step : rule
        Tried from 1 at every iterate.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_completion(90, 80, rank=3, kappa=1e2, p=0.4, rng=0)
    >>> result = sg.solve(problem, sg.spectral(3), sg.ScaledLBFGS(), max_iter=60)
    >>> bool(sg.metrics.relative_error(result.factors, truth) < 1e-7)
    True
    """

    pairs: int = 20
    step: Any = line_search(grow=None)

    def __post_init__(self) -> None:
        checks.count("pairs", self.pairs, least=1)
        object.__setattr__(self, "step", _checked(self.step))

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Memory]:
        F, grads = state.factors, state.gradient
        pairs, last = state.memory.get("pairs", ((), None))
        if last is not None:
            moves = tuple(B - A for A, B in zip(last[0], F.blocks, strict=True))
            turns = tuple(h - g for g, h in zip(last[1], grads, strict=True))
            if float(_dot(moves, turns)) > 1e-12 * float(_dot(turns, F.precondition(turns))):
                pairs = (*pairs, (moves, turns))[-self.pairs :]
        direction = _two_loops(pairs, grads, F.precondition)
        if not float(_dot(direction, grads)) > 0:
            pairs, direction = (), F.precondition(grads)
        factors, memory = _descend(state, direction, self.step, None, None)
        return factors, {**memory, "pairs": (pairs, (F.blocks, grads))}


def _dot(a: Blocks, b: Blocks) -> Array:
    return sum(inner(x, y) for x, y in zip(a, b, strict=True))


def _two_loops(
    pairs: tuple[tuple[Blocks, Blocks], ...],
    grads: Blocks,
    precondition: Callable[[Blocks], Blocks],
) -> Blocks:
    """The inverse of the curvature that the pairs show, times the gradient."""

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
    """Plain gradient descent on the factors, the baseline; its steps must know σ₁(X).

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

    def __post_init__(self) -> None:
        if self.step is None:
            raise TypeError("step must be a number or a rule such as line_search()")
        object.__setattr__(self, "step", _checked(self.step))
        object.__setattr__(self, "balance", checks.number("balance", self.balance, least=0))
        object.__setattr__(self, "level", checks.number("level", self.level, least=0, open_=True))
        check_projection(self.project)
        object.__setattr__(self, "update", _checked_update(self.update))

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Memory]:
        if self.balance:
            state = _balanced(state, self.balance, self.level)
        direction = tuple(g / state.factors.copies for g in state.gradient)
        return _descend(state, direction, self.step, self.project, self.update)


def _balanced(state: State, weight: float, level: float) -> State:
    """The same iterate of the problem plus the weighted balancing regulariser."""
    uneven, pull = state.factors.imbalance(level)
    grads = tuple(g + weight * h for g, h in zip(state.gradient, pull, strict=True))
    return replace(
        state,
        value=state.value + weight * uneven,
        pullback=lambda: grads,
        objective=lambda F: state.objective(F) + weight * F.imbalance(level)[0],
    )
