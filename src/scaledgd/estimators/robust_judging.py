"""Whether to trust a fit of a table with gross errors that is expensive to fit again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .comparing import better
from .local_observations import LocalObservations
from .matrix_model import TableFit
from .plans import Reading
from .robust import only_some
from .scaling import table_factors
from .units import robust_column_units
from .vouching import middle_errors, squared

Array = Any

GROSS = 9.0
"""Squared error beyond which a held-out entry may be a gross error itself."""

PART = 50_000
"""Number of entries in the slices by which a large table is judged."""

WORSE = 0.1
"""Share of the squared errors by which medians must be better to overrule a fit."""


def bounded(squares: Array) -> Array:
    """Return squared errors, bounded by that of a gross error."""
    return array_namespace(squares).where(squares < GROSS, squares, GROSS + 0 * squares)


def useless(data: LocalObservations, found: TableFit, seed: int) -> bool:
    """Return whether column medians predict entries of some slices better than a fit.

    The slices are those of the long side. Each is solved again from most of its entries, given the
    factor of the short side, which hardly depends on the others.

    Parameters
    ----------
    data : LocalObservations
        In their own units.
    found : TableFit
    seed : int
    """
    F, threshold = table_factors(found.state), found.threshold
    if not F.rank or threshold is None:
        return False
    mode = 0 if data.shape[0] >= data.shape[1] else 1
    count = min(data.shape[mode], max(1, PART * data.shape[mode] // data.size))
    places = np.random.default_rng(seed).choice(data.shape[mode], count, replace=False)
    chosen = array_namespace(data.y).asarray(np.sort(places), device=device(data.y))
    some = data.slices(mode, chosen)
    unit = robust_column_units(some).scale
    reading = only_slices(found.reading, mode, chosen)
    for fit, test in some.split(0.1, seed):
        part = only_some(F, mode, chosen)
        solved = reading.apply(fit).rows_without_outliers(part, mode, threshold)
        errors = bounded(squared(test, reading.values(solved, test.coordinates), unit))
        medians = bounded(middle_errors([(fit, test)], unit, robust=True))
        return better(medians, errors, WORSE)
    return False


def only_slices(reading: Reading, mode: int, chosen: Array) -> Reading:
    """How some rows (or columns) are read."""
    xp = array_namespace(chosen)

    def some(x: Array | None) -> Array | None:
        return None if x is None else xp.take(x, chosen)

    if mode == 0:
        return replace(reading, scales=replace(reading.scales, rows=some(reading.scales.rows)))
    scales, units = replace(reading.scales, columns=some(reading.scales.columns)), reading.units
    if units is not None:
        units = replace(units, offset=some(units.offset), scale=some(units.scale))
    return replace(reading, scales=scales, units=units)
