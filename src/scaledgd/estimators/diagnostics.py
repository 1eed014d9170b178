"""Warnings about what the data do not determine, raised at the line of the user's call."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .constants import varying
from .fitting import degrees
from .local_observations import LocalObservations
from .models import EntrywiseModel
from .observations import MOST, Observations
from .packing import host
from .tucker import degrees as tensor_degrees
from .units import robust_column_units, unlike_columns

Array = Any


class DataWarning(UserWarning):
    """The data do not determine everything the model was asked to estimate."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line that called the library."""
    level, frame = 1, sys._getframe(1)
    inside = ("scaledgd.", "sklearn.", "contextlib", "functools")
    while str(frame.f_globals.get("__name__")).startswith(inside) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


SEVERAL = 0.1
"""Share of outliers above which a fit that reproduces the other entries is examined."""


def too_many_rejected(model: Any) -> str:
    """Return why the outliers of a fitted model are probably not errors, or "".

    Either they are more than a third of the entries, or so many that offsets alone, or a rank that
    reproduces anything, reproduce the others.

    Parameters
    ----------
    model : estimator
    """
    if not hasattr(model, "outliers_"):
        return ""
    data = model._model.observations
    count, where = _varying(model)
    share = model.outliers_.nnz / max(1, count)
    if share > MOST:
        return (
            f"{100 * share:.0f} % of the observed entries{where} would count as outliers, more "
            "than a third, so errors cannot be told from the rest"
        )
    rank = model.rank_ if isinstance(model.rank_, int) else min(model.rank_)
    size = data.magnitude()
    exact = share > SEVERAL and math.sqrt(max(0.0, model.noise_variance_)) <= 1e-6 * size
    if exact and (rank == 0 or 2 * rank >= min(data.shape)):
        how = "offsets alone" if rank == 0 else f"rank {rank}"
        return (
            f"{how} would reproduce all observed entries but {100 * share:.0f} % of outliers, so "
            "errors cannot be told from the rest"
        )
    return ""


FEW = 4
"""Number of entries that a slice needs for a majority of them to be meaningful."""


def _varying(model: Any) -> tuple[int, str]:
    """How many entries are not part of constant slices, and what to call them."""
    data = model._model.observations
    count = varying(data, model._model.all_levels)
    return count, "" if count == data.size else " that are not part of constant slices"


def mostly_rejected(model: Any) -> list[str]:
    """Return which slices a fitted model mostly rejects, and so knows little about.

    Parameters
    ----------
    model : estimator
    """
    if not hasattr(model, "outliers_"):
        return []
    data = model._model.observations
    places = [np.asarray(index) for index in model.outliers_.coords]
    if not any(_mostly(data, index, mode) for mode, index in enumerate(places)):
        return []
    # entries that are small compared with the data need no warning, rejected or not
    gross = _gross(model)
    found = []
    many = _mostly(data, places[-1][~gross], len(places) - 1)
    of_one_unit = len(places) == 2 and model.scale in ("none", "rows")
    if many and of_one_unit and unlike_columns(data, robust=True):
        found.append(
            "the columns differ in scale, and one threshold for all of them rejects more than half "
            f'of the entries of {_slices(many, 1, 2)}, although these are small; set scale="auto"'
        )
    for mode, index in enumerate(places):
        count = _mostly(data, index[gross], mode)
        if count:
            some = _slices(count, mode, len(data.shape))
            found.append(
                f"more than half of the entries of {some} count as outliers: the estimate there "
                "rests on the others, and may be far off"
            )
    return found


def _mostly(data: Observations, index: Any, mode: int) -> int:
    """How many slices have more than half of their entries among the given ones."""
    seen = host(data.counts(mode))
    gone = np.bincount(index, minlength=data.shape[mode])
    return int(np.sum((2 * gone > seen) & (seen >= FEW)))


def _gross(model: Any) -> Any:
    """Which outliers of a fitted model exceed the deviations of columns."""
    data, found = model._model.observations, model.outliers_
    sizes = np.abs(np.asarray(found.data))
    if len(data.shape) > 2:
        return sizes > data.typical()
    return sizes > host(robust_column_units(data).scale)[np.asarray(found.coords[1])]


