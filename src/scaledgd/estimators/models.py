"""The common part of models of tables and tensors: values at coordinates and their uncertainty."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Self

from array_api_compat import array_namespace

from ..linalg import smallest
from . import validation
from .constants import Levels
from .local_observations import LocalObservations
from .uncertainty import Spread, conformal_quantile, conformal_scores, student_quantile

Array = Any
Index = tuple[Array, ...]
Trail = list[dict[str, Any]]

CACHES = ("attributes", "_summary", "_fitted", "_in_fit", "_root")
"""Cached properties of models, which are neither pickled nor saved."""


@dataclass(frozen=True, eq=False, kw_only=True)
class EntrywiseModel(ABC):
    """The result of a fit of a table or a tensor.

    Attributes
    ----------
    observations : LocalObservations
        The fitted data, in their own units.
    held : LocalObservations, optional
        The entries held out for conformal intervals.
    scores : array, optional
        Conformal scores of the entries held out, sorted.
    size : float
        The power of two that the data are divided by.
    noise : float
        The variance of the noise, in units of the fit.
    free : float
        The degrees of freedom of the estimate of the noise.
    threshold : float, optional
        The residual that outliers exceed, in units of the fit.
    settings : dict
        The parameters that the model depends on.
    trail : list of dict
        How the rank was found.
    caution : float
        How much larger squared errors of new observations are than the model says, as a factor;
        measured on entries that resemble the missing ones.
    """

    observations: LocalObservations
    held: LocalObservations | None = None
    scores: Array | None = None
    size: float = 1.0
    noise: float = 0.0
    free: float = 0.0
    threshold: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    trail: Trail = field(default_factory=list)
    caution: float = 1.0

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in CACHES}

    def with_same_fit(self, **changes: Any) -> Self:
        """Return the model with other fields that do not change its estimates."""
        other = replace(self, **changes)
        other.__dict__.update({k: self.__dict__[k] for k in CACHES if k in self.__dict__})
        return other

    @property
    @abstractmethod
    def published(self) -> dict[str, Any]:
        """The fitted attributes of the estimator, by name, in the units of the data."""

    @property
    @abstractmethod
    def all_levels(self) -> Levels:
        """The values of constant slices, one array per mode or None."""

    @property
    @abstractmethod
    def sure_of_bias(self) -> bool:
        """Whether the ridge was learnt, so that its bias is part of the variance."""

    @property
    def knows_rows(self) -> bool:
        """Whether the fit knows the uncertainty of every row."""
        return False

    @property
    def in_time(self) -> int | None:
        """The mode whose slices follow each other in time, if there is one."""
        return None

    @abstractmethod
    def spread(self) -> Spread:
        """Return the uncertainty of the factors."""

    @abstractmethod
    def values(self, factors: Any, index: Index | None) -> Array:
        """Return the values of factors of this model, in the units of the data.

        Parameters
        ----------
        factors : Bordered or Tucker
            Those of the model, or others like them.
        index : tuple of integer arrays, one per mode, or None for all entries
        """

    @abstractmethod
    def unit(self, index: Index | None) -> Array | float:
        """Return the units of the variance, at coordinates or everywhere."""

    @abstractmethod
    def at(self, index: Index) -> Array:
        """Return the estimates at coordinates."""

    def low_rank_at(self, index: Index) -> Array:
        """Return the estimates without what neighbours add to them."""
        return self.at(index)

    @abstractmethod
    def full(self) -> Array:
        """Return the whole estimate as an array."""

    @abstractmethod
    def rows_at(self, data: LocalObservations, index: Index | None) -> Array:
        """Return estimates of other rows (slices of mode 0), at coordinates or everywhere."""

    def deviation(self, index: Index) -> Array:
        """Return standard errors at coordinates, including the bias of a given ridge."""
        spread, unit = self.spread(), self.unit(index)
        variance = spread.variance(index)
        if not self.sure_of_bias:
            off = (self.values(spread.factors, index) - self.at(index)) / unit
            variance = variance + off * off
        return array_namespace(variance).sqrt(variance) * unit

    def interval(self, index: Index, level: float, noise: bool) -> tuple[Array, Array]:
        """Return the middle and the half width of intervals.

        Parameters
        ----------
        index : tuple of integer arrays, one per mode
        level : float
        noise : bool
            Whether they are for new observations, not only for the true entries.
        """
        spread = self.spread()
        variance = spread.variance(index)
        if noise:
            variance = self.caution * (variance + spread.noise)
        std = array_namespace(variance).sqrt(variance)
        half = student_quantile(level, self.free) * std * self.unit(index)
        return self.values(spread.factors, index), half

    def conformal_half_width(self, index: Index, level: float) -> Array:
        """Return the half width of conformal intervals for new observations."""
        if self.scores is None:
            raise ValueError(
                'kind="conformal" needs entries that the fit did not see: fit with calibrate=0.1, '
                "which holds out a tenth of them"
            )
        return conformal_quantile(self.scores, level) * self.tolerance(index)

    def tolerance(self, index: Index) -> Array:
        """Return the expected error of a new observation, which is the unit of the scores."""
        spread, xp = self.spread(), array_namespace(self.observations.y)
        std = xp.sqrt(spread.variance(index) + spread.noise)
        little = 1e-12 * self.observations.magnitude() + smallest(std)
        return std * self.unit(index) + little

    def scores_of(self, held: LocalObservations | None, clip: Any) -> Array | None:
        """Return conformal scores of entries that the fit did not see."""
        if held is None:
            return None
        index, xp = held.coordinates, array_namespace(held.y)
        off = xp.abs(held.flat - clip(self.at(index)))
        return conformal_scores(off, self.tolerance(index))

    def validate(self) -> None:
        """Raise a FileError if the model does not make sense."""
        validation.observations(self.observations)
        if self.held is not None:
            validation.observations(self.held)
            validation.must(self.held.shape == self.observations.shape, "what was held out")
        if self.scores is not None:
            validation.shaped(self.scores, (self.scores.shape[0],), least=0)
        validation.must(validation.number(self.size) > 0, "the size")
        validation.number(self.noise, least=0)
        validation.number(self.free)
        validation.must(validation.number(self.caution) > 0, "the caution")
        if self.threshold is not None:
            validation.number(self.threshold, least=0)
        validation.must(isinstance(self.settings, dict), "what the model depends on")
        validation.trail(self.trail)
