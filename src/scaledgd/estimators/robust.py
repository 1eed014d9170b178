"""Fit a table with gross errors.

Residuals beyond three times their robust scale are ignored (`HardTrim`), and the rest is solved
exactly (`Alternating`). Rows, columns and components that fit outliers are started again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..factors import Bordered, Factors, LowRank
from ..growth import widened
from ..initialize import spectral
from ..kernels import backend
from ..linalg import epsilon
from ..losses import HardTrim
from ..methods import Alternating
from ..problems import Observed
from ..state import State
from ..stopping import Record, Stop, StoppingRule
from ..thresholds import larger, median_threshold
from ..variational import current
from .fitting import believed, degrees, refine, structured, without_weakest
from .journal import remembered
from .observations import MULTIPLE, Observations, position_of
from .packing import packable
from .rules import beside_residual, change
from .scaling import bordered, singular, table_factors, truncated, with_part
from .session import Session, light, revived

Array = Any
Outliers = str | float
"""The expected outliers: "auto", or their fraction."""

SAME = 0.01
"""Relative change of a threshold that hardly changes what is rejected."""

PLENTY = 20.0
"""Entries per degree of freedom that count as many."""


@packable
@dataclass(frozen=True)
class fraction_threshold:  # noqa: N801  (reads as an argument, like median_threshold)
    """ζ_t = max(the quantile of |r| that a fraction exceeds, ratio · ζ_{t−1})."""

    fraction: float
    ratio: float = 0.5

    def pick(self, t: int, residual: Array, last: Any) -> Any:
        """Return the threshold of iterate t, given the last one."""
        k = position_of(self.fraction, math.prod(residual.shape))
        return larger(backend(residual).kth_magnitude(residual, k), self.ratio * (last or 0.0))


def rejecting(data: Observations, outliers: Outliers, ratio: float = 0.3) -> HardTrim:
    """Return the loss for outliers="auto", or for a fraction of them."""
    if outliers == "auto":
        # at first only the grossest errors are rejected: if the start puts a column far from most
        # of its entries, it must not lose all of them
        return HardTrim(median_threshold(MULTIPLE, ratio, first=data.typical(0.7)))
    return HardTrim(fraction_threshold(float(outliers), ratio))


def threshold(state: State) -> float:
    """Return the threshold of the loss of a state."""
    return float(state.memory.loss.value)


def levels(session: Session, data: Observations) -> tuple[float, float]:
    """Return the final threshold, and the one below which the data count as reproduced."""
    typical = data.typical()
    least = max(0.1 * session.tol, 10 * epsilon(data.example)) * typical
    return least, max(least, 1e-5 * typical)


def falling(least: float) -> list[StoppingRule]:
    """Stop when the threshold vanished, or fell by less than 2 % three times."""

    def gone(state: State, history: list[Record]) -> Stop | None:
        if threshold(state) <= least:
            return Stop("the residual vanished except for the outliers")
        return None

    def stalled(state: State, history: list[Record]) -> Stop | None:
        history[-1]["threshold"] = threshold(state)
        seen = [record["threshold"] for record in history]
        best = min(seen)
        if len(seen) > 4 and best > 0.98 * min(seen[:-3]):
            return Stop("the scale of the residual no longer falls")
        return None

    return [gone, stalled]


def fit_robust(
    session: Session,
    data: Observations,
    start: Bordered,
    rank: int,
    outliers: Outliers,
    init: Bordered | None = None,
    learn: bool = True,
) -> tuple[State, float]:
    """Fit a given rank and find the threshold that outliers exceed.

    Parameters
    ----------
    session : Session
    data : Observations
    start : Bordered
        Says which offsets there are.
    rank : int
    outliers : "auto" or a fraction
    init : Bordered, optional
        The first iterate; by default a spectral start.
    learn : bool
        Whether to learn a ridge from the noise. If false, the fit only shows whether there is any.

    Returns
    -------
    state : State
    threshold : float
    """
    problem = data.problem(rejecting(data, outliers))
    state = rejection(session, problem, data, start, min(rank, *data.shape), init)
    state = without_surplus(session, problem, state, data)
    return settle(session, data, state, outliers, learn=learn)


@remembered("rejection", light, revived)
def rejection(
    session: Session,
    problem: Observed,
    data: Observations,
    start: Bordered,
    rank: int,
    init: Bordered | None = None,
) -> State:
    """Fit a rank despite outliers, and repair rows and columns that fit the outliers."""
    least, fine = levels(session, data)

    def run(init: Factors | State, stage: str = "repair") -> State:
        return session.solve(problem, init, Alternating(), falling(least), stage=stage)

    if init is None:
        init = bordered(spectral(rank, rounds=1)(problem), start)
    state = run(init, "rejection")
    for _ in range(4):
        level = threshold(state)
        share, shares = data.rejected(table_factors(state), level)
        astray = [bool((x > 0.5).any()) for x in shares]
        exact = level <= fine
        if session.out_of_time or (not any(astray) and (exact or not structured(state, data))):
            break
        tries: list[Callable[[State], Factors | State]] = []
        if any(astray):
            tries.append(_anew(data, shares, exact))
        if rank > 1 and concentrated(table_factors(state)):
            tries.append(_spread_out)
        if rank > 1:
            tries.append(lambda state: without_weakest(state, run))
        for repair in tries:
            again = run(repair(state))
            now, best = threshold(again), threshold(state)
            fewer = data.rejected(table_factors(again), now)[0] < 0.98 * share
            both = max(now, best) <= fine
            if now < 0.9 * best or (fewer and (both or now <= 1.1 * best)):
                state = again
                break
        else:
            break
    alone = min(data.shape) > 20 * rank > 20 and concentrated(table_factors(state), OWN)
    if alone and threshold(state) > fine:
        # a component still explains the outliers of one row or column: drop it
        state = run(without_own(state, OWN).factors)
    return state


def _anew(
    data: Observations, shares: list[Array], resume: bool
) -> Callable[[State], Factors | State]:
    """Solve the rows and columns that were mostly rejected separately."""

    def repair(state: State) -> Factors | State:
        F = table_factors(state)
        xp = array_namespace(F.L)
        for mode, share in enumerate(shares):
            if bool(xp.any(share > 0.5)):
                chosen = xp.nonzero(share > 0.5)[0]
                only = only_some(F, mode, chosen)
                part = data.slices(mode, chosen)
                other = part.rows_without_outliers(only, mode, threshold(state))
                B = _put(F.blocks[mode], chosen, other.blocks[mode])
                F = F.with_blocks(tuple(B if k == mode else A for k, A in enumerate(F.blocks)))
        rule = state.memory.loss.rule
        return _resumed(state, F) if resume and rule is not None else F

    return repair


def only_some(F: Bordered, mode: int, chosen: Array) -> Bordered:
    """Factors of some rows (or columns) of X."""
    xp = array_namespace(F.L)
    if mode == 0:
        u = None if F.u is None else xp.take(F.u, chosen)
        return replace(F, L=xp.take(F.L, chosen, axis=0), u=u)
    v = None if F.v is None else xp.take(F.v, chosen)
    return replace(F, R=xp.take(F.R, chosen, axis=0), v=v)


def _put(B: Array, chosen: Array, rows: Array) -> Array:
    """B with some rows replaced."""
    xp = array_namespace(B)
    place = np.full(B.shape[0], -1)
    place[np.asarray(chosen.tolist())] = np.arange(rows.shape[0])
    where = xp.asarray(place, device=device(B))
    other = xp.take(rows, xp.where(where >= 0, where, xp.zeros_like(where)), axis=0)
    return xp.where((where >= 0)[:, None], other, B)


def _resumed(state: State, F: Factors) -> State:
    """The state at other factors, with a slightly raised threshold."""
    last = state.memory.loss
    memory = replace(state.memory, loss=replace(last, value=10 * last.value))
    return replace(state.moved(F), t=state.t + 1, memory=memory)


@remembered("fewer", light, revived)
def without_surplus(session: Session, problem: Observed, state: State, data: Observations) -> State:
    """Drop components that are not needed to fit the accepted entries exactly.

    If the rank is too large, a spare component explains outliers.
    """
    least, fine = levels(session, data)
    level = threshold(state)
    if level > fine or not concentrated(table_factors(state)):
        return state

    enough = 10 * max(level, least)

    def without(fewer: Bordered) -> State | None:
        outcome = session.outcome.copy()
        again = session.solve(problem, fewer, Alternating(), falling(least), 40, stage="fewer")
        if threshold(again) <= enough:
            return mended(again)
        session.outcome.become(outcome)  # what was dropped was needed
        return None

    def mended(state: State) -> State:
        """Solve rows and columns again that only the dropped components explained."""
        share, shares = data.rejected(table_factors(state), threshold(state))
        if not any(bool((x > 0.5).any()) for x in shares):
            return state
        again = _anew(data, shares, True)(state)
        again = session.solve(problem, again, Alternating(), falling(least), 40, stage="repair")
        fewer = data.rejected(table_factors(again), threshold(again))[0] < share
        return again if fewer and threshold(again) <= enough else state

    while (F := table_factors(state)).rank > 1:
        again = None
        if concentrated(F, OWN):
            # components of outliers may be larger than all others
            again = without(table_factors(without_own(state, OWN)))
        again = again or without(truncated(F, F.rank - 1))
        if again is None:
            break
        state = again
    return state


Refit = Callable[[Observed, State], State]


def settle(
    session: Session,
    data: Observations,
    state: State,
    outliers: Outliers,
    refit: Refit | None = None,
    learn: bool = True,
) -> tuple[State, float]:
    """Estimate the noise of the accepted entries, which gives a ridge and the final threshold."""
    least = max(math.sqrt(epsilon(data.example)), 0.1 * session.tol) * data.typical()
    limit, before = least, 0.0
    for _ in range(2 if refit is None else 5):
        F = table_factors(state)
        if outliers == "auto":
            # the fit follows the noise of the entries that it keeps, but not of those it rejects
            kept = 1 - degrees(F.rank, data.shape) / data.size
            limit = MULTIPLE * data.residual_scale(F) / math.sqrt(max(kept, 0.1))
            if refit is not None and state.memory.loss is not None:
                limit = max(limit, MULTIPLE * math.sqrt(float(current(state).noise)))
        else:
            limit = data.residual_quantile(F, float(outliers))
        if limit <= least or (refit is None and abs(limit - before) <= SAME * limit):
            break
        before = limit
        fixed, kept = data.problem(HardTrim(limit)), data.within(F, limit)
        last = state
        if refit is None:
            state = fixed.linearize(F)
            if data.size >= PLENTY * degrees(F.rank, data.shape):
                # a ridge hardly matters: let the rejected set settle in cheaper sweeps
                rules = [beside_residual(1e-3), change(1e-4 * limit)]
                state = session.solve(fixed, state, Alternating(), rules, stage="settled")
            if learn:
                state = refine(session, fixed, state, data, None, 1e-4 * limit)
        else:
            state = refit(fixed, fixed.linearize(F))
        F = table_factors(state)
        if data.within(F, limit) < 0.9 * kept:
            # few entries led to a ridge that lost the others: the fit is better without it
            state = believed(fixed.linearize(last.factors), data)
            break
        if last.factors.distance(F) <= 1e-3 * limit * math.sqrt(data.size):
            break
    if limit <= least:
        state = believed(state, data)
    return state, max(limit, least)


# ---- components that explain outliers

OWN = 0.9
"""Share of a direction above which it belongs to a single row or column."""


def leverage(F: Bordered | LowRank) -> list[Array]:
    """The share of a direction that belongs to every single row, and column, from 0 to 1."""
    return [row_shares(B[:, : F.rank]) for B in F.blocks]


def row_shares(B: Array) -> Array:
    """The share of a direction in the span of a block that belongs to every row, from 0 to 1."""
    xp = array_namespace(B)
    Q = xp.linalg.qr(B)[0]
    return xp.sum(Q * Q, axis=1)


def concentrated(F: Bordered | LowRank, most: float = 0.25) -> bool:
    """Whether a direction belongs mostly to one row or column, as outliers would cause."""
    return F.rank > 0 and any(float(array_namespace(x).max(x)) > most for x in leverage(F))


def without_own(state: State, most: float) -> State:
    """Drop the directions that only one row or column has.

    They explain the outliers of that row or column, not the table.
    """
    F = table_factors(state)
    xp, r = array_namespace(F.L), F.rank
    blocks = []
    for B, x in zip(F.blocks, leverage(F), strict=True):
        inside = xp.where((x > most)[:, None], xp.zeros_like(B[:, :r]), B[:, :r])
        blocks.append(xp.concat([inside, B[:, r:]], axis=1))
    U, s, V = singular(F.with_blocks(tuple(blocks)))
    kept = max(1, min(r - 1, int((s > 1e-6 * s[0]).sum())))
    return state.moved(with_part(F, U[:, :kept], s[:kept], V[:, :kept]))


def _spread_out(state: State) -> State:
    """Replace such directions by the top directions of the residual."""
    fewer = without_own(state, 0.25)
    lost = table_factors(state).rank - table_factors(fewer).rank
    return state.moved(widened(fewer, lost))  # its threshold continues to fall
