"""Fits as the commands need them: the estimators decide, held-out cells give a score."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..kernels import numbered
from .failures import Failure, reworded
from .fitted import Accuracy, Cleaned, Fitted, framed

if TYPE_CHECKING:
    from ..estimators.local_observations import LocalObservations

Array = Any

LARGE = 1_000_000
"""Number of cells above which there is only one fit, without the held-out cells."""
HELD_OUT = 100_000
"""Largest number of cells that are held out."""
FEWEST = 50
"""Number of cells below which none are held out."""


@dataclass(frozen=True)
class Settings:
    """Options of a fit that a user may set."""

    rank: Any = "auto"
    center: str = "auto"
    scale: str = "auto"
    smooth: str = "auto"
    clip: tuple[float | None, float | None] | None = None
    seed: int = 0
    hold_out: float = 0.1
    tol: float = 1e-9
    max_time: float | None = None
    device: str = "cpu"
    verbose: int = 0

    def half_the_time(self) -> Settings:
        """Return settings for one of two fits."""
        return self if self.max_time is None else replace(self, max_time=self.max_time / 2)


def observed(values: Array, seconds: Array | None = None) -> LocalObservations:
    """Return the cells of an array that are not NaN.

    Parameters
    ----------
    values : array
    seconds : float array of shape (rows,), optional
        Times of the rows.
    """
    from ..estimators.local_observations import LocalObservations
    from ..estimators.stamps import of_seconds

    seen = ~np.isnan(values)
    index = np.unravel_index(np.flatnonzero(seen), values.shape)
    small = tuple(i.astype(np.int32) for i in index)
    stamps = () if seconds is None else (of_seconds(seconds), None)
    return LocalObservations(small, values[seen], values.shape, None, stamps)


def complete(observed: LocalObservations, settings: Settings) -> Fitted:
    """Return a model of a table or tensor with holes, and its score on cells it did not see.

    Few cells are fitted twice: all of them, and all but the held-out ones. Many are fitted
    once, without the held-out ones.
    """
    from ..estimators.units import column_units

    began = time.perf_counter()
    if len(observed.shape) == 2 and isinstance(settings.rank, tuple):
        raise Failure("--rank must be auto or one number for a table, not several")
    hidden = _hidden(observed, settings)
    once = observed.size > LARGE and hidden is not None
    part, test = (observed, None) if hidden is None else _parted(observed, hidden)
    known = part if once else observed
    del observed
    if hidden is not None and not once:
        settings = settings.half_the_time()
    model, said = _fitted(known, settings)
    said = (*_too_large_a_rank(settings, known.shape), *said)
    found = Fitted(model, None, 0.0, said, settings.clip, not once)
    accuracy = None
    if test is not None:
        judged = model if once else _fitted(part, _as_found(model, settings))[0]
        estimate = judged.predict_entries(test.coordinates)
        if settings.clip is not None:
            estimate = np.clip(estimate, *settings.clip)
        columns = _columns(test)
        plain = _column_means(part)[columns]
        units = {}
        if found.standardised:
            known_units, j = column_units(part), test.coordinates[1]
            units = {"offset": known_units.offset[j], "scale": known_units.scale[j]}
        accuracy = Accuracy(test.y, estimate, plain, columns, **units)
    return replace(found, accuracy=accuracy, seconds=time.perf_counter() - began)


def _parted(
    observed: LocalObservations, hidden: Array
) -> tuple[LocalObservations, LocalObservations]:
    """Return the cells to fit and the cells that are held out."""
    from ..estimators.local_observations import LocalObservations

    kept = ~hidden
    # 64-bit indices, which the estimators use without a copy
    index = tuple(i[kept].astype(np.int64) for i in observed.coordinates)
    known = LocalObservations(index, observed.y[kept], observed.shape, None, observed.stamps)
    return known, observed.some(np.flatnonzero(hidden))


def clean(data: LocalObservations | Array, settings: Settings) -> Cleaned:
    """Return a model of the low-rank part of a table or tensor with gross errors."""
    from ..estimators import RobustPCA, TensorRobustPCA
    from ..estimators.diagnostics import too_many_rejected

    began = time.perf_counter()
    matrix = len(data.shape) == 2
    for name, side in (("--center", settings.center), ("--scale", settings.scale)):
        if side not in ("auto", "none", "columns"):
            raise Failure(f"{name} must be auto, none or columns for clean, not {side}")
    model: Any = TensorRobustPCA(settings.rank, **_common(settings))
    if matrix:
        sides: dict[str, Any] = {"center": settings.center, "scale": settings.scale}
        sides["smooth"] = settings.smooth
        model = RobustPCA(settings.rank, **sides, **_common(settings))
    said = (
        *_too_large_a_rank(settings, data.shape),
        *_quietly(lambda: _fit(model, data, settings.device)),
    )
    failed = too_many_rejected(model)
    if failed:
        failed = f"clean failed: {failed}; OUT was written without any outliers"
        known = observed(data) if isinstance(data, np.ndarray) else data
        model, also = _fitted(known, settings)
        said = (*dict.fromkeys((failed, *also)),)
    return Cleaned(model, None, time.perf_counter() - began, said, settings.clip, failed=failed)


def _too_large_a_rank(settings: Settings, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Warn if a rank is larger than the table allows."""
    most = min(shape)
    if len(shape) > 2 or not isinstance(settings.rank, int) or settings.rank <= most:
        return ()
    size = f"{shape[0]:,} x {shape[1]:,}"
    return (f"--rank {settings.rank} is more than a table of {size} can have; {most} is used",)


