"""A Gaussian of the rows of a table with few columns, whose correlations are shrunk.

Rows z are normal with mean m and covariance C̃ = (1 − ρ) C + ρ diag C. In units in which diag C is
one, C̃ = R Rᵀ + ρ I: the low-rank model of full rank, with scores that are normal a priori and a
noise that ρ says. The shrinkage ρ is chosen by rows that are left out.

Tables Z are arrays of shape (n, d) with NaN at missing entries, in units of their columns: an entry
is its difference from the mean of the column in standard deviations, or so. The cost grows with
n k³, where k is the smaller of the numbers of missing and of observed entries of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .kernels import Conditionals, backend

Array = Any

RHOS = (0.5, 0.25, 0.12, 0.05, 0.02, 0.006, 0.002, 2e-4)
"""Shrinkages to choose from."""
BOUND = 5.0
"""Errors count up to this many deviations, so that a few gross errors do not decide."""
LEAST = 1e-12
"""Least variance of a column, in its units; that of a constant would vanish."""
PATIENCE = 2
"""How many shrinkages in a row must be worse than the best one to end the path."""


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A normal distribution of rows with shrunk correlations.

    Attributes
    ----------
    mean : array of shape (d,)
    covariance : array of shape (d, d)
        C, before correlations are shrunk.
    shrink : float
        ρ in (0, 1].
    """

    mean: Array
    covariance: Array
    shrink: float

    def __post_init__(self) -> None:
        if not 0 < self.shrink <= 1:
            raise ValueError(f"shrink is {self.shrink}, and must be above 0 and at most 1")

    @cached_property
    def scale(self) -> Array:
        """The standard deviations of the columns."""
        return np.sqrt(np.diagonal(self.covariance))

    @cached_property
    def shrunk(self) -> Array:
        """The covariance (1 − ρ) C + ρ diag C of the model."""
        return self._correlations * np.outer(self.scale, self.scale)

    @cached_property
    def _correlations(self) -> Array:
        """Those of the model: inverting them is safe however much the scales differ."""
        found = (1 - self.shrink) * self.covariance / self.scale[:, None] / self.scale
        np.fill_diagonal(found, 1.0)
        return found

    @cached_property
    def _precision(self) -> Array:
        """The inverse of the correlations."""
        found = np.linalg.inv(self._correlations)
        return (found + found.T) / 2

    def _conditionals(self, Z: Array, **wanted: bool) -> Conditionals:
        """Call the kernel, in units in which the deviations of the model are one."""
        units = (Z - self.mean) / self.scale
        return backend(units).conditionals(units, self._correlations, self._precision, **wanted)


def fit(
    Z: Array,
    shrink: float,
    start: Gaussian | None = None,
    *,
    max_iter: int = 12,
    fine: float = 1e-3,
) -> Gaussian:
    """Fit a Gaussian to rows with missing entries.

    Every iteration takes the moments of the rows given their observed entries, under the shrunk
    covariance. For ρ → 0 this is expectation maximisation; for complete rows C̃ is the posterior
    mode of an inverse Wishart prior around the diagonal.

    Parameters
    ----------
    Z : array of shape (n, d)
        In units of the columns, with NaN at missing entries.
    shrink : float
        ρ in (0, 1].
    start : Gaussian, optional
        The moments to begin with, or else those of independent standard normal columns.
    max_iter : int
    fine : float
        Iterations end when the completed table changes by less than this share of its norm.

    Returns
    -------
    Gaussian
    """
    Z = _table(Z)
    n, d = Z.shape
    mean, covariance = (np.zeros(d), np.eye(d)) if start is None else (start.mean, start.covariance)
    now, before = Gaussian(mean, covariance, shrink), None
    for _ in range(max_iter if n else 0):
        rows = now._conditionals(Z, total=True)
        offset = rows.filled.mean(axis=0)
        moments = (rows.filled.T @ rows.filled + rows.total) / n - np.outer(offset, offset)
        covariance = moments * np.outer(now.scale, now.scale)
        np.fill_diagonal(covariance, np.maximum(np.diagonal(covariance), LEAST))
        filled = rows.filled * now.scale + now.mean
        now = Gaussian(now.mean + now.scale * offset, covariance, shrink)
        change = np.inf if before is None else np.linalg.norm(filled - before)
        if change <= fine * np.linalg.norm(filled):
            break
        before = filled
    return now


