"""What the estimators share: parameters, what they warn of, what they can be asked."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import numbers
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
from array_api_compat import array_namespace, device
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .. import checks
from ..kernels.threads import limited
from ..solve import Record, State
from .budget import Budget, Desk, Journal, log
from .cells import Cells, components, magnitude, same_library
from .matrix import degrees
from .packing import fingerprint, host
from .progress import display, report
from .tables import check_memory, given_back, table_back

Array = Any
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

try:
    from sklearn.callback import CallbackSupportMixin as CallbackSupport
    from sklearn.callback import with_callbacks
except ImportError:  # scikit-learn below 1.9 has none

    class CallbackSupport:  # type: ignore[no-redef]
        """No callbacks."""

    with_callbacks = None


def supervised(method: Decorated) -> Decorated:
    """Let scikit-learn's callbacks, where it has them, end when a fit does."""
    return method if with_callbacks is None else with_callbacks(method)


SHAPES = {"shapes_model": True}
"""Marks a parameter that the model depends on: a warm start needs the same value."""
FREE = {"resumable": True}
"""Marks a parameter that may differ when a fit resumes from its checkpoint."""

SIDES = ("auto", "none", "rows", "columns", "both")


def warn(message: str, category: type[Warning]) -> None:
    """Warn of what happened, at the line of whoever called the library."""
    level, frame = 1, sys._getframe(1)
    inside = ("scaledgd.", "sklearn.", "contextlib", "functools")
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(inside):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(message, category, stacklevel=level)


def all_or_nothing(method: Decorated) -> Decorated:
    """Let a method that fits leave the estimator as it was, or as it is after the fit.

    It works on a copy, which takes the place of the estimator when it is done; or when Ctrl-C
    ended it with an iterate that is worth having.
    """

    @functools.wraps(method)
    def whole(self: Any, *args: Any, **kwargs: Any) -> Any:
        work = object.__new__(type(self))
        work.__dict__ = dict(self.__dict__)
        try:
            method(work, *args, **kwargs)
        except KeyboardInterrupt as error:
            if getattr(error, "salvaged", False):
                self.__dict__ = work.__dict__
            raise
        self.__dict__ = work.__dict__
        return self

    return whole  # type: ignore[return-value]


def _described(value: Any) -> str:
    """A parameter in words that are the same whenever it is."""
    return type(value).__name__ if isinstance(value, np.random.RandomState) else repr(value)


class DataWarning(UserWarning):
    """The data cannot say all that is asked of them."""


