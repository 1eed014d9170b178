"""The interface between fitting code and the observed entries of a matrix or a tensor.

The fitting code asks an `Observations` for sizes, sums, quantiles and problems, and never sees
values or coordinates. So an implementation may store them anywhere; `LocalObservations` keeps
them in the memory of one machine or device.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

from array_api_compat import array_namespace, device

from ..ambient import Ambient
from ..factors import Bordered, LowRank, Tucker
from ..losses import Loss
from ..problems import Observed

Array = Any
Model = LowRank | Bordered | Tucker

MOST = 1 / 3
"""Largest share of entries that may be errors."""

MULTIPLE = 3.0
"""Standard deviations beyond which a residual counts as an outlier."""

WITHIN = 0.97334
"""The variance of a standard normal number, given that it is within three."""


class Observations(ABC):
    """Observed entries of an array; an implementation decides where they are stored.

    Arrays that are returned have one number per slice of a mode, unless stated otherwise.
    Modes are numbered from 0.
    """

    shape: tuple[int, ...]

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of observed entries."""

    @property
    def fraction(self) -> float:
        """The fraction of the entries that was observed."""
        return self.size / math.prod(self.shape)

    @property
    def complete(self) -> bool:
        """Whether every entry is observed, and the data are stored as a whole array."""
        return False

    @property
    @abstractmethod
    def example(self) -> Array:
        """An array of the library, dtype and device of the values."""

    @property
    def places(self) -> tuple[Any, ...]:
        """The positions of rows and columns in an order that depends on values; or empty."""
        return ()

    def in_single(self) -> Self | None:
        """Return the values in single precision, if there are so many that it is worth it."""
        return None

    def owned(self) -> Self:
        """Return observations that share no memory with the caller."""
        return self

    def blank(self, mode: int, width: int) -> Array:
        """Return zeros of shape (n, width), with a row for every slice of a mode."""
        zeros = array_namespace(self.example).zeros_like(self.counts(mode))[:, None]
        return (
            zeros[:, :width]
            if width < 2
            else array_namespace(zeros).concat([zeros] * width, axis=1)
        )

    @abstractmethod
    def counts(self, mode: int) -> Array:
        """Return the number of entries in every slice of a mode, as floats."""

    def by_counts(self, seed: int) -> list[Array]:
        """Return the position of every slice in its mode, in descending order of entries.

        Ties are broken by numbers that are evenly spread in [0, 1), and the same on all devices.
        """
        xp, found = array_namespace(self.example), []
        for mode, n in enumerate(self.shape):
            every = seed % 2**16 + xp.arange(n, dtype=xp.int64, device=device(self.example))
            spread = xp.astype(every * 2654435761 % 2**32, xp.float64) / 2**32
            counts = xp.astype(self.counts(mode), xp.float64) + spread
            found.append(xp.argsort(xp.argsort(-counts, stable=True), stable=True))
        return found

    @abstractmethod
    def means(self, mode: int, extra: float = 0.0) -> Array:
        """Return the mean of every slice, with `extra` additional zero entries; 0 if empty."""

    @abstractmethod
    def medians(self, mode: int) -> Array:
        """Return the lower median of every slice; 0 if empty."""

    @abstractmethod
    def squares(self, mode: int, robust: bool = False) -> Array:
        """Return the sum of squared deviations from the mean in every slice.

        If `robust`, the count times the square of a scaled median absolute deviation.
        """

    @property
    @abstractmethod
    def constant(self) -> bool:
        """Whether all values are equal."""

    @abstractmethod
    def mean(self) -> float:
        """Return the mean of all values."""

    @abstractmethod
    def mean_square(self) -> float:
        """Return the mean square of all values."""

    @abstractmethod
    def magnitude(self) -> float:
        """Return a power of two near the root mean square, by which division is exact."""

    @abstractmethod
    def typical(self, quantile: float = 0.5) -> float:
        """Return a quantile of the nonzero magnitudes."""

    @abstractmethod
    def scaled(self, size: float) -> Self:
        """Return the values divided by a power of two."""

    @abstractmethod
    def standardised(self, scales: tuple[Array | None, ...], mean: float = 0.0) -> Self:
        """Return the values divided by one scale per slice and mode, minus a mean."""

    @abstractmethod
    def shifted(self, offsets: tuple[Array | None, ...]) -> Self:
        """Return the values minus one offset per slice and mode."""

    @abstractmethod
    def residual(self, factors: Model) -> Self:
        """Return the values minus those of a model."""

    @abstractmethod
    def split(self, fraction: float, seed: int, parts: int = 1) -> list[tuple[Self, Self]]:
        """Return pairs of entries to fit and entries to predict.

        The entries to predict are disjoint and resemble the missing ones: single entries, or gaps.
        They depend only on the seed and the coordinates. At most about 200,000 entries are held out
        at a time.
        """

    @abstractmethod
    def core(self, most: int, seed: int) -> Self:
        """Return about `most` entries: the densest rows and columns, as square as possible."""

    @abstractmethod
    def sampled(self, mode: int, count: int, seed: int) -> Self:
        """Return the entries of some slices of a mode, drawn at random and renumbered."""

    @abstractmethod
    def slices(self, mode: int, chosen: Array) -> Self:
        """Return the entries of some slices of a mode, renumbered."""

    @abstractmethod
    def stacked(self, other: Self) -> Self:
        """Return these entries and those of other slices of mode 0, below them."""

    @abstractmethod
    def components(self) -> int:
        """Return the number of connected parts of the graph that joins rows and columns."""

    @abstractmethod
    def component_labels(self) -> list[Any]:
        """Return the part that every slice belongs to, one NumPy array per mode."""

    @abstractmethod
    def problem(self, loss: Loss | None = None) -> Observed:
        """Return the recovery problem of these entries, weighted if they are."""

    @abstractmethod
    def squared_errors(self, factors: Model, scales: Any = None) -> Array:
        """Return squared errors of a model, one per entry; for held-out parts, which are small.

        Parameters
        ----------
        factors : LowRank, Bordered or Tucker
        scales : Scales, optional
            Convert the values of the model to the units of the entries.
        """

    @abstractmethod
    def residual_scale(self, factors: Model) -> float:
        """Return a robust standard deviation of the residual of a model."""

    @abstractmethod
    def residual_quantile(self, factors: Model, fraction: float) -> float:
        """Return the magnitude that a fraction of the residuals exceeds."""

    @abstractmethod
    def within(self, factors: Model, limit: float) -> int:
        """Return how many residuals of a model do not exceed a limit."""

    @abstractmethod
    def rejected(self, factors: Model, limit: float) -> tuple[float, list[Array]]:
        """Return the share of entries whose residual exceeds a limit: of all, and per slice."""

    @abstractmethod
    def clean_residual(self, factors: Model) -> tuple[Ambient, float, float]:
        """Return the residual without outliers, its root mean square, and the share kept.

        Both numbers are relative to all entries of the array, observed or not.
        """

    @abstractmethod
    def rows_without_outliers(
        self, factors: Model, mode: int, floor: float, ridge: Array | None = None
    ) -> Model:
        """Return the model with every slice of a mode solved again, rejecting its outliers.

        Each slice starts from zero, with its own threshold that falls to `floor`, so that no slice
        depends on another.
        """


