"""Whether estimates depend on a few of the entries: the jackknife.

Fits to most of the entries judge a fit to all of them by the entries that they leave out. They also
show how much its estimates would change: if m entries are fitted and k left out, the variance of an
estimate is about m/k times the square of its change. Most held-out entries lie where there are many
entries; this variance is known wherever something is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..factors import LowRank
from .constants import Levels, levelled
from .local_observations import LocalObservations
from .packing import host
from .robust import OWN, concentrated
from .tucker import PLENTY, degrees
from .vouching import own_units

Array = Any
Index = tuple[Array, ...]

SAMPLE = 2000
"""Number of entries whose estimates are compared."""

FEW = 20
"""Number of missing entries below which all are compared, observed or not."""

EXACT = 1e-12
"""Noise variance, in units of the fit, below which entries are reproduced."""

LIMIT = 2.0
"""Variance of estimates, as a share of that of the data, above which they are unsteady.

At 1, column means would be as good. But fits to most of the entries are brief, and differ for that
reason, too.
"""


@dataclass(frozen=True, eq=False)
class Part:
    """A fit to most of the entries.

    Attributes
    ----------
    estimates : callable
        Returns its estimates at coordinates, in the units of the data.
    ratio : float
        The number of its entries, divided by the number of those left out.
    levels : tuple of arrays or None, one per mode
        The values of constant slices, which replace these estimates.
    """

    estimates: Callable[[Index], Array]
    ratio: float
    levels: Levels = ()

    def values(self, index: Index) -> Array:
        """Return the estimates at coordinates."""
        return levelled(self.estimates(index), self.levels, index)

    @classmethod
    def of(
        cls, pair: tuple[LocalObservations, LocalObservations], estimates: Callable[[Index], Array]
    ) -> Part:
        """Return the fit to the first of a pair of observations."""
        fit, test = pair
        return cls(estimates, fit.size / max(1, test.size))


def reproduces(model: Any) -> bool:
    """Return whether a model reproduces so many entries that it speaks for itself.

    Parameters
    ----------
    model : MatrixModel or TensorModel
    """
    rank, shape = model.attributes["rank_"], model.observations.shape
    free = degrees(rank if isinstance(rank, tuple) else (rank,) * 2, shape)
    if not model.noise <= EXACT or model.observations.size < PLENTY * free:
        return False
    factors = model.attributes["factors_"]
    # a component that belongs to one row or column may be anything elsewhere
    return not (isinstance(factors, LowRank) and concentrated(factors, OWN))


def unsteady(
    values: Callable[[Index], Array],
    data: LocalObservations,
    parts: list[Part],
    accepted: LocalObservations | None = None,
) -> bool:
    """Return whether the estimates vary as much as the data if some entries are left out.

    Parameters
    ----------
    values : callable
        Returns the estimates of the fit to all entries at coordinates.
    data : LocalObservations
    parts : list of Part
        Fits to most of the entries.
    accepted : LocalObservations, optional
        The entries that are not gross errors, if there may be some. All estimates count then, not
        only those of missing entries.
    """
    if not parts or not data.size:
        return False
    places, size = _places(data, accepted is not None), data.magnitude()
    xp, there = array_namespace(data.y), device(data.y)
    index = tuple(xp.asarray(i, device=there) for i in places)
    unit = host(_units(data, accepted))[places[-1]] / size
    estimates = host(values(index)) / size
    squares = np.zeros(len(unit))
    for part in parts:
        change = host(part.values(index)) / size - estimates
        squares += part.ratio * change**2 / len(parts)
    # in the units of the data, and in those of columns, which may be much smaller
    plain, own = np.mean(squares) / np.mean(unit**2), np.mean(squares / unit**2)
    return bool(not max(plain, own) <= LIMIT)


def _units(data: LocalObservations, accepted: LocalObservations | None) -> Array:
    """Deviations of columns; with gross errors, of most of their entries or of accepted ones.

    A column that hardly varies but for some peaks has the deviation of these, if they are accepted.
    """
    last = len(data.shape) - 1
    if accepted is None:
        return own_units(data, last)
    most, known = own_units(data, last, robust=True), own_units(accepted, last)
    return array_namespace(most).where(most > known, most, known)


def _places(data: LocalObservations, everywhere: bool) -> tuple[np.ndarray[Any, Any], ...]:
    """Some of the missing entries; of all, if few are missing."""
    rng, cells = np.random.default_rng(0), math.prod(data.shape)
    missing = cells - data.size
    if everywhere or missing < FEW:
        flat = rng.integers(cells, size=SAMPLE) if cells > SAMPLE else np.arange(cells)
    else:
        known = np.ravel_multi_index(tuple(map(host, data.coordinates)), data.shape)
        if cells <= 10 * data.size:
            unseen = np.ones(cells, dtype=bool)
            unseen[known] = False
            flat = np.flatnonzero(unseen)
            flat = flat[rng.integers(missing, size=SAMPLE)] if missing > SAMPLE else flat
        else:
            flat = np.setdiff1d(rng.integers(cells, size=SAMPLE), known)
    return np.unravel_index(flat, data.shape)
