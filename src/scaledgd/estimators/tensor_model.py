"""The model of a fitted tensor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from array_api_compat import array_namespace

from ..factors import Tucker
from ..state import State
from . import validation
from .constants import Levels, levelled, slice_levels, unlike
from .local_observations import LocalObservations
from .models import EntrywiseModel, Index, Trail
from .observations import Measure, Observations, Summary
from .packing import packable
from .robust import threshold
from .slices import SlicePrior, solve_parts
from .tensor_series import interpolated, nothing_left, telling_modes
from .tucker import TensorFit, degrees, ridges, spectra, tucker_factors
from .typical import like_typical, typical_row
from .uncertainty import Spread
from .vouching import own_units

Array = Any
Offsets = tuple[Array | None, ...]

BEYOND = 25.0
"""Multiple of the noise beyond which slices that are solved again disagree with the fit."""

FEW = 3
"""Number of entries that a slice needs for their median to be meaningful."""

SCALES = {
    (False, False): "none",
    (True, False): "rows",
    (False, True): "columns",
    (True, True): "both",
}
"""Names of the scales of slices of mode 0, and of the last mode."""

UNLIKE = 10.0
"""Ratio of deviations of slices above which they may have different units."""


@dataclass(frozen=True, eq=False)
class TensorReading:
    """How the factors of an iterate map to the data.

    Attributes
    ----------
    size : float
        The power of two that the data were divided by.
    offsets : tuple of arrays or None, one per mode
    trail : list of dict
        How the ranks have been found so far.
    center : str
    slice_scale : array of shape (n1,), optional
        The sizes of the slices of mode 0, if they are divided by them.
    level : float
        The mean square towards which the sizes of small slices are shrunk.
    fold : int, optional
        The mode along which the tensor is unfolded to a matrix.
    uneven : bool
        Whether each slice has its own noise level.
    units : tuple of arrays or None, one per mode
        The units of slices that the data were divided by, if any; there are no offsets then.
    """

    size: float
    offsets: Offsets
    trail: Trail = field(default_factory=list)
    center: str = "none"
    slice_scale: Array | None = None
    level: float = 1.0
    fold: int | None = None
    uneven: bool = False
    units: Offsets = ()

    def normalised(self, data: LocalObservations) -> LocalObservations:
        """Return data divided by their magnitude and by the units of slices."""
        return divided(data.scaled(self.size), self.units)

    def applied(self, data: LocalObservations) -> LocalObservations:
        """Return normalised data minus offsets, divided by the sizes of the slices of mode 0."""
        left = data.shifted(self.offsets)
        return left if self.slice_scale is None else left.standardised((self.slice_scale,))

    def errors(self, squares: Array, data: LocalObservations) -> Array:
        """Return squared errors of entries in units of the normalised data."""
        if self.slice_scale is None:
            return squares
        return squares * data.along(0, self.slice_scale**2)

    def values(self, F: Tucker, index: Index) -> Array:
        """Return the values of factors at coordinates, in the units of the data."""
        values = F.gather(index)
        if self.slice_scale is not None:
            values = values * _along(self.slice_scale, 0, len(index), index)
        return _in_units(_with_offsets(values, self.offsets, index), self.size, self.units, index)

    def fit_of(self, state: State, data: LocalObservations, robust: bool) -> TensorFit:
        """Return the result of an interrupted fit from its iterate."""
        F = tucker_factors(state)
        noise = 2 * float(state.value) / max(data.size - degrees(F.ranks, data.shape), 1)
        return TensorFit(spectra(F)[0], noise, threshold(state) if robust else None)


def centred(data: Observations, center: str, robust: bool = False) -> Offsets:
    """Return additive offsets of the slices of some modes, by alternating means or medians."""
    d = len(data.shape)
    every = {"none": (), "rows": (0,), "columns": tuple(range(1, d)), "both": tuple(range(d))}
    modes: Any = every[center]
    if robust:  # the result depends on the order: slices with many entries first
        modes = sorted(modes, key=lambda mode: data.shape[mode])
    offsets: list[Array | None] = [None] * d
    for _ in range(20 if center != "none" else 0):
        for mode in modes:
            offsets[mode] = None
            left = data.shifted(tuple(offsets))
            offsets[mode] = slice_medians(left, mode) if robust else left.means(mode, extra=1)
    return tuple(offsets)


def slice_medians(data: Observations, mode: int) -> Array:
    """Return the medians of the slices of a mode; if entries are few, that of the medians."""
    found, known = data.medians(mode), data.counts(mode) >= FEW
    xp = array_namespace(found)
    some = xp.sort(found[known])
    typical = some[some.shape[0] // 2] if some.shape[0] else 0.0
    return xp.where(known, found, typical + 0 * found)


def units_of_slices(data: LocalObservations, robust: bool = False) -> Offsets:
    """Return the deviations of the slices of the last mode; nothing if they are alike.

    They are often variables of different units, such as a pressure beside a temperature.

    Parameters
    ----------
    data : LocalObservations
    robust : bool
        Whether some entries are grossly wrong.
    """
    last = len(data.shape) - 1
    found, xp = own_units(data, last, robust), array_namespace(data.y)
    if float(xp.max(found)) <= UNLIKE * float(xp.min(found)):
        return ()
    return (*(None for _ in range(last)), xp.astype(found, data.y.dtype))


def slice_sizes(data: LocalObservations, level: float) -> Array:
    """Return the root mean square of every slice of mode 0, shrunk to a level for small ones."""
    squares = data.with_values(data.y * data.y)
    sizes = ((squares.means(0) * data.counts(0) + level) / (data.counts(0) + 1)) ** 0.5
    # slices of zeros have no size
    return array_namespace(sizes).where(sizes > 0, sizes, 1 + 0 * sizes)


@packable
@dataclass(frozen=True, eq=False, kw_only=True)
class TensorModel(EntrywiseModel):
    """A Tucker model with additive offsets, in units of the fit.

    Attributes
    ----------
    factors : Tucker
        The factors used to solve new slices of mode 0.
    solved : Tucker
        The same with the first factor solved again.
    offsets : tuple of arrays or None, one per mode
    own : array of shape (n1,)
        Offsets of the slices of mode 0, found with `solved`.
    own_offset : bool
        Whether slices of mode 0 have offsets.
    ridge_noise : float
        The noise that the ridge assumes.
    center : str
    given_ridge : bool
        Whether the ridge was given rather than learnt.
    slices : tuple of SlicePrior
        Priors of a slice of mode 0, one for each of the variational models whose mean the factors
        are.
    level : float, optional
        The mean square towards which the sizes of small slices are shrunk; None if slices are not
        scaled.
    smooth : tuple of int
        Modes along which neighbours predict the residual of the low-rank part.
    levels : tuple of arrays or None, one per mode
        The values of constant slices, NaN elsewhere.
    slice_units : tuple of arrays or None, one per mode
        The units of slices, which multiply the factors; there are no offsets then.
    typical : array of shape (r_1,), optional
        The mean of the rows of the first factor, for slices of mode 0 without any entry.
    """

    factors: Tucker
    solved: Tucker
    offsets: Offsets = ()
    own: Array = None
    own_offset: bool = False
    ridge_noise: float = 0.0
    center: str = "none"
    given_ridge: bool = False
    slices: tuple[SlicePrior, ...] = ()
    level: float | None = None
    smooth: tuple[int, ...] = ()
    levels: Levels = ()
    slice_units: Offsets = ()
    typical: Array | None = None

    @classmethod
    def of(
        cls,
        fit: TensorFit,
        reading: TensorReading,
        data: LocalObservations,
        settings: dict[str, Any],
        given_ridge: bool,
        smooth: Any = "none",
    ) -> TensorModel:
        """Return the model of a fit: slices of mode 0 solved once more."""
        center, sizes, noise = reading.center, reading.slice_scale, fit.noise
        if sizes is not None:
            xp = array_namespace(sizes)
            counts = data.counts(0)
            noise = noise * float(xp.sum(counts * sizes * sizes) / xp.sum(counts))
        model = cls(
            observations=data,
            size=reading.size,
            noise=noise,
            threshold=fit.threshold,
            settings=settings,
            trail=list(reading.trail),
            factors=fit.factors,
            solved=fit.factors,
            offsets=reading.offsets,
            own_offset=center in ("rows", "both"),
            ridge_noise=fit.noise if fit.ridge_noise is None else fit.ridge_noise,
            center=center,
            given_ridge=given_ridge,
            slices=fit.slices,
            level=None if sizes is None else reading.level,
            levels=slice_levels(data),
            slice_units=reading.units,
            typical=typical_row(fit.factors.factors[0], data.counts(0)),
        )
        F, own = model.solve_slices(data)
        if fit.slices and model._misfit(data, F, own) > BEYOND * model.noise:
            # components nearly cancel each other, so the prior of each does not help
            whole = spectra(fit.factors)[0]
            typical = typical_row(whole.factors[0], data.counts(0))
            plain = replace(model, slices=(), factors=whole, solved=whole, typical=typical)
            other = plain.solve_slices(data)
            if BEYOND * plain._misfit(data, *other) < model._misfit(data, F, own):
                model, (F, own) = plain, other
        ranks = spectra(F)[0].ranks
        lost = sum(b.shape[0] for b in reading.offsets if b is not None)
        left = data.size - degrees(ranks, data.shape) if fit.free is None else fit.free
        free = float(left - lost)
        model = replace(model, solved=F, own=own, free=free)
        rest = model._left(data, F, own)
        if fit.threshold is None and not nothing_left(rest, data):
            model = replace(model, smooth=telling_modes(rest, smooth, seed=0))
        return model

    def _left(self, data: LocalObservations, F: Tucker, own: Array) -> LocalObservations:
        """The residual of the solved slices, in the units of the data."""
        offsets = (own if self.own_offset else None, *self.offsets[1:])
        residual = self.normalised(data).shifted(offsets).residual(F)
        return undone(residual, self.slice_units).scaled(1 / self.size)

    def normalised(self, data: LocalObservations) -> LocalObservations:
        """Return data divided by their magnitude and by the units of slices."""
        data = data.in_precision_of(self.factors.core)
        return divided(data.scaled(self.size), self.slice_units)

    @cached_property
    def _fitted(self) -> Array:
        """The prediction of every entry's residual from its neighbours."""
        return interpolated(self._left(self.observations, self.solved, self.own), self.smooth)

    def _misfit(self, data: LocalObservations, F: Tucker, own: Array) -> float:
        """The mean square of the residual of the solved slices, in units of the fit."""
        offsets = (own if self.own_offset else None, *self.offsets[1:])
        return self.normalised(data).shifted(offsets).residual(F).mean_square()

    def solve_slices(self, data: LocalObservations) -> tuple[Tucker, Array]:
        """Return the rows of the first factor, and the offset of every slice of mode 0."""
        xp, data = array_namespace(data.y), self.normalised(data)
        data = data.shifted((None, *self.offsets[1:]))
        U = self.factors.factors
        own = xp.zeros_like(data.counts(0))
        sizes = own + 1
        if self.level is not None:
            sizes = slice_sizes(data, self.level)
            data = data.standardised((sizes,))
        blank = xp.zeros_like(U[0][:1, :]) + own[:, None]
        F = Tucker((blank, *U[1:]), self.factors.core)
        ridge = ridges(self.factors, self.ridge_noise)[0]
        rounds = 20 if self.own_offset else 1
        if not data.size:
            rounds = 0
        elif self.own_offset and self.slices:
            # rows with a prior leave the mean of a slice to its offset
            own, rounds = data.means(0, extra=1), 2
        for _ in range(rounds):
            shifted = data.shifted((own,)) if self.own_offset else data
            if self.threshold is not None:
                F = shifted.rows_without_outliers(F, 0, self.threshold, ridge)
            elif self.slices:
                F = solve_parts(self.slices, F, shifted)
            else:
                problem = shifted.problem()
                for _ in range(2):
                    F = F.moved(0, -problem.block_step(F, 0, ridge))
            if self.own_offset:
                left = shifted.residual(F)
                robust = self.threshold is not None
                own = own + (slice_medians(left, 0) if robust else left.means(0, extra=1))
        L = like_typical(F.factors[0], data.counts(0), self.typical)
        if self.level is not None:
            L = L * sizes[:, None]
        return F.with_blocks((L, *F.blocks[1:])), own

    def rows_at(self, data: LocalObservations, index: Index | None) -> Array:
        F, own = self.solve_slices(data)
        X = F.full() if index is None else F.gather(index)
        for k, b in enumerate(self.offsets):
            if b is not None:
                X = X + _along(own if k == 0 else b, k, len(self.offsets), index)
        X = _in_units(X, self.size, self.slice_units, index)
        if self.smooth and data.size:
            series = interpolated(self._left(data, F, own), self.smooth)
            X = X + (series if index is None else series[index])
        return levelled(X, self.levels, index)

    # ---- values

    @property
    def all_levels(self) -> Levels:
        return self.levels

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The fitted attributes that do not need a pass over the data."""
        F, values = self._in_fit
        if self.slice_units:
            known = zip(F.factors, self.slice_units, strict=True)
            wide = tuple(U if d is None else U * d[:, None] for U, d in known)
            F, values = spectra(Tucker(wide, F.core))
        offsets = tuple(
            None if b is None else self.size * (self.own if k == 0 else b)
            for k, b in enumerate(self.offsets)
        )
        return {
            "factors_": F,
            "rank_": F.ranks,
            "singular_values_": values,
            "components_": tuple(U.T for U in F.factors),
            "offsets_": offsets,
            "rank_path_": self.trail,
            "noise_variance_": self._noise * self._mean_unit,
            "center_": self.center,
            "scale_": SCALES[self.level is not None, bool(self.slice_units)],
        }

    @cached_property
    def _in_fit(self) -> tuple[Tucker, tuple[Array, ...]]:
        """The higher-order SVD of the factors, not multiplied by units."""
        return spectra(Tucker(self.solved.factors, self.size * self.solved.core))

    @property
    def _noise(self) -> float:
        """The variance of the noise, not multiplied by units."""
        return float(self.noise * self.size * self.size)

    @property
    def _mean_unit(self) -> float:
        """The mean square of the units of entries."""
        found = 1.0
        for mode, d in enumerate(self.slice_units):
            if d is not None:
                counts, xp = self.observations.counts(mode), array_namespace(d)
                found *= float(xp.sum(counts * d * d)) / self.observations.size
        return found

    @property
    def published(self) -> dict[str, Any]:
        found = dict(self.attributes)
        if self.threshold is not None:
            found["threshold_"] = float(self.threshold * self.size) * self._mean_unit**0.5
            found["outliers_"] = unlike(self._summary.outliers, self.levels)
        return found

    @cached_property
    def _summary(self) -> Summary:
        """What the fit leaves of the data."""
        F, offsets = (self.attributes[name] for name in ("factors_", "offsets_"))
        return self.observations.summary(
            F, Measure(offsets, self.size, self.slice_units, self.threshold)
        )

    def at(self, index: Index) -> Array:
        return self.values(self._in_fit[0], index)

    def low_rank_at(self, index: Index) -> Array:
        F, offsets = (self.attributes[name] for name in ("factors_", "offsets_"))
        return levelled(_with_offsets(F.gather(index), offsets, index), self.levels, index)

    def full(self) -> Array:
        return self.values(self._in_fit[0], None)

    def values(self, factors: Tucker, index: Index | None) -> Array:
        X = factors.full() if index is None else factors.gather(index)
        X = _in_units(
            _with_offsets(X, self.attributes["offsets_"], index), 1.0, self.slice_units, index
        )
        if self.smooth:
            X = X + (self._fitted if index is None else self._fitted[index])
        return levelled(X, self.levels, index)

    def unit(self, index: Index | None) -> Array | float:
        return _in_units(1.0, 1.0, self.slice_units, index)

    # ---- how sure it is

    @property
    def sure_of_bias(self) -> bool:
        return not self.given_ridge

    def spread(self) -> Spread:
        found, data = self.attributes, self.observations
        F, noise = self._in_fit[0], self._noise
        data = divided(data, self.slice_units)
        if self.threshold is not None:
            plain = data.shifted(found["offsets_"])
            limit = float(self.threshold * self.size)
            data = replace(data, weight=plain.without_outliers(F, limit).weight)
        offsets = tuple(
            None if b is None else 1 / (data.total_weight(k) + 1)
            for k, b in enumerate(found["offsets_"])
        )
        held = tuple(g for g in ridges(F, noise) if g is not None)
        return Spread(F, data, held, noise, offsets)

    def validate(self) -> None:
        super().validate()
        must, shaped = validation.must, validation.shaped
        shape = self.observations.shape
        must(isinstance(self.factors, Tucker), "no factors")
        first = int(self.factors.shape[0])
        validation.factors(self.factors, Tucker, (first, *shape[1:]))
        validation.factors(self.solved, Tucker, shape)
        must(self.solved.ranks == self.factors.ranks, "a rank")
        validation.number(self.ridge_noise, least=0)
        shaped(self.typical, self.factors.core.shape[:1], optional=True)
        must(isinstance(self.own_offset, bool), "offsets")
        must(isinstance(self.given_ridge, bool), "the ridge")
        for known in self.slices:
            known.validate(self.factors)
        width = sum(known.prior.shape[0] for known in self.slices)
        must(width in (0, self.factors.core.shape[0]), "the priors of slices")
        if self.level is not None:
            validation.number(self.level, least=0)
        must(set(self.smooth) <= set(range(len(shape))), "the modes of neighbours")
        must(self.center in ("none", "rows", "columns", "both"), "a choice")
        must(len(self.offsets) == len(shape), "offsets")
        shaped(self.own, (shape[0],))
        for k, (b, n) in enumerate(zip(self.offsets, shape, strict=True)):
            if b is not None:
                shaped(b, b.shape[:1] if k == 0 else (n,))
        must(len(self.slice_units) in (0, len(shape)), "the units")
        for d, n in zip(self.slice_units, shape, strict=False):
            shaped(d, (n,), optional=True, least=0)
        must(len(self.levels) in (0, len(shape)), "the levels")
        for level, n in zip(self.levels, shape, strict=False):
            validation.levels(level, n)


def _with_offsets(X: Array, offsets: Offsets, index: Index | None) -> Array:
    d = len(offsets)
    return X + sum(_along(b, k, d, index) for k, b in enumerate(offsets) if b is not None)


def _in_units(X: Any, size: float, units: Offsets, index: Index | None) -> Any:
    """Values multiplied by a size and by the units of slices."""
    for k, d in enumerate(units):
        X = X if d is None else X * _along(d, k, len(units), index)
    return X * size


def divided(data: LocalObservations, units: Offsets) -> LocalObservations:
    """Return data divided by the units of slices, if there are any."""
    return data.standardised(units) if units else data


def undone(data: LocalObservations, units: Offsets) -> LocalObservations:
    """Return data that were divided by the units of slices as they were before."""
    return divided(data, tuple(None if d is None else 1 / d for d in units))


def _along(b: Array, mode: int, d: int, index: Index | None) -> Array:
    """Values of the slices of a mode, at coordinates or to be broadcast."""
    xp = array_namespace(b)
    if index is None:
        return xp.reshape(b, [-1 if j == mode else 1 for j in range(d)])
    return xp.take(b, index[mode])
