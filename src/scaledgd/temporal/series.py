"""The residual of the low-rank part in every series, interpolated as far as it is predictable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..linalg import like, smallest
from ..namespaces import array_namespace
from .chain import NUMBERS, drawn_chain, evidence, solve_chain
from .prior import Times, kept_and_new, precision

Array = Any

SHARES = (0.03, 0.2, 0.5, 0.8, 0.97)
"""Parts of the variance of a residual that may be predictable."""

ALONE = (0.999, 0.9999)
"""More of them, for series without a low-rank part."""

REACHES = (0.4, 1.5, 5.0, 20.0, 80.0, 400.0)
"""Lengths that are considered, in typical steps."""

FINER = ((1.0, 2.0), (1.0, 0.5), (2.0, 1.0), (0.5, 1.0), (1.0, 1.4), (1.0, 0.7))
"""Factors tried in turn on the odds of the best share, and on the best length."""

LEAST = 1e-8
"""Share of the typical variance of a residual below which a residual counts as zero."""

SHORT, CELLS = 256, 100_000
"""Largest number of steps and cells from which lengths and variances are learnt."""


@dataclass(frozen=True, eq=False)
class Series:
    """Series of the columns: stationary, each with its own variance and length.

    Attributes
    ----------
    variance, length : arrays of shape (n,)
    """

    variance: Array
    length: Array

    def systems(self, times: Times, weight: Array) -> tuple[Array, Array]:
        """Return the precision of every series given its data.

        Parameters
        ----------
        times : Times
        weight : array of shape (T, n)
            One over the noise variance of every entry, zero where nothing is observed.
        """
        D, E = precision(times.steps, self.length)
        return D / self.variance + weight, E / self.variance

    def smoothed(self, times: Times, left: Array, weight: Array) -> tuple[Array, Array]:
        """Return mean and variance of every series.

        Parameters
        ----------
        times : Times
        left : array of shape (T, n)
            The residual to explain.
        weight : array of shape (T, n)
        """
        found = solve_chain(*self.systems(times, weight), weight * left, NUMBERS)
        return found.mean, found.covariance

    def drawn(self, times: Times, weight: Array, z: Array) -> Array:
        """Return a draw of the error of every series, from standard normal numbers."""
        return drawn_chain(*self.systems(times, weight), z, NUMBERS)


def learnt_series(
    times: Times, left: Array, weight: Array, alone: bool = False
) -> tuple[Series, Array]:
    """Return the series and the noise that make the residuals most likely.

    Parameters
    ----------
    times : Times
    left : array of shape (T, n)
        Residuals of the low-rank part.
    weight : array of shape (T, n)
        The weight of every entry; zero where nothing is observed.
    alone : bool
        Whether there is no low-rank part; with one, residuals are hardly free of noise.
    """
    long = max(SHORT, CELLS // left.shape[1])
    if left.shape[0] > long:
        first = (left.shape[0] - long) // 2
        times = Times(times.steps[first : first + long - 1])
        left, weight = left[first : first + long, :], weight[first : first + long, :]
    evidence_of = _Evidence(times, left, weight)
    best = evidence_of.none()
    one = 1 + 0 * left[0, :1]
    for reach in REACHES:
        for share in SHARES + (ALONE if alone else ()):
            best = best.or_better(evidence_of(share * one, reach * one))
    for odds, stretch in FINER:
        now = best.share / (1 - best.share) * odds
        best = best.or_better(evidence_of(now / (1 + now), best.length * stretch))
    best = evidence_of.completed(best)
    return Series(best.share * best.scale, best.length), (1 - best.share) * best.scale


@dataclass(frozen=True, eq=False)
class _Likely:
    """The likelihood of residuals, one number per column.

    Attributes
    ----------
    value : array of shape (n,)
    share, length, scale : arrays of shape (n,)
        The share of the variance that is predictable, the length, and the variance.
    """

    value: Array
    share: Array
    length: Array
    scale: Array

    def or_better(self, other: _Likely) -> _Likely:
        xp = array_namespace(self.value)
        up = other.value > self.value
        names = ("value", "share", "length", "scale")
        return _Likely(*(xp.where(up, getattr(other, k), getattr(self, k)) for k in names))


class _Evidence:
    """The likelihood of residuals, as a function of share and length."""

    def __init__(self, times: Times, left: Array, weight: Array) -> None:
        xp = array_namespace(left)
        self.times, self.left, self.weight = times, left, weight
        self.count = xp.sum(xp.astype(weight > 0, left.dtype), axis=0)
        self.some = xp.where(self.count > 0, self.count, xp.ones_like(self.count))
        self.squares = xp.sum(weight * left * left, axis=0)
        self.logs = xp.sum(xp.log(xp.where(weight > 0, weight, xp.ones_like(weight))), axis=0)
        # a column that is explained, or constant, leaves no residual
        self.least = LEAST * xp.sum(self.squares) / xp.sum(self.some) + smallest(left)

    def none(self) -> _Likely:
        ones = 1 + 0 * self.squares
        return _Likely(-array_namespace(ones).inf * ones, 0.5 * ones, ones, ones)

    def completed(self, best: _Likely) -> _Likely:
        """Fill in columns without entries from the others."""
        xp, seen = array_namespace(self.count), self.count > 0
        known = xp.nonzero(seen)[0]
        if known.shape[0] in (0, seen.shape[0]):
            return best
        middle = known.shape[0] // 2
        typical = {
            k: xp.sort(xp.take(getattr(best, k), known))[middle]
            for k in ("share", "length", "scale")
        }
        return replace(best, **{k: xp.where(seen, getattr(best, k), v) for k, v in typical.items()})

    def __call__(self, share: Array, length: Array) -> _Likely:
        """Return the likelihood of columns, given a share and a length for each, or for all.

        Parameters
        ----------
        share, length : arrays of shape (n,) or (1,)
        """
        xp, (T, _) = array_namespace(share), self.left.shape
        D, E = precision(self.times.steps, length)
        w = self.weight / (1 - share)
        determinant, explained = evidence(D / share + w, E / share, w * self.left)
        ratio = like(self.times.steps, share)[:, None] / length
        free = xp.sum(xp.log(kept_and_new(ratio)[1]), axis=0)
        # of the covariance of the data, with the scale that fits best
        total = determinant + free + T * xp.log(share) + self.count * xp.log(1 - share) - self.logs
        scale = (self.squares / (1 - share) - explained) / self.some
        scale = xp.where(scale > self.least, scale, self.least + 0 * scale)
        return _Likely(-0.5 * (self.count * xp.log(scale) + total), share, length, scale)
