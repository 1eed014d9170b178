"""Whether to trust a fit of a tensor, and what replaces it if not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from array_api_compat import array_namespace

from ..factors import Tucker
from .comparing import better
from .compression import unfolded
from .constants import varying_at
from .local_observations import LocalObservations
from .observations import MULTIPLE
from .tensor_model import Offsets, TensorReading, centred, undone
from .tucker import PLENTY, TensorFit, degrees, possible
from .vouching import DOUBT, OFFSETS, Pairs, middles, objection

Array = Any

LARGE = 500_000
"""Number of entries above which a fit of given ranks is judged by the densest part."""

AMPLE = 9
"""Entries per degree of freedom of the densest part above which a fifth of them is enough."""

GROSS = 20.0
"""Squared error, in units of their median, beyond which an entry may be a gross error itself: three
standard deviations of normal numbers."""


def opinion(errors: Array, pairs: Pairs, center: str, robust: bool, units: Offsets = ()) -> str:
    """Return the objection of held-out entries to a fit, or "".

    Entries of constant slices say nothing about it, because they are filled with the constant.

    Parameters
    ----------
    errors : array of shape (m,)
        Squared errors of the fit at the held-out entries of all pairs.
    pairs : list of pairs of LocalObservations
        In the same units.
    center : {"none", "rows", "columns", "both"}
        The offsets that would replace the fit.
    robust : bool
        Whether some entries are grossly wrong.
    units : tuple of arrays or None, one per mode
        The units of slices that errors and pairs were divided by.
    """
    xp = array_namespace(errors)
    found = [_middle_errors(fit, test, robust) for fit, test in pairs]
    means, alone = (xp.concat(list(some)) for some in zip(*found, strict=True))
    offsets = xp.concat([_offset_errors(*pair, center, robust, units) for pair in pairs])
    # slices of the last mode may have different units, so all count equally
    unit = xp.concat([_own_squares(fit, test) for fit, test in pairs])
    varying = xp.concat([varying_at(fit, test) for fit, test in pairs])
    if bool(xp.any(varying)) and not bool(xp.all(varying)):
        every = (errors, means, offsets, unit, alone)
        errors, means, offsets, unit, alone = (e[varying] for e in every)
    if robust:
        ordered = xp.sort(means)
        limit = GROSS * max(float(ordered[ordered.shape[0] // 2]), 1e-300)
        # if medians are close, there is no gross error, and a fit that is far off is wrong
        errors = xp.where((errors < limit) | (means < limit), errors, limit + 0 * errors)
        means, offsets = (xp.where(e < limit, e, limit + 0 * e) for e in (means, offsets))
    if better(offsets, errors):
        return OFFSETS
    # entries that share their fibre with no other say nothing about means
    told = xp.where(alone, errors, means)
    if objection(errors, told, unit) == DOUBT:
        return DOUBT
    return objection(errors, means, unit)


def _own_squares(fit: LocalObservations, test: LocalObservations) -> Array:
    """The variance of the slice of the last mode that an entry lies in; a typical one if none."""
    xp, last = array_namespace(fit.y), len(fit.shape) - 1
    counts = fit.counts(last)
    squares = fit.squares(last) / xp.where(counts > 1, counts, xp.ones_like(counts))
    known = (counts >= 4) & (squares > 1e-20)
    typical = float(xp.mean(squares[known])) if bool(xp.any(known)) else 1.0
    return xp.take(xp.where(known, squares, typical + 0 * squares), test.coordinates[last])


def _middle_errors(
    fit: LocalObservations, test: LocalObservations, robust: bool
) -> tuple[Array, Array]:
    """Squared errors of the means (or medians) of fibres of mode 0, and which have no entry."""
    table, other = unfolded(fit, 0), unfolded(test, 0)
    xp = array_namespace(test.y)
    if table.shape[1] > 4 * fit.size:
        off = test.flat - _typical(fit, robust)
        return off * off, off == off
    fibre = other.coordinates[1]
    off = test.flat - xp.take(middles(table, robust), fibre)
    return off * off, xp.take(table.counts(1), fibre) == 0


def _offset_errors(
    fit: LocalObservations, test: LocalObservations, center: str, robust: bool, units: Offsets
) -> Array:
    """Squared errors of offsets alone, which are additive before the data are divided by units."""
    fit, test = undone(fit, units), undone(test, units)
    left = test.shifted(centred(fit, center, robust))
    if center == "none":
        left = left.with_values(left.y - _typical(fit, robust))
    off = left.standardised(units).flat
    return off * off


def _typical(data: LocalObservations, robust: bool) -> float:
    """The mean of all entries, or their median."""
    return float(array_namespace(data.y).sort(data.flat)[data.size // 2]) if robust else data.mean()


def offsets_alone(
    data: LocalObservations, reading: TensorReading, center: str, robust: bool, why: str
) -> tuple[TensorFit, TensorReading]:
    """Return offsets; if there are none, a constant.

    Parameters
    ----------
    data : LocalObservations
        Divided by their magnitude and the units of the reading.
    reading : TensorReading
    center : {"none", "rows", "columns", "both"}
    robust : bool
        Whether some entries are grossly wrong.
    why : str
    """
    xp, data = array_namespace(data.y), undone(data, reading.units)
    offsets, ones = centred(data, center, robust), (1,) * len(data.shape)
    trail = [*reading.trail, {"rank": ones, "why": why}]
    reading = TensorReading(reading.size, offsets, trail, center)
    left = data.shifted(offsets)
    even = tuple(xp.zeros_like(left.counts(k))[:, None] + 1 for k in range(len(data.shape)))
    core = xp.reshape(0 * even[0][0, :], ones)
    if center == "none":
        core = core + _typical(left, robust)
    F = Tucker(even, core)
    noise = left.residual(F).mean_square()
    limit = MULTIPLE * left.residual_scale(F) if robust else None
    return TensorFit(F, noise, limit), reading


def after(
    found: tuple[TensorFit, TensorReading],
    against: str,
    data: LocalObservations,
    center: str,
    robust: bool,
) -> tuple[TensorFit, TensorReading]:
    """Return a fit, or what replaces it if there is an objection.

    Parameters
    ----------
    found : TensorFit and TensorReading
    against : str
        The objection, or "".
    data : LocalObservations
        Divided by their magnitude.
    center : {"none", "rows", "columns", "both"}
    robust : bool
    """
    fit, reading = found
    if against == OFFSETS:
        plain = replace(reading, slice_scale=None, fold=None)
        return offsets_alone(data, plain, center, robust, OFFSETS)
    if against:
        doubt = {"rank": fit.factors.ranks, "why": against}
        reading = replace(reading, trail=[*reading.trail, doubt])
    return fit, reading


def judged_by(
    data: LocalObservations, ranks: tuple[int, ...], noise: float, seed: int, robust: bool = False
) -> LocalObservations | None:
    """Return the data that judge a fit of given ranks; None if no judgement is needed or possible.

    A fit that reproduces the data needs none; a robust fit only if there are many accepted entries.

    Parameters
    ----------
    data : LocalObservations
    ranks : tuple of int
    noise : float
        The variance of the residual.
    seed : int
    robust : bool
        Whether some entries are grossly wrong.
    """
    free = degrees(possible(ranks, data.shape), data.shape)
    exact = noise <= 1e-12 * data.mean_square() and (not robust or data.size >= PLENTY * free)
    if exact or not math.isfinite(noise):
        return None
    if data.size <= LARGE:
        return data.core(LARGE, seed)  # all of them
    for most, each in ((LARGE // 5, AMPLE), (LARGE, PLENTY)):
        part = data.core(most, seed)
        if part.size >= each * degrees(possible(ranks, part.shape), part.shape):
            return part.on_host()
    return None
