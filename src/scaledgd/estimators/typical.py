"""Rows without any entry, and slices of tensors: they are like a typical one."""

from __future__ import annotations

from typing import Any, TypeVar

from array_api_compat import array_namespace

from ..factors import Factors
from .observations import Observations

Array = Any
F = TypeVar("F", bound=Factors)


def typical_row(L: Array, counts: Array) -> Array | None:
    """Return the mean of the rows with enough entries; if there are none, of those with any.

    It is drawn to zero according to its standard error.

    Parameters
    ----------
    L : array of shape (n, q)
    counts : array of shape (n,)
        Of the entries of the rows.

    Returns
    -------
    row : array of shape (q,), optional
        None if there is no entry.
    """
    xp = array_namespace(L)
    for least in (L.shape[1], 1):
        seen = counts >= max(1, least)
        count = int(array_namespace(seen).sum(seen))
        if count:
            some = xp.where(seen[:, None], L, 0.0)
            mean, square = (xp.sum(x, axis=0) / count for x in (some, some * some))
            # (square - mean²) / count is the square of the standard error
            sure = (count - 1) * mean**2 + square
            return mean * (count * mean**2 / xp.where(sure > 0, sure, xp.ones_like(sure)))
    return None


def like_typical(L: Array, counts: Array, row: Array | None) -> Array:
    """Return rows, those without any entry replaced by a typical one, if it is known."""
    empty = counts == 0
    if row is None or not bool(array_namespace(empty).any(empty)):
        return L
    return array_namespace(L).where(empty[:, None], row[None, :], L)


def with_typical(factors: F, data: Observations) -> F:
    """Return factors whose rows of mode 0 are typical where the data have no entry."""
    counts, (first, *others) = data.counts(0), factors.blocks
    filled = like_typical(first, counts, typical_row(first, counts))
    return factors if filled is first else factors.with_blocks((filled, *others))
