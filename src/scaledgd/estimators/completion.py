"""Matrix completion and robust PCA, for people who have a table."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from .. import kernels
from ..factors import Bordered, LowRank
from ..linalg import fix_signs, square
from ..methods import NonNegative
from ..solve import State, solve
from ..variational import Posterior, current
from .base import SHAPES, all_or_nothing
from .budget import Budget, left, log
from .cells import Cells, magnitude, same_library, scaled_by
from .entrywise import EntrywiseEstimator
from .labels import compatible
from .matrix import (
    CHOICES,
    Choice,
    Scales,
    bordered,
    checked,
    choose,
    degrees,
    empty,
    fit_given,
    fit_grown,
    scales,
    settled_parts,
    singular,
    with_part,
)
from .packing import host, packable
from .ridge import fit_non_negative, fit_ridge
from .robust import WITHIN, fit_robust, reject_rows, robust_rank, scale_of
from .robust import threshold as threshold_at
from .selection import EntryTable
from .tables import read_matrix, table_back, weighted
from .uncertainty import Spread

Array = Any

LARGEST_RANK = 60
"""That rank="auto" looks at."""


@dataclass(frozen=True, eq=False)
class Found:
    """What a search ends with."""

    size: float
    choice: Choice
    scales: Scales
    state: State
    ridge: Any
    threshold: float | None
    trail: list[dict[str, Any]]


@packable
@dataclass(frozen=True, eq=False)
class RowModel:
    """All that rows are solved against: what a fit leaves for data to come."""

    size: float
    """The power of two that data are divided by."""
    choice: Choice
    scales: Scales
    R: Array
    v: Array | None
    ridge: Array | None
    """A fixed ridge, or None where beliefs say it."""
    posterior: Posterior | None
    threshold: float | None
    non_negative: bool = False

    def solve(self, cells: Cells) -> tuple[Bordered, Scales]:
        """Scores and offsets of rows, each a function of that row alone."""
        xp = array_namespace(self.R)
        cells = cells.scaled(self.size)
        known = self.scales.for_rows(cells)
        cells = known.apply(cells)
        n, q = cells.shape[0], self.R.shape[1] - self.choice.columns + self.choice.rows
        blank = xp.zeros_like(cells.counts(0))[:, None]
        L = xp.concat([blank] * q, axis=1) if q else blank[:, :0]
        u = 1 + 0 * blank[:, 0] if known.rows is None else 1 / known.rows
        F = Bordered(L, self.R, u if self.choice.columns else None, self.v)
        if not q or not n or not cells.size:
            return F, known
        operator = cells.operator()
        problem = cells.problem(operator=operator)
        ridge = self.ridge
        if self.posterior is not None:
            ridge = self.posterior.ridge(F, 0, operator.coverage(None, cells.y))
        if self.non_negative:
            positive = F.with_blocks((F.L + 1.0, F.R))
            rounds = NonNegative(update=(0,))
            return solve(problem, positive, rounds, max_iter=100).factors, known  # type: ignore
        if self.threshold is not None:
            return reject_rows(cells, operator, F, 0, self.threshold, ridge), known
        # the second corrects the rounding of the first, where there is no noise to hide it
        noisy = self.posterior is not None and self.posterior.noise > 1e-12
        for _ in range(1 if noisy else 2):
            F = F.moved(0, -problem.block_step(F, 0, ridge))
        return F, known


class _MatrixEstimator(OneToOneFeatureMixin, TransformerMixin, EntrywiseEstimator):
    """A table of samples and features."""

    # ---- fitting

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
        X : array, masked array, frame, sparse matrix, xarray or torch tensor, of shape (n1, n2)
            Or an EntryTable. NaN is missing. Of a sparse matrix the stored entries are
            observed, zeros included.
        y : ignored
        observed : boolean array of shape (n1, n2), optional
            True where observed; then NaN must not be.
        entry_weight : array of shape (n1, n2), optional
            How much each entry counts.
        sample_weight : array of shape (n1,), optional
            How much each row counts.

        Returns
        -------
        self
        """
        self._check_params()
        if isinstance(X, EntryTable):
            return self._fit_table(X, entry_weight, sample_weight, observed)
        cells, kind = read_matrix(self, X, observed, reset=True)
        cells = weighted(cells, entry_weight, sample_weight, kind[0] != "sparse")
        return self._fit(cells, kind, kind[0] != "sparse", X=X)

    @all_or_nothing
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
        self._check_params()
        return self._fit_table(EntryTable(index, values, shape), entry_weight)

    def _fit_table(
        self, table: EntryTable, entry_weight: Any, sample_weight: Any = None, observed: Any = None
    ) -> Self:
        table.refuse(observed)
        cells = table.cells
        if len(cells.shape) != 2:
            raise ValueError(f"shape must be (n1, n2) for a matrix, not {cells.shape}")
        self.n_features_in_ = cells.shape[1]
        self.__dict__.pop("feature_names_in_", None)
        labels = table.kind[2]
        if labels is not None and labels.kind != "xarray":
            self.feature_names_in_ = np.asarray(labels.names, dtype=object)
        cells = weighted(cells, entry_weight, sample_weight, False)
        return self._fit(cells, table.kind, table.dense, X=table)

    @all_or_nothing
    def partial_fit(self, X: Any, y: Any = None, *, observed: Any = None) -> Self:
        """Add rows: the fit goes on from where it stands, with all rows seen so far.

        Offsets, scales and rank stay as they were chosen.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, observed=observed)
        self._check_params()
        fresh, _ = read_matrix(self, X, observed, reset=False)
        self._same_library(fresh)
        return self._fit(fresh, self._kind, self._came_dense, again=True, X=X)

    def _search(self, whole: Cells, again: bool, budget: Budget, rng: Any) -> Found:
        known: Any = getattr(self, "_model", None)
        go_on = known is not None and (again or self.warm_start) and self._suits(whole)
        normal, size = self._normal(whole)
        if go_on:
            size = known.size
            normal = whole.with_values(scaled_by(whole.y, size))
        budget.desk.about["size"] = size
        choice, rank, trail = self._chosen(normal, rng, budget, known if go_on else None)
        scale = scales(normal, choice)
        if go_on:
            scale = replace(known.scales.for_rows(normal), mean=known.scales.mean)
        budget.desk.about.update(choice=choice, scales=scale, trail=trail)
        cells = scale.apply(normal)
        start = empty(cells, choice, scale)
        if go_on and rank:
            start, _ = known.solve(whole)
        state, ridge, threshold = self._solved(cells, start, rank, budget, rng)
        found = Found(size, choice, scale, state, ridge, threshold, trail)
        if budget.out_of_time:
            # what was found while the rank was chosen may be better than a fit that hardly began
            other = self._salvaged(whole, budget)
            if other is not None and left(other.state) < 0.9 * left(state):
                return other
        return found

    def _salvaged(self, whole: Cells, budget: Budget) -> Found | None:
        """What the last whole iterate amounts to, or None where there is none of the table."""
        state, about = budget.desk.salvage()
        if state is None or state.factors.shape != whole.shape:
            return None
        size, choice = about["size"], about.get("choice", Choice())
        known = about.get("scales", Scales(None, None))
        limit = None if self._outliers() is None else threshold_at(state)
        ridge = state.problem.ridge
        F: Any = bordered(state.factors, empty(whole, choice, known))
        if not getattr(self, "non_negative", False):
            memory = {**state.memory, "posterior": current(replace(state, factors=F))}
            state = replace(state, factors=F, memory=memory)
        return Found(size, choice, known, state, ridge, limit, about.get("trail", []))

    def _end(self, found: Found, whole: Cells, held: Cells | None) -> None:
        state, ridge, choice = found.state, found.ridge, found.choice
        posterior = state.memory.get("posterior") if ridge is None else None
        F: Any = state.factors
        model = RowModel(
            found.size,
            choice,
            found.scales,
            F.R,
            F.v,
            None if ridge is None else ridge[0],
            posterior,
            found.threshold,
            bool(getattr(self, "non_negative", False)),
        )
        self._model, self._settings = model, self._asked()
        self._cells, self._held = whole, held
        for name in ("outliers_", "threshold_"):
            self.__dict__.pop(name, None)
        F, known = model.solve(whole)
        self._solution = F, known
        self._publish(F, known, whole, posterior, found.threshold)
        self.rank_path_ = found.trail
        self.center_, self.scale_ = choice.center, choice.scale
        self._conformal = self._calibrated(held)
        self._warn_of(whole, max(self.rank_, 1))

    def _suits(self, cells: Cells) -> bool:
        """Whether an earlier fit can be gone on from."""
        wanted = self._rank()
        size = magnitude(cells) / self._model.size if cells.size else 1.0
        return bool(
            cells.shape[1] == self._model.R.shape[0]
            and self._settings == self._asked()
            and self.rank_
            and wanted in (None, self.rank_)
            and same_library(cells, self._cells)
            and 1e-3 < size < 1e3
        )

    def _chosen(
        self, cells: Cells, rng: Any, budget: Budget, known: RowModel | None
    ) -> tuple[Choice, int, list[dict[str, Any]]]:
        """Offsets, scales and the largest rank."""
        rank = self._rank()
        if known is not None:
            had = known.R.shape[1] - known.choice.columns
            return known.choice, int(had if rank is None else max(1, rank)), self.rank_path_
        center = "none" if self.center == "auto" else self.center
        scale = "none" if self.scale == "auto" else self.scale
        outliers = self._outliers()
        given = Choice(center, scale, outliers is not None)
        if rank is not None:
            return given, rank, [{"rank": rank, "why": "given"}]
        if outliers is not None:
            found, why, trail = robust_rank(cells, rng, budget.apart())
            log.info("rank %d: %s", found, why)
            return given, found, [*trail, {"rank": found, "why": why}]
        free = not getattr(self, "non_negative", False)
        choices = tuple(
            choice
            for choice in CHOICES[: None if free else 1]
            if self.center in ("auto", choice.center) and self.scale in ("auto", choice.scale)
        ) or (given,)
        return choose(cells, choices, LARGEST_RANK, rng, budget)

    def _solved(self, cells: Cells, start: Bordered, rank: int, budget: Budget, rng: Any) -> Any:
        """State, fixed ridge (or None), threshold (or None)."""
        outliers = self._outliers()
        if getattr(self, "non_negative", False) and (outliers is not None or self.ridge != "auto"):
            raise ValueError("non_negative goes with neither outliers nor a ridge that is given")
        if outliers is not None:
            if not rank:
                return cells.problem().linearize(start), None, 0.0
            state, threshold = fit_robust(cells, start, rank, outliers, budget)
            return state, None, threshold
        if getattr(self, "non_negative", False):
            if start.u is not None or start.v is not None:
                raise ValueError('non_negative factors have no offsets; set center="none"')
            return fit_non_negative(cells, start, rank, budget), None, None
        if self.ridge != "auto":
            state, ridge = fit_ridge(cells, start, rank, float(self.ridge), budget)
            return state, ridge, None
        if self._rank() is None and not start.rank:
            state = fit_grown(cells, start, rank, budget)
        else:
            state = fit_given(cells, start, rank, budget, rng)
        state = checked(state, cells, start, rng, budget)
        return settled_parts(state, cells), None, None

    # ---- what was learnt

    def _publish(
        self,
        F: Bordered,
        known: Scales,
        whole: Cells,
        posterior: Posterior | None,
        threshold: float | None,
    ) -> None:
        """Fitted attributes, in the units of the data."""
        r, size = F.rank, self._model.size
        rows = size if known.rows is None else size * known.rows[:, None]
        columns = 1.0 if known.columns is None else known.columns[:, None]
        plain = Bordered(rows * F.L[:, :r], columns * F.R[:, :r])
        U, s, V = singular(plain)
        if r:
            phase = fix_signs(V)
            U, V = U * phase[None, :], V * phase[None, :]
            balanced = with_part(plain, U, s, V)
            # nonnegative factors are parts, and stay as they are
            held = plain if self._model.non_negative else balanced
            self.factors_ = LowRank(held.L, held.R)
        else:
            zeros = (0 * whole.counts(k)[:, None] for k in (0, 1))
            self.factors_ = LowRank(*zeros)
        self.rank_ = r
        self.components_, self.singular_values_ = V.T, s
        # offsets are additive: b stands beside 1/d₂ and c beside 1/d₁, and the mean goes with
        # the side that is not scaled
        row, column = 0 * whole.counts(0), 0 * whole.counts(1)
        if F.v is not None:
            row = row + F.L[:, r] + (known.mean if known.columns is None else 0.0)
        if F.u is not None:
            also = F.v is None or known.columns is not None
            column = column + F.R[:, r] + (known.mean if also else 0.0)
        self.row_offset_ = size * (row if known.rows is None else row * known.rows)
        self.column_offset_ = size * (column if known.columns is None else column * known.columns)
        self._note_residual(whole, posterior, threshold, known)

    def _note_residual(self, whole: Cells, posterior: Any, threshold: Any, known: Scales) -> None:
        xp = array_namespace(whole.y)
        r = whole.places.residual(self.factors_, whole.y)  # the estimate less the data
        if self._model.choice.center != "none":
            r = r + whole.along(0, self.row_offset_) + whole.along(1, self.column_offset_)
        r = xp.reshape(r, (-1,))
        size = self._model.size
        unit: Any = size
        for mode, d in enumerate((known.rows, known.columns)):
            if d is not None:
                unit = unit * xp.reshape(whole.along(mode, d) + 0 * whole.y, (-1,))
        plain = isinstance(unit, float) and 1e-100 < unit < 1e100 and threshold is None
        scaled = r if plain else r / unit
        if whole.weight is not None:
            scaled = scaled * xp.sqrt(xp.reshape(whole.weight, (-1,)))
        within = 1.0
        if threshold is None:
            count, squares = float(r.shape[0]), float(square(scaled))
            squares = squares / unit**2 if plain else squares
        else:
            kept, inside, sums, _ = kernels.within(scaled, threshold)
            count, squares = float(inside), float(sums)
            within = WITHIN if self._outliers() == "auto" else 1.0
            self.threshold_ = float(threshold * size)
            self.outliers_ = _sparse_outliers(-r, ~kept, whole)
        free = count - degrees(self.rank_, whole.shape)
        free -= (whole.shape[0] if self._model.choice.rows else 0) + (
            whole.shape[1] if self._model.choice.columns else 0
        )
        if posterior is not None and free < 0.5 * count:
            variance = posterior.noise
        else:
            variance = squares / max(free, 0.1 * count, 1.0)
        if isinstance(self._outliers(), float | int):
            # a fraction may reject far more than outliers
            lost = max(scaled.shape[0] - count + free, 0.1 * scaled.shape[0], 1.0)
            variance = scale_of(scaled) ** 2 * scaled.shape[0] / lost
        self._free = free
        mean_unit = unit * unit if isinstance(unit, float) else float(xp.mean(unit * unit))
        self._noise = variance / within
        self.noise_variance_ = self._noise * mean_unit

    # ---- how sure it is

    def _spread(self) -> Spread:
        F, known = self._solution
        cells = known.apply(self._cells.with_values(scaled_by(self._cells.y, self._model.size)))
        xp = array_namespace(cells.y)
        weight = xp.ones_like(cells.y) if cells.weight is None else cells.weight
        plain = replace(cells, weight=None).operator()
        if self._model.threshold is not None:
            # what was rejected said nothing
            off = xp.abs(plain.apply(F) - cells.y) * xp.sqrt(weight)
            weight = xp.where(off > self._model.threshold, xp.zeros_like(off), weight)
        cells = replace(cells, weight=weight)
        posterior = self._model.posterior
        coverage = plain.coverage(weight, weight)
        if posterior is None:
            posterior = Posterior.first(F, self._noise)
            if self._model.ridge is not None:
                # a ridge that was given may have taken away more than the noise asks for
                ridge = posterior.ridge(F, 0, coverage)
                F = F.moved(0, -cells.problem().linearize(F).block_step(0, ridge))  # type: ignore
        ridges = tuple(posterior.ridge(F, k, coverage) for k in (0, 1))
        return Spread(F, cells, ridges, self._noise)

    def _values(self, F: Bordered, index: Any, known: Scales | None = None) -> Array:
        """The values of factors at coordinates, or everywhere, in the units of the data."""
        known = self._solution[1] if known is None else known
        X = F.full() if index is None else F.gather(index)
        return (X + known.mean) * self._unit(index, known)

    def _unit(self, index: Any, known: Scales | None = None) -> Array | float:
        """The model's units, at coordinates or everywhere, in the units of the data."""
        known, unit = self._solution[1] if known is None else known, self._model.size
        for k, d in enumerate((known.rows, known.columns)):
            if d is not None and index is None:
                unit = unit * (d[:, None] if k == 0 else d[None, :])
            elif d is not None:
                unit = unit * array_namespace(d).take(d, index[k])
        return unit

    def _offsets(self, index: tuple[Array, ...]) -> Array:
        xp = array_namespace(self.row_offset_)
        return xp.take(self.row_offset_, index[0]) + xp.take(self.column_offset_, index[1])

    def _offset_array(self) -> Array:
        return self.row_offset_[:, None] + self.column_offset_[None, :]

    def _estimate(self, cells: Cells) -> Array:
        """The estimate of rows, dense, in the units of the data."""
        with self._threads(), np.errstate(over="ignore", under="ignore"):
            F, known = self._model.solve(cells)
            return self._clipped(self._values(F, None, known))

    def _rows_at(self, cells: Cells, index: Any) -> Array:
        """Estimates of rows, at coordinates only."""
        F, known = self._model.solve(cells)
        return self._values(F, index, known)

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and transform the same rows: ``fit(X).transform(X)``."""
        observed = fit_params.get("observed")
        return self.fit(X, y, **fit_params).transform(X, observed=observed)

    def _read(self, X: Any, observed: Any) -> tuple[Cells, Any]:
        check_is_fitted(self)
        cells, kind = read_matrix(self, X, observed, reset=False)
        self._same_library(cells)
        compatible(kind[2], self._kind[2])
        return cells, kind

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _sparse_outliers(values: Array, out: Array, whole: Cells) -> Any:
    """What was rejected, as a SciPy sparse array of the shape of the data."""
    from scipy.sparse import coo_array

    chosen = np.flatnonzero(host(out))
    if whole.index is None:
        index: Any = np.unravel_index(chosen, whole.shape)
    else:
        index = tuple(host(i)[chosen] for i in whole.index)
    return coo_array((host(values)[chosen], index), shape=whole.shape)


@dataclass(eq=False, repr=False)
class MatrixCompletion(_MatrixEstimator):
    """Fill the holes of a table with a low-rank model.

    X ≈ offsets + a low-rank matrix. Start, method, step, ridge, noise level and tolerance
    are chosen from the data; with ``rank="auto"`` so are the rank, the offsets and the scales,
    on held-out entries. New rows are filled too, by `transform`.

    Parameters
    ----------
    rank : "auto" or int
        An upper bound: what the data do not support is cut; `rank_` is what was used.
    center : {"auto", "none", "rows", "columns", "both"}
        Offsets that are estimated together with the factors. "auto" is "none" when a rank is
        given.
    scale : {"auto", "none", "rows", "columns", "both"}
        What is divided by its standard deviation. "auto" is "none" when a rank is given.
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
        Threads.
    verbose : int
        1 shows progress, where there is a terminal.
    checkpoint : path, optional
        Where to write the state of the fit every few seconds. A fit of the same data with
        the same parameters goes on from there.
    interrupt : {"raise", "return"}
        Whether Ctrl-C is raised again after the fit ended at its last iterate.

    Attributes
    ----------
    factors_ : LowRank
        The low-rank part. ``reconstruct()`` is offsets + ``factors_.full()``.
    components_ : array of shape (rank_, n2), orthonormal rows
    singular_values_ : array of shape (rank_,)
    row_offset_, column_offset_ : arrays of shape (n1,) and (n2,)
    rank_, center_, scale_ : what was used
    rank_path_ : list of dict
        How the rank was found.
    noise_variance_ : float
    n_iter_, converged_, status_, history_ : how the fit went
    diagnostics_ : list of str
        What the data cannot determine.
    outliers_, threshold_ : where `outliers` was asked for

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
        """Fill the holes of rows, which need not have been seen before.

        Parameters
        ----------
        X : array of shape (n, n2), as for `fit`
        observed : boolean array of shape (n, n2), optional

        Returns
        -------
        filled : array of shape (n, n2)
            Observed values as they are, estimates elsewhere.
        """
        cells, kind = self._read_rows(X, observed)
        filled = self._estimate(cells)
        xp = array_namespace(filled)
        if cells.index is None:
            filled = xp.asarray(cells.y, copy=True)
        elif cells.size:
            filled[cells.index] = cells.y
        return table_back(filled, kind)


class RobustPCA(_MatrixEstimator):
    """Separate a table into a low-rank part and gross errors.

    How many entries are wrong, and by how much, need not be known; up to about a third may
    be. Entries may be missing besides (NaN).

    Parameters
    ----------
    rank : "auto" or int
        With "auto" the rank below a gap in the spectrum of what was not rejected. An integer is
        an upper bound.
    center : {"auto", "none", "rows", "columns", "both"}
        Offsets, estimated with the factors and as robustly. "auto" is "none".
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
        """The clean part of rows, which need not have been seen before.

        Parameters
        ----------
        X : array of shape (n, n2), as for `fit`
        observed : boolean array of shape (n, n2), optional

        Returns
        -------
        clean : array of shape (n, n2)
        """
        cells, kind = self._read_rows(X, observed)
        return table_back(self._estimate(cells), kind)
