"""Thresholds of trimming losses: schedules, and rules that read the residual."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from . import checks
from .kernels import backend
from .namespaces import array_namespace

Array = Any


@dataclass(frozen=True)
class Threshold:
    """The threshold of an iterate, which trimming losses remember for the next.

    Attributes
    ----------
    rule : ThresholdRule or None
        The rule that chose it, which alone may read it; None for fixed schedules.
    t : int
        The iterate.
    value : number or 0-d array
    """

    rule: Any
    t: int
    value: Any


@runtime_checkable
class ThresholdRule(Protocol):
    """A threshold that reads the residual and the last threshold (None at the start)."""

    def pick(self, t: int, residual: Array, last: Any) -> Any:
        """Return the threshold of iterate t."""


def larger(a: Array, b: Any) -> Array:
    """Return the larger of a 0-d array and a number."""
    xp = array_namespace(a)
    return xp.where(a > b, a, xp.zeros_like(a) + b)


def upper_quantile(x: Array) -> Array:
    """Return the 70 % quantile of the |x| that are not zero."""
    n = math.prod(x.shape)
    # zero is relative to the upper fifth, so that a single huge outlier does not make others zero
    upper = float(backend(x).kth_magnitude(x, max(1, n // 5)))
    clear = n - int(backend(x).within(x, 1e-6 * upper)[1])
    return backend(x).kth_magnitude(x, max(1, round(0.3 * clear)))


def thresholds(start: float, first: float, ratio: float) -> Callable[[int], float]:
    """Return the schedule of tensor robust PCA: ζ₀ = start, then ζ_t = first · ratio^(t−1).

    The theorem requires ‖X⋆‖_∞ ≤ start ≤ 2‖X⋆‖_∞, first = 8 √(μ³ r₁r₂r₃ / n₁n₂n₃) σ_min(X⋆) and
    ratio = 1 − 0.45 step; start = first = ‖X⋆‖_∞ takes fewer iterations.

    Parameters
    ----------
    start : float
        The threshold of the start.
    first : float
        The threshold of the first iterate.
    ratio : float in (0, 1]

    Returns
    -------
    callable
        The threshold as a function of t, for `SoftTrim`.

    Examples
    --------
    >>> import scaledgd as sg
    >>> [sg.thresholds(3.0, 2.0, 0.5)(t) for t in range(4)]
    [3.0, 2.0, 1.0, 0.5]
    """
    start = checks.number("start", start, least=0, open_=True)
    first = checks.number("first", first, least=0, open_=True)
    ratio = checks.number("ratio", ratio, least=0, most=1, open_=True)
    return lambda t: first * ratio ** (t - 1) if t else start


@dataclass(frozen=True)
class median_threshold:  # noqa: N801  (reads as a verb's argument, like the step rules)
    """ζ_t = max(multiple · σ̂_t, ratio · ζ_{t−1}): a robust scale of the residual.

    σ̂ = 1.4826 · median|r| estimates the standard deviation of the clean part of a residual,
    whatever a minority of gross errors does; `ratio` keeps the threshold from falling faster than
    the iteration converges. At first, when the residual is the data, σ̂ comes from the 70 %
    quantile of the nonzero values, because most values may be zero.

    Parameters
    ----------
    multiple : float
        The threshold in standard deviations.
    ratio : float in (0, 1]
        Above 1 − step, the rate of ScaledGD: 0.8 suits its default steps, 0.7 a step of 0.4
        or more.
    first : float, optional
        Lower bound of the first threshold.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> float(sg.median_threshold().pick(1, np.asarray([1.0, -1.0, 99.0]), last=0.1))
    4.4478
    """

    multiple: float = 3.0
    ratio: float = 0.8
    first: float | None = None

    def __post_init__(self) -> None:
        checks.number("multiple", self.multiple, least=0, open_=True)
        checks.number("ratio", self.ratio, least=0, most=1, open_=True)

    def scale(self, residual: Array) -> Array:
        """Return `multiple` times σ̂.

        Parameters
        ----------
        residual : array

        Returns
        -------
        0-d array
        """
        return self.multiple * 1.4826 * backend(residual).median_magnitude(residual)

    def pick(self, t: int, residual: Array, last: Any) -> Any:
        """Return the threshold of iterate t.

        Parameters
        ----------
        t : int
        residual : array
        last : number or None
            The last threshold.

        Returns
        -------
        0-d array
        """
        if last is None:
            return self.multiple / 1.0364 * upper_quantile(residual)
        return larger(self.scale(residual), self.ratio * last)
