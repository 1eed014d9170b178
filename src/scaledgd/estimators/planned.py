"""Fit a table as planned, and find out whether the data are exact."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from array_api_compat import array_namespace

from ..factors import Bordered
from ..problems import Observed
from ..state import State
from .fitting import (
    alternate,
    believed,
    degrees,
    first_factors,
    fits,
    least_squares,
    prune,
    structured,
    with_noise,
)
from .growing import begin, checked, fit_grown
from .joint import Joint, fit_joint, noise_share, supported, whole_covariances
from .local_observations import LocalObservations
from .observations import Observations
from .packing import host
from .plans import FIRST_RANK, LARGEST_RANK, Plan, continued
from .robust import OWN, concentrated
from .scaling import singular, table_factors, with_part
from .session import Session
from .vouching import determinable

PROBE = 12
"""Sweeps after which it is clear whether noise remains."""

PLENTY = 6.0
"""Entries per degree of freedom that count as many."""

LITTLE = 0.05
"""Share of noise in the variance above which an exact fit is ruled out."""

TINY = 1e-8
"""Share of the variance below which the estimated noise is all there is."""

NEAR = 1e-6
"""Share of the loss of X = 0 above which single precision is enough."""

GAP = 0.4
"""Ratio of singular values below which the smaller ones may not be needed."""

FALL = 0.3
"""Share of the loss that a sweep must take off while a smaller rank is tried."""

SMALL = 1_000_000
"""Entries times rank below which an exact fit is tried if there are few entries."""


def fit_planned(
    session: Session,
    data: LocalObservations,
    start: Bordered,
    plan: Plan,
    seed: int,
    noisy: bool = False,
) -> State:
    """Return the fit to all entries.

    Parameters
    ----------
    session : Session
    data : LocalObservations
    start : Bordered
        Says which offsets there are.
    plan : Plan
    seed : int
    noisy : bool
        Whether it is known that the data are not exact.
    """
    problem, rank = data.problem(), min(plan.rank, *data.shape)
    if plan.start == "offsets" or not rank:
        return begin(session.apart(), data, start, None).state
    if plan.start == "grown":
        state = fit_grown(session, data, start, rank)
        return checked(session, state, data, start, seed + 2)
    how = plan.joint(data)
    how = replace(how, fine=max(how.fine, 0.1 * session.tol), steady=1 if noisy else how.steady)
    init = continued(problem, start, plan.begun)
    init = how.begun(data, problem, start) if init is None else init
    state = fit_joint(session, problem, data, init, how)
    return state if noisy else polished(session, data, state) or state


def fit_exact(
    session: Session, data: Observations, start: Bordered, rank: int | None
) -> tuple[State | None, State | None]:
    """Return a fit that reproduces the data, or None, and where a fit with noise may start.

    The columns that a joint start finds are tried first, so a given rank may be too large. The
    given rank itself is tried if there is little noise, or if there are too few entries to estimate
    the noise.

    Parameters
    ----------
    session : Session
    data : Observations
    start : Bordered
    rank : int, optional
        The given rank.

    Returns
    -------
    exact : State, optional
    begun : State, optional
        Least squares of a large table that leave nothing but noise.
    """
    most = min(min(data.shape) - 1, max(1, data.size // sum(data.shape)), FIRST_RANK)
    # a larger rank reproduces anything
    bound = max(1, most) if rank is None else min(rank, determinable(data, 0.8))
    if rank is not None and bound > 2 * LARGEST_RANK:
        smaller = fit_exact(session, data, start, LARGEST_RANK)
        if smaller[0] is not None or session.out_of_time:
            return smaller
    problem, how = data.problem(), Joint(bound, sweeps=PROBE, fine=3e-3)
    outcome = session.outcome.copy()
    if rank is not None and plenty(data, bound):
        # so many entries determine the components
        quick, rough = _quick(session, data, problem, start, bound)
        exact = fits(session, quick)
        if exact and not _arbitrary(quick):
            # if whole blocks are missing, superfluous components are arbitrary there
            fewer = _reproduced(session, data, problem, table_factors(quick), bound - 1)
            return (believed(quick, data) if fewer is None else fewer), None
        session.outcome.become(outcome)
        if not exact and not whole_covariances(data, bound) and not structured(rough, data):
            noisy = believed(quick, data)
            # components that noise could have made are better judged from a fresh start
            if table_factors(prune(noisy, data, 1.1)).rank == bound:
                return None, with_noise(noisy, data)
    init = how.begun(data, problem, start)
    state = fit_joint(session, problem, data, init, how)
    finer = polished(session, data, state)
    if finer is not None:
        return finer, None
    session.outcome.become(outcome)
    if rank is None:
        return None, None
    dof = degrees(bound, data.shape)
    few = data.size < 3 * dof and data.size * bound <= SMALL
    unsure = few or TINY < noise_share(state) < LITTLE
    if data.size >= 1.25 * dof and unsure:
        found = least_squares(session, problem, data, start, bound)
        if fits(session, found) and not _arbitrary(found):
            return believed(found, data), None
    session.outcome.become(outcome)
    return None, None


def _quick(
    session: Session, data: Observations, problem: Observed, start: Bordered, rank: int
) -> tuple[State, State]:
    """Least squares from a spectral start, and a state to judge the residual by.

    A large table is fitted in single precision, which takes half the time, and that is all where
    noise is left. Otherwise both are the same.
    """
    single = data.in_single()
    if single is None:
        first = first_factors(problem, start, rank)
    else:
        xp = array_namespace(single.example)
        rough = single.problem()
        first = first_factors(rough, _in_precision(start, xp.float32), rank)
        state = alternate(session, rough, first, "least squares")
        first = _in_precision(table_factors(state), xp.float64)
        if float(state.value) > NEAR * float(rough.value_at_zero):
            return replace(problem.linearize(first), known=float(state.value)), state
    quick = alternate(session, problem, first, "least squares")
    return quick, quick


def _in_precision(F: Bordered, dtype: Any) -> Bordered:
    xp, arrays = array_namespace(F.L), (F.L, F.R, F.u, F.v)
    return Bordered(*(None if x is None else xp.astype(x, dtype) for x in arrays))


def _arbitrary(state: State) -> bool:
    """Whether a component of least squares belongs to a single row or column.

    If there are more components than the data need, one may reproduce the entries of a column by
    itself. It is arbitrary where the column has none.
    """
    return concentrated(table_factors(state), OWN)


def plenty(data: Observations, rank: int) -> bool:
    """Whether no row or column can be fitted by components that the others do not need."""
    xp = array_namespace(data.example)
    least = min(float(xp.min(data.counts(k))) for k in (0, 1))
    return data.size >= PLENTY * degrees(rank, data.shape) and least >= 2 * rank + 2


def polished(session: Session, data: Observations, state: State) -> State | None:
    """The fit of least rank that reproduces the data, if the columns found do."""
    if noise_share(state) > LITTLE:
        return None
    F, problem = table_factors(supported(state, None, 0.5)), state.problem
    assert isinstance(problem, Observed)
    return _reproduced(session, data, problem, F, F.rank)


def _reproduced(
    session: Session, data: Observations, problem: Observed, F: Bordered, most: int
) -> State | None:
    """The fit of least rank that reproduces the data, among the ranks that gaps suggest."""
    outcome = session.outcome.copy()
    offsets = sum(B.shape[0] * (B.shape[1] - F.rank) for B in F.blocks)
    U, s, V = singular(F)
    for rank in _candidates(host(s)):
        if rank > most or data.size < 1.3 * (degrees(rank, data.shape) + offsets):
            break
        # if the rank is large enough, the loss falls by orders of magnitude
        fall = 1e-2 if rank == F.rank else FALL
        first = with_part(F, U[:, :rank], s[:rank], V[:, :rank])
        if rank < F.rank and _hopeless(session, problem, first):
            continue
        exact = alternate(session, problem, first, "exact", fall)
        if fits(session, exact):
            return believed(exact, data)
        session.outcome.become(outcome)
    return None


def _hopeless(session: Session, problem: Observed, F: Bordered) -> bool:
    """Whether rows that are solved for lower the loss so little that a sweep would not help."""
    state = problem.linearize(F)
    squares = state.view.block_move(0).squares
    if squares is None:
        return False
    before, after = squares
    enough = before <= math.sqrt(1 + FALL) * after
    return enough and not fits(session, replace(state, known=0.5 * before))


def _candidates(s: Any) -> list[int]:
    """Ranks after which singular values are much smaller, and the full rank."""
    gaps = [k for k in range(1, len(s)) if s[k] < GAP * s[k - 1]]
    return [*gaps, len(s)] if len(s) else []
