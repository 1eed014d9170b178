"""Tensor completion and tensor robust PCA: estimators of data with more than two modes."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self

from array_api_compat import array_namespace
from sklearn.utils.validation import check_is_fitted

from .. import checks
from ..factors import CP
from .base import SHAPES, all_or_nothing
from .dask import any_dask, as_array, is_frame, refuse_weights
from .entry_table import EntryTable
from .entrywise import EntrywiseEstimator
from .labels import compatible
from .local_observations import LocalObservations
from .observations import same_library
from .reading import Kind, read_tensor, weighted
from .session import Session
from .tensor_given import Asked, fewer, fit_given, with_ridge
from .tensor_model import Offsets, TensorModel, TensorReading, divided
from .tensor_search import PART, fit_auto
from .tensor_units import choose_units
from .tensor_vouching import offsets_alone, opinion
from .tensor_ways import ended
from .tucker import Ranks, TensorFit, choose_ranks, degrees, possible, spectra
from .vouching import OFFSETS, against, rows_in_part, unfinished

Array = Any


def within(ranks: Ranks, bound: Ranks | None) -> bool:
    """Whether ranks do not exceed bounds, if there are any."""
    return bound is None or all(r <= b for r, b in zip(ranks, bound, strict=True))


class _TensorEstimator(EntrywiseEstimator):
    """An estimator of data of d modes; samples are slices of mode 0."""

    _model: TensorModel

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
        X : array, masked array, xarray or torch tensor of shape (n1, ..., nd), or EntryTable
            NaN is missing. Of a large Dask array, a fit of given ranks is distributed; for other
            fits its entries are brought to this machine, if it has memory for them.
        y : ignored
        observed : boolean array of the shape of X, optional
        entry_weight : array of the shape of X, optional
        sample_weight : array of shape (n1,), optional
        client : distributed.Client, optional
            Where Dask arrays are computed; by default the active client, or this process.

        Returns
        -------
        self
        """
        if any_dask(X, observed):
            from ..distributed import fitting, sources

            refuse_weights(entry_weight, sample_weight)
            if is_frame(X):
                raise TypeError(
                    "a Dask frame of entries is for MatrixCompletion and RobustPCA; give "
                    "coordinates and values to fit_entries"
                )
            fitting.fit_tensor(
                self, lambda w: sources.of_table(w, as_array(X), observed, None), client, X
            )
            return self
        with all_or_nothing(self) as work:
            self._check_params()
            if isinstance(X, EntryTable):
                X.refuse(observed)
                data, kind = X.observations, X.kind
            else:
                data, kind = read_tensor(X, observed)
            dense = not isinstance(X, EntryTable)
            work._fit(weighted(data, entry_weight, sample_weight, dense), kind, X=X)
        return self

    def fit_entries(
        self,
        index: Any,
        values: Any,
        shape: tuple[int, ...],
        *,
        entry_weight: Any = None,
        client: Any = None,
    ) -> Self:
        """Learn the factors from coordinates and values.

        Parameters
        ----------
        index : tuple of integer arrays of shape (m,), one per mode, which may be Dask arrays
        values : array of shape (m,)
        shape : tuple of int
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
            fitting.fit_tensor(
                self, lambda w: sources.of_entries(w, index, values, shape, None), client
            )
            return self
        return self.fit(EntryTable(index, values, shape), entry_weight=entry_weight)

    def partial_fit(self, X: Any, y: Any = None, *, observed: Any = None) -> Self:
        """Add slices of mode 0, and continue the fit with all slices seen so far.

        Parameters
        ----------
        X : array of shape (n, n2, ..., nd), as for `fit`
        y : ignored
        observed : boolean array of the shape of X, optional

        Returns
        -------
        self
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, observed=observed)
        self._check_params()
        fresh, _ = read_tensor(X, observed)
        self._same_library(fresh)
        fresh = fresh.in_precision_of(self._model.observations.y)
        self._check_slices(fresh)
        with all_or_nothing(self) as work:
            work._fit(fresh, self._kind, again=True, X=X)
        return self

    def _ranks(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        if isinstance(self.rank, str):
            if self.rank != "auto":
                raise ValueError(f'rank must be "auto", an integer or a tuple, not {self.rank!r}')
            return None
        if isinstance(self.rank, (tuple, list)):
            if len(self.rank) != len(shape):
                raise ValueError(
                    f"rank {tuple(self.rank)} has {len(self.rank)} entries, but the data have "
                    f"{len(shape)} modes; give one per mode, or one integer"
                )
            return possible([checks.count("rank", r, least=1) for r in self.rank], shape)
        return possible((checks.count("rank", self.rank, least=1),) * len(shape), shape)

    def _undistributed(self, source: Any) -> str:
        """Return why a fit must have all entries on this machine; "" if it need not."""
        ranks = self._ranks(source.shape)
        if self._outliers() is not None and self.calibrate:
            return "calibrate with outliers needs one machine"
        if ranks is None:
            from ..distributed.fitting import room_here

            needed, left = room_here(source.size, source.dtype, len(source.shape))
            return 'rank="auto" of tensors' if needed <= left else ""
        return ""

    def _check_params(self) -> None:
        super()._check_params()
        if self.scale not in ("auto", "none"):
            raise ValueError(
                f'scale must be "auto" or "none" for tensors, not {self.scale!r}; scale the data '
                "before"
            )
        if self._outliers() is not None and self.center not in ("auto", "none"):
            raise ValueError(
                'offsets of tensors are means, which outliers would distort; set center="none" and '
                "raise the rank by one"
            )

    def _search(
        self, session: Session, data: LocalObservations, again: bool, seed: int, rng: Any
    ) -> tuple[TensorFit, TensorReading]:
        normal, size = self._normalised(data)
        ranks, start, outliers = self._ranks(data.shape), None, self._outliers()
        units: Offsets = ()
        ridge = None if self.ridge == "auto" else float(self.ridge)
        centers = self._centers
        if self._continues(data, again, ranks):
            model = self._model
            size, centers = model.size, (model.center,)
            normal = data.scaled(size)
            units = model.slice_units
            ranks = model.factors.ranks if ranks is None else ranks
            start, _ = model.solve_slices(data)
        reading = TensorReading(size, (None,) * len(data.shape), units=units)
        if start is None and normal.constant:
            return offsets_alone(normal, reading, "none", outliers is not None, "all are equal")
        # offsets are not additive in units of slices
        unlike = self.scale == "auto" and start is None and "none" in centers
        bound = ranks
        if ranks is not None and start is None and degrees(ranks, data.shape) > 0.8 * data.size:
            ranks = None  # an upper bound that excludes nothing: it reproduces anything
        if ranks is None and not isinstance(normal, LocalObservations):
            here = session.with_reading(None)
            few = choose_ranks(here, normal.core(PART, seed), outliers, seed)
            ranks, trail = few.ranks, few.trail
            ranks = ranks if bound is None else possible(tuple(map(min, ranks, bound)), data.shape)
            reading = replace(reading, trail=trail)
        if ranks is None and outliers is None:
            found = fit_auto(session, normal, reading, centers, self._scales, seed, unlike)
            supported = spectra(found[0].factors)[0].ranks
            if within(supported, bound):
                return found if ridge is None else with_ridge(session, normal, found, ridge)
            assert bound is not None
            ranks, units = tuple(map(min, supported, bound)), found[1].units
            reading, centers = replace(reading, units=units), ("none",) if units else centers
        given = not reading.trail and ranks is not None and start is None
        trail = reading.trail or [{"rank": ranks, "why": "given"}]
        if ranks is None:
            how = (outliers, seed, unlike)
            reading, chosen = choose_units(session, normal, reading, *how)
            ranks, trail, start = chosen.ranks, chosen.trail, chosen.factors
            if not within(ranks, bound):
                assert bound is not None
                ranks, start = possible(tuple(map(min, ranks, bound)), data.shape), None
        reading = replace(reading, trail=trail)
        asked = Asked(ranks, centers, outliers, ridge, self._offsets)
        known = None
        if given and outliers is not None:
            reading, asked, known = fewer(session, normal, reading, asked, seed, unlike)
        normal = divided(normal, reading.units)
        return fit_given(session, normal, reading, asked, start, seed, known)

    def _salvaged(
        self, session: Session, data: LocalObservations
    ) -> tuple[TensorFit, TensorReading] | None:
        found = session.shared.salvage()
        if found is None or math.prod(found.state.factors.shape) != math.prod(data.shape):
            return None
        reading = found.reading
        if isinstance(found.state.factors, CP):
            return ended((found.state,), reading, reading.normalised(data)), reading
        robust = self._outliers() is not None
        return reading.fit_of(found.state, data, robust), reading

    def _blank(
        self, data: LocalObservations, why: str = "interrupted"
    ) -> tuple[TensorFit, TensorReading]:
        """Return offsets alone; without offsets, a constant."""
        normal, size = self._normalised(data)
        reading = TensorReading(size, (None,) * len(data.shape))
        robust = self._outliers() is not None
        return offsets_alone(normal, reading, self._offsets, robust, why)

    def _objection(self, model: TensorModel, data: LocalObservations) -> str:
        pairs, xp = rows_in_part(data), array_namespace(data.y)
        if not pairs:
            return ""
        errors = []
        for fit, test in pairs:
            index = test.coordinates
            off = (test.flat - model.rows_at(fit, index)) / model.unit(index)
            errors.append((off / model.size) ** 2)
        scaled = [(model.normalised(fit), model.normalised(test)) for fit, test in pairs]
        robust = self._outliers() is not None
        return opinion(xp.concat(errors), scaled, self._offsets, robust, model.slice_units)

    def _modelled(
        self, found: tuple[TensorFit, TensorReading], data: LocalObservations
    ) -> TensorModel:
        smooth = getattr(self, "smooth", "none")
        return TensorModel.of(*found, data, self._asked(), self.ridge != "auto", smooth)

    @property
    def _centers(self) -> tuple[str, ...]:
        """The offsets that may be chosen, simple ones first."""
        if self.center != "auto":
            return (str(self.center),)
        return ("none",) if self._outliers() is not None else ("none", "both")

    @property
    def _offsets(self) -> str:
        """The offsets that may replace a fit."""
        return "both" if self.center == "auto" else str(self.center)

    @property
    def _scales(self) -> tuple[str, ...]:
        return ("none", "rows") if self.scale == "auto" else ("none",)

    def _continues(self, data: LocalObservations, again: bool, ranks: Ranks | None) -> bool:
        """Whether the fit continues from the earlier one."""
        if not self.__sklearn_is_fitted__() or not (again or self.warm_start):
            return False
        model = self._model
        if model.slices or against(model.trail) == OFFSETS or unfinished(model.trail):
            return False  # a variational model determines its size again, offsets have none
        return bool(
            model.factors.shape[1:] == data.shape[1:]
            and ranks in (None, model.factors.ranks)
            and same_library(data, model.observations)
            and data.y.dtype == model.observations.y.dtype
            and 1e-3 < data.magnitude() / model.size < 1e3
            and {**model.settings, "rank": None} == {**self._asked(), "rank": None}
        )

    def _diagnosed(self) -> list[str]:
        data, found = self._model.observations, super()._diagnosed()
        if data.size < degrees(self.rank_, data.shape):
            found.append("there are fewer observations than degrees of freedom")
        return found

    # ---- other slices

    def _read(self, X: Any, observed: Any) -> tuple[LocalObservations, Kind]:
        check_is_fitted(self)
        data, kind = read_tensor(X, observed)
        self._same_library(data)
        compatible(kind.labels, self._kind.labels)
        self._check_slices(data)
        return data, kind

    def _check_slices(self, data: LocalObservations) -> None:
        shape = self._model.observations.shape
        if data.shape[1:] != shape[1:]:
            raise ValueError(
                f"X has slices of shape {data.shape[1:]}, but the model was fitted to {shape[1:]}"
            )

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and transform the same slices: ``fit(X).transform(X)``.

        Parameters
        ----------
        X : array of shape (n1, ..., nd), as for `fit`
        y : ignored
        **fit_params : passed to `fit`

        Returns
        -------
        transformed : array of the shape of X
        """
        observed = fit_params.get("observed")
        return self.fit(X, y, **fit_params).transform(X, observed=observed)

    def transform(self, X: Any, *, observed: Any = None, plausible: bool = False) -> Any:
        """Estimate slices of mode 0; each estimator says how.

        Parameters
        ----------
        X : array of shape (n, n2, ..., nd), as for `fit`
        observed : boolean array of the shape of X, optional
        plausible : bool
            Fill in values that could have been observed: integers among integers, nothing
            negative among what is never negative, nothing outside a scale such as one to five
            stars, and no more decimals than the data have. By default,
            estimates are returned as they are.

        Returns
        -------
        estimated : array of the shape of X
        """
        raise NotImplementedError


@dataclass(eq=False, repr=False)
class TensorCompletion(_TensorEstimator):
    """Fill in the missing entries of a tensor with a Tucker model of low multilinear rank.

    Parameters
    ----------
    rank : "auto", int, or tuple of int
        Multilinear ranks, an upper bound; "auto" chooses them on held-out entries.
    center : {"auto", "none", "rows", "columns", "both"}
        Additive offsets of the slices of mode 0 ("rows"), of all other modes ("columns"), or
        of all; estimated in turn with the factors. "auto" chooses none or all on held-out entries.
    scale : {"auto", "none"}
        Whether slices may be divided by their sizes: those of mode 0 by their root mean squares,
        those of the last mode, which may be variables of different units, by their deviations if
        these differ tenfold. "auto" chooses on held-out entries. If the rank is given, slices of
        mode 0 are not divided, and those of the last mode only if outliers are expected. A fit
        with divided slices of the last mode has no offsets.
    ridge : "auto"
        Learnt from the noise in the residual.
    outliers : None, "auto" or a fraction
        Whether some of the observed entries are grossly wrong.
    smooth : "auto", "none", int or tuple of int
        Modes along which neighbours are alike, as in time. The residual of the low-rank part is
        interpolated along them. "auto" tries all modes, but mode 0 only if its labels are times,
        and keeps those along which held-out residuals are predicted. Times may be irregular.
    random_state : int, RandomState or None
        Draws the held-out entries, and random starts.
    clip, calibrate, tol, max_iter, max_time, warm_start, n_jobs, verbose, checkpoint, interrupt
        As in `MatrixCompletion`.

    Attributes
    ----------
    factors_ : Tucker
        With orthonormal factors, in order of importance.
    rank_ : tuple of int
    singular_values_ : tuple of arrays, one per mode
    components_ : tuple of arrays of shape (r_k, n_k), orthonormal rows
    offsets_ : tuple of arrays or None, one per mode
    scale_ : {"none", "rows", "columns", "both"}
        Which slices were divided: those of mode 0 ("rows"), or of the last mode ("columns").
    rank_path_, noise_variance_, n_iter_, converged_, status_, history_, diagnostics_

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem, truth = sg.datasets.tensor_completion((30, 25, 20), 2, kappa=5, p=0.3, rng=0)
    >>> model = sg.TensorCompletion(rank=2)
    >>> model = model.fit_entries(problem.operator.index, problem.y, (30, 25, 20))
    >>> bool(np.allclose(model.reconstruct(), truth.full(), atol=1e-8))
    True
    """

    _: KW_ONLY
    outliers: Any = field(default=None, metadata=SHAPES)
    smooth: Any = field(default="auto", metadata=SHAPES)

    def transform(self, X: Any, *, observed: Any = None, plausible: bool = False) -> Any:
        """Fill in the missing entries of slices of mode 0, which may be new.

        Parameters
        ----------
        X : array of shape (n, n2, ..., nd), as for `fit`
        observed : boolean array of the shape of X, optional
        plausible : bool
            Fill in values that could have been observed: integers among integers, nothing
            negative among what is never negative, nothing outside a scale such as one to five
            stars, and no more decimals than the data have. By default,
            estimates are returned as they are.

        Returns
        -------
        filled : array of the shape of X
        """
        if any_dask(X, observed):
            return self._lazily(X, observed, plausible)
        data, kind = self._read_rows(X, observed)
        filled = self._filled(data)
        return kind.table_back(self._plausible(filled, data) if plausible else filled)


class TensorRobustPCA(_TensorEstimator):
    """Separate a tensor into a part of low multilinear rank and gross errors.

    Parameters
    ----------
    rank : "auto", int, or tuple of int
        "auto" chooses ranks by how well most held-out entries are predicted.
    center, scale, ridge, clip, calibrate, tol, max_iter, max_time, warm_start, random_state
    n_jobs, verbose, checkpoint, interrupt
        As in `TensorCompletion`.

    Attributes
    ----------
    outliers_ : scipy.sparse.coo_array of the shape of X
    threshold_ : float
        The residual above which an entry is an outlier. If slices of the last mode are divided,
        it is that of a slice whose deviation is the root mean square of all.
    factors_, rank_, singular_values_, components_, offsets_, scale_
    rank_path_, noise_variance_, n_iter_, converged_, status_, history_, diagnostics_
        As in `TensorCompletion`.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> truth = sg.datasets.low_rank_tensor((30, 25, 20), 2, kappa=3, rng=0).full()
    >>> wrong = np.random.default_rng(0).random(truth.shape) < 0.1
    >>> model = sg.TensorRobustPCA(rank=2).fit(truth + wrong)
    >>> bool(np.allclose(model.reconstruct(), truth)), bool(model.outliers_.nnz == wrong.sum())
    (True, True)
    """

    def _outliers(self) -> Any:
        return "auto"

    def transform(self, X: Any, *, observed: Any = None, plausible: bool = False) -> Any:
        """Return the clean part of slices of mode 0, which may be new.

        Parameters
        ----------
        X : array of shape (n, n2, ..., nd), as for `fit`
        observed : boolean array of the shape of X, optional
        plausible : bool
            Fill in values that could have been observed: integers among integers, nothing
            negative among what is never negative, nothing outside a scale such as one to five
            stars, and no more decimals than the data have. By default,
            estimates are returned as they are.

        Returns
        -------
        clean : array of the shape of X
        """
        if any_dask(X, observed):
            return self._lazily(X, observed, plausible)
        data, kind = self._read_rows(X, observed)
        clean = self._estimated(data)
        return kind.table_back(self._plausible(clean) if plausible else clean)
