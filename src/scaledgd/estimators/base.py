"""What all estimators share: their parameters, and how a fit is carried out."""

from __future__ import annotations

import contextlib
import copy
import math
import numbers
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .. import checks
from ..kernels.threads import limited
from ..state import State
from ..stopping import Record
from .dask import any_dask
from .diagnostics import warn
from .journal import Journal, log
from .packing import fingerprint, host, plain
from .progress import display, report
from .reading import Kind, check_memory, taken_in
from .session import Outcome, Session
from .vouching import (
    ADVICE,
    DOUBT,
    UNCHECKED,
    UNFINISHED,
    UNPROVEN,
    UNSTEADY,
    against,
    unfinished,
)

Array = Any
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
E = TypeVar("E", bound="LowRankEstimator")

try:
    from sklearn.callback import CallbackSupportMixin as CallbackSupport
    from sklearn.callback import with_callbacks
except ImportError:  # scikit-learn below 1.9 has none

    class CallbackSupport:  # type: ignore[no-redef]
        """No callbacks."""

    with_callbacks = None


def supervised(method: Decorated) -> Decorated:
    """End scikit-learn's callbacks, if it has them, when a fit ends."""
    return method if with_callbacks is None else with_callbacks(method)


SHAPES = {"shapes_model": True}
"""Marks a parameter that the model depends on: a warm start needs the same value."""
FREE = {"resumable": True}
"""Marks a parameter that may differ when a fit resumes from its checkpoint."""

SIDES = ("auto", "none", "rows", "columns", "both")


@contextlib.contextmanager
def all_or_nothing(estimator: E) -> Iterator[E]:
    """Yield a copy of an estimator to fit, which replaces the estimator at the end.

    The estimator changes completely or not at all: when the fit is complete, or when Ctrl-C ended
    it at an iterate worth keeping.
    """
    work = object.__new__(type(estimator))
    work.__dict__ = dict(estimator.__dict__)
    try:
        yield work
    except KeyboardInterrupt as error:
        if getattr(error, "salvaged", False):
            estimator.__dict__ = work.__dict__
        elif estimator.interrupt == "return" and not estimator.__sklearn_is_fitted__():
            raise KeyboardInterrupt(
                "interrupted before the data were read: nothing is fitted"
            ) from None
        raise
    estimator.__dict__ = work.__dict__


def _described(value: Any) -> str:
    """A stable string form of a parameter, to compare checkpoints."""
    return type(value).__name__ if isinstance(value, np.random.RandomState) else repr(value)


