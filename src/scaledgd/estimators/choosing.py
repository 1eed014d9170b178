"""Choose offsets, scales, rank and start of a fit of a table on held-out entries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ..state import State
from .contest import Contest
from .joint import NARROW_RANK, narrow, noise_share
from .local_observations import LocalObservations
from .plans import FIRST_RANK, LARGEST_RANK, Plan, reproduced
from .scaling import table_factors
from .session import Session
from .timed import stretch

LARGE = 300_000
"""Largest number of entries on which a rank is chosen; of more, the densest part is used."""

FEWER = 6
"""How many times fewer entries are enough to choose offsets and scales."""

FEWEST = 50
"""Number of entries below which none are held out."""

ENOUGH = 600
"""Number of held-out entries that is enough to decide."""

LARGEST_IN_TIME = 30
"""Largest rank that it considers if columns also have their own series, which explain the rest."""

LITTLE = 0.05
"""Share of noise in the variance above which an exact fit is ruled out."""


def choose(
    session: Session,
    data: LocalObservations,
    plans: tuple[Plan, ...],
    unlike: bool,
    seed: int,
    most: int | None = None,
    modes: tuple[int, ...] = (),
    exact: Callable[[], State | None] = lambda: None,
) -> Plan:
    """Choose the offsets, scales, rank and start that predict held-out entries best.

    Candidates are fitted to most of the entries. A more complex one replaces a simpler one if
    it predicts the others better, by more than chance. Offsets and scales are compared at a
    modest rank, then the best of them with neighbours in time and at larger ranks. If there is
    little noise, growing the rank is a candidate too. Large tables are judged by their densest
    part.

    Parameters
    ----------
    session : Session
    data : LocalObservations
        In their own units.
    plans : tuple of Plan
        Offsets and scales, simple ones first.
    unlike : bool
        Whether columns have very different scales, so that errors count in units of the columns.
    seed : int
    most : int, optional
        The largest rank; by default what the data can determine.
    modes : tuple of int
        The modes along which neighbours may be alike.
    exact : callable
        Returns a fit that reproduces the data, if there is one. It is called if the first candidate
        leaves little noise, or if there are too few entries to tell.

    Returns
    -------
    plan : Plan
    """
    whole, slim, given, in_part = data, narrow(data), most, data.size > LARGE
    large = LARGE if given is None else LARGE // FEWER
    if in_part:
        # neighbours in time must stay together
        data = stretch(data, modes[0], large, seed) if modes else data.core(large, seed)
    data = data.on_host()
    if most is None:
        most = max(1, min(LARGEST_RANK, min(data.shape) - 1, data.size // sum(data.shape)))
        if slim:
            most = min(NARROW_RANK, data.shape[1])
    most = min(most, *data.shape)
    parts = min(5, max(1, math.ceil(ENOUGH / (0.1 * data.size))))
    pairs = data.split(0.1, seed, parts) if data.size >= FEWEST else []
    state = exact() if not pairs else None
    if state is not None:
        return reproduced(state, given)
    if not pairs or session.out_of_time:
        rank = most if pairs else min(most, data.size // (2 * sum(data.shape)))
        return replace(plans[-1] if slim or len(plans) == 1 else plans[1], rank=rank)
    contest = Contest(session, data, pairs, unlike, whole is data)
    # if counts are even, a part has fewer entries per row and column than the whole table, and
    # cannot show that the low-rank part is worthless
    sparser = data.size * sum(whole.shape) < 0.8 * whole.size * sum(data.shape)
    brief = in_part and given is not None and not slim
    first = tuple(replace(plan, rank=min(most, FIRST_RANK), brief=brief) for plan in plans)
    if in_part and given is None and not slim and not modes:
        quick = _briefly(session, data.core(LARGE // FEWER, seed), first, unlike, seed)
        contest.trail += quick.trail
        plan, wide = quick.winner.plan, 3 if quick.winner.parts[0].full else 1
        first = (replace(plan, rank=min(most, wide * plan.rank), brief=False),)
    for plan in first:
        contest.enter(plan)
        if plan is first[0] and noise_share(contest.winner.state) <= LITTLE:
            state = exact()
            if state is not None:
                return reproduced(state, given)
        if contest.over:
            break
    # a part of a large table does not show how large a rank the whole supports
    open_ended = given is None or (not in_part and most > LARGEST_RANK)
    if not open_ended:
        contest.resize(most)
    contest.smooth(modes)
    in_time = contest.winner.plan.in_time
    if open_ended:
        contest.widen(most if not in_time else min(most, LARGEST_IN_TIME))
    if not in_time and not slim:
        contest.grow(most)
    if not in_time and not sparser:
        contest.simplify()
    if not sparser:
        contest.vouch(plans)
    contest.bridge(data, modes, seed)
    best = contest.winner
    trail = contest.trail if sparser else contest.doubted(data)
    plan = replace(best.plan, trail=trail, caution=contest.caution())
    joint = plan.start == "joint"
    if not in_part:
        # the result of a fit with noise per column depends on its start: start with all entries
        return replace(plan, begun=best.state) if joint and open_ended and not slim else plan
    rank = plan.rank if given is None or not joint else given
    if joint and given is None:
        found = table_factors(best.state).rank
        rank = min(LARGEST_RANK, 3 * found + 4) if sparser else min(rank, found + 4)
    why = {"rank": rank, "why": "chosen on the densest part"}
    return replace(plan, rank=rank, trail=[*trail, why])


def _briefly(
    session: Session, data: LocalObservations, plans: tuple[Plan, ...], unlike: bool, seed: int
) -> Contest:
    """Compare offsets and scales on few entries, which are not enough to choose the rank."""
    contest = Contest(session, data, data.split(0.1, seed, 1), unlike, False)
    for plan in plans:
        contest.enter(replace(plan, brief=True))
    return contest
