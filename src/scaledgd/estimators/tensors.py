"""Tensor completion and tensor robust PCA: the same for data with more than two modes."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace
from sklearn.utils.validation import check_is_fitted

from .. import checks
from ..factors import Tucker
from .base import SHAPES, all_or_nothing
from .budget import Budget
from .cells import Cells, magnitude, same_library, scaled_by
from .completion import _sparse_outliers
from .entrywise import EntrywiseEstimator
from .labels import compatible
from .packing import packable
from .robust import reject_rows
from .robust import threshold as threshold_at
from .selection import EntryTable
from .tables import read_tensor, table_back, weighted
from .tucker import TensorFit, choose_ranks, degrees, fit_ranks, possible, ridges, spectra
from .uncertainty import Spread

Array = Any


@dataclass(frozen=True, eq=False)
class FoundTucker:
    """What a search ends with."""

    size: float
    offsets: tuple[Array | None, ...]
    fit: TensorFit
    trail: list[dict[str, Any]]


@packable
@dataclass(frozen=True, eq=False)
class SliceModel:
    """What new slices of mode 0 are solved against."""

    size: float
    factors: Tucker
    noise: float
    threshold: float | None
    offsets: tuple[Array | None, ...]
    own_offset: bool

    def solve(self, cells: Cells) -> tuple[Tucker, Array]:
        """The rows of the first factor, and the offset of every slice."""
        xp = array_namespace(cells.y)
        y = scaled_by(cells.y, self.size)
        for mode, offset in enumerate(self.offsets):
            if mode and offset is not None:
                y = y - cells.along(mode, offset)
        cells = cells.with_values(y)
        U = self.factors.factors
        zero = xp.zeros_like(cells.counts(0))
        blank = xp.zeros_like(U[0][:1, :]) + zero[:, None]
        F = Tucker((blank, *U[1:]), self.factors.core)
        ridge = ridges(self.factors, self.noise)[0]
        own = zero
        if not cells.size:
            return F, own
        for _ in range(20 if self.own_offset else 1):
            shifted = cells.with_values(cells.y - cells.along(0, own))
            operator = shifted.operator()
            if self.threshold is not None:
                F = reject_rows(shifted, operator, F, 0, self.threshold, ridge)
            else:
                problem = shifted.problem(operator=operator)
                for _ in range(2):
                    F = F.moved(0, -problem.block_step(F, 0, ridge))
            if self.own_offset:
                own = own + _means(shifted, shifted.y - operator_values(shifted, F), 0)
        return F, own


def operator_values(cells: Cells, F: Tucker) -> Array:
    return F.full() if cells.index is None else F.gather(cells.index)


def _means(cells: Cells, values: Array, mode: int) -> Array:
    xp = array_namespace(values)
    return cells.sums(mode, xp.reshape(values, (-1,))) / (cells.counts(mode) + 1)


class _TensorEstimator(EntrywiseEstimator):
    """Data of d modes; mode 0 are samples."""

    @all_or_nothing
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
        X : array, masked array, xarray or torch tensor of shape (n1, ..., nd), or EntryTable
            NaN is missing.
        y : ignored
        observed : boolean array of the shape of X, optional
        entry_weight : array of the shape of X, optional
        sample_weight : array of shape (n1,), optional

        Returns
        -------
        self
        """
        self._check_params()
        if isinstance(X, EntryTable):
            return self._fit_table(X, entry_weight, sample_weight, observed)
        cells, kind = read_tensor(X, observed)
        cells = weighted(cells, entry_weight, sample_weight, True)
        return self._fit(cells, kind, True, X=X)

    @all_or_nothing
    def fit_entries(
        self, index: Any, values: Any, shape: tuple[int, ...], *, entry_weight: Any = None
    ) -> Self:
        """Learn the factors from coordinates and values.

        Parameters
        ----------
        index : tuple of integer arrays of shape (m,), one per mode
        values : array of shape (m,)
        shape : tuple of int
        entry_weight : array of shape (m,), optional

        Returns
        -------
        self
        """
        self._check_params()
        return self._fit_table(EntryTable(index, values, shape), entry_weight)

    def _fit_table(
        self, table: EntryTable, entry_weight: Any, sample_weight: Any = None, observed: Any = None
    ) -> Self:
        table.refuse(observed)
        cells = weighted(table.cells, entry_weight, sample_weight, False)
        return self._fit(cells, table.kind, table.dense, X=table)

    @all_or_nothing
    def partial_fit(self, X: Any, y: Any = None, *, observed: Any = None) -> Self:
        """Add slices of mode 0: the fit goes on from where it stands."""
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, observed=observed)
        self._check_params()
        fresh, _ = read_tensor(X, observed)
        self._same_library(fresh)
        if fresh.shape[1:] != self._cells.shape[1:]:
            raise ValueError(
                f"X has slices of shape {fresh.shape[1:]}, but the fit is about "
                f"{self._cells.shape[1:]}"
            )
        return self._fit(fresh, self._kind, self._came_dense, again=True, X=X)

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

    def _check_params(self) -> None:
        super()._check_params()
        if self.scale not in ("auto", "none"):
            raise ValueError(
                f'scale must be "auto" or "none" for tensors, not {self.scale!r}; scale the data '
                "before"
            )
        if self._outliers() is not None and self.center not in ("auto", "none"):
            raise ValueError(
                'offsets of tensors are means, which outliers would spoil; set center="none" and '
                "let the rank be larger by one"
            )

    def _search(self, whole: Cells, again: bool, budget: Budget, rng: Any) -> FoundTucker:
        cells, size = self._normal(whole)
        ranks = self._ranks(whole.shape)
        known = getattr(self, "_model", None)
        start = None
        if known is not None and (again or self.warm_start) and self._suits(whole, ranks):
            size = known.size
            cells = whole.with_values(scaled_by(whole.y, size))
            ranks = known.factors.ranks if ranks is None else ranks
            start, _ = known.solve(whole)
        trail: list[dict[str, Any]] = [{"rank": ranks, "why": "given"}]
        modes = _modes(self._sides, len(whole.shape))
        offsets: tuple[Array | None, ...] = (None,) * len(whole.shape)
        if modes:
            offsets = _offsets_of(cells, modes)
        budget.desk.about.update(size=size, offsets=offsets, trail=[])
        if ranks is None:
            plain = _without(cells, offsets)
            ranks, trail, start = choose_ranks(plain, rng, budget, self._outliers())
            budget.desk.about["trail"] = trail
        ridge = None if self.ridge == "auto" else float(self.ridge)
        fit = fit_ranks(_without(cells, offsets), ranks, budget, self._outliers(), start, ridge)
        for _ in range(3 if modes else 0):
            # offsets and factors in turn, until neither changes the other
            left = cells.with_values(cells.y - operator_values(cells, fit.factors))
            offsets = _offsets_of(left, modes)
            budget.desk.about["offsets"] = offsets
            left = _without(cells, offsets)
            fit = fit_ranks(left, ranks, budget, self._outliers(), fit.factors, ridge)
        return FoundTucker(size, offsets, fit, trail)

    def _salvaged(self, whole: Cells, budget: Budget) -> FoundTucker | None:
        state, about = budget.desk.salvage()
        if state is None or state.factors.shape != whole.shape:
            return None
        F: Any = state.factors
        limit = None if self._outliers() is None else threshold_at(state)
        noise = 2 * float(state.value) / max(whole.size - degrees(F.ranks, whole.shape), 1)
        fit = TensorFit(spectra(F)[0], noise, limit)
        return FoundTucker(about["size"], about["offsets"], fit, about["trail"])

    @property
    def _sides(self) -> str:
        return str(self.center) if self.center != "auto" else "none"

    def _end(self, found: FoundTucker, whole: Cells, held: Cells | None) -> None:
        size, offsets, fit = found.size, found.offsets, found.fit
        own_offset = 0 in _modes(self._sides, len(whole.shape))
        noise = fit.noise if fit.ridge_noise is None else fit.ridge_noise
        model = SliceModel(size, fit.factors, noise, fit.threshold, offsets, own_offset)
        self.noise_variance_ = float(fit.noise * size * size)
        self._model, self._cells, self._held = model, whole, held
        self._settings = self._asked()
        F, own = model.solve(whole)
        self.offsets_ = tuple(
            None if b is None else size * (own if k == 0 else b) for k, b in enumerate(offsets)
        )
        F, values = spectra(Tucker(F.factors, size * F.core))
        self.factors_ = F
        self.rank_ = F.ranks
        self.singular_values_ = values
        self.components_ = tuple(U.T for U in F.factors)
        self.rank_path_ = found.trail
        self.center_, self.scale_ = self._sides, "none"
        self._note(whole)
        self._conformal = self._calibrated(held)

    def _suits(self, cells: Cells, ranks: Any) -> bool:
        old = self._model.factors
        return bool(
            old.shape[1:] == cells.shape[1:]
            and (ranks is None or ranks == old.ranks)
            and same_library(cells, self._cells)
            and 1e-3 < magnitude(cells) / self._model.size < 1e3
            and {**self._settings, "rank": self.rank} == self._asked()
        )

    def _note(self, whole: Cells) -> None:
        xp = array_namespace(whole.y)
        r = whole.y - self._whole(whole)
        flat = xp.reshape(r, (-1,))
        threshold = self._model.threshold
        free = whole.size - degrees(self.rank_, whole.shape)
        self._free = float(free - sum(b.shape[0] for b in self.offsets_ if b is not None))
        if threshold is not None:
            self.threshold_ = float(threshold * self._model.size)
            out = xp.abs(flat) > self.threshold_
            values = xp.where(out, flat, xp.zeros_like(flat))
            self.outliers_ = _sparse_outliers(values, out, whole)
        self._warn_of(whole, self.rank_)
        if whole.size < degrees(self.rank_, whole.shape):
            self.diagnostics_.append("there are fewer observations than degrees of freedom")

    def _whole(self, cells: Cells) -> Array:
        """The estimate at the cells, in the shape of their values."""
        if cells.index is None:
            return self.factors_.full() + self._offset_array()
        return self.factors_.gather(cells.index) + self._offsets(cells.index)

    # ---- how sure it is

    def _spread(self) -> Spread:
        cells, F = self._cells, self.factors_
        threshold = getattr(self, "threshold_", None)
        if threshold is not None:
            xp = array_namespace(cells.y)
            weight = xp.ones_like(cells.y) if cells.weight is None else cells.weight
            off = xp.abs(cells.y - self._whole(cells)) * xp.sqrt(weight)
            cells = replace(cells, weight=xp.where(off > threshold, xp.zeros_like(off), weight))
        offsets = tuple(
            None if b is None else 1 / (_weights(cells, k) + 1) for k, b in enumerate(self.offsets_)
        )
        held = ridges(F, self.noise_variance_)[:-1]
        return Spread(F, cells, held, self.noise_variance_, offsets)

    def _values(self, F: Tucker, index: Any) -> Array:
        """The values of factors at coordinates, or everywhere."""
        if index is None:
            return F.full() + self._offset_array()
        return F.gather(index) + self._offsets(index)

    def _unit(self, index: Any) -> float:
        return 1.0

    def _offsets(self, index: tuple[Array, ...]) -> Any:
        xp = array_namespace(self.factors_.core)
        return sum(
            xp.take(b, i) for b, i in zip(self.offsets_, index, strict=True) if b is not None
        )

    def _offset_array(self) -> Any:
        d = len(self.offsets_)
        xp = array_namespace(self.factors_.core)
        return sum(
            xp.reshape(b, [-1 if j == k else 1 for j in range(d)])
            for k, b in enumerate(self.offsets_)
            if b is not None
        )

    def _estimate(self, cells: Cells) -> Array:
        with self._threads(), np.errstate(over="ignore", under="ignore"):
            return self._clipped(self._rows_at(cells, None))

    def _rows_at(self, cells: Cells, index: Any) -> Array:
        """Estimates of slices, at coordinates or everywhere."""
        model = self._model
        F, own = model.solve(cells)
        X = F.full() if index is None else F.gather(index)
        xp, d = array_namespace(X), len(cells.shape)
        for k, b in enumerate(model.offsets):
            b = own if k == 0 and b is not None else b
            if b is not None and index is None:
                X = X + xp.reshape(b, [-1 if j == k else 1 for j in range(d)])
            elif b is not None:
                X = X + xp.take(b, index[k])
        return X * model.size

    def _read(self, X: Any, observed: Any) -> tuple[Cells, Any]:
        check_is_fitted(self)
        cells, kind = read_tensor(X, observed)
        self._same_library(cells)
        compatible(kind[2], self._kind[2])
        if cells.shape[1:] != self.factors_.shape[1:]:
            raise ValueError(
                f"X has slices of shape {cells.shape[1:]}, but the fit is about "
                f"{self.factors_.shape[1:]}"
            )
        return cells, kind

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and transform the same slices."""
        observed = fit_params.get("observed")
        return self.fit(X, y, **fit_params).transform(X, observed=observed)

    def transform(self, X: Any, *, observed: Any = None) -> Any:
        raise NotImplementedError


def _weights(cells: Cells, mode: int) -> Array:
    """How much every slice of a mode was observed."""
    if cells.weight is None:
        return cells.counts(mode)
    return cells.sums(mode, array_namespace(cells.y).reshape(cells.weight, (-1,)))


def _modes(center: str, d: int) -> tuple[int, ...]:
    if center == "none":
        return ()
    return {"rows": (0,), "columns": tuple(range(1, d)), "both": tuple(range(d))}[center]


def _offsets_of(cells: Cells, modes: tuple[int, ...]) -> tuple[Array | None, ...]:
    """Additive offsets of the slices of some modes, by means in turn."""
    offsets: list[Array | None] = [None] * len(cells.shape)
    for _ in range(20):
        for mode in modes:
            offsets[mode] = None
            offsets[mode] = _means(cells, _without(cells, tuple(offsets)).y, mode)
    return tuple(offsets)


def _without(cells: Cells, offsets: tuple[Array | None, ...]) -> Cells:
    y = cells.y
    for mode, b in enumerate(offsets):
        if b is not None:
            y = y - cells.along(mode, b)
    return cells.with_values(y)


@dataclass(eq=False, repr=False)
class TensorCompletion(_TensorEstimator):
    """Fill the holes of a tensor with a Tucker model of low multilinear rank.

    Parameters
    ----------
    rank : "auto", int, or tuple of int
        Multilinear ranks, an upper bound; "auto" chooses them on held-out entries.
    center : {"auto", "none", "rows", "columns", "both"}
        Additive offsets of the slices of mode 0 ("rows"), of all other modes ("columns"), or
        of all; estimated in turn with the factors. "auto" is "none".
    scale : {"auto", "none"}
    ridge : "auto"
        The noise in the residual over the size of the factors.
    outliers : None, "auto" or a fraction
        Whether some of the observed entries are grossly wrong.
    clip, calibrate, tol, max_iter, max_time, warm_start, random_state, n_jobs, verbose
    checkpoint, interrupt
        As in `MatrixCompletion`.

    Attributes
    ----------
    factors_ : Tucker
        With orthonormal factors, in order of importance.
    rank_ : tuple of int
    singular_values_ : tuple of arrays, one per mode
    components_ : tuple of arrays of shape (r_k, n_k), orthonormal rows
    offsets_ : tuple of arrays or None, one per mode
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

    def transform(self, X: Any, *, observed: Any = None) -> Any:
        """Fill the holes of slices of mode 0, which need not have been seen before."""
        cells, kind = self._read_rows(X, observed)
        filled = self._estimate(cells)
        if cells.index is None:
            filled = array_namespace(filled).asarray(cells.y, copy=True)
        elif cells.size:
            filled[cells.index] = cells.y
        return table_back(filled, kind)


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
    factors_, rank_, singular_values_, components_, offsets_
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

    def transform(self, X: Any, *, observed: Any = None) -> Any:
        """The clean part of slices of mode 0, which need not have been seen before."""
        cells, kind = self._read_rows(X, observed)
        return table_back(self._estimate(cells), kind)
