"""Step sizes: numbers, schedules, and rules that evaluate the objective along a direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from . import checks
from .factors import Blocks, Factors
from .linalg import epsilon, inner
from .namespaces import array_namespace
from .state import State

Array = Any
Number = Any
Projection = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Ray:
    """The direction of descent from one iterate, as a step rule sees it.

    Parameters
    ----------
    value : 0-d array
        The objective at the iterate.
    slope : 0-d array
        Re⟨g, d⟩: how fast the objective falls along the direction −d.
    objective : callable
        The objective at a step.
    smooth : bool
        Whether the objective is smooth.
    remembered : object
        What the rule asked to remember the last time, or None.
    """

    value: Array
    slope: Array
    objective: Callable[[Number], Array]
    smooth: bool = True
    remembered: Any = None


@runtime_checkable
class StepRule(Protocol):
    """Chooses a step, and what to remember for the next one."""

    def pick(self, ray: Ray) -> tuple[Number, Any]:
        """Return the step, and what to remember."""


Step = float | Callable[[int], float] | StepRule


@dataclass(frozen=True)
class polyak:  # noqa: N801  (called like a function, as the other rules are)
    """Polyak's step (f − best) / ⟨g, d⟩, for nonsmooth losses.

    If the optimal value is unknown (``best=None``), the step aims at a level below the best value
    so far. The gap to that level grows while values reach it, and shrinks by 0.7 every second time
    that they do not. It starts at half of the first value. A step that would raise the value by
    more than the gap is halved.

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
        """Return the step, and what to remember.

        Parameters
        ----------
        ray : Ray

        Returns
        -------
        step : number or 0-d array
        memory : object
        """
        if self.best is None:
            return self._at_level(ray)
        xp = array_namespace(ray.slope)
        zero = xp.zeros_like(ray.slope)
        gap = ray.value - self.best
        # no gradient or below `best` by rounding: stay
        safe = xp.where(ray.slope > 0, ray.slope, zero + 1)
        return xp.where((ray.slope > 0) & (gap > 0), gap / safe, zero), None

    def _at_level(self, ray: Ray) -> tuple[Number, Any]:
        value, slope = float(ray.value), float(ray.slope)
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
            # if the loss is far from convex, aiming too low throws the iterate far off
            if float(ray.objective(step)) <= value + gap:
                return step, (best, gap, failures)
            best, gap = value - 0.5 * (value - best), 0.5 * gap
        return 0.0, (best, gap, failures)


def geometric(first: float, ratio: float) -> Callable[[int], float]:
    """Return the schedule first · ratioᵗ, for steps and for thresholds.

    Parameters
    ----------
    first : float
    ratio : float in (0, 1]

    Returns
    -------
    callable
        The number as a function of t.

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
    """A step size found by trials, for every operator and loss.

    For smooth losses it backtracks on the objective of the iterate. The first trial is
    `grow` times the last accepted step. A step is accepted if the objective falls by at least
    `decrease` of what the slope predicts; otherwise the next trial is the minimiser of the
    parabola through the known values, so operators that are not normalised cost one or two extra
    evaluations, once. If no step is accepted before the predicted decrease is lost in rounding, the
    iterate stays where it is. For nonsmooth losses, on which backtracking would get stuck where
    many residuals vanish, it is `polyak(best=None)`.

    Parameters
    ----------
    first : float
        The first trial of a run.
    grow : float, optional
        None starts with `first` at every iterate.
    decrease : float in (0, 1)
        The share of the predicted decrease that is required.
    max_trials : int
        The largest number of trials at one iterate.

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
        """Return the step, and what to remember.

        Parameters
        ----------
        ray : Ray

        Returns
        -------
        step : number or 0-d array
        memory : object
        """
        if not ray.smooth:
            return polyak(best=None).pick(ray)
        value, slope = float(ray.value), float(ray.slope)
        known = isinstance(ray.remembered, float) and self.grow is not None
        step = self.grow * ray.remembered if known else self.first
        if not slope > 0:
            return 0.0, ray.remembered
        rounding = epsilon(ray.slope) * value
        for _ in range(self.max_trials):
            if self.decrease * step * slope <= rounding:
                break
            trial = float(ray.objective(step))
            if trial <= value - self.decrease * step * slope:
                return step, step
            excess = trial - value + step * slope
            ideal = step * (step * slope / (2 * excess)) if excess < math.inf else 0.0
            step = min(max(ideal, 1e-6 * step), 0.5 * step)
        return 0.0, ray.remembered


def checked_step(step: Any) -> Any:
    """Return a step, or a tuple of steps, with every number checked."""
    if isinstance(step, (tuple, list)):
        return tuple(checked_step(s) for s in step)
    if isinstance(step, type):
        raise TypeError(f"write {step.__name__}(), not {step.__name__}")
    if isinstance(step, StepRule) or callable(step):
        return step
    return checks.number("step", step, least=0)


