"""What a low-rank tensor leaves along the modes whose neighbours are alike, interpolated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..temporal.prior import Times
from ..temporal.series import learnt_series
from .comparing import better
from .local_observations import LocalObservations
from .stamps import Clock, check_stamps
from .timed import SPARSEST

Array = Any

LITTLE = 1e-12
"""Share of the mean square of the data below which nothing is left."""

GAIN = 0.02
"""Share by which held-out residuals must become smaller."""

LARGEST = 3_000_000
"""Cells of a tensor above which neighbours are not looked at."""

SHORTEST = 8
"""Slices that a mode needs."""


def along(left: Array, seen: Array, mode: int, stamps: Any) -> Array:
    """Return what neighbours along a mode say about every entry.

    How much they say, and how far, is learnt for every fibre from what is left in it.

    Parameters
    ----------
    left : array of shape (n1, …, nd)
        Zero where nothing is observed.
    seen : array of shape (n1, …, nd)
        How much every entry counts.
    mode : int
    stamps : numpy array of shape (n_k,), optional
    """
    xp = array_namespace(left)
    e, w, times, order = _fibres(left, seen, mode, stamps)
    series, noise = learnt_series(times, e, w)
    found = series.smoothed(times, e, w / noise)[0]
    places = xp.asarray(np.argsort(order), device=device(left))
    shape = [left.shape[k] for k in range(left.ndim) if k != mode]
    found = xp.reshape(xp.take(found, places, axis=0), (left.shape[mode], *shape))
    return xp.moveaxis(found, 0, mode)


def _fibres(left: Array, seen: Array, mode: int, stamps: Any) -> tuple[Array, Array, Times, Any]:
    """Values and weights with time first, the distances of neighbours, and the order of time."""
    xp, T = array_namespace(left), left.shape[mode]
    clock = Clock.of(stamps)
    order = clock.order(stamps, T)
    times = clock.times(stamps[order] if clock.step else None, T)
    chosen = xp.asarray(order, device=device(left))
    flat = [
        xp.reshape(xp.take(xp.moveaxis(x, mode, 0), chosen, axis=0), (T, -1)) for x in (left, seen)
    ]
    return flat[0], flat[1], times, order


def telling_modes(left: LocalObservations, smooth: Any, seed: int) -> tuple[int, ...]:
    """Return the modes along which neighbours predict residuals, the most telling one first.

    Parameters
    ----------
    left : LocalObservations
        What a fit leaves of the data.
    smooth : "auto", "none", int or tuple of int
        Modes along which neighbours are alike.
    seed : int
    """
    modes = smooth_modes(left, smooth)
    left = left.scaled(left.magnitude())  # squares of tiny numbers vanish
    pairs = left.split(0.1, seed) if modes else []
    if not pairs:
        return ()
    fit, test = pairs[0]
    values, seen = fit.dense()
    index, xp = test.coordinates, array_namespace(values)
    rest = xp.astype(test.flat, values.dtype)
    errors = rest**2
    found: list[int] = []
    while len(found) < len(modes):
        best = None
        for mode in (k for k in modes if k not in found):
            own = along(values, seen, mode, _stamps(left, mode))
            off = (rest - own[index]) ** 2
            if better(off, errors, GAIN):
                best, errors = (mode, own), off
        if best is None:
            break
        found.append(best[0])
        rest, values = rest - best[1][index], values - (seen > 0) * best[1]
    return tuple(found)


def smooth_modes(data: LocalObservations, smooth: Any) -> tuple[int, ...]:
    """Return the modes along which neighbours may be alike."""
    cells, d = math.prod(data.shape), len(data.shape)
    if isinstance(smooth, str) and smooth == "none":
        return ()
    if isinstance(smooth, str):
        # slices of mode 0 are samples, unless labels say that they follow each other
        follow = [k for k in range(d) if k or _stamps(data, 0) is not None]
        chosen = tuple(k for k in follow if data.shape[k] >= SHORTEST)
    else:
        chosen = (smooth,) if isinstance(smooth, int) else tuple(smooth)
    for k in chosen:
        if _stamps(data, k) is not None:
            check_stamps(_stamps(data, k))
    return chosen if cells <= LARGEST and data.size >= SPARSEST * cells else ()


def _stamps(data: LocalObservations, mode: int) -> Any:
    return data.stamps[mode] if data.stamps else None


def interpolated(left: LocalObservations, modes: tuple[int, ...]) -> Array:
    """Return what neighbours along some modes say about every entry, in turn.

    Parameters
    ----------
    left : LocalObservations
    modes : tuple of int
    """
    size = left.magnitude()  # squares of tiny numbers vanish
    values, seen = left.scaled(size).dense()
    total = 0 * values
    for mode in modes:
        own = along(values, seen, mode, _stamps(left, mode))
        values, total = values - own * (seen > 0), total + own
    return array_namespace(total).astype(size * total, left.example.dtype)


def nothing_left(left: LocalObservations, data: LocalObservations) -> bool:
    """Whether a fit reproduces the data."""
    size = data.magnitude()
    return left.scaled(size).mean_square() <= LITTLE * data.scaled(size).mean_square()
