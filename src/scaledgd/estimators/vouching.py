"""Whether to trust a fit: it must beat column means on entries that it did not see."""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace

from .comparing import better, shown
from .local_observations import LocalObservations
from .observations import Observations

Array = Any
Trail = list[dict[str, Any]]
Pairs = list[tuple[LocalObservations, LocalObservations]]

DOUBT = "column means predict held-out entries better than this fit"
"""What the trail says about a fit that is returned although it should not be trusted."""

UNPROVEN = "held-out entries do not show that this fit predicts better than column means or medians"
"""What it says about a fit that is returned although nothing speaks for it."""

UNCHECKED = "the fit ended before entries that it did not see could judge it"
"""What it says about a fit whose time was up."""

UNSTEADY = "estimates vary as much as the data do if some of the entries are left out"
"""What it says about a fit whose estimates depend on few entries."""

OFFSETS = "offsets alone predict held-out entries better"
"""What it says about offsets that replace a fit."""

MEANS = "column means predict held-out entries better"
"""What it says about column means that replace a fit."""

MEDIANS = "medians predict held-out entries better"
"""What it says about medians that replace a fit."""

ADVICE = {
    DOUBT: "do not rely on it",
    UNPROVEN: "there may be too few entries for it, or too much noise",
    UNCHECKED: "raise max_time",
    UNSTEADY: "do not rely on them; lower the rank, or observe more",
}
"""Objections to a fit that is returned nevertheless, and what to do about them."""

MORE = "observe more entries, or leave out rows and columns with few"
"""What to do about a fit that chose everything and is worse than column means."""

OBJECTIONS = (*ADVICE, OFFSETS, MEANS, MEDIANS)
"""All objections; the last three replace the fit."""

UNFINISHED = "offsets alone predict better than the fit so far, and are used instead"
"""What it says of offsets that are given in place of a fit which did not converge."""

FEWEST = 20
"""Number of entries below which none are held out."""

EVIDENCE = 2.0
"""Standard errors by which a fit must predict better than means."""

SEVERAL = 600
"""Smallest number of held-out entries."""


def advised(doubt: str, model: Any) -> str:
    """Return what to do about an objection, without what a fitted model was asked to do."""
    if doubt == DOUBT:
        given = [name for name in ("rank", "center", "scale") if _is_given(model, name)]
        names = " and ".join([", ".join(given[:-1])] * (len(given) > 1) + given[-1:])
        return f'{ADVICE[doubt]}; set {names} to "auto"' if given else f"{ADVICE[doubt]}; {MORE}"
    return ADVICE[doubt]


def _is_given(model: Any, name: str) -> bool:
    return str(getattr(model, name, "auto")) != "auto"


def unfinished(trail: Trail) -> bool:
    """Whether offsets replaced a fit that ended early."""
    return bool(trail) and trail[-1].get("why") == UNFINISHED


def against(trail: Trail) -> str:
    """Return the objection in the trail of a fit, or ""."""
    found = [str(step["why"]) for step in trail if step.get("why") in OBJECTIONS]
    return found[-1] if found else ""


def objection(errors: Array, means: Array, unit: Array | None = None) -> str:
    """Return the objection of held-out entries to a fit, or "" if they speak for it.

    Parameters
    ----------
    errors, means : arrays of shape (m,)
        Squared errors of the fit and of column means (or medians) at the same entries.
    unit : array of shape (m,), optional
        Squared units in which small columns count as much as large ones. The fit should be better
        in these, too, though they may consist of noise.
    """
    both = [(errors, means)] + ([] if unit is None else [(errors / unit, means / unit)])
    if any(better(simple, fitted) for fitted, simple in both):
        return DOUBT
    known = all(shown(*each, 0 if k else EVIDENCE) for k, each in enumerate(both))
    return "" if known else UNPROVEN


def middles(data: LocalObservations, robust: bool = False) -> Array:
    """Return the mean (or median) of every column; that of all entries if it has none.

    Parameters
    ----------
    data : LocalObservations
        Of a table.
    robust : bool
        Whether to take medians.
    """
    xp = array_namespace(data.y)
    each = data.medians(1) if robust else data.means(1)
    whole = float(xp.sort(data.flat)[data.size // 2]) if robust else data.mean()
    return xp.where(data.counts(1) > 0, each, whole + 0 * each)


def own_units(data: LocalObservations, mode: int = 1, robust: bool = False) -> Array:
    """Return the deviation of every column; a typical one if it is zero or entries are few.

    Parameters
    ----------
    data : LocalObservations
    mode : int
        The mode whose slices are the columns.
    robust : bool
        Whether some entries are grossly wrong, so that deviations are medians.
    """
    xp, size = array_namespace(data.y), data.magnitude()
    data = data.scaled(size)  # squares of huge numbers overflow
    counts = data.counts(mode)
    squares = data.squares(mode, robust) / xp.where(counts > 1, counts, xp.ones_like(counts))
    # where columns are short, all have few entries, and large ones must not decide alone
    enough = max(2, min(4, int(xp.max(counts))))
    known = (counts >= enough) & (squares > 1e-20)
    some = xp.sort(squares[known])
    typical = float(some[some.shape[0] // 2]) if some.shape[0] else data.mean_square()
    return size * xp.sqrt(xp.where(known, squares, typical + 0 * squares))


def squared(test: LocalObservations, estimates: Array, unit: Array) -> Array:
    """Return squared errors at entries of a table, in units of the columns."""
    unit = array_namespace(unit).take(unit, test.coordinates[1])
    off = (estimates - test.flat) / unit
    return off * off if test.weight is None else off * off * test.weight


def middle_errors(pairs: Pairs, unit: Array, robust: bool = False) -> Array:
    """Return the squared errors of column means (or medians) at held-out entries."""
    xp = array_namespace(unit)
    found = []
    for fit, test in pairs:
        estimates = xp.take(middles(fit, robust), test.coordinates[1])
        found.append(squared(test, estimates, unit))
    return xp.concat(found)


def parts_of(data: LocalObservations, seed: int, several: int = SEVERAL) -> Pairs:
    """Return entries to fit and entries to predict, several times if there are few."""
    if data.size < FEWEST:
        return []
    return data.split(0.1, seed, min(5, max(1, math.ceil(several / (0.1 * data.size)))))


def rows_in_part(data: LocalObservations, most: int = 50_000) -> Pairs:
    """Return entries of rows, and others of the same rows to predict from them.

    Parameters
    ----------
    data : LocalObservations
    most : int
        Number of entries above which only some of the rows are used.
    """
    count = max(1, most * data.shape[0] // max(1, data.size))
    some = data.core(data.size, 0) if count >= data.shape[0] else data.sampled(0, count, 0)
    return parts_of(some, 0)


def determinable(data: Observations, share: float) -> int:
    """Return the largest rank whose degrees of freedom do not exceed a share of the entries.

    Larger ones reproduce anything. It is at least one.

    Parameters
    ----------
    data : LocalObservations
        Of a table.
    share : float
    """
    total, room = sum(data.shape), share * data.size
    # the smaller root of r (total - r) = room
    root = total * total - 4 * room
    rank = total // 2 if root <= 0 else int((total - math.sqrt(root)) / 2)
    return max(1, min(rank, *data.shape))
