"""Interpolate the residual of a low-rank tensor along modes whose neighbours are alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..temporal.prior import Times
from ..temporal.series import learnt_series
from ..variational.posterior import positive
from .comparing import better
from .local_observations import LocalObservations
from .packing import host
from .stamps import Clock, check_stamps
from .timed import SPARSEST

Array = Any

LITTLE = 1e-12
"""Share of the mean square of the data below which the residual counts as zero."""

GAIN = 0.02
"""Share by which held-out residuals must become smaller."""

LARGEST = 3_000_000
"""Number of cells above which neighbours are not used."""

SHORTEST = 8
"""Number of slices that a mode needs."""

SOME = 100_000
"""Number of cells of the fibres that decide whether neighbours along a mode are tried."""


def along(left: Array, seen: Array, mode: int, stamps: Any) -> Array:
    """Return the prediction of every entry from its neighbours along a mode.

    How much neighbours say, and over what distance, is learnt for every fibre from its residual.

    Parameters
    ----------
    left : array of shape (n1, …, nd)
        Zero where nothing is observed.
    seen : array of shape (n1, …, nd)
        The weight of every entry.
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
    """Values and weights with time first, distances between neighbours, and the order of time."""
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
    """Return the modes along which neighbours predict residuals, the most predictive one first.

    Parameters
    ----------
    left : LocalObservations
        The residual of a fit.
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
    errors, squares = rest**2, {mode: _own_squares(values, seen, mode) for mode in modes}
    found: list[int] = []
    while len(found) < len(modes):
        best = None
        for mode in (k for k in modes if k not in found):
            if not _promising(values, seen, rest, index, mode, left, seed):
                continue
            own = along(values, seen, mode, _stamps(left, mode))
            off = (rest - own[index]) ** 2
            # large slices must not spill over into small ones: all must also count equally
            unit = xp.take(squares[mode], index[mode])
            if better(off, errors, GAIN) and not better(errors / unit, off / unit):
                best, errors = (mode, own), off
        if best is None:
            break
        found.append(best[0])
        rest, values = rest - best[1][index], values - (seen > 0) * best[1]
    return tuple(found)


def _own_squares(values: Array, seen: Array, mode: int) -> Array:
    """The mean square of every slice of a mode, bounded away from zero."""
    xp = array_namespace(values)
    others = tuple(k for k in range(values.ndim) if k != mode)
    known = xp.astype(seen > 0, values.dtype)
    total, count = (xp.sum(x, axis=others) for x in (known * values**2, known))
    squares = total / xp.where(count > 0, count, xp.ones_like(count))
    return positive(squares, LITTLE * float(xp.max(squares)) or 1.0)


def _promising(
    values: Array,
    seen: Array,
    rest: Array,
    index: tuple[Array, ...],
    mode: int,
    left: LocalObservations,
    seed: int,
) -> bool:
    """Whether neighbours predict residuals in some of the fibres along a mode, if there are many.

    Parameters
    ----------
    values, seen : arrays of shape (n1, …, nd)
    rest : array of shape (m,)
        Held-out residuals.
    index : tuple of integer arrays of shape (m,)
        Their coordinates.
    mode : int
    left : LocalObservations
    seed : int
    """
    xp, T = array_namespace(values), values.shape[mode]
    others = [n for k, n in enumerate(values.shape) if k != mode]
    fibres, most = math.prod(others), max(1, SOME // T)
    if fibres <= 2 * most:
        return True
    chosen = np.sort(np.random.default_rng(seed).choice(fibres, most, replace=False))
    where = xp.asarray(chosen, device=device(values))
    flat = [xp.reshape(xp.moveaxis(x, mode, 0), (T, -1)) for x in (values, seen)]
    some = [xp.take(x, where, axis=1) for x in flat]
    own = along(some[0], some[1], 0, _stamps(left, mode))
    coordinates = [host(i) for i in index]
    fibre = np.ravel_multi_index([i for k, i in enumerate(coordinates) if k != mode], others)
    place = np.minimum(np.searchsorted(chosen, fibre), most - 1)
    inside = np.nonzero(chosen[place] == fibre)[0]
    if not inside.size:
        return True
    at = [xp.asarray(x[inside], device=device(values)) for x in (coordinates[mode], place)]
    rest = xp.take(rest, xp.asarray(inside, device=device(values)))
    return better((rest - own[at[0], at[1]]) ** 2, rest**2, 0.5 * GAIN)


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
    """Return the prediction of every entry from neighbours along some modes, one after another.

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
