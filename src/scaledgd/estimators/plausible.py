"""Values that could have been observed: whole numbers, digits and bounds of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

Array = Any

MOST_PLACES = 8
"""Largest number of decimal places; values with more were not rounded."""
ANY = MOST_PLACES + 1
"""Number of places that stands for values that were not rounded."""
STEPS = 50
"""Largest number of steps of a scale: one to five stars has four, or eight half steps."""
PER_STEP = 5
"""Values per step, and at each end, that are needed to recognise a scale."""


@dataclass(frozen=True, eq=False)
class Plausible:
    """The values that the columns of a table take.

    Attributes
    ----------
    low, high : float arrays of shape (columns,)
        Bounds; infinite where there are none.
    places : integer array of shape (columns,)
        Decimal places; `ANY` where values are not rounded.
    """

    low: Array
    high: Array
    places: Array

    def values(self, estimates: Array, columns: Any = slice(None), rounded: bool = True) -> Array:
        """Return the values closest to the estimates that the columns could take.

        Parameters
        ----------
        estimates : array of shape (..., columns), or (m,) with `columns`
        columns : integer array of shape (m,), optional
            The column of each estimate.
        rounded : bool
            Whether to round to the digits of the columns; otherwise only bounds are applied.
        """
        xp, there = array_namespace(estimates), device(estimates)
        low, high, factor, whole = (
            xp.asarray(x[columns], device=there)
            for x in (self.low, self.high, 10.0**self.places, self.places < ANY)
        )
        if rounded:
            estimates = xp.where(whole, xp.round(estimates * factor) / factor, estimates)
        return xp.minimum(xp.maximum(estimates, low), high) + 0.0  # no −0


class ColumnValues:
    """Collects the values that the columns of a table take, a few rows at a time.

    Parameters
    ----------
    columns : int

    Examples
    --------
    >>> import numpy as np
    >>> from scaledgd.estimators.plausible import ColumnValues
    >>> seen = ColumnValues(2)
    >>> seen.add_rows(np.array([[1.0, 0.25], [2.0, np.nan], [4.0, 0.5]]))
    >>> seen.found().values(np.array([[2.7, -0.018]]))
    array([[3., 0.]])
    """

    def __init__(self, columns: int) -> None:
        self.count = np.zeros(columns, dtype=np.int64)
        self.low, self.high = np.full(columns, np.inf), np.full(columns, -np.inf)
        self.places = np.zeros(columns, dtype=np.int64)
        self.at_low, self.at_high = (np.zeros(columns, dtype=np.int64) for _ in range(2))

    def add_rows(self, values: Array) -> None:
        """Add rows; NaN is ignored."""
        seen = ~np.isnan(values)
        self.count += seen.sum(axis=0)
        low = np.min(values, axis=0, initial=np.inf, where=seen)
        high = np.max(values, axis=0, initial=-np.inf, where=seen)
        self._ends(low, (values == low).sum(axis=0), high, (values == high).sum(axis=0))
        for j in np.flatnonzero(self.places < ANY).tolist():
            self.places[j] = places_of(values[seen[:, j], j], int(self.places[j]))

    def add_entries(self, columns: Array, values: Array) -> None:
        """Add single entries, given the column of each."""
        n = len(self.count)
        self.count += np.bincount(columns, minlength=n)
        low, high = np.full(n, np.inf), np.full(n, -np.inf)
        np.minimum.at(low, columns, values)
        np.maximum.at(high, columns, values)
        at_low, at_high = (
            np.bincount(columns[values == end[columns]], minlength=n) for end in (low, high)
        )
        self._ends(low, at_low, high, at_high)
        left = np.arange(len(values))
        for places in range(ANY + 1):
            left = left[self.places[columns[left]] <= places]
            if places == ANY or not len(left):
                break
            left = left[_unlike(values[left], places)]
            self.places[np.unique(columns[left])] = places + 1

    def add(self, other: ColumnValues) -> None:
        """Add what another collector saw of the same columns."""
        self.count += other.count
        self._ends(other.low, other.at_low, other.high, other.at_high)
        self.places = np.maximum(self.places, other.places)

    def _ends(self, low: Array, at_low: Array, high: Array, at_high: Array) -> None:
        """Update the least and the largest values, and how often they occur."""
        old = np.where(self.low <= low, self.at_low, 0)
        self.at_low = old + np.where(low <= self.low, at_low, 0)
        old = np.where(self.high >= high, self.at_high, 0)
        self.at_high = old + np.where(high >= self.high, at_high, 0)
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)

    def some(self, columns: list[int]) -> ColumnValues:
        """Return what was seen of some columns."""
        part = ColumnValues(len(columns))
        for name in ("count", "places", "low", "high", "at_low", "at_high"):
            setattr(part, name, getattr(self, name)[columns])
        return part

    def found(self) -> Plausible:
        """Return the bounds and digits of columns.

        A column without a negative value stays nonnegative. If a column, or the table as a whole,
        takes few values, each of them many times, including the least and the largest, it is a
        scale, and its ends are bounds. The extremes of measurements occur once or twice.
        """
        low, high, places = self.low, self.high, self.places
        whole = self._pooled()
        if whole is not None and whole._is_scale()[0]:
            n = len(low)
            ends = np.full(n, whole.low[0]), np.full(n, whole.high[0])
            return Plausible(*ends, np.full(n, whole.places[0]))
        scale = self._is_scale()
        bottom = np.where(low >= 0, 0.0, -np.inf)
        return Plausible(np.where(scale, low, bottom), np.where(scale, high, np.inf), places.copy())

    def _pooled(self) -> ColumnValues | None:
        """All columns as one; None if nothing was seen."""
        if not self.count.any():
            return None
        one, seen = ColumnValues(1), self.count > 0
        one.count[0], one.places[0] = self.count.sum(), self.places[seen].max()
        one.low[0], one.high[0] = self.low[seen].min(), self.high[seen].max()
        one.at_low[0] = self.at_low[seen & (self.low == one.low[0])].sum()
        one.at_high[0] = self.at_high[seen & (self.high == one.high[0])].sum()
        return one

    def _is_scale(self) -> Array:
        """Which columns are scales."""
        with np.errstate(invalid="ignore", over="ignore"):
            steps = (self.high - self.low) * 10.0**self.places
            few = (self.places < ANY) & (steps <= STEPS) & (steps > 0)
            many = self.count >= PER_STEP * (np.where(few, steps, 0) + 1)
        return few & many & (self.at_low >= PER_STEP) & (self.at_high >= PER_STEP)


def places_of(values: Array, least: int = 0) -> int:
    """Return the number of decimal places of values, at least `least`; `ANY` if many.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledgd.estimators.plausible import places_of
    >>> places_of(np.array([1.5, 2.25])), places_of(np.array([3.0]))
    (2, 0)
    """
    for places in range(least, ANY):
        values = values[_unlike(values, places)]
        if not len(values):
            return places
    return ANY


def _unlike(values: Array, places: int) -> Array:
    """Which values have more decimal places."""
    factor = 10.0**places
    wide = values.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = (np.rint(wide * factor) / factor).astype(values.dtype)
    return (rounded != values) & np.isfinite(wide)
