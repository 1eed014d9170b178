"""Matrix completion and robust PCA: estimators of tables."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ..factors import Bordered
from .base import SHAPES, all_or_nothing
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


class _MatrixEstimator(OneToOneFeatureMixin, TransformerMixin, EntrywiseEstimator):
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
        """Whether nothing low-rank was found, and no offsets either, though they were open."""
        free = self._open and self.center == "auto" and self._outliers() is None
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


@dataclass(eq=False, repr=False)
class MatrixCompletion(_MatrixEstimator):
    """Fill the holes of a table with a low-rank model.

    X ≈ offsets + a low-rank matrix. Start, method, step, ridge, noise level and tolerance
    are chosen from the data. With ``rank="auto"`` the rank, the offsets and the scales are chosen
    too, on held-out entries. `transform` also fills new rows.

    Parameters
    ----------
    rank : "auto" or int
        An upper bound: components that the data do not support are cut. `rank_` was used.
    center : {"auto", "none", "rows", "columns", "both"}
        Offsets that are estimated together with the factors. "auto" is "none" when a rank is
        given.
    scale : {"auto", "none", "rows", "columns", "both"}
        Sides that are divided by their standard deviation. "auto" is "none" when a rank is
        given.
    ridge : "auto" or float
        Learnt from the noise in the residual; or a number: about the size of the noise
        relative to the data.
    outliers : None, "auto" or a fraction
        Whether some of the observed entries are grossly wrong.
    clip : (lo, hi), optional
        Bounds of the estimates that are returned.
    calibrate : float, optional
        The share of the entries to hold out for ``interval(..., kind="conformal")``.
    non_negative : bool
        Factors without negative entries, and no offsets: parts that add up.
    tol : float
        Relative accuracy of the fit.
    max_iter : int
        Iterations of a stage at most.
    max_time : float, optional
        Seconds at most, of this fit.
    warm_start : bool
        Begin where the last fit ended.
    random_state : int, RandomState or None
        Draws the held-out entries.
    n_jobs : int, optional
        The number of threads.
    verbose : int
        1 shows progress if there is a terminal.
    checkpoint : path, optional
        File for the state of the fit, written every few seconds. A fit of the same data with
        the same parameters resumes from it.
    interrupt : {"raise", "return"}
        Whether Ctrl-C is raised again after the fit ended at its last iterate.

    Attributes
    ----------
    factors_ : LowRank
        The low-rank part. ``reconstruct()`` is offsets + ``factors_.full()``.
    components_ : array of shape (rank_, n2), orthonormal rows
    singular_values_ : array of shape (rank_,)
    row_offset_, column_offset_ : arrays of shape (n1,) and (n2,)
    rank_, center_, scale_ : those that were used
    rank_path_ : list of dict
        How the rank was found.
    noise_variance_ : float
    n_iter_, converged_, status_, history_ : how the fit went
    diagnostics_ : list of str
        What the data cannot determine.
    outliers_, threshold_ : if `outliers` is not None

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 40))
    >>> holes = np.where(rng.random(X.shape) < 0.5, X, np.nan)
    >>> model = sg.MatrixCompletion(rank=2).fit(holes)
    >>> bool(np.allclose(model.transform(holes), X, atol=1e-6))
    True
    """

    _: KW_ONLY
    outliers: Any = field(default=None, metadata=SHAPES)
    non_negative: bool = field(default=False, metadata=SHAPES)

    def transform(self, X: Any, *, observed: Any = None) -> Any:
        """Fill the holes of rows, which may be new.

        Parameters
        ----------
        X : array of shape (n, n2), as for `fit`
        observed : boolean array of shape (n, n2), optional

        Returns
        -------
        filled : array of shape (n, n2)
            Observed values as they are, estimates elsewhere.
        """
        data, kind = self._read_rows(X, observed)
        return kind.table_back(self._filled(data))


class RobustPCA(_MatrixEstimator):
    """Separate a table into a low-rank part and gross errors.

    The number and the size of the errors need not be known. Up to about a third of the entries
    may be wrong, and entries may be missing (NaN).

    Parameters
    ----------
    rank : "auto" or int
        "auto" is the rank below a gap in the spectrum of the clean residual. An integer is an
        upper bound.
    center : {"auto", "none", "rows", "columns", "both"}
        Offsets, estimated robustly together with the factors. "auto" is "none".
    scale : {"auto", "none", "rows", "columns", "both"}
        "auto" is "none".
    ridge : "auto"
        Learnt from the noise in what was not rejected.
    clip, calibrate, tol, max_iter, max_time, warm_start, random_state, n_jobs, verbose
    checkpoint, interrupt
        As in `MatrixCompletion`.

    Attributes
    ----------
    outliers_ : scipy.sparse array of shape (n1, n2)
        X minus the estimate, where that exceeds the threshold.
    threshold_ : float
        Part of the model: new rows are cleaned with it.
    factors_, components_, singular_values_, row_offset_, column_offset_, rank_, rank_path_
    noise_variance_, n_iter_, converged_, status_, history_, diagnostics_
        As in `MatrixCompletion`.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 2)) @ rng.standard_normal((2, 60))
    >>> Y = X + 10 * (rng.random(X.shape) < 0.1)
    >>> model = sg.RobustPCA(rank=2).fit(Y)
    >>> bool(np.allclose(model.transform(Y), X)), bool(model.outliers_.nnz == (X != Y).sum())
    (True, True)
    """

    def _outliers(self) -> Any:
        return "auto"

    def transform(self, X: Any, *, observed: Any = None) -> Any:
        """Return the clean part of rows, which may be new.

        Parameters
        ----------
        X : array of shape (n, n2), as for `fit`
        observed : boolean array of shape (n, n2), optional

        Returns
        -------
        clean : array of shape (n, n2)
        """
        data, kind = self._read_rows(X, observed)
        return kind.table_back(self._estimated(data))
