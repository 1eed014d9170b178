"""Divide slices of a tensor by their units, if that predicts better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from array_api_compat import array_namespace

from .comparing import better
from .local_observations import LocalObservations
from .robust import Outliers
from .session import Session
from .tensor_model import Offsets, TensorReading, divided, units_of_slices
from .tensor_ways import GAIN
from .tucker import QUICK, Chosen, choose_ranks, fit_ranks, judged, smaller
from .vouching import Pairs

Array = Any

EXACT = 1e-10
"""Squared error, in units of slices, below which a prediction is exact."""

MUCH = 0.5
"""Share by which errors in units must be smaller if those without units are not smaller."""


def choose_units(
    session: Session,
    data: LocalObservations,
    reading: TensorReading,
    outliers: Outliers | None,
    seed: int,
    unlike: bool,
) -> tuple[TensorReading, Chosen]:
    """Choose equal ranks, and whether to divide slices by their units.

    Parameters
    ----------
    session : Session
    data : LocalObservations
        Divided by their magnitude.
    reading : TensorReading
    outliers : None, "auto" or a fraction
    seed : int
    unlike : bool
        Whether slices of the last mode may have different units.
    """
    units = units_of_slices(data, robust=True) if unlike else ()
    if not units:
        return reading, choose_ranks(session.with_reading(reading), data, outliers, seed)
    other = replace(reading, units=units)
    here, scaled = session.with_reading(other), data.standardised(units)
    found = choose_ranks(here, scaled, outliers, seed)
    found = replace(found, trail=[{**step, "scale": "columns"} for step in found.trail])
    if found.errors is None:
        return reading, found
    if session.out_of_time or exact(found.errors):
        return other, found
    pairs, without = data.split(0.1, seed), session.with_reading(reading)
    fit, test = pairs[0]
    plain = fit_ranks(without.apart(QUICK, 40), fit, found.ranks, outliers)
    if fair(found.errors, test.squared_errors(plain.factors), pairs, units):
        return other, found
    best = choose_ranks(without, data, outliers, seed)
    trail = [*found.trail, *best.trail]
    if fair(found.errors, best.errors, pairs, units):
        return other, replace(found, trail=trail)
    return reading, replace(best, trail=trail)


def in_units(pairs: Pairs, units: Offsets) -> Pairs:
    """Return pairs of observations divided by the units of slices."""
    return [(divided(fit, units), divided(test, units)) for fit, test in pairs]


def preferred(errors: Array, least: Array, pairs: Pairs, units: Offsets) -> bool:
    """Return whether a fit in units of slices predicts better in these, and not worse otherwise.

    If it seems slightly worse otherwise, it must be much better in units.

    Parameters
    ----------
    errors : array of shape (m,)
        Its squared errors, in these units.
    least : array of shape (m,)
        The squared errors of a fit without units.
    pairs : list of pairs of LocalObservations
        Without units.
    units : tuple of arrays or None, one per mode
    """
    own, plain = _both(errors, least, pairs, units)
    xp = array_namespace(errors)
    gain = GAIN if float(xp.mean(plain)) <= float(xp.mean(least)) else MUCH
    return better(errors, own, gain) and not better(least, plain)


def fair(errors: Array, least: Array, pairs: Pairs, units: Offsets) -> bool:
    """Return whether a robust fit in units of slices predicts no worse than one without.

    It is preferred then: gross errors of small slices are small beside those of large ones.

    Parameters
    ----------
    errors, least, pairs, units
        As for `preferred`.
    """
    own, plain = _both(errors, least, pairs, units)
    return not smaller(own, errors) and not smaller(least, plain)


def _both(errors: Array, least: Array, pairs: Pairs, units: Offsets) -> tuple[Array, Array]:
    """Errors without units, in units, and errors in units, without."""
    ones = [divided(test.with_values(0 * test.y + 1), units).flat for _, test in pairs]
    squares = 1 / array_namespace(errors).concat(ones) ** 2
    return least / squares, errors * squares


def exact(errors: Array) -> bool:
    """Return whether most of the squared errors, in units of slices, are rounding."""
    return judged(errors) <= EXACT