def fit_path(
    Z: Array, shrinks: Sequence[float], start: Gaussian | None = None, **options: Any
) -> Iterator[Gaussian]:
    """Fit Gaussians for several shrinkages, each beginning with the moments of the one before.

    Parameters
    ----------
    Z : array of shape (n, d)
    shrinks : sequence of float
        Best in decreasing order: strong shrinkage converges in a few iterations.
    start, **options
        As for `fit`.

    Yields
    ------
    Gaussian
    """
    for shrink in shrinks:
        start = fit(Z, shrink, start, **options)
        yield start


def shrinks_down_to(shrink: float, shrinks: Sequence[float] = RHOS) -> tuple[float, ...]:
    """Return the path that leads to a shrinkage: those above it, and itself."""
    return (*(x for x in shrinks if x > shrink), shrink)


def choose_shrinkage(
    Z: Array,
    shrinks: Sequence[float] = RHOS,
    *,
    groups: Array | None = None,
    centred: bool = False,
    **options: Any,
) -> float:
    """Choose ρ by rows that are left out, each entry predicted from the others of its row.

    Parameters
    ----------
    Z : array of shape (n, d)
    shrinks : sequence of float
        Tried in this order, until two in a row are worse than the best one before.
    groups : integer array of shape (n,), optional
        Rows of the same number are left out together. Without it `row_groups` forms three.
    centred : bool
        Whether the mean of every row was taken off, as if the rows are the columns of a table. An
        entry is a part of this mean, so that errors are larger than they look.
    **options
        As for `fit`.

    Returns
    -------
    float
        ρ for all rows: the best weight of the prior beside more rows of data.
    """
    Z = _table(Z)
    groups = row_groups(Z) if groups is None else np.asarray(groups)
    names = np.unique(groups)
    held, paths = [], []
    for name in names if len(names) > 1 else ():
        centre, scale = _units(Z[groups != name])  # with those of all rows, errors would leak
        units = (Z - centre) / scale
        held.append(units[groups == name])
        paths.append(fit_path(units[groups != name], shrinks, **options))
    errors: list[float] = []
    for found in zip(*paths, strict=True):
        errors.append(sum(_error(*pair, centred) for pair in zip(held, found, strict=True)))
        if len(errors) > PATIENCE and min(errors[-PATIENCE:]) > min(errors[:-PATIENCE]):
            break
    best = shrinks[int(np.argmin(errors))] if errors else shrinks[0]
    more: float = len(names) / max(1, len(names) - 1)
    return float(best / (best + more * (1 - best)))


def row_groups(Z: Array, count: int = 3) -> Array:
    """Divide rows into groups of equal size that do not depend on the order of rows or columns.

    Rows with similar weighted sums of their entries come into different groups, so that groups are
    alike. The weight of a column depends on its entries: without it, rows with the same numbers in
    different places would tie.

    Parameters
    ----------
    Z : array of shape (n, d)
    count : int

    Returns
    -------
    integer array of shape (n,)
    """
    Z = _table(Z)
    # a hole is a number like others, but not zero, which is the most frequent one
    values = np.where(np.isnan(Z), 0.3, np.abs(Z) * np.sqrt(np.abs(Z)) + Z)
    rows = np.zeros(len(Z))
    for _ in range(2):
        columns = _summed(values * (1 + rows)[:, None], 0)
        rows = _summed(values * (1 + columns), 1)
    found = np.empty(len(Z), dtype=np.int64)
    found[np.argsort(rows, kind="stable")] = np.arange(len(Z)) % count
    return found


def complete(Z: Array, gaussian: Gaussian, *, variances: bool = True) -> tuple[Array, Array | None]:
    """Fill missing entries with their means given the observed ones of their row.

    Parameters
    ----------
    Z : array of shape (n, d)
    gaussian : Gaussian
    variances : bool
        Whether to return variances, too.

    Returns
    -------
    filled : array of shape (n, d)
        Z, with estimates in place of NaN.
    variances : array of shape (n, d) or None
        The variances of missing entries, and zeros at observed ones.
    """
    Z = _table(Z)
    rows = gaussian._conditionals(Z, variances=variances)
    filled = np.where(np.isnan(Z), rows.filled * gaussian.scale + gaussian.mean, Z)
    return filled, rows.variances * gaussian.scale**2 if variances else None


