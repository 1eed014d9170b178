"""Fit a low-rank coefficient to measurements, and choose its rank and ridge."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..ambient import Ambient
from ..factors import Factors, LowRank, Tucker
from ..initialize import hosvd, small_random, spectral
from ..linalg import epsilon, inner
from ..methods import Alternating
from ..operators import Around, Operator, Sensing
from ..problems import Observed
from ..state import State
from .journal import remembered
from .rules import change, settled, vanished
from .session import Session
from .tucker import degrees, possible
from .vouching import FEWEST

Array = Any
Ranks = tuple[int, ...]
Trail = list[dict[str, Any]]
Coefficient = LowRank | Tucker

LADDER = (1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36)
RIDGES = (0.0, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Candidates, as shares of the ridge that would reduce the coefficient to zero."""

FEW = 200
"""Number of measurements below which a few held-out ones say too little."""

CLEAR = 0.5
"""Share of the sum of squares that a fit of a given rank to many measurements may leave unexplained
without being checked on held-out ones."""

UNJUDGED = "too few to check the coefficient on held-out ones"
"""What the trail says about such a fit."""

WORSE = 1.3
"""Ratio of held-out errors above which one is much worse."""


@dataclass(frozen=True, eq=False)
class Centred(Around):
    """Measurements minus their mean, which is what an intercept leaves."""

    operator: Operator

    def apply(self, factors: Factors) -> Array:
        return _centred(self.operator.apply(factors))

    def adjoint(self, w: Array) -> Ambient:
        return self.operator.adjoint(_centred(w))

    def block_matrix(self, factors: Factors, k: int) -> Array | None:
        J = self.operator.block_matrix(factors, k)
        return None if J is None else J - array_namespace(J).mean(J, axis=0)


def _centred(y: Array) -> Array:
    return y - array_namespace(y).mean(y)


@dataclass(frozen=True, eq=False)
class CoefficientReading:
    """How the factors of an iterate map to the data.

    Attributes
    ----------
    unit : float
        The unit of the coefficient.
    wide : float
        The power of two that the design was divided by.
    ridge : float
    trail : list of dict
    """

    unit: float
    wide: float
    ridge: float = 0.0
    trail: Trail = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Measurements:
    """Rows of a design and their measurements; y is centred, and of size about 1.

    Attributes
    ----------
    A : array of shape (m, n1 · ... · nd)
    y : array of shape (m,)
    shape : tuple of int
        That of the coefficient.
    intercept : bool
    """

    A: Array
    y: Array
    shape: tuple[int, ...]
    intercept: bool

    @property
    def size(self) -> int:
        return int(self.y.shape[0])

    def some(self, chosen: Any) -> Measurements:
        """Return some of the measurements."""
        xp = array_namespace(self.y)
        where = xp.asarray(chosen, device=device(self.y))
        return replace(self, A=xp.take(self.A, where, axis=0), y=xp.take(self.y, where))

    def problem(self) -> Observed:
        """Return the recovery problem of these measurements."""
        plain = Sensing(self.A, shape=self.shape)
        if not self.intercept:
            return Observed(plain, self.y)
        return Observed(Centred(plain), _centred(self.y))

    def predicted(self, factors: Factors) -> Array:
        """Return ⟨A, X⟩ of every row."""
        return Sensing(self.A, shape=self.shape).apply(factors)


def ranks_of(F: Factors) -> Ranks:
    """Return the multilinear ranks of a coefficient."""
    if isinstance(F, Tucker):
        return F.ranks
    return (F.rank,) * 2 if isinstance(F, LowRank) else (0, 0)


def _rank_argument(ranks: Ranks) -> Any:
    """The rank in the form that starts expect: one integer for a matrix."""
    return ranks[0] if len(ranks) == 2 else ranks


