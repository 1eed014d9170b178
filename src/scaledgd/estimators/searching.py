"""Find the model of a table: units, offsets, scales, rank and start, and the fit itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ..factors import Bordered
from ..state import State
from ..variational import current
from .fitting import aligned_components, fit_non_negative, fit_ridge
from .gaussian_rows import affordable
from .joint import NARROW_RANK, narrow, noise_share
from .judgement import judge
from .limits import FEWER, FIRST_RANK, LARGE
from .local_observations import LocalObservations
from .matrix_model import TableFit, doubted
from .packing import brought, host
from .planned import TINY, fit_exact, fit_planned, plenty
from .plans import (
    LARGEST_RANK,
    Plan,
    Reading,
    candidates,
    gaussian_of,
    only_noise_left,
    reproduced,
)
from .robust_search import search_robust
from .scaling import table_factors
from .session import Session
from .steadiness import Part
from .timed import LAST_SWEEPS, fit_timed, largest_rank, refined, smooth_modes, stretch
from .units import unlike_columns
from .vouching import DOUBT, determinable, middle_errors, objection, own_units, parts_of, squared
from .wishes import Wishes

Array = Any
Index = tuple[Array, ...]

REPRODUCED = 1e-6
"""Share of the squares of the data that nonnegative factors, which converge slowly, may leave."""

CLEARLY = 0.9
"""Share of the residual of a fit below which that of another one is clearly smaller."""


def search(session: Session, data: LocalObservations, wishes: Wishes, seed: int) -> TableFit:
    """Return the fit of a table.

    Parameters
    ----------
    session : Session
    data : LocalObservations
        In their own units.
    wishes : Wishes
    seed : int
    """
    if wishes.non_negative and (wishes.outliers is not None or wishes.ridge is not None):
        raise ValueError("non_negative cannot be combined with outliers or a given ridge")
    if wishes.outliers is not None:
        return search_robust(session, data, wishes, seed)
    if wishes.ridge is not None or wishes.non_negative:
        return _given_penalty(session, data, wishes, seed)
    # detecting time in the data takes longer than an exact fit; given options are checked now
    named = wishes.smooth != "auto" or any(s is not None for s in data.stamps)
    modes = smooth_modes(data, wishes.smooth) if named else ()
    many = wishes.rank is not None and plenty(data, wishes.rank)
    unlike = unlike_columns(data)
    # a fit that reproduces large columns says nothing about small ones
    alike = wishes.scale != "auto" or not unlike
    possible = wishes.allow("none") and alike and (data.size <= LARGE or many)

    def exact() -> tuple[State | None, State | None]:
        return _exactly(session, data, wishes.rank, True) if possible else (None, None)

    state, begun = (None, None) if wishes.rank is None else exact()
    if not named and (state is None or not _sufficient(state, data)):
        modes = smooth_modes(data, wishes.smooth)

    def alone(state: State | None) -> State | None:
        """The fit that reproduces the data, unless neighbours in time may say more."""
        return None if state is None or (modes and not _sufficient(state, data)) else state

    state = alone(state)
    if state is not None:
        return _reproducing_fit(session, data, reproduced(state, wishes.rank))
    if begun is not None and not modes:
        return _planned(session, data, only_noise_left(begun, table_factors(begun).rank), True)
    given = None if wishes.rank is None else min(wishes.rank, determinable(data, 0.8))
    plans = candidates(data, wishes.center, wishes.scale, unlike)
    return _judged(session, data, plans, modes, given, lambda: alone(exact()[0]))


def _reproducing_fit(session: Session, data: LocalObservations, plan: Plan) -> TableFit:
    reading, scaled, _ = plan.prepared(data)
    assert plan.begun is not None
    return TableFit(reading, aligned_components(plan.begun, scaled))


def _planned(
    session: Session, data: LocalObservations, plan: Plan, noisy: bool = False
) -> TableFit:
    """Fit all entries as planned."""
    reading, scaled, blank = plan.prepared(data)
    here = session.with_reading(reading)
    if not plan.in_time:
        state = fit_planned(here, scaled, blank, plan, 0, noisy)
        return TableFit(reading, aligned_components(state, scaled), caution=plan.caution)
    rank = min(plan.rank, largest_rank(data, plan.mode))
    begin = replace(plan, start="joint" if plan.start == "smooth" else "offsets", rank=rank)
    state = fit_planned(here, scaled, blank, begin, 0)
    if plan.start == "smooth" and noise_share(state) <= TINY and _sufficient(state, data):
        return TableFit(reading, aligned_components(state, scaled))
    known = state if plan.start == "smooth" and table_factors(state).rank else None
    timed = fit_timed(here, scaled, known, plan.mode, LAST_SWEEPS)
    return TableFit(reading, state, timed=timed, caution=plan.caution)


def on_device_of(data: LocalObservations, fit: TableFit) -> TableFit:
    """Return a fit of the same data on the host where the data are."""
    if isinstance(data.example, np.ndarray):
        return fit
    reading: Reading = brought(fit.reading, data.example)
    scaled = reading.apply(data)
    F, posterior = (
        brought(x, data.example) for x in (table_factors(fit.state), current(fit.state))
    )
    state = scaled.problem().linearize(F).remembering(posterior)
    timed = fit.timed
    if timed is not None:
        model, rows = brought(timed.model, data.example), (timed.rows.L, timed.rows.covariance)
        path = brought(rows, data.example) if timed.layout.mode else None
        how = timed.layout.mode, timed.layout.clock, 0, None, path
        timed = refined(scaled, model, *how)
    return replace(fit, reading=reading, state=state, timed=timed)


def _at_home(like: Array, estimates: Callable[[Index], Array], index: Index) -> Array:
    """Estimates of a fit on the host at coordinates on a device."""
    return brought(estimates(tuple(map(host, index))), like)


def _judged(
    session: Session,
    data: LocalObservations,
    plans: tuple[Plan, ...],
    modes: tuple[int, ...],
    given: int | None,
    exact: Callable[[], State | None],
) -> TableFit:
    """Fit what predicts held-out entries best.

    A large table is judged by its densest part, or in time by a stretch of it.
    """
    part = data
    if data.size > LARGE:
        room = LARGE if given is None else LARGE // FEWER
        part = stretch(data, modes[0], room, 0) if modes else data.core(room, 0)
    part = part.on_host()
    apart = replace(session, readable=data.size <= LARGE)
    slim = narrow(part)
    most = max(1, min(LARGEST_RANK, min(part.shape) - 1, part.size // sum(part.shape)))
    most = min(NARROW_RANK, part.shape[1]) if slim else most
    most = min(most if given is None else given, *part.shape)
    first = most if given is not None or slim else min(most, FIRST_RANK)
    tried = tuple(plan.ranked(first) for plan in plans)
    if given is None and data.size <= LARGE and affordable(part):
        tried = gaussian_of(plans) + tried
    if given is None and data.size > LARGE and not slim and not modes:
        # offsets and units are chosen by few entries, and the rank by more
        quick, _ = judge(apart, data.core(LARGE // FEWER, 0).on_host(), tried)
        tried = (quick.winner.fit.plan,)
    found, state = judge(apart, part, tried, modes, most, given is None, exact)
    if state is not None:
        return _reproducing_fit(session, data, reproduced(state, given))
    found.simplify(plans)
    best = found.winner
    if data.size <= LARGE:
        if found.winner.folds:
            session.shared.parts = [
                replace(p, estimates=partial(_at_home, data.example, p.estimates))
                for p in found.parts
            ]
        return on_device_of(data, found.finished())
    plan = replace(best.fit.plan, trail=found.trail, caution=found.caution)
    # a part of a large table does not show how large a rank the whole supports
    rank = plan.rank if given is None or plan.start != "joint" else given
    if plan.start == "joint" and given is None:
        sparser = part.size * sum(data.shape) < 0.8 * data.size * sum(part.shape)
        rank = best.fit.rank
        rank = min(LARGEST_RANK, 3 * rank + 4) if sparser else min(plan.rank, rank + 4)
    trail = [*plan.trail, {"rank": rank, "why": "chosen on the densest part"}]
    return _planned(session, data, replace(plan, rank=rank, trail=trail))


def _sufficient(state: State, data: LocalObservations) -> bool:
    """Whether all rows and columns have enough entries to do without their neighbours."""
    rank, xp = table_factors(state).rank, array_namespace(data.y)
    return all(int(xp.min(data.counts(k))) >= rank for k in (0, 1))


def _given_penalty(
    session: Session, data: LocalObservations, wishes: Wishes, seed: int
) -> TableFit:
    """Fit with a given ridge, or with nonnegative factors."""
    if wishes.non_negative and wishes.center == "auto":
        wishes = replace(wishes, center="none")
    bound = determinable(data, 0.8)
    if wishes.rank is not None and wishes.rank > bound and wishes.non_negative:
        wishes = replace(wishes, rank=None)  # an upper bound that excludes nothing
    if wishes.rank is None:
        plan = _supported(session, data, wishes)
    else:
        trail = [{"rank": wishes.rank, "why": "given"}]
        plan = Plan(wishes.plain, min(wishes.rank, bound), trail)
    found = _penalised(session, data, plan, wishes, report=True)
    if wishes.rank is not None and wishes.non_negative:
        plan, found = _fewest(session, data, plan, wishes, found)
    return _judged_penalty(session, data, plan, wishes, seed, found)


def _exactly(
    session: Session, data: LocalObservations, rank: int | None, report: bool
) -> tuple[State | None, State | None]:
    """Return what `fit_exact` finds without offsets; an interrupt returns reported iterates."""
    reading, scaled, blank = reproduced(None, rank).prepared(data)
    return fit_exact(session.with_reading(reading if report else None), scaled, blank, rank)


def _reproducing(
    session: Session, data: LocalObservations, wishes: Wishes, rank: int | None
) -> State | None:
    """Return a fit without offsets that reproduces the data, if there is one."""
    return _exactly(session, data, rank, False)[0] if wishes.allow("none") else None


def _fewest(
    session: Session, data: LocalObservations, plan: Plan, wishes: Wishes, found: TableFit
) -> tuple[Plan, TableFit]:
    """Lower a given rank if fewer nonnegative components reproduce the data.

    Superfluous ones would be arbitrary. The nonnegative rank may be larger than the rank.
    """
    state = _reproducing(session, data, wishes, plan.rank)
    rank = plan.rank if state is None else table_factors(state).rank
    if rank >= plan.rank or session.out_of_time:
        return plan, found
    trail = [*plan.trail, {"rank": rank, "why": "reproduces the data"}]
    less = replace(plan, rank=max(1, rank), trail=trail)
    outcome = session.outcome.copy()
    fewer = _penalised(session, data, less, wishes, report=True)
    problem = found.reading.apply(data).problem()
    left = [float(problem.linearize(table_factors(f.state)).value) for f in (found, fewer)]
    if left[1] <= max(4 * left[0], REPRODUCED * float(problem.value_at_zero)):
        return less, fewer
    session.outcome.become(outcome)
    return plan, found


def _supported(session: Session, data: LocalObservations, wishes: Wishes) -> Plan:
    """Choose offsets and scales, and the rank that a fit with a learnt penalty finds."""
    plans = candidates(data, wishes.center, wishes.scale, unlike_columns(data))
    plans = plans[:1] if wishes.non_negative else plans
    part = data.core(LARGE, 0).on_host()
    most = max(1, min(LARGEST_RANK, min(part.shape) - 1, part.size // sum(part.shape)))
    tried = tuple(plan.ranked(min(most, FIRST_RANK)) for plan in plans)
    exact = partial(_reproducing, session, data, wishes, None)
    found, state = judge(session, part, tried, (), most, True, exact)
    if state is not None:
        rank = table_factors(state).rank
        return replace(plans[0], rank=rank, trail=[{"rank": rank, "why": "reproduces the data"}])
    found.simplify(plans)
    best = found.winner.fit
    rank = best.rank
    trail = [*found.trail, *found.doubt, {"rank": rank, "why": "supported by the data"}]
    return replace(best.plan, rank=rank, trail=trail)


def _judged_penalty(
    session: Session,
    data: LocalObservations,
    plan: Plan,
    wishes: Wishes,
    seed: int,
    found: TableFit,
) -> TableFit:
    """Judge a fit by held-out entries, and replace it if a smaller rank may do better."""
    # a rank that was given, or chosen by other fits, is judged at the end
    pairs = parts_of(data, seed) if data.size <= LARGE and not session.out_of_time else []
    unit, errors, parts = own_units(data), [], []
    fits = [_penalised(session.apart(1e-4, 100), fit, plan, wishes) for fit, _ in pairs]
    for (_, test), part in zip(pairs, fits, strict=True):
        errors.append(squared(test, part.values(test.coordinates), unit))
        parts.append(table_factors(part.state))
    if session.out_of_time or not errors:
        return found
    both = zip(pairs, fits, strict=True)
    session.shared.parts = [Part.of(pair, part.values) for pair, part in both]
    found = _no_worse(session, data, plan, wishes, found, parts)
    xp = array_namespace(unit)
    own = xp.concat([xp.take(unit, test.coordinates[1]) for _, test in pairs])
    share = (own / xp.max(own)) ** 2
    against = objection(share * xp.concat(errors), share * middle_errors(pairs, unit), share)
    if against == DOUBT and wishes.rank is None and plan.rank > 1:
        # it was chosen by fits with another penalty
        rank = max(1, 2 * plan.rank // 3)
        why = {"rank": rank, "why": "a larger one predicts worse than column means"}
        less = replace(plan, rank=rank, trail=[*plan.trail, why])
        found = _penalised(session, data, less, wishes, report=True)
        return _judged_penalty(session, data, less, wishes, seed, found)
    return doubted(found, against) if against else found


def _no_worse(
    session: Session,
    data: LocalObservations,
    plan: Plan,
    wishes: Wishes,
    found: TableFit,
    parts: list[Bordered],
) -> TableFit:
    """Return a fit that explains the entries no worse than fits to most of them do.

    Other starts may lead elsewhere, and held-out entries judge where those lead.
    """
    problem = found.reading.apply(data).problem()

    def left(F: Bordered) -> float:
        return float(problem.linearize(F).value)

    best, before = min(parts, key=left), left(table_factors(found.state))
    if left(best) > CLEARLY * before or session.out_of_time:
        return found
    outcome = session.outcome.copy()
    again = _penalised(session, data, plan, wishes, report=True, start=best)
    if left(table_factors(again.state)) < before:
        return again
    session.outcome.become(outcome)
    return found


def _penalised(
    session: Session,
    data: LocalObservations,
    plan: Plan,
    wishes: Wishes,
    report: bool = False,
    start: Bordered | None = None,
) -> TableFit:
    """Fit a rank with a given ridge, or with nonnegative factors."""
    reading, scaled, blank = plan.prepared(data)
    blank = blank if start is None else start
    session = session.with_reading(reading if report else None)
    if wishes.ridge is not None:
        return TableFit(reading, *fit_ridge(session, scaled, blank, plan.rank, wishes.ridge))
    if blank.u is not None or blank.v is not None:
        raise ValueError('non_negative factors have no offsets; set center="none"')
    return TableFit(reading, *fit_non_negative(session, scaled, blank, plan.rank))
