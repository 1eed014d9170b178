"""Fit a table from a joint start: all columns at once, and the data decide which they support."""

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
from ..variational import Variational, current, joint, mean_square, some
from .journal import remembered
from .observations import Observations
from .packing import host
from .scaling import table_factors
from .session import Session, light, revived

Array = Any

WORK = 45_000_000
"""Numbers that a sweep with whole covariances may sum over the entries."""

MEMORY = 4_000_000
"""Numbers that whole covariances may take."""

NARROW_RANK = 20
"""Largest rank of a table with many more rows than columns."""

FALLING = 0.8
"""Ratio of noise levels of one sweep and the one before from which on a fit goes on."""

MOSTLY = 2 / 3
"""Share of a column that one row or column of X may have where gross errors are expected."""

SHARE = 0.999
"""Part of the variance that the low-rank part explains at first; it matters for a few sweeps."""


def work_of(data: Observations, rank: int) -> int:
    """Return how many numbers a sweep with whole covariances sums over the entries."""
    return data.size * (rank + 2) * (rank + 3) // 2


def whole_covariances(data: Observations, rank: int) -> bool:
    """Whether a table is small enough for the whole covariances of its rows."""
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
        The part of the variance that is not noise, at first.
    columns : bool
        Whether columns have a noise of their own.
    freedom : float, optional
        Degrees of freedom of Student noise, for gross errors.
    sweeps : int
        Sweeps at most, unless the noise still falls.
    fine : float
        A change of the noise, as a share of it, that ends the fit.
    steady : int
        Sweeps in a row that change the noise by no more. On its way from a first guess the noise
        may turn, and be stationary for a moment.
    least : int
        Columns that a fit with whole covariances begins with at least, a few more than the rank:
        they keep it on course.
    """

    rank: int
    share: float = SHARE
    columns: bool = False
    freedom: float | None = None
    sweeps: int = 200
    fine: float = 2e-4
    steady: int = 3
    least: int = 14

    def method(self, data: Observations) -> Variational:
        """Return the method, in the size that suits the data."""
        return Variational(whole_covariances(data, self.rank), self.columns, self.freedom)

    def begun(self, data: Observations, problem: Observed, start: Bordered) -> State:
        """Return the first iterate.

        Parameters
        ----------
        data : Observations
        problem : Observed
        start : Bordered
            Says which offsets there are, and where they begin.
        """
        rank = self.rank
        variance = None if self.freedom is None else robust_variance(data, start)
        if whole_covariances(data, max(rank + 4, self.least)):
            # as many columns as there are would explain the errors of every one
            room = min(data.shape) - (0 if self.freedom is None else 2)
            rank = max(rank, min(max(rank + 4, self.least), room))
        return joint(rank, self.share, start=start, variance=variance)(problem)


def robust_variance(data: Observations, start: Bordered) -> float:
    """Return the variance about offsets that most of the entries have."""
    return float(max(data.residual(start).typical() * 1.4826, 1e-150) ** 2)


@remembered("joint", light, revived)
def fit_joint(
    session: Session, problem: Observed, data: Observations, init: State, how: Joint
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
    """
    method = how.method(data)
    state = session.solve(problem, init, method, _rules(how), stage="joint")
    # after a few sweeps weak columns are still on their way
    least = 0.02 if method.full else 1e-3
    fewer = supported(state, how.rank, least)
    if how.freedom is not None:
        fewer = shared(state, how.rank)
    if table_factors(fewer).rank == table_factors(state).rank:
        return state
    width = sum(B.shape[1] for B in fewer.factors.blocks)
    if not width or session.out_of_time:
        return fewer
    rules = _rules(replace(how, sweeps=how.sweeps // 2))
    return session.solve(problem, fewer, method, rules, stage="cut")


def _rules(how: Joint) -> list[StoppingRule]:
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
            return Stop(f"{how.sweeps} sweeps were enough")
        return None

    return [rule]


def noise_share(state: State) -> float:
    """Return the noise as a share of the mean square of the data."""
    return float(current(state).noise) / max(mean_square(state.problem), 1e-300)


def relevance(state: State) -> Any:
    """Return how well the data determine every column, from 0 to 1.

    One minus the posterior variance over the prior one, in the block that knows more.
    """
    F, posterior = table_factors(state), current(state)
    xp, r = array_namespace(F.L), F.rank
    known = [
        1 - xp.mean(C[:, :r], axis=0) / p[:r]
        for C, p in zip(posterior.variance, posterior.prior, strict=True)
    ]
    best = xp.where(known[0] > known[1], known[0], known[1])
    # of a column that has vanished nothing is known but rounding errors
    size = posterior.prior[0][:r] * posterior.prior[1][:r]
    return host(xp.where(size > 1e-8 * posterior.noise, best, xp.zeros_like(best)))


def shared(state: State, most: int) -> State:
    """Return the state without columns that may explain the errors of one row or column of X.

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
    # in the order that a checkpoint stores, so that a resumed fit rounds alike
    chosen = tuple(some(B, c, 1) for B, c in zip(F.blocks, columns, strict=True))
    posterior = current(state).kept(columns)
    return state.moved(F.with_blocks(chosen)).remembering(posterior)
