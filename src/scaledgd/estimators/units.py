"""Units of columns: the offset and scale that are removed from a column before a fit.

A fit has one noise level, one threshold, and one sum of errors to choose by. So columns of very
different scale, such as a temperature and a price, are brought to common units first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .local_observations import LocalObservations
from .observations import Observations
from .packing import host, packable

Array = Any

APART = 10.0
"""Ratio of deviations above which columns count as unlike."""
FAR_APART = 30.0
"""The same if units are used without being tried: a single normal component has a ratio of 13."""
MUCH = 6.0
"""Ratio of the unlikeness of columns to that of rows of alike columns that is large."""
GROSS = 1e8
"""Robust deviations beyond which an entry is clipped before a fit that rejects errors."""
SEVERAL = 5
"""Number of entries that a column needs for its deviation to count."""
MANY = 10
"""Number of entries that it needs for a median deviation, which depends more on chance."""
FEW = 3
"""Entries that it needs if no column has several: chance alone stays below `APART` then."""


@packable
@dataclass(frozen=True, eq=False)
class Units:
    """The offsets and scales of columns before a fit.

    Attributes
    ----------
    offset, scale : arrays of shape (n2,)
    scaled : bool
        Whether columns are divided by their deviation. Columns with their own noise levels are
        divided by these, too, which is not a scaling of the data.
    """

    offset: Array
    scale: Array
    scaled: bool = True

    @property
    def centred(self) -> bool:
        """Whether columns have offsets."""
        return self.scaled or bool(array_namespace(self.offset).any(self.offset != 0))

    def apply(self, data: LocalObservations) -> LocalObservations:
        """Return the data in these units."""
        return data.shifted((None, self.offset)).standardised((None, self.scale))

    def undo(self, values: Array, columns: Array | None) -> Array:
        """Return values in the units of the data.

        Parameters
        ----------
        values : array of shape (m,), or (n, n2) with columns=None
        columns : integer array of shape (m,), optional
        """
        if columns is None:
            return values * self.scale + self.offset
        xp = array_namespace(values)
        return values * xp.take(self.scale, columns) + xp.take(self.offset, columns)


def unlike_columns(data: LocalObservations, robust: bool = False) -> bool:
    """Whether the deviations of the columns differ so much that one sum of errors is not enough.

    Columns also look unlike if rows are: a few large rows then decide their deviations. So they
    must be more unlike than the rows. Rows look unlike, too, if a few large columns decide their
    deviations. So it is enough to be much more unlike than rows whose columns are alike.

    Parameters
    ----------
    data : LocalObservations
    robust : bool
        Whether some entries are grossly wrong, so that deviations are medians.
    """
    data = data.scaled(data.magnitude())  # squares of huge numbers overflow
    ratio = _ratio(np.sqrt(_variances(data, 1, robust)))
    if ratio <= (FAR_APART if robust else APART):
        return False
    if ratio > _ratio(np.sqrt(_variances(data, 0, robust))):
        return True
    units = robust_column_units(data) if robust else column_units(data)
    return ratio > MUCH * _ratio(np.sqrt(_variances(units.apply(data), 0, robust)))


def column_units(data: Observations) -> Units:
    """Return means and standard deviations of the columns."""
    size = data.magnitude()
    data = data.scaled(size)  # squares of huge numbers overflow
    columns = _variances(data, 1)
    counts, squares = host(data.counts(1)), host(data.squares(1))
    # shrunk towards a typical variance with the weight of one extra observation
    typical = float(np.median(columns)) if columns.size else 1.0
    scale = np.sqrt((squares + typical) / (counts + 1))
    return Units(size * data.means(1), size * _like(scale, data))


def robust_column_units(data: Observations) -> Units:
    """Return medians and median deviations of the columns."""
    size = data.magnitude()
    data = data.scaled(size)  # squares of huge numbers overflow
    counts = host(data.counts(1))
    squares = host(data.squares(1, robust=True)) / np.maximum(counts, 1)
    beyond = np.sqrt(squares) / 1.4826
    some = beyond[beyond > 0]
    # a column that is constant apart from its errors gets a typical deviation
    typical = float(np.median(some)) if some.size else 1.0
    scale = np.where(beyond > 0, beyond, typical)
    return Units(size * data.medians(1), size * _like(scale, data))


def tamed(data: LocalObservations) -> LocalObservations:
    """Return data in which gross errors are small enough not to swamp other values in rounding.

    Entries beyond `GROSS` robust deviations of their column are clipped there. They are still
    rejected.
    """
    xp, (middle, beyond) = array_namespace(data.y), data.spreads(1)
    some = host(beyond)[host(beyond) > 0]
    if not some.size:
        return data
    # a column that is constant apart from its errors gets a typical deviation
    reach = GROSS * xp.where(beyond > 0, beyond, float(np.median(some)) + 0 * beyond)
    if data.complete and len(data.shape) == 2:  # the extremes of columns are enough to know
        ends = xp.min(data.y, axis=0), xp.max(data.y, axis=0)
        if bool(xp.all((ends[0] >= middle - reach) & (ends[1] <= middle + reach))):
            return data
    low, high = ((None, middle + sign * reach) for sign in (-1, 1))
    return data.bounded(low, high) if data.outside(low, high) else data


def _like(x: Any, data: Observations) -> Array:
    y = data.example
    return array_namespace(y).asarray(x, dtype=y.dtype, device=device(y))


def _variances(data: Observations, mode: int, robust: bool = False) -> Any:
    """The variances of the slices of a mode that have several entries and are not constant."""
    counts = host(data.counts(mode))
    squares = data.squares(mode, robust=True) if robust else data.squares(mode)
    variance = host(squares) / np.maximum(counts, 1)
    enough = max(FEW, min(SEVERAL, int(np.max(counts, initial=0)))) if mode == 1 else SEVERAL
    enough = MANY if robust else enough
    return variance[(counts >= enough) & (variance > 0)]


def _ratio(deviations: Any) -> float:
    """The ratio of large deviations to small ones."""
    if not deviations.size:
        return 1.0
    low, high = np.quantile(deviations, [0.1, 0.9])
    return float(high / low)
