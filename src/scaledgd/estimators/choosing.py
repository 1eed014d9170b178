"""Choose offsets, scales and the largest rank of a table on held-out entries."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from array_api_compat import array_namespace

from .growing import Judge, Path, begin, fit_given, fit_grown, grow, held_out_judge
from .journal import log, remembered
from .local_observations import LocalObservations
from .scaling import Choice, Scales, empty, scales, table_factors
from .session import Session
from .units import Units

Array = Any
Trail = list[dict[str, Any]]

CHOICES = (
    Choice(),
    Choice("both"),
    Choice("rows", "rows"),
    Choice("columns", "columns"),
)
"""Candidates, simple ones first."""

LARGE = 1_000_000
"""Number of entries above which rank, offsets and scales are chosen on the densest part."""

SURVEYED = 300_000
"""Number of entries on which offsets are chosen for a given rank."""

FEWEST = 50
"""Number of entries below which none are held out to choose offsets."""

LARGEST_RANK = 60
"""Largest rank that rank="auto" considers."""

QUICK = 10
"""Largest rank that a candidate grows to while candidates are compared."""


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
        How the rank was found, so far.
    units : Units, optional
        Units of columns.
    """

    size: float = 1.0
    choice: Choice = field(default_factory=Choice)
    scales: Scales = field(default_factory=lambda: Scales(None, None))
    trail: Trail = field(default_factory=list)
    units: Units | None = None


@dataclass(frozen=True, eq=False)
class Plan:
    """How a table is to be fitted.

    Attributes
    ----------
    choice : Choice
    rank : int
        An upper bound.
    trail : list of dict
        How the rank was found.
    grows : bool
        Whether the rank is to be grown up to the bound, rather than fitted at once.
    """

    choice: Choice
    rank: int
    trail: Trail
    grows: bool = False


def plain_side(side: str) -> str:
    """Return the sides that are centred or scaled when nothing is chosen."""
    return "none" if side == "auto" else side


def candidates(center: str, scale: str, free: bool = True) -> tuple[Choice, ...]:
    """Return the candidates that agree with what was asked for; "auto" agrees with all."""
    plain = Choice(plain_side(center), plain_side(scale))
    found = tuple(
        choice
        for choice in CHOICES[: None if free else 1]
        if center in ("auto", choice.center) and scale in ("auto", choice.scale)
    )
    return found or (plain,)


def steps_of(choice: Choice, path: Path, seen: int = 0) -> Trail:
    """Return the steps of a path as entries of a trail."""
    about = {"center": choice.center, "scale": choice.scale}
    return [{**about, "rank": rank, "held_out": error} for rank, error in path.steps[seen:]]


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A choice that grew on the first part of the data, and its errors on all parts."""

    choice: Choice
    errors: Array
    path: Path
    judge: Judge
    session: Session


def offsets_for_rank(
    session: Session,
    data: LocalObservations,
    rank: int,
    choices: tuple[Choice, ...],
    seed: int,
) -> Choice:
    """Choose offsets and scales for a given rank: those that predict held-out entries best.

    A later choice is taken only if its errors are smaller by 3 %.

    Parameters
    ----------
    session : Session
    data : LocalObservations
    rank : int
    choices : tuple of Choice
        Candidates, simple ones first.
    seed : int
    """
    part = data.core(SURVEYED, seed)
    pairs = part.split(0.1, seed) if part.size >= FEWEST else []
    if not pairs or len(choices) == 1:
        return choices[0]
    aside, (fit, test) = session.with_reading(None).apart(), pairs[0]
    best, least = choices[0], math.inf
    for choice in choices:
        error = _error_of(aside, fit, test, rank, choice, seed)
        if error < 0.97 * least:
            best, least = choice, error
        if session.out_of_time:
            break
    return best


@remembered("offsets of a rank")
def _error_of(
    session: Session,
    fit: LocalObservations,
    test: LocalObservations,
    rank: int,
    choice: Choice,
    seed: int,
) -> float:
    """The mean square error on held-out entries of a fit with some offsets."""
    known = scales(fit, choice)
    start = empty(fit, choice, known)
    state = fit_given(session, known.apply(fit), start, rank, seed + 1)
    errors = test.squared_errors(table_factors(state), known)
    return float(array_namespace(errors).mean(errors))


def choose(
    session: Session,
    data: LocalObservations,
    choices: tuple[Choice, ...],
    seed: int,
    max_rank: int = LARGEST_RANK,
) -> Plan:
    """Choose offsets, scales and the largest rank on held-out entries.

    A tenth of the entries is held out, twice. Every choice grows to a rank of at most `QUICK`
    on the others. It replaces an earlier, simpler one if its held-out errors are smaller by more
    than chance and by 3 %. The winner then grows until it ends. Large tables are judged by their
    densest part, on which the rank is fitted too.

    Parameters
    ----------
    session : Session
        With a `Reading` of the data.
    data : Observations
    choices : tuple of Choice
    seed : int
    max_rank : int

    Returns
    -------
    plan : Plan
    """
    xp, whole = array_namespace(data.example), data
    if data.size > LARGE:
        data = data.core(LARGE, seed)
        session = session.with_reading(None)  # iterates of a part are no model of the whole
    most = max(0, min(max_rank, min(data.shape) - 1, data.size // sum(data.shape)))
    pairs = data.split(0.1, seed, 2)
    trail: Trail = []
    if not pairs:
        return Plan(choices[0], most, trail, grows=True)
    best: _Candidate | None = None
    aside = session.apart()
    for choice in choices:
        if best is not None and session.out_of_time:
            break
        grew = []
        for fit, test in pairs:
            known = scales(fit, choice)
            judge = held_out_judge(test, known)
            here = aside
            if session.reading is not None:
                seen = replace(session.reading, choice=choice, scales=known, trail=list(trail))
                here = aside.with_reading(seen)
            path = begin(here, known.apply(fit), empty(fit, choice, known), judge)
            grew.append((grow(here, path, min(most, QUICK), judge), judge, here))
        errors = xp.concat([path.best_errors for path, *_ in grew])
        trail += steps_of(choice, grew[0][0])
        mean = float(xp.mean(errors))
        log.info("center=%s, scale=%s: held-out %.3g", choice.center, choice.scale, mean)
        if best is None or better(errors, best.errors):
            best = _Candidate(choice, errors, *grew[0])
            best.session.best_so_far(best.path.state)
    assert best is not None
    seen_steps = len(best.path.steps)
    path = grow(best.session, best.path, most, best.judge)
    best.session.best_so_far(path.state)
    trail += steps_of(best.choice, path, seen_steps)
    # held-out entries overrule what the fit itself says only if it ends clearly worse
    cap = path.best_rank if path.steps[-1][1] > 1.2 * path.best else most
    if data is whole:
        return Plan(best.choice, cap, trail, grows=True)
    known = scales(data, best.choice)
    start = empty(data, best.choice, known)
    rank = max(1, table_factors(fit_grown(aside, known.apply(data), start, cap)).rank)
    log.info("rank %d on a part of %d entries", rank, data.size)
    why = {"rank": rank, "why": "chosen on the densest part"}
    return Plan(best.choice, rank, [*trail, why])


def better(errors: Array, least: Array) -> bool:
    """Whether errors are smaller than others, by more than chance and by 3 %."""
    xp = array_namespace(errors)
    gain = least - errors
    chance = 0.5 * float(xp.std(gain)) / math.sqrt(errors.shape[0])
    return float(xp.mean(gain)) > max(chance, 0.03 * float(xp.mean(least)))
