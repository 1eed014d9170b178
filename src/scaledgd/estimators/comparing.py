"""Compare candidates by their errors at held-out entries."""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace

from ..kernels import backend

Array = Any

OUTER = 0.005
"""Share of the errors, the largest ones, that do not decide."""

MOST = 0.75
"""Share of the squared errors of others; a model that avoids it is better for certain."""

SEVERAL = 100
"""Number of errors that may settle a comparison before all are known."""


def better(errors: Array, least: Array, gain: float = 0.0) -> bool:
    """Return whether squared errors are smaller than others, by more than chance.

    A few large errors say little about the others, and must not decide: they are cut at the same
    level for both. But their mean must not be much larger, either.

    Parameters
    ----------
    errors, least : arrays of shape (m,)
        At the same entries.
    gain : float
        The share of the others by which they must also be smaller.
    """
    xp = array_namespace(errors)
    # errors that are not finite are not better
    if not float(xp.mean(errors)) <= 1.25 * float(xp.mean(least)):
        return False
    less, chance, others = _difference(errors, least)
    return less > max(chance, gain * others)


def shown(errors: Array, least: Array, evidence: float = 2.0) -> bool:
    """Return whether there is evidence that squared errors are smaller than others.

    That they are much smaller is evidence enough. A few large errors do not decide, but there is no
    evidence if many of them are larger than those of others.

    Parameters
    ----------
    errors, least : arrays of shape (m,)
        At the same entries.
    evidence : float
        The number of standard errors by which they must be smaller.
    """
    if not _bulk(errors) <= _bulk(least):
        return False
    less, chance, others = _difference(errors, least)
    return less > min(evidence * chance, MOST * others)


def _bulk(errors: Array) -> float:
    """The mean of errors without the largest ones, which do not decide."""
    few = max(1, int(OUTER * errors.shape[0]))
    limit = backend(errors).kth_magnitude(errors, min(few + 1, errors.shape[0]))
    return float(array_namespace(errors).mean(_cut(errors, limit)))


def settled(errors: Array, least: Array) -> bool:
    """Return whether more entries would hardly change what `better` says.

    Parameters
    ----------
    errors, least : arrays of shape (m,)
        At the same entries.
    """
    less, chance, _ = _difference(errors, least)
    # a simpler model that is as good stays, so little evidence is needed against one that is not
    return errors.shape[0] >= SEVERAL and not -chance <= less <= 3 * chance


def _difference(errors: Array, least: Array) -> tuple[float, float, float]:
    """How much smaller errors are than others on average, its standard error, the others' mean."""
    xp = array_namespace(errors)
    limit = backend(errors).kth_magnitude(least, max(1, int(OUTER * least.shape[0])))
    few, others = (_cut(e, limit) for e in (errors, least))
    less = others - few
    chance = float(xp.std(less)) / math.sqrt(errors.shape[0])
    return float(xp.mean(less)), chance, float(xp.mean(others))


def _cut(errors: Array, limit: Array) -> Array:
    """Errors, those beyond a limit at the limit."""
    return array_namespace(errors).where(errors < limit, errors, limit + 0 * errors)


def alike(errors: Array, least: Array, gain: float = 0.0) -> bool:
    """Return whether squared errors, those of a simpler model, are as small as others."""
    xp = array_namespace(errors)
    small = float(xp.mean(errors)) <= (1 + gain) * float(xp.mean(least))
    return small and not better(least, errors, gain)