@dataclass(eq=False, repr=False)
class LowRankEstimator(CallbackSupport, BaseEstimator):
    """Parameters that mean the same for every estimator, and how a fit is carried out.

    A subclass says how it splits its data (`_split`, `_joined`), how it fits (`_search`), what
    result an interrupted fit returns (`_salvaged`; `_blank` before the first iterate), and how the
    model is built (`_modelled`).
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
                    "with outliers, the ridge is learnt from the entries that are not rejected; "
                    'leave it at "auto"'
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
        return {name: plain(getattr(self, name)) for name in shaping}

    def _outliers(self) -> Any:
        """Return the outliers to expect: None, "auto" or a fraction."""
        return getattr(self, "outliers", None)

    def _rank(self) -> int | None:
        """Return the rank of a matrix, or None for "auto"."""
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
            return (
                -math.inf if low is None else float(low),
                math.inf if high is None else float(high),
            )
        except (TypeError, ValueError):
            raise ValueError(f"clip must be a pair (lo, hi), not {self.clip!r}") from None
        except OverflowError:
            raise ValueError(
                "clip holds an integer that is too large for double precision"
            ) from None

    def _clipped(self, values: Array) -> Array:
        if self.clip is not None:
            low, high = self._clip()
            values = array_namespace(values).clip(values, low, high)
        return values

    # ---- carrying out a fit

    @supervised
    def _fit(
        self, fresh: Any, kind: Kind, again: bool = False, X: Any = None, y: Any = None
    ) -> None:
        """Fit the data; if `again`, continue from the earlier fit with more data."""
        again = again and self.__sklearn_is_fitted__()
        drawn = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        journal = Journal(self.checkpoint, self._about(fresh, again, drawn))
        session = Session.begin(self.tol, self.max_iter, self.max_time, journal)
        seed = int(journal.about.get("seed", drawn))
        rng = np.random.default_rng(seed)
        known, held = self._split(fresh, seed, rng, again)
        if again:
            known, held = self._joined(known, held)
        stopped: KeyboardInterrupt | None = None
        with (
            self._threads(self._blas_threads(known)),
            np.errstate(over="ignore", under="ignore"),
            display(type(self).__name__, self.verbose) as shown,
            self._callbacks(X, y) as context,
        ):
            session.shared.watch = self._watch(shown, context, known, kind, X, y)
            try:
                found = self._search(session, known, again, seed, rng)
                session.ended()
            except KeyboardInterrupt as error:
                journal.close()
                found, stopped = self._salvaged(session, known), error
                if self.interrupt == "raise" and (
                    found is None or self._keeps_model(session, again)
                ):
                    raise
                session.interrupted()
                if found is None:
                    found = self._blank(known)
                    session.outcome.status = "interrupted before the first iterate: offsets only"
            session.shared.rest()
            try:
                self._conclude(self._ended(found, known, session), held, kind)
            except KeyboardInterrupt as error:
                if self.interrupt == "raise" or stopped is not None:
                    raise
                stopped = error
                journal.close()
                session.interrupted()
                self._conclude(self._ended(found, known, session), held, kind)
            self._finish(session.outcome, stopped is None)
            session.shared.watch = None  # a cycle that would keep the data alive
        if stopped is None:
            journal.finish()
        elif self.interrupt == "raise":
            stopped.salvaged = True  # type: ignore[attr-defined]
            raise stopped

    def _ended(self, found: Any, data: Any, session: Session) -> Any:
        """Return the model of a fit, or that of offsets.

        These replace a fit that did not converge and is worse than means or offsets, and perhaps
        one that is worse than means.
        """
        model = self._modelled(found, data)
        doubt = against(model.trail)
        if doubt == DOUBT:
            return self._rather(model, data)
        if doubt:
            return model
        parts = session.shared.parts
        if not session.outcome.converged:
            doubt = self._objection(model, data)
            if doubt and doubt != UNPROVEN:
                return self._modelled(self._blank(data, UNFINISHED), data)
            if parts is None and session.out_of_time:
                doubt = doubt or UNCHECKED
        if not doubt and parts and self._unsteady(model, data, parts):
            doubt = UNSTEADY
        if not doubt:
            return model
        step = {"rank": model.attributes["rank_"], "why": doubt}
        return replace(model, trail=[*model.trail, step])

    def _rather(self, model: Any, data: Any) -> Any:
        """Return what replaces a model that is worse than means; the model itself, if nothing."""
        return model

    def _objection(self, model: Any, data: Any) -> str:
        """The objection of some of the entries to the model of a fit that was cut short, or ""."""
        return ""

    def _unsteady(self, model: Any, data: Any, parts: list[Any]) -> bool:
        """Whether the estimates of a model differ much from those of fits to most entries."""
        return False

    def _keeps_model(self, session: Session, again: bool) -> bool:
        """Whether an interrupted fit keeps the previous model.

        A warm-started fit can only resume from its own start, and a fit that has hardly begun
        must not replace an existing model.
        """
        begun = len(session.outcome.history) + len(session.shared.history) > 1
        resumable = again or (self.warm_start and self.checkpoint is not None)
        return resumable or (self.__sklearn_is_fitted__() and not begun)

    def _about(self, fresh: Any, again: bool, seed: int) -> dict[str, Any]:
        """Return what identifies the fit; a checkpoint must agree with it."""
        if self.checkpoint is None:
            return {}
        fixed = [f.name for f in fields(self) if not f.metadata.get("resumable")]
        asked = {name: _described(getattr(self, name)) for name in fixed}
        start = self.__sklearn_is_fitted__() and (again or self.warm_start)
        blocks = tuple(self.factors_.blocks) if start else ()
        from .. import __version__

        about = {"estimator": type(self).__name__, "data": fingerprint(*fresh.identity)}
        about |= {"version": __version__, "earlier fit": fingerprint(blocks)}
        return {**about, **asked, "seed": seed}

    @contextlib.contextmanager
    def _callbacks(self, X: Any, y: Any) -> Iterator[Any]:
        """Yield the context of scikit-learn's callbacks, or None if there are none."""
        if not getattr(self, "_skl_callbacks", None):
            yield None
            return
        context = self._init_callback_context(max_subtasks=None)
        context.call_on_fit_task_begin(estimator=self, X=X, y=y)
        yield context
        context.call_on_fit_task_end(estimator=self, X=X, y=y)

    def _watch(self, shown: Any, context: Any, known: Any, kind: Kind, X: Any, y: Any) -> Any:
        """Return the function to call at every iterate: progress, and scikit-learn's callbacks."""

        def ended(session: Session) -> Any:
            other = copy.copy(self)
            found = self._salvaged(session, known)
            if found is None:
                return None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                other._conclude(self._modelled(found, known), None, kind)
                unfinished = Outcome(session.outcome.history, False, "not ended yet")
                other._finish(unfinished, False)
            return dict(vars(other))

        def watch(session: Session, stage: str, state: State, history: list[Record]) -> bool:
            report(shown, stage, state, history, session)
            if context is None:
                return False
            now = context.subcontext(task_name=stage)
            about = {"X": X, "y": y, "reconstruction_attributes": partial(ended, session)}
            now.call_on_fit_task_begin(estimator=self, X=X, y=y)
            return bool(now.call_on_fit_task_end(estimator=self, **about))

        return watch

    def _blas_threads(self, known: Any) -> int | None:
        """Return 1 if the kernels do the work, and only small products are left to the BLAS."""
        return None

    def _threads(self, blas: int | None = None) -> contextlib.AbstractContextManager[None]:
        """Limit threads to `n_jobs`, and BLAS threads to fewer if that is faster."""
        jobs = None
        if self.n_jobs is not None:
            from joblib import effective_n_jobs

            jobs = min(effective_n_jobs(self.n_jobs), os.cpu_count() or 1)
        return limited(jobs if blas is None else blas, jobs)

    def _conclude(self, model: Any, held: Any, kind: Kind) -> None:
        """Set the model, and the entries held out for conformal intervals."""
        self._kind = kind
        self._publish(model)

    def _publish(self, model: Any) -> None:
        """Derive the fitted attributes from the model; also after loading."""
        for name in ("outliers_", "threshold_"):
            self.__dict__.pop(name, None)
        self._model = model
        for name, value in model.published.items():
            setattr(self, name, value)

    def _finish(self, outcome: Outcome, loud: bool) -> None:
        trail = self._model.trail
        if unfinished(trail):
            outcome = replace(outcome, status=f"{outcome.status}; {UNFINISHED}")
        doubt = against(trail) if loud else ""
        if doubt:
            # offsets that replace a fit have converged, whether or not the fit did
            plain = doubt not in ADVICE
            status = doubt if plain else f"{outcome.status}; {doubt}"
            outcome = replace(outcome, converged=plain or outcome.converged, status=status)
        self.converged_ = outcome.converged
        self.status_ = outcome.status
        self.history_ = outcome.history
        self.n_iter_ = max(1, len(outcome.history) - 1)
        log.info("%s: %s", type(self).__name__, outcome.status)
        if not outcome.converged and loud:
            advice = f"raise max_iter (now {self.max_iter})"
            if "max_iter=" not in outcome.status:
                advice = "raise max_time" if "time limit" in outcome.status else ""
            advice = f"; {advice}, or loosen tol (now {self.tol:g})" if advice else ""
            warn(f"not converged: {outcome.status}{advice}", ConvergenceWarning)

    # ---- questions to a fitted model

    def predict_entries(self, index: tuple[Array, ...], return_std: bool = False) -> Any:
        """Return the estimate at coordinates, without forming the whole array.

        Parameters
        ----------
        index : tuple of integer arrays, one per mode, each of shape (m,)
            Dask arrays give a lazy result with the same chunks. A model that was fitted to a frame
            with labels also accepts a frame with the labels of rows and columns.
        return_std : bool
            Also return standard errors of the estimates. They hold if the model is right: the
            data are low-rank, and the noise is independent with variance `noise_variance_`.
            `interval` with ``kind="conformal"`` does not depend on the model. The bias of a given
            ridge is included.

        Returns
        -------
        values : array of shape (m,)
        std : array of shape (m,), if requested
        """
        if any_dask(index):
            from ..distributed.lazy import predicted

            check_is_fitted(self)
            return predicted(self, index, return_std)
        index = self._coordinates(index)
        values = self._kind.given_back(self._clipped(self._model.at(index)))
        if not return_std:
            return values
        with self._threads():
            return values, self._kind.given_back(self._model.deviation(index))

    def _coordinates(self, index: Any) -> tuple[Array, ...]:
        check_is_fitted(self)
        if hasattr(index, "columns") and getattr(self, "_names", None) is not None:
            from ..distributed.lazy import numbers

            index = numbers(self, index)
        if isinstance(index, (tuple, list)):
            example = self.factors_.blocks[-1]  # the first may be on other machines
            xp, there = array_namespace(example), device(example)
            given = list(map(taken_in, index))
            if not all(is_torch_array(i) and is_torch_array(example) and i.ndim for i in given):
                given = [np.atleast_1d(host(i)) for i in given]
                given = [i if len(i) else i.astype(np.int64) for i in given]
            index = tuple(xp.asarray(i, device=there) for i in given)
        return checks.index(index, self.factors_.shape)

    def reconstruct(self) -> Array:
        """Return the whole estimate as a dense array: offsets plus ``factors_.full()``.

        Returns
        -------
        estimate : array, frame or labelled array of the shape of X
        """
        check_is_fitted(self)
        check_memory(self.factors_.shape, "the estimate", self._kind.dense)
        return self._kind.table_back(self._clipped(self._model.full()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a file that `scaledgd.load` reads on any machine.

        The file is a zip of arrays and JSON without pickle, which `numpy.load` opens too. It has
        a checksum over every byte, and is replaced atomically. It contains the data of the fit,
        which `partial_fit` and intervals need. A model with a distributed factor is written as a
        folder of such files, with the factor in parts.

        Parameters
        ----------
        path : str or path
        """
        from .saving import save

        check_is_fitted(self)
        save(self, path)

    def history_frame(self) -> Any:
        """Return the history of the fit as a pandas DataFrame, one row per iterate.

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
