"""Regression with a coefficient that is a low-rank matrix or tensor."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from .. import checks, kernels
from ..ambient import Ambient
from ..factors import Factors, LowRank, Tucker
from ..initialize import hosvd, small_random, spectral
from ..linalg import fix_signs, inner
from ..methods import Alternating
from ..operators import Around, Operator, Sensing
from ..problems import Observed
from ..solve import State
from .base import SHAPES, DataWarning, LowRankEstimator, all_or_nothing, warn
from .budget import Budget
from .cells import Cells, magnitude, scaled_by
from .matrix import singular
from .rules import change, settled, vanished
from .tables import given_back, numeric
from .tucker import degrees, possible, spectra
from .uncertainty import (
    PART,
    Information,
    check_level,
    conformal_quantile,
    conformal_scores,
    student_quantile,
)

Array = Any

LADDER = (1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36)
RIDGES = (0.0, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Of the ridge that would leave nothing of the coefficient."""


@dataclass(frozen=True, eq=False)
class Centred(Around):
    """Measurements without their mean: what an intercept leaves."""

    operator: Operator

    def apply(self, factors: Factors) -> Array:
        return _centred(self.operator.apply(factors))

    def adjoint(self, w: Array) -> Ambient:
        return self.operator.adjoint(_centred(w))


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows of a design and what was measured with them, as they came."""

    A: Array
    y: Array

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.A, self.y

    def some(self, chosen: Any) -> Sample:
        xp = array_namespace(self.y)
        where = xp.asarray(chosen, device=device(self.y))
        return Sample(xp.take(self.A, where, axis=0), xp.take(self.y, where))


@dataclass(frozen=True, eq=False)
class FoundCoefficient:
    """What a search ends with."""

    state: State
    unit: float
    """Of the coefficient, in the units of the data."""
    wide: float
    """Of the design."""
    ranks: tuple[int, ...]
    ridge: float
    trail: list[dict[str, Any]]


def _centred(y: Array) -> Array:
    return y - array_namespace(y).mean(y)


@dataclass(frozen=True, eq=False)
class Measurements:
    """Rows of a design and what was measured with them; y is of size about 1, and centred."""

    A: Array
    y: Array
    shape: tuple[int, ...]
    intercept: bool

    def some(self, chosen: Array) -> Measurements:
        xp = array_namespace(self.y)
        return replace(self, A=xp.take(self.A, chosen, axis=0), y=xp.take(self.y, chosen))

    def problem(self) -> Observed:
        plain = Sensing(self.A, shape=self.shape)
        if not self.intercept:
            return Observed(plain, self.y)
        return Observed(Centred(plain), _centred(self.y))


def _beginning(problem: Observed, ranks: tuple[int, ...]) -> Any:
    """A spectral start, as long as fits the data best: designs are not normalised."""
    start: Any = spectral(ranks[0]) if len(problem.shape) == 2 else hosvd(ranks)
    F = start(problem)
    measured = problem.operator.apply(F)
    square = float(inner(measured, measured))
    factor = float(inner(measured, problem.y)) / square if square > 0 else 0.0
    if not factor > 0:
        return small_random(ranks[0] if len(problem.shape) == 2 else ranks, 1.0, rng=0)(problem)
    if isinstance(F, LowRank):
        root = math.sqrt(factor)
        return LowRank(root * F.L, root * F.R)
    return Tucker(F.factors, factor * F.core)


def fit_ranks(
    data: Measurements, ranks: tuple[int, ...], ridge: float, budget: Budget, start: Any = None
) -> State:
    """Fit ranks with a ridge, as a share of the one that would leave nothing."""
    problem = data.problem()
    first = _beginning(problem, ranks) if start is None else start
    if ridge:
        problem = replace(problem, ridge=_ridges(problem, first, ridge))
    rules = [vanished(0.1 * budget.tol), change(0.1 * budget.tol)]
    method = Alternating(steps=40)
    state = budget.run(problem, first, method, [*rules, settled(1e-5)], stage="regression").state
    if ridge or float(state.value) <= 1e-10 * float(problem.value_at_zero) or start is not None:
        return state
    # a start that led astray: another one, and the better of both
    size = ranks[0] if len(problem.shape) == 2 else ranks
    other = small_random(size, 1.0, rng=1)(problem)
    again = budget.run(problem, other, method, [*rules, settled(1e-5)], stage="random start").state
    return again if float(again.value) < 0.99 * float(state.value) else state


def _ridges(problem: Observed, F: Any, share: float) -> tuple[Any, ...]:
    """One number for all columns: λ(‖L‖² + ‖R‖²)/2 is λ times the nuclear norm."""
    xp = array_namespace(problem.y)
    Z = problem.gradient_at_zero
    if isinstance(F, LowRank):
        top = float(xp.max(xp.linalg.svdvals(getattr(Z, "array", F.full()))))
        return tuple(xp.zeros_like(B[0, :]) + share * top for B in F.blocks)
    # of a Tucker model only the core is held; its factors are nearly orthonormal
    size = float(inner(problem.y, problem.y))
    return (*(None for _ in F.factors), xp.zeros_like(F.core[0, ...]) + share**2 * size)


def choose(
    data: Measurements,
    candidates: list[tuple[tuple[int, ...], float]],
    rng: np.random.Generator,
    budget: Budget,
) -> tuple[tuple[tuple[int, ...], float], list[dict[str, Any]]]:
    """Ranks and ridge by held-out measurements, a fifth of them, twice."""
    xp = array_namespace(data.y)
    m = data.y.shape[0]
    order = rng.permutation(m)
    parts = [order[k::5] for k in range(2)] if m >= 10 else []
    trail: list[dict[str, Any]] = []
    best: Any = (math.inf, candidates[0])
    # nothing at all is a candidate too: the ridge that leaves nothing
    for ranks, ridge in candidates:
        total = budget.remember("held out", partial(_held_out, data, parts, ranks, ridge, budget))
        trail.append({"rank": ranks, "ridge": ridge, "held_out": total})
        if total < 0.98 * best[0]:
            best = (total, (ranks, ridge))
        if total <= 1e-8 * float(xp.mean(data.y * data.y)):
            break  # exact: more can only be more of the same
        if budget.out_of_time:
            break
    return best[1], trail


def _held_out(
    data: Measurements,
    parts: list[Any],
    ranks: tuple[int, ...],
    ridge: float,
    budget: Budget,
    last: Any,
    note: Any,
) -> float:
    """The mean square error on measurements that were left out."""
    xp, there, total = array_namespace(data.y), device(data.y), 0.0
    for test in parts:
        train = np.setdiff1d(np.arange(data.y.shape[0]), test)
        fit = data.some(xp.asarray(train, device=there))
        held = data.some(xp.asarray(test, device=there))
        state = fit_ranks(fit, ranks, ridge, budget.apart(1e-5, 60))
        off = Sensing(held.A, shape=held.shape).apply(state.factors) - held.y
        if data.intercept:
            shift = Sensing(fit.A, shape=fit.shape).apply(state.factors) - fit.y
            off = off - xp.mean(shift)
        total += float(xp.mean(off * off)) / len(parts)
    return total


def _dimensions(A: Any) -> int:
    return int(A.ndim if hasattr(A, "ndim") else np.asarray(A).ndim)


class _Regressor(RegressorMixin, LowRankEstimator):
    """y ≈ ⟨A, coef⟩ + intercept."""

    shape: Any
    _scaled: Any

    @all_or_nothing
    def fit(self, A: Any, y: Any) -> Self:
        """Learn the coefficient.

        Parameters
        ----------
        A : array of shape (m, n1, ..., nd), or (m, n1 · ... · nd) with `shape` given
            Rows in C order.
        y : array of shape (m,)

        Returns
        -------
        self
        """
        self._check_params()
        if self.scale not in ("auto", "none"):
            raise ValueError(f'scale must be "auto" or "none" for regression, not {self.scale!r}')
        read, y, kind = self._read(A, y)
        return self._fit(Sample(read, y), kind, True, X=A, y=y)

    def _read(self, A: Any, y: Any) -> tuple[Array, Array, Any]:
        if is_torch_array(A):
            xp = array_namespace(A)
            kind: Any = None
            if y is None:
                raise ValueError("requires y to be passed, but the target y is None")
            if A.ndim < 2 or 0 in A.shape or xp.isdtype(A.dtype, "complex floating"):
                raise ValueError(f"A must be real, of shape (m, n1, ..., nd), not {tuple(A.shape)}")
            kind = ("torch", A.dtype if A.dtype == xp.float32 else xp.float64, None)
            A = xp.astype(A, xp.float64)
            y = xp.astype(xp.reshape(xp.asarray(y, device=device(A)), (-1,)), xp.float64)
            checks.finite("A", A)
            checks.finite("y", y)
        else:
            if _dimensions(A) <= 2:
                if y is None:
                    raise ValueError("requires y to be passed, but the target y is None")
                A, y = validate_data(
                    self, A, y, dtype=[np.float64, np.float32], y_numeric=True, multi_output=False
                )
            else:
                if y is None:
                    raise ValueError("requires y to be passed, but the target y is None")
                A = numeric("A", A)
                y = numeric(
                    "y", y if isinstance(y, np.ma.MaskedArray) else column_or_1d(y, warn=True)
                )
                if 0 in A.shape:
                    raise ValueError(f"A of shape {A.shape} is empty")
                checks.finite("A", A)
                checks.finite("y", y)
            kind = ("numpy", A.dtype, None)
            A, y = A.astype(np.float64), np.asarray(y, dtype=np.float64)
        if A.shape[0] != y.shape[0]:
            raise ValueError(f"A has {A.shape[0]} rows but y has {y.shape[0]} values")
        self.shape_ = self._coefficient_shape(tuple(A.shape))
        self.n_features_in_ = math.prod(A.shape[1:])
        return array_namespace(A).reshape(A, (A.shape[0], -1)), y, kind

    def _coefficient_shape(self, size: tuple[int, ...]) -> tuple[int, ...]:
        if self.shape is None:
            # a flat design without a shape is a column: plain linear regression
            shape = size[1:] if len(size) > 2 else (size[1], 1)
        else:
            try:
                if isinstance(self.shape, str) or 0 in self.shape:
                    raise ValueError
                shape = tuple(int(n) for n in self.shape)
            except (TypeError, ValueError):
                raise ValueError(f"shape must be a tuple of integers, not {self.shape!r}") from None
            if shape.count(-1) == 1:
                known = -math.prod(shape)
                shape = tuple(math.prod(size[1:]) // known if n == -1 else n for n in shape)
        if math.prod(shape) != math.prod(size[1:]) or min(shape) < 1:
            raise ValueError(
                f"shape {self.shape} has {math.prod(shape)} entries, but A has "
                f"{math.prod(size[1:])} features"
            )
        if len(shape) < 2 or (self._matrix and len(shape) != 2):
            raise ValueError(
                f"the coefficient would have shape {shape}; "
                + ("use TensorRegressor" if len(shape) > 2 else "give shape=(n1, n2)")
            )
        return shape

    _matrix = True

    def _wanted(self) -> tuple[int, ...] | None:
        shape = self.shape_
        if isinstance(self.rank, str):
            if self.rank != "auto":
                raise ValueError(f'rank must be "auto" or an integer, not {self.rank!r}')
            return None
        if isinstance(self.rank, (tuple, list)) and not self._matrix:
            if len(self.rank) != len(shape):
                raise ValueError(f"rank {self.rank} must have {len(shape)} entries")
            return possible([checks.count("rank", r, least=1) for r in self.rank], shape)
        return possible((checks.count("rank", self.rank, least=1),) * len(shape), shape)

    def _search(self, whole: Sample, again: bool, budget: Budget, rng: Any) -> FoundCoefficient:
        A, y = whole.A, whole.y
        xp = array_namespace(y)
        intercept = self.center != "none"
        # powers of two first: squares of large numbers are not numbers
        tall, wide = magnitude(Cells(None, y, y.shape)), magnitude(Cells(None, A, A.shape))
        small = scaled_by(y, tall)
        level = float(xp.mean(small)) if intercept else 0.0
        deviation = math.sqrt(float(xp.mean((small - level) ** 2))) or 1.0
        data = Measurements(scaled_by(A, wide), (small - level) / deviation, self.shape_, intercept)
        budget.desk.about.update(unit=tall * deviation / wide, wide=wide, ridge=0.0, trail=[])
        ranks, ridge, trail = self._chosen(data, rng, budget)
        budget.desk.about.update(ridge=ridge, trail=trail)
        start = None
        same = hasattr(self, "_scaled") and type(self._scaled.blocks[0]) is type(y)
        if self.warm_start and same and self._scaled.shape == self.shape_:
            ok = getattr(self._scaled, "ranks", (getattr(self._scaled, "rank", 0),) * 2) == ranks
            start = self._scaled if ok else None
        state = fit_ranks(data, ranks, ridge, budget, start)
        return FoundCoefficient(state, tall * deviation / wide, wide, ranks, ridge, trail)

    def _salvaged(self, whole: Sample, budget: Budget) -> FoundCoefficient | None:
        state, about = budget.desk.salvage()
        if state is None:
            return None
        F: Any = state.factors
        ranks = getattr(F, "ranks", (getattr(F, "rank", 0),) * 2)
        units = about["unit"], about["wide"]
        return FoundCoefficient(state, *units, ranks, about["ridge"], about["trail"])

    def _end(self, found: FoundCoefficient, whole: Sample, held: Sample | None) -> None:
        A, y, ranks, ridge = whole.A, whole.y, found.ranks, found.ridge
        xp = array_namespace(y)
        self._scaled = found.state.factors
        F: Any = found.state.factors
        if isinstance(F, LowRank):
            U, s, V = singular(F)  # type: ignore[arg-type]
            phase = fix_signs(V)
            U, V = U * phase[None, :], V * phase[None, :]
            # nothing was measured, or nothing is left
            live = float(xp.max(xp.abs(A))) > 0 and ridge < 1.0
            r = int((s > 1e-10 * max(float(s[0]), 1e-300)).sum()) if live else 0
            root = xp.sqrt(s * found.unit)[None, : max(r, 1)] * (1.0 if r else 0.0)
            self.factors_ = LowRank(U[:, : max(r, 1)] * root, V[:, : max(r, 1)] * root)
            self.rank_: Any = r
            self.singular_values_: Any = s[:r] * found.unit
            self.components_: Any = V[:, :r].T
        else:
            F, values = spectra(Tucker(F.factors, found.unit * F.core))
            self.factors_, self.rank_, self.singular_values_ = F, F.ranks, values
            self.components_ = tuple(U.T for U in F.factors)
        fitted = Sensing(A, shape=self.shape_).apply(self.factors_)
        intercept = self.center != "none"
        self.intercept_ = float(xp.mean(y - fitted)) if intercept else 0.0
        self.coef_ = given_back(self.factors_.full(), self._kind)
        off = y - fitted - self.intercept_
        m = y.shape[0]
        free = m - degrees(ranks, self.shape_) - intercept
        self.noise_variance_ = float(xp.sum(off * off)) / max(free, 0.1 * m, 1)
        self.ridge_, self.rank_path_ = ridge, found.trail
        self.center_, self.scale_, self.diagnostics_ = self.center, "none", []
        self._free = float(free)
        if free <= 0:
            what = (
                f"there are {m} measurements but {degrees(ranks, self.shape_)} degrees of freedom"
            )
            self.diagnostics_ = [f"{what}; how sure the coefficient is cannot be known"]
            warn(self.diagnostics_[0], DataWarning)
        held_by = found.state.problem.ridge
        strength = 0.0 if held_by is None else float(xp.max(held_by[-1])) * found.wide**2
        strength *= found.unit if isinstance(F, LowRank) else 1.0
        self._information = Information.of(self.factors_, A, intercept, strength)
        self._conformal = None
        if held is not None:
            off = xp.abs(held.y - self._predicted(held.A))
            self._conformal = conformal_scores(off, self._prediction_std(held.A))

    def _split(self, data: Sample, rng: Any, again: bool) -> tuple[Sample, Sample | None]:
        if not self.calibrate:
            return data, None
        m = data.y.shape[0]
        k = math.ceil(self.calibrate * m)
        if k >= m:
            raise ValueError(
                f"calibrate={self.calibrate:g} of {m} measurements leaves none to fit; measure "
                "more, or set calibrate=None"
            )
        order = rng.permutation(m)
        return data.some(np.sort(order[k:])), data.some(np.sort(order[:k]))

    def _chosen(self, data: Measurements, rng: Any, budget: Budget) -> Any:
        wanted = self._wanted()
        m = data.y.shape[0]
        given = None if self.ridge == "auto" else float(self.ridge)
        if wanted is not None:
            if given is not None:
                return wanted, given, [{"rank": wanted, "ridge": given, "why": "given"}]
            if m >= 1.5 * degrees(wanted, self.shape_):
                quick = fit_ranks(data, wanted, 0.0, budget.apart(1e-6, 60))
                noise = 2 * float(quick.value)
                exact = noise <= 1e-8 * 2 * float(quick.problem.value_at_zero)
                if exact or m >= 10 * degrees(wanted, self.shape_):
                    return wanted, 0.0, [{"rank": wanted, "ridge": 0.0, "why": "given"}]
            (_, ridge), trail = choose(data, [(wanted, t) for t in RIDGES], rng, budget)
            return wanted, ridge, trail
        sizes: list[tuple[int, ...]] = []
        for size in LADDER:
            ranks = possible((size,) * len(self.shape_), self.shape_)
            if ranks not in sizes and (not sizes or degrees(ranks, self.shape_) < 0.9 * m):
                sizes.append(ranks)
        grid = [(ranks, 0.0 if given is None else given) for ranks in sizes]
        (ranks, ridge), trail = choose(data, grid, rng, budget)
        if given is None and len(self.shape_) == 2 and min(self.shape_) > 1:
            around = [(ranks, 0.0), *((ranks, t) for t in RIDGES[1:])]
            (ranks, ridge), more = choose(data, around, rng, budget)
            trail += more
        return ranks, ridge, trail

    def predict(self, A: Any, return_std: bool = False) -> Any:
        """⟨A, coef⟩ + intercept for every row of A.

        Parameters
        ----------
        A : array of shape (m, n1, ..., nd) or (m, n1 · ... · nd)
        return_std : bool
            Also return how far off a new measurement is expected to be: the noise, and what
            is not known about the coefficient.

        Returns
        -------
        y : array of shape (m,)
        std : array of shape (m,), where asked for
        """
        flat, kind = self._read_design(A)
        values = given_back(self._predicted(flat), kind)
        if not return_std:
            return values
        return values, given_back(self._known(self._prediction_std(flat)), kind)

    def interval(self, A: Any, level: float = 0.95, kind: str = "model") -> tuple[Array, Array]:
        """Bounds of a new measurement.

        Parameters
        ----------
        A : array of shape (m, n1, ..., nd) or (m, n1 · ... · nd)
        level : float in (0, 1)
            The share of the intervals that hold the measurement.
        kind : {"model", "conformal"}
            "model": from the noise and the standard error of the coefficient; right where the
            model is. "conformal": from how far off the fit was at measurements that it did not
            see, which needs ``calibrate``; right without a model of the noise.

        Returns
        -------
        lower, upper : arrays of shape (m,)
        """
        flat, given = self._read_design(A)
        level = check_level(level)
        if kind not in ("model", "conformal"):
            raise ValueError(f'kind must be "model" or "conformal", not {kind!r}')
        middle, std = self._predicted(flat), self._prediction_std(flat)
        if kind == "model":
            half = student_quantile(level, self._free) * self._known(std)
        else:
            half = conformal_quantile(self._scores(), level) * std
        lower, upper = (self._bounded(x) for x in (middle - half, middle + half))
        return given_back(lower, given), given_back(upper, given)

    def _known(self, std: Array) -> Array:
        """A standard error; without end where there were too few measurements to know any."""
        return std if self._free > 0 else std + math.inf

    def _predicted(self, A: Array) -> Array:
        values = Sensing(A, shape=self.shape_).apply(self.factors_) + self.intercept_
        return self._bounded(values)

    def _prediction_std(self, A: Array) -> Array:
        xp = array_namespace(A)
        share = 1 + self._information.leverage(self.factors_, A)
        return math.sqrt(self.noise_variance_) * xp.sqrt(share) + 1e-300

    def _deviation(self, index: tuple[Array, ...]) -> Array:
        xp, found = array_namespace(self.factors_.blocks[0]), []
        size = math.prod(self.shape_)
        flat = kernels.numbered(index, self.shape_)
        every = xp.arange(size, device=device(flat))
        step = max(1, PART // size)
        for s in range(0, flat.shape[0], step):
            one = xp.astype(flat[s : s + step, None] == every[None, :], xp.float64)
            found.append(self._information.leverage(self.factors_, one, centred=False))
        if not found:
            return xp.astype(flat, xp.float64)
        return self._known(math.sqrt(self.noise_variance_) * xp.sqrt(xp.concat(found)))

    def _read_design(self, A: Any) -> tuple[Array, Any]:
        check_is_fitted(self)
        if is_torch_array(A):
            xp = array_namespace(A)
            kind: Any = ("torch", A.dtype if A.dtype == xp.float32 else xp.float64, None)
            A = xp.astype(A, xp.float64)
        else:
            if _dimensions(A) <= 2:
                A = validate_data(self, A, reset=False, dtype=[np.float64, np.float32])
            else:
                A = numeric("A", A)
            checks.finite("A", A)
            kind = ("numpy", A.dtype, None)
            A = A.astype(np.float64)
        xp = array_namespace(A)
        if A.ndim > 2 and tuple(A.shape[1:]) != self.shape_:
            raise ValueError(f"A has rows of shape {tuple(A.shape[1:])}, not {self.shape_}")
        if is_torch_array(A) != is_torch_array(self.factors_.blocks[0]):
            raise TypeError("A is not of the library that the model was fitted with; convert it")
        if math.prod(A.shape[1:]) != math.prod(self.shape_):
            raise ValueError(
                f"A has {math.prod(A.shape[1:])} features, but the coefficient has shape "
                f"{self.shape_}"
            )
        return xp.reshape(A, (A.shape[0], -1)), kind

    def _bounded(self, predictions: Array) -> Array:
        return super()._clipped(predictions)

    def _clipped(self, values: Array) -> Array:
        return values  # bounds are those of predictions, not of coefficients


@dataclass(eq=False, repr=False)
class MatrixRegressor(_Regressor):
    """Regression with a coefficient that is a low-rank matrix: y ≈ ⟨A, coef⟩ + intercept.

    Parameters
    ----------
    rank : "auto" or int
    shape : (n1, n2), optional
        Of the coefficient, where the design is flat, (m, n1·n2) in C order. One size may be
        -1. Without it a flat design has a coefficient of shape (n_features, 1), which is
        plain linear regression.
    center : {"auto", "none"}
        Whether there is an intercept; "auto" has one.
    scale : {"auto", "none"}
    ridge : "auto" or float
        "auto" chooses on held-out measurements where they are few or noisy. A number is a share
        of the ridge that would leave nothing.
    calibrate : float, optional
        The share of the measurements to hold out for ``interval(..., kind="conformal")``.
    clip, tol, max_iter, max_time, warm_start, random_state, n_jobs, verbose, checkpoint, interrupt
        As in `MatrixCompletion`.

    Attributes
    ----------
    coef_ : array of shape (n1, n2)
    intercept_ : float
    factors_ : LowRank
    rank_, ridge_, rank_path_, components_, singular_values_
    noise_variance_, n_iter_, converged_, status_, history_

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((12, 2)) @ rng.standard_normal((2, 10))
    >>> A = rng.standard_normal((150, 12, 10))
    >>> model = sg.MatrixRegressor(rank=2).fit(A, np.tensordot(A, X, 2) + 3.0)
    >>> bool(np.allclose(model.coef_, X, atol=1e-6)), round(model.intercept_, 6)
    (True, 3.0)
    """

    _: KW_ONLY
    shape: Any = field(default=None, metadata=SHAPES)


class TensorRegressor(MatrixRegressor):
    """Regression with a coefficient of low multilinear rank: y ≈ ⟨A, coef⟩ + intercept.

    Parameters
    ----------
    rank : "auto", int, or tuple of int
    shape : (n1, ..., nd), optional
        Of the coefficient, where the design is flat.
    center, scale, ridge, clip, calibrate, tol, max_iter, max_time, warm_start, random_state
    n_jobs, verbose, checkpoint, interrupt
        As in `MatrixRegressor`.

    Attributes
    ----------
    coef_ : array of shape (n1, ..., nd)
    factors_ : Tucker
    intercept_, rank_, ridge_, rank_path_, components_, singular_values_
    noise_variance_, n_iter_, converged_, status_, history_

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> X = sg.datasets.low_rank_tensor((8, 7, 6), 2, kappa=2, rng=0).full()
    >>> A = np.random.default_rng(0).standard_normal((300, 8, 7, 6))
    >>> model = sg.TensorRegressor(rank=2).fit(A, np.tensordot(A, X, 3))
    >>> bool(np.allclose(model.coef_, X, atol=1e-6))
    True
    """

    _matrix = False
