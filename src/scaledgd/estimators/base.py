"""What the estimators share: parameters, what they warn of, what they can be asked."""

from __future__ import annotations

import contextlib
import math
import numbers
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .. import checks
from .cells import Cells, components, magnitude, same_library, scaled_by
from .matrix import degrees
from .rules import Budget
from .tables import check_dense_size, given_back

Array = Any

SIDES = ("auto", "none", "rows", "columns", "both")


class DataWarning(UserWarning):
    """The data cannot say all that is asked of them."""


class LowRankEstimator(BaseEstimator):
    """Parameters that mean the same for every estimator."""

    def __init__(
        self,
        rank: Any = "auto",
        *,
        center: str = "auto",
        scale: str = "auto",
        ridge: Any = "auto",
        clip: Any = None,
        tol: float = 1e-9,
        max_iter: int = 500,
        max_time: float | None = None,
        warm_start: bool = False,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.rank = rank
        self.center = center
        self.scale = scale
        self.ridge = ridge
        self.clip = clip
        self.tol = tol
        self.max_iter = max_iter
        self.max_time = max_time
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _check_params(self) -> None:
        for name in ("center", "scale"):
            if getattr(self, name) not in SIDES:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, SIDES))}, "
                    f"not {getattr(self, name)!r}"
                )
        if not (isinstance(self.ridge, str) and self.ridge == "auto"):
            checks.number("ridge", self.ridge, least=0)
            if self._outliers() is not None:
                raise ValueError(
                    "ridge is learnt from what is not rejected where there are outliers; leave it "
                    '"auto"'
                )
        checks.number("tol", self.tol, least=0)
        checks.count("max_iter", self.max_iter, least=1)
        if self.max_time is not None:
            checks.number("max_time", self.max_time, least=0)
        if self.clip is not None:
            low, high = self._clip()
            if not low <= high:
                raise ValueError(f"clip must be (lo, hi) with lo <= hi, not {self.clip!r}")
        outliers = self._outliers()
        if isinstance(outliers, str) and outliers != "auto":
            raise ValueError(f'outliers must be None, "auto" or a fraction, not {outliers!r}')
        if isinstance(outliers, numbers.Real) and not 0 <= float(outliers) < 0.5:
            raise ValueError(f"outliers must be a fraction below one half, not {outliers!r}")

    def _outliers(self) -> Any:
        return getattr(self, "outliers", None)

    def _rank(self) -> int | None:
        """The rank of a matrix, or None for "auto"."""
        if isinstance(self.rank, str):
            if self.rank != "auto":
                raise ValueError(f'rank must be "auto" or a positive integer, not {self.rank!r}')
            return None
        if isinstance(self.rank, tuple):
            raise ValueError(f"rank must be one integer for a matrix, not {self.rank!r}")
        return checks.count("rank", self.rank, least=1)

    def _clip(self) -> tuple[float, float]:
        try:
            low, high = self.clip
        except (TypeError, ValueError):
            raise ValueError(f"clip must be a pair (lo, hi), not {self.clip!r}") from None
        return (
            -math.inf if low is None else float(low),
            math.inf if high is None else float(high),
        )

    def _clipped(self, values: Array) -> Array:
        if self.clip is not None:
            low, high = self._clip()
            values = array_namespace(values).clip(values, low, high)
        return values

    def _budget(self) -> Budget:
        return Budget(self.tol, self.max_iter, self.max_time, began=time.perf_counter())

    def _generator(self) -> np.random.Generator:
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        return np.random.default_rng(seed)

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        if self.n_jobs is None:
            yield
            return
        from joblib import effective_n_jobs
        from threadpoolctl import threadpool_limits

        with threadpool_limits(limits=effective_n_jobs(self.n_jobs)):
            yield

    def _say(self, line: str) -> None:
        if self.verbose:
            print(f"[{type(self).__name__}] {line}", file=sys.stderr)

    def _normal(self, cells: Cells) -> tuple[Cells, float]:
        """The cells divided by a power of two, so that their root mean square is about 1."""
        if not cells.size:
            raise ValueError(
                "X has no observed entry: nothing can be learnt from it; check how missing "
                "values are marked (NaN), or which entries a sparse X stores"
            )
        size = magnitude(cells)
        return cells.with_values(scaled_by(cells.y, size)), size

    def _warn_of(self, cells: Cells, rank: Any) -> None:
        """Say what the data cannot determine."""
        found = []
        ranks = rank if isinstance(rank, tuple) else (rank,) * len(cells.shape)
        for mode, r in enumerate(ranks):
            counts = cells.counts(mode)
            name = f"slices of mode {mode}" if len(cells.shape) > 2 else ("rows", "columns")[mode]
            none, few = int((counts == 0).sum()), int(((counts > 0) & (counts < r)).sum())
            if none:
                found.append(f"{none} {name} have no observation and are filled with offsets only")
            if few:
                found.append(
                    f"{few} {name} have fewer observations than the rank {r}; they are held by "
                    "the ridge"
                )
        parts = components(cells)
        if parts > 1:
            found.append(
                f"the observations fall into {parts} parts that share neither row nor column; "
                "how the parts relate to each other cannot be known"
            )
        if len(cells.shape) == 2 and cells.size < degrees(int(ranks[0]), cells.shape):
            found.append(
                f"there are {cells.size} observations but rank {ranks[0]} has "
                f"{degrees(int(ranks[0]), cells.shape)} degrees of freedom; lower the rank or "
                "observe more"
            )
        if not getattr(self, "rank_", 1):
            found.append("the data support no low-rank part at all: the estimate is offsets only")
        self.diagnostics_ = found
        if found:
            warnings.warn("; ".join(found), DataWarning, stacklevel=5)

    def _finish(self, budget: Budget) -> None:
        self.converged_ = budget.converged
        self.status_ = budget.status
        self.history_ = budget.history
        self.n_iter_ = max(1, len(budget.history) - 1)
        self._say(budget.status)
        if not budget.converged:
            warnings.warn(
                f"not converged: {budget.status}; raise max_iter (now {self.max_iter}) or "
                f"max_time, or loosen tol (now {self.tol:g})",
                ConvergenceWarning,
                stacklevel=5,
            )

    def _same_library(self, cells: Cells) -> None:
        if not same_library(cells, self._cells):
            here, there = (type(c.y).__module__.split(".")[0] for c in (cells, self._cells))
            raise TypeError(
                f"X is of {here} but the model was fitted to {there}; convert X to {there}"
            )

    # ---- what a fitted model can be asked

    def _offsets(self, index: tuple[Array, ...]) -> Array | float:
        """The part of the model that is not low-rank, at coordinates."""
        return 0.0

    def _offset_array(self) -> Array | float:
        return 0.0

    def predict_entries(self, index: tuple[Array, ...]) -> Array:
        """The estimate at coordinates, without forming the whole.

        Parameters
        ----------
        index : tuple of integer arrays, one per mode, each of shape (m,)

        Returns
        -------
        values : array of shape (m,)
        """
        check_is_fitted(self)
        if self._kind[0] != "torch" and isinstance(index, (tuple, list)):
            index = tuple(np.asarray(i, dtype=None if len(i) else np.int64) for i in index)
        index = checks.index(index, self.factors_.shape)
        values = self.factors_.gather(index) + self._offsets(index)
        return given_back(self._clipped(values), self._kind)

    def reconstruct(self) -> Array:
        """The whole estimate, dense: offsets + ``factors_.full()``."""
        check_is_fitted(self)
        if not self._came_dense:
            check_dense_size(self.factors_.shape, "the estimate")
        return given_back(self._clipped(self.factors_.full() + self._offset_array()), self._kind)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "factors_")
