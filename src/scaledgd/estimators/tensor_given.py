"""Fit tensors of given ranks, or with a given ridge."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from array_api_compat import array_namespace

from ..factors import Tucker
from .comparing import better
from .local_observations import LocalObservations
from .robust import Outliers
from .session import Session
from .steadiness import Part
from .tensor_model import TensorReading, centred, divided, units_of_slices
from .tensor_units import exact, fair, in_units
from .tensor_vouching import after, judged_by, opinion
from .tensor_ways import GAIN, in_turn
from .tucker import QUICK, Ranks, TensorFit, fit_ranks, smaller, spectra
from .vouching import Pairs, parts_of

Array = Any

SHARE = 0.3
"""Share of the time left that fits of fewer components may take."""


def with_ridge(
    session: Session,
    data: LocalObservations,
    found: tuple[TensorFit, TensorReading],
    ridge: float,
) -> tuple[TensorFit, TensorReading]:
    """Fit a chosen model again, with a given ridge."""
    fit, reading = found
    F, reading = spectra(fit.factors)[0], replace(reading, fold=None)
    here, left = session.with_reading(reading), reading.applied(divided(data, reading.units))
    return fit_ranks(here, left, F.ranks, None, F, ridge), reading


@dataclass(frozen=True)
class Asked:
    """The options of a fit with given ranks.

    Attributes
    ----------
    ranks : tuple of int
    centers : tuple of str
        The offsets that may be chosen, simple ones first.
    outliers : None, "auto" or a fraction
    ridge : float, optional
    offsets : str
        Those that may replace the fit.
    """

    ranks: Ranks
    centers: tuple[str, ...] = ("none",)
    outliers: Outliers | None = None
    ridge: float | None = None
    offsets: str = "none"


@dataclass(frozen=True, eq=False)
class Judgement:
    """Fits to most of the entries, and their errors at the others.

    Attributes
    ----------
    pairs : list of pairs of LocalObservations
    errors : array of shape (m,)
        Squared errors at the entries to predict of all pairs.
    parts : list of Part
    """

    pairs: Pairs
    errors: Array
    parts: list[Part]

    @classmethod
    def of(
        cls, session: Session, pairs: Pairs, reading: TensorReading, center: str, asked: Asked
    ) -> Judgement:
        """Fit the first of every pair, and predict the second."""
        errors, parts = [], []
        for fit, test in pairs:
            own = replace(reading, center=center, offsets=centred(fit, center))
            some, own = _with_offsets(session, fit, own, asked, None)
            errors.append(own.applied(test).squared_errors(some.factors))
            parts.append(Part.of((fit, test), partial(own.values, some.factors)))
        return cls(pairs, array_namespace(*errors).concat(errors), parts)

    def joined(self, other: Judgement) -> Judgement:
        """Both judgements as one."""
        errors = array_namespace(self.errors).concat([self.errors, other.errors])
        return Judgement([*self.pairs, *other.pairs], errors, [*self.parts, *other.parts])


def fit_given(
    session: Session,
    data: LocalObservations,
    reading: TensorReading,
    asked: Asked,
    start: Tucker | None,
    seed: int,
    known: Judgement | None = None,
) -> tuple[TensorFit, TensorReading]:
    """Fit given ranks; offsets are used only if there is noise and they help.

    If offsets alone predict held-out entries better, they are returned.

    Parameters
    ----------
    session : Session
    data : LocalObservations
        Divided by their magnitude and the units of the reading.
    reading : TensorReading
    asked : Asked
    start : Tucker, optional
    seed : int
    known : Judgement, optional
        Of such fits without offsets.
    """

    def with_center(center: str, first: Tucker | None) -> tuple[TensorFit, TensorReading]:
        own = replace(reading, center=center, offsets=centred(data, center))
        return _with_offsets(session.with_reading(own), data, own, asked, first)

    found = with_center(asked.centers[0], start)
    robust, last = asked.outliers is not None, asked.offsets
    part = None
    if not session.out_of_time:
        part = judged_by(data, asked.ranks, found[0].noise, seed, robust)
    if part is None:
        return found
    pairs = parts_of(part, seed) if known is None else known.pairs
    if not pairs:
        return found
    every = [] if known is None else [known]
    for center in asked.centers if known is None else ():
        own = session.with_reading(None).apart(QUICK, 40)
        every.append(Judgement.of(own, pairs, reading, center, asked))
    best, *others = every
    if session.out_of_time:
        return found
    for other, center in zip(others, asked.centers[1:], strict=True):
        if better(other.errors, best.errors, GAIN):
            best, found = other, with_center(center, None)
    session.shared.parts = best.parts if part.shape == data.shape else []
    units = reading.units if part.shape == data.shape else ()
    against = opinion(best.errors, pairs, last, robust, units)
    return after(found, against, data, last, robust)


def fewer(
    session: Session,
    data: LocalObservations,
    reading: TensorReading,
    asked: Asked,
    seed: int,
    unlike: bool,
) -> tuple[TensorReading, Asked, Judgement | None]:
    """Choose units of slices, and halve given ranks, if that predicts better.

    Superfluous components follow gross errors.

    Parameters
    ----------
    session : Session
    data : LocalObservations
        Divided by their magnitude.
    reading : TensorReading
    asked : Asked
    seed : int
    unlike : bool
        Whether slices of the last mode may have different units.
    """
    part = judged_by(data, asked.ranks, data.mean_square(), seed, robust=True)
    pairs = [] if part is None else parts_of(part, seed)
    if part is None or not pairs:
        return reading, asked, None
    # iterates of a part are not models of the whole
    whole = isinstance(data, LocalObservations) and part.shape == data.shape
    own, now = session.with_reading(reading if whole else None), time.perf_counter()
    # the fit needs time, too
    own = replace(own.apart(QUICK, 40), deadline=now + SHARE * (session.deadline - now))
    center, units = asked.centers[0], units_of_slices(part, robust=True) if unlike else ()
    first, scaled, other = pairs[:1], in_units(pairs, units), replace(reading, units=units)
    # the first pair decides about units
    least = Judgement.of(own, scaled[:1], other, center, asked)
    plain = None
    if units and not own.out_of_time and not exact(least.errors):
        plain = Judgement.of(own, first, reading, center, asked)
    if plain is None or own.out_of_time or fair(least.errors, plain.errors, first, units):
        pairs, reading = scaled, other
    else:
        least = plain
    if pairs[1:]:
        least = least.joined(Judgement.of(own, pairs[1:], reading, center, asked))
    best, half = asked, asked
    known = None if own.out_of_time else least
    typical = pairs[0][1].typical() ** 2
    while max(half.ranks) > 1 and not own.out_of_time:
        half = replace(asked, ranks=tuple(max(1, a // 2) for a in half.ranks))
        found = Judgement.of(own, pairs, reading, center, half)
        if not own.out_of_time and smaller(found.errors, least.errors, typical):
            best, least, known = half, found, found
    if best is not asked:
        why = {"rank": best.ranks, "why": "larger ones predict worse"}
        reading = replace(reading, trail=[*reading.trail, why])
    if reading.units and part.shape != data.shape:
        reading = replace(reading, units=units_of_slices(data, robust=True))
    return reading, best, known


def _with_offsets(
    session: Session,
    data: LocalObservations,
    reading: TensorReading,
    asked: Asked,
    start: Tucker | None,
) -> tuple[TensorFit, TensorReading]:
    """Fit offsets and factors in turn."""

    def fit(reading: TensorReading, last: TensorFit | None) -> TensorFit:
        here = session if session.reading is None else session.with_reading(reading)
        first = start if last is None else last.factors
        left = reading.applied(data)
        return fit_ranks(here, left, asked.ranks, asked.outliers, first, asked.ridge)

    return in_turn(data, reading, 3, fit)
