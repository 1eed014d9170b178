"""Find the model of a table with gross errors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ..factors import Bordered
from ..linalg import epsilon, like
from ..problems import Observed
from ..state import State
from ..variational import Posterior, Variational, current
from . import odds
from .comparing import better, shown
from .constants import varying_at
from .fitting import degrees
from .joint import (
    Joint,
    fit_joint,
    narrow,
    robust_variance,
    shared,
    supported,
    whole_covariances,
)
from .local_observations import LocalObservations
from .matrix_model import TableFit, doubted
from .noise_units import in_units_of_noise
from .observations import MOST, MULTIPLE
from .packing import host
from .plans import Reading
from .robust import (
    OWN,
    concentrated,
    fit_robust,
    levels,
    rejecting,
    rejection,
    settle,
    without_surplus,
)
from .robust_judging import GROSS, bounded, useless
from .robust_rank import robust_rank
from .robust_starts import carried, cauchy, continued, weighted, without_errors_of_one
from .rules import beside_residual
from .scaling import Choice, empty, scales, table_factors, truncated
from .session import Session
from .steadiness import Part
from .timed import FREEDOM, LAST_SWEEPS, SWEEPS, fit_timed, largest_rank, smooth_modes
from .units import Units, robust_column_units, unlike_columns
from .vouching import (
    DOUBT,
    MEDIANS,
    UNPROVEN,
    determinable,
    middle_errors,
    objection,
    parts_of,
    squared,
)
from .wishes import Wishes

Array = Any

LARGEST_RANK = 20
"""Largest initial rank."""

JUDGED = 100_000
"""Number of entries above which a fit is judged by some of its slices instead of a second fit."""

ENOUGH = 60
"""Number of held-out entries that is enough to judge a fit."""

DOUBTFUL = 0.1
"""Share of the squared errors of medians above which a fit has little predictive value."""

SMALL = 20_000
"""Entries up to which small ranks are tried one by one."""

RANKS = (1, 2, 3, 4, 5, 6, 8)
"""The ranks that are tried."""

PLENTY = 1.5
"""Entries per degree of freedom that a fit must reproduce to be credible."""

DETERMINED = 0.5
"""Degrees of freedom per entry up to which a given rank can be told from gross errors."""

SHARE = 0.9
"""Initial share of the variance that the low-rank part explains."""

FIRST = 12
"""Sweeps after which columns of large tables that have vanished are dropped."""

VANISHED = 0.02
"""Relevance of a column that has vanished, before the fit converges."""

LAST = 200
"""Sweeps of a fit, unless the noise still falls."""

FOLD = 20
"""Sweeps of a fit to most entries that starts from the fit to all."""


def search_robust(session: Session, data: LocalObservations, wishes: Wishes, seed: int) -> TableFit:
    """Return the fit of a table with gross errors.

    A fit that reproduces the accepted entries needs no offsets. Otherwise columns have offsets, the
    noise has heavy tails, and offsets, rank and noise are found together. If the table is too large
    for that, the rank is the one below a gap in the spectrum.

    Parameters
    ----------
    session : Session
    data : LocalObservations
        In their own units.
    wishes : Wishes
    seed : int
    """
    most = min(LARGEST_RANK, max(1, min(data.shape) - 2))
    if wishes.rank is not None and wishes.rank > determinable(data, DETERMINED):
        wishes = replace(wishes, rank=None)  # an upper bound that excludes nothing
    most = most if wishes.rank is None else min(wishes.rank, *data.shape)
    if data.size > SMALL and whole_covariances(data, most):
        data = data.listed()  # kernels pass over entries faster than array operations over tables
    found = _plain(session, data, wishes, most, seed)
    # slowly moving objects in a video are not background
    small = _by_columns(wishes) and whole_covariances(data, most)
    modes = smooth_modes(data, wishes.smooth) if small or wishes.smooth != "auto" else ()
    if session.out_of_time:
        return found
    if data.size > JUDGED and not modes:
        session.shared.parts = []
        return doubted(found) if useless(data, found, seed) else found
    part = _Part.of(session, data, found, wishes, most, seed)
    if part is None:
        return found
    found = part.no_better(session, data, found, wishes, most, seed)
    if part.doubtful and data.size <= SMALL:
        exact = _by_ranks(session, data, wishes, seed)
        if exact is not None:
            session.shared.parts = []
            return exact
        found, part = part.of_small_rank(session, data, found, wishes, seed)
    session.shared.parts = part.all
    timed = part.in_time(session, data, found, modes[0]) if modes else None
    if timed is not None:
        return timed
    against = part.against
    if against == DOUBT and _by_columns(wishes):
        return _medians_alone(data)
    return doubted(found, against) if against else found


def _by_columns(wishes: Wishes) -> bool:
    """Whether columns may have offsets, and no other option is set."""
    return wishes.center in ("auto", "columns") and wishes.scale in ("auto", "columns", "none")


def _plain(
    session: Session, data: LocalObservations, wishes: Wishes, most: int, seed: int
) -> TableFit:
    """The fit, before it is judged."""
    if not _by_columns(wishes) or not whole_covariances(data, most):
        return _by_rejection(session, data, wishes.plain, wishes, seed)[0]
    if wishes.rank is None or not wishes.allow("none"):
        return _by_student(session, data, wishes, most, seed)
    before = session.outcome.copy()
    found, exact = _by_rejection(session, data, wishes.plain, wishes, seed)
    # a superfluous component may reproduce the gross errors of a row or column
    own = concentrated(table_factors(found.state), OWN)
    if (exact and not own) or session.out_of_time:
        return found
    outcome = session.outcome.copy()
    session.outcome.become(before)
    other = _by_student(session, data, wishes, most, seed)
    if own and table_factors(other.state).rank:
        return other
    # heavy-tailed noise may begin astray
    unit, free = robust_column_units(data).scale, degrees(wishes.rank, data.shape)
    if _explained(data, found, unit) <= _explained(data, other, unit) + free:
        return other
    session.outcome.become(outcome)
    return found


def _explained(data: LocalObservations, found: TableFit, unit: Array) -> float:
    """The log-likelihood of all entries, in units of the columns."""
    values = found.values(data.coordinates)
    xp = array_namespace(values)
    return cauchy((values - data.flat) / xp.take(unit, data.coordinates[1]))[0]


@dataclass(frozen=True, eq=False)
class _Part:
    """A fit to most of the entries, and its errors on the others.

    Attributes
    ----------
    fit, test : LocalObservations
    found : TableFit
    unit : array of shape (n2,)
        Robust deviations of columns.
    squares : array of shape (m,)
        Squared errors of the fit, in these units. If there are few entries, fits to other parts are
        included.
    medians : array of shape (m,)
        Those of column medians, bounded by that of a gross error.
    others : tuple of _Part
        Those parts.
    """

    fit: LocalObservations
    test: LocalObservations
    found: TableFit
    unit: Array
    squares: Array
    medians: Array
    others: tuple[_Part, ...] = ()

    @classmethod
    def of(
        cls,
        session: Session,
        data: LocalObservations,
        whole: TableFit,
        wishes: Wishes,
        most: int,
        seed: int,
    ) -> _Part | None:
        """Hold out entries and fit the others; None if there are too few.

        Large tables start from the fit to all entries, which hardly remembers a tenth of them.
        """
        pairs, unit = parts_of(data, seed, ENOUGH), _units_of_errors(data)
        xp, parts = array_namespace(data.y), []
        warm = data.size > SMALL and _has_posterior(whole)
        for fit, test in pairs:
            apart = session.with_reading(None).apart()
            if warm:
                rank = table_factors(whole.state).rank
                found = _by_student(apart, fit, wishes, rank, seed, whole, FOLD)
            else:
                found = _plain(apart, fit, wishes, most, seed)
            squares = squared(test, found.values(test.coordinates), unit)
            parts.append(cls(fit, test, found, unit, squares, squares))
            if session.out_of_time:
                break
        if not parts:
            return None
        medians = bounded(middle_errors(pairs[: len(parts)], unit, robust=True))
        squares, others = xp.concat([part.squares for part in parts]), tuple(parts[1:])
        return replace(parts[0], squares=squares, medians=medians, others=others)

    @property
    def errors(self) -> Array:
        """The squared errors of the fit, bounded by that of a gross error."""
        return bounded(self.squares)

    @property
    def all(self) -> list[Part]:
        """All parts, the first of which this one is."""
        every = (self, *self.others)
        return [Part.of((part.fit, part.test), part.found.values) for part in every]

    def judged(self, estimates: Array) -> Array:
        """The squared errors of estimates."""
        return squared(self.test, estimates, self.unit)

    @property
    def doubtful(self) -> bool:
        """Whether the fit hardly predicts better than medians."""
        xp = array_namespace(self.errors)
        return float(xp.mean(self.errors)) > DOUBTFUL * float(xp.mean(self.medians))

    @property
    def against(self) -> str:
        """The objection of held-out entries, or ""."""
        found = objection(self.errors, self.medians)
        if found:
            return found
        # where medians are close, there is no gross error, and a fit that is far off is wrong
        xp, every = array_namespace(self.errors), (self, *self.others)
        varying = xp.concat([varying_at(part.fit, part.test) for part in every])
        errors = xp.where(self.medians < GROSS, self.squares, self.errors)
        if not bool(xp.any(varying)):
            return ""
        return UNPROVEN if better(self.medians[varying], errors[varying]) else ""

    def no_better(
        self,
        session: Session,
        data: LocalObservations,
        whole: TableFit,
        wishes: Wishes,
        most: int,
        seed: int,
    ) -> TableFit:
        """Return a fit to all entries that explains them no worse than the fit to most of them."""
        rank = table_factors(self.found.state).rank
        free, before = degrees(rank, data.shape), _explained(data, whole, self.unit)
        if session.out_of_time or _explained(data, self.found, self.unit) <= before + free:
            return whole
        outcome = session.outcome.copy()
        if all(map(_has_posterior, (self.found, whole))):
            again = _by_student(session, data, wishes, most, seed, self.found)
        elif rank:
            again = _plain(session, data, replace(wishes, rank=rank), rank, seed)
        else:
            return whole
        if _explained(data, again, self.unit) > before + free:
            return again
        session.outcome.become(outcome)
        return whole

    def of_small_rank(
        self, session: Session, data: LocalObservations, whole: TableFit, wishes: Wishes, seed: int
    ) -> tuple[TableFit, _Part]:
        """Return a fit of small rank and its part, if it predicts better than one that found it.

        A fit that begins with all components may follow gross errors that a small rank ignores.
        """
        best: tuple[int, _Part] = 0, self
        for rank in RANKS if wishes.rank is None else ():
            if data.size * (1 - MOST) < PLENTY * degrees(rank, data.shape) or session.out_of_time:
                break
            apart, asked = session.with_reading(None).apart(), replace(wishes, rank=rank)
            found = _plain(apart, self.fit, asked, rank, seed)
            squares = self.judged(found.values(self.test.coordinates))
            medians = self.medians[: squares.shape[0]]
            part = replace(self, found=found, squares=squares, medians=medians, others=())
            if better(part.errors, best[1].errors[: squares.shape[0]]):
                best = rank, part
            elif best[0]:
                break
            if table_factors(found.state).rank < rank:
                break  # nor would it have a larger one
        rank, part = best
        if not rank or session.out_of_time:
            return whole, self
        found = _plain(session, data, replace(wishes, rank=rank), rank, seed)
        trail = [{"rank": rank, "why": "predicts held-out entries better than larger ranks"}]
        return replace(found, reading=replace(found.reading, trail=trail)), part

    def in_time(
        self, session: Session, data: LocalObservations, whole: TableFit, mode: int
    ) -> TableFit | None:
        """Return a fit in time, unless it predicts worse. The one of most entries judges it.

        That neighbours are alike is known before, so chance does not decide against them.
        """
        rank = table_factors(whole.state).rank
        usable = (_has_posterior(fit) for fit in (self.found, whole))
        if not all(usable) or not 0 < rank <= largest_rank(data, mode):
            return None
        reading, state, scaled = _without_offsets(self.found, self.fit)
        timed = fit_timed(session, scaled, state, mode, SWEEPS, True)
        errors = bounded(self.judged(reading.values(timed, self.test.coordinates)))
        first = self.errors[: errors.shape[0]]
        if session.out_of_time or shown(first, errors):
            return None
        # entries that are left out leave gaps in time, so estimates change more than by chance
        session.shared.parts = [Part(partial(reading.values, timed), 1.0)]
        against = objection(errors, self.medians[: errors.shape[0]])
        reading, state, scaled = _without_offsets(whole, data)
        timed = fit_timed(session, scaled, state, mode, LAST_SWEEPS, True)
        assert timed.limits is not None
        noise, limits = timed.model.noise, np.sort(host(timed.limits))
        typical = float(limits[len(limits) // 2])
        threshold = typical * math.sqrt(float(array_namespace(noise).mean(noise)))
        trail = [*reading.trail, {"rank": timed.model.R.shape[1], "why": "neighbours are alike"}]
        found = TableFit(replace(reading, trail=trail), state, None, threshold, timed)
        return doubted(found, against) if against else found


def _units_of_errors(data: LocalObservations) -> Array:
    """Robust deviations of columns; of those in which most entries are equal, the plain ones."""
    known, columns = robust_column_units(data).scale, host(data.coordinates[1])
    size = data.magnitude()
    own = size * odds.deviations(host(data.flat) / size, columns, data.shape[1]) / 1.4826
    own = like(own, known)
    return array_namespace(known).where(own > 0, own, known)


def _has_posterior(found: TableFit) -> bool:
    """Whether a fit has a posterior, and no offsets except those of columns."""
    F = table_factors(found.state)
    known = isinstance(found.state.memory.method, Posterior)
    plain = F.v is None and found.reading.choice.scale == "none"
    return found.threshold is not None and known and plain


def _by_ranks(
    session: Session, data: LocalObservations, wishes: Wishes, seed: int, most: int = RANKS[-1]
) -> TableFit | None:
    """Return the fit of least rank that reproduces the accepted entries, if there is one."""
    if wishes.rank is not None or not wishes.allow("none"):
        return None
    for rank in RANKS:
        if rank > most or data.size * (1 - MOST) < PLENTY * degrees(rank, data.shape):
            return None
        outcome = session.outcome.copy()
        asked = replace(wishes, rank=rank)
        found, exact = _by_rejection(session, data, Choice(robust=True), asked, seed, learn=False)
        assert found.threshold is not None
        F = table_factors(found.state)
        share = found.reading.apply(data).rejected(F, found.threshold)[0]
        if exact and share <= MOST and not concentrated(F, OWN):
            trail = [{"rank": rank, "why": "reproduces all but gross errors"}]
            return replace(found, reading=replace(found.reading, trail=trail))
        session.outcome.become(outcome)
        if session.out_of_time:
            return None
    return None


def _medians_alone(data: LocalObservations) -> TableFit:
    """Column medians, if nothing else predicts better."""
    # columns have their own limits, so they need their own units
    choice, units = Choice("columns", robust=True), robust_column_units(data)
    normal = units.apply(data)
    size = normal.magnitude()
    normal = normal.scaled(size)
    start = replace(empty(normal, choice), R=normal.medians(1)[:, None])
    trail = [{"rank": 0, "why": MEDIANS}]
    state = normal.problem().linearize(start)
    limit = MULTIPLE * normal.residual_scale(start)
    reading = Reading(size=size, choice=choice, trail=trail, units=units)
    return TableFit(reading, state, None, limit)


def _without_offsets(
    found: TableFit, data: LocalObservations
) -> tuple[Reading, State, LocalObservations]:
    """The fit with its column offsets moved into the units, and the data in those units."""
    reading, F, posterior = found.reading, table_factors(found.state), current(found.state)
    units, r = reading.units, F.rank
    if F.u is None:
        return reading, found.state, reading.apply(data)
    c = F.R[:, r] * F.u[0]
    units = Units(0 * c, 1 + 0 * c, False) if units is None else units
    units = replace(units, offset=units.offset + reading.size * units.scale * c)
    reading = replace(reading, units=units, choice=replace(reading.choice, center="none"))
    scaled = reading.apply(data)
    columns = (list(range(F.L.shape[1])), list(range(r)))
    plain = Bordered(F.L, F.R[:, :r])
    state = scaled.problem().linearize(plain).remembering(posterior.kept(columns))
    return reading, state, scaled


def _by_rejection(
    session: Session,
    data: LocalObservations,
    choice: Choice,
    wishes: Wishes,
    seed: int,
    learn: bool = True,
) -> tuple[TableFit, bool]:
    """Reject residuals beyond a falling threshold; return whether the rest is reproduced."""
    assert wishes.outliers is not None
    size = data.magnitude()
    normal, rank = data.scaled(size), wishes.rank
    trail: list[dict[str, Any]] = [{"rank": rank, "why": "given"}]
    reading = Reading(size=size, choice=choice)
    if rank is None:
        aside = session.with_reading(reading).apart()
        rank, why, steps = robust_rank(aside, normal, seed)
        trail = [*steps, {"rank": rank, "why": why}]
    scale = scales(normal, choice)
    reading = replace(reading, scales=scale, trail=trail)
    scaled, start = scale.apply(normal), empty(normal, choice, scale)
    if not rank:
        return TableFit(reading, scaled.problem().linearize(start), None, 0.0), True
    here = session.with_reading(reading)
    state, limit = fit_robust(here, scaled, start, rank, wishes.outliers, learn=learn)
    if wishes.rank is not None and concentrated(table_factors(state), OWN):
        # components that the data do not need explain gross errors; the rank is an upper bound
        outcome = session.outcome.copy()
        less, why, steps = robust_rank(session.with_reading(reading).apart(), normal, seed)
        if 0 < less < rank:
            again, other = fit_robust(here, scaled, start, less, wishes.outliers, learn=learn)
            if other <= 10 * limit and not concentrated(table_factors(again), OWN):
                trail = [*trail, *steps, {"rank": less, "why": why}]
                state, limit, reading = again, other, replace(reading, trail=trail)
            else:
                session.outcome.become(outcome)
    state = state.moved(state.factors)  # without its residual, which is as large as the data
    return TableFit(reading, state, None, limit), limit <= levels(session, scaled)[1]


def _by_student(
    session: Session,
    data: LocalObservations,
    wishes: Wishes,
    most: int,
    seed: int,
    other: TableFit | None = None,
    sweeps: int = LAST,
) -> TableFit:
    """Fit column offsets, factors and heavy-tailed noise, starting from another fit if given."""
    assert wishes.outliers is not None
    scaled = wishes.scale == "columns"
    if wishes.scale == "auto":
        scaled = narrow(data) or unlike_columns(data, robust=True)
    units = robust_column_units(data) if scaled else None
    normal = data if units is None else units.apply(data)
    size = normal.magnitude()
    normal, choice = normal.scaled(size), Choice("columns", robust=True)
    reading = Reading(size=size, choice=choice, units=units)
    blank = empty(normal, choice)
    start = replace(blank, R=normal.medians(1)[:, None])
    here, problem = session.with_reading(reading), normal.problem()
    how = Joint(most, SHARE, units is not None, FREEDOM, sweeps)
    begun = weighted(normal, how.begun(normal, problem, start))
    if other is not None:
        begun = continued(normal, problem, carried(other, reading, start), begun)
    elif data.size > SMALL:
        # sweeps cost the square of the columns, most of which soon vanish
        begun = supported(
            here.solve(problem, begun, how.method(normal), [], FIRST, stage="first"), None, VANISHED
        )
    state = fit_joint(here, problem, normal, begun, how)
    if sweeps > FOLD:
        state = without_errors_of_one(here, problem, normal, state, how)
    rank = table_factors(state).rank
    trail = [{"rank": rank, "why": "supported by the data"}]
    reading = replace(reading, trail=trail)
    # the noise is estimated from squares, which have the rounding error of squares
    least = max(1e-5, 10 * math.sqrt(epsilon(normal.example)))
    if rank and _sigma(state) <= least * math.sqrt(robust_variance(normal, start)):
        return _exact(session, data, wishes, TableFit(reading, state), normal, seed)
    noisy, state = in_units_of_noise(reading, state, normal)
    if noisy.units is not None:
        normal = noisy.units.apply(data).scaled(size)
    posterior = replace(current(state), weight=None)
    here = session.with_reading(noisy)

    def refit(problem: Observed, state: State) -> State:
        method = Variational(full=True)
        start = state.remembering(posterior)
        rules = [beside_residual(3e-3)]
        return shared(here.solve(problem, start, method, rules, 60, stage="settled"), most)

    state, limit = settle(here, normal, state, wishes.outliers, refit)
    return TableFit(noisy, state, None, limit)


def _exact(
    session: Session,
    data: LocalObservations,
    wishes: Wishes,
    found: TableFit,
    normal: LocalObservations,
    seed: int,
) -> TableFit:
    """Reproduce the accepted entries, without offsets if possible."""
    assert wishes.outliers is not None
    F = table_factors(found.state)
    most = F.rank + 1 if wishes.rank is None else wishes.rank
    ranks = range(F.rank, min(F.rank + 1, most) + 1) if wishes.allow("none") else ()
    for rank in ranks:
        outcome = session.outcome.copy()
        plain = replace(wishes, rank=rank)
        again, exact = _by_rejection(session, data, Choice(robust=True), plain, seed)
        if exact:
            whole, other = session.outcome.copy(), table_factors(again.state)
            # components of a row or column may explain its errors, and fewer all the others
            fewer = concentrated(other) and _by_ranks(session, data, wishes, seed, other.rank - 1)
            if fewer:
                return fewer
            if not concentrated(other, OWN):
                session.outcome.become(whole)
                return replace(again, reading=replace(again.reading, trail=found.reading.trail))
        session.outcome.become(outcome)
    here, problem = session.with_reading(found.reading), normal.problem(rejecting(normal, "auto"))
    state = rejection(here, problem, normal, truncated(F, 0), F.rank, F)
    state = without_surplus(here, problem, state, normal)
    state, limit = settle(here, normal, state, wishes.outliers)
    return TableFit(found.reading, state, None, limit)


def _sigma(state: State) -> float:
    return math.sqrt(float(current(state).noise))
