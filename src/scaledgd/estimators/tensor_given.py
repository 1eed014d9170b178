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
from .tensor_units import exact, in_units, preferred
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


def fit_given(
    session: Session,
    data: LocalObservations,
    reading: TensorReading,
    asked: Asked,
    start: Tucker | None,
    seed: int,
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
    pairs = parts_of(part, seed)
    centers, own = asked.centers, session.with_reading(None).apart(QUICK, 40)
    tried = [[_judged(own, pair, reading, center, asked) for center in centers] for pair in pairs]
    if session.out_of_time or not pairs:
        return found
    xp = array_namespace(part.y)
    each = [[list(x) for x in zip(*fits, strict=True)] for fits in zip(*tried, strict=True)]
    best, fits = xp.concat(each[0][0]), each[0][1]
    for (others, parts), center in zip(each[1:], centers[1:], strict=True):
        if better(xp.concat(others), best, GAIN):
            best, fits = xp.concat(others), parts
            found = with_center(center, None)
    session.shared.parts = fits if part.shape == data.shape else []
    units = reading.units if part.shape == data.shape else ()
    return after(found, opinion(best, pairs, last, robust, units), data, last, robust)


def fewer(
    session: Session,
    data: LocalObservations,
    reading: TensorReading,
    asked: Asked,
    seed: int,
    unlike: bool,
) -> tuple[TensorReading, Asked]:
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
    square = data.mean_square()
    part = judged_by(data, asked.ranks, square, seed, robust=True)
    pairs = [] if part is None else parts_of(part, seed)
    # iterates of a part are not models of the whole
    local = isinstance(data, LocalObservations)
    known = reading if local and part is not None and part.shape == data.shape else None
    own, now = session.with_reading(known).apart(QUICK, 40), time.perf_counter()
    own = replace(own, deadline=now + SHARE * (session.deadline - now))  # the fit needs time, too

    def errors_of(asked: Asked, reading: TensorReading, pairs: Pairs) -> Array:
        here = own if known is None else own.with_reading(reading)
        every = [_judged(here, pair, reading, asked.centers[0], asked)[0] for pair in pairs]
        return array_namespace(data.y).concat(every)

    if not pairs or part is None:
        return reading, asked
    units = units_of_slices(part, robust=True) if unlike else ()
    scaled, other = in_units(pairs, units), replace(reading, units=units)
    best, least, half = asked, errors_of(asked, other, scaled), asked
    if units and not own.out_of_time and not exact(least):
        errors = errors_of(asked, reading, pairs)
        if own.out_of_time or preferred(least, errors, pairs, units, robust=True):
            pairs, reading = scaled, other
        else:
            least = errors
    else:
        pairs, reading = scaled, other
    while max(half.ranks) > 1 and not own.out_of_time:
        half = replace(asked, ranks=tuple(max(1, a // 2) for a in half.ranks))
        errors = errors_of(half, reading, pairs)
        if not own.out_of_time and smaller(errors, least):
            best, least = half, errors
    if best is not asked:
        why = {"rank": best.ranks, "why": "larger ones predict worse"}
        reading = replace(reading, trail=[*reading.trail, why])
    if reading.units and part.shape != data.shape:
        reading = replace(reading, units=units_of_slices(data, robust=True))
    return reading, best


def _judged(
    session: Session, pair: Any, reading: TensorReading, center: str, asked: Asked
) -> tuple[Array, Part]:
    """The errors of a fit to most entries on the others, and the fit."""
    fit, test = pair
    reading = replace(reading, center=center, offsets=centred(fit, center))
    some, reading = _with_offsets(session, fit, reading, asked, None)
    errors = reading.applied(test).squared_errors(some.factors)
    return errors, Part.of(pair, partial(reading.values, some.factors))


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
