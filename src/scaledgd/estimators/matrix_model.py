"""The model of a fitted table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ..factors import Bordered, LowRank
from ..linalg import epsilon, fix_signs, like
from ..methods import NonNegative
from ..solve import solve
from ..state import State
from ..variational import Posterior, current, solved
from . import odds, validation
from .constants import Levels, column_levels, levelled, row_levels, unlike
from .fitting import degrees, has_posterior
from .local_observations import LocalObservations
from .models import EntrywiseModel, Index
from .observations import MULTIPLE, WITHIN, Measure, Summary
from .packing import host, packable
from .plans import Reading
from .robust import Outliers, threshold
from .scaling import Choice, Scales, bordered, empty, singular, table_factors, with_part
from .timed import Timed
from .typical import like_typical, typical_row
from .uncertainty import Spread
from .units import Units
from .vouching import DOUBT

Array = Any


EXACT = 1e-12
"""Noise variance, in units of the fit, up to which all that is rejected is an error."""

WHOLLY = 0.99
"""Share of an entry in its own estimate beyond which nothing else says what it should be."""


@dataclass(frozen=True, eq=False)
class TableFit:
    """The result of a search, before rows are solved once more.

    Attributes
    ----------
    reading : Reading
    state : State
    ridge : pair of arrays, optional
        The given ridge of both blocks.
    threshold : float, optional
    timed : Timed, optional
        The fit in time, which started from the state.
    caution : float
        How much larger squared errors of new observations are than the model says, as a factor.
    """

    reading: Reading
    state: State
    ridge: Any = None
    threshold: float | None = None
    timed: Timed | None = None
    caution: float = 1.0

    def values(self, index: Index) -> Array:
        """Return the estimates at coordinates."""
        F = table_factors(self.state) if self.timed is None else self.timed
        return self.reading.values(F, index)

    @classmethod
    def of_iterate(
        cls, state: State, reading: Reading, data: LocalObservations, robust: bool, plain: bool
    ) -> TableFit:
        """Return the result of an interrupted fit from its iterate.

        Parameters
        ----------
        state : State
        reading : Reading
        data : LocalObservations
        robust : bool
            Whether outliers are rejected.
        plain : bool
            Whether factors are nonnegative, without a posterior.
        """
        limit = None
        if robust and state.memory.loss is not None:
            limit = threshold(state)
        elif robust:
            limit = MULTIPLE * reading.apply(data).residual_scale(table_factors(state))
        F = bordered(state.factors, empty(data, reading.choice, reading.scales))
        if not plain:
            state = state.moved(F)
            state = state.remembering(replace(current(state), columns=None, weight=None))
        return cls(reading, state, getattr(state.problem, "ridge", None), limit)


def doubted(fit: TableFit, why: str = DOUBT) -> TableFit:
    """Return a fit whose trail says that it should not be trusted."""
    reading = fit.reading
    trail = [*reading.trail, {"rank": table_factors(fit.state).rank, "why": why}]
    return replace(fit, reading=replace(reading, trail=trail))


@packable
@dataclass(frozen=True, eq=False, kw_only=True)
class MatrixModel(EntrywiseModel):
    """A low-rank table with offsets, in units of the fit: X = size · d₁ d₂ (L Rᵀ + offsets).

    Attributes
    ----------
    choice : Choice
    scales : Scales
        Those of the rows that were fitted.
    factors : Bordered
        Rows solved against the right factor.
    ridge : array of shape (q,), optional
        The given ridge, or that of nonnegative factors; otherwise that of the posterior.
    posterior : Posterior, optional
    units : Units, optional
        The units of columns used in the fit.
    non_negative : bool
    outliers_expected : "auto", a fraction, or None
    levels : array of shape (n2,), optional
        The values of constant columns, NaN elsewhere.
    typical : array of shape (q,), optional
        The mean of the rows of the left factor, for rows with too few entries.
    limits : array of shape (n2,), optional
        The residuals that gross errors of every column exceed, in units of the fit. The threshold
        only says which entries the fit follows; it rejects more than errors.
    """

    choice: Choice = field(default_factory=Choice)
    scales: Scales = field(default_factory=lambda: Scales(None, None))
    factors: Bordered
    ridge: Array | None = None
    posterior: Posterior | None = None
    units: Units | None = None
    non_negative: bool = False
    outliers_expected: Any = None
    levels: Array | None = None
    typical: Array | None = None
    limits: Array | None = None

    @classmethod
    def of(
        cls,
        fit: TableFit,
        data: LocalObservations,
        settings: dict[str, Any],
        outliers: Outliers | None = None,
        non_negative: bool = False,
    ) -> MatrixModel:
        """Return the model of a fit: rows solved once more, and the noise."""
        data.rest()
        F, reading, ridge = table_factors(fit.state), fit.reading, fit.ridge
        posterior = None
        if ridge is None and has_posterior(fit.state):
            posterior = current(fit.state)
            posterior = replace(posterior, noise=float(posterior.noise), weight=None)
            if posterior.covariance is not None:
                # rows are solved again, so only the columns are needed
                rows, columns = posterior.covariance
                posterior = replace(posterior, covariance=(rows[:0, :, :], columns))
        model = cls(
            observations=data,
            size=reading.size,
            threshold=fit.threshold,
            settings=settings,
            trail=list(reading.trail),
            choice=reading.choice,
            scales=reading.scales,
            factors=F,
            ridge=None if ridge is None else ridge[0],
            posterior=posterior,
            units=reading.units,
            non_negative=non_negative,
            outliers_expected=outliers,
            levels=column_levels(data),
            typical=typical_row(F.L, data.counts(0)),
            caution=fit.caution,
        )
        F, known = model.solve_rows(data)
        model = replace(model, factors=F, scales=known)
        free, noise = model._noise(model._summary)
        model = model.with_same_fit(free=free, noise=noise)
        limits = model._gross()
        return model if limits is None else replace(model, limits=limits)

    def _gross(self) -> Array | None:
        """The residuals that gross errors of every column exceed; None if nothing else is left."""
        data, most = self.observations, self.threshold
        rejecting = most is not None and self.outliers_expected == "auto"
        # large tables, also those in shards, have one limit for all columns
        small = self.knows_rows or not self.factors.rank
        local = isinstance(data, LocalObservations)
        if not rejecting or self.noise <= EXACT or not small or not local:
            return None
        assert most is not None
        index = data.coordinates
        off = host(abs(data.flat - self.at(index)) / self.unit(index))
        # what the fit follows is compared with what the others say
        share = np.minimum(host(self.spread().variance(index)) / self.noise, WHOLLY)
        sizes = np.where(off <= most, off / (1 - share), off)
        columns, unit = host(index[1]), host(self.unit_of_columns)
        varying = odds.deviations(host(data.flat) / unit[columns], columns, len(unit))
        found = odds.limits(sizes, columns, varying)
        return like(np.maximum(found, most), self.factors.R)

    # ---- rows

    def normalised(self, data: LocalObservations) -> LocalObservations:
        """Return data in the units of columns and divided by the size."""
        data = data.in_precision_of(self.factors.R)
        return (data if self.units is None else self.units.apply(data)).scaled(self.size)

    def solve_rows(self, data: LocalObservations) -> tuple[Bordered, Scales]:
        """Return scores and offsets of rows; each depends on its row alone."""
        F, known = self._solved_rows(data)
        return F.with_blocks((like_typical(F.L, data.counts(0), self.typical), F.R)), known

    def _solved_rows(self, data: LocalObservations) -> tuple[Bordered, Scales]:
        """The same, but rows without any entry are zero."""
        R = self.factors.R
        data = self.normalised(data)
        known = self.scales.for_rows(data)
        data = known.apply(data)
        n, q = data.shape[0], R.shape[1] - self.choice.columns + self.choice.rows
        L = data.blank(0, q)
        u = data.blank(0, 1)[:, 0] + (1 if known.rows is None else 1 / known.rows)
        F = Bordered(L, R, u if self.choice.columns else None, self.factors.v)
        if not q or not n or not data.size:
            return F, known
        problem = data.problem()
        ridge = self.ridge
        posterior = self.posterior
        if posterior is not None and posterior.covariance is not None and self.threshold is None:
            return solved(problem.linearize(F).view, F, posterior, 0)[0], known
        if self.posterior is not None:
            ridge = _ridge(self.posterior, F, 0, problem.operator.coverage(None, data.y))
        if self.non_negative:
            positive = F.with_blocks((F.L + 1.0, F.R))
            if ridge is not None:
                problem = replace(problem, ridge=(ridge, None))
            found = solve(problem, positive, NonNegative(update=(0,)), max_iter=100)
            return table_factors(found.state), known
        if self.threshold is not None:
            return data.rows_without_outliers(F, 0, self.threshold, ridge), known
        exact = self.posterior is not None and self.posterior.noise <= epsilon(R)
        if exact and self.choice.center == "none" and self.typical is not None:
            # rows with too few entries are as close to a typical one as their entries allow
            F, ridge = F.with_blocks((F.L + self.typical[None, :], R)), None
        # without noise a second step corrects the rounding of the first
        for _ in range(1 if self.posterior is not None and not exact else 2):
            F = F.moved(0, -problem.block_step(F, 0, ridge))
        return F, known

    def rows_at(self, data: LocalObservations, index: Index | None) -> Array:
        F, known = self.solve_rows(data)
        rows = row_levels(data, self.observations)
        return levelled(self._in_units(F, index, known), (rows, self.levels), index)

    # ---- values

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The fitted attributes that do not need a pass over the data."""
        F, known, size = self.factors, self.scales, self.size
        r = F.rank
        rows = size if known.rows is None else size * known.rows[:, None]
        columns = 1.0 if known.columns is None else known.columns[:, None]
        if self.units is not None:
            columns = columns * self.units.scale[:, None]
        plain = Bordered(rows * F.L[:, :r], columns * F.R[:, :r])
        U, s, V = singular(plain)
        r = int(s.shape[0])  # components that a Gaussian has beyond the sides of the table
        blank = [0 * self.observations.counts(k) for k in (0, 1)]
        factors = LowRank(*(x[:, None] for x in blank))
        if r:
            phase = fix_signs(V)
            U, V = U * phase[None, :], V * phase[None, :]
            # nonnegative factors stay as they are
            held = plain if self.non_negative else with_part(plain, U, s, V)
            factors = LowRank(held.L, held.R)
        row, column = self._offsets(*blank)
        return {
            "factors_": factors,
            "rank_": r,
            "components_": V.T,
            "singular_values_": s,
            "row_offset_": row,
            "column_offset_": column,
            "rank_path_": self.trail,
            **self._named_choice(),
        }

    def _offsets(self, row: Array, column: Array) -> tuple[Array, Array]:
        """Offsets of rows and columns in the units of the data.

        They are additive: b is multiplied by 1/d₂ and c by 1/d₁, and the mean belongs to the side
        that is not scaled.
        """
        F, known, size, r = self.factors, self.scales, self.size, self.factors.rank
        if F.v is not None:
            row = row + F.L[:, r] + (known.mean if known.columns is None else 0.0)
        if F.u is not None:
            also = F.v is None or known.columns is not None
            column = column + F.R[:, r] + (known.mean if also else 0.0)
        row = size * (row if known.rows is None else row * known.rows)
        column = size * (column if known.columns is None else column * known.columns)
        if self.units is not None:
            column = column * self.units.scale + self.units.offset
            if F.v is not None:
                d = self.units.scale if known.columns is None else self.units.scale * known.columns
                row = row * (F.v * d)[0]  # the same for all columns
        return row, column

    def _named_choice(self) -> dict[str, str]:
        """Offsets and scales that were used, as the parameters name them."""
        center, scale = self.choice.center, self.choice.scale
        if self.units is not None:
            with_columns = {"none": "columns", "rows": "both"}
            center = with_columns.get(center, center) if self.units.centred else center
            scale = with_columns.get(scale, scale) if self.units.scaled else scale
        return {"center_": center, "scale_": scale}

    @cached_property
    def _summary(self) -> Summary:
        known, found = self.scales, self.attributes
        centred = found["center_"] != "none"
        offsets = (found["row_offset_"], found["column_offset_"]) if centred else ()
        columns = known.columns
        if self.units is not None:
            columns = self.units.scale if columns is None else columns * self.units.scale
        scales = (known.rows, columns)
        factors = found["factors_"]
        by_fraction = isinstance(self.outliers_expected, float | int)
        by = Measure(offsets, self.size, scales, self.threshold, by_fraction, self.limits)
        return self.observations.summary(factors, by)

    def _noise(self, left: Summary) -> tuple[float, float]:
        """The degrees of freedom, and the variance of the noise in units of the fit."""
        size, spent, known = self.observations.size, self._spent, self.posterior
        free = left.count - spent
        variance = left.squares / max(free, 0.1 * left.count, 1.0)
        if known is not None and known.unsure and self.threshold is None:
            # the same where the fit has converged, and not a ratio of two small numbers elsewhere
            variance = (left.squares + spent * known.noise) / max(left.count, 1.0)
            free = left.squares / variance if variance > 0 else free
        if left.scale is not None:
            # a fraction may reject far more than outliers
            lost = max(size - left.count + free, 0.1 * size, 1.0)
            variance = left.scale**2 * size / lost
        rejecting = self.threshold is not None and self.outliers_expected == "auto"
        return free, variance / (WITHIN if rejecting else 1.0)

    @property
    def _spent(self) -> float:
        """The degrees of freedom of the data that the fit has used."""
        shape, choice = self.observations.shape, self.choice
        centred = shape[1] if self.units is not None and self.units.centred else 0
        if self.posterior is not None:
            return centred + self.posterior.spent
        offsets = (shape[0] if choice.rows else 0) + (shape[1] if choice.columns else 0)
        return float(centred + degrees(self.factors.rank, shape) + offsets)

    @property
    def published(self) -> dict[str, Any]:
        left = self._summary
        found = {**self.attributes, "noise_variance_": self.noise * left.mean_unit}
        if self.threshold is not None:
            found["threshold_"] = float(np.median(host(self.reach)))
            found["outliers_"] = unlike(left.outliers, self.all_levels)
        return found

    def at(self, index: Index) -> Array:
        found = self.attributes
        xp = array_namespace(found["row_offset_"])
        row, column = (xp.take(found[f"{k}_offset_"], i) for k, i in zip(SIDES, index, strict=True))
        values = found["factors_"].gather(index) + (row + column)
        return levelled(values, self.all_levels, index)

    def full(self) -> Array:
        found = self.attributes
        offsets = found["row_offset_"][:, None] + found["column_offset_"][None, :]
        return levelled(found["factors_"].full() + offsets, self.all_levels, None)

    @cached_property
    def _row_levels(self) -> Array | None:
        return row_levels(self.observations, self.observations)

    @property
    def all_levels(self) -> Levels:
        """The values of constant rows, and those of constant columns."""
        return self._row_levels, self.levels

    def values(self, factors: Any, index: Index | None) -> Array:
        values = self._in_units(factors, index, self.scales)
        return levelled(values, self.all_levels, index)

    def _in_units(self, F: Bordered | Timed, index: Index | None, known: Scales) -> Array:
        X = (F.full() if index is None else F.gather(index)) + known.mean
        X = X * self._unit(index, known)
        if self.units is None:
            return X
        return self.units.undo(X, None if index is None else index[1])

    def _unit(self, index: Index | None, known: Scales) -> Array | float:
        unit: Any = self.size
        for k, d in enumerate((known.rows, known.columns)):
            if d is not None and index is None:
                unit = unit * (d[:, None] if k == 0 else d[None, :])
            elif d is not None and index is not None:
                unit = unit * array_namespace(d).take(d, index[k])
        return unit

    def unit(self, index: Index | None) -> Array | float:
        unit = self._unit(index, self.scales)
        if self.units is None:
            return unit
        d = self.units.scale
        return unit * (d[None, :] if index is None else array_namespace(d).take(d, index[1]))

    @property
    def unit_of_columns(self) -> Array:
        """The unit of every column, without those of rows."""
        d = self.size + 0 * self.observations.counts(1)
        for scale in (self.scales.columns, None if self.units is None else self.units.scale):
            d = d if scale is None else d * scale
        return d

    @property
    def reach(self) -> Array:
        """The residuals that gross errors of every column exceed, in units of the data."""
        assert self.threshold is not None
        return self.unit_of_columns * (self.threshold if self.limits is None else self.limits)

    # ---- how sure it is

    @property
    def sure_of_bias(self) -> bool:
        return self.ridge is None or self.non_negative

    @property
    def knows_rows(self) -> bool:
        return self.posterior is not None and self.posterior.covariance is not None

    def spread(self) -> Spread:
        F = self.factors
        elsewhere = getattr(self.observations, "spread_of", None)
        if elsewhere is not None:
            found: Spread = elsewhere(self)
            return found
        data = self.scales.apply(self.normalised(self.observations))
        data = data.without_outliers(F, self.threshold)
        coverage = data.operator.coverage(data.weight, data.weight)
        posterior = self.posterior
        if posterior is None:
            posterior = Posterior.first(F, self.noise)
            if self.ridge is not None and not self.non_negative and F.blocks[0].shape[1]:
                # the given ridge may shrink more than the noise justifies
                ridge = _ridge(posterior, F, 0, coverage)
                F = F.moved(0, -data.problem().linearize(F).view.block_step(0, ridge=ridge))
        ridges = tuple(_ridge(posterior, F, k, coverage) for k in (0, 1))
        return Spread(F, data, ridges, self.noise)

    def validate(self) -> None:
        super().validate()
        must, shaped, number = validation.must, validation.shaped, validation.number
        must(len(self.observations.shape) == 2, "data that are not a table")
        n1, n2 = self.observations.shape
        F, known, choice = self.factors, self.scales, self.choice
        validation.factors(F, Bordered, (n1, n2))
        shaped(F.u, (n1,), optional=True)
        shaped(F.v, (n2,), optional=True)
        must(isinstance(known, Scales), "no scales")
        shaped(known.columns, (n2,), optional=True)
        shaped(known.rows, (n1,), optional=True)
        for x in (known.mean, known.unit, 0.0 if known.typical is None else known.typical):
            number(x)
        must(isinstance(choice, Choice), "no choice")
        for word in (choice.center, choice.scale):
            must(word in ("none", "rows", "columns", "both"), "a choice")
        must(choice.rows == (F.v is not None), "offsets")
        must(choice.columns == (F.u is not None), "offsets")
        must(isinstance(self.non_negative, bool), "a choice")
        validation.levels(self.levels, n2)
        must((self.threshold is None) == (self.outliers_expected is None), "the threshold")
        widths = [B.shape[1] for B in F.blocks]
        shaped(self.ridge, (widths[0],), optional=True)
        shaped(self.typical, (widths[0],), optional=True)
        shaped(self.limits, (n2,), least=0, optional=True)
        if self.units is not None:
            must(isinstance(self.units, Units), "the units")
            shaped(self.units.offset, (n2,))
            shaped(self.units.scale, (n2,), least=0)
        if self.posterior is not None:
            p = self.posterior
            must(isinstance(p, Posterior), "the posterior")
            number(p.noise, least=0)
            for k, (width, n) in enumerate(zip(widths, (n1, n2), strict=True)):
                shaped(p.prior[k], (width,), least=0)
                shaped(p.variance[k], (n, width), least=0)
                shaped(p.total[k], (width, width))
            if p.covariance is not None:
                rows, columns = p.covariance
                shaped(rows, (n1 if rows.shape[0] else 0, widths[0], widths[0]))
                shaped(columns, (n2, widths[1], widths[1]))


SIDES = ("row", "column")


def _ridge(posterior: Posterior, F: Bordered, k: int, coverage: Any) -> Array:
    """The ridge of block k; for a column without variance it is bounded, even without noise."""
    return posterior.ridge(F, k, coverage)
