"""The common part of estimators of tables: how a table is read, fitted and continued."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace, is_torch_array
from sklearn import get_config
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from .base import all_or_nothing
from .comparing import better
from .dask import any_dask, as_array, is_frame, refuse_weights
from .diagnostics import share_outside
from .entry_table import EntryTable
from .entrywise import EntrywiseEstimator
from .fitting import aligned_components, fit_continued, fit_non_negative, fit_ridge
from .growing import begin
from .labels import compatible, without_times
from .local_observations import LocalObservations
from .matrix_model import MatrixModel, TableFit
from .observations import same_library
from .plans import Reading, plain_side
from .reading import Kind, read_matrix, weighted
from .robust import fit_robust
from .robust_judging import bounded
from .scaling import Choice, empty, scales
from .searching import search
from .session import Session, unexplained
from .timed import LEARN
from .timed_model import TimedModel
from .units import robust_column_units, tamed
from .vouching import (
    DOUBT,
    MEANS,
    MEDIANS,
    OFFSETS,
    Pairs,
    middle_errors,
    objection,
    own_units,
    rows_in_part,
    squared,
)
from .wishes import Wishes


def _row_errors(model: MatrixModel, pairs: Pairs, unit: Any) -> Any:
    """Squared errors of a model at entries of rows, solved from the others."""
    values = [model.rows_at(fit, test.coordinates) for fit, test in pairs]
    tests = [test for _, test in pairs]
    errors = [squared(*each, unit) for each in zip(tests, values, strict=True)]
    return array_namespace(unit).concat(errors)


SMOOTH = ("auto", "none", "rows", "columns")


class MatrixEstimator(OneToOneFeatureMixin, TransformerMixin, EntrywiseEstimator):
    """An estimator of a table of samples and features."""

    _model: MatrixModel

    # ---- fitting

    def _check_params(self) -> None:
        super()._check_params()
        smooth = getattr(self, "smooth", "none")
        if smooth not in SMOOTH:
            raise ValueError(
                f"smooth must be one of {', '.join(map(repr, SMOOTH))}, not {smooth!r}"
            )
        if smooth in ("rows", "columns") and (self.ridge != "auto" or self._non_negative):
            raise ValueError(
                f'smooth="{smooth}" cannot be combined with a given ridge or non_negative; '
                'set smooth="none"'
            )

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        observed: Any = None,
        entry_weight: Any = None,
        sample_weight: Any = None,
        client: Any = None,
    ) -> Self:
        """Learn the factors.

        Parameters
        ----------
        X : array, masked array, frame, sparse matrix, xarray or torch tensor, of shape (n1, n2)
            Or an EntryTable. NaN is missing. The stored entries of a sparse matrix are
            observed, zeros included. Or a Dask array, or a Dask frame with three columns: the
            labels of row and column, and the value.
        y : ignored
        observed : boolean array of shape (n1, n2), optional
            True where observed; X must not be NaN there.
        entry_weight : array of shape (n1, n2), optional
            How much each entry counts.
        sample_weight : array of shape (n1,), optional
            How much each row counts.
        client : distributed.Client, optional
            Where Dask collections are computed; by default the active client, or this process.

        Returns
        -------
        self
        """
        if any_dask(X, observed):
            refuse_weights(entry_weight, sample_weight)
            return self._fit_dask(X, observed, client)
        self._check_params()
        with all_or_nothing(self) as work:
            work.__dict__.pop("_names", None)
            if isinstance(X, EntryTable):
                data, kind = work._read_table(X, observed), X.kind
            else:
                data, kind = read_matrix(work, X, observed, reset=True)
            dense = not isinstance(X, EntryTable) and kind.how != "sparse"
            data = weighted(data, entry_weight, sample_weight, dense)
            if not work._fit_on_gpu(data, kind, X):
                work._fit(data, kind, X=X)
        return self

    def fit_entries(
        self,
        index: Any,
        values: Any,
        shape: tuple[int, int],
        *,
        entry_weight: Any = None,
        client: Any = None,
    ) -> Self:
        """Learn the factors from coordinates and values.

        Parameters
        ----------
        index : pair of integer arrays of shape (m,), which may be Dask arrays
        values : array of shape (m,)
            A tensor in pinned memory is fitted on a GPU, streamed if it does not fit there.
        shape : (n1, n2)
        entry_weight : array of shape (m,), optional
        client : distributed.Client, optional
            Where Dask arrays are computed; by default the active client, or this process.

        Returns
        -------
        self
        """
        if any_dask(index, values):
            from ..distributed import fitting, sources

            refuse_weights(entry_weight)
            fitting.fit(self, lambda w: sources.of_entries(w, index, values, shape), client)
            return self
        return self.fit(EntryTable(index, values, shape), entry_weight=entry_weight)

    def _fit_on_gpu(self, data: LocalObservations, kind: Kind, X: Any) -> bool:
        """Fit entries on a GPU if they are in pinned memory; return whether they were."""
        if not is_torch_array(data.y):
            return False
        from ..distributed import streaming

        return streaming.fit(self, data, kind, X)

    def _fit_dask(self, X: Any, observed: Any, client: Any) -> Self:
        from ..distributed import fitting, sources

        if is_frame(X):
            if observed is not None:
                raise ValueError("a frame of entries holds only observed ones; leave observed out")
            fitting.fit(self, lambda w: sources.of_frame(w, X), client, X)
        else:
            fitting.fit(self, lambda w: sources.of_table(w, as_array(X), observed), client, X)
        return self

    def _read_table(self, table: EntryTable, observed: Any) -> LocalObservations:
        table.refuse(observed)
        data, labels = table.observations, table.kind.labels
        if len(data.shape) != 2:
            raise ValueError(f"shape must be (n1, n2) for a matrix, not {data.shape}")
        self.n_features_in_ = data.shape[1]
        self.__dict__.pop("feature_names_in_", None)
        if labels is not None and labels.kind != "xarray":
            self.feature_names_in_ = np.asarray(labels.names, dtype=object)
        return data

    def partial_fit(self, X: Any, y: Any = None, *, observed: Any = None) -> Self:
        """Add rows, and continue the fit with all rows seen so far.

        Offsets, scales and rank stay as chosen.

        Parameters
        ----------
        X : array of shape (n, n2), as for `fit`
        y : ignored
        observed : boolean array of shape (n, n2), optional

        Returns
        -------
        self
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, observed=observed)
        if any_dask(X, observed) or not isinstance(self._model.observations, LocalObservations):
            raise NotImplementedError(
                "partial_fit needs the data on this machine; fit all rows again, or give "
                "X.compute() to a model that was fitted here"
            )
        self._check_params()
        with all_or_nothing(self) as work:
            fresh, _ = read_matrix(work, X, observed, reset=False)
            self._same_library(fresh)
            if isinstance(self._model, TimedModel):
                self._model.check_more(fresh)
            fresh = fresh.in_precision_of(self._model.observations.y)
            work._fit(fresh, self._kind, again=True, X=X)
        return self

    def _search(
        self, session: Session, data: LocalObservations, again: bool, seed: int, rng: Any
    ) -> TableFit:
        if self._continues(data, again):
            fit = self._continued(session, data)
        elif min(data.shape) == 1 and data.size:
            fit = self._blank(data, "a single row or column")
        else:
            self._normalised(data)
            ridge = None if self.ridge == "auto" else float(self.ridge)
            rank = self._rank()
            rank = None if rank is None else min(rank, *data.shape)
            asked = rank, self.center, self.scale, self._outliers(), ridge
            known = data if self._outliers() is None else tamed(data)
            wishes = Wishes(*asked, self._non_negative, self._smooth)
            fit = search(session, known, wishes, seed)
        return self._best_in_time(session, data, fit)

    def _continued(self, session: Session, data: LocalObservations) -> TableFit:
        """Continue from the earlier fit; offsets, scales and rank stay as they are."""
        known = self._model
        if isinstance(known, TimedModel):
            return known.continued(data, LEARN)
        normal = known.normalised(data)
        scale = replace(known.scales.for_rows(normal), mean=known.scales.mean)
        reading = Reading(known.size, known.choice, scale, known.trail, known.units)
        start, _ = known.solve_rows(data)
        session, scaled = session.with_reading(reading), scale.apply(normal)
        outliers = self._outliers()
        if outliers is not None:
            state, limit = fit_robust(session, scaled, start, start.rank, outliers)
            return TableFit(reading, state, None, limit)
        if self._non_negative:
            return TableFit(reading, *fit_non_negative(session, scaled, start, start.rank))
        if self.ridge != "auto":
            ridge = float(self.ridge)
            return TableFit(reading, *fit_ridge(session, scaled, start, start.rank, ridge))
        state = fit_continued(session, scaled, start)
        return TableFit(reading, aligned_components(state, scaled))

    def _best_in_time(self, session: Session, data: LocalObservations, fit: TableFit) -> TableFit:
        """Return a fit, or a better candidate if time ran out when the fit had hardly begun."""
        other = self._salvaged(session, data) if session.out_of_time else None
        if other is not None and unexplained(other.state) < 0.9 * unexplained(fit.state):
            return other
        return fit

    def _salvaged(self, session: Session, data: LocalObservations) -> TableFit | None:
        found = session.shared.salvage()
        if found is None or tuple(found.state.factors.shape) != data.shape:
            return None
        robust, plain = self._outliers() is not None, self._non_negative
        return TableFit.of_iterate(found.state, found.reading, data, robust, plain)

    def _blank(
        self, data: LocalObservations, why: str = "interrupted", choice: Choice | None = None
    ) -> TableFit:
        """Return offsets alone; without offsets, all rows like a typical one."""
        robust, plain = self._outliers() is not None, self._non_negative
        if choice is None:
            center = self.center
            if center == "auto":
                center = "none" if plain else "columns" if robust else "both"
            choice = Choice(center, plain_side(self.scale), robust)
        center = choice.center
        size = data.magnitude()
        normal = data.scaled(size)
        known = scales(normal, choice)
        scaled, F = known.apply(normal), empty(normal, choice, known)
        typical = (scaled.medians(1) if robust else scaled.means(1))[:, None]
        if center == "none":
            even = scaled.blank(0, 1) + 1
            F = replace(F, L=even, R=typical if not plain else abs(typical))
        elif center == "columns":
            F = replace(F, R=typical)
        if plain or robust or center == "none":
            state = scaled.problem().linearize(F)
        else:
            state = begin(Session(), scaled, F, None).state
        reading = Reading(size, choice, known, [{"rank": F.rank, "why": why}])
        return TableFit.of_iterate(state, reading, data, robust, plain)

    def _objection(self, model: MatrixModel, data: LocalObservations) -> str:
        if not model.attributes["rank_"] and model.in_time is None:
            return DOUBT  # nothing was found yet
        pairs = rows_in_part(data)
        if not pairs:
            return ""
        robust = self._outliers() is not None
        unit = robust_column_units(data).scale if robust else own_units(data)
        both = _row_errors(model, pairs, unit), middle_errors(pairs, unit, robust)
        return objection(*(map(bounded, both) if robust else both))

    def _rather(self, model: MatrixModel, data: LocalObservations) -> MatrixModel:
        robust = self._outliers() is not None
        pairs = rows_in_part(data) if robust else []  # others were compared with offsets
        if pairs:
            unit = robust_column_units(data).scale
            simple = self._modelled(self._blank(data, OFFSETS), data)
            if better(*(_row_errors(each, pairs, unit) for each in (simple, model))):
                return simple
        penalised = self.ridge != "auto" or self._non_negative  # as was asked for
        local = isinstance(data, LocalObservations)
        if local and not penalised and share_outside(model, data, self._clipped):
            why = MEDIANS if robust else MEANS
            return self._modelled(self._blank(data, why, Choice("columns", robust=robust)), data)
        return model

    def _modelled(self, fit: TableFit, data: LocalObservations) -> MatrixModel:
        outliers = self._outliers()
        if fit.timed is not None:
            return TimedModel.timed(fit, data, self._asked(), outliers)
        return MatrixModel.of(fit, data, self._asked(), outliers, self._non_negative)

    @property
    def _smooth(self) -> str:
        return str(getattr(self, "smooth", "none"))

    @property
    def _non_negative(self) -> bool:
        return bool(getattr(self, "non_negative", False))

    def _continues(self, data: LocalObservations, again: bool) -> bool:
        """Whether the fit continues from the earlier one."""
        if not self.__sklearn_is_fitted__() or not (again or self.warm_start):
            return False
        model = self._model
        if isinstance(model, TimedModel) and not (
            model.has_times(data) and model.same_columns(data)
        ):
            return False
        size = data.magnitude() / model.size if data.size else 1.0
        return bool(
            data.shape[1] == model.observations.shape[1]
            and model.settings == self._asked()
            and self.rank_
            and self._rank() in (None, self.rank_)
            and same_library(data, model.observations)
            and data.y.dtype == model.observations.y.dtype
            and 1e-3 < size < 1e3
        )

    # ---- other rows

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and transform the same rows: ``fit(X).transform(X)``.

        Parameters
        ----------
        X : array of shape (n1, n2), as for `fit`
        y : ignored
        **fit_params : passed to `fit`

        Returns
        -------
        transformed : array of shape (n1, n2)
        """
        observed = fit_params.get("observed")
        return self.fit(X, y, **fit_params).transform(X, observed=observed)

    def _as_given(self, kind: Kind, values: Any) -> Any:
        """Return transformed rows in the type of the input, or as `set_output` asks."""
        chosen = getattr(self, "_sklearn_output_config", {}).get("transform")
        if (chosen or get_config()["transform_output"]) != "default":
            kind = replace(kind, labels=without_times(kind.labels))
        return kind.table_back(values)

    def _read(self, X: Any, observed: Any) -> tuple[LocalObservations, Kind]:
        check_is_fitted(self)
        data, kind = read_matrix(self, X, observed, reset=False)
        self._same_library(data)
        compatible(kind.labels, self._kind.labels)
        return data, kind

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
