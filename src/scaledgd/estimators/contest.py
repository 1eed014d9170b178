"""Compare ways to fit a table by their errors on held-out entries."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..factors import Bordered
from ..state import State
from .caution import caution, model_of
from .comparing import better, settled
from .growing import Judge, begin, grow
from .joint import fit_joint, narrow, noise_share, relevance
from .journal import log
from .local_observations import LocalObservations
from .packing import host
from .plans import FIRST_RANK, Plan, Reading, Trail
from .scaling import Choice, table_factors
from .session import Session
from .steadiness import Part
from .timed import SWEEPS as SWEEPS_IN_TIME
from .timed import Timed, fit_timed
from .units import column_units
from .vouching import OFFSETS, middle_errors, objection, own_units, squared

Array = Any

EXACT = 1e-8
"""Share of the squared errors of column means below which held-out errors count as zero."""

BRIDGED = 0.9
"""Ratio of expected errors at missing entries below which neighbours in time are used."""

FEWEST_SLICES = 20
"""Slices below which none are left out."""

QUIET = 0.02
"""Share of noise in the variance below which growing the rank may do better."""


@dataclass(frozen=True, eq=False)
class Tried:
    """A fit to a part of the entries, and its errors on the others.

    Attributes
    ----------
    plan : Plan
    errors : array
        Squared errors at the held-out entries.
    state : State
    full : bool
        Whether all columns are needed.
    timed : Timed, optional
        The fit in time, which started from the state.
    reading : Reading, optional
        How the factors of the state map to the data.
    """

    plan: Plan
    errors: Array
    state: State
    full: bool = False
    timed: Timed | None = None
    reading: Reading | None = None


@dataclass(frozen=True, eq=False)
class Candidate:
    """A candidate, and its errors on as many held-out parts as were needed.

    Attributes
    ----------
    plan : Plan
        The plan of the final fit that follows from it.
    tried : Plan
    parts : list of Tried
    """

    plan: Plan
    tried: Plan
    parts: list[Tried]

    @property
    def state(self) -> State:
        """The fit without the first part."""
        return self.parts[0].state

    def errors(self, count: int | None = None) -> Array:
        """Return the squared errors on some parts, or on all of them."""
        errors = [part.errors for part in self.parts[:count]]
        return array_namespace(*errors).concat(errors)

    @property
    def mean(self) -> float:
        errors = self.errors()
        return float(array_namespace(errors).mean(errors))


class Contest:
    """A comparison of candidates on held-out entries: the best so far, and a record of all."""

    def __init__(
        self,
        session: Session,
        data: LocalObservations,
        pairs: list[tuple[LocalObservations, LocalObservations]],
        unlike: bool,
        readable: bool,
    ) -> None:
        self.session, self.pairs = session, pairs
        # iterates of a part are not models of the whole, and iterates on the host not models on a
        # device
        self.readable = readable
        self.trail: Trail = []
        self.best: Candidate | None = None
        # fits in time start from a fit without time, which may have been tried before
        self.plain: dict[tuple[Any, ...], State] = {}
        xp = array_namespace(data.example)
        self.unit: Array = data.magnitude() + xp.zeros_like(data.counts(1))
        if narrow(data) or unlike:
            self.unit = column_units(data).scale

    @property
    def winner(self) -> Candidate:
        assert self.best is not None
        return self.best

    @property
    def over(self) -> bool:
        """Whether the search is over: the data are explained, or time is up."""
        if self.session.out_of_time:
            return True
        return self.best is not None and self.best.mean <= EXACT * self._squares

    @cached_property
    def _squares(self) -> float:
        """The mean squared error of column means, in units of the columns."""
        means = self._means(1)
        return float(array_namespace(means).mean(means))

    def enter(self, plan: Plan) -> bool:
        """Try a candidate; return whether it is now the best one."""
        if self.best is not None and self.session.out_of_time:
            return False
        began = time.perf_counter()
        first = self._tried(plan, 0)
        new = Candidate(first.plan, plan, [first])
        better = self.best is None or self._better(new, self.best)
        self.trail.append(
            {
                "start": plan.start,
                "center": plan.choice.center,
                "scale": "columns" if plan.standard else plan.choice.scale,
                "rank": table_factors(new.state).rank,
                "held_out": new.mean,
                "seconds": round(time.perf_counter() - began, 3),
            }
        )
        log.info("held-out error of %s", self.trail[-1])
        if better:
            self._lead(new)
        return better

    def _better(self, new: Candidate, than: Candidate) -> bool:
        """Whether a candidate predicts better; more parts are held out until that is clear."""
        for k in range(len(self.pairs)):
            for candidate in (new, than):
                if len(candidate.parts) <= k and self.session.out_of_time:
                    return False
                self._fill(candidate, k)
            errors, least = new.errors(k + 1), than.errors(k + 1)
            if settled(errors, least):
                break
        return better(errors, least)

    def _fill(self, candidate: Candidate, part: int) -> None:
        """Try a candidate on a part, unless that has been done."""
        if len(candidate.parts) <= part:
            candidate.parts.append(self._tried(candidate.tried, part))

    def _tried(self, plan: Plan, part: int) -> Tried:
        """Fit without a part of the entries, and judge on that part."""
        same = plan.choice, plan.standard, plan.rank, part
        before = self.plain.get(same) if plan.start == "smooth" else None
        found = self._fitted(plan, self.pairs[part], before)
        if plan.start == "joint":
            self.plain[same] = found.state
        return found

    def _fitted(
        self,
        plan: Plan,
        pair: tuple[LocalObservations, LocalObservations],
        before: State | None = None,
    ) -> Tried:
        """Fit the first of a pair, and judge on the second."""
        fit, test = pair
        reading, scaled, blank = plan.prepared(fit)
        known = replace(reading, trail=self.trail) if self.readable else None
        here = self.session.apart().with_reading(known)
        judge = self._judge(test, reading)
        found = _tried(here, scaled, blank, plan, judge, before)
        return replace(found, reading=known)

    def _judge(self, test: LocalObservations, reading: Reading) -> Judge:
        """Squared errors at held-out entries, in units of the columns."""
        index = test.coordinates
        return lambda F: squared(test, reading.values(F, index), self.unit)

    def widen(self, most: int) -> None:
        """Try larger ranks as long as all columns are needed, and help."""
        while self.best is not None and not self.over:
            plan = self.best.plan
            if not self.best.parts[0].full or plan.rank >= most:
                break
            if not self.enter(replace(plan, rank=min(most, 3 * plan.rank))):
                break

    def resize(self, rank: int) -> None:
        """Plan for a rank that is given."""
        best = self.winner
        self.best = replace(best, plan=replace(best.plan, rank=rank))

    def _lead(self, candidate: Candidate) -> None:
        """Note the best candidate, which an interrupted fit returns."""
        self.best, last = candidate, candidate.parts[-1]
        self.session.with_reading(last.reading).best_so_far(last.state)

    def simplify(self) -> None:
        """Choose offsets alone, unless the low-rank part predicts better, by more than chance."""
        best = self.winner
        self.best = None
        self.enter(replace(best.plan, start="offsets"))
        if self.session.out_of_time or self._better(best, self.winner):
            self._lead(best)

    def vouch(self, plans: tuple[Plan, ...]) -> None:
        """Try all offsets alone if column means predict better."""
        for k in range(len(self.pairs)):
            if self.session.out_of_time:
                return
            self._fill(self.winner, k)
            means, least = self._means(k + 1), self.winner.errors(k + 1)
            if settled(means, least):
                break
        if better(means, least):
            for plan in plans:
                self.enter(replace(plan, start="offsets"))

    def doubted(self, data: LocalObservations) -> Trail:
        """Return the trail, with a doubt if the winner is not shown to be better than means."""
        if self.session.out_of_time:
            return self.trail
        if self.winner.plan.start == "offsets":
            return [*self.trail, {"rank": 0, "why": OFFSETS}]
        self.session.shared.parts = self._known_parts()
        unit, count = own_units(data), len(self.winner.parts)
        xp = array_namespace(unit)
        part = xp.concat([test.coordinates[1] for _, test in self.pairs[:count]])
        share = xp.take((unit / self.unit) ** 2, part)
        against = objection(self.winner.errors(), self._means(count), share)
        rank = table_factors(self.winner.state).rank
        return [*self.trail, {"rank": rank, "why": against}] if against else self.trail

    def _known_parts(self) -> list[Part]:
        """The winner's fits, if they are fits of the whole table.

        In time, an entry depends on its neighbours by design, so fits in time do not count.
        """
        return [
            Part.of(pair, partial(part.reading.values, table_factors(part.state)))
            for pair, part in zip(self.pairs, self.winner.parts, strict=False)
            if part.reading is not None and not self.winner.plan.in_time
        ]

    def _means(self, count: int) -> Array:
        """The squared errors of column means on some of the held-out parts."""
        return middle_errors(self.pairs[:count], self.unit)

    def smooth(self, modes: tuple[int, ...]) -> None:
        """Try neighbours in time, with the low-rank part and alone."""
        for mode in modes:
            if self.over:
                return
            plan = _in_time(self.winner.plan, mode)
            self.enter(plan)
            self.enter(replace(plan, start="series"))

    def caution(self) -> float:
        """Return how much larger squared errors are than the winner expects, as a factor."""
        # all parts, because few errors say little about the largest of them
        for k in range(len(self.pairs)):
            if self.session.out_of_time:
                break
            self._fill(self.winner, k)
        tried = zip(self.winner.parts, self.pairs, strict=False)
        return caution((model_of(t.plan, t.state, t.timed, fit), test) for t, (fit, test) in tried)

    def bridge(self, data: LocalObservations, modes: tuple[int, ...], seed: int) -> None:
        """Try neighbours in time for slices with hardly any entries.

        Held-out entries do not resemble what is missing there, so slices are left out, too. Their
        errors and those of the held-out entries count as often as entries are missing there.

        Parameters
        ----------
        data : LocalObservations
        modes : tuple of int
        seed : int
        """
        best = self.winner
        if best.plan.in_time or best.plan.start == "offsets":
            return
        for mode in modes:
            counts = host(data.counts(mode))
            few = 2 * counts < max(1, table_factors(best.state).rank)
            pair = _without_slices(data, mode, np.flatnonzero(~few), seed)
            if pair is None or not few.any() or self.session.out_of_time:
                continue
            plan, missing = _in_time(best.plan, mode), data.shape[1 - mode] - counts
            tried, found = self._tried(plan, 0), self._fitted(plan, pair)
            means = middle_errors([pair], self.unit)
            before, after = (
                missing[~few].sum() * _mean(inside) + missing[few].sum() * _mean(outside)
                for inside, outside in ((best.parts[0].errors, means), (tried.errors, found.errors))
            )
            if after < BRIDGED * before and not self.session.out_of_time:
                why = "neighbours fill slices with hardly any entries"
                self.trail.append({"start": "smooth", "rank": plan.rank, "why": why})
                self._lead(Candidate(plan, plan, [tried]))
                return

    def grow(self, most: int) -> None:
        """Try to grow the rank, if noise is so low that this may do better."""
        if self.over or noise_share(self.winner.state) > QUIET:
            return
        self.enter(replace(self.winner.plan, start="grown", rank=most))


def _tried(
    session: Session,
    fit: LocalObservations,
    blank: Bordered,
    plan: Plan,
    judge: Judge,
    known: State | None = None,
) -> Tried:
    """Fit as planned, or continue from a fit without time, and judge the result."""
    if plan.start in ("grown", "offsets"):
        path = begin(session, fit, blank, judge)
        if plan.start == "grown":
            path = grow(session, path, plan.rank, judge)
            # held-out entries overrule the fit's own judgement only if it ends clearly worse
            if path.steps[-1][1] > 1.2 * path.best:
                plan = replace(plan, rank=path.best_rank)
        return Tried(plan, path.best_errors, path.state)
    if plan.start == "series":
        state = begin(session, fit, blank, None).state
    elif known is not None:
        state = known
    else:
        problem, how = fit.problem(), plan.joint(fit, quick=True)
        state = known = fit_joint(session, problem, fit, how.begun(fit, problem, blank), how)
    timed = fit_timed(session, fit, known, plan.mode, SWEEPS_IN_TIME) if plan.in_time else None
    needed = relevance(state) if timed is None else timed.model.relevance
    full = plan.start != "series" and int((needed > 0.5).sum()) >= plan.rank
    return Tried(plan, judge(timed or table_factors(state)), state, full, timed)


def _in_time(plan: Plan, mode: int) -> Plan:
    """The plan with neighbours in time."""
    standard = plan.standard or plan.choice.columns
    choice = Choice() if mode == 0 else Choice("none", plan.choice.scale)
    plan = replace(plan, choice=choice, standard=standard and mode == 0, mode=mode)
    rank = plan.rank if plan.start == "joint" else min(plan.rank, FIRST_RANK)
    return replace(plan, start="smooth", rank=max(1, rank))


def _without_slices(
    data: LocalObservations, mode: int, usable: Any, seed: int
) -> tuple[LocalObservations, LocalObservations] | None:
    """The entries without those of some slices, and those; None if there are too few slices."""
    if len(usable) < FEWEST_SLICES:
        return None
    chosen = np.random.default_rng(seed).permutation(usable)[: len(usable) // 10]
    left = np.isin(host(data.coordinates[mode]), chosen)
    xp, there = array_namespace(data.y), device(data.y)
    fit, test = (data.some(xp.asarray(np.flatnonzero(k), device=there)) for k in (~left, left))
    return fit, test


def _mean(errors: Array) -> float:
    return float(array_namespace(errors).mean(errors))
