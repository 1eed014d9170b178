"""Estimates of the noise, and of gross errors, from residual and uncertainty."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..factors import LowRank
from ..kernels import backend
from ..linalg import epsilon, larger, on_host
from ..namespaces import array_namespace
from ..operators import Operator, Weighted
from ..problems import Observed, View
from .posterior import Left, Pair, Posterior, Rows, not_negative, positive, products

Array = Any


def one_noise(view: View, F: Rows, posterior: Posterior, unsure: Pair, floor: float) -> Posterior:
    """Return the posterior with one noise level for all entries.

    Parameters
    ----------
    view : View
        From the factors F.
    F : LowRank or Bordered
    posterior : Posterior
    unsure : pair of arrays
        Their product is the posterior variance of X.
    floor : float
        The least noise.
    """
    xp, coverage = array_namespace(F.L), view.coverage()
    A, B = unsure
    total = 2 * view.value + xp.sum(products(coverage, 1, A) * B)
    seen = xp.sum(products(coverage, 0, xp.ones_like(F.modes[1][:, :1])))
    noise = total / xp.where(seen > 1, seen, xp.ones_like(seen))
    noise = xp.where(noise > floor, noise, xp.zeros_like(noise) + floor)
    return replace(posterior, noise=on_host(noise))


def noise_of(left: Left, posterior: Posterior, floor: float) -> Posterior:
    """Return the posterior with one noise level, from the remaining squares.

    Parameters
    ----------
    left : Left
    posterior : Posterior
    floor : float
        The least noise.
    """
    return replace(posterior, noise=larger(left.squares / larger(left.seen, 1.0), floor))


def column_noise(problem: Observed, gains: Array, posterior: Posterior, floor: float) -> Posterior:
    """Return the posterior with the noise of every column, from the explained squares.

    Parameters
    ----------
    problem : Observed
    gains : array of shape (n2,)
        The part of the squares of every column that a fit explains, weighted by the posterior.
    posterior : Posterior
    floor : float
        The least noise.
    """
    xp, y, plain = array_namespace(gains), problem.y, _plain(problem.operator)[0]
    whole = _column_sums(plain, y * y)
    squares = whole - (gains if posterior.columns is None else gains * posterior.columns)
    # a difference, which rounding limits to this accuracy
    least = epsilon(y) * whole
    squares = xp.where(squares > least, squares, least)
    seen = _column_sums(plain, xp.ones_like(y))
    of_column, noise = _of_columns(squares, seen, floor)
    weight = 1 / _along_columns(plain, of_column) + xp.zeros_like(y)
    return replace(posterior, noise=noise, columns=of_column, weight=weight)


def entry_noise(
    problem: Observed,
    F: Rows,
    posterior: Posterior,
    unsure: Pair,
    floor: float,
    columns: bool,
    freedom: float | None,
) -> Posterior:
    """Return the posterior with the noise of every column, and with Student weights.

    An entry with residual e and posterior variance s has the weight (ν + 1) / (ν + (e² + s) / σ²),
    where σ² is the noise of its column (Student's t distribution with ν degrees of freedom).

    Parameters
    ----------
    problem : Observed
    F : LowRank or Bordered
    posterior : Posterior
    unsure : pair of arrays
        Their product is the posterior variance of X.
    floor : float
        The least noise.
    columns : bool
        Whether every column has its own noise level.
    freedom : float, optional
        ν; without it, all entries of a column have equal weights.
    """
    operator, y = problem.operator, problem.y
    xp, (plain, worth) = array_namespace(y), _plain(operator)
    left = not_negative(plain.apply(LowRank(*unsure)))
    left = operator.residual(F, y) ** 2 + (left if worth is None else worth * left)
    of_column = posterior.columns
    spread = 1.0 if of_column is None else _along_columns(plain, of_column)
    weight = xp.ones_like(left)
    if freedom is not None:
        expected = positive(posterior.noise * spread + xp.zeros_like(left))
        weight = (freedom + 1) / (freedom + left / expected)
    kept = problem.loss.curvature(left)
    left = weight * left if kept is None else kept * weight * left
    seen = _column_sums(plain, xp.ones_like(left) if kept is None else kept)
    squares = _column_sums(plain, left)
    found, noise = _of_columns(squares, seen, floor)
    if columns:
        of_column, weight = found, weight / _along_columns(plain, found)
    return replace(posterior, noise=noise, columns=of_column, weight=weight)


def _plain(operator: Operator) -> tuple[Operator, Array | None]:
    """The operator without weights, and the weight of every entry."""
    worth = None
    while isinstance(operator, Weighted):
        worth = operator.root**2 if worth is None else worth * operator.root**2
        operator = operator.operator
    return operator, worth


def _of_columns(squares: Array, seen: Array, floor: float) -> tuple[Array, Any]:
    """The relative noise of every column, and the common noise."""
    xp = array_namespace(squares)
    noise = xp.sum(squares) / xp.sum(seen)
    noise = xp.where(noise > floor, noise, xp.zeros_like(noise) + floor)
    # the noise of a column with few entries is shrunk towards that of the others
    of_column = (squares + noise) / (seen + 1) / noise
    return xp.where(of_column > 1e-12, of_column, 1e-12 + 0 * of_column), on_host(noise)


def _column_sums(operator: Operator, values: Array) -> Array:
    """Sums of per-entry values over every column of X."""
    index = operator.coordinates
    if index is None:
        return array_namespace(values).sum(values, axis=0)
    return backend(values).sums(index[1], values, operator.shape[1], values)


def _along_columns(operator: Operator, values: Array) -> Array:
    """One value per column, repeated for every entry."""
    index = operator.coordinates
    return values if index is None else array_namespace(values).take(values, index[1])
