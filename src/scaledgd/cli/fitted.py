"""What a fit gives the commands: estimates, their intervals, and its accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..factors import LowRank

if TYPE_CHECKING:
    from ..estimators.plausible import Plausible

Array = Any

ONE_DEVIATION = 0.6826894921370859
"""Probability that a normal variable is within one standard deviation of its mean."""
FEW_COLUMNS = 4
"""Number of columns of which one may have most of the variance."""


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Cells that a fit did not see, its estimates of them, and the column means.

    Attributes
    ----------
    truth, estimate, plain : float arrays of shape (cells,)
        In the units of the data.
    columns : integer array of shape (cells,)
        The column of each cell; for tensors, the fibre along mode 0.
    offset, scale : float arrays of shape (cells,), or numbers
        Of the columns of the cells, if errors of all columns count equally.
    """

    truth: Array
    estimate: Array
    plain: Array
    columns: Array
    offset: Any = 0.0
    scale: Any = 1.0

    def common(self, values: Array) -> Array:
        """Return values in units in which errors of all columns count equally."""
        return (values - self.offset) / self.scale

    @property
    def rmse(self) -> float:
        return _rms((self.truth - self.estimate) / self.scale)

    @property
    def plain_rmse(self) -> float:
        return _rms((self.truth - self.plain) / self.scale)

    @property
    def r2(self) -> float:
        """The share of the squared error of column means that the fit removes."""
        if not self.plain_rmse:
            return float(self.rmse == 0)
        return 1 - (self.rmse / self.plain_rmse) ** 2

    def of_column(self, j: int) -> tuple[int, float, float]:
        """Return the number of cells of a column, and the errors of the fit and of the mean."""
        there = self.columns == j
        if not there.any():
            return 0, math.nan, math.nan
        off = (self.truth - x for x in (self.estimate, self.plain))
        ours, plain = (_rms(x[there]) for x in off)
        return int(there.sum()), ours, plain


