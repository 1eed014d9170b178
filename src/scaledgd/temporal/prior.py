"""Priors of stationary series, with correlations exp(−distance / length).

Distances may differ from step to step. A series whose length is short compared with the steps is
white noise; one with a long length is nearly a random walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..linalg import like, to_host
from ..namespaces import array_namespace

Array = Any

LENGTHS = np.exp(np.linspace(np.log(0.15), np.log(3000.0), 34))
"""Lengths that are considered, in typical steps."""

STIFF = 1e-10
"""Least share of the variance that is new in a step."""

GROUPS = 64
"""Largest number of different distances from which lengths are learnt."""


@dataclass(frozen=True, eq=False)
class Times:
    """Positions of the slices of a mode along a line.

    Attributes
    ----------
    steps : numpy array of shape (T − 1,)
        Distances from each to the next, positive, of median 1.
    """

    steps: np.ndarray[Any, Any]

    @cached_property
    def groups(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Different distances, and which of them every step has; similar ones are merged."""
        values, place = np.unique(self.steps, return_inverse=True)
        if len(values) > GROUPS:
            bins = np.linspace(np.log(values[0]), np.log(values[-1]), GROUPS)
            nearest = np.abs(np.log(self.steps)[:, None] - bins[None, :]).argmin(axis=1)
            return np.exp(bins), nearest
        return values, place


def precision(steps: np.ndarray[Any, Any], lengths: Array) -> tuple[Array, Array]:
    """Return diagonal and lower diagonal of the precision of series of variance 1.

    Parameters
    ----------
    steps : numpy array of shape (T − 1,)
    lengths : array of shape (q,)

    Returns
    -------
    D : array of shape (T, q)
    E : array of shape (T − 1, q)
    """
    xp = array_namespace(lengths)
    ratio = like(steps, lengths)[:, None] / lengths[None, :]
    kept, new = kept_and_new(ratio)
    D = xp.concat([1 + 0 * lengths[None, :], xp.ones_like(ratio)])
    known = kept * kept / new
    D[1:, :] += known
    D[:-1, :] += known
    return D, -kept / new


def kept_and_new(ratio: Array) -> tuple[Array, Array]:
    """Return the correlation over steps, and the variance that it does not explain.

    Parameters
    ----------
    ratio : array
        Steps over lengths.
    """
    xp = array_namespace(ratio)
    new = -xp.expm1(-2 * ratio)
    return xp.exp(-ratio), xp.where(new > STIFF, new, STIFF + 0 * new)


def learnt_lengths(times: Times, squares: Array, lagged: Array, variance: Array) -> Array:
    """Return the most likely lengths of series, one per column.

    Parameters
    ----------
    times : Times
    squares : array of shape (T, q)
        Second moments of every number.
    lagged : array of shape (T − 1, q)
        Second moments of every number and the one before.
    variance : array of shape (q,)
    """
    distances, place = times.groups
    moments = [to_host(x) for x in (squares[1:, :], lagged, squares[:-1, :])]
    after, both, before = (_summed(x, place, len(distances)) for x in moments)
    counts = np.bincount(place, minlength=len(distances))
    # lengths × distances × series
    ratio = distances[None, :, None] / LENGTHS[:, None, None]
    kept, new = (to_host(x) for x in kept_and_new(ratio))
    off = (after - 2 * kept * both + kept * kept * before) / to_host(variance)
    likely = -(counts[None, :, None] * np.log(new) + off / new).sum(axis=1)
    return like(LENGTHS[np.argmax(likely, axis=0)], variance)


def _summed(x: np.ndarray[Any, Any], place: np.ndarray[Any, Any], count: int) -> Any:
    """Sums over the steps of every distance."""
    if count == 1:
        return x.sum(axis=0, keepdims=True)
    columns = [np.bincount(place, weights=one, minlength=count) for one in x.T]
    return np.stack(columns, axis=1) if columns else np.zeros((count, 0))