GROSS = 2.0
"""Multiple of the threshold beyond which rejected entries are not a tail of the noise."""
EXPECTED = 0.5
"""Number of misled slices that causes a warning."""


def outvoted(model: Any) -> list[str]:
    """Return in how many slices gross errors may outnumber the entries that contradict them.

    A slice of m entries with r unknowns is misled by more than (m − r) / 2 errors
    that happen to agree, and none of them is rejected then. The share of errors says how often that
    many fall into one slice.

    Parameters
    ----------
    model : estimator
    """
    if not hasattr(model, "outliers_") or not model.outliers_.nnz:
        return []
    gross = np.abs(np.asarray(model.outliers_.data)) > GROSS * model.threshold_
    if not any(_misled(model, gross)[1]):
        return []
    # errors that are small compared with the data need no warning; comparing all takes memory
    share, counts = _misled(model, gross & _gross(model))
    modes = model._model.observations.shape
    return [
        f"{100 * share:.1f} % of the observed entries are gross errors: in about "
        f"{_slices(count, mode, len(modes))} they may outnumber the others, and mislead the "
        "estimate there"
        for mode, count in enumerate(counts)
        if count
    ]


def _misled(model: Any, gross: Any) -> tuple[float, list[int]]:
    """The share of gross errors, and in how many slices of every mode they outnumber the others."""
    from scipy.special import bdtrc

    data, counts = model._model.observations, []
    share = float(np.sum(gross)) / max(1, data.size)
    for mode, r in enumerate(_numbers(model)):
        seen = np.rint(host(data.counts(mode))).astype(np.int64)
        seen = seen[seen > 0]
        chance = bdtrc(np.maximum(seen - r, 0) // 2, seen, share) if r else 0.0
        counts.append(math.floor(float(np.sum(chance)) + 1 - EXPECTED))
    return share, counts


def unjudged(model: Any) -> list[str]:
    """Return a doubt if there were too few entries to hold some out and judge a fitted model.

    A fit that reproduces twice as many entries as it has degrees of freedom speaks for itself.
    Entries of constant slices do not count.

    Parameters
    ----------
    model : estimator
    """
    data, ranks = model._model.observations, _ranks(model)
    count, where = _varying(model)
    if count >= model._fewest or not any(ranks):
        return []
    free = tensor_degrees(ranks, data.shape)
    exact = math.sqrt(max(0.0, model.noise_variance_)) <= 1e-6 * data.magnitude()
    rejected = model.outliers_.nnz if hasattr(model, "outliers_") else 0
    if exact and not rejected and count >= 2 * free:
        return []
    some = f"1 observed entry{where} is" if count == 1 else f"{count} observed entries{where} are"
    return [f"{some} too few to check the estimates on held-out ones"]


FAR = 3.0
"""Multiple of the range of the data beyond which an estimate is far outside."""

SAMPLE = 1000
"""Number of entries whose estimates are compared with the range of the data."""

MANY = 100_000
"""Number of entries above which gross errors may count as part of that range."""

FEW_OUTSIDE = 0.005
"""Share of estimates that may be far outside the range of the data."""


def share_outside(
    model: EntrywiseModel, data: LocalObservations, clipped: Callable[[Array], Array]
) -> float:
    """Return which share of the estimates lies far outside the range of the data, 0 if it is small.

    Parameters
    ----------
    model : EntrywiseModel
    data : LocalObservations
        Gross errors do not count, unless there are many entries.
    clipped : callable
        Clips estimates, if that is asked for.
    """
    outliers = model.published.get("outliers_")
    if outliers is not None and data.size <= MANY:
        data = data.without(outliers.coords)
    xp, rng = array_namespace(data.y), np.random.default_rng(0)
    places = (rng.integers(n, size=SAMPLE) for n in data.shape)
    index = tuple(xp.asarray(i, device=device(data.y)) for i in places)
    values = host(clipped(model.at(index))) / data.magnitude()
    known = data.scaled(data.magnitude()).flat
    low, high = float(xp.min(known)), float(xp.max(known))
    middle, half = (low + high) / 2, (high - low) / 2
    share = float(np.mean(np.abs(values - middle) > FAR * half + 1e-6))
    return share if share > FEW_OUTSIDE else 0.0


def far_outside(model: Any) -> list[str]:
    """Return how many estimates lie far outside the range of the data, if it is several.

    Parameters
    ----------
    model : estimator
    """
    data = model._model.observations
    if not isinstance(data, LocalObservations) or not data.size:
        return []
    share = share_outside(model._model, data, model._clipped)
    if not share:
        return []
    return [
        f"{100 * share:.1f} % of the estimates lie far outside the range of the data: do not rely "
        "on them; lower the rank, or observe more"
    ]


NEGATIVE = 0.1
"""Share of the squares of the data above which negative entries are more than noise."""


def negative_entries(model: Any) -> list[str]:
    """Return how much of the data nonnegative factors cannot reproduce, if it is much.

    Parameters
    ----------
    model : estimator
    """
    data = model._model.observations
    if not getattr(model, "non_negative", False) or not isinstance(data, LocalObservations):
        return []
    known = data.scaled(data.magnitude())
    below = known.with_values(known.y * (known.y < 0))
    if below.mean_square() <= NEGATIVE * known.mean_square():
        return []
    xp = array_namespace(data.y)
    share = float(xp.mean(xp.astype(data.flat < 0, xp.float64)))
    return [
        f"{100 * share:.0f} % of the observed entries are negative, and nonnegative factors cannot "
        "reproduce them; set non_negative=False, or shift the data"
    ]


def _numbers(model: Any) -> tuple[int, ...]:
    """Number of unknowns of every slice: its part of the factors, and its offset."""
    ranks = _ranks(model)
    if not any(ranks) or len(ranks) > 2:
        return ranks
    sides = (("rows", "both"), ("columns", "both"))
    return tuple(r + (model.center_ in own) for r, own in zip(ranks, sides, strict=True))


def _ranks(model: Any) -> tuple[int, ...]:
    """The rank of every mode."""
    return model.rank_ if isinstance(model.rank_, tuple) else (model.rank_,) * 2


def _slices(count: int, mode: int, order: int) -> str:
    """Return a number of rows, columns or slices of a mode, in words."""
    plural = "" if count == 1 else "s"
    if order == 2:
        return f"{count} {('row', 'column')[mode]}{plural}"
    return f"{count} slice{plural} of mode {mode}"


def undetermined(
    data: Observations, ranks: tuple[int, ...], learnt: bool, in_time: int | None = None
) -> list[str]:
    """Return what the data do not determine, as sentences.

    Parameters
    ----------
    data : Observations
    ranks : tuple of int, one per mode
        Zeros if there are only offsets, which need no advice about the rank.
    learnt : bool
        Whether the fit knows the uncertainty of every row, which accounts for few entries.
    in_time : int, optional
        The mode whose slices follow each other, so that neighbours predict slices without entries.
    """
    found = []
    for mode, r in enumerate(ranks):
        counts = data.counts(mode)
        name = ("row", "column")[mode] if len(data.shape) == 2 else "slice"
        where = f" of mode {mode}" if len(data.shape) > 2 else ""
        if mode == in_time:
            continue
        none, few = int((counts == 0).sum()), int(((counts > 0) & (counts < r)).sum())
        filled = f"like a typical {name}" if mode == 0 and r else "with offsets only"
        if none == 1:
            found.append(f"1 {name}{where} has no observation and is filled {filled}")
        elif none:
            found.append(f"{none} {name}s{where} have no observation and are filled {filled}")
        if few == 1 and not learnt:
            found.append(
                f"1 {name}{where} has fewer observations than the rank {r}; its estimates rely "
                "mainly on regularisation"
            )
        elif few and not learnt:
            found.append(
                f"{few} {name}s{where} have fewer observations than the rank {r}; their estimates "
                "rely mainly on regularisation"
            )
    parts = data.components()
    if parts > 1 and in_time is None:
        found.append(
            f"the observations fall into {parts} parts that share neither row nor column; "
            "the data do not determine how the parts relate to each other"
        )
    if len(data.shape) == 2 and data.size < degrees(ranks[0], data.shape) and not learnt:
        some = "1 observation" if data.size == 1 else f"{data.size} observations"
        found.append(
            f"there {'is' if data.size == 1 else 'are'} {some} but rank {ranks[0]} has "
            f"{degrees(ranks[0], data.shape)} degrees of freedom; lower the rank or "
            "observe more"
        )
    return found
