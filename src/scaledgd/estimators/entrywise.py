"""Estimators of tables and tensors: how sure they are of an entry, and how good."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .. import checks, kernels
from .base import DataWarning, LowRankEstimator, warn
from .cells import Cells, magnitude, split_cells
from .packing import host
from .selection import EntryTable
from .tables import check_memory, given_back, table_back
from .uncertainty import (
    check_level,
    conformal_quantile,
    conformal_scores,
    student_quantile,
    xp_normal,
)

Array = Any

REFUSED = (
    "X holds nothing but entries that the model was fitted to, and would say how well it "
    "remembers, not how well it predicts; score entries that were held out (scaledgd.EntrySplit), "
    "or set force=True"
)


class _RefusedError(ValueError):
    """Nothing but entries of the fit."""


class EntrywiseEstimator(LowRankEstimator):
    """What is estimated are entries, and entries were observed.

    A kind of estimator says how sure its factors are (`_spread`), what their values are in the
    units of the data (`_values`), and how large those units are (`_unit`).
    """

    def _calm(self, fresh: Any) -> bool:
        return fresh.index is not None or len(fresh.shape) == 2

    def interval(
        self, index: tuple[Array, ...], level: float = 0.95, kind: str = "model"
    ) -> tuple[Array, Array]:
        """Bounds of entries.

        Parameters
        ----------
        index : tuple of integer arrays, one per mode, each of shape (m,)
        level : float in (0, 1)
            The share of the intervals that hold what they are about.
        kind : {"model", "conformal"}
            "model": for the true entry, from its standard error; right where the model is. A
            ridge that was given biases the estimate, and the interval is centred on one
            that is not. "conformal": for a new observation, from how far off the fit was at
            entries that it did not see; right whatever the noise is like, and however wrong
            the model, as long as those entries are like the new ones. It needs ``calibrate``.
            Bounds are within ``clip``.

        Returns
        -------
        lower, upper : arrays of shape (m,)
        """
        index = self._coordinates(index)
        level = check_level(level)
        with self._threads():
            if kind == "model":
                spread = self._spread()
                std = array_namespace(self._cells.y).sqrt(spread.variance(index))
                middle = self._values(spread.factors, index)
                half = student_quantile(level, self._free) * std * self._unit(index)
            elif kind == "conformal":
                middle = self._clipped(self._at(index))
                half = conformal_quantile(self._scores(), level) * self._tolerance(index)
            else:
                raise ValueError(f'kind must be "model" or "conformal", not {kind!r}')
        bounds = (self._clipped(x) for x in (middle - half, middle + half))
        lower, upper = (given_back(x, self._kind) for x in bounds)
        return lower, upper

    def sample(self, n: int = 1, index: Any = None, *, random_state: Any = None) -> Array:
        """Draw completed data sets: multiple imputation.

        What was observed, and not rejected, is as it was. The rest are draws of what could have
        been observed: the estimate, with its own uncertainty (which the entries of a row
        share), and with the noise. To use them, do with each what you would do with the data, and
        look at how much the results differ.

        Parameters
        ----------
        n : int
            How many.
        index : tuple of integer arrays, one per mode, each of shape (m,), optional
            Draw these entries only, whether they were observed or not.
        random_state : int, RandomState or None

        Returns
        -------
        draws : array of shape (n, n1, ..., nd), or (n, m)
            Of a frame or a labelled array, a list of n of its kind.
        """
        check_is_fitted(self)
        n = checks.count("n", n, least=1)
        index = None if index is None else self._coordinates(index)
        shape = self.factors_.shape
        if index is None:
            check_memory((n, *shape), "the draws", self._came_dense)
        rng = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
        draws = []
        with self._threads():
            spread = self._spread()
            for _ in range(n):
                F = spread.drawn(rng)
                X = self._values(F, index)
                noise = xp_normal(rng, X) * math.sqrt(spread.noise)
                X = self._clipped(X + noise * self._unit(index))
                if index is None:
                    X = self._with_observed(X)
                draws.append(given_back(X, self._kind))
        if index is None and self._kind[2] is not None:
            return [table_back(X, self._kind) for X in draws]
        return array_namespace(*draws).stack(draws)

    def _with_observed(self, X: Array) -> Array:
        """A table with the entries that were observed, but for those that were rejected."""
        xp = array_namespace(X)
        completed = xp.asarray(X, copy=True)
        for cells in (self._cells, self._held):
            if cells is not None:
                completed[cells.coordinates] = cells.flat
        if hasattr(self, "outliers_"):
            wrong = tuple(xp.asarray(i, device=device(X)) for i in self.outliers_.coords)
            completed[wrong] = X[wrong]
        return completed

    # ---- how good it is

    def score(
        self,
        X: Any,
        y: Any = None,
        *,
        observed: Any = None,
        rows: str | None = None,
        force: bool = False,
    ) -> float:
        """How well entries are predicted that the fit did not see.

        Parameters
        ----------
        X : table, tensor or EntryTable
            As `held_out` says.
        y : ignored
            But where there is one, as in scikit-learn's supervised tools, which score what
            was fitted only if told to, that is not refused but warned of.
        observed : boolean array of the shape of X, optional
        rows : {"same", "new"}, optional
            As `held_out` says.
        force : bool
            Score entries of the fit too, where a good score means nothing.

        Returns
        -------
        score : float
            The coefficient of determination R², at most 1; for estimators that expect
            outliers the same with absolute instead of squared errors.
        """
        try:
            truth, estimate = self.held_out(X, observed=observed, rows=rows, force=force)
        except _RefusedError:
            if y is None:
                raise
            warn(REFUSED, DataWarning)
            truth, estimate = self.held_out(X, observed=observed, rows=rows, force=True)
        xp = array_namespace(truth)
        if truth.shape[0] < 2:
            return math.nan  # of one entry it has no meaning
        off, spread = truth - estimate, truth - xp.mean(truth)
        if self._outliers() is not None:
            spread = truth - xp.sort(truth)[truth.shape[0] // 2]
            lost, total = float(xp.sum(xp.abs(off))), float(xp.sum(xp.abs(spread)))
        else:
            lost, total = float(xp.sum(off * off)), float(xp.sum(spread * spread))
        return 1 - lost / total if total > 0 else float(lost == 0.0)

    def held_out(
        self, X: Any, *, observed: Any = None, rows: str | None = None, force: bool = False
    ) -> tuple[Array, Array]:
        """Entries that the fit did not see, and what it makes of them: for any measure.

        Parameters
        ----------
        X : table, tensor or EntryTable
            The table of the fit, with other entries: those are predicted; entries of the fit
            are left out, and a table that has nothing else is refused. Or new rows: a fifth of
            the entries of each is hidden, and predicted from the others.
        observed : boolean array of the shape of X, optional
        rows : {"same", "new"}, optional
            Which of both X is. By default a table is the same where it has as many rows, and
            its values are those of the fit wherever both have one; otherwise its rows are new.
        force : bool
            Do not leave out, nor refuse, entries of the fit.

        Returns
        -------
        truth, estimate : arrays of shape (m,)
        """
        check_is_fitted(self)
        if isinstance(X, EntryTable):
            cells = X.cells
            if cells.shape != self._cells.shape:
                raise ValueError(
                    f"X holds entries of a table of shape {cells.shape}, but the fit is about "
                    f"{self._cells.shape}"
                )
        else:
            cells, _ = self._read(X, observed)
        self._same_library(cells)
        xp, there = array_namespace(cells.y), device(cells.y)
        if not cells.size:
            raise ValueError("X has no observed entry: there is nothing to score")
        if rows not in (None, "same", "new"):
            raise ValueError(f'rows must be "same", "new" or None, not {rows!r}')
        known = cells.shape == self._cells.shape and rows != "new"
        if rows == "same" and not known:
            raise ValueError(f"X has shape {cells.shape}, but the fit is of {self._cells.shape}")
        if known:
            seen, same, like = _in_common(cells, self._cells)
            known = isinstance(X, EntryTable) or rows == "same" or same or not seen.any()
            if like and not known:
                warn(
                    "X has as many rows as the table of the fit, and values like those of it, but "
                    'not the same: taken for new rows; rows="same" or rows="new" settles it',
                    DataWarning,
                )
        if not known:
            if not force and _remembered(cells, self._cells):
                raise _RefusedError(REFUSED)
            return self._hidden(cells)
        if same and not force:
            cells = cells.some(xp.asarray(np.nonzero(~seen)[0], device=there))
        if not cells.size:
            raise _RefusedError(REFUSED)
        counts = host(self._cells.counts(0))[host(cells.coordinates[0])]
        old = cells.some(xp.asarray(np.nonzero(counts > 0)[0], device=there))
        new = cells.some(xp.asarray(np.nonzero(counts == 0)[0], device=there))
        truth, estimate = old.flat, self._clipped(self._at(old.coordinates))
        if new.size:
            hidden = self._hidden(new)
            truth, estimate = xp.concat([truth, hidden[0]]), xp.concat([estimate, hidden[1]])
        return truth, estimate

    def _hidden(self, cells: Cells) -> tuple[Array, Array]:
        """A part of every row, and what the other part makes of it."""
        xp, there = array_namespace(cells.y), device(cells.y)
        chosen = _some_of_each_row(host(cells.coordinates[0]))
        if not chosen.any():
            raise ValueError("no row of X has two entries, one to hide and one to predict it from")
        test = cells.some(xp.asarray(np.nonzero(chosen)[0], device=there))
        rest = cells.some(xp.asarray(np.nonzero(~chosen)[0], device=there))
        with self._threads(), np.errstate(over="ignore", under="ignore"):
            return test.flat, self._clipped(self._rows_at(rest, test.coordinates))

    # ---- parts

    def _split(self, cells: Cells, rng: Any, again: bool) -> tuple[Cells, Cells | None]:
        return split_cells(cells, self.calibrate, rng, again)

    def _joined(self, old: Cells | None, new: Cells | None, shape: Any) -> Cells | None:
        """Cells of the table, and of rows below it, where there are some."""
        if old is None or new is not None:
            return old if old is None or new is None else old.stacked(new)
        return replace(old, shape=shape)

    def _read_rows(self, X: Any, observed: Any) -> tuple[Cells, Any]:
        """Rows of which all is to be estimated."""
        cells, kind = self._read(X, observed)
        check_memory(cells.shape, "the transformed X", kind[0] != "sparse")
        return cells, kind

    def _deviation(self, index: tuple[Array, ...]) -> Array:
        xp, spread, unit = array_namespace(self._cells.y), self._spread(), self._unit(index)
        variance = spread.variance(index)
        if self.ridge != "auto":
            # what the ridge took away from the estimate
            off = (self._values(spread.factors, index) - self._at(index)) / unit
            variance = variance + off * off
        return xp.sqrt(variance) * unit

    def _tolerance(self, index: tuple[Array, ...]) -> Array:
        """How far off a new observation is expected to be: what conformal scores are in."""
        spread = self._spread()
        std = array_namespace(self._cells.y).sqrt(spread.variance(index) + spread.noise)
        return std * self._unit(index) + 1e-12 * magnitude(self._cells) + 1e-300

    def _calibrated(self, held: Cells | None) -> Array | None:
        """How far off the fit is at entries that it did not see, in order."""
        if held is None:
            return None
        index, xp = held.coordinates, array_namespace(held.y)
        off = xp.abs(held.flat - self._clipped(self._at(index)))
        return conformal_scores(off, self._tolerance(index))


def _in_common(cells: Cells, fitted: Cells) -> tuple[Any, bool, bool]:
    """Which cells are at coordinates of fitted ones; whether they are the same; or only alike.

    They are the same if the values agree far more often than those of different rows do.
    """
    index = [tuple(host(i) for i in c.coordinates) for c in (cells, fitted)]
    here, there = (np.asarray(kernels.numbered(i, cells.shape)) for i in index)
    order = np.argsort(there, kind="stable")
    place = np.minimum(np.searchsorted(there[order], here), len(there) - 1)
    seen = there[order][place] == here
    if not seen.any():
        return seen, False, False
    new, old = host(cells.flat)[seen], host(fitted.flat)[order][place][seen]
    fibre = np.asarray(kernels.numbered(index[0], cells.shape, skip=0))[seen]
    column = np.unique(fibre, return_inverse=True)[1]
    # the value that another row has in the same column
    turn = np.argsort(column, kind="stable")
    other = np.empty_like(old)
    other[turn] = np.roll(old[turn], 1)

    def agreement(x: Any) -> float:
        return float(np.mean(np.abs(new - x) <= 1e-6 * np.abs(x)))

    def centred(x: Any) -> Any:
        return x - (np.bincount(column, x) / np.bincount(column))[column]

    chance = agreement(other)
    same = agreement(old) - chance > 0.9 * (1 - chance) or chance == agreement(old) == 1
    a, b = centred(new), centred(old)
    return seen, same, bool(float(a @ b) > 0.5 * math.sqrt(float(a @ a) * float(b @ b)) > 0)


def _remembered(cells: Cells, fitted: Cells) -> bool:
    """Whether rows are those of the fit, more often than rows are alike anyway."""
    (now, several), (then, also) = _row_marks(cells), _row_marks(fitted)
    if not several.any():
        return False
    _, place, times = np.unique(then[also], return_inverse=True, return_counts=True)
    usual = float((times[place] > 1).mean()) if len(place) else 0.0
    return bool(np.isin(now[several], then[also]).mean() > max(0.5, usual + 0.25))


def _row_marks(cells: Cells) -> tuple[Any, Any]:
    """A number for every row that tells it from others, and whether it has two entries."""
    index = tuple(host(i) for i in cells.coordinates)
    where = kernels.numbered(index, cells.shape, skip=0).astype(np.uint64)
    # in single precision, because the same row may come with other rounding
    bits = (host(cells.flat) + 0.0).astype(np.float32).view(np.uint32).astype(np.uint64)
    mixed = (where + np.uint64(0x9E3779B97F4A7C15)) * (bits | np.uint64(1))
    mixed = (mixed ^ (mixed >> np.uint64(29)) ^ bits) * np.uint64(0xBF58476D1CE4E5B9)
    marks = np.zeros(cells.shape[0], dtype=np.uint64)
    np.add.at(marks, index[0], mixed ^ (mixed >> np.uint64(32)))
    return marks, np.bincount(index[0], minlength=cells.shape[0]) > 1


def _some_of_each_row(rows: Any) -> Any:
    """A fifth of the cells of every row, at least one, where there are two; always the same."""
    u = np.random.default_rng(0).random(len(rows))
    order = np.lexsort((u, rows))
    starts = np.searchsorted(rows[order], rows[order])
    counts = np.bincount(rows)[rows[order]] if len(rows) else rows
    quota = np.where(counts > 1, np.maximum(1, counts // 5), 0)
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[order] = np.arange(len(rows)) - starts < quota
    return chosen