@dataclass(frozen=True, eq=False)
class Measure:
    """How the residuals of a fit are measured, and which are outliers.

    Attributes
    ----------
    offsets : tuple of arrays or None, one per mode
        Added to the estimate, which is in the units of the data.
    size : float
    scales : tuple of arrays or None, one per mode
        The residual is measured in units of `size` times the scales.
    threshold : float, optional
        Residuals above it, in these units, are outliers.
    robust_scale : bool
        Whether to compute a robust standard deviation as well.
    limits : array of shape (n2,), optional
        The residuals that outliers of every column of a table exceed, instead of the threshold.
    """

    offsets: tuple[Array | None, ...] = ()
    size: float = 1.0
    scales: tuple[Array | None, ...] = ()
    threshold: float | None = None
    robust_scale: bool = False
    limits: Array | None = None


@dataclass(frozen=True, eq=False)
class Summary:
    """Residual statistics and outliers of a fit.

    Attributes
    ----------
    count : float
        Entries that are not outliers.
    squares : float
        The sum of squares of their residuals, in units of the fit.
    mean_unit : float
        The mean square of those units.
    outliers : SciPy sparse array, optional
        The data minus the estimate, at outliers.
    scale : float, optional
        A robust standard deviation of all residuals, if requested.
    """

    count: float
    squares: float
    mean_unit: float
    outliers: Any = None
    scale: float | None = None


def position_of(fraction: float, size: int) -> int:
    """The position in descending order that a fraction of the magnitudes precedes."""
    return min(size, max(1, math.ceil(fraction * size) + 1))


def same_library(a: Observations, b: Observations) -> bool:
    """Whether the arrays of two sets of observations are of the same library."""
    return array_namespace(a.example) is array_namespace(b.example)
