"""Fit tensors of given ranks, or with a given ridge."""

from __future__ import annotations

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
from .tensor_model import TensorReading, centred
from .tensor_vouching import after, judged_by, opinion
from .tensor_ways import GAIN, in_turn
from .tucker import QUICK, Ranks, TensorFit, fit_ranks, spectra
from .vouching import parts_of

Array = Any


def with_ridge(
    session: Session,
    data: LocalObservations,
    found: tuple[TensorFit, TensorReading],
    ridge: float,
) -> tuple[TensorFit, TensorReading]:
    """Fit a chosen model again, with a given ridge."""
    fit, reading = found
    F, reading = spectra(fit.factors)[0], replace(reading, fold=None)
    here = session.with_reading(reading)
    return fit_ranks(here, reading.applied(data), F.ranks, None, F, ridge), reading


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
        Divided by their magnitude.
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
    tried: list[list[Array]] = [[] for _ in asked.centers]
    parts: list[list[Part]] = [[] for _ in asked.centers]
    for fit, test in pairs:
        own = session.with_reading(None).apart(QUICK, 40)
        for errors, fits, center in zip(tried, parts, asked.centers, strict=True):
            this = replace(reading, center=center, offsets=centred(fit, center))
            some, this = _with_offsets(own, fit, this, asked, None)
            errors.append(this.applied(test).squared_errors(some.factors))
            fits.append(Part.of((fit, test), partial(this.values, some.factors)))
    if session.out_of_time or not pairs:
        return found
    xp = array_namespace(part.y)
    best, fits = xp.concat(tried[0]), parts[0]
    for errors, others, center in zip(tried[1:], parts[1:], asked.centers[1:], strict=True):
        if better(xp.concat(errors), best, GAIN):
            best, fits = xp.concat(errors), others
            found = with_center(center, None)
    session.shared.parts = fits if part.shape == data.shape else []
    return after(found, opinion(best, pairs, last, robust), data, last, robust)


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