@dataclass(eq=False, repr=False)
class LowRankEstimator(CallbackSupport, BaseEstimator):
    """Parameters that mean the same for every estimator, and how a fit is carried out.

    A kind of estimator says how it divides its data (`_split`, `_joined`), how a fit is
    found (`_search`), what is to be made of an iterate where that was broken off
    (`_salvaged`), and what is learnt from what was found (`_end`).
    """

    rank: Any = field(default="auto", metadata=SHAPES)
    _: KW_ONLY
    center: str = field(default="auto", metadata=SHAPES)
    scale: str = field(default="auto", metadata=SHAPES)
    ridge: Any = field(default="auto", metadata=SHAPES)
    clip: Any = None
    calibrate: float | None = None
    tol: float = 1e-9
    max_iter: int = 500
    max_time: float | None = field(default=None, metadata=FREE)
    warm_start: bool = False
    random_state: Any = None
    n_jobs: int | None = field(default=None, metadata=FREE)
    verbose: int = field(default=0, metadata=FREE)
    checkpoint: Any = field(default=None, metadata=FREE)
    interrupt: str = field(default="raise", metadata=FREE)

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
        if self.calibrate is not None:
            checks.number("calibrate", self.calibrate, least=0, most=0.5)
        path = self.checkpoint
        if path is not None and (not isinstance(path, (str, os.PathLike)) or not os.fspath(path)):
            raise TypeError(f"checkpoint must be a path, not {path!r}")
        jobs = self.n_jobs
        if jobs is not None and (not isinstance(jobs, numbers.Integral) or jobs == 0):
            raise ValueError(f"n_jobs must be None or an integer that is not 0, not {jobs!r}")
        checks.number("verbose", float(self.verbose), least=0)
        if self.interrupt not in ("raise", "return"):
            raise ValueError(f'interrupt must be "raise" or "return", not {self.interrupt!r}')
        outliers = self._outliers()
        known = outliers is None or isinstance(outliers, (str, numbers.Real))
        if not known or (isinstance(outliers, str) and outliers != "auto"):
            raise ValueError(f'outliers must be None, "auto" or a fraction, not {outliers!r}')
        if isinstance(outliers, numbers.Real) and not 0 <= float(outliers) < 0.5:
            raise ValueError(f"outliers must be a fraction below one half, not {outliers!r}")

    def _asked(self) -> dict[str, Any]:
        """Return the parameters that the model depends on, to compare before a warm start."""
        shaping = [f.name for f in fields(self) if f.metadata.get("shapes_model")]
        return {name: getattr(self, name) for name in shaping}

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

    # ---- carrying out a fit

    @supervised
    def _fit(
        self, fresh: Any, kind: Any, dense: bool, again: bool = False, X: Any = None, y: Any = None
    ) -> Self:
        """Fit data that were read; where asked, go on from an earlier fit."""
        again = again and self.__sklearn_is_fitted__()
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        desk = Desk(Journal(self.checkpoint, self._about(fresh, again, int(seed))))
        rng = np.random.default_rng(desk.journal.about.get("seed", int(seed)))
        budget = Budget(self.tol, self.max_iter, self.max_time, desk=desk)
        known, held = self._split(fresh, rng, again)
        if again:
            known = self._joined(self._cells, known, None)
            held = self._joined(self._held, held, known.shape)
        stopped: KeyboardInterrupt | None = None
        with (
            self._threads(self._calm(known)),
            np.errstate(over="ignore", under="ignore"),
            display(type(self).__name__, self.verbose) as shown,
        ):
            context = self._context(X, y)
            desk.watch = self._watch(shown, context, known, kind, dense, X, y)
            try:
                found = self._search(known, again, budget, rng)
            except KeyboardInterrupt as error:
                found, stopped = self._salvaged(known, budget), error
                desk.journal.close()
                # what went on from an earlier fit can only be gone on with from there, and a
                # first guess is not worth the model that was
                begun = len(budget.history) + len(desk.history) > 1
                kept = again or (self.warm_start and self.checkpoint is not None)
                kept = kept or (self.__sklearn_is_fitted__() and not begun)
                if found is None or (kept and self.interrupt == "raise"):
                    raise
                budget.add(desk.history, "interrupted")
                at = max(1, len(budget.history) - 1)
                budget.converged, budget.status = False, f"interrupted at iteration {at}"
            self._kind, self._came_dense = kind, dense
            self._end(found, known, held)
            if isinstance(known, Cells):
                known.forget()
        self._finish(budget, stopped is None)
        if context is not None:
            context.call_on_fit_task_end(estimator=self, X=X, y=y)
        if stopped is None:
            desk.journal.finish()
        elif self.interrupt == "raise":
            stopped.salvaged = True  # type: ignore[attr-defined]
            raise stopped
        return self

    def _about(self, fresh: Any, again: bool, seed: int) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        if self.checkpoint is None:
            return {}
        fixed = [f.name for f in fields(self) if not f.metadata.get("resumable")]
        asked = {name: _described(getattr(self, name)) for name in fixed}
        start = self.__sklearn_is_fitted__() and (again or self.warm_start)
        blocks = tuple(self.factors_.blocks) if start else ()
        from .. import __version__

        about = {"estimator": type(self).__name__, "data": fingerprint(*fresh.parts)}
        about |= {"version": __version__, "earlier fit": fingerprint(blocks)}
        return {**about, **asked, "seed": seed}

    def _context(self, X: Any, y: Any) -> Any:
        """Of scikit-learn's callbacks, or None where there are none."""
        if not getattr(self, "_skl_callbacks", None):
            return None
        context = self._init_callback_context(max_subtasks=None)
        context.call_on_fit_task_begin(estimator=self, X=X, y=y)
        return context

    def _watch(
        self, shown: Any, context: Any, known: Any, kind: Any, dense: bool, X: Any, y: Any
    ) -> Any:
        """What looks at every iterate: progress, and scikit-learn's callbacks."""

        def ended(budget: Budget) -> Any:
            other = copy.copy(self)
            other._kind, other._came_dense = kind, dense
            found = self._salvaged(known, budget)
            if found is None:
                return None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                other._end(found, known, None)
                other._finish(replace(budget, converged=False, status="not ended yet"), False)
            return dict(vars(other))

        def watch(stage: str, state: State, history: list[Record], budget: Budget) -> bool:
            report(shown, stage, state, history, budget)
            if context is None:
                return False
            now = context.subcontext(task_name=stage)
            about = {"X": X, "y": y, "reconstruction_attributes": partial(ended, budget)}
            now.call_on_fit_task_begin(estimator=self, X=X, y=y)
            return bool(now.call_on_fit_task_end(estimator=self, **about))

        return watch

    def _calm(self, fresh: Any) -> bool:
        """Whether a fit leaves but small products to the BLAS."""
        return False

    def _threads(self, calm: bool = False) -> contextlib.AbstractContextManager[None]:
        """Limit threads to what was asked for; and the BLAS to one where it has little to do."""
        jobs = None
        if self.n_jobs is not None:
            from joblib import effective_n_jobs

            jobs = min(effective_n_jobs(self.n_jobs), os.cpu_count() or 1)
        return limited(1 if calm else jobs, jobs)

    def _normal(self, cells: Cells) -> tuple[Cells, float]:
        """The cells divided by a power of two, so that their root mean square is about 1."""
        if not cells.size:
            raise ValueError(
                "X has no observed entry: nothing can be learnt from it; check how missing "
                "values are marked (NaN), or which entries a sparse X stores"
            )
        size = magnitude(cells)
        return cells.scaled(size), size

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
            warn("; ".join(found), DataWarning)

    def _finish(self, budget: Budget, loud: bool) -> None:
        self.converged_ = budget.converged
        self.status_ = budget.status
        self.history_ = budget.history
        self.n_iter_ = max(1, len(budget.history) - 1)
        log.info("%s: %s", type(self).__name__, budget.status)
        if not budget.converged and loud:
            warn(
                f"not converged: {budget.status}; raise max_iter (now {self.max_iter}) or "
                f"max_time, or loosen tol (now {self.tol:g})",
                ConvergenceWarning,
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

    def predict_entries(self, index: tuple[Array, ...], return_std: bool = False) -> Any:
        """The estimate at coordinates, without forming the whole.

        Parameters
        ----------
        index : tuple of integer arrays, one per mode, each of shape (m,)
        return_std : bool
            Also return standard errors: of the estimates, if the model is right (the data are
            low-rank and the noise is independent, with the variance `noise_variance_`). What
            the model does not see, they do not see either: `interval` with ``kind="conformal"``
            does. The bias of a ridge that was given is counted in.

        Returns
        -------
        values : array of shape (m,)
        std : array of shape (m,), where asked for
        """
        index = self._coordinates(index)
        values = given_back(self._clipped(self._at(index)), self._kind)
        if not return_std:
            return values
        with self._threads():
            return values, given_back(self._deviation(index), self._kind)

    def _coordinates(self, index: Any) -> tuple[Array, ...]:
        check_is_fitted(self)
        if isinstance(index, (tuple, list)):
            plain = [np.atleast_1d(host(i)) for i in index]
            plain = [i if len(i) else i.astype(np.int64) for i in plain]
            example = self.factors_.blocks[0]
            xp = array_namespace(example)
            index = tuple(xp.asarray(i, device=device(example)) for i in plain)
        return checks.index(index, self.factors_.shape)

    def _at(self, index: tuple[Array, ...]) -> Array:
        return self.factors_.gather(index) + self._offsets(index)

    def _scores(self) -> Array:
        if self._conformal is None:
            raise ValueError(
                'kind="conformal" needs entries that the fit did not see: fit with calibrate=0.1, '
                "which holds out a tenth of them"
            )
        return self._conformal

    def _deviation(self, index: tuple[Array, ...]) -> Array:
        """Standard errors at coordinates, in the units of the data."""
        raise NotImplementedError

    def reconstruct(self) -> Array:
        """The whole estimate, dense: offsets + ``factors_.full()``."""
        check_is_fitted(self)
        check_memory(self.factors_.shape, "the estimate", self._came_dense)
        return table_back(self._clipped(self.factors_.full() + self._offset_array()), self._kind)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a file, for `scaledgd.load` on any machine.

        The file is a zip of arrays and JSON (`numpy.load` opens it too), without pickle, with a
        checksum over every byte. Whoever reads while it is written finds the old file or the
        new one. It holds the data of the fit too, as `partial_fit` and intervals need them.

        Parameters
        ----------
        path : str or path
        """
        from .saving import save

        check_is_fitted(self)
        save(self, path)

    def history_frame(self) -> Any:
        """The history of the fit as a pandas DataFrame, one row per iterate.

        Returns
        -------
        frame : pandas.DataFrame
            With columns "t", "value", "seconds" and "stage".
        """
        check_is_fitted(self)
        try:
            import pandas as pd
        except ImportError:
            raise ImportError(
                'history_frame needs pandas: pip install "scaledgd[cli]", or use history_'
            ) from None
        return pd.DataFrame(self.history_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "factors_")
