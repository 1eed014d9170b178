"""Choose offsets, scales and the start of a fit of a table on held-out entries."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from array_api_compat import array_namespace

from ..factors import Bordered
from ..state import State
from ..variational import entry_variance
from ..variational.posterior import positive
from .comparing import better, settled
from .growing import Judge, begin, grow
from .joint import (
    NARROW_RANK,
    Joint,
    fit_joint,
    narrow,
    noise_share,
    relevance,
    whole_covariances,
    work_of,
)
from .journal import log
from .local_observations import LocalObservations
from .scaling import Choice, Scales, empty, scales, table_factors
from .session import Session
from .timed import SWEEPS as SWEEPS_IN_TIME
from .timed import Timed, fit_timed, stretch
from .units import Units, column_units
from .vouching import DOUBT, OFFSETS, middle_errors, own_units, squared

Array = Any
Trail = list[dict[str, Any]]

CHOICES = (
    Choice(),
    Choice("both"),
    Choice("rows", "rows"),
    Choice("columns", "columns"),
)
"""Candidates, simple ones first."""

LARGE = 300_000
"""Largest number of entries on which a rank is chosen; of more, the densest part is used."""

FEWER = 6
"""How many times fewer entries are enough to choose offsets and scales."""

FEWEST = 50
"""Number of entries below which none are held out."""

ENOUGH = 600
"""Number of held-out entries that is enough to decide."""

LARGEST_RANK = 60
"""Largest rank that rank="auto" considers."""

LARGEST_IN_TIME = 30
"""Largest rank that it considers if columns also have their own series, which explain the rest.
"""

FIRST_RANK = 10
"""Largest rank at which candidates are compared."""

SWEEPS = 20
"""Sweeps after which candidates are compared, with full covariances."""

MOST_SWEEPS = 200
"""Maximum number of sweeps of the fit."""

WORTH = 200_000_000
"""Limit on the numbers that the sweeps of a fit sum over the entries, beyond a few sweeps."""

FEW_SWEEPS = 12
"""Sweeps after which candidates are compared otherwise; the fit takes twice as many."""

BRIEF = 8
"""Sweeps after which offsets and scales are compared on a part of a table, for a given rank."""

SETTLED = 1e-3
"""Relative change of the noise that ends the fit of a large table."""

EXACT = 1e-8
"""Share of the mean square of the data below which held-out errors count as zero."""

NINE_IN_TEN = 2.706
"""The 90 % quantile of the square of a standard normal number."""

LEAST_CAUTION = 0.1
"""Lower bound on squared errors over expected ones: a few held-out errors may be small.
"""

QUIET = 0.02
"""Share of noise in the variance below which growing the rank may do better."""

LITTLE = 0.05
"""Share of noise in the variance above which an exact fit is ruled out."""


@dataclass(frozen=True, eq=False)
class Reading:
    """How the factors of an iterate map to the data.

    Attributes
    ----------
    size : float
        The power of two that the data were divided by.
    choice : Choice
    scales : Scales
    trail : list of dict
        How the rank has been found so far.
    units : Units, optional
        Units of columns.
    """

    size: float = 1.0
    choice: Choice = field(default_factory=Choice)
    scales: Scales = field(default_factory=lambda: Scales(None, None))
    trail: Trail = field(default_factory=list)
    units: Units | None = None

    def apply(self, data: LocalObservations) -> LocalObservations:
        """Return data in the units of the fit."""
        data = data if self.units is None else self.units.apply(data)
        return self.scales.apply(data.scaled(self.size))

    def values(self, F: Bordered | Timed, index: tuple[Array, ...]) -> Array:
        """Return the values of factors at coordinates, in the units of the data."""
        values = self.size * self.scales.undo(F.gather(index), index)
        return values if self.units is None else self.units.undo(values, index[1])

    def unit(self, index: tuple[Array, ...]) -> Array:
        """Return the factors that convert errors to the units of the data, at coordinates."""
        xp = array_namespace(index[0])
        unit: Any = self.size
        columns = self.scales.columns
        if self.units is not None:
            columns = self.units.scale if columns is None else columns * self.units.scale
        for d, i in zip((self.scales.rows, columns), index, strict=True):
            unit = unit if d is None else unit * xp.take(d, i)
        return unit


@dataclass(frozen=True, eq=False)
class Plan:
    """How to fit a table.

    Attributes
    ----------
    choice : Choice
    rank : int
        An upper bound.
    trail : list of dict
        How the rank was found.
    start : {"joint", "grown", "offsets", "smooth", "series", "exact"}
        How the fit starts: with all columns at once, with one more at a time, or with none.
        "smooth" is "joint" followed by a model of time; "series" uses time only. "exact" has
        reproduced the data, and is complete.
    mode : int
        The mode along which neighbours are alike.
    caution : float
        How much larger squared errors of new observations are than the model says, as a factor.
    brief : bool
        Whether few sweeps are enough, because only offsets and scales are compared.
    standard : bool
        Whether columns are standardised first, and each has its own noise level.
    begun : State, optional
        A fit to most of the data, to continue from.
    """

    choice: Choice
    rank: int
    trail: Trail = field(default_factory=list)
    start: str = "joint"
    standard: bool = False
    begun: State | None = None
    mode: int = 0
    caution: float = 1.0
    brief: bool = False

    @property
    def in_time(self) -> bool:
        """Whether neighbours in time are used."""
        return self.start in ("smooth", "series")

    def joint(self, data: LocalObservations, quick: bool) -> Joint:
        """Return how a fit from a joint start is made.

        Parameters
        ----------
        data : LocalObservations
        quick : bool
            Whether it is for a candidate, not for the final fit.
        """
        how = Joint(self.rank, columns=self._own_noise(data))
        if not whole_covariances(data, self.rank):
            cold = not quick and self.begun is None
            sweeps = 2 * FEW_SWEEPS if cold else FEW_SWEEPS
            return replace(how, sweeps=sweeps, fine=SETTLED)
        if quick:
            sweeps = BRIEF if self.brief else SWEEPS
            return replace(how, sweeps=sweeps, fine=1e-2, least=FIRST_RANK)
        sweeps = min(MOST_SWEEPS, max(2 * SWEEPS, WORTH // work_of(data, self.rank)))
        return replace(how, sweeps=sweeps)

    def _own_noise(self, data: LocalObservations) -> bool:
        """Whether each column has its own noise level."""
        return narrow(data) and not self.choice.rows and self.choice.scale == "none"

    def prepared(self, data: LocalObservations) -> tuple[Reading, LocalObservations, Bordered]:
        """Return how to read a fit of data, the data in its units, and its offsets."""
        units = column_units(data) if self.standard else None
        normal = data if units is None else units.apply(data)
        size = normal.magnitude()
        normal = normal.scaled(size)
        scale = scales(normal, self.choice)
        own = self._own_noise(data)
        if units is not None or own:
            scale = replace(scale, mean=0.0)  # units or offsets of columns remove it
        reading = Reading(size, self.choice, scale, list(self.trail), units)
        blank = empty(normal, self.choice, scale)
        if units is not None and blank.v is not None:
            # offsets of rows are additive in the units of the data
            v = blank.v / units.scale
            blank = replace(blank, v=v / array_namespace(v).mean(v * v) ** 0.5)
        scaled = scale.apply(normal)
        if own and blank.u is not None:
            blank = replace(blank, R=scaled.means(1)[:, None])
        return reading, scaled, blank


def plain_side(side: str) -> str:
    """Return the sides that are centred or scaled by default."""
    return "none" if side == "auto" else side


def candidates(data: LocalObservations, center: str, scale: str, unlike: bool) -> tuple[Plan, ...]:
    """Return the offsets and scales that agree with the parameters, simple ones first.

    "auto" agrees with all. Columns of a narrow table, or of very different scale, are standardised.

    Parameters
    ----------
    data : LocalObservations
    center, scale : {"auto", "none", "rows", "columns", "both"}
    unlike : bool
        Whether columns have very different scales.
    """
    sides = [
        choice
        for choice in CHOICES
        if center in ("auto", choice.center) and scale in ("auto", choice.scale)
    ]
    sides = sides or [Choice(plain_side(center), plain_side(scale))]
    if "auto" in (center, scale) and scale in ("auto", "columns"):
        if narrow(data) and center in ("auto", "columns"):
            own = Plan(Choice("columns"), 0, standard=True)
            return (Plan(Choice(), 0), own) if center == "auto" and scale == "auto" else (own,)
        if unlike and scale == "auto" and center in ("auto", "columns", "both"):
            return (Plan(sides[0], 0), *(Plan(choice, 0, standard=True) for choice in sides))
    return tuple(Plan(choice, 0) for choice in sides)


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
    surprise : array, optional
        Squared errors divided by the variances that the fit expects.
    reading : Reading, optional
        How the factors of the state map to the data.
    """

    plan: Plan
    errors: Array
    state: State
    full: bool = False
    surprise: Array | None = None
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

    @property
    def caution(self) -> float:
        """The factor by which squared errors exceed expectation; 1 if unknown."""
        known = [part.surprise for part in self.parts if part.surprise is not None]
        return _caution(array_namespace(*known).concat(known)) if known else 1.0


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
    contest = _Contest(session, data, pairs, unlike, whole is data)
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
    best = contest.winner
    trail = contest.trail if sparser else contest.doubted(data)
    plan = replace(best.plan, trail=trail, caution=best.caution)
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
) -> _Contest:
    """Compare offsets and scales on few entries, which are not enough to choose the rank."""
    contest = _Contest(session, data, data.split(0.1, seed, 1), unlike, False)
    for plan in plans:
        contest.enter(replace(plan, brief=True))
    return contest