def _common(settings: Settings) -> dict[str, Any]:
    return {
        "random_state": settings.seed,
        "tol": settings.tol,
        "max_time": settings.max_time,
        "verbose": settings.verbose,
    }


def _fitted(known: LocalObservations, settings: Settings) -> tuple[Any, tuple[str, ...]]:
    from ..estimators import MatrixCompletion, TensorCompletion

    sides: dict[str, Any] = {"center": settings.center, "scale": settings.scale}
    model: Any = TensorCompletion(settings.rank, **sides, **_common(settings))
    if len(known.shape) == 2:
        sides["smooth"] = settings.smooth
        model = MatrixCompletion(settings.rank, **sides, **_common(settings))
    return model, _quietly(lambda: _fit(model, known, settings.device))


def _for_gpu() -> tuple[Any, Any]:
    """Return functions that move an array to the GPU, and that prepare one to be sent there."""
    try:
        import torch
    except ImportError:
        raise Failure("--device cuda needs PyTorch; pip install torch") from None
    if not torch.cuda.is_available():
        raise Failure("--device cuda: PyTorch finds no GPU; leave --device out")
    return lambda x: torch.as_tensor(x, device="cuda"), lambda x: torch.as_tensor(x).pin_memory()


def _fit(model: Any, data: LocalObservations | Array, device: str = "cpu") -> None:
    try:
        if device == "cuda":
            from ..estimators.saving import brought_to_host

            moved, pinned = _for_gpu()
            if isinstance(data, np.ndarray):
                model.fit(moved(data))
            elif data.stamps:
                raise Failure(
                    "--device cuda fits tables without times; leave --device out, or set "
                    "--date none"
                )
            else:
                # tables that do not fit on the GPU are streamed
                ready = pinned if len(data.shape) == 2 else moved
                model.fit_entries(tuple(map(ready, data.coordinates)), ready(data.y), data.shape)
            brought_to_host(model)
        elif not isinstance(data, np.ndarray) and data.stamps:
            values = np.full(data.shape, np.nan)
            values[data.coordinates] = data.y
            model.fit(framed(values, data.stamps[0].astype("datetime64[ns]")))
        elif not isinstance(data, np.ndarray):
            model.fit_entries(data.coordinates, data.y, data.shape)
        else:
            model.fit(data)
    except (ValueError, MemoryError) as error:
        raise Failure(reworded(" ".join(str(error).split()))) from error


def _quietly(work: Callable[[], None]) -> tuple[str, ...]:
    """Call a function, and return its result and the warnings that it raised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    said = dict.fromkeys(reworded(str(w.message)) for w in caught)
    # the command itself says what it does with empty rows
    return tuple(text for text in said if "rows have no observation" not in text)


def _as_found(model: Any, settings: Settings) -> Settings:
    """Return settings for the same fit without choosing offsets again; a rank that grew grows
    again.
    """
    from ..estimators.timed_model import TimedModel

    if isinstance(model.rank_, tuple):
        return replace(settings, rank=model.rank_, center=model.center_, scale=model.scale_)
    units = model._model.units
    if settings.smooth != "none" and isinstance(model._model, TimedModel):
        return settings
    if units is not None and units.scaled:
        return settings  # chosen units have no option
    return replace(settings, center=model.center_, scale=model.scale_)


# ---- what is held out


def _hidden(observed: LocalObservations, settings: Settings) -> Array | None:
    """Return which cells are held out: they resemble the missing ones. Every row and column keeps
    one.
    """
    from ..estimators.holes import held_out, in_time

    count = min(int(settings.hold_out * observed.size), HELD_OUT)
    if observed.size < FEWEST or not count:
        return None
    share = count / observed.size
    places = in_time(observed.coordinates, observed.stamps)
    (chosen,) = held_out(places, observed.shape, share, settings.seed, 1)
    for i, n in zip(observed.coordinates, observed.shape, strict=True):
        bare = np.bincount(i[~chosen], minlength=n) == 0
        one = np.full(n, -1)
        one[i] = np.arange(observed.size)
        chosen[one[bare & (one >= 0)]] = False
    return chosen if chosen.any() else None


def _column_means(known: LocalObservations) -> Array:
    n, columns = math.prod(known.shape[1:]), _columns(known)
    counts = np.bincount(columns, minlength=n)
    sums = np.bincount(columns, known.y, minlength=n)
    return np.where(counts > 0, sums / np.maximum(counts, 1), known.mean())


def _columns(data: LocalObservations) -> Array:
    """The column of every cell; for tensors, the fibre along mode 0."""
    return numbered(data.coordinates, data.shape, skip=0)