def _first_factors(problem: Observed, ranks: Ranks) -> Factors:
    """A spectral start of the length that fits best: designs are not normalised."""
    matrix = len(problem.shape) == 2
    F = (spectral(ranks[0]) if matrix else hosvd(ranks))(problem)
    measured = problem.operator.apply(F)
    square = float(inner(measured, measured))
    factor = float(inner(measured, problem.y)) / square if square > 0 else 0.0
    if not factor > 0:
        return small_random(_rank_argument(ranks), 1.0, rng=0)(problem)
    if isinstance(F, Tucker):
        return Tucker(F.factors, factor * F.core)
    root = math.sqrt(factor)
    return F.with_blocks(tuple(root * B for B in F.blocks))


def fit_coefficient(
    session: Session,
    data: Measurements,
    ranks: Ranks,
    ridge: float,
    start: Factors | None = None,
) -> State:
    """Fit ranks with a ridge, a share of the one that would reduce the coefficient to zero."""
    problem = data.problem()
    first = _first_factors(problem, ranks) if start is None else start
    if ridge:
        problem = replace(problem, ridge=_ridges(problem, first, ridge))
    rules = [vanished(0.1 * session.tol), change(0.1 * session.tol)]
    method, enough = Alternating(steps=40), settled(max(1e-5, 10 * session.tol))
    state = session.solve(problem, first, method, [*rules, enough], stage="regression")
    exact = float(state.value) <= max(1e-10, (10 * epsilon(data.y)) ** 2) * float(
        problem.value_at_zero
    )
    if ridge or exact or start is not None:
        return state
    # the start may have been misleading: try another, and take the better fit
    other = small_random(_rank_argument(ranks), 1.0, rng=1)(problem)
    again = session.solve(problem, other, method, [*rules, enough], stage="random start")
    return again if float(again.value) < 0.99 * float(state.value) else state


def _ridges(problem: Observed, F: Factors, share: float) -> tuple[Any, ...]:
    """The ridge of every block: λ(‖L‖² + ‖R‖²)/2 is λ times the nuclear norm."""
    xp = array_namespace(problem.y)
    Z = problem.gradient_at_zero
    if isinstance(F, Tucker):
        # only the core is regularised; the factors are nearly orthonormal
        size = float(inner(problem.y, problem.y))
        return (*(None for _ in F.factors), xp.zeros_like(F.core[0, ...]) + share**2 * size)
    whole = Z.array if hasattr(Z, "array") else F.full()
    top = float(xp.max(xp.linalg.svdvals(whole)))
    return tuple(xp.zeros_like(B[0, :]) + share * top for B in F.blocks)


# ---- rank and ridge


def choose_coefficient(
    session: Session,
    data: Measurements,
    wanted: Ranks | None,
    ridge: float | None,
    rng: np.random.Generator,
) -> tuple[Ranks, float, Trail]:
    """Return ranks and ridge, chosen on held-out measurements unless they are given.

    Parameters
    ----------
    session : Session
    data : Measurements
    wanted : tuple of int, optional
        The given ranks.
    ridge : float, optional
        The given ridge.
    rng : numpy.random.Generator

    Returns
    -------
    ranks : tuple of int
    ridge : float
    trail : list of dict
    """
    m, shape = data.size, data.shape
    order = rng.permutation(m)
    # if there are few, all are held out in turn
    folds = [order[k::5] for k in range(5 if m < FEW else 2)] if m >= 5 else []
    if wanted is not None:
        if ridge is not None:
            trail = _best(session, data, [(wanted, ridge)], folds)[1]
            return wanted, ridge, [*trail, {"rank": wanted, "ridge": ridge, "why": "given"}]
        if m >= 1.5 * degrees(wanted, shape):
            quick = fit_coefficient(session.apart(1e-6, 60), data, wanted, 0.0)
            left = float(quick.value) / max(float(quick.problem.value_at_zero), 1e-300)
            # many measurements need no others to judge a fit that explains most of them
            if left <= 1e-8 or (left <= CLEAR and m >= 10 * degrees(wanted, shape)):
                return wanted, 0.0, [{"rank": wanted, "ridge": 0.0, "why": "given"}]
            (_, found), trail = _best(session, data, [(wanted, t) for t in RIDGES], folds)
            return wanted, found, trail
    sizes: list[Ranks] = []
    most = wanted or shape  # if it reproduces nearly anything, a given rank is only a bound
    for size in LADDER:
        ranks = possible(tuple(min(size, r) for r in most), shape)
        if ranks not in sizes and (not sizes or degrees(ranks, shape) < 0.9 * m):
            sizes.append(ranks)
    grid = [(ranks, 0.0 if ridge is None else ridge) for ranks in sizes]
    (ranks, found), trail = _best(session, data, grid, folds)
    if ridge is None and len(shape) == 2 and min(shape) > 1:
        around = [(ranks, t) for t in RIDGES]
        (ranks, found), trail = _best(session, data, around, folds, trail)
    return ranks, found, trail


