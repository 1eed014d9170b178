"""The model of a fitted table in time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..factors import Bordered
from ..temporal.series import Series
from ..temporal.smooth import Smooth, drawn_rows
from . import validation
from .constants import column_levels, levelled
from .local_observations import LocalObservations
from .matrix_model import MatrixModel, TableFit
from .models import Index
from .observations import MULTIPLE, Summary
from .packing import packable
from .plans import Reading
from .robust import Outliers
from .scaling import Scales
from .stamps import Clock, check_stamps, of_seconds
from .timed import Layout, Timed, known_rows, likeness, refined

Array = Any

SHORT = 1e-6
"""Factor of memory lengths if rows do not follow each other."""

for known in (Smooth, Series):
    packable(known)


@dataclass(frozen=True, eq=False)
class TimedSpread:
    """Uncertainty of the estimates of a table in time.

    Attributes
    ----------
    factors : Timed
    root : array of shape (n,)
        The noise of every series, in units of all.
    noise : float
        The variance of an observation, in units of the fit and of its series.
    """

    factors: Timed
    root: Array
    noise: float

    def variance(self, index: Index) -> Array:
        """Return the variance of the estimates at coordinates."""
        timed, xp = self.factors, array_namespace(self.root)
        return timed.variance(index) / xp.take(self.root, index[1 - timed.layout.mode]) ** 2

    def drawn(self, rng: np.random.Generator) -> Timed:
        """Return the rows and series drawn with their uncertainty."""
        timed = self.factors
        rows = drawn_rows(timed.table, timed.model, timed.rows, rng)
        return replace(timed, rows=rows)


@packable
@dataclass(frozen=True, eq=False, kw_only=True)
class TimedModel(MatrixModel):
    """A low-rank table in time, with a series for every column: X = size · (L Rᵀ + S) d₂.

    Attributes
    ----------
    smooth : Smooth
    mode : int
        0 if rows follow each other, 1 if columns do.
    clock : Clock
    path : pair of arrays of shape (T, r) and (T, r, r), optional
        If columns follow each other: their factor, in the order of time, and its covariances.
    """

    smooth: Smooth
    mode: int = 0
    clock: Clock = field(default_factory=Clock)
    path: tuple[Array, Array] | None = None

    @classmethod
    def timed(
        cls,
        fit: TableFit,
        data: LocalObservations,
        settings: dict[str, Any],
        outliers: Outliers | None = None,
    ) -> TimedModel:
        """Return the model of a fit in time."""
        assert fit.timed is not None
        reading, timed = fit.reading, fit.timed
        model = cls(
            observations=data,
            size=reading.size,
            threshold=fit.threshold,
            settings=settings,
            trail=list(reading.trail),
            choice=reading.choice,
            scales=reading.scales,
            factors=_factors(timed, data.example),
            levels=column_levels(data) if data.shape[1] > 1 else None,
            units=reading.units,
            outliers_expected=outliers,
            smooth=timed.model,
            mode=timed.layout.mode,
            clock=timed.layout.clock,
            caution=fit.caution,
            path=(timed.rows.L, timed.rows.covariance) if timed.layout.mode else None,
        )
        noise = float(array_namespace(timed.model.noise).mean(timed.model.noise))
        model.__dict__["_fitted"] = timed  # already solved
        limits = None
        if timed.limits is not None and not timed.layout.mode:
            limits = math.sqrt(noise) * timed.limits
        return model.with_same_fit(free=float(data.size), noise=noise, limits=limits)

    # ---- rows

    def _solved(self, data: LocalObservations, smooth: Smooth) -> tuple[Timed, Scales]:
        """The posterior of the rows of data in their own units, and the scales of the rows."""
        data, known = self._in_fit_units(data)
        layout = Layout.of(data, self.mode, self.clock)
        table = layout.table(data)
        rows = known_rows(table, smooth, self.path)
        return Timed.solved(layout, table, smooth, rows, self.limit), known

    def _in_fit_units(self, data: LocalObservations) -> tuple[LocalObservations, Scales]:
        data = self.normalised(data)
        known = self.scales.for_rows(data)
        return known.apply(data), known

    @cached_property
    def _fitted(self) -> Timed:
        return self._solved(self.observations, self.smooth)[0]

    def rows_at(self, data: LocalObservations, index: Index | None) -> Array:
        timeless = not self.has_times(data)
        if self.mode:
            data, first = self._with_columns_of_fit(data), 0
        elif timeless:
            steps = of_seconds(np.arange(data.shape[0]) * self.clock.step)
            data, first = replace(data, stamps=(steps, None)), 0
        else:
            data, first = self._in_context(data)
        smooth = _without_waves(self.smooth) if timeless and not self.mode else self.smooth
        if self._unordered(data):
            smooth = _without_memory(smooth)
        timed, known = self._solved(data, smooth)
        if index is not None:
            later = (index[0] + first, index[1])
            return levelled(self._in_units(timed, later, known), (None, self.levels), later)
        return levelled(self._in_units(timed, None, known)[first:, :], (None, self.levels), None)

    def _unordered(self, data: LocalObservations) -> bool:
        """Whether rows without times do not follow each other, as those of the fit did."""
        found = not self.mode and not self.clock.step and self.settings.get("smooth") == "auto"
        return found and not likeness(data, 0)

    def has_times(self, data: LocalObservations) -> bool:
        """Return whether data have times, if those of the fit do.

        Parameters
        ----------
        data : LocalObservations
        """
        known = bool(data.stamps) and data.stamps[self.mode] is not None
        return known or not self.clock.step

    def same_columns(self, data: LocalObservations) -> bool:
        """Return whether columns that follow each other are those of the fit.

        Parameters
        ----------
        data : LocalObservations
        """
        if not (self.mode and self.clock.step and self.has_times(data)):
            return True
        return np.array_equal(data.stamps[1], self.observations.stamps[1])

    def check_more(self, data: LocalObservations) -> None:
        """Require rows that can follow those of the fit.

        Parameters
        ----------
        data : LocalObservations
        """
        if not self.same_columns(data):
            raise ValueError(
                "the times of the columns of X are not those of the fit; give the columns of "
                "the fit in their order, NaN where nothing is known"
            )
        if not self.mode and not self.has_times(data):
            raise ValueError(
                "the rows of the fit have times, but those of X have none; label them like those "
                "of the fit"
            )

    def _with_columns_of_fit(self, data: LocalObservations) -> LocalObservations:
        """Other rows, whose columns follow each other as they did in the fit."""
        self.check_more(data)
        return replace(
            data, stamps=self.observations.stamps and (None, self.observations.stamps[1])
        )

    def _in_context(self, data: LocalObservations) -> tuple[LocalObservations, int]:
        """Rows stacked below those of the fit at other times, and the number of the latter."""
        old = self.observations
        if not self.clock.step:
            return data, 0
        stamps = data.stamps[0]
        check_stamps(stamps)
        others = np.flatnonzero(~np.isin(old.stamps[0], stamps))
        if not len(others):
            return data, 0
        xp = array_namespace(old.y)
        context = old.slices(0, xp.asarray(others, device=device(old.y)))
        return context.stacked(data.in_precision_of(old.y)), len(others)

    def continued(self, data: LocalObservations, sweeps: int) -> TableFit:
        """Return the fit to data that contain those of this fit, and more rows.

        Parameters
        ----------
        data : LocalObservations
        sweeps : int
        """
        if self.clock.step:
            check_stamps(data.stamps[self.mode], self.mode)
        scaled, known = self._in_fit_units(data)
        how = self.smooth, self.mode, self.clock, sweeps, self.limit, self.path
        timed = refined(scaled, *how)
        reading = Reading(self.size, self.choice, known, list(self.trail), self.units)
        state = scaled.problem().linearize(_factors(timed, data.example))
        return TableFit(reading, state, None, self.threshold, timed, self.caution)

    # ---- values

    @property
    def limit(self) -> Array | None:
        """The standard deviations beyond which entries of every series are rejected."""
        if self.threshold is None:
            return None
        root = math.sqrt(self.noise)
        if self.limits is not None and root:
            return self.limits / root
        # rows that are series have one limit, since others may follow
        return (self.threshold / root if root else MULTIPLE) + 0 * self.smooth.noise[:1]

    @property
    def unit_of_columns(self) -> Array:
        """The unit of every column; that of its noise, if columns are series."""
        unit = super().unit_of_columns
        return unit if self.mode else unit * self._root

    @cached_property
    def _summary(self) -> Summary:
        data, fitted = self.observations, self._fitted
        xp, index = array_namespace(data.y), data.coordinates
        off = data.flat - xp.astype(self.at(index), data.y.dtype)
        unit = xp.astype(self.unit(index) + 0 * fitted.gather(index), data.y.dtype)
        kept = fitted.layout.at(fitted.table.weight, index) > 0
        inside = xp.astype(kept, data.y.dtype) * (off / unit) ** 2
        outliers = None if self.threshold is None else data.sparse(off, ~kept)
        count = float(xp.sum(xp.astype(kept, xp.float64)))
        return Summary(count, float(xp.sum(inside)), float(xp.mean(unit * unit)), outliers)

    @cached_property
    def _root(self) -> Array:
        """The noise of every series, in units of all."""
        noise = self._fitted.model.noise
        return array_namespace(noise).sqrt(noise / self.noise)

    def unit(self, index: Index | None) -> Array | float:
        unit, root = super().unit(index), self._root
        if index is None:
            return unit * (root[None, :] if self.mode == 0 else root[:, None])
        return unit * array_namespace(root).take(root, index[1 - self.mode])

    def at(self, index: Index) -> Array:
        return self.values(self._fitted, index)

    def full(self) -> Array:
        return self.values(self._fitted, None)

    @property
    def _row_levels(self) -> Array | None:
        return None  # equal entries of a row do not make it constant in time

    # ---- how sure it is

    @property
    def knows_rows(self) -> bool:
        return True

    @property
    def in_time(self) -> int:
        return self.mode

    def spread(self) -> Any:
        return TimedSpread(self._fitted, self._root, self.noise)

    def validate(self) -> None:
        super().validate()
        must, shaped, number = validation.must, validation.shaped, validation.number
        S, shape = self.smooth, self.observations.shape
        must(isinstance(S, Smooth) and isinstance(S.series, Series), "the series")
        must(self.mode in (0, 1) and isinstance(self.clock, Clock), "the mode of time")
        n, r = shape[1 - self.mode], self.factors.rank
        shaped(S.R, (n, r))
        shaped(S.covariance, (n, r, r))
        for x in (S.prior, S.spread, S.length):
            shaped(x, (r,), least=0)
        shaped(S.season, (S.season.shape[0], r))
        for x in (S.noise, S.series.variance, S.series.length):
            shaped(x, (n,), least=0)
        must(number(self.clock.step, least=0) >= 0, "the clock")
        must(all(number(p) > 0 for p in self.clock.periods), "the clock")
        if self.clock.step:
            stamps = self.observations.stamps
            must(len(stamps) == 2 and stamps[self.mode] is not None, "the times")
            must(stamps[self.mode].shape == (shape[self.mode],), "the times")
        if self.mode:
            must(isinstance(self.path, tuple) and len(self.path) == 2, "the factor in time")
            assert self.path is not None
            shaped(self.path[0], (shape[1], r))
            shaped(self.path[1], (shape[1], r, r))
        waves = self.clock.waves(np.zeros(1), 1).shape[1]
        must(S.season.shape[0] == waves, "the season")


def _without_memory(smooth: Smooth) -> Smooth:
    """The model of rows that are independent of each other."""
    series = replace(smooth.series, length=SHORT * smooth.series.length)
    return replace(smooth, length=SHORT * smooth.length, series=series)


def _without_waves(smooth: Smooth) -> Smooth:
    """The model of rows at an unknown time of the day: waves count as variance."""
    if smooth.season.shape[0] < 2:
        return smooth
    xp, waves = array_namespace(smooth.season), smooth.season[1:, :]
    season = xp.concat([smooth.season[:1, :], 0 * waves])
    return replace(smooth, season=season, prior=smooth.prior + 0.5 * xp.sum(waves**2, axis=0))


def _factors(timed: Timed, example: Array) -> Bordered:
    """The low-rank part in the order of the data."""
    xp = array_namespace(example)
    L = xp.take(timed.rows.L, xp.asarray(timed.layout.places, device=device(timed.rows.L)), axis=0)
    blocks = [xp.astype(B, example.dtype) for B in (L, timed.model.R)]
    return Bordered(*blocks) if timed.layout.mode == 0 else Bordered(blocks[1], blocks[0])
