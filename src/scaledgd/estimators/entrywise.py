"""Estimators of tables and tensors: intervals, draws, and scores of entries."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .. import checks
from .base import LowRankEstimator
from .dask import as_array, is_frame
from .diagnostics import (
    DataWarning,
    far_outside,
    mostly_rejected,
    negative_entries,
    outvoted,
    too_many_rejected,
    undetermined,
    unjudged,
    warn,
)
from .entry_table import EntryTable
from .local_observations import LocalObservations
from .models import EntrywiseModel
from .observations import same_library
from .packing import host
from .plausible import ColumnValues
from .reading import Kind, check_memory
from .recognition import in_common, remembered, some_of_each_row
from .steadiness import Part, reproduces, unsteady
from .uncertainty import check_level, normal_numbers
from .vouching import ADVICE, FEWEST, OFFSETS, advised, against, unfinished

Array = Any

REFUSED = (
    "X holds only entries that the model was fitted to, so the score would say how well it "
    "remembers, not how well it predicts; score entries that were held out (scaledgd.EntrySplit), "
    "or set force=True"
)


class _RefusedError(ValueError):
    """X holds only entries that the model was fitted to."""


class EntrywiseEstimator(LowRankEstimator):
    """An estimator of entries from observed entries."""

    _model: EntrywiseModel

    # ---- fitting

    def _blas_threads(self, known: LocalObservations) -> int | None:
        return 1 if known.index is not None or len(known.shape) == 2 else None

    def _split(
        self, data: LocalObservations, seed: int, rng: Any, again: bool
    ) -> tuple[LocalObservations, LocalObservations | None]:
        """Return entries to fit, and entries to calibrate with."""
        if not self.calibrate:
            return data, None
        pairs = data.split(self.calibrate, seed + 3)
        if not pairs and again:
            return data, None
        if not pairs:
            raise ValueError(
                f"calibrate={self.calibrate:g} of {data.size} observed entries leaves none to fit "
                "or none to calibrate with; observe more, or set calibrate=None"
            )
        return pairs[0]

    def _joined(
        self, known: LocalObservations, held: LocalObservations | None
    ) -> tuple[LocalObservations, LocalObservations | None]:
        """Return the entries of the earlier fit with the new ones below them."""
        old = self._model
        whole = old.observations.stacked(known)
        if old.held is None or held is None:
            same = {"shape": whole.shape, "stamps": whole.stamps}
            return whole, None if old.held is None else replace(old.held, **same)
        return whole, old.held.stacked(held)

    def _normalised(self, data: LocalObservations) -> tuple[LocalObservations, float]:
        """Return the data divided by a power of two near their root mean square."""
        if not data.size:
            raise ValueError(
                "X has no observed entry: nothing can be learnt from it; check how missing "
                "values are marked (NaN), or which entries a sparse X stores"
            )
        size = data.magnitude()
        return data.scaled(size), size

    def _conclude(self, model: EntrywiseModel, held: LocalObservations | None, kind: Kind) -> None:
        scores = model.scores_of(held, self._clipped)
        # copied only after the fit has released its arrays
        own = model.observations.owned()
        model = model.with_same_fit(observations=own, held=held, scores=scores)
        super()._conclude(model, held, kind)
        self.diagnostics_ = self._diagnosed()
        if self.diagnostics_:
            warn("; ".join(self.diagnostics_), DataWarning)
        model.observations.forget()

    @property
    def _fewest(self) -> int:
        """The number of entries below which none are held out."""
        return FEWEST

    def _diagnosed(self) -> list[str]:
        """Return what the data do not determine."""
        rank = self.rank_
        ranks = rank if isinstance(rank, tuple) else (rank,) * 2
        model = self._model
        found = undetermined(model.observations, ranks, model.knows_rows, model.in_time)
        doubt = against(model.trail)
        none = not rank and model.in_time is None and not unfinished(model.trail)
        if none or doubt == OFFSETS:
            found.append("the data do not support a low-rank part: the estimate is offsets only")
        if doubt in ADVICE:
            found.append(f"{doubt}: {advised(doubt, self)}")
        found += unjudged(self) + far_outside(self) + negative_entries(self)
        rejected = too_many_rejected(self) if self._outliers() == "auto" else ""
        if rejected:
            found.append(f"{rejected}; fit without outliers")
        return found + ([] if rejected else mostly_rejected(self) or outvoted(self))

    def _unsteady(self, model: Any, data: Any, parts: list[Part]) -> bool:
        if not isinstance(data, LocalObservations) or reproduces(model):
            return False
        accepted = None
        if self._outliers() is not None:
            accepted = data.without(model.published["outliers_"].coords)
        # constant slices are constant whatever was left out
        fits = [replace(part, levels=model.all_levels) for part in parts]
        return unsteady(model.low_rank_at, data, fits, accepted)

    def _same_library(self, data: LocalObservations) -> None:
        if not same_library(data, self._model.observations):
            both = (data, self._model.observations)
            here, there = (type(d.y).__module__.split(".")[0] for d in both)
            raise TypeError(
                f"X is of {here} but the model was fitted to {there}; convert X to {there}"
            )

    # ---- intervals and draws

    def interval(
        self, index: tuple[Array, ...], level: float = 0.95, kind: str = "model"
    ) -> tuple[Array, Array]:
        """Return bounds of entries.

        Parameters
        ----------
        index : tuple of integer arrays, one per mode, each of shape (m,)
        level : float in (0, 1)
            The share of the intervals that should contain the truth.
        kind : {"model", "prediction", "conformal"}
            "model" bounds the true entry, without its noise, and is right if the model is right.
            "prediction" bounds a new observation by the same model, noise included. A given ridge
            biases the estimate, so both are centred on an estimate without that bias. "conformal"
            bounds a new observation by the errors on entries that the fit did not see. It is right
            for any noise and any model, as long as those entries resemble the new ones, and needs
            ``calibrate``. Bounds are within ``clip``.

        Returns
        -------
        lower, upper : arrays of shape (m,)
        """
        index = self._coordinates(index)
        level = check_level(level)
        with self._threads():
            if kind in ("model", "prediction"):
                middle, half = self._model.interval(index, level, kind == "prediction")
            elif kind == "conformal":
                middle = self._clipped(self._model.at(index))
                half = self._model.conformal_half_width(index, level)
            else:
                raise ValueError(f'kind must be "model", "prediction" or "conformal", not {kind!r}')
        bounds = (self._clipped(x) for x in (middle - half, middle + half))
        lower, upper = (self._kind.given_back(x) for x in bounds)
        return lower, upper

    def sample(self, n: int = 1, index: Any = None, *, random_state: Any = None) -> Array:
        """Draw completed data sets: multiple imputation.

        Observed entries that were not rejected stay as they are. The others are drawn: the estimate
        plus noise, and its uncertainty, which the entries of a row share. Analyse every draw as you
        would analyse the data, and compare the results.

        Parameters
        ----------
        n : int
            The number of draws.
        index : tuple of integer arrays, one per mode, each of shape (m,), optional
            Draw these entries only, whether they were observed or not.
        random_state : int, RandomState or None

        Returns
        -------
        draws : array of shape (n, n1, ..., nd), or (n, m)
            For a frame or a labelled array, a list of n of them.
        """
        check_is_fitted(self)
        n = checks.count("n", n, least=1)
        index = None if index is None else self._coordinates(index)
        shape = self.factors_.shape
        if index is None:
            check_memory((n, *shape), "the draws", self._kind.dense)
        rng = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
        draws = []
        with self._threads():
            model, spread = self._model, self._model.spread()
            middle, wide = model.values(spread.factors, index), math.sqrt(model.caution)
            for _ in range(n):
                X = model.values(spread.drawn(rng), index) - middle
                noise = normal_numbers(rng, X) * math.sqrt(spread.noise)
                X = self._clipped(middle + wide * (X + noise * model.unit(index)))
                if index is None:
                    X = self._with_observed(X)
                draws.append(self._kind.given_back(X))
        if index is None and self._kind.labels is not None:
            return [self._kind.table_back(X) for X in draws]
        return array_namespace(*draws).stack(draws)

    def _with_observed(self, X: Array) -> Array:
        """Return a table with the observed entries, except for the rejected ones."""
        xp = array_namespace(X)
        completed = xp.asarray(X, copy=True)
        for data in (self._model.observations, self._model.held):
            if data is not None:
                completed[data.coordinates] = data.flat
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
        """Return how well entries that the fit did not see are predicted.

        Parameters
        ----------
        X : table, tensor or EntryTable
            As `held_out` says.
        y : ignored
            If it is given, as by scikit-learn's supervised tools, scoring entries of the fit
            is not refused, but a warning is raised.
        observed : boolean array of the shape of X, optional
        rows : {"same", "new"}, optional
            As `held_out` says.
        force : bool
            Also score entries of the fit, for which a good score means nothing.

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
            return math.nan  # it has no meaning for a single entry
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
        """Return entries that the fit did not see, and their estimates, for any measure.

        Parameters
        ----------
        X : table, tensor or EntryTable
            Either the table of the fit with other entries, which are predicted; entries of the fit
            are left out, and a table that has no others is refused. Or new rows: a fifth of the
            entries of each is hidden and predicted from the others.
        observed : boolean array of the shape of X, optional
        rows : {"same", "new"}, optional
            Which of the two X is. By default a table is the same if it has as many rows, and agrees
            with that of the fit wherever both have a value; otherwise its rows are new.
        force : bool
            Neither leave out nor refuse entries of the fit.

        Returns
        -------
        truth, estimate : arrays of shape (m,)
        """
        check_is_fitted(self)
        fitted = self._model.observations
        if isinstance(X, EntryTable):
            data = X.observations
            if data.shape != fitted.shape:
                raise ValueError(
                    f"X holds entries of a table of shape {data.shape}, but the model was fitted "
                    f"to {fitted.shape}"
                )
        else:
            data, _ = self._read(X, observed)
        self._same_library(data)
        xp, there = array_namespace(data.y), device(data.y)
        if not data.size:
            raise ValueError("X has no observed entry: there is nothing to score")
        if rows not in (None, "same", "new"):
            raise ValueError(f'rows must be "same", "new" or None, not {rows!r}')
        known = data.shape == fitted.shape and rows != "new"
        if rows == "same" and not known:
            raise ValueError(
                f"X has shape {data.shape}, but the model was fitted to {fitted.shape}"
            )
        if known:
            seen, same, like = in_common(data, fitted)
            known = isinstance(X, EntryTable) or rows == "same" or same or not seen.any()
            if like and not known:
                warn(
                    "X has as many rows as the table of the fit, and similar but not equal values, "
                    'so its rows are taken as new rows; set rows="same" or rows="new"',
                    DataWarning,
                )
        if not known:
            if not force and remembered(data, fitted):
                raise _RefusedError(REFUSED)
            return self._hidden(data)
        if same and not force:
            data = data.some(xp.asarray(np.nonzero(~seen)[0], device=there))
        if not data.size:
            raise _RefusedError(REFUSED)
        counts = host(fitted.counts(0))[host(data.coordinates[0])]
        old = data.some(xp.asarray(np.nonzero(counts > 0)[0], device=there))
        new = data.some(xp.asarray(np.nonzero(counts == 0)[0], device=there))
        truth, estimate = old.flat, self._clipped(self._model.at(old.coordinates))
        if new.size:
            hidden = self._hidden(new)
            truth, estimate = xp.concat([truth, hidden[0]]), xp.concat([estimate, hidden[1]])
        return truth, estimate

    def _hidden(self, data: LocalObservations) -> tuple[Array, Array]:
        """Return a part of every row, and its estimate from the other part."""
        xp, there = array_namespace(data.y), device(data.y)
        chosen = some_of_each_row(host(data.coordinates[0]))
        if not chosen.any():
            raise ValueError("no row of X has two entries, one to hide and one to predict it from")
        test = data.some(xp.asarray(np.nonzero(chosen)[0], device=there))
        rest = data.some(xp.asarray(np.nonzero(~chosen)[0], device=there))
        with self._threads(), np.errstate(over="ignore", under="ignore"):
            return test.flat, self._clipped(self._model.rows_at(rest, test.coordinates))

    # ---- other rows

    def _read(self, X: Any, observed: Any) -> tuple[LocalObservations, Kind]:
        """Read rows (slices of mode 0) like those of the fit."""
        raise NotImplementedError

    def _lazily(self, X: Any, observed: Any, plausible: bool) -> Any:
        from ..distributed.lazy import transformed

        check_is_fitted(self)
        if plausible:
            raise NotImplementedError(
                "plausible=True needs the data of the fit beside every chunk; leave it out for "
                "Dask arrays, or transform X.compute()"
            )
        return transformed(self, X if is_frame(X) else as_array(X), observed)

    def _read_rows(self, X: Any, observed: Any) -> tuple[LocalObservations, Kind]:
        """Read rows without values, all of which are to be estimated."""
        data, kind = self._read(X, observed)
        check_memory(data.shape, "the transformed X", kind.how != "sparse")
        return data, kind

    def _plausible(self, values: Array, data: LocalObservations | None = None) -> Array:
        """Return estimates as values that could have been observed, and `data` unchanged.

        Columns of a table have their own digits and bounds; a tensor has common ones.
        """
        known = self._model.observations
        matrix = len(known.shape) == 2
        seen = ColumnValues(known.shape[1] if matrix else 1)
        for part in (known, data):
            if part is not None and part.size:
                columns = host(part.coordinates[1]) if matrix else np.zeros(part.size, dtype=int)
                seen.add_entries(columns, host(part.flat))
        xp = array_namespace(values)
        new = xp.astype(seen.found().values(values), values.dtype, copy=False)
        if data is not None and data.index is not None and data.size:
            new[data.index] = data.y
        return new if data is None or data.index is not None else values

    def _estimated(self, data: LocalObservations) -> Array:
        """Return the estimate of rows, dense, in the units of the data."""
        with self._threads(), np.errstate(over="ignore", under="ignore"):
            return self._clipped(self._model.rows_at(data, None))

    def _filled(self, data: LocalObservations) -> Array:
        """Return rows with the observed values, and estimates elsewhere."""
        xp = array_namespace(data.y)
        if data.index is None:
            return xp.asarray(data.y, copy=True)
        filled = xp.astype(self._estimated(data), data.y.dtype, copy=False)
        if data.size:
            filled[data.index] = data.y
        return filled