def reproduced(state: State | None, rank: int | None) -> Plan:
    """Return the plan for a fit that reproduces the data: nothing is left to do."""
    trail = [{"rank": rank, "why": "the data are reproduced"}]
    return Plan(Choice(), 0, trail, "exact", begun=state)


def only_noise_left(state: State, rank: int) -> Plan:
    """Return the plan if least squares leave nothing but noise: only the ridge is left to find.

    Offsets could explain nothing more, and every row has enough entries to do without them.
    """
    trail = [{"rank": rank, "why": "given, and leaves nothing but noise"}]
    return Plan(Choice(), rank, trail, begun=state)


class _Contest:
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
        """The mean square of the data, in units of the columns."""
        return self.pairs[0][0].standardised((None, self.unit)).mean_square()

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
        fit, test = self.pairs[part]
        reading, scaled, blank = plan.prepared(fit)
        known = replace(reading, trail=self.trail) if self.readable else None
        here = self.session.apart().with_reading(known)
        judge = self._judge(test, reading)
        same = plan.choice, plan.standard, plan.rank, part
        before = self.plain.get(same) if plan.start == "smooth" else None
        found = _tried(here, scaled, blank, plan, judge, test, reading, before)
        if plan.start == "joint":
            self.plain[same] = found.state
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
        """Return the trail, with a doubt if means predict better when all columns count equally."""
        if self.session.out_of_time:
            return self.trail
        if self.winner.plan.start == "offsets":
            return [*self.trail, {"rank": 0, "why": OFFSETS}]
        unit, count = own_units(data), len(self.winner.parts)
        xp = array_namespace(unit)
        part = xp.concat([test.coordinates[1] for _, test in self.pairs[:count]])
        share = xp.take((self.unit / unit) ** 2, part)
        if not better(share * self._means(count), share * self.winner.errors()):
            return self.trail
        return [*self.trail, {"rank": table_factors(self.winner.state).rank, "why": DOUBT}]

    def _means(self, count: int) -> Array:
        """The squared errors of column means on some of the held-out parts."""
        return middle_errors(self.pairs[:count], self.unit)

    def smooth(self, modes: tuple[int, ...]) -> None:
        """Try neighbours in time, with the low-rank part and alone."""
        for mode in modes:
            if self.over:
                return
            plan = self.winner.plan
            standard = plan.standard or plan.choice.columns
            choice = Choice() if mode == 0 else Choice("none", plan.choice.scale)
            plan = replace(plan, choice=choice, standard=standard and mode == 0, mode=mode)
            rank = plan.rank if plan.start == "joint" else min(plan.rank, FIRST_RANK)
            self.enter(replace(plan, start="smooth", rank=max(1, rank)))
            self.enter(replace(plan, start="series"))

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
    test: LocalObservations,
    reading: Reading,
    before: State | None = None,
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
    index, known = test.coordinates, before
    if plan.start == "series":
        state = begin(session, fit, blank, None).state
    elif before is not None:
        state = before
    else:
        problem, how = fit.problem(), plan.joint(fit, quick=True)
        state = known = fit_joint(session, problem, fit, how.begun(fit, problem, blank), how)
    F: Bordered | Timed
    if plan.in_time:
        F = fit_timed(session, fit, known, plan.mode, SWEEPS_IN_TIME)
        expected, needed = F.expected(index), F.model.relevance
    else:
        F, expected, needed = table_factors(state), entry_variance(state, index), relevance(state)
    off = (reading.values(F, index) - test.flat) / reading.unit(index)
    full = plan.start != "series" and int((needed > 0.5).sum()) >= plan.rank
    return Tried(plan, judge(F), state, full, off * off / positive(expected))


def _caution(surprise: Array) -> float:
    """The factor by which variances must grow for nine in ten of the errors to be as expected."""
    ordered = array_namespace(surprise).sort(surprise)
    level = min(ordered.shape[0] - 1, math.ceil(0.9 * ordered.shape[0]))
    return max(LEAST_CAUTION, float(ordered[level]) / NINE_IN_TEN)
