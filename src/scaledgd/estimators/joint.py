"""Fit a table from a joint start: all columns at once, and the data decide which to keep."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ..factors import Bordered
from ..linalg import epsilon
from ..problems import Observed
from ..state import State
from ..stopping import Record, Stop, StoppingRule
from ..variational import Variational, current, extended, joint, mean_square, some
from .journal import remembered
from .observations import Observations
from .packing import host
from .robust import OWN, concentrated
from .scaling import table_factors
from .session import Session, light, revived

Array = Any

WORK = 45_000_000
"""Limit on the numbers that a sweep with full covariances sums over the entries."""

MEMORY = 4_000_000
"""Limit on the size of full covariances."""

NARROW_RANK = 20
"""Largest rank of a table with many more rows than columns."""

FALLING = 0.8
"""The fit continues while the noise of a sweep is below this share of the one before."""

MOSTLY = 2 / 3
"""Share of a component that one row or column of X may have if gross errors are expected."""

MORE = 4
"""Columns that are added to look for components that seem to be noise."""

COARSE = 1e-2
"""Relative change of the noise that ends this search."""

BRIEFLY = 40
"""Sweeps that it takes at most."""

LESS = 0.5
"""Share of the typical residual that may be left if there are more components.

Components that explain the noise of a few rows or columns, where it is larger, leave most of it.
"""

SHARE = 0.999
"""Initial share of the variance that the low-rank part explains; it matters for a few sweeps."""


def work_of(data: Observations, rank: int) -> int:
    """Return how many numbers a sweep with full covariances sums over the entries."""
    return data.size * (rank + 2) * (rank + 3) // 2


def whole_covariances(data: Observations, rank: int) -> bool:
    """Whether a table is small enough for full covariances of its rows."""
    return work_of(data, rank) <= WORK and sum(data.shape) * (rank + 2) ** 2 <= MEMORY


def narrow(data: Observations) -> bool:
    """Whether a table has many more rows than columns, so that columns have their own noise."""
    rows, columns = data.shape
    return rows >= 2 * columns and whole_covariances(data, min(columns, NARROW_RANK))


@dataclass(frozen=True)
class Joint:
    """How a table is fitted from a joint start.

    Attributes
    ----------
    rank : int
        An upper bound.
    share : float
        The initial share of the variance that is not noise.
    columns : bool
        Whether each column has its own noise level.
    freedom : float, optional
        Degrees of freedom of Student noise, for gross errors.
    sweeps : int
        Maximum number of sweeps, unless the noise still falls.
    fine : float
        Relative change of the noise that ends the fit.
    steady : int
        Number of consecutive sweeps with no larger change. On its way from the initial guess the
        noise may turn, and be stationary for a moment.
    least : int
        Minimum number of columns that a fit with full covariances starts with, a few more than the
        rank, which help it to converge.
    rounds : int
        Power iterations of the start.
    """

    rank: int
    share: float = SHARE
    columns: bool = False
    freedom: float | None = None
    sweeps: int = 200
    fine: float = 2e-4
    steady: int = 3
    least: int = 14
    rounds: int = 0

    def method(self, data: Observations) -> Variational:
        """Return the method in the form that suits the data."""
        return Variational(whole_covariances(data, self.rank), self.columns, self.freedom)

    def begun(self, data: Observations, problem: Observed, start: Bordered) -> State:
        """Return the first iterate.

        Parameters
        ----------
        data : Observations
        problem : Observed
        start : Bordered
            Says which offsets there are, and where they start.
        """
        rank = self.rank
        variance = None if self.freedom is None else robust_variance(data, start)
        if whole_covariances(data, max(rank + 4, self.least)):
            # one component per column would explain all of their errors
            room = min(data.shape) - (0 if self.freedom is None else 2)
            rank = max(rank, min(max(rank + 4, self.least), room))
        # gross errors would decide the order, too
        order = None if self.freedom is not None else column_order(data)
        begin = joint(
            rank, self.share, start=start, variance=variance, rounds=self.rounds, order=order
        )
        return begin(problem)


def column_order(data: Observations) -> Any:
    """Return the positions of the columns that random starts follow; None as they are."""
    return data.places[1] if data.places else None


def robust_variance(data: Observations, start: Bordered) -> float:
    """Return the variance of most of the entries about the offsets."""
    return float(max(data.residual(start).typical() * 1.4826, 1e-150) ** 2)


@remembered("joint", light, revived)
def fit_joint(
    session: Session,
    problem: Observed,
    data: Observations,
    init: State,
    how: Joint,
    deep: bool = True,
) -> State:
    """Fit at most some rank, and drop the columns that the data do not support.

    Parameters
    ----------
    session : Session
    problem : Observed
        That of `data`.
    data : Observations
    init : State
    how : Joint
    deep : bool
        Whether to look for components that seem to be noise.
    """
    state = _settled(session, problem, data, init, how)
    while deep and may_hide_more(session, data, state, how):
        # small components may be taken for noise: their turn comes when the others are known
        outcome, aside = session.outcome.copy(), session.with_reading(None)
        session.best_so_far(state)
        brief = replace(how, fine=max(how.fine, COARSE), sweeps=min(how.sweeps, BRIEFLY))
        variance = None if how.freedom is None else robust_variance(data, table_factors(state))
        wider = extended(state, MORE, variance=variance, order=column_order(data))
        found = _settled(aside, problem, data, wider, brief)
        if _explains_more(data, state, found):
            rules = rules_of(how)
            found = session.solve(problem, found, how.method(data), rules, stage="joint")
            if not session.out_of_time and _explains_more(data, state, found):
                state = found
                continue
        session.outcome.become(outcome)
        break
    return state


def _explains_more(data: Observations, state: State, other: State) -> bool:
    """Whether more components, shared by rows and columns, explain what seemed to be noise."""
    before, after = table_factors(state), table_factors(other)
    if after.rank <= before.rank or concentrated(after, OWN):
        return False
    left, whole = (float(data.residual(F).typical()) for F in (after, before))
    return left < LESS * whole


def _settled(
    session: Session, problem: Observed, data: Observations, init: State, how: Joint
) -> State:
    """Iterate, drop the columns that the data do not support, and iterate again."""
    method = how.method(data)
    state = session.solve(problem, init, method, rules_of(how), stage="joint")
    # after a few sweeps weak columns have not converged yet
    least = 0.02 if method.full else 1e-3
    fewer = supported(state, how.rank, least)
    if how.freedom is not None:
        fewer = shared(state, how.rank)
    if table_factors(fewer).rank == table_factors(state).rank:
        return state
    width = sum(B.shape[1] for B in fewer.factors.blocks)
    if not width or session.out_of_time:
        return fewer
    rules = rules_of(replace(how, sweeps=how.sweeps // 2))
    return session.solve(problem, fewer, method, rules, stage="cut")


def may_hide_more(session: Session, data: Observations, state: State, how: Joint) -> bool:
    """Whether noise is left that may be components beyond those that were found."""
    rank = table_factors(state).rank
    if not 0 < rank < how.rank or rank + MORE > min(data.shape) or not session.outcome.converged:
        return False
    if not whole_covariances(data, rank + MORE):
        return False
    least = max(1e-13, 10 * epsilon(state.factors.blocks[0]))
    return noise_share(state) > least and not session.out_of_time


def rules_of(how: Joint) -> list[StoppingRule]:
    """Stop when the noise has settled, or after some sweeps unless it still falls."""

    def rule(state: State, history: list[Record]) -> Stop | None:
        noise = history[-1]["noise"] = float(current(state).noise)
        last = [record["noise"] for record in history[-1 - how.steady :]]
        least = max(1e-14, epsilon(state.factors.blocks[0]))
        if noise <= least * min(mean_square(state.problem), history[0]["noise"] / (1 - how.share)):
            return Stop("the noise vanished")
        small = how.steady * how.fine * noise
        if len(last) > how.steady and max(last) - min(last) <= small:
            return Stop(f"the relative change of the noise is below {how.fine:.2g}")
        if len(history) > how.sweeps and noise > FALLING * last[0]:
            return Stop(f"the noise hardly falls after {how.sweeps} sweeps")
        return None

    return [rule]


def noise_share(state: State) -> float:
    """Return the noise as a share of the mean square of the data."""
    return float(current(state).noise) / max(mean_square(state.problem), 1e-300)


def relevance(state: State) -> Any:
    """Return how well the data determine every column, from 0 to 1.

    One minus the ratio of posterior to prior variance, in the block that is determined better.
    """
    F, posterior = table_factors(state), current(state)
    xp, r = array_namespace(F.L), F.rank
    known = [
        1 - xp.mean(C[:, :r], axis=0) / p[:r]
        for C, p in zip(posterior.variance, posterior.prior, strict=True)
    ]
    best = xp.where(known[0] > known[1], known[0], known[1])
    # a column that has vanished consists of rounding errors
    size = posterior.prior[0][:r] * posterior.prior[1][:r]
    return host(xp.where(size > 1e-8 * posterior.noise, best, xp.zeros_like(best)))


def shared(state: State, most: int) -> State:
    """Return the state without columns that may explain errors of a single row or column of X.

    Parameters
    ----------
    state : State
    most : int
        Columns that are kept at most.
    """
    F = table_factors(state)
    xp, keep = array_namespace(F.L), relevance(state) > 0.5
    for B in F.blocks:
        squares = B[:, : F.rank] ** 2
        keep &= host(xp.max(squares, axis=0) < MOSTLY * xp.sum(squares, axis=0))
    return _only(state, np.flatnonzero(keep)[:most].tolist())


def supported(state: State, most: int | None, least: float) -> State:
    """Return the state without the columns that the data hardly determine.

    Parameters
    ----------
    state : State
    most : int, optional
        Columns that are kept at most, the largest ones.
    least : float
        The relevance of a column that is kept.
    """
    return _only(state, np.flatnonzero(relevance(state) > least)[:most].tolist())


def _only(state: State, kept: list[int]) -> State:
    """The state with some of its columns."""
    F = table_factors(state)
    if len(kept) == F.rank:
        return state
    columns: Any = tuple(kept + list(range(F.rank, B.shape[1])) for B in F.blocks)
    # in the memory order of a checkpoint, so that a resumed fit rounds in the same way
    chosen = tuple(some(B, c, 1) for B, c in zip(F.blocks, columns, strict=True))
    posterior = current(state).kept(columns)
    return state.moved(F.with_blocks(chosen)).remembering(posterior)
