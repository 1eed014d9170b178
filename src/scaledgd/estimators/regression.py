"""Regression with a coefficient that is a low-rank matrix or tensor."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from .. import checks
from ..factors import Factors
from ..initialize import small_random
from ..state import State
from .base import SHAPES, LowRankEstimator, all_or_nothing
from .coefficient import (
    UNJUDGED,
    CoefficientReading,
    Measurements,
    Ranks,
    Trail,
    choose_coefficient,
    fit_coefficient,
    ranks_of,
    unjudged,
    useless,
)
from .diagnostics import DataWarning, warn
from .magnitudes import magnitude, scaled_by
from .reading import Kind, converting, numeric, refuse_dates, sized
from .regression_model import RegressionModel
from .session import Session
from .tucker import degrees, possible
from .uncertainty import check_level, conformal_scores
from .vouching import OFFSETS, against

Array = Any


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows of a design and their measurements, in their own units.

    Attributes
    ----------
    A : array of shape (m, n1 · ... · nd)
    y : array of shape (m,)
    """

    A: Array
    y: Array

    @property
    def identity(self) -> tuple[Any, ...]:
        """All arrays, for a fingerprint."""
        return self.A, self.y

    def some(self, chosen: Any) -> Sample:
        """Return some of the rows."""
        xp = array_namespace(self.y)
        where = xp.asarray(chosen, device=device(self.y))
        return Sample(xp.take(self.A, where, axis=0), xp.take(self.y, where))


@dataclass(frozen=True, eq=False)
class CoefficientFit:
    """The result of a fit, before it becomes a model."""

    state: State
    reading: CoefficientReading
    ranks: Ranks


def _dimensions(A: Any) -> int:
    return int(A.ndim if hasattr(A, "ndim") else np.asarray(A).ndim)