def check_projection(project: Any) -> None:
    """Raise an error if a projection is not a function of factors."""
    if project is not None and not callable(project):
        raise TypeError(f"project must be a function of factors, not {project!r}")
    if getattr(project, "__name__", "") == "incoherence":
        raise TypeError("write project=incoherence(radius), not project=incoherence")


def checked_update(update: Any) -> tuple[int, ...] | None:
    """Return the numbers of the blocks to update, checked."""
    if update is None:
        return None
    try:
        blocks = tuple(checks.count("update", k) for k in update)
    except TypeError:
        blocks = ()
    if not blocks or len(set(blocks)) < len(blocks):
        raise ValueError(f"update must be a tuple of distinct block numbers, not {update!r}")
    return blocks


@dataclass(frozen=True)
class StepMemory:
    """What step rules remember: for the blocks that each moves, the rule and its memory."""

    kept: tuple[tuple[tuple[int, ...], StepRule, Any], ...] = ()

    def of(self, part: tuple[int, ...], rule: StepRule) -> Any:
        """Return what a rule remembered about some blocks; None if another rule moved them."""
        for blocks, owner, memory in self.kept:
            if blocks == part and owner == rule:
                return memory
        return None


@dataclass(frozen=True, eq=False)
class _Move:
    """Some blocks that move by one step."""

    part: tuple[int, ...]
    rule: Any


def _moves(factors: Factors, step: Any, update: tuple[int, ...] | None) -> list[_Move]:
    """Return which rule moves which blocks: one for all, or one for each."""
    n, kind = len(factors.blocks), type(factors).__name__
    free = factors.free if update is None else update
    if max(free) >= n:
        raise ValueError(f"update must name blocks 0 .. {n - 1} of {kind}, not {free}")
    if not isinstance(step, tuple):
        return [_Move(free, step)]
    if len(step) == n:
        return [_Move((k,), step[k]) for k in free]
    raise ValueError(
        f"step has {len(step)} entries but {kind} has {n} blocks; give one step, or one per block"
    )


@dataclass(frozen=True, eq=False)
class Descent:
    """A descent direction from a state, with its value and gradient.

    Attributes
    ----------
    state : State
    direction : tuple of arrays like the blocks
    project : callable, optional
        Applied to the factors after the step.
    update : tuple of int, optional
        The blocks to move.
    penalty : callable, optional
        An additional term of the objective: a function of the factors with value and gradient.
    """

    state: State
    direction: Blocks
    project: Projection | None = None
    update: tuple[int, ...] | None = None
    penalty: Callable[[Factors], tuple[Array, Blocks]] | None = None

    def moved(self, amounts: dict[int, Number]) -> Factors:
        """Return the factors, with every block moved by its amount."""
        F = self.state.factors
        blocks = (
            B - amounts[k] * self.direction[k] if k in amounts else B
            for k, B in enumerate(F.blocks)
        )
        result = F.with_blocks(tuple(blocks))
        return result if self.project is None else self.project(result)

    def ray(self, part: tuple[int, ...], remembered: Any) -> Ray:
        """Return the ray that a step rule sees if only some blocks move."""
        state, grads, value = self.state, self.state.gradient, self.state.value
        if self.penalty is not None:
            more, pull = self.penalty(state.factors)
            grads = tuple(g + h for g, h in zip(grads, pull, strict=True))
            value = value + more
        slope = sum(inner(grads[k], self.direction[k]) for k in part)

        def objective(step: Number) -> Array:
            F = self.moved(dict.fromkeys(part, step))
            found = state.view.objective(F)
            return found if self.penalty is None else found + self.penalty(F)[0]

        return Ray(value, slope, objective, state.problem.smooth, remembered)

    def by(self, step: Any, memory: StepMemory | None) -> tuple[Factors, StepMemory | None]:
        """Move by a number, a schedule or a rule; or by one of them for each block.

        With a tuple of steps, a rule sees only the direction of its block, and the mean of the
        moves is taken, because together they would go too far.
        """
        moves = _moves(self.state.factors, step, self.update)
        share = max(1, sum(isinstance(move.rule, StepRule) for move in moves))
        amounts: dict[int, Number] = {}
        kept = []
        for move in moves:
            amount = move.rule
            if isinstance(move.rule, StepRule):
                known = None if memory is None else memory.of(move.part, move.rule)
                amount, fresh = move.rule.pick(self.ray(move.part, known))
                kept.append((move.part, move.rule, fresh))
                amount = amount / share
            elif callable(move.rule):
                t = self.state.t
                amount = checks.number(f"step({t})", move.rule(t), least=0)
            amounts |= dict.fromkeys(move.part, amount)
        return self.moved(amounts), StepMemory(tuple(kept)) if kept else memory
