"""Fit a table by growing its rank until noise explains the added columns, and question the result.

Held-out entries decide how far to grow if the fit itself cannot, and whether to believe a fit that
could be nothing but noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from array_api_compat import array_namespace

from ..factors import Bordered
from ..growth import widened
from ..linalg import epsilon
from ..problems import Observed
from ..state import State
from ..variational import Posterior, Variational, current, mean_square
from .fitting import (
    believed,
    degrees,
    fits,
    least_squares,
    prune,
    refine,
)
from .journal import remembered, remembered_steps
from .observations import Observations
from .rules import beside_residual, change
from .scaling import table_factors, truncated
from .session import Session, light, revived

Array = Any
Judge = Callable[[Any], Array]

ENOUGH = 200_000
"""Held-out entries after which no further validation fold is run."""


@dataclass(frozen=True, eq=False)
class Path:
    """A growing fit.

    Attributes
    ----------
    state : State
        The fit at the rank reached so far.
    problem : Observed
    data : Observations
    ended : str
        Why the growth ended; empty until then.
    steps : tuple of (rank, held-out error)
    best_rank : int
    best_errors : array, optional
        Squared errors at the rank that predicts held-out entries best.
    """

    state: State
    problem: Observed
    data: Observations
    ended: str = ""
    steps: tuple[tuple[int, float], ...] = ()
    best_rank: int = 0
    best_errors: Array = None

    @property
    def rank(self) -> int:
        return table_factors(self.state).rank

    @property
    def best(self) -> float:
        """The smallest held-out error so far."""
        return float(array_namespace(self.best_errors).mean(self.best_errors))

    def judged(self, judge: Judge | None) -> Path:
        """Return the path with the held-out error of its state."""
        if judge is None:
            return self
        errors = judge(table_factors(self.state))
        mean = float(array_namespace(errors).mean(errors))
        steps = (*self.steps, (self.rank, mean))
        if self.best_errors is None or mean < self.best:
            return replace(self, steps=steps, best_rank=self.rank, best_errors=errors)
        return replace(self, steps=steps)


def begin(session: Session, data: Observations, start: Bordered, judge: Judge | None) -> Path:
    """Return a path of rank 0: offsets alone."""
    problem = data.problem()
    state = problem.linearize(start)
    if start.L.shape[1] + start.R.shape[1]:
        state = session.solve(problem, state, Variational(), [change(1e-3)], 30, "offsets")
    return Path(state, problem, data).judged(judge)


def _shrunk(path: Path) -> Any:
    steps = tuple((rank, float(error)) for rank, error in path.steps)
    seen = {"steps": steps, "best_rank": path.best_rank, "best_errors": path.best_errors}
    return {"state": light(path.state), "ended": path.ended, **seen}


def _restored(kept: Any, path: Path, *_: Any) -> Path:
    return replace(path, **{**kept, "state": revived(kept["state"], path.problem)})


@remembered_steps("growth", _shrunk, _restored)
def grow(
    session: Session, path: Path, cap: int, judge: Judge | None, patience: int = 10
) -> Iterator[Path]:
    """Add columns until noise explains the added ones, or held-out errors grow.

    Parameters
    ----------
    session : Session
    path : Path
    cap : int
        The largest rank.
    judge : callable, optional
    patience : int
        Steps without a better held-out error after which the growth ends.
    """
    zero = 2 * float(path.problem.value_at_zero) / path.data.size
    exact = 1e-14 if epsilon(path.state.factors.blocks[0]) < 1e-10 else 1e-8
    while path.rank < cap and not path.ended and not session.out_of_time:
        before = path.rank
        state = widen(path.state, min(max(1, before // 10), cap - before))
        rules, few = [beside_residual(1e-2)], 5
        state = session.solve(path.problem, state, Variational(), rules, few, "growth")
        state = prune(state, path.data)
        ended = ""
        if table_factors(state).rank <= before:
            if sum(B.shape[1] for B in state.factors.blocks):
                rules = [beside_residual(1e-2)]
                state = session.solve(path.problem, state, Variational(), rules, few, "growth")
            ended = "noise explains the added columns"
        elif float(current(state).noise) < exact * zero:
            ended = "the residual vanished"
        path = replace(path, state=state, ended=ended).judged(judge)
        recent = [error for _, error in path.steps[-patience:]]
        if len(path.steps) > patience and min(recent) > path.best and not path.ended:
            path = replace(path, ended="held-out errors grew")
        yield path


def widen(state: State, columns: int) -> State:
    """Add the top components of the residual as columns; the posterior of the others is kept."""
    posterior, r = current(state), table_factors(state).rank
    wider = state.moved(widened(state, columns))
    F = table_factors(wider)
    xp, first = array_namespace(F.L), Posterior.first(F, posterior.noise)

    def inserted(known: Array, new: Array, axis: int) -> Array:
        cut = [known[:r], new[r : r + columns], known[r:]]
        if axis:
            cut = [known[:, :r], new[:, r : r + columns], known[:, r:]]
        return xp.concat(cut, axis=axis)

    prior, variance = (
        tuple(inserted(a, b, axis) for a, b in zip(old, new, strict=True))
        for axis, (old, new) in enumerate(
            ((posterior.prior, first.prior), (posterior.variance, first.variance))
        )
    )
    return wider.remembering(Posterior(posterior.noise, prior, variance, first.total))


# ---- fits


def fit_grown(session: Session, data: Observations, start: Bordered, cap: int) -> State:
    """Fit by growing the rank up to a cap."""
    path = grow(session, begin(session, data, start, None), cap, None)
    outcome = session.outcome
    outcome.converged, outcome.status = True, path.ended or f"grown to rank {path.rank}"
    if not path.rank and cap and data.size >= 1.3 * degrees(1, data.shape):
        # if there are few entries, growth from rank 0 takes them as noise: try a fit of rank 1
        state = least_squares(session, path.problem, data, table_factors(path.state), 1)
        if fits(session, state):
            return believed(state, data)
    return refine(session, path.problem, path.state, data)


# ---- whether to believe a fit


def doubtful(session: Session, state: State, data: Observations) -> bool:
    """Whether a fit could be nothing but noise, or one of many that fit the data."""
    rank = table_factors(state).rank
    if not rank:
        return False
    dof = degrees(rank, data.shape)
    if data.size < 1.3 * dof:
        return True
    if fits(session, state):
        return False
    return data.size < 2 * dof or float(current(state).noise) > 0.3 * mean_square(state.problem)


@remembered("gain")
def _gain(
    session: Session, fit: Observations, test: Observations, start: Bordered, cap: int
) -> Array:
    """How much better held-out entries are predicted than by offsets alone."""
    aside = session.apart()
    path = begin(aside, fit, start, None)
    without = test.squared_errors(table_factors(path.state))
    return without - test.squared_errors(table_factors(grow(aside, path, cap, None).state))


def trusted(session: Session, data: Observations, start: Bordered, cap: int, seed: int) -> bool:
    """Whether held-out entries are predicted better than by offsets alone, beyond chance."""
    gains = []
    folds = max(1, min(5, math.ceil(ENOUGH / (0.1 * data.size))))
    for fit, test in data.split(0.1, seed, folds):
        gains.append(_gain(session, fit, test, start, cap))
        if session.out_of_time:
            break
    if not gains:
        return False
    xp = array_namespace(data.example)
    gain = xp.concat(gains)
    if gain.shape[0] < 5:
        return False
    chance = 2 * float(xp.std(gain)) / math.sqrt(gain.shape[0])
    return float(xp.mean(gain)) > chance


def checked(
    session: Session, state: State, data: Observations, start: Bordered, seed: int
) -> State:
    """Return the fit, or offsets alone if held-out entries do not support more."""
    rank = table_factors(state).rank
    if not doubtful(session, state, data):
        return state
    blank = truncated(start, 0)
    if trusted(session, data, blank, rank, seed):
        return state
    return begin(session.apart(), data, blank, None).state
