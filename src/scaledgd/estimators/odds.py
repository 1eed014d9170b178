"""Which cells are gross errors: those that are more likely wrong than not, by two groups.

Sizes of residuals are normal numbers whose level varies from cell to cell, or those of gross
errors, of any size. Neither group is known: of every slice (a column, or a series) the level of the
noise, how much it varies and a part with a wider spread are the most likely ones, together with the
share of the errors. Heavy tails, bursts and columns that are mostly zero are explained by the first
group; errors are what lies apart from it.

Logarithms of sizes are counted in bins, so the cost hardly depends on the number of cells.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from typing import Any

import numpy as np

Array = Any

FALSE = 0.02
"""Largest share of the named errors that are none, as far as the two groups are known.

A tenth is wanted. Noise has more shapes than theirs: on eleven series and tables with errors in 2 %
of the cells, this share named .8 % of the good cells (median), .05 named 1.0 %, and both found .997
of the errors."""

BIN = 0.2
"""Width of the bins, in natural logarithms."""

VARYING = (0.0, 0.3, 0.6, 1.0)
"""Deviation of the logarithm of the noise level from cell to cell; 0 is normal noise."""

BESIDE = (-0.8, -0.4, 0.0)
"""Logarithm of the size of most of the noise, over that of the median residual."""

WIDER = (0.0, 0.7, 1.2, 1.8, 2.6, 3.4, 4.2, 5.0, 5.8, 6.6, 7.4, 8.2, 9.0, 9.8)
"""Logarithm of how much wider the other part of the noise is than most of it."""

LEAST = 0.3
"""Smallest share of the noise that is wider: there are more of it than of errors."""

REACH = 0.98
"""Share of the noise that is smaller than any gross error."""

MOST = 0.3
"""Largest share of a slice that may be errors: if there are more, the slice is like that."""

EXPECTED = 0.02
"""Smallest share of errors that is expected of a slice."""

FEW = 0.05
"""Share of the errors that are smaller than their smallest typical size."""

SAMPLE = 60
"""Number of slices that show how many errors there are."""

WEIGHT = 2.0
"""How much more the share of errors in all slices says about one than its own cells."""

ROOM = 1.5
"""Smallest range of the logarithms of the sizes of errors."""

BORROWED = 30.0
"""Number of cells of all slices that count in each, so that short ones are like the others."""

EQUAL = 1e-4
"""Size, as a share of the deviation of a slice, below which residuals are not told apart."""

ROUNDS = 8
"""Steps of expectation and maximisation."""


def limits(sizes: Array, slices: Array, deviations: Array) -> Array:
    """Return the size beyond which residuals of every slice are gross errors.

    Parameters
    ----------
    sizes : array of shape (m,)
        Distances of cells from what the others say.
    slices : integer array of shape (m,)
        The slice of every cell.
    deviations : array of shape (n,)
        Of the data of every slice, in the same units.
    """
    n, count = len(deviations), np.bincount(slices, minlength=len(deviations))
    if not len(sizes):
        return np.full(n, np.finfo(float).max)
    some = deviations[deviations > 0]
    # a slice that does not vary has the deviation of a typical one
    typical = float(np.median(some)) if some.size else 1.0
    least = EQUAL * np.where(deviations > 0, deviations, typical)
    sizes = np.maximum(sizes, least[slices])
    unit = _medians(sizes, slices, count, least)
    u = np.log(sizes / unit[slices])
    first = -3.0
    width = max(8, math.ceil((float(u.max()) + ROOM - first) / BIN) + 1)
    edges = first + BIN * np.arange(width + 1)
    place = np.clip(((u - first) // BIN).astype(np.int64), 0, width - 1)
    own = np.bincount(slices * width + place, minlength=n * width).reshape(n, width)
    counts = own + BORROWED * own.sum(axis=0) / len(sizes)
    # errors come from the same source in all slices
    some = np.linspace(0, n - 1, min(n, SAMPLE)).astype(np.int64)
    rate = float(np.median(_chances(counts[some], edges, EXPECTED, 0.0)[1]))
    normal, _ = _chances(counts, edges, max(EXPECTED, rate), WEIGHT)
    # the larger a residual, the less likely it is normal
    normal = np.minimum.accumulate(normal, axis=1)
    worst = _cut(normal.ravel(), own.ravel())
    named = normal <= worst
    beyond = np.where(named.any(axis=1), edges[np.argmax(named, axis=1)], edges[-1])
    return unit * np.exp(beyond)


def deviations(values: Array, slices: Array, count: int) -> Array:
    """Return the robust deviation of every slice; the plain one if most of its cells are equal.

    Parameters
    ----------
    values : array of shape (m,)
    slices : integer array of shape (m,)
    count : int
    """
    numbers = np.bincount(slices, minlength=count)
    if not len(values):
        return np.zeros(count)
    off = abs(values - _medians(values, slices, numbers, np.zeros(count))[slices])
    most = 1.4826 * _medians(off, slices, numbers, np.zeros(count))
    squares = np.bincount(slices, off**2, minlength=count) / np.maximum(numbers, 1)
    return np.where(most > 0, most, np.sqrt(squares))


def _medians(values: Array, slices: Array, count: Array, empty: Array) -> Array:
    """The median of every slice, or another number if it is empty."""
    order = np.lexsort((values, slices))
    starts = np.cumsum(count) - count
    middle = values[order[np.minimum(starts + count // 2, len(values) - 1)]]
    return np.where(count > 0, middle, empty)


def _cut(normal: Array, counts: Array) -> float:
    """The largest chance to be normal for which few of the named cells are."""
    order = np.argsort(normal, kind="stable")
    chance, number = normal[order], counts[order]
    false = np.cumsum(number * chance) / np.maximum(np.cumsum(number), 1e-9)
    fine = (false <= FALSE) & (chance <= 0.5)
    return float(chance[fine].max()) if fine.any() else -1.0


def _chances(counts: Array, edges: Array, rate: float, weight: float) -> tuple[Array, Array]:
    """The chance of every bin of every slice to be normal, under the most likely two groups.

    Also return the share of errors of every slice.

    Parameters
    ----------
    counts : array of shape (n, b)
    edges : array of shape (b + 1,)
    rate : float
        The expected share of errors.
    weight : float
        How much that counts, in cells per cell.
    """
    n, number = len(counts), counts.sum(axis=1)
    top = edges[1:][counts.shape[1] - 1 - np.argmax(counts[:, ::-1] >= 1, axis=1)]
    best, normal, share = np.full(n, -np.inf), np.ones_like(counts), np.zeros(n)
    for varying, beside, wider in product(range(len(VARYING)), BESIDE, WIDER):
        middle, far = _quantiles(varying)
        core = _masses(varying, edges - beside + middle)
        wide = _masses(varying, edges - beside + middle - wider)
        # errors have any order of magnitude beyond the noise
        begin = np.full(n, beside - middle + wider + far)
        error = _from(begin, top, edges)
        p, q = np.full(n, rate), np.full(n, LEAST)
        for k in range(ROUNDS):
            part = q[:, None] * wide
            noise = (1 - q)[:, None] * core + part
            wrong = p[:, None] * error
            whole = wrong + (1 - p)[:, None] * noise
            errors = counts * wrong / whole
            if k == ROUNDS // 2:  # they may be larger than that
                within = np.cumsum(errors, axis=1)
                first = np.argmax(within >= FEW * within[:, -1:], axis=1)
                near = _from(np.maximum(begin, edges[first] - BIN), top, edges)
                error = (error + near) / 2
            left = counts - errors
            p = (errors.sum(axis=1) / number + weight * rate) / (1 + weight)
            p = np.clip(p, 1e-9, MOST)
            q = np.clip((left * part / noise).sum(axis=1) / left.sum(axis=1), LEAST, 0.5)
        prior = rate * np.log(p) + (1 - rate) * np.log1p(-p)
        likely = (counts * np.log(whole)).sum(axis=1) + weight * number * prior
        better = likely > best
        best = np.where(better, likely, best)
        normal[better] = (1 - wrong / whole)[better]
        share[better] = (errors.sum(axis=1) / number)[better]
    return normal, share


def _from(begin: Array, top: Array, edges: Array) -> Array:
    """The density of errors in every bin: even between their smallest and largest size."""
    room = np.maximum(top - begin, ROOM)[:, None]
    return np.diff(np.maximum(edges[None, :] - begin[:, None], 0), axis=1) / room


# ---- the logarithm of |x| exp(v y), with normal numbers x and y


@cache
def _table(varying: int) -> tuple[Array, Array, Array]:
    """Logarithms of sizes, the share of smaller ones, and that of larger ones."""
    from scipy.special import ndtr

    y, weight = (np.asarray(x) for x in np.polynomial.hermite_e.hermegauss(61))
    u = np.arange(-30.0, 30.0, 0.05)
    beyond = ndtr(-np.exp(np.clip(u[:, None] - VARYING[varying] * y, -700, 4)))
    larger = 2 * beyond @ (weight / weight.sum())
    return u, 1 - larger, np.maximum(larger, 1e-300)


@cache
def _quantiles(varying: int) -> tuple[float, float]:
    """The median, and the size that few exceed."""
    u, smaller, _ = _table(varying)
    return float(np.interp(0.5, smaller, u)), float(np.interp(REACH, smaller, u))


def _masses(varying: int, edges: Array) -> Array:
    """The share of every bin; the first one has all that is smaller."""
    u, smaller, larger = _table(varying)
    below: Array = np.interp(edges, u, smaller)
    above = np.exp(np.interp(edges, u, np.log(larger)))
    mass = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
    mass[0] += below[0]
    return np.maximum(mass, 1e-300)
