"""Fit tensors of given ranks, or with a given ridge."""

from __future__ import annotations

from collections.abc import Callable
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
from .tucker import QUICK, Ranks, TensorFit, fit_ranks, smaller, spectra
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
    centers, own = asked.centers, session.with_reading(None).apart(QUICK, 40)

    def judged(pair: tuple[Any, Any], center: str, asked: Asked) -> tuple[Array, Part]:
        """The errors of a fit to most entries on the others, and the fit."""
        fit, test = pair
        this = replace(reading, center=center, offsets=centred(fit, center))
        some, this = _with_offsets(own, fit, this, asked, None)
        errors = this.applied(test).squared_errors(some.factors)
        return errors, Part.of(pair, partial(this.values, some.factors))

    tried = [[judged(pair, center, asked) for center in centers] for pair in pairs]
    if session.out_of_time or not pairs:
        return found
    xp = array_namespace(part.y)
    each = [[list(x) for x in zip(*fits, strict=True)] for fits in zip(*tried, strict=True)]
    best, fits = xp.concat(each[0][0]), each[0][1]

    def errors_of(asked: Asked) -> Array:
        return xp.concat([judged(pair, centers[0], asked)[0] for pair in pairs])

    fewer = _fewer(asked, best, errors_of)
    if fewer is not asked:
        why = {"rank": fewer.ranks, "why": "larger ones predict worse"}
        less = replace(reading, trail=[*reading.trail, why])
        return fit_given(session, data, less, fewer, None, seed)
    for (others, parts), center in zip(each[1:], centers[1:], strict=True):
        if better(xp.concat(others), best, GAIN):
            best, fits = xp.concat(others), parts
            found = with_center(center, None)
    session.shared.parts = fits if part.shape == data.shape else []
    return after(found, opinion(best, pairs, last, robust), data, last, robust)


def _fewer(asked: Asked, errors: Array, judged: Callable[[Asked], Array]) -> Asked:
    """Halve ranks while that predicts better: superfluous components may follow gross errors."""
    while asked.outliers is not None and max(asked.ranks) > 1:
        half = replace(asked, ranks=tuple(max(1, a // 2) for a in asked.ranks))
        others = judged(half)
        if not smaller(others, errors):
            break
        asked, errors = half, others
    return asked


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
