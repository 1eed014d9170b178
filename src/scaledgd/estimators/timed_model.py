"""The model that a fit of a table in time leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..factors import Bordered
from ..temporal.series import Series
from ..temporal.smooth import Smooth, drawn_rows, no_rows
from . import validation
from .constants import column_levels, levelled
from .local_observations import LocalObservations
from .matrix_model import MatrixModel, TableFit
from .models import Index
from .observations import Summary
from .packing import packable
from .robust import Outliers
from .stamps import Clock, check_stamps
from .timed import Layout, Timed

Array = Any

SIGMAS = 3.0
"""Standard deviations beyond which entries are rejected."""

for known in (Smooth, Series):
    packable(known)


@dataclass(frozen=True, eq=False)
class TimedSpread:
    """How sure the estimates of a table in time are.

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
    """A low-rank table in time, with own series of its columns: X = size · (L Rᵀ + S) d₂.

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
        """Return the model of a fit that knows time."""
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
        return model.with_same_fit(free=float(data.size), noise=noise)

    # ---- rows

    def _solved(self, data: LocalObservations) -> Timed:
        """Return what data in their own units say about their rows."""
        data = self._in_fit_units(data)
        layout = Layout.of(data, self.mode, self.clock)
        table, r = layout.table(data), self.smooth.R.shape[1]
        rows = no_rows(table, r)
        if self.path is not None:
            rows = replace(rows, L=self.path[0], covariance=self.path[1])
        return Timed.solved(layout, table, self.smooth, rows, self.limit)

    def _in_fit_units(self, data: LocalObservations) -> LocalObservations:
        return self.scales.apply(self.normalised(data))

    @cached_property
    def _fitted(self) -> Timed:
        return self._solved(self.observations)

    def rows_at(self, data: LocalObservations, index: Index | None) -> Array:
        data, first = self._in_context(data)
        timed, known = self._solved(data), self.scales
        if index is not None:
            later = (index[0] + first, index[1])
            return levelled(self._in_units(timed, later, known), None, self.levels, later)
        return levelled(self._in_units(timed, None, known)[first:, :], None, self.levels, None)

    def _in_context(self, data: LocalObservations) -> tuple[LocalObservations, int]:
        """Rows below those of the fit that have other times, and how many those are."""
        old = self.observations
        if self.mode or not self.clock.step:
            return data, 0
        stamps = data.stamps[0] if data.stamps else None
        if stamps is None:
            return replace(data, stamps=(np.arange(data.shape[0]) * self.clock.step, None)), 0
        check_stamps(stamps)
        others = np.flatnonzero(~np.isin(old.stamps[0], stamps))
        if not len(others):
            return data, 0
        xp = array_namespace(old.y)
        context = old.slices(0, xp.asarray(others, device=device(old.y)))
        return context.stacked(data.in_precision_of(old.y)), len(others)

    def continued(self, data: LocalObservations, sweeps: int) -> TableFit:
        """Return the fit to data that hold those of this fit, and more rows.

        Parameters
        ----------
        data : LocalObservations
        sweeps : int
        """
        from .choosing import Reading
        from .timed import refined

        scaled = self._in_fit_units(data)
        timed = refined(scaled, self.smooth, self.mode, self.clock, sweeps, self.limit)
        known = self.scales if self.mode else replace(self.scales, rows=None)
        reading = Reading(self.size, self.choice, known, list(self.trail), self.units)
        state = scaled.problem().linearize(_factors(timed, data.example))
        return TableFit(reading, state, None, self.threshold, timed, self.caution)

    # ---- values

    @property
    def limit(self) -> float | None:
        """The standard deviations beyond which entries are rejected."""
        if self.threshold is None:
            return None
        return self.threshold / math.sqrt(self.noise) if self.noise else SIGMAS

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
        return None  # entries of a row that agree are no constant in time

    # ---- how sure it is

    @property
    def knows_rows(self) -> bool:
        return True

    @property
    def time_mode(self) -> int:
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
            shaped(stamps[self.mode], (shape[self.mode],))
        if self.mode:
            must(isinstance(self.path, tuple) and len(self.path) == 2, "the factor in time")
            assert self.path is not None
            shaped(self.path[0], (shape[1], r))
            shaped(self.path[1], (shape[1], r, r))
        waves = self.clock.waves(np.zeros(1), 1).shape[1]
        must(S.season.shape[0] == waves, "the season")


def _factors(timed: Timed, example: Array) -> Bordered:
    """The low-rank part in the order of the data."""
    xp = array_namespace(example)
    L = xp.take(timed.rows.L, xp.asarray(timed.layout.places, device=device(timed.rows.L)), axis=0)
    blocks = [xp.astype(B, example.dtype) for B in (L, timed.model.R)]
    return Bordered(*blocks) if timed.layout.mode == 0 else Bordered(blocks[1], blocks[0])