class _Regressor(RegressorMixin, LowRankEstimator):
    """y ≈ ⟨A, coef⟩ + intercept."""

    shape: Any
    _model: RegressionModel

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
        for name in ("center", "scale"):
            if getattr(self, name) not in ("auto", "none"):
                raise ValueError(
                    f'{name} must be "auto" or "none" for regression, not {getattr(self, name)!r}; '
                    "measurements have no rows or columns"
                )
        with all_or_nothing(self) as work:
            read, y, kind = work._read(A, y)
            work._fit(Sample(read, y), kind, X=A, y=y)
        return self

    def _read(self, A: Any, y: Any) -> tuple[Array, Array, Kind]:
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        if is_torch_array(A):
            xp = array_namespace(A)
            if A.ndim < 2 or 0 in A.shape or xp.isdtype(A.dtype, "complex floating"):
                raise ValueError(f"A must be real, of shape (m, n1, ..., nd), not {tuple(A.shape)}")
            kind = Kind("torch", A.dtype if A.dtype == xp.float32 else xp.float64)
            A = xp.astype(A, kind.dtype)
            y = xp.astype(xp.reshape(xp.asarray(y, device=device(A)), (-1,)), kind.dtype)
            checks.finite("A", A)
            checks.finite("y", y)
        else:
            refuse_dates("A", A)
            refuse_dates("y", y)
            if _dimensions(A) <= 2:
                with converting("A or y"):
                    A, y = validate_data(
                        self,
                        A,
                        y,
                        dtype=[np.float64, np.float32],
                        y_numeric=True,
                        multi_output=False,
                    )
            else:
                A = numeric("A", A)
                y = numeric(
                    "y", y if isinstance(y, np.ma.MaskedArray) else column_or_1d(y, warn=True)
                )
                if 0 in A.shape:
                    raise ValueError(f"A of shape {A.shape} is empty")
                checks.finite("A", A)
                checks.finite("y", y)
            kind = Kind("numpy", A.dtype)
            y = np.asarray(y, dtype=A.dtype)
        if A.shape[0] != y.shape[0]:
            raise ValueError(f"A has {A.shape[0]} rows but y has {y.shape[0]} values")
        sized("A", A)
        sized("y", y)
        self.shape_ = self._coefficient_shape(tuple(A.shape))
        self.n_features_in_ = math.prod(A.shape[1:])
        return array_namespace(A).reshape(A, (A.shape[0], -1)), y, kind

    def _coefficient_shape(self, size: tuple[int, ...]) -> tuple[int, ...]:
        if self.shape is None:
            # a flat design without a shape has a column as its coefficient
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

    def _search(
        self, session: Session, data: Sample, again: bool, seed: int, rng: Any
    ) -> CoefficientFit:
        scaled, reading = self._scaled(data)
        given = None if self.ridge == "auto" else float(self.ridge)
        ranks, ridge, trail = choose_coefficient(
            session.with_reading(reading), scaled, self._wanted(), given, rng
        )
        if useless(scaled, trail) and not session.out_of_time:
            return self._blank(data, OFFSETS, trail)
        reading = replace(reading, ridge=ridge, trail=trail)
        start = self._start(data.y, ranks)
        state = fit_coefficient(session.with_reading(reading), scaled, ranks, ridge, start)
        if unjudged(state, scaled, ranks):
            reading = replace(reading, trail=[*trail, {"rank": ranks, "why": UNJUDGED}])
        return CoefficientFit(state, reading, ranks)

    def _scaled(self, data: Sample) -> tuple[Measurements, CoefficientReading]:
        """Return measurements of size about 1, and how their coefficient is read."""
        A, y = data.A, data.y
        xp = array_namespace(y)
        intercept = self.center != "none"
        # divide by powers of two first: squares of large numbers overflow
        tall, wide = magnitude(y), magnitude(A)
        small = scaled_by(y, tall)
        level = float(xp.mean(small)) if intercept else 0.0
        deviation = math.sqrt(float(xp.mean((small - level) ** 2))) or 1.0
        scaled = Measurements(
            scaled_by(A, wide), (small - level) / deviation, self.shape_, intercept
        )
        return scaled, CoefficientReading(tall * deviation / wide, wide)

    def _blank(
        self, data: Sample, why: str = "interrupted", trail: Trail | None = None
    ) -> CoefficientFit:
        """Return the intercept alone; a ridge of 1 leaves nothing of the coefficient."""
        scaled, reading = self._scaled(data)
        ranks = (1,) * len(self.shape_)
        some = small_random(1 if len(ranks) == 2 else ranks, 1.0, rng=0)(scaled.problem())
        F = some.with_blocks(tuple(0 * B for B in some.blocks))
        reading = replace(reading, ridge=1.0, trail=[*(trail or []), {"rank": 0, "why": why}])
        return CoefficientFit(scaled.problem().linearize(F), reading, ranks)

    def _start(self, y: Array, ranks: Ranks) -> Factors | None:
        """Return the factors of the earlier fit, if the fit continues from them."""
        if not self.warm_start or not hasattr(self, "_model"):
            return None
        F = self._model.fitted
        same = type(F.blocks[0]) is type(y) and F.blocks[0].dtype == y.dtype
        return F if same and F.shape == self.shape_ and ranks_of(F) == ranks else None

    def _salvaged(self, session: Session, data: Sample) -> CoefficientFit | None:
        found = session.shared.salvage()
        if found is None:
            return None
        return CoefficientFit(found.state, found.reading, ranks_of(found.state.factors))

    def _modelled(self, fit: CoefficientFit, data: Sample) -> RegressionModel:
        return RegressionModel.of(fit.state, fit.reading, fit.ranks, data.A, data.y, self.center)

    def _conclude(self, model: RegressionModel, held: Sample | None, kind: Kind) -> None:
        if held is not None:
            off = array_namespace(held.y).abs(held.y - self._bounded(model.predict(held.A)))
            scores = conformal_scores(off, model.prediction_std(held.A))
            model = replace(model, scores=scores)
        super()._conclude(model, held, kind)
        self.diagnostics_ = []
        if against(model.trail) == OFFSETS:
            self.diagnostics_ = [
                "held-out measurements are predicted better without any coefficient: the estimate "
                "is the intercept only"
            ]
        elif any(step.get("why") == UNJUDGED for step in model.trail):
            self.diagnostics_ = [f"{model.information.m} measurements are {UNJUDGED}"]
        m, dof = model.information.m, degrees(ranks_of(model.fitted), model.shape)
        if model.free <= 0 or (not self.diagnostics_ and model.free < 0.25 * dof):
            self.diagnostics_ += [
                f"there are {m} measurements but {dof} degrees of freedom; the uncertainty of the "
                "coefficient is unknown"
            ]
        if self.diagnostics_:
            warn("; ".join(self.diagnostics_), DataWarning)

    def _publish(self, model: RegressionModel) -> None:
        super()._publish(model)
        self.coef_ = self._kind.given_back(model.full())

    def _split(
        self, data: Sample, seed: int, rng: Any, again: bool
    ) -> tuple[Sample, Sample | None]:
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

    def predict(self, A: Any, return_std: bool = False) -> Any:
        """Return ⟨A, coef⟩ + intercept for every row of A.

        Parameters
        ----------
        A : array of shape (m, n1, ..., nd) or (m, n1 · ... · nd)
        return_std : bool
            Also return the expected error of a new measurement, which combines the noise and the
            uncertainty of the coefficient.

        Returns
        -------
        y : array of shape (m,)
        std : array of shape (m,), if requested
        """
        flat, kind = self._read_design(A)
        values = kind.given_back(self._bounded(self._model.predict(flat)))
        if not return_std:
            return values
        return values, kind.given_back(self._model.known(self._model.prediction_std(flat)))

    def interval(self, A: Any, level: float = 0.95, kind: str = "model") -> tuple[Array, Array]:
        """Return bounds of a new measurement.

        Parameters
        ----------
        A : array of shape (m, n1, ..., nd) or (m, n1 · ... · nd)
        level : float in (0, 1)
            The share of the intervals that should contain the measurement.
        kind : {"model", "prediction", "conformal"}
            "model" uses the noise and the standard error of the coefficient, and is right if the
            model is right; "prediction" is the same. "conformal" uses the errors on measurements
            that the fit did not see, and is right for any noise; it needs ``calibrate``.

        Returns
        -------
        lower, upper : arrays of shape (m,)
        """
        flat, given = self._read_design(A)
        level = check_level(level)
        if kind not in ("model", "prediction", "conformal"):
            raise ValueError(f'kind must be "model", "prediction" or "conformal", not {kind!r}')
        middle = self._bounded(self._model.predict(flat))
        half = self._model.half_width(flat, level, kind)
        lower, upper = (self._bounded(x) for x in (middle - half, middle + half))
        return given.given_back(lower), given.given_back(upper)

    def _read_design(self, A: Any) -> tuple[Array, Kind]:
        check_is_fitted(self)
        if is_torch_array(A):
            xp = array_namespace(A)
            kind = Kind("torch", A.dtype if A.dtype == xp.float32 else xp.float64)
        else:
            refuse_dates("A", A)
            if _dimensions(A) <= 2:
                with converting("A"):
                    A = validate_data(self, A, reset=False, dtype=[np.float64, np.float32])
            else:
                A = numeric("A", A)
            checks.finite("A", A)
            kind = Kind("numpy", A.dtype)
        xp = array_namespace(A)
        if A.ndim > 2 and tuple(A.shape[1:]) != self.shape_:
            raise ValueError(f"A has rows of shape {tuple(A.shape[1:])}, not {self.shape_}")
        if is_torch_array(A) != is_torch_array(self.factors_.blocks[0]):
            raise TypeError("A is of another array library than the data of the fit; convert it")
        if math.prod(A.shape[1:]) != math.prod(self.shape_):
            raise ValueError(
                f"A has {math.prod(A.shape[1:])} features, but the coefficient has shape "
                f"{self.shape_}"
            )
        A = xp.astype(A, self.factors_.blocks[0].dtype, copy=False)
        return xp.reshape(A, (A.shape[0], -1)), kind

    def _bounded(self, predictions: Array) -> Array:
        return super()._clipped(predictions)

    def _clipped(self, values: Array) -> Array:
        return values  # `clip` bounds predictions, not coefficients


@dataclass(eq=False, repr=False)
class MatrixRegressor(_Regressor):
    """Regression with a coefficient that is a low-rank matrix: y ≈ ⟨A, coef⟩ + intercept.

    Parameters
    ----------
    rank : "auto" or int
    shape : (n1, n2), optional
        Shape of the coefficient if the design is flat, (m, n1·n2) in C order. One size may be
        -1. Without it a flat design has a coefficient of shape (n_features, 1): linear
        regression.
    center : {"auto", "none"}
        Whether there is an intercept; "auto" includes one.
    scale : {"auto", "none"}
    ridge : "auto" or float
        "auto" chooses on held-out measurements if they are few or noisy. A number is a share
        of the ridge that would leave nothing of the coefficient.
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
        Shape of the coefficient if the design is flat.
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