def useless(data: Measurements, trail: Trail) -> bool:
    """Whether no candidate predicted held-out measurements better than the intercept alone.

    The best of several must be better by more than chance.
    """
    seen = [step["held_out"] for step in trail if step.get("held_out") is not None]
    alone = float(array_namespace(data.y).mean(data.y**2))
    return bool(seen) and not min(seen) < (1 - math.sqrt(2.5 / data.size)) * alone


def unjudged(state: State, data: Measurements, ranks: Ranks) -> bool:
    """Return whether there are so few measurements that held-out ones say little about a fit.

    A fit that reproduces twice as many as it has degrees of freedom speaks for itself.

    Parameters
    ----------
    state : State
    data : Measurements
    ranks : tuple of int
    """
    exact = float(state.value) <= 1e-12 * float(state.problem.value_at_zero)
    return data.size < FEWEST and not (exact and data.size >= 2 * degrees(ranks, data.shape))


def _best(
    session: Session,
    data: Measurements,
    candidates: list[tuple[Ranks, float]],
    folds: list[Any],
    trail: Trail | None = None,
) -> tuple[tuple[Ranks, float], Trail]:
    """Choose ranks and ridge by held-out measurements, a fifth of them, twice.

    Candidates grow in one direction, so the search ends after two that are worse than an earlier
    one, or one that is much worse. Those in the trail were tried before.
    """
    xp, trail = array_namespace(data.y), [] if trail is None else list(trail)
    known = {(r["rank"], r["ridge"]): r["held_out"] for r in trail}
    best: tuple[float, tuple[Ranks, float]] = math.inf, candidates[0]
    least, worse, starts = math.inf, 0, None
    for ranks, ridge in candidates:
        total = known.get((ranks, ridge))
        if total is None:
            # a ridge changes the fit of the last one a little
            near = starts if starts and ranks_of(starts[0]) == ranks else None
            total, starts = _held_out_error(session, data, folds, ranks, ridge, near)
            trail.append({"rank": ranks, "ridge": ridge, "held_out": total if folds else None})
        if total < 0.98 * best[0]:
            best = total, (ranks, ridge)
        worse, least = (0, total) if total <= least else (worse + 1, least)
        if worse == 2 or total > WORSE * least or session.out_of_time:
            break
        if total <= 1e-8 * float(xp.mean(data.y * data.y)):
            break  # exact
    return best[1], trail


@remembered("held out")
def _held_out_error(
    session: Session,
    data: Measurements,
    folds: list[Any],
    ranks: Ranks,
    ridge: float,
    starts: list[Factors] | None,
) -> tuple[float, list[Factors]]:
    """The mean square error on left-out measurements, and the fits to the others."""
    xp, total, found = array_namespace(data.y), 0.0, []
    for k, test in enumerate(folds):
        fit = data.some(np.setdiff1d(np.arange(data.size), test))
        held = data.some(test)
        start = None if starts is None else starts[k]
        state = fit_coefficient(session.apart(1e-5, 60), fit, ranks, ridge, start)
        off = held.predicted(state.factors) - held.y
        if data.intercept:
            off = off - xp.mean(fit.predicted(state.factors) - fit.y)
        total += float(xp.mean(off * off)) / len(folds)
        found.append(state.factors)
    return total, found