def _rms(x: Array) -> float:
    return math.sqrt(float(np.mean(np.square(x))))


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model, its accuracy, and its warnings.

    Attributes
    ----------
    model : estimator
    accuracy : Accuracy, optional
    seconds : float
    warnings : tuple of str
    clip : pair of numbers or None, optional
    apart : bool
        Whether the accuracy is that of another fit, and the model saw all cells.
    unlike : bool, optional
        Whether columns have very different deviations; by default this is read off the model's
        data.
    """

    model: Any
    accuracy: Accuracy | None
    seconds: float
    warnings: tuple[str, ...]
    clip: tuple[float | None, float | None] | None = None
    apart: bool = True
    unlike: bool | None = None

    @property
    def units(self) -> Any:
        """The units of columns that the model was fitted in, or None."""
        return getattr(self.model._model, "units", None)

    @cached_property
    def standardised(self) -> bool:
        """Whether errors are given in standard deviations of the columns.

        If columns are alike, errors in the units of the data say more, whatever the units of the
        fit.
        """
        from ..estimators.units import column_units, unlike_columns

        if self.units is None or not self.units.scaled:
            return False
        if self.unlike is not None:
            return self.unlike
        data = self.model._model.observations
        squares = np.square(column_units(data).scale)
        # a column of codes, say, whose errors would be all that a sum of squares says
        dominated = len(squares) > FEW_COLUMNS and 2 * squares.max() > squares.sum()
        return dominated or unlike_columns(data)

    @property
    def noise(self) -> float:
        """The standard deviation of the noise, in the units of the report."""
        if not self.standardised:
            return math.sqrt(max(0.0, self.model.noise_variance_))
        return math.sqrt(self.model._model.noise) * float(self.model._model.size)

    @cached_property
    def _sides(self) -> tuple[LowRank, Array, Array]:
        """The factors and offsets of a matrix, each with a typical row at the end."""
        m, units = self.model, self.units
        L, R, b, c = m.factors_.L, m.factors_.R, m.row_offset_, m.column_offset_
        typical = R.mean(axis=0), c.mean()
        if units is not None:
            # the typical column is in common units
            scale, offset = np.median(units.scale), np.median(units.offset)
            plain = (R / units.scale[:, None]).mean(axis=0)
            typical = plain * scale, ((c - units.offset) / units.scale).mean() * scale + offset
        seen = m._model.observations.counts(0) > 0  # rows without a value are not typical
        blocks = [np.concatenate([L, L[seen].mean(axis=0)[None, :]])]
        blocks.append(np.concatenate([R, typical[0][None, :]]))
        return LowRank(*blocks), np.append(b, b[seen].mean()), np.append(c, typical[1])

    @cached_property
    def smooth(self) -> str:
        """The side along which the model relates neighbours: "rows", "columns" or "none"."""
        from ..estimators.timed_model import TimedModel

        known = self.model._model
        return ("rows", "columns")[known.mode] if isinstance(known, TimedModel) else "none"

    @cached_property
    def whole(self) -> Array:
        """The estimates of all rows of the fit."""
        return self._clipped(self.model.reconstruct())

    def at(self, rows: Array, columns: Array) -> Array:
        """Return estimates; −1 stands for an unknown row or column, and gives a typical one."""
        if not isinstance(self.model.factors_.blocks[-1], type(self.model.factors_.blocks[0])):
            return self._clipped(self.model.predict_entries((rows, columns)))  # L is elsewhere
        F, b, c = self._sides
        i, j = (
            np.where(k < 0, len(x) - 1, k).astype(np.int64) for k, x in ((rows, b), (columns, c))
        )
        return self._clipped(F.gather((i, j)) + b[i] + c[j])

    def rows(self, X: Array, times: Array | None = None) -> Array:
        """Return estimates of rows, or slices of a tensor.

        Parameters
        ----------
        X : array
            Every row has a value, unless neighbouring rows are alike.
        times : datetime64 array of shape (rows,), optional
            If the model knows times.
        """
        return self._clipped(np.asarray(self.model.transform(framed(X, times))))

    @cached_property
    def typical(self) -> Array:
        """The row, or slice of a tensor, to return for an empty one."""
        shape = self.model.factors_.shape
        if len(shape) > 2 or self.smooth != "none":
            return self._clipped(self.model.reconstruct().mean(axis=0))
        return self.at(np.full(shape[1], -1), np.arange(shape[1]))

    def bounds(self, index: tuple[Array, ...], level: float) -> tuple[Array, Array]:
        """Return intervals that contain new readings of cells of the fit with a probability.

        Parameters
        ----------
        index : tuple of integer arrays
            One per mode; the bounds of cells with −1 among them are NaN.
        level : float
        """
        known = np.all([i >= 0 for i in index], axis=0)
        sides = np.full((2, len(known)), np.nan)
        if known.any():
            cells = tuple(i[known] for i in index)
            sides[:, known] = self.model.interval(cells, level, kind="prediction")
        return self._clipped(sides[0]), self._clipped(sides[1])

    def sides(
        self,
        index: tuple[Array, ...],
        level: float | None,
        std: bool,
        plausible: Plausible | None = None,
        columns: Any = 0,
    ) -> dict[str, Array]:
        """Return what is written beside estimates: lower and upper bounds, standard deviations.

        Parameters
        ----------
        index : tuple of integer arrays
            As in `bounds`.
        level : float, optional
            Without one there are no bounds.
        std : bool
        plausible : Plausible, optional
            What bounds must not exceed.
        columns : integer array, or one number
            The columns that `plausible` knows the cells by.
        """
        found: dict[str, Array] = {}
        if level is not None:
            low, high = self.bounds(index, level)
            if plausible is not None:
                low, high = (plausible.values(x, columns, rounded=False) for x in (low, high))
            found |= {"lower": low, "upper": high}
        if std:
            low, high = self.bounds(index, ONE_DEVIATION)
            found["std"] = (high - low) / 2
        return found

    def _clipped(self, values: Array) -> Array:
        return values if self.clip is None else np.clip(values, *self.clip)


@dataclass(frozen=True, eq=False)
class Cleaned(Fitted):
    """A model of the low-rank part, and how far off a cell may be.

    Attributes
    ----------
    failed : str
        Why errors cannot be told from the rest, or "". The model then has no outliers.
    """

    failed: str = ""

    def rows(self, X: Array, times: Array | None = None) -> Array:
        if not self.failed:
            return super().rows(X, times)
        data, _ = self.model._read_rows(framed(X, times), None)
        return self._clipped(self.model._estimated(data))

    def limit(self, columns: Array) -> Array | float:
        """Return how far off cells of some columns may be without being errors."""
        if self.failed:
            return math.inf
        known = self.model._model
        if len(known.observations.shape) > 2:
            return float(self.model.threshold_)
        return np.asarray(known.reach)[columns]


def framed(values: Array, times: Array | None) -> Any:
    """A table whose index is times; the array itself if there are none."""
    if times is None:
        return values
    import pandas as pd

    return pd.DataFrame(values, index=pd.DatetimeIndex(times))
