"""Find the best model of a tensor among candidates, judged on held-out entries.

A candidate is a variational model, of the tensor as a sum of outer products or of one of its
unfoldings as a matrix, or a Tucker model that starts from the best of these. All start with random
factors of their full size; irrelevant components vanish.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from array_api_compat import array_namespace

from ..factors import Tucker
from ..state import State
from ..variational.cp import EMPTY, PosteriorCP
from .comparing import alike, better
from .compression import fits, folds, unfolded
from .journal import log
from .local_observations import LocalObservations
from .session import Session
from .steadiness import Part
from .tensor_model import SCALES, Offsets, TensorReading, divided, units_of_slices
from .tensor_units import in_units, preferred
from .tensor_vouching import after, opinion
from .tensor_ways import GAIN, Way, ended, in_turn, read, run, tensor_of
from .tucker import QUICK, TensorFit, cut, degrees, fit_ranks, rungs, spectra, supported
from .typical import with_typical
from .vouching import Pairs, parts_of

Array = Any
Trail = list[dict[str, Any]]

MOST = 64
"""Largest number of components."""

CHEAP = 20_000
"""Number of entries up to which all numbers of components are tried."""

WORK = 4e9
"""Largest number of cells times squared components."""

LARGE = 500_000
"""Number of cells above which candidates are compared on a part of them."""

PART = 250_000
"""Number of cells of that part."""

SWEEPS = 12
"""Sweeps of a candidate."""

REFINED = 20
"""Sweeps of the candidate that is chosen, on all entries."""

STARTS = 2
"""Number of random starts whose mean is taken."""

SHARES = {0.9: (0.03, 1.0), 0.9999: (0.0, 0.003)}
"""Other initial shares of explained variance, and the shares of noise for which they are tried."""

CORE = 20_000
"""Largest size of the core of a Tucker candidate."""

SMALL = 2e7
"""Entries times core size up to which Tucker models are tried from their own start."""

ENOUGH = 60
"""Number of held-out entries that is enough to choose."""

NOISELESS = 1e-5
"""Noise, as a share of the mean square of the data, below which a Tucker model is tried first."""


@dataclass(frozen=True, eq=False)
class Tried:
    """A candidate, its errors on held-out entries, and its result."""

    way: Way
    errors: Array
    reading: TensorReading
    states: tuple[State, ...]
    factors: Tucker | None = None

    def part(self, pair: tuple[LocalObservations, LocalObservations]) -> Part:
        """Return it as a fit to most of the entries, which the pair separates from the others."""
        shape, reading = pair[0].shape, self.reading
        known = [tensor_of(state, reading, shape)[0] for state in self.states]
        every = known if self.factors is None else [self.factors]

        def values(index: tuple[Array, ...]) -> Array:
            return sum(reading.values(F, index) for F in every) / len(every)

        return Part.of(pair, values)


def components(data: LocalObservations, shape: tuple[int, ...] | None = None) -> int:
    """Return how many components the data may have and memory allows."""
    shape = data.shape if shape is None else shape
    cells = min(math.prod(shape), EMPTY * data.size)
    most = min(MOST, int(math.sqrt(WORK / cells)), data.size // (2 * sum(shape)))
    most = min(most, int(math.sqrt(4e7 / sum(shape))))
    while most > 1 and not fits(shape, most):
        most -= 1
    return max(1, most)


def part_of(data: LocalObservations, seed: int) -> LocalObservations:
    """Return a part of the data that is small enough to compare candidates on."""
    cells = math.prod(data.shape)
    if min(cells, EMPTY * data.size) <= LARGE:
        return data
    if cells > EMPTY * data.size:
        return data.core(PART // EMPTY, seed)
    long = sorted(range(len(data.shape)), key=lambda k: -data.shape[k])
    for k in long:
        # the longest modes are cut to the length of the next, finally all together
        share = (PART / math.prod(data.shape)) ** (1 / (1 + long.index(k)))
        count = max(min(data.shape[k], 24), int(data.shape[k] * min(1.0, share)))
        if count < data.shape[k]:
            data = data.sampled(k, count, seed + k)
    return data


@dataclass(frozen=True, eq=False)
class Search:
    """A comparison of candidates on held-out entries.

    Attributes
    ----------
    session : Session
    fit, test : LocalObservations
    reading : TensorReading
        Of the data, without offsets and scales.
    seed : int
    trail : list of dict
        Filled along the way.
    others : list of pairs of LocalObservations
        Further splits into entries to fit and to judge, if there are few held-out ones.
    """

    session: Session
    fit: LocalObservations
    test: LocalObservations
    reading: TensorReading
    seed: int
    trail: Trail
    others: Pairs = field(default_factory=list)

    def tried(self, way: Way, best: Tried | None) -> Tried:
        """Fit a candidate and judge it."""
        own = self.session.apart(QUICK)
        known = () if best is None or replace(best.way, starts=way.starts) != way else best.states
        found = self.fitted(own, way, known)
        apart = own.with_reading(None)
        elsewhere = [part.fitted(apart, way).errors for part in self.elsewhere]
        errors = array_namespace(found.errors).concat([found.errors, *elsewhere])
        rank = found.states[0].factors.modes[0].shape[1]
        return self.noted(own, replace(found, errors=errors), rank, best)

    def in_units(self, units: Offsets) -> Search:
        """The same comparison in units of slices."""
        (fit, test), *others = in_units([(self.fit, self.test), *self.others], units)
        reading = replace(self.reading, units=units)
        return replace(self, fit=fit, test=test, reading=reading, others=others)

    def contested(self, plain: Tried, search: Search, scales: tuple[str, ...]) -> Tried | None:
        """The best candidate in units of slices, if it predicts better than the best without.

        Others are tried only if the best way without units is better in units.
        """
        units, pairs = self.reading.units, [(search.fit, search.test), *search.others]

        def wins(tried: Tried | None) -> bool:
            if tried is None:
                return False
            return preferred(tried.errors, plain.errors, pairs, units)

        first = simple = self.ladder("none")
        if plain.way.start != "tucker" and not wins(first) and not self.session.out_of_time:
            first = self.tried(replace(plain.way, center="none"), None)
        if not wins(first) or self.session.out_of_time:
            return first if wins(first) else None
        tried = self.best(("none",), scales, simple)
        return tried if wins(tried) else first

    @property
    def elsewhere(self) -> list[Search]:
        """The same comparison on other held-out entries."""
        return [replace(self, fit=fit, test=test, others=[]) for fit, test in self.others]

    def fitted(self, session: Session, way: Way, known: tuple[State, ...] = ()) -> Tried:
        """Fit a candidate, and judge it on the entries held out here."""
        reading = read(self.reading, self.fit, way)
        reading = replace(reading, trail=self.trail)
        states = known + tuple(
            run(session, self.fit, reading, way, self.seed + k, SWEEPS)
            for k in range(len(known), way.starts)
        )
        test = reading.applied(self.test)
        table = test if way.fold is None else unfolded(test, way.fold)
        index = table.coordinates
        rows = self.fit if way.fold is None else unfolded(self.fit, way.fold)
        models = [with_typical(state.factors, rows) for state in states]
        mean = sum(F.gather(index) for F in models) / way.starts
        errors = reading.errors((mean - table.flat) ** 2, test)
        return Tried(way, errors, reading, states)

    def judged(self, session: Session, way: Way, found: TensorFit) -> Array:
        """Return the errors of a Tucker model, and of models of its ranks on the other splits."""
        errors = []
        for part in (self, *self.elsewhere):
            reading = replace(read(self.reading, part.fit, way), fold=None)
            F = found.factors
            if part is not self:
                F = fit_ranks(session, reading.applied(part.fit), F.ranks).factors
            test = reading.applied(part.test)
            errors.append(reading.errors(test.squared_errors(F), test))
        return array_namespace(*errors).concat(errors)

    def tucker(self, best: Tried) -> Tried:
        """Fit a Tucker model that starts from the best candidate, if it is small."""
        reading = replace(best.reading, fold=None)
        data = best.reading.applied(self.fit)
        F = _tucker(best.states[0], best.reading, self.fit)
        free = degrees(F.ranks, data.shape)
        if math.prod(F.ranks) > CORE or free > 0.7 * data.size:
            return best
        own = self.session.apart(QUICK, 40 if self.exact(best) else SWEEPS).with_reading(None)
        found: TensorFit = fit_ranks(own, data, F.ranks, None, F)
        way = replace(best.way, start="tucker")
        errors = self.judged(own, way, found)
        tried = Tried(way, errors, reading, (), found.factors)
        numbers = sum(math.prod(B.shape) for B in best.states[0].factors.blocks)
        if free > 1.2 * numbers:
            return self.noted(own, tried, found.factors.ranks, best)
        self.noted(own, tried, found.factors.ranks, None)
        # if two predict equally well, the one with fewer parameters is simpler
        return tried if alike(errors, best.errors, GAIN) else best

    def noted(self, own: Session, tried: Tried, rank: Any, best: Tried | None) -> Tried:
        """Add a candidate to the trail; return the better one."""
        way, xp = tried.way, array_namespace(tried.errors)
        error = float(xp.mean(tried.errors))
        seconds = own.outcome.history[-1]["seconds"] if own.outcome.history else 0.0
        scale = SCALES[way.scale == "rows", bool(self.reading.units)]
        about = {"start": way.start, "center": way.center, "scale": scale, "rank": rank}
        self.trail.append({**about, "held_out": error, "seconds": seconds})
        log.info("%s, rank %s: held-out %.3g", way.start, rank, error)
        if best is not None and not better(tried.errors, best.errors, GAIN):
            return best
        if tried.states and self.session.reading is not None:
            self.session.with_reading(tried.reading).best_so_far(tried.states[0])
        return tried

    def exact(self, best: Tried) -> bool:
        """Whether a candidate explains almost everything."""
        return _noise(best) < NOISELESS * best.reading.applied(self.fit).mean_square()

    def best(
        self, centers: tuple[str, ...], scales: tuple[str, ...], simple: Tried | None = None
    ) -> Tried:
        """Try candidates, simple ones first, each against the best so far.

        Parameters
        ----------
        centers, scales : tuple of str
        simple : Tried, optional
            What `ladder` found, if it is known.
        """
        best: Tried | None = None
        first = Way("cp", 1, centers[0], scales[0])
        most, cheap = components(self.fit), self.fit.size <= CHEAP
        for rank in sorted({max(1, most // 6), max(1, most // 2), most}):
            # if candidates are expensive, stop adding components once a fifth is lost, or more do
            # not help
            needed = best is None or cheap or _kept(best) > 0.8
            if best is None or (needed and not self.session.out_of_time):
                best = self.tried(replace(first, rank=rank), best)
                if best.way.rank < rank and not cheap:
                    break
                if best.way.rank == rank and self.exact(best):
                    done = self.tucker(best)
                    if self.perfect(done):
                        return done
        assert best is not None
        simple = self.ladder(centers[0]) if simple is None else simple
        if simple is not None and self.perfect(simple):
            return simple
        for change in self.changes(centers, scales):
            if self.session.out_of_time:
                return best
            way = change(best)
            if way is not None and way != best.way:
                best = self.tried(way, best)
        best = best if self.session.out_of_time else self.tucker(best)
        return best if simple is None or not alike(simple.errors, best.errors, GAIN) else simple

    def ladder(self, center: str) -> Tried | None:
        """Try Tucker models of growing equal ranks from the start of the theory, while quick.

        They find tensors of small ranks from few entries.
        """
        way = Way("tucker", 0, center)
        reading = read(self.reading, self.fit, way)
        data = reading.applied(self.fit)
        best: Tried | None = None
        own, worse = self.session.apart(QUICK, 40).with_reading(None), 0
        for _, found in rungs(own, data, work=SMALL):
            tried = Tried(way, self.judged(own, way, found), reading, (), found.factors)
            now = self.noted(own, tried, found.factors.ranks, best)
            worse = 0 if now is tried else worse + 1
            best = now
            if worse == 2 or self.perfect(best) or self.session.out_of_time:
                break
        return best

    def perfect(self, tried: Tried) -> bool:
        """Whether the held-out entries are predicted exactly."""
        xp = array_namespace(tried.errors)
        return float(xp.mean(tried.errors)) <= 1e-10 * self.test.mean_square()

    def changes(
        self, centers: tuple[str, ...], scales: tuple[str, ...]
    ) -> Iterator[Callable[[Tried], Way | None]]:
        """Yield candidates, as changes of the best so far."""
        for k in range(len(self.fit.shape)):
            yield partial(self.unfolding, k)
        yield lambda best: replace(best.way, uneven=not best.way.uneven)
        yield self.sharing
        for center in centers[1:]:
            yield partial(_with, center=center)
        for scale in scales[1:]:
            yield partial(_with, scale=scale)
        yield self.wider
        yield _averaged

    def sharing(self, best: Tried) -> Way | None:
        """The candidate whose initial noise is closer to the noise that the best one found."""
        noise = _noise(best) / max(best.reading.applied(self.fit).mean_square(), 1e-300)
        share = next((s for s, (low, high) in SHARES.items() if low < noise < high), None)
        return None if share is None else replace(best.way, share=share)

    def widest(self, mode: int) -> int:
        """The largest rank of an unfolding."""
        n = self.fit.shape[mode]
        width = math.prod(self.fit.shape) // n
        return min(components(self.fit, (n, width)), n - 1, width - 1)

    def wider(self, best: Tried) -> Way | None:
        """The candidate of twice the rank, if the best is an unfolding that lost no component."""
        way = best.way
        if way.fold is None or _kept(best) < 1:
            return None
        rank = min(2 * way.rank, self.widest(way.fold))
        wide = replace(way, rank=rank)
        return wide if folds(self.fit.shape, way.fold, rank) else None

    def unfolding(self, mode: int, best: Tried) -> Way | None:
        """The candidate that is a matrix, if it can be folded into a tensor again."""
        shape = self.fit.shape
        n = shape[mode]
        width = math.prod(shape) // n
        rank = min(self.widest(mode), MOST // 2)
        if rank < 1 or width > EMPTY * self.fit.size or not folds(shape, mode, rank):
            return None
        return replace(best.way, start=f"mode {mode}", rank=rank)


def _with(best: Tried, **changes: Any) -> Way | None:
    """A model with offsets or scales; both together are not tried."""
    way = replace(best.way, **changes)
    return None if way.center != "none" and way.scale != "none" else way


def _kept(tried: Tried) -> float:
    """The share of its components that a variational model kept."""
    return float(tried.states[0].factors.modes[0].shape[1] / tried.way.rank)


def _averaged(best: Tried) -> Way | None:
    """The mean of several starts, because sums of outer products end differently for each."""
    return replace(best.way, starts=STARTS) if best.way.fold is None else None


def _noise(tried: Tried) -> float:
    """The noise of a candidate that is a variational model."""
    known = tried.states[0].memory.method
    return known.noise if isinstance(known, PosteriorCP) else math.inf


def fit_auto(
    session: Session,
    data: LocalObservations,
    reading: TensorReading,
    centers: tuple[str, ...],
    scales: tuple[str, ...],
    seed: int,
    unlike: bool = False,
) -> tuple[TensorFit, TensorReading]:
    """Choose a model on held-out entries, and fit it to all.

    Parameters
    ----------
    session : Session
    data : LocalObservations
        Divided by their magnitude.
    reading : TensorReading
    centers, scales : tuple of str
        What may be chosen, simple ones first.
    seed : int
    unlike : bool
        Whether slices of the last mode may have different units.
    """
    trail: Trail = []
    here = session.with_reading(reading)
    part = part_of(data, seed)
    all_of_it = part is data
    pairs = parts_of(part, seed, ENOUGH) or part.split(0.1, seed)
    if not pairs:
        way = Way("cp", components(data), centers[0], scales[0])
        return refit(here, data, read(reading, data, way), way, seed, None, trail)
    search = Search(here, *pairs[0], reading, seed, trail, pairs[1:])
    if not all_of_it:
        # iterates of a part are not models of the whole, and the whole needs time, too
        rest = 0.4 * (session.deadline - time.perf_counter())
        apart = replace(session.with_reading(None), deadline=time.perf_counter() + rest)
        search = replace(search, session=apart)
    found = search.best(centers, scales)
    units = units_of_slices(part) if unlike and not search.perfect(found) else ()
    if units and not session.out_of_time:
        own = search.in_units(units)
        tried = own.contested(found, search, scales)
        if tried is not None:
            search, found, pairs = own, tried, in_units(pairs, units)
            units = units if all_of_it else units_of_slices(data)
            data, reading = divided(data, units), replace(reading, units=units)
    way = found.way
    if not all_of_it and found.factors is None:
        whole = replace(search, fit=data)
        most = components(data) if way.fold is None else min(whole.widest(way.fold), MOST // 2)
        # if an unfolding lost no component, the part may have had too few entries for more
        full = way.fold is not None and _kept(found) == 1
        way = replace(way, rank=most if full else min(most, way.rank))
    # if only a part was searched, the whole needs its own start
    warm = found if all_of_it or way.rank == 0 else None
    fitted = refit(here, data, read(reading, data, way), way, seed, warm, trail)
    if session.out_of_time or search.perfect(found):
        return fitted
    session.shared.parts = [found.part(pairs[0])] if all_of_it else []
    against = opinion(found.errors, pairs, centers[-1], False, search.reading.units)
    return after(fitted, against, data, centers[-1], False)


def refit(
    session: Session,
    data: LocalObservations,
    reading: TensorReading,
    way: Way,
    seed: int,
    found: Tried | None,
    trail: Trail,
) -> tuple[TensorFit, TensorReading]:
    """Fit the chosen model to all entries."""
    states = found.states if found is not None else ()

    def tucker(reading: TensorReading, last: TensorFit | None) -> TensorFit:
        here = session.with_reading(reading)
        F = _begin(here, data, reading, way, seed, found) if last is None else last.factors
        start = F if F.shape == data.shape else None
        return fit_ranks(here, reading.applied(data), F.ranks, None, start)

    def variational(reading: TensorReading, last: TensorFit | None) -> TensorFit:
        nonlocal states
        here = session.with_reading(reading)
        states = tuple(
            run(here, data, reading, way, seed + i, REFINED, states[i] if states else None)
            for i in range(way.starts)
        )
        return ended(states, reading, data)

    reading = replace(reading, trail=trail)
    if way.start == "tucker":
        return in_turn(data, reading, 2, tucker)
    # a variational model leaves little for the second turn
    return in_turn(data, reading, 1, variational)


def _begin(
    session: Session,
    data: LocalObservations,
    reading: TensorReading,
    way: Way,
    seed: int,
    found: Tried | None,
) -> Tucker:
    """Initial factors of a Tucker model of all data, or of a part that has its ranks."""
    if found is not None and found.factors is not None:
        return found.factors
    rank = min(way.rank, components(data))
    plain, reading = replace(way, start="cp", rank=rank), replace(reading, fold=None)
    return _tucker(run(session, data, reading, plain, seed, SWEEPS), reading, data)


def _tucker(state: State, reading: TensorReading, data: LocalObservations) -> Tucker:
    """Tucker factors of an iterate, with the ranks above its noise."""
    F, noise = tensor_of(state, reading, data.shape)
    F, values = spectra(F)
    return cut(F, supported(values, F.ranks, reading.applied(data), noise))
