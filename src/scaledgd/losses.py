"""Losses turn a residual into a value and a weight, which is the gradient of the value.

Gross corruptions are not state of an algorithm but part of its loss: if S is the part of −r that a
trimming rule keeps, r + S is a function of the residual r alone. Rules that change from iterate to
iterate (which entries are trimmed, at which threshold) are fixed by `freeze`, so that a line search
compares values of one function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from array_api_compat import device

from . import checks
from .kernels import backend, numbered
from .linalg import is_complex, square
from .namespaces import array_namespace
from .thresholds import Threshold, ThresholdRule, larger, median_threshold, upper_quantile

if TYPE_CHECKING:
    from .operators import Operator

Array = Any


class Loss:
    """A loss on residuals r = A(X) − y. Base class of all losses.

    A subclass must have `__call__`. Losses whose rule changes from iterate to iterate have `freeze`
    instead, which returns the loss of one iterate.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> class Cosh(sg.Loss):
    ...     def __call__(self, residual, t=0):
    ...         return np.sum(np.log(np.cosh(residual))), np.tanh(residual)
    ...
    ...     def curvature(self, residual):
    ...         return np.ones_like(residual)  # the second derivative is at most 1
    >>> value, weight = Cosh()(np.asarray([0.0, 20.0]))
    >>> float(value.round(3)), weight
    (19.307, array([0., 1.]))
    """

    comparable: ClassVar[bool] = True
    """Whether values at different iterates are values of one function."""

    smooth: ClassVar[bool] = True
    """Whether the weight is a gradient, not only a subgradient."""

    least_squares: ClassVar[bool] = False
    """Whether it is ½ Σ |r|², over all residuals or over those in `kept`."""

    even: ClassVar[bool] = False
    """Whether r and −r are known to have the same loss."""

    kept: Array | None = None
    """Which residuals are kept, for least squares over some of them."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # a subclass of Squared that overrides `__call__` is not least squares
        if "__call__" in vars(cls) or "freeze" in vars(cls):
            cls.least_squares = vars(cls).get("least_squares", False)
            cls.even = vars(cls).get("even", False)

    def bind(self, operator: Operator) -> Loss:
        """Return the same loss, adapted to the measurements of an operator.

        Parameters
        ----------
        operator : Operator

        Returns
        -------
        Loss
        """
        return self

    def without_residual(self) -> Loss:
        """Return the loss without a residual that it may store.

        Returns
        -------
        Loss
        """
        return self

    def freeze(self, residual: Array, t: int, memory: Any) -> tuple[Loss, Any]:
        """Return the loss of iterate t, and what to remember for the next.

        Parameters
        ----------
        residual : array
        t : int
        memory : object
            What this loss asked to remember at the last iterate; None at first.

        Returns
        -------
        loss : Loss
        memory : object
        """
        return self, memory

    def __call__(self, residual: Array, t: int = 0) -> tuple[Array, Array]:
        """Return the value, a 0-d array, and the weight, an array like the residual."""
        frozen, _ = self.freeze(residual, t, None)
        if frozen is self:
            raise NotImplementedError(f"{type(self).__name__} must define __call__ or freeze")
        return frozen(residual)

    def value(self, residual: Array) -> Array:
        """Return the value alone.

        Parameters
        ----------
        residual : array

        Returns
        -------
        0-d array
        """
        return self(residual)[0]

    @property
    def fixed(self) -> bool:
        """Whether the weights of a frozen loss are the same for all residuals."""
        return self.least_squares

    def curvature(self, residual: Array) -> Array | None:
        """Return the weights of a least-squares bound that touches the frozen loss here.

        Methods that solve blocks need them. Bounds on the second derivative are valid weights; None
        means that all of them are 1.

        Parameters
        ----------
        residual : array

        Returns
        -------
        array like the residual, or None
        """
        raise TypeError(
            f"{type(self).__name__} has no curvature, which methods that solve blocks need; "
            "define curvature(residual), or use ScaledGD with a step rule"
        )

    def clean(self, y: Array) -> Array:
        """Return the data for the spectral start.

        Parameters
        ----------
        y : array

        Returns
        -------
        array like y
        """
        return y


