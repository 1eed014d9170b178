"""The one judgement of tables: fit candidates, judge each by warm folds, return the best one.

The ladder, simple ones first:

1. offsets alone, which every other candidate must beat;
2. low-rank parts in units of columns, in the units of the data, with offsets of rows, of both;
3. larger ranks, while the best needs nearly all of its columns; a rank that is grown, if there is
   little noise;
4. the best with neighbours in time, and series of columns alone, where there may be time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .candidates import Factored, Fitted, InTime
from .caution import caution, model_of
from .gaussian_rows import GaussianRows
from .hashing import chosen_by_hash
from .holes import DENSEST, LARGEST, held_out, in_time, moved_holes
from .joint import noise_share
from .journal import log
from .judging import Held
from .limits import (
    ALIKE,
    ENOUGH,
    EVIDENCE,
    FEWEST,
    FEWEST_FOLDS,
    FOLDS,
    FRACTION,
    HARDLY,
    QUIET,
    TOGETHER,
    WIDER,
)
from .local_observations import LocalObservations
from .matrix_model import TableFit
from .packing import host
from .planned import LITTLE
from .plans import Plan, Trail, in_the_time_of
from .session import Session
from .steadiness import Part
from .vouching import OFFSETS, middles, objection, own_units

Array = Any
Pair = tuple[LocalObservations, LocalObservations]


KINDS: dict[str, Any] = {
    "joint": Factored,
    "grown": Factored,
    "offsets": Factored,
    "gaussian": GaussianRows,
    "smooth": InTime,
    "series": InTime,
}
"""The kinds of candidates by their start; each has ``of(session, data, plan)``."""


@dataclass(eq=False)
class Trial:
    """A candidate that is fitted, its fits without the first folds, and what these predict."""

    fit: Fitted
    seconds: float = 0.0
    folds: list[TableFit] = field(default_factory=list)
    estimates: list[Any] = field(default_factory=list)
    error: float = math.nan


@dataclass(eq=False)
class Judgement:
    """Candidates of a table, and the entries that judge them.

    Parameters
    ----------
    session : Session
    data : LocalObservations
        In their own units.
    modes : tuple of int
        The modes in which neighbours are alike.
    """

    session: Session
    data: LocalObservations
    modes: tuple[int, ...] = ()
    trials: list[Trial] = field(default_factory=list)
    best: Trial | None = None
    baseline: float = math.nan

    @cached_property
    def pairs(self) -> list[Pair]:
        """Folds: entries to fit, and entries to predict."""
        m = self.data.size
        if m < FEWEST:
            return []
        fewest = FEWEST_FOLDS if self.modes else 1
        count = min(FOLDS, max(fewest, math.ceil(ENOUGH / (FRACTION * m))))
        xp, there = array_namespace(self.data.y), device(self.data.y)
        found = []
        for hidden in folds(self.data, self.modes, count):
            keep, left = (xp.asarray(np.flatnonzero(k), device=there) for k in (~hidden, hidden))
            if keep.shape[0] and left.shape[0]:
                found.append((self.data.some(keep), self.data.some(left)))
        return found

    @cached_property
    def _deviations(self) -> Any:
        found = host(own_units(self.data)).astype(np.float64)
        return np.where(found > 0, found, 1.0)

    def enter(self, *plans: Plan) -> bool:
        """Fit candidates, and compare them with the best one; return whether one is better."""
        return self.compare(
            *(partial(KINDS[p.start].of, self.session, self.data, p) for p in plans)
        )

    def compare(self, *makers: Callable[[], Fitted], simpler: bool = False) -> bool:
        """Make candidates, and compare them with the best one; return whether one is better."""
        fresh = []
        for make in makers:
            if self.trials and self.session.out_of_time:
                break
            began = time.perf_counter()
            fresh.append(Trial(make(), time.perf_counter() - began))
        self.trials += fresh
        before = self.best
        known = [] if before is None else [before]
        self.best = self._best_of(fresh + known if simpler else known + fresh)
        for step in self.trail[len(self.trail) - len(fresh) :]:
            log.info("held-out error of %s", step)
        if self.best is not before:
            self.session.aside(self.best.fit.reading).best_so_far(self.best.fit.state)
        return self.best is not before

    def _best_of(self, trials: list[Trial]) -> Trial:
        """The first candidate that predicts as well as the best one.

        Folds end when more of them would hardly change the choice.
        """
        alive = list(trials)
        for k in range(len(self.pairs)):
            for trial in alive:
                self._predict(trial, k)
            if any(len(trial.folds) <= k for trial in alive):
                break
            held = self._held(alive, k + 1)
            squares = held.squares()
            means = squares.mean(axis=1)
            best = int(np.argmin(means[1:]))
            self.baseline = float(means[0])
            for trial, mean in zip(alive, means[1:], strict=True):
                trial.error = float(mean)
            more = [squares[c + 1] - squares[best + 1] for c in range(len(alive))]
            lead = [float(np.mean(x)) for x in more]
            chance = [EVIDENCE * held.chance(x) for x in more]
            left = [c for c in range(len(alive)) if lead[c] <= chance[c]]
            alike = ALIKE * float(means[best + 1])
            settled = all(lead[c] + chance[c] <= alike for c in left)
            near = [c for c in left if lead[c] <= alike]
            alive = [alive[c] for c in (near[:1] if settled or k + 1 == len(self.pairs) else left)]
            if len(alive) == 1:
                break
        return alive[0]

    def _predict(self, trial: Trial, k: int) -> None:
        """Let a candidate predict a fold, unless it has done so, or time is up."""
        if len(trial.folds) > k or self.session.out_of_time:
            return
        began = time.perf_counter()
        fit, test = self.pairs[k]
        trial.folds.append(trial.fit.without(self.session, fit))
        trial.estimates.append(host(trial.folds[-1].values(test.coordinates)))
        trial.seconds += time.perf_counter() - began

    def _held(self, trials: list[Trial], count: int) -> Held:
        """What candidates say about the first folds."""
        pairs, size = self.pairs[:count], self.data.magnitude()  # squares of huge numbers overflow
        rows, columns = (
            np.concatenate([host(test.coordinates[mode]) for _, test in pairs]) for mode in (0, 1)
        )
        weight = None
        if self.data.weight is not None:
            weight = np.concatenate([host(test.weight) for _, test in pairs])
        return Held(
            np.concatenate([host(test.flat) for _, test in pairs]) / size,
            (rows, columns),
            np.concatenate([host(middles(fit))[host(t.coordinates[1])] for fit, t in pairs]) / size,
            np.stack([np.concatenate(t.estimates[:count]) for t in trials]) / size,
            self._deviations / size,
            weight,
        )

    @property
    def low_rank(self) -> Factored:
        """The best of the fits with a joint start, which others begin with."""
        some = [
            t for t in self.trials if isinstance(t.fit, Factored) and t.fit.plan.start == "joint"
        ]
        best = self.winner if self.winner in some else min(some, key=lambda t: t.error)
        assert isinstance(best.fit, Factored)
        return best.fit

    @property
    def winner(self) -> Trial:
        """The best candidate."""
        assert self.best is not None
        return self.best

    def simplify(self, plans: tuple[Plan, ...]) -> None:
        """Let offsets alone take part if the best is hardly better than column means."""
        if self.pairs and not self.winner.error < HARDLY * self.baseline:
            alone = (replace(plan, start="offsets", rank=0) for plan in plans)
            makers = (partial(Factored.of, self.session, self.data, plan) for plan in alone)
            self.compare(*makers, simpler=True)

    @property
    def parts(self) -> list[Part]:
        """What the best one estimates without a fold.

        In time, an entry depends on its neighbours by design, so fits in time do not count.
        """
        if self.winner.fit.plan.in_time:
            return []
        pairs = zip(self.pairs, self.winner.folds, strict=False)
        return [Part.of(pair, fold.values) for pair, fold in pairs]

    @property
    def doubt(self) -> Trail:
        """What held-out entries say against the best one."""
        best = self.winner
        if not best.fit.rank and not best.fit.plan.in_time:
            return [{"rank": 0, "why": OFFSETS}]
        if not best.folds:
            return []
        held = self._held([best], len(best.folds))
        unit = held.deviations[held.index[1]]
        off, means = ((x - held.values) ** 2 for x in (held.estimates[0], held.baseline))
        against = objection(off, means, unit * unit)
        return [{"rank": best.fit.rank, "why": against}] if against else []

    def finished(self) -> TableFit:
        """Return the best one, converged further."""
        found = self.winner.fit.finished(self.session)
        reading = replace(found.reading, trail=[*self.trail, *self.doubt])
        return replace(found, reading=reading, caution=self.caution)

    @property
    def trail(self) -> Trail:
        """A record of every candidate."""
        return [
            {
                "start": trial.fit.plan.start,
                **trial.fit.plan.named,
                "rank": trial.fit.rank,
                "held_out": trial.error,
                "seconds": round(trial.seconds, 3),
            }
            for trial in self.trials
        ]

    @property
    def caution(self) -> float:
        """The factor by which the squared errors of the best exceed expectation."""
        # all folds, because few errors say little about the largest of them
        for k in range(0 if self.session.out_of_time else len(self.pairs)):
            self._predict(self.winner, k)
        folds = zip(self.winner.folds, self.pairs, strict=False)
        return caution((model_of(fold, fit), test) for fold, (fit, test) in folds)


def judge(
    session: Session,
    data: LocalObservations,
    plans: tuple[Plan, ...],
    modes: tuple[int, ...] = (),
    most: int | None = None,
    open_ended: bool = False,
    exact: Callable[[], Any] = lambda: None,
) -> tuple[Judgement, Any]:
    """Fit and judge all candidates.

    Parameters
    ----------
    session : Session
    data : LocalObservations
        In their own units.
    plans : tuple of Plan
        Offsets and units, with the first rank to try.
    modes : tuple of int
        The modes along which neighbours may be alike.
    most : int, optional
        The largest rank; None compares the plans alone.
    open_ended : bool
        Whether larger ranks than those of the plans may be tried.
    exact : callable
        Returns a fit that reproduces the data, if there is one, when there is little noise.

    Returns
    -------
    judgement : Judgement
    state : State, optional
        The fit that reproduces the data.
    """
    found = Judgement(session, data, modes)
    found.enter(*plans)
    if most is None or session.out_of_time:
        return found, None
    if any(noise_share(trial.fit.state) <= LITTLE for trial in found.trials):
        state = exact()
        if state is not None:
            return found, state
    while open_ended and found.low_rank.needs_more and found.low_rank.plan.rank < most:
        plan = found.low_rank.plan
        if not found.enter(replace(plan, rank=min(most, WIDER * plan.rank))):
            break
    if session.out_of_time:
        return found, None
    best = found.low_rank
    if best.hides_more:
        found.compare(partial(best.deeper, session))
    best = found.low_rank
    same = best.reproducing(session)
    if same is not None:
        found.compare(lambda: same)
    elif noise_share(best.state) <= QUIET:
        found.enter(replace(best.plan, start="grown", rank=most))
    for mode in modes:
        plan = in_the_time_of(found.low_rank.plan, mode)
        found.enter(plan, replace(plan, start="series"))
    return found, None


# ---- folds


def folds(data: LocalObservations, modes: tuple[int, ...], count: int) -> list[Any]:
    """Return disjoint choices of entries that resemble the missing ones, as boolean arrays.

    Where columns are missing together, the holes of other rows are copied; elsewhere entries are
    drawn one by one. Where whole slices are missing, others are left out as a whole, in proportion.
    Rows and columns count in an order of their values, or in that of time.

    Parameters
    ----------
    data : LocalObservations
    modes : tuple of int
        The modes in which slices have an order.
    count : int
    """
    order = in_time(data.coordinates, data.stamps) if modes else data.coordinates
    known = data.places or (None, None)
    places = tuple(
        host(i) if p is None or k in modes else p[host(i)]
        for k, (i, p) in enumerate(zip(order, known, strict=True))
    )
    found = _scattered(data, places, bool(modes), count)
    for k, n in enumerate(data.shape):
        found = _with_slices(places[k], n, data, found)
    return found


def _scattered(data: LocalObservations, places: Any, timed: bool, count: int) -> list[Any]:
    """Holes of other rows, or single entries."""
    cells = math.prod(data.shape)
    if timed or cells > LARGEST or not (1 - DENSEST) * cells <= data.size < cells:
        return [host(h) for h in held_out(places, data.shape, FRACTION, 0, count)]
    holes = np.ones(data.shape, dtype=bool)
    holes[places] = False
    if together(holes):
        found = [part[places] for part in moved_holes(holes, FRACTION, 0, count)]
        if all(part.sum() >= 0.3 * FRACTION * data.size for part in found):
            return found
    return chosen_by_hash(places, FRACTION, 0, count)


def _with_slices(place: Any, n: int, data: LocalObservations, found: list[Any]) -> list[Any]:
    """Leave out whole slices as well, if some are missing: as many as their share of the holes."""
    counts = np.bincount(place, minlength=n)
    empty, missing = counts == 0, math.prod(data.shape) - data.size
    share = empty.sum() * math.prod(data.shape) / n / max(1, missing)
    if not 0 < share < 1 or 2 * empty.sum() >= n:
        return found
    wider = []
    for f, hidden in enumerate(found):
        # holes of the same lengths, elsewhere
        chosen = np.roll(empty, (f + 1) * n // (len(found) + 1)) & ~empty
        room = share / (1 - share) * max(1, hidden.sum())
        chosen &= np.cumsum(counts * chosen) <= max(room, counts[chosen].min(initial=n))
        wider.append(hidden | chosen[place])
    return wider


def together(holes: Any) -> bool:
    """Whether columns are missing together more often than by chance."""
    share = holes.mean(axis=0)
    some = np.flatnonzero((share > 0) & (share < 1))[:MANY]
    if len(some) < 2 or len(holes) < 2:
        return False
    Q = (holes[:, some] - share[some]) / np.sqrt(share[some] * (1 - share[some]))
    n, k = len(holes), len(some)
    R = Q.T @ Q / n
    return bool((np.sum(R * R) - k) / (k * (k - 1)) * n > TOGETHER)


MANY = 300
"""Columns whose gaps are compared with each other."""