def leave_one_out(Z: Array, gaussian: Gaussian) -> tuple[Array, Array]:
    """Predict every entry from the other observed entries of its row.

    Parameters
    ----------
    Z : array of shape (n, d)
    gaussian : Gaussian

    Returns
    -------
    predictions, variances : arrays of shape (n, d)
        At missing entries those of `complete`.
    """
    rows = gaussian._conditionals(_table(Z), others=True)
    return rows.predicted * gaussian.scale + gaussian.mean, rows.variances * gaussian.scale**2


def as_factors(gaussian: Gaussian) -> tuple[Array, float]:
    """Return the model as a low-rank one of full rank.

    In units in which `gaussian.scale` is one, C̃ = R Rᵀ + ρ I. So a centred row has the conditional
    mean R (R_oᵀ R_o + ρ I)⁻¹ R_oᵀ z_o, where R_o are the rows of R of its observed entries: its
    scores are a least-squares solution with the ridge ρ.

    Parameters
    ----------
    gaussian : Gaussian

    Returns
    -------
    R : array of shape (d, q)
        Eigenvectors of the correlations times the roots of (1 − ρ) times their eigenvalues, largest
        first, without those that vanish to rounding.
    noise : float
        ρ.
    """
    plain = gaussian.covariance / gaussian.scale[:, None] / gaussian.scale
    values, vectors = np.linalg.eigh(plain)
    values, vectors = values[::-1] * (1 - gaussian.shrink), vectors[:, ::-1]
    few = values > len(plain) * np.finfo(np.float64).eps * max(1.0, values.max(initial=0.0))
    R = vectors[:, few] * np.sqrt(values[few])
    signs = np.sign(np.sum(R * np.abs(R), axis=0))
    return R * np.where(signs == 0, 1.0, signs), gaussian.shrink


def cost(Z: Array) -> float:
    """Return about how many multiplications an iteration of `fit` takes.

    Choosing ρ and fitting take some 200 iterations. Compiled, a core does 3e9 multiplications per
    second; in NumPy, between a tenth and a fiftieth of that.

    Parameters
    ----------
    Z : array of shape (n, d)

    Returns
    -------
    float
    """
    d = Z.shape[1]
    k = np.count_nonzero(~np.isfinite(Z), axis=1).astype(np.float64)
    p = d - k
    missing, observed = k**3 / 2, p**3 / 6 + p * k * d / 2
    return float(np.sum(np.minimum(missing, observed)) + 2 * len(Z) * d**2 + d**3)


def _table(Z: Array) -> Array:
    """Return a contiguous float64 copy in which what is not finite is NaN."""
    Z = np.array(Z, dtype=np.float64, order="C", ndmin=2)
    Z[~np.isfinite(Z)] = np.nan
    return Z


def _summed(x: Array, axis: int) -> Array:
    """Return sums along an axis in a range of one, the same in whatever order numbers come."""
    found = np.sort(x, axis=axis).sum(axis=axis)
    found -= found.min(initial=0.0)
    return found / max(found.max(initial=0.0), np.finfo(np.float64).tiny)


def _units(Z: Array) -> tuple[Array, Array]:
    """Means and deviations of some rows; the unit counts like one entry of a column."""
    seen = ~np.isnan(Z)
    count = seen.sum(axis=0)
    centre = np.where(seen, Z, 0.0).sum(axis=0) / np.maximum(count, 1)
    squares = (np.where(seen, Z - centre, 0.0) ** 2).sum(axis=0)
    return centre, np.sqrt((squares + 1) / (count + 1))


def _error(Z: Array, gaussian: Gaussian, centred: bool) -> float:
    """The sum of bounded squared errors of observed entries predicted from their rows."""
    errors = np.where(np.isnan(Z), 0.0, leave_one_out(Z, gaussian)[0] - Z)
    if centred:
        count = np.count_nonzero(~np.isnan(Z), axis=1)
        errors *= (1 + 1 / np.maximum(count - 1, 1))[:, None]
    return float(np.sum(np.minimum(errors**2, BOUND**2)))
