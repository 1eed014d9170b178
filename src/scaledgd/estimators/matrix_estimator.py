"""What estimators of tables share: how a table is read, fitted and continued."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ..factors import Bordered
from .base import all_or_nothing
from .choosing import (
    FEWEST,
    Plan,
    Reading,
    candidates,
    choose,
    offsets_for_rank,
    plain_side,
)
from .entry_table import EntryTable
from .entrywise import EntrywiseEstimator
from .fitting import aligned_components, fit_non_negative, fit_ridge
from .growing import checked, fit_given, fit_grown
from .journal import log
from .labels import compatible
from .local_observations import LocalObservations
from .matrix_model import MatrixModel, TableFit
from .observations import same_library
from .reading import Kind, read_matrix, weighted
from .robust import fit_robust
from .robust_rank import narrow_rank, robust_rank
from .scaling import Choice, empty, scales, table_factors
from .session import Session, unexplained
from .units import Units, finer_units, robust_units, usual_units


class MatrixEstimator(OneToOneFeatureMixin, TransformerMixin, EntrywiseEstimator):
    """An estimator of a table of samples and features."""

    _model: MatrixModel

    # ---- fitting

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        observed: Any = None,
        entry_weight: Any = None,
        sample_weight: Any = None,
    ) -> Self:
        """Learn the factors.

        Parameters
        ----------
        X : array, masked array, frame, sparse matrix, xarray or torch tensor, of shape (n1, n2)
            Or an EntryTable. NaN is missing. The stored entries of a sparse matrix are
            observed, zeros included.
        y : ignored
        observed : boolean array of shape (n1, n2), optional
            True where observed; X must not be NaN there.
        entry_weight : array of shape (n1, n2), optional
            How much each entry counts.
        sample_weight : array of shape (n1,), optional
            How much each row counts.

        Returns
        -------
        self
        """
        self._check_params()
        with all_or_nothing(self) as work:
            if isinstance(X, EntryTable):
                data, kind = work._read_table(X, observed), X.kind
            else:
                data, kind = read_matrix(work, X, observed, reset=True)
            dense = not isinstance(X, EntryTable) and kind.how != "sparse"
            work._fit(weighted(data, entry_weight, sample_weight, dense), kind, X=X)
        return self

    def fit_entries(
        self, index: Any, values: Any, shape: tuple[int, int], *, entry_weight: Any = None
    ) -> Self:
        """Learn the factors from coordinates and values.

        Parameters
        ----------
        index : pair of integer arrays of shape (m,)
        values : array of shape (m,)
        shape : (n1, n2)
        entry_weight : array of shape (m,), optional

        Returns
        -------
        self
        """
        return self.fit(EntryTable(index, values, shape), entry_weight=entry_weight)

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

        Offsets, scales and rank stay as they were chosen.

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
        self._check_params()
        with all_or_nothing(self) as work:
            fresh, _ = read_matrix(work, X, observed, reset=False)
            self._same_library(fresh)
            fresh = fresh.in_precision_of(self._model.observations.y)
            work._fit(fresh, self._kind, again=True, X=X)
        return self

    def _search(
        self,
        session: Session,
        data: LocalObservations,
        again: bool,
        seed: int,
        rng: Any,
        before: TableFit | None = None,
    ) -> TableFit:
        known = self._model if self._continues(data, again) else None
        units = self._units(data, before) if known is None else known.units
        normal, size = self._normalised(data if units is None else units.apply(data))
        if known is not None:
            size, normal = known.size, known.normalised(data)
        reading = Reading(size=size, units=units)
        plan = self._chosen(session.with_reading(reading), normal, seed, known)
        scale = scales(normal, plan.choice)
        if known is not None:
            scale = replace(known.scales.for_rows(normal), mean=known.scales.mean)
        reading = replace(reading, choice=plan.choice, scales=scale, trail=plan.trail)
        start = empty(normal, plan.choice, scale)
        if known is not None and plan.rank:
            start, _ = known.solve_rows(data)
        if before is not None:
            start = before.in_other_units(reading, start, plan.rank)
        fit = self._solved(session.with_reading(reading), scale.apply(normal), start, plan, seed)
        if known is not None:
            return self._best_in_time(session, data, fit)
        if self._offsets_are_missing(fit):
            # zeros would be the worst of all estimates
            sides = Choice("both" if normal.size >= FEWEST else "columns")
            scale = scales(normal, sides)
            reading = replace(reading, choice=sides, scales=scale)
            start, here = empty(normal, sides, scale), session.with_reading(reading)
            fit = self._solved(here, scale.apply(normal), start, plan, seed)
        robust = self._outliers() is not None
        if robust and units is not None and units.scaled and before is None:
            # one threshold for all columns needs units in which their noise is alike
            return self._search(session, data, again, seed, rng, fit)
        return self._best_in_time(session, data, fit)

    def _best_in_time(self, session: Session, data: LocalObservations, fit: TableFit) -> TableFit:
        """Return a fit, or a better candidate if time ran out when the fit hardly began."""
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

    def _modelled(self, fit: TableFit, data: LocalObservations) -> MatrixModel:
        outliers = self._outliers()
        return MatrixModel.of(fit, data, self._asked(), outliers, self._non_negative)

    @property
    def _non_negative(self) -> bool:
        return bool(getattr(self, "non_negative", False))

    def _continues(self, data: LocalObservations, again: bool) -> bool:
        """Whether the fit continues from the earlier one."""
        if not self.__sklearn_is_fitted__() or not (again or self.warm_start):
            return False
        model = self._model
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

    _decides_offsets = False
    """Whether center and scale "auto" are chosen even if the rank is given."""

    @property
    def _open(self) -> bool:
        """Whether offsets and scales that are "auto" are to be chosen."""
        return self._rank() is None or self._decides_offsets

    def _units(self, data: LocalObservations, before: TableFit | None) -> Units | None:
        """Return units of columns, if columns are unlike and it is left open.

        After a first fit they are such that it leaves equally much of all columns.
        """
        if before is not None and before.reading.units is not None:
            units = before.reading.units
            normal = units.apply(data).scaled(before.reading.size)
            left = before.reading.scales.apply(normal).residual(table_factors(before.state))
            return finer_units(units, left)
        if not self._open or self._non_negative or not data.size:
            return None
        if self._outliers() is not None:
            sides = ("auto", "columns") if self._decides_offsets else ("auto",)
            center, scale = (x if x in sides else "none" for x in (self.center, self.scale))
            return robust_units(data, center, scale)
        if self.scale != "auto" or self.center not in ("auto", "columns", "both"):
            return None
        return usual_units(data)

    def _offsets_are_missing(self, fit: TableFit) -> bool:
        """Whether nothing low-rank was found, and no offsets either, though they were open.

        Units of columns are offsets: where there are some, zero is the mean of a column.
        """
        free = self._open and self.center == "auto" and self._outliers() is None
        free = free and fit.reading.units is None
        none = not table_factors(fit.state).rank and fit.reading.choice.center == "none"
        return free and none and not self._non_negative and self.ridge == "auto"

    def _chosen(
        self, session: Session, data: LocalObservations, seed: int, known: MatrixModel | None
    ) -> Plan:
        """Return offsets and scales, the largest rank, and how they were found."""
        rank, robust = self._rank(), self._outliers() is not None
        if known is not None:
            had = known.factors.rank
            return Plan(known.choice, had if rank is None else max(1, rank), self.rank_path_)
        given = Choice(plain_side(self.center), plain_side(self.scale), robust)
        if robust and self._decides_offsets and session.reading.units is not None:
            given = Choice(robust=True)
        choices = candidates(self.center, self.scale, not self._non_negative)
        if rank is not None:
            if self._decides_offsets and not robust:
                given = offsets_for_rank(session, data, rank, choices, seed)
            return Plan(given, rank, [{"rank": rank, "why": "given"}])
        if robust:
            aside = session.apart()
            found = narrow_rank(aside, data, given, seed) or robust_rank(aside, data, seed)
            log.info("rank %d: %s", *found[:2])
            last = {"rank": found[0], "why": found[1]}
            return Plan(given, found[0], [*found[2], last])
        return choose(session, data, choices, seed)

    def _solved(
        self, session: Session, data: LocalObservations, start: Bordered, plan: Plan, seed: int
    ) -> TableFit:
        """Fit data that are scaled, as planned."""
        outliers, reading, rank = self._outliers(), session.reading, plan.rank
        if self._non_negative and (outliers is not None or self.ridge != "auto"):
            raise ValueError("non_negative goes with neither outliers nor a ridge that is given")
        if outliers is not None:
            if not rank:
                return TableFit(reading, data.problem().linearize(start), None, 0.0)
            init = start if start.rank and reading.units is not None else None
            state, threshold = fit_robust(session, data, start, rank, outliers, init)
            return TableFit(reading, state, None, threshold)
        if self._non_negative:
            if start.u is not None or start.v is not None:
                raise ValueError('non_negative factors have no offsets; set center="none"')
            return TableFit(reading, fit_non_negative(session, data, start, rank))
        if self.ridge != "auto":
            return TableFit(reading, *fit_ridge(session, data, start, rank, float(self.ridge)))
        if plan.grows and not start.rank:
            state = fit_grown(session, data, start, rank)
        else:
            state = fit_given(session, data, start, rank, seed + 1)
        state = checked(session, state, data, start, seed + 2)
        return TableFit(reading, aligned_components(state, data))

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