@dataclass(frozen=True)
class Squared(Loss):
    """Least squares, ½ Σ |r|².

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> value, weight = sg.Squared()(np.asarray([3.0, -4.0]))
    >>> float(value), weight
    (12.5, array([ 3., -4.]))
    """

    least_squares = True
    even = True

    def __call__(self, residual: Array, t: int = 0) -> tuple[Array, Array]:
        return 0.5 * square(residual), residual

    def curvature(self, residual: Array) -> Array | None:
        return None


@dataclass(frozen=True)
class Absolute(Loss):
    """Least absolute deviations, Σ |r|, with the subgradient r / |r| (0 at 0).

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> value, weight = sg.Absolute()(np.asarray([3.0, -4.0]))
    >>> float(value), weight
    (7.0, array([ 1., -1.]))
    """

    smooth = False
    even = True

    def __call__(self, residual: Array, t: int = 0) -> tuple[Array, Array]:
        xp = array_namespace(residual)
        return xp.sum(xp.abs(residual)), xp.sign(residual)


@dataclass(frozen=True, eq=False)
class Kept(Loss):
    """Least squares over the entries that were not trimmed."""

    kept: Array
    known: tuple[Array, Array] | None = None
    """A residual, and the sum of squares of its kept entries."""

    least_squares = True

    def __call__(self, residual: Array, t: int = 0) -> tuple[Array, Array]:
        xp = array_namespace(residual)
        return Squared()(xp.where(self.kept, residual, xp.zeros_like(residual[:1, ...])))

    def without_residual(self) -> Kept:
        return replace(self, known=None)

    def value(self, residual: Array) -> Array:
        if self.known is not None and residual is self.known[0]:
            return 0.5 * array_namespace(residual).asarray(self.known[1], dtype=residual.dtype)
        return 0.5 * backend(residual).kept_squares(residual, self.kept)

    def curvature(self, residual: Array) -> Array:
        return array_namespace(residual).astype(self.kept, residual.dtype)


@dataclass(frozen=True, eq=False)
class Reweighted(Loss):
    """Least squares with a weight per measurement, over the entries another frozen loss keeps."""

    weight: Array
    inside: Loss

    @property
    def fixed(self) -> bool:
        return self.inside.fixed

    def __call__(self, residual: Array, t: int = 0) -> tuple[Array, Array]:
        gradient = self.curvature(residual) * residual
        return 0.5 * array_namespace(residual).sum(gradient * residual), gradient

    def curvature(self, residual: Array) -> Array:
        kept = self.inside.curvature(residual)
        return self.weight if kept is None else kept * self.weight


@dataclass(frozen=True, eq=False)
class TopTrim(Loss):
    """Hard trimming of the largest residuals of every row and column, ½ ‖r − T[r]‖².

    An entry is trimmed if it is among the largest of its row *and* of its column (for tensors, of
    every fibre through it). With corruptions in a fraction α of each row and column, the start
    trims T_α and the iterations T_2α (Algorithm 2).

    Parameters
    ----------
    fraction : float in [0, 1]
        α, the largest fraction of corrupted entries in any row or column.
    fibres : tuple of arrays, optional
        Set by `bind`: the fibres of the observed entries, or empty if all are observed.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> trim = sg.TopTrim(0.25).bind(sg.Full((2, 2)))
    >>> trim(np.asarray([[9.0, 1.0], [1.0, 1.0]]))[1]
    array([[0., 1.],
           [1., 1.]])
    """

    fraction: float
    fibres: tuple[Array, ...] | None = None
    """None until bound; then those of the observed entries, or empty if all are observed."""

    comparable = False
    even = True

    def __post_init__(self) -> None:
        fraction = checks.number("fraction", self.fraction, least=0, most=1)
        object.__setattr__(self, "fraction", fraction)

    def bind(self, operator: Operator) -> Loss:
        index = operator.coordinates
        if operator.measured != operator.shape and index is None:
            raise TypeError(
                f"TopTrim trims rows and columns, which the measurements of "
                f"{type(operator).__name__} do not have; use SoftTrim or Absolute"
            )
        return TopTrim(self.fraction, () if index is None else _fibres(index, operator.shape))

    def freeze(self, residual: Array, t: int, memory: Any) -> tuple[Loss, Any]:
        return Kept(~self._largest(residual, min(2 * self.fraction, 1.0))), memory

    def clean(self, y: Array) -> Array:
        xp = array_namespace(y)
        return xp.where(self._largest(y, self.fraction), xp.zeros_like(y), y)

    def _largest(self, x: Array, fraction: float) -> Array:
        """Return where T_fraction[x] keeps x."""
        if self.fibres is None:
            raise TypeError("this TopTrim is not bound to rows and columns; call bind(operator)")
        size = array_namespace(x).abs(x)
        if self.fibres:
            return _largest_entries(size, self.fibres, fraction)
        return _largest_dense(size, fraction)


