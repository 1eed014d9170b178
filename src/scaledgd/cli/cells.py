"""Observed cells, and the units of columns."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

Array = Any

APART = 10.0
"""How many times as large a deviation must be for columns to be unlike."""
SEVERAL = 5
"""Cells from which on the deviation of a column says something."""


@dataclass(frozen=True, eq=False)
class Triplets:
    """Observed cells: coordinates, one array per mode, and values."""

    index: tuple[Array, ...]
    values: Array
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.values)

    def some(self, chosen: Array) -> Triplets:
        return replace(self, index=tuple(i[chosen] for i in self.index), values=self.values[chosen])

    @classmethod
    def of(cls, values: Array) -> Triplets:
        """The cells of an array that are not NaN."""
        seen = ~np.isnan(values)
        index = np.unravel_index(np.flatnonzero(seen), values.shape)
        return cls(tuple(i.astype(np.int32) for i in index), values[seen], values.shape)

    @cached_property
    def columns(self) -> Array:
        """The number of the column of every cell; of tensors, of the fibre along mode 0."""
        return np.ravel_multi_index(tuple(i for i in self.index[1:]), self.shape[1:])


@dataclass(frozen=True, eq=False)
class Units:
    """What columns are centred at and divided by before a fit.

    A fit has one noise, one threshold, and one sum of errors to choose by: so columns in
    other units than their neighbours, a temperature beside a price, are brought to common
    ones.
    """

    offset: Array
    scale: Array
    scaled: bool = True

    @classmethod
    def usual(cls, data: Triplets) -> Units | None:
        """Means and standard deviations; None where columns are alike."""
        columns, n = data.index[1], data.shape[1]
        counts = np.bincount(columns, minlength=n)
        mean = np.bincount(columns, data.values, minlength=n) / np.maximum(counts, 1)
        off = data.values - mean[columns]
        variance = np.bincount(columns, off * off, minlength=n) / np.maximum(counts, 1)
        several = variance[(counts >= SEVERAL) & (variance > 0)]
        if not _unlike(np.sqrt(several)):
            return None
        # drawn to a typical one, as if by one more cell
        typical = float(np.median(several))
        return cls(mean, np.sqrt((counts * variance + typical) / (counts + 1)))

    @classmethod
    def robust(cls, data: Triplets | Array, center: str, scale: str) -> Units | None:
        """Medians, and medians of what is beyond them; None where neither is asked for."""
        middle = _medians(data)
        plain = cls(middle, np.ones_like(middle), False)
        beyond = _medians(plain.applied(data), np.abs)
        some = beyond[beyond > 0]
        typical = float(np.median(some)) if some.size else 1.0
        centred = center == "columns" or (center == "auto" and np.ptp(middle) > APART * typical)
        scaled = scale == "columns" or (scale == "auto" and _unlike(some))
        if not centred and not scaled:
            return None
        # of a column that is constant but for its errors, a typical deviation
        divisor = np.where(beyond > 0, beyond, typical) if scaled else plain.scale
        return cls(middle if centred else np.zeros_like(middle), divisor, scaled)

    def finer(self, data: Triplets | Array, model: Any) -> Units:
        """Columns divided by what a model leaves of them, but for a few times more or less."""
        data = self.applied(data)
        if isinstance(data, Triplets):
            off: Any = replace(data, values=data.values - model.predict_entries(data.index))
        else:
            off = data - model.reconstruct()
        beyond = _medians(off, np.abs)
        typical = float(np.median(beyond[beyond > 0])) if (beyond > 0).any() else 1.0
        return replace(self, scale=self.scale * np.clip(beyond / typical, 1 / APART, APART))

    def applied(self, data: Triplets | Array) -> Any:
        """Data in these units."""
        if isinstance(data, Triplets):
            j = data.index[1]
            return replace(data, values=(data.values - self.offset[j]) / self.scale[j])
        return (data - self.offset) / self.scale

    def undone(self, values: Array, columns: Array) -> Array:
        """Values of some columns in the units of the data; −1 stands for a typical column."""
        scale, offset = (np.append(x, np.median(x)) for x in (self.scale, self.offset))
        return values * scale[columns] + offset[columns]


def _unlike(deviations: Array) -> bool:
    if not deviations.size:
        return False
    low, high = np.quantile(deviations, [0.1, 0.9])
    return bool(high > APART * low)


def _medians(data: Triplets | Array, of: Callable[[Array], Array] = np.asarray) -> Array:
    """The median of every column."""
    if not isinstance(data, Triplets):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of columns without a number
            return np.nan_to_num(np.nanmedian(of(data), axis=0))
    values, columns = of(data.values), data.index[1]
    order = np.lexsort((values, columns))
    counts = np.bincount(columns, minlength=data.shape[1])
    ends = np.cumsum(counts)
    middle = np.minimum(ends - counts + counts // 2, len(values) - 1)
    return np.where(counts > 0, values[order][middle], 0.0)
