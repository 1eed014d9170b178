"""A low-rank table whose rows follow each other in time, with a series for every column.

X[t, j] = Σ_k L[t, k] R[j, k] + s_j(t) + noise of column j. Every column of L, and every s_j, is a
stationary series with its own variance and length, both learnt; a short length means no memory.
Rows of L, rows of R and the series are solved in turn, each given the posterior of the others
(variational Bayes), at a cost that is linear in the number of entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..linalg import identity, invert_systems, like, to_host
from ..namespaces import array_namespace
from ..variational.posterior import positive
from .chain import MATRICES, Solved, drawn_chain, solve_chain
from .prior import Times, learnt_lengths, precision
from .series import Series, learnt_series

Array = Any

FLOOR = 1e-8
"""Share of the mean square of the data below which a variance counts as zero."""

SMALL = 1e-6
"""Share of the variance of a component below which a wave counts as zero."""

ROUNDS = 10
"""Number of rounds in which rows and series are solved, for rows of a fitted table."""

WHOLLY = 0.99
"""Share of an entry in its own estimate beyond which nothing else says what it should be."""

LEARNT = (1, 5)
"""Number of rounds in which variances and lengths of new series are learnt."""


@dataclass(frozen=True, eq=False)
class Table:
    """Values and their weights, with rows in the order of time.

    Attributes
    ----------
    Z : array of shape (T, n)
        Zero where nothing is observed.
    weight : array of shape (T, n)
        Zero where nothing is observed.
    times : Times
    season : array of shape (T, h)
        Waves of known periods; h may be zero.
    """

    Z: Array
    weight: Array
    times: Times
    season: Array

    @cached_property
    def count(self) -> Array:
        """The number of entries of every column."""
        xp = array_namespace(self.Z)
        return xp.sum(xp.astype(self.weight > 0, self.Z.dtype), axis=0)

    @cached_property
    def mean_square(self) -> float:
        """That of all entries."""
        xp = array_namespace(self.Z)
        seen = xp.astype(self.weight > 0, self.Z.dtype)
        return float(xp.sum(seen * self.Z**2) / xp.sum(seen))


@dataclass(frozen=True, eq=False)
class Smooth:
    """Everything that was learnt except the rows: what other rows need.

    Attributes
    ----------
    R : array of shape (n, r)
    covariance : array of shape (n, r, r)
        Of the rows of R.
    prior : array of shape (r,)
        The variance of the columns of L about their season.
    spread : array of shape (r,)
        The prior variance of the columns of R.
    length : array of shape (r,)
    season : array of shape (h, r)
        The coefficients of every wave in the columns of L.
    noise : array of shape (n,)
        The variance of the noise of every column.
    series : Series
    freedom : float, optional
        Degrees of freedom of Student noise, for gross errors.
    """

    R: Array
    covariance: Array
    prior: Array
    spread: Array
    length: Array
    season: Array
    noise: Array
    series: Series
    freedom: float | None = None

    @property
    def relevance(self) -> Array:
        """How well the data determine every column of R, from 0 to 1."""
        xp = array_namespace(self.R)
        unsure = xp.mean(xp.linalg.diagonal(self.covariance), axis=0)
        return to_host(1 - unsure / self.spread)

    def chain(self, table: Table, weight: Array, left: Array) -> tuple[Array, Array, Array]:
        """Return diagonal, lower diagonal and right side of the systems of the rows of L."""
        n, r = self.R.shape
        xp = array_namespace(self.R)
        moments = xp.reshape(_outer(self.R) + self.covariance, (n, -1))
        G = xp.reshape(weight @ moments, (-1, r, r))
        D, E = precision(table.times.steps, self.length)
        D, E = D / self.prior, E / self.prior
        b = (weight * left) @ self.R
        if self.season.shape[0]:
            mean = table.season @ self.season
            b = b + D * mean
            b[1:, :] += E * mean[:-1, :]
            b[:-1, :] += E * mean[1:, :]
        eye = identity(r, like=self.R)
        return G + D[:, :, None] * eye, E[:, :, None] * eye, b


@dataclass(frozen=True, eq=False)
class Rows:
    """The posterior of the rows of a table, given a model.

    Attributes
    ----------
    L : array of shape (T, r)
    covariance : array of shape (T, r, r)
    lagged : array of shape (T − 1, r, r)
        Between every row and the one before.
    own, variance : arrays of shape (T, n)
        Mean and variance of the series of the columns.
    """

    L: Array
    covariance: Array
    lagged: Array
    own: Array
    variance: Array

    def unsure(self, model: Smooth) -> Array:
        """Return the variance of the low-rank part, an array of shape (T, n)."""
        xp = array_namespace(self.L)
        r = self.L.shape[1]
        flat = [
            xp.reshape(C, (C.shape[0], r * r))
            for C in (self.covariance, _outer(self.L), model.covariance, _outer(model.R))
        ]
        return (flat[0] + flat[1]) @ flat[2].T + flat[0] @ flat[3].T

    def estimate(self, model: Smooth) -> Array:
        """Return the estimate of all entries, an array of shape (T, n)."""
        return self.L @ model.R.T + self.own


def _outer(M: Array) -> Array:
    return M[:, :, None] * M[:, None, :]


def _rows_of(found: Solved, rows: Rows) -> Rows:
    return replace(rows, L=found.mean, covariance=found.covariance, lagged=found.lagged)


def no_rows(table: Table, r: int) -> Rows:
    """Return rows before any data are seen."""
    zeros = 0 * table.Z
    L = zeros[:, :1] + 0 * like(np.zeros((1, r)), zeros)
    C = 0 * _outer(L)
    return Rows(L, C, C[1:, :, :], zeros, zeros)


def solved_rows(table: Table, model: Smooth, rounds: int = ROUNDS) -> Rows:
    """Return the posterior of the rows of a table, given a learnt model.

    Parameters
    ----------
    table : Table
    model : Smooth
    rounds : int
    """
    rows, r = no_rows(table, model.R.shape[1]), model.R.shape[1]
    # at first the series count as noise
    noise = model.noise + model.series.variance
    for _ in range(rounds if r else 1):
        weight = student_weights(table, model, rows) / noise
        if r:
            chain = model.chain(table, weight, table.Z - rows.own)
            rows = _rows_of(solve_chain(*chain, MATRICES), rows)
        noise = model.noise
        weight = student_weights(table, model, rows) / noise
        rows = _with_series(table, model, rows, weight)
    return rows


def solved_series(table: Table, model: Smooth, rows: Rows) -> tuple[Smooth, Rows]:
    """Return the posterior of the series of a table, one by one.

    Parameters
    ----------
    table : Table
    model : Smooth
        The model that was learnt from other series, or from these.
    rows : Rows
        Their low-rank part is known.

    Returns
    -------
    model : Smooth
        With the rows of R, the noise and the series of this table.
    rows : Rows
    """
    n = table.Z.shape[1]
    ones = 1 + 0 * table.Z[0, :]
    noise, variance, length = (
        float(np.median(to_host(x)))
        for x in (model.noise, model.series.variance, model.series.length)
    )
    zero = like(np.zeros((n, model.R.shape[1])), table.Z)
    model = replace(
        model,
        R=zero,
        covariance=0 * _outer(zero),
        noise=(noise + variance) * ones,
        series=Series(variance * ones, length * ones),
    )
    rows = replace(rows, own=0 * table.Z, variance=0 * table.Z)
    spread = model.spread
    for k in range(ROUNDS):
        counts = student_weights(table, model, rows)
        if k in LEARNT:
            model = _with_learnt_series(table, model, rows, counts)
        weight = counts / model.noise
        if k:
            rows = _with_series(table, model, rows, weight)
        if zero.shape[1]:
            found = _with_columns(model, rows, weight, table.Z - rows.own)
            model = replace(found, spread=spread)
        if k:
            model = _with_noise(table, model, rows)
    weight = student_weights(table, model, rows) / model.noise
    return model, _with_series(table, model, rows, weight)


def without_errors(table: Table, model: Smooth, rows: Rows, limit: Any) -> Table:
    """Return a table in which entries that are too far from what others say have no weight.

    Parameters
    ----------
    table : Table
    model : Smooth
    rows : Rows
    limit : float or array of shape (n,)
        In standard deviations, as `distances` counts them.
    """
    near = distances(table, model, rows) <= limit
    return replace(table, weight=array_namespace(near).astype(near, table.Z.dtype) * table.weight)


def distances(table: Table, model: Smooth, rows: Rows) -> Array:
    """Return how far entries are from what all others say, in the standard deviations expected.

    An estimate follows its own entry, the more the less its neighbours say. Without it, the
    residual e and the variance s of an estimate would be e / (1 - h) and s / (1 - h), where h is
    the share of the entry in its estimate.

    Parameters
    ----------
    table : Table
    model : Smooth
    rows : Rows
    """
    xp, unsure = array_namespace(table.Z), rows.unsure(model) + rows.variance
    own = student_weights(table, model, rows) * unsure / model.noise
    own = xp.where(own < WHOLLY, own, WHOLLY + 0 * own)
    expected = model.noise + unsure / (1 - own)
    return xp.abs(table.Z - rows.estimate(model)) / (1 - own) / xp.sqrt(expected)


def _with_series(table: Table, model: Smooth, rows: Rows, weight: Array) -> Rows:
    left = table.Z - rows.L @ model.R.T
    own, variance = model.series.smoothed(table.times, left, weight)
    return replace(rows, own=own, variance=variance)


def student_weights(table: Table, model: Smooth, rows: Rows) -> Array:
    """Return the weight of every entry, which is smaller for gross errors."""
    if model.freedom is None:
        return table.weight
    return _counting(table, model, _expected_squares(table, model, rows))


def _expected_squares(table: Table, model: Smooth, rows: Rows) -> Array:
    """The squared errors of all entries, plus the variance of their estimates."""
    return (table.Z - rows.estimate(model)) ** 2 + rows.unsure(model) + rows.variance


def _counting(table: Table, model: Smooth, squares: Array) -> Array:
    """The weight of every entry, relative to its expected square."""
    nu = model.freedom
    if nu is None:
        return table.weight
    return table.weight * (nu + 1) / (nu + squares / model.noise)


def swept(table: Table, model: Smooth, rows: Rows, learn: bool) -> tuple[Smooth, Rows]:
    """Return model and rows after solving rows, columns, series and noise in turn.

    Parameters
    ----------
    table : Table
    model : Smooth
    rows : Rows
    learn : bool
        Whether variances and lengths of the series are learnt again.
    """
    r = model.R.shape[1]
    counts = student_weights(table, model, rows)
    if learn:
        model = _with_learnt_series(table, model, rows, counts)
    weight = counts / model.noise
    rows = _with_series(table, model, rows, weight)
    if r:
        left = table.Z - rows.own
        found = solve_chain(*model.chain(table, weight, left), MATRICES)
        rows = _rows_of(found, rows)
        model = _with_lengths(table, model, rows)
        model = _with_columns(model, rows, weight, left)
        model, rows = _scaled(model, rows)
    return _with_noise(table, model, rows), rows


def _with_learnt_series(table: Table, model: Smooth, rows: Rows, counts: Array) -> Smooth:
    """Variances and lengths of the series, and the noise."""
    left = table.Z - rows.L @ model.R.T
    series, noise = learnt_series(table.times, left, counts, not model.R.shape[1])
    series = replace(series, variance=_floored(series.variance, table))
    return replace(model, series=series, noise=_floored(noise, table))


def _with_noise(table: Table, model: Smooth, rows: Rows) -> Smooth:
    """The noise of every column."""
    xp, off, count = array_namespace(table.Z), _expected_squares(table, model, rows), table.count
    squares = xp.sum(_counting(table, model, off) * off, axis=0)
    # the noise of a column with few entries is shrunk towards that of the others
    typical = xp.sum(squares) / xp.sum(count)
    return replace(model, noise=_floored((squares + typical) / (count + 1), table))


def _floored(variance: Array, table: Table) -> Array:
    """Variances, bounded away from zero relative to the data."""
    return positive(variance, FLOOR * (table.mean_square or 1.0))


def _with_lengths(table: Table, model: Smooth, rows: Rows) -> Smooth:
    """The most likely variances, seasons and lengths of the columns of L."""
    xp = array_namespace(rows.L)
    season, T = model.season, rows.L.shape[0]
    if season.shape[0]:
        season = _season(table, model, rows)
    mean = table.season @ season if season.shape[0] else 0 * rows.L
    off = rows.L - mean
    squares = off * off + xp.linalg.diagonal(rows.covariance)
    prior = positive(xp.mean(squares, axis=0))
    lagged = off[1:, :] * off[:-1, :] + xp.linalg.diagonal(rows.lagged)
    length = model.length
    if T > 2:
        length = learnt_lengths(table.times, squares, lagged, prior)
    return replace(model, prior=prior, length=length, season=season)


def _season(table: Table, model: Smooth, rows: Rows) -> Array:
    """The seasons of the columns of L; waves that the data do not support are shrunk."""
    H, L, known = (to_host(x) for x in (table.season, rows.L, model.season))
    found, G = np.zeros_like(known), H.T @ H
    for k, (prior, length) in enumerate(zip(model.prior, model.length, strict=True)):
        # a series with a memory says less about its mean
        noise = float(prior) * max(1.0, 2 * float(length))
        least = SMALL * float(prior)
        width = np.maximum(known[:, k] ** 2, least)
        if not known[:, k].any():
            width = np.full(len(G), float(prior))
        for _ in range(3):
            C = np.linalg.inv(G / noise + np.diag(1 / width))
            found[:, k] = C @ (H.T @ L[:, k]) / noise
            width = np.maximum(found[:, k] ** 2 + np.diag(C), least)
    return like(found, rows.L)


def _with_columns(model: Smooth, rows: Rows, weight: Array, left: Array) -> Smooth:
    """Rows of R, one for every column of the table."""
    xp, (T, r) = array_namespace(rows.L), rows.L.shape
    moments = xp.reshape(_outer(rows.L) + rows.covariance, (T, -1))
    G = xp.reshape(weight.T @ moments, (-1, r, r))
    covariance = invert_systems(G + identity(r, like=G) / model.spread)
    R = (covariance @ ((weight * left).T @ rows.L)[:, :, None])[:, :, 0]
    spread = positive(xp.mean(R * R + xp.linalg.diagonal(covariance), axis=0))
    return replace(model, R=R, covariance=covariance, spread=spread)


def _scaled(model: Smooth, rows: Rows) -> tuple[Smooth, Rows]:
    """Columns of L with variance 1: the scale is in R."""
    xp = array_namespace(rows.L)
    c = 1 / xp.sqrt(model.prior)
    square = c[:, None] * c[None, :]
    rows = replace(
        rows, L=rows.L * c, covariance=rows.covariance * square, lagged=rows.lagged * square
    )
    model = replace(
        model,
        R=model.R / c,
        covariance=model.covariance / square,
        prior=model.prior * c * c,
        spread=model.spread / (c * c),
        season=model.season * c,
    )
    return model, rows


def begun(
    table: Table,
    L: Array,
    R: Array,
    covariances: tuple[Array, Array],
    noise: Array,
    freedom: float | None = None,
) -> tuple[Smooth, Rows]:
    """Return a model and rows to start from, made of a fit without time.

    Its components are rotated so that each has its own memory: of all combinations of the columns
    of L, the first has the shortest, the last the longest.

    Parameters
    ----------
    table : Table
    L, R : arrays of shape (T, r) and (n, r)
    covariances : arrays of shape (T, r, r) and (n, r, r)
    noise : array of shape (n,)
    freedom : float, optional
    """
    xp, (T, r) = array_namespace(L), L.shape
    C, D = covariances
    rows = replace(no_rows(table, r), L=L, covariance=C)
    if r:
        values, Q = np.linalg.eigh(to_host((L.T @ L + xp.sum(C, axis=0)) / T))
        # an interrupted fit may have no component at all
        values = np.maximum(values, 1e-14 * (values[-1] if values[-1] > 0 else 1.0))
        white = to_host(L) @ (Q / np.sqrt(values))
        lagged = white[1:].T @ white[:-1]
        turn = np.linalg.eigh((lagged + lagged.T) / 2)[1]
        A, B = like(Q / np.sqrt(values) @ turn, L), like(Q * np.sqrt(values) @ turn, L)
        rows = replace(rows, L=L @ A, covariance=A.T @ C @ A)
        R, D = R @ B, B.T @ D @ B
    ones = like(np.ones(r), L)
    model = Smooth(
        R,
        D,
        prior=ones,
        spread=positive(xp.mean(R * R + xp.linalg.diagonal(D), axis=0)),
        length=3 * ones,
        season=like(np.zeros((table.season.shape[1], r)), L),
        noise=noise,
        series=Series(noise, 3 + 0 * noise),
        freedom=freedom,
    )
    return model, rows


def drawn_rows(table: Table, model: Smooth, rows: Rows, rng: np.random.Generator) -> Rows:
    """Return a draw of rows and series with their uncertainty.

    Parameters
    ----------
    table : Table
    model : Smooth
    rows : Rows
        As solved.
    rng : numpy.random.Generator
    """
    weight = student_weights(table, model, rows) / model.noise
    z = [like(rng.standard_normal(tuple(x.shape)), x) for x in (rows.L, rows.own)]
    L = rows.L
    if L.shape[1]:
        D, E, _ = model.chain(table, weight, 0 * table.Z)
        L = L + drawn_chain(D, E, z[0], MATRICES)
    return replace(rows, L=L, own=rows.own + model.series.drawn(table.times, weight, z[1]))