def _quota(fraction: float, n: int) -> int:
    """⌊fraction · n⌋, tolerant of rounding in products such as 0.1 · 30."""
    return math.floor(fraction * n + 1e-9)


def _largest_dense(size: Array, fraction: float) -> Array:
    """Return where entries are among the ⌊fraction · n⌋ largest of every fibre through them."""
    xp = array_namespace(size)
    chosen = xp.ones_like(size, dtype=xp.bool)
    for axis, n in enumerate(size.shape):
        k = _quota(fraction, n)
        if k == 0:
            return xp.zeros_like(chosen)
        top = size >= backend(size).kth_largest(size, k, axis)
        if int(xp.max(xp.count_nonzero(top, axis=axis))) > k:  # ties: take exactly k, in order
            order = xp.argsort(size, axis=axis, descending=True, stable=True)
            top = xp.argsort(order, axis=axis, stable=True) < k
        chosen = chosen & top
    return chosen


def _fibres(index: tuple[Array, ...], shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Return for every mode the number of the fibre along it that each entry lies on."""
    xp = array_namespace(*index)
    modes = range(len(shape))
    return tuple(xp.unique_inverse(numbered(index, shape, skip=k))[1] for k in modes)


def _largest_entries(size: Array, fibres: tuple[Array, ...], fraction: float) -> Array:
    """Return where entries are among the ⌊fraction · n⌋ largest observed ones of their fibres."""
    xp = array_namespace(size)
    position = xp.arange(size.shape[0], dtype=xp.int64, device=device(size))
    by_size = xp.argsort(size, descending=True, stable=True)
    chosen = xp.ones_like(size, dtype=xp.bool)
    for fibre in fibres:
        order = xp.take(by_size, xp.argsort(xp.take(fibre, by_size), stable=True))
        fibre = xp.take(fibre, order)
        every = xp.arange(int(fibre[-1]) + 2, dtype=fibre.dtype, device=device(fibre))
        starts = xp.searchsorted(fibre, every)
        observed = xp.astype(starts[1:] - starts[:-1], xp.float64)
        quota = xp.astype(xp.floor(fraction * observed + 1e-9), xp.int64)
        top = position - xp.take(starts, fibre) < xp.take(quota, fibre)
        chosen = chosen & xp.take(top, xp.argsort(order, stable=True))
    return chosen


@dataclass(frozen=True, eq=False)
class _Huber(Loss):
    """min over S of ½‖r + S‖² + ζ‖S‖₁; the weight is r clipped to magnitude ζ."""

    threshold: float | Array

    def __call__(self, residual: Array, t: int = 0) -> tuple[Array, Array]:
        xp = array_namespace(residual)
        weight, size = _clip(residual, self.threshold)
        return xp.sum(size * (xp.abs(residual) - 0.5 * size)), weight

    def curvature(self, residual: Array) -> Array | None:
        return None  # at most 1


def _clip(x: Array, threshold: float | Array) -> tuple[Array, Array]:
    """Return x with magnitudes cut at the threshold, and those magnitudes."""
    xp = array_namespace(x)
    size = xp.abs(x)
    cut = xp.where(size > threshold, xp.zeros_like(size) + threshold, size)
    if is_complex(x):
        return x * (cut / xp.where(size > 0, size, xp.ones_like(size))), cut
    return xp.sign(x) * cut, cut


@dataclass(frozen=True, eq=False)
class SoftTrim(Loss):
    """Soft trimming: the Huber function of the residual, whose threshold moves with t.

    The corruption S = −T_soft[r] is what exceeds the threshold ζ, so the weight is
    r clipped to ±ζ (Algorithm 5).

    Parameters
    ----------
    schedule : number, callable or rule
        A number is a fixed threshold. A callable gives ζ_t: schedule(0) for the start and
        schedule(t + 1) at iterate t. A rule has a method ``pick(t, residual, last)``
        that may read the residual and the last threshold, such as `median_threshold`.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> value, weight = sg.SoftTrim(lambda t: 2.0)(np.asarray([1.0, -5.0]))
    >>> float(value), weight
    (8.5, array([ 1., -2.]))
    """

    schedule: float | Callable[[int], Any] | ThresholdRule

    comparable = False
    even = True

    def __post_init__(self) -> None:
        if isinstance(self.schedule, type):
            raise TypeError(f"write {self.schedule.__name__}(), not {self.schedule.__name__}")
        if not (callable(self.schedule) or isinstance(self.schedule, ThresholdRule)):
            threshold = checks.number("schedule", self.schedule, least=0, open_=True)
            object.__setattr__(self, "schedule", threshold)

    def freeze(self, residual: Array, t: int, memory: Any) -> tuple[Loss, Any]:
        memory = self._at(residual, t, memory)
        return _Huber(memory.value), memory

    def _at(self, residual: Array, t: int, memory: Any) -> Threshold:
        """Return the threshold of iterate t."""
        if not isinstance(self.schedule, ThresholdRule):
            return Threshold(None, t, self._threshold(t + 1, residual, None))
        known = self._known(memory)
        # evaluating the same iterate twice (when a run is resumed) must not move it twice
        if known is not None and known.t == t:
            return known
        last = None if known is None else known.value
        return Threshold(self.schedule, t, self._threshold(t + 1, residual, last))

    def _known(self, memory: Any) -> Threshold | None:
        """Return what was remembered, if by this rule."""
        own = isinstance(memory, Threshold) and memory.rule == self.schedule
        return memory if own else None

    def clean(self, y: Array) -> Array:
        return _clip(y, self._threshold(0, y, None))[0]

    def _threshold(self, t: int, residual: Array, last: Any) -> Any:
        if isinstance(self.schedule, ThresholdRule):
            return self.schedule.pick(t, residual, last)
        if not callable(self.schedule):
            return self.schedule
        return checks.number(f"schedule({t})", self.schedule(t), least=0)


@dataclass(frozen=True, eq=False)
class HardTrim(SoftTrim):
    """Least squares over the residuals that do not exceed a threshold.

    Larger residuals are rejected. Unlike soft trimming, this does not slow down `Alternating`,
    which solves the least squares over the rest exactly. The start ignores data beyond three robust
    standard deviations.

    Parameters
    ----------
    schedule : number, callable or rule
        As for `SoftTrim`. A threshold that falls fast is the safest choice here: by default
        ``median_threshold(ratio=0.5)``.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> value, weight = sg.HardTrim(2.0)(np.asarray([1.0, 5.0]))
    >>> float(value), weight
    (0.5, array([1., 0.]))
    """

    schedule: float | Callable[[int], Any] | ThresholdRule = field(
        default_factory=lambda: median_threshold(ratio=0.5)
    )

    even = True

    def freeze(self, residual: Array, t: int, memory: Any) -> tuple[Loss, Any]:
        rule, known = self.schedule, self._known(memory)
        if isinstance(rule, median_threshold) and (known is None or known.t != t):
            # the start has seen the data: from the first iterate on, the median of the residual
            # decides
            floor = (rule.first or 0.0) if known is None else rule.ratio * known.value
            scale = rule.scale(residual)
            kept, _, squares, largest = backend(residual).within(residual, larger(scale, floor))
            # it can fall at once to the largest kept residual without rejecting more
            return Kept(kept, (residual, squares)), Threshold(rule, t, larger(scale, largest))
        memory = self._at(residual, t, memory)
        if getattr(memory.value, "ndim", 0):
            return Kept(array_namespace(residual).abs(residual) <= memory.value), memory
        kept, _, squares, _ = backend(residual).within(residual, memory.value)
        return Kept(kept, (residual, squares)), memory

    def clean(self, y: Array) -> Array:
        if not isinstance(self.schedule, ThresholdRule):
            return super().clean(y)
        return y * array_namespace(y).astype(self.clear(y), y.dtype)

    def clear(self, y: Array) -> Array:
        """Return where data are within three robust standard deviations of those not zero.

        Parameters
        ----------
        y : array

        Returns
        -------
        boolean array like y
        """
        return backend(y).within(y, 3 / 1.0364 * upper_quantile(y))[0]
