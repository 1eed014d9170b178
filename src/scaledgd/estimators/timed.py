"""Fit a table whose rows, or columns, follow each other in time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..linalg import like
from ..state import State
from ..temporal.smooth import (
    Rows,
    Smooth,
    Table,
    begun,
    distances,
    no_rows,
    solved_rows,
    solved_series,
    swept,
    without_errors,
)
from ..variational import current
from . import odds
from .local_observations import LocalObservations
from .packing import host
from .scaling import table_factors
from .session import Session
from .stamps import MISSING, Clock, check_stamps

Array = Any

SWEEPS = 12
"""Sweeps of a candidate."""

LAST_SWEEPS = 18
"""Sweeps of the fit."""

LEARN = 6
"""Sweeps after which the series of columns are learnt again."""

LARGEST = 20_000_000
"""Number of cells above which a table is fitted without time."""

SPARSEST = 0.01
"""Smallest share of observed cells."""

FREEDOM = 1.0
"""Degrees of freedom of the noise if gross errors are expected: the heaviest tails."""

CHANCE = 4.0
"""Standard errors by which the correlation of neighbours must exceed zero."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Positions of the entries of a table in the order of time.

    Attributes
    ----------
    mode : int
        0 if rows follow each other, 1 if columns do.
    order : numpy array of shape (T,)
        The slices of that mode in the order of time.
    clock : Clock
    stamps : numpy array of shape (T,), optional
        Times, in order.
    """

    mode: int
    order: Any
    clock: Clock
    stamps: Any = None

    @classmethod
    def of(cls, data: LocalObservations, mode: int, clock: Clock | None = None) -> Layout:
        """Return the layout of data.

        Parameters
        ----------
        data : LocalObservations
        mode : int
        clock : Clock, optional
            That of the fit, for other rows.
        """
        stamps = data.stamps[mode] if data.stamps else None
        clock = Clock.of(stamps) if clock is None else clock
        stamps = stamps if clock.step else None
        order = clock.order(stamps, data.shape[mode])
        return cls(mode, order, clock, None if stamps is None else stamps[order])

    @cached_property
    def places(self) -> Any:
        """The position in time of every slice."""
        places = np.empty_like(self.order)
        places[self.order] = np.arange(len(self.order))
        return places

    def at(self, grid: Array, index: tuple[Array, ...]) -> Array:
        """Return the numbers of an array of shape (T, n), in time, at coordinates."""
        xp, (t, j) = array_namespace(grid), (index[self.mode], index[1 - self.mode])
        places = xp.asarray(self.places, device=device(grid))
        return xp.take(xp.reshape(grid, (-1,)), xp.take(places, t) * grid.shape[1] + j)

    def full(self, grid: Array) -> Array:
        """Return an array of shape (T, n), in time, in the shape of the data."""
        xp = array_namespace(grid)
        grid = xp.take(grid, xp.asarray(self.places, device=device(grid)), axis=0)
        return grid if self.mode == 0 else grid.T

    def table(self, data: LocalObservations) -> Table:
        """Return data as a table in the order of time, in double precision."""
        order = array_namespace(data.y).asarray(self.order, device=device(data.y))
        Z, weight = (self._in_time(grid, order) for grid in data.dense())
        T = data.shape[self.mode]
        waves = like(self.clock.waves(self.stamps, T), Z)
        return Table(Z, weight, self.clock.times(self.stamps, T), waves)

    def _in_time(self, grid: Array, order: Array) -> Array:
        """An array in the shape of the data, as one of shape (T, n) in the order of time."""
        xp = array_namespace(grid)
        return xp.take(grid if self.mode == 0 else grid.T, order, axis=0)


@dataclass(frozen=True, eq=False)
class Timed:
    """A fitted table in time, in units of the fit.

    Attributes
    ----------
    layout : Layout
    model : Smooth
    rows : Rows
    table : Table
        The fitted data; rejected entries have no weight.
    limits : array of shape (n,), optional
        The distances beyond which entries of every series are rejected.
    """

    layout: Layout
    model: Smooth
    rows: Rows
    table: Table
    limits: Array | None = None

    @classmethod
    def solved(
        cls,
        layout: Layout,
        table: Table,
        model: Smooth,
        rows: Rows,
        limits: Array | None = None,
        robust: bool = False,
    ) -> Timed:
        """Return a fit in which rows of the data depend on those rows alone.

        Rows that follow each other are solved together, series one by one.

        Parameters
        ----------
        layout : Layout
        table : Table
        model : Smooth
        rows : Rows
            Their low-rank part is known if columns follow each other.
        limits : array of shape (n,), optional
            Entries of every series that are further from what others say, in standard deviations,
            are rejected.
        robust : bool
            Whether to find these distances, if they are not given.
        """
        if limits is None and not robust:
            return cls(layout, *_solved(layout, table, model, rows), table)
        # gross errors count little at first, and then nothing
        wide = replace(model, freedom=FREEDOM)
        whole, found = _solved(layout, table, wide, rows)
        limits = _limits(layout, table, whole, found) if limits is None else limits
        kept = without_errors(table, whole, found, limits)
        whole, found = _solved(layout, kept, model, rows)
        return cls(layout, whole, found, kept, limits)

    def gather(self, index: tuple[Array, ...]) -> Array:
        """Return the estimates at coordinates."""
        return self.layout.at(self.estimate, index)

    def full(self) -> Array:
        """Return the whole estimate."""
        return self.layout.full(self.estimate)

    def variance(self, index: tuple[Array, ...]) -> Array:
        """Return the variance of the estimates at coordinates, without noise."""
        return self.layout.at(self.unsure, index)

    @cached_property
    def estimate(self) -> Array:
        return self.rows.estimate(self.model)

    @cached_property
    def unsure(self) -> Array:
        return self.rows.unsure(self.model) + self.rows.variance


def _solved(layout: Layout, table: Table, model: Smooth, rows: Rows) -> tuple[Smooth, Rows]:
    if layout.mode == 0:
        return model, solved_rows(table, model)
    return solved_series(table, model, rows)


def smooth_modes(data: LocalObservations, smooth: str) -> tuple[int, ...]:
    """Return the modes along which neighbours may be alike.

    Parameters
    ----------
    data : LocalObservations
    smooth : {"auto", "none", "rows", "columns"}
        "auto" uses labels that are times, or else correlations in the data.
    """
    if smooth == "none" or len(data.shape) != 2:
        return ()
    if smooth != "auto":
        mode = ("rows", "columns").index(smooth)
        if data.stamps and data.stamps[mode] is not None:
            check_stamps(data.stamps[mode], mode)
        if not _fits(data):
            raise ValueError(
                f'smooth="{smooth}" is for tables of two rows and columns or more, with at most '
                f'{LARGEST} cells of which a hundredth or more is observed; set smooth="none"'
            )
        return (mode,)
    known = [k for k, s in enumerate(data.stamps) if s is not None]
    # columns are named by times; a name may be missing
    known = [k for k in known if k == 0 or not (data.stamps[k] == MISSING).any()]
    for mode in known:
        check_stamps(data.stamps[mode], mode)
    if not _fits(data):
        return ()
    found = {k: likeness(data, k) for k in known or (0, 1)}
    # without labels, time runs along one side only
    most = max(found, key=lambda k: found[k])
    return (most,) if found[most] > 0 else ()


def _fits(data: LocalObservations) -> bool:
    cells = math.prod(data.shape)
    return cells <= LARGEST and data.size >= SPARSEST * cells and min(data.shape) > 1


def largest_rank(data: LocalObservations, mode: int) -> int:
    """Return the largest rank for which the row covariances take no more memory than a large table.

    Parameters
    ----------
    data : LocalObservations
    mode : int
    """
    return max(1, math.isqrt(LARGEST // data.shape[mode]))


def stretch(data: LocalObservations, mode: int, most: int, seed: int) -> LocalObservations:
    """Return about `most` entries: consecutive slices of some series.

    Parameters
    ----------
    data : LocalObservations
    mode : int
    most : int
    seed : int
    """
    T, n = data.shape[mode], data.shape[1 - mode]
    cells = most * T * n / max(1, data.size)
    long = min(T, int(max(math.sqrt(cells), cells / n)))
    wide = min(n, int(cells / long))
    if wide < n:
        data = data.sampled(1 - mode, wide, seed)
    first = (T - long) // 2
    chosen = Layout.of(data, mode).order[first : first + long]
    return data.slices(mode, array_namespace(data.y).asarray(chosen, device=device(data.y)))


def likeness(data: LocalObservations, mode: int) -> float:
    """Return the correlation of neighbouring slices; zero unless it exceeds chance.

    Parameters
    ----------
    data : LocalObservations
    mode : int
    """
    if data.shape[mode] < 8:
        return 0.0
    table = Layout.of(data, mode).table(data.scaled(data.magnitude()))
    Z, seen = host(table.Z), host(table.weight) > 0
    count = np.maximum(seen.sum(axis=0), 1)
    Z = np.where(seen, Z - Z.sum(axis=0) / count, 0.0)
    # gross errors have no neighbours
    sizes = np.sqrt((Z * Z).sum(axis=0) / count)
    Z = np.clip(Z, -2 * sizes, 2 * sizes) / np.where(sizes > 0, sizes, 1.0)
    both = seen[1:] & seen[:-1]
    products = (Z[1:] * Z[:-1] * both).sum(axis=1)
    # one number per step, because series may be copies of each other
    spread = float(np.sqrt((products**2).sum()))
    total = float(products.sum())
    return total / max(1, int(both.sum())) if total > CHANCE * spread else 0.0


def fit_timed(
    session: Session,
    data: LocalObservations,
    state: State | None,
    mode: int,
    sweeps: int,
    robust: bool = False,
) -> Timed:
    """Return a fit in time, started from one without time.

    Parameters
    ----------
    session : Session
    data : LocalObservations
        In units of the fit, without offsets of rows.
    state : State, optional
        Of a fit without offsets; None for series of columns alone.
    mode : int
    sweeps : int
    robust : bool
        Whether gross errors are rejected.
    """
    layout = Layout.of(data, mode)
    table = layout.table(data)
    model, rows = _begun(table, layout, state, FREEDOM if robust else None)
    count = sweeps if state is not None else min(sweeps, LEARN)
    for k in range(count):
        model, rows = swept(table, model, rows, k % LEARN == 0)
        if session.out_of_time:
            break
    if not robust:
        return Timed.solved(layout, table, model, rows)
    kept = without_errors(table, model, rows, _limits(layout, table, model, rows))
    model = replace(model, freedom=None)
    for k in range(LEARN):
        model, rows = swept(kept, model, rows, not k)
    return Timed.solved(layout, table, model, rows, robust=True)


def _limits(layout: Layout, table: Table, model: Smooth, rows: Rows) -> Array:
    """The distances beyond which entries are gross errors, one per series."""
    seen = host(table.weight) > 0
    n = table.Z.shape[1]
    sizes, series = host(distances(table, model, rows))[seen], np.nonzero(seen)[1]
    varying = odds.deviations(host(table.Z)[seen], series, n) / np.sqrt(host(model.noise))
    if layout.mode == 1:  # series are rows: those of other data are like these
        varying, series = np.median(varying)[None], 0 * series
    found = odds.limits(sizes, series, varying) + np.zeros(n)
    return like(found, table.Z)


def known_rows(table: Table, model: Smooth, path: tuple[Array, Array] | None) -> Rows:
    """Return the prior of rows.

    Parameters
    ----------
    table : Table
    model : Smooth
    path : pair of arrays of shape (T, r) and (T, r, r), optional
        The low-rank part of the rows, if it is known.
    """
    rows = no_rows(table, model.R.shape[1])
    return rows if path is None else replace(rows, L=path[0], covariance=path[1])


def refined(
    data: LocalObservations,
    model: Smooth,
    mode: int,
    clock: Clock,
    sweeps: int,
    limits: Array | None = None,
    path: tuple[Array, Array] | None = None,
) -> Timed:
    """Return a fit that continues from a model.

    Parameters
    ----------
    data : LocalObservations
        In units of the model.
    model : Smooth
    mode : int
    clock : Clock
    sweeps : int
    limits : array of shape (n,), optional
    path : pair of arrays, optional
        If columns follow each other: their factor, in the order of time, and its covariances.
    """
    layout = Layout.of(data, mode, clock)
    table = layout.table(data)
    rows = known_rows(table, model, path)
    known = Timed.solved(layout, table, model, rows, limits)
    model, rows = known.model, known.rows
    for _ in range(sweeps):
        model, rows = swept(known.table, model, rows, False)
    return Timed.solved(layout, table, model, rows, limits)


def _begun(
    table: Table, layout: Layout, state: State | None, freedom: float | None
) -> tuple[Smooth, Rows]:
    """The start of the sweeps."""
    xp, (T, n) = array_namespace(table.Z), table.Z.shape
    if state is None:
        squares = xp.sum(xp.astype(table.weight > 0, table.Z.dtype) * table.Z**2, axis=0)
        noise = 0.5 * (squares + table.mean_square) / (table.count + 1)
        none = [like(np.zeros((m, 0)), table.Z) for m in (T, n)]
        zero = [like(np.zeros((m, 0, 0)), table.Z) for m in (T, n)]
        return begun(table, none[0], none[1], (zero[0], zero[1]), noise, freedom)
    F, posterior = table_factors(state), current(state)
    assert F.u is None
    assert F.v is None
    blocks = [xp.astype(F.L, xp.float64), xp.astype(F.R, xp.float64)]
    covariance = posterior.covariance
    if covariance is None:
        r = F.rank
        eye = xp.eye(r, dtype=xp.float64, device=device(F.L))
        covariance = tuple(xp.astype(v, xp.float64)[:, :, None] * eye for v in posterior.variance)
    covariances = [xp.astype(C, xp.float64) for C in covariance]
    noise = float(posterior.noise) * (1 + 0 * table.Z[0, :])
    if posterior.columns is not None and layout.mode == 0:
        noise = noise * xp.astype(posterior.columns, xp.float64)
    k = layout.mode
    order = xp.asarray(layout.order, device=device(F.L))
    L, C = xp.take(blocks[k], order, axis=0), xp.take(covariances[k], order, axis=0)
    return begun(table, L, blocks[1 - k], (C, covariances[1 - k]), noise, freedom)
