"""Fits as the commands need them: the estimators decide, held-out cells give a score."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..factors import LowRank
from ..kernels import numbered
from .failures import Failure, reworded

if TYPE_CHECKING:
    from ..estimators.local_observations import LocalObservations
    from ..estimators.plausible import Plausible

Array = Any

LARGE = 1_000_000
"""Number of cells above which there is only one fit, without the held-out cells."""
HELD_OUT = 100_000
"""Largest number of cells that are held out."""
FEWEST = 50
"""Number of cells below which none are held out."""
ONE_DEVIATION = 0.6826894921370859
"""Probability that a normal variable is within one standard deviation of its mean."""


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


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Cells that a fit did not see, its estimates of them, and the column means.

    Attributes
    ----------
    truth, estimate, plain : float arrays of shape (cells,)
        In the units of the data.
    columns : integer array of shape (cells,)
        The column of each cell; for tensors, the fibre along mode 0.
    offset, scale : float arrays of shape (cells,), or numbers
        Of the columns of the cells, if errors of all columns count equally.
    """

    truth: Array
    estimate: Array
    plain: Array
    columns: Array
    offset: Any = 0.0
    scale: Any = 1.0

    def common(self, values: Array) -> Array:
        """Return values in units in which errors of all columns count equally."""
        return (values - self.offset) / self.scale

    @property
    def rmse(self) -> float:
        return _rms((self.truth - self.estimate) / self.scale)

    @property
    def plain_rmse(self) -> float:
        return _rms((self.truth - self.plain) / self.scale)

    @property
    def r2(self) -> float:
        truth = self.common(self.truth)
        total = _rms(truth - truth.mean())
        return 1 - (self.rmse / total) ** 2 if total > 0 else float(self.rmse == 0)

    def of_column(self, j: int) -> tuple[int, float, float]:
        """Return the number of cells of a column, and the errors of the fit and of the mean."""
        there = self.columns == j
        if not there.any():
            return 0, math.nan, math.nan
        off = (self.truth - x for x in (self.estimate, self.plain))
        ours, plain = (_rms(x[there]) for x in off)
        return int(there.sum()), ours, plain


def _rms(x: Array) -> float:
    return math.sqrt(float(np.mean(np.square(x))))


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model, its accuracy, and its warnings.

    Attributes
    ----------
    model : estimator
    accuracy : Accuracy, optional
    seconds : float
    warnings : tuple of str
    clip : pair of numbers or None, optional
    apart : bool
        Whether the accuracy is that of another fit, and the model saw all cells.
    unlike : bool, optional
        Whether columns have very different deviations; by default this is read off the model's
        data.
    """

    model: Any
    accuracy: Accuracy | None
    seconds: float
    warnings: tuple[str, ...]
    clip: tuple[float | None, float | None] | None = None
    apart: bool = True
    unlike: bool | None = None

    @property
    def units(self) -> Any:
        """The units of columns that the model was fitted in, or None."""
        return getattr(self.model._model, "units", None)

    @cached_property
    def standardised(self) -> bool:
        """Whether errors are given in standard deviations of the columns.

        If columns are alike, errors in the units of the data say more, whatever the units of the
        fit.
        """
        from ..estimators.units import unlike_columns

        if self.units is None or not self.units.scaled:
            return False
        known = self.unlike
        return unlike_columns(self.model._model.observations) if known is None else known

    @property
    def noise(self) -> float:
        """The standard deviation of the noise, in the units of the report."""
        if not self.standardised:
            return math.sqrt(max(0.0, self.model.noise_variance_))
        return math.sqrt(self.model._model.noise) * float(self.model._model.size)

    @cached_property
    def _sides(self) -> tuple[LowRank, Array, Array]:
        """The factors and offsets of a matrix, each with a typical row at the end."""
        m, units = self.model, self.units
        L, R, b, c = m.factors_.L, m.factors_.R, m.row_offset_, m.column_offset_
        typical = R.mean(axis=0), c.mean()
        if units is not None:
            # the typical column is in common units
            scale, offset = np.median(units.scale), np.median(units.offset)
            plain = (R / units.scale[:, None]).mean(axis=0)
            typical = plain * scale, ((c - units.offset) / units.scale).mean() * scale + offset
        seen = m._model.observations.counts(0) > 0  # rows without a value are not typical
        blocks = [np.concatenate([L, L[seen].mean(axis=0)[None, :]])]
        blocks.append(np.concatenate([R, typical[0][None, :]]))
        return LowRank(*blocks), np.append(b, b[seen].mean()), np.append(c, typical[1])

    @cached_property
    def smooth(self) -> str:
        """The side along which the model relates neighbours: "rows", "columns" or "none"."""
        from ..estimators.timed_model import TimedModel

        known = self.model._model
        return ("rows", "columns")[known.mode] if isinstance(known, TimedModel) else "none"

    @cached_property
    def whole(self) -> Array:
        """The estimates of all rows of the fit."""
        return self._clipped(self.model.reconstruct())

    def at(self, rows: Array, columns: Array) -> Array:
        """Return estimates; −1 stands for an unknown row or column, and gives a typical one."""
        if not isinstance(self.model.factors_.blocks[-1], type(self.model.factors_.blocks[0])):
            return self._clipped(self.model.predict_entries((rows, columns)))  # L is elsewhere
        F, b, c = self._sides
        i, j = (
            np.where(k < 0, len(x) - 1, k).astype(np.int64) for k, x in ((rows, b), (columns, c))
        )
        return self._clipped(F.gather((i, j)) + b[i] + c[j])

    def rows(self, X: Array, times: Array | None = None) -> Array:
        """Return estimates of rows, or slices of a tensor.

        Parameters
        ----------
        X : array
            Every row has a value, unless neighbouring rows are alike.
        times : datetime64 array of shape (rows,), optional
            If the model knows times.
        """
        return self._clipped(np.asarray(self.model.transform(_framed(X, times))))

    @cached_property
    def typical(self) -> Array:
        """The row, or slice of a tensor, to return for an empty one."""
        shape = self.model.factors_.shape
        if len(shape) > 2 or self.smooth != "none":
            return self._clipped(self.model.reconstruct().mean(axis=0))
        return self.at(np.full(shape[1], -1), np.arange(shape[1]))

    def bounds(self, index: tuple[Array, ...], level: float) -> tuple[Array, Array]:
        """Return intervals that contain new readings of cells of the fit with a probability.

        Parameters
        ----------
        index : tuple of integer arrays
            One per mode; the bounds of cells with −1 among them are NaN.
        level : float
        """
        known = np.all([i >= 0 for i in index], axis=0)
        sides = np.full((2, len(known)), np.nan)
        if known.any():
            cells = tuple(i[known] for i in index)
            sides[:, known] = self.model.interval(cells, level, kind="prediction")
        return self._clipped(sides[0]), self._clipped(sides[1])

    def sides(
        self,
        index: tuple[Array, ...],
        level: float | None,
        std: bool,
        plausible: Plausible | None = None,
        columns: Any = 0,
    ) -> dict[str, Array]:
        """Return what is written beside estimates: lower and upper bounds, standard deviations.

        Parameters
        ----------
        index : tuple of integer arrays
            As in `bounds`.
        level : float, optional
            Without one there are no bounds.
        std : bool
        plausible : Plausible, optional
            What bounds must not exceed.
        columns : integer array, or one number
            The columns that `plausible` knows the cells by.
        """
        found: dict[str, Array] = {}
        if level is not None:
            low, high = self.bounds(index, level)
            if plausible is not None:
                low, high = (plausible.values(x, columns, rounded=False) for x in (low, high))
            found |= {"lower": low, "upper": high}
        if std:
            low, high = self.bounds(index, ONE_DEVIATION)
            found["std"] = (high - low) / 2
        return found

    def _clipped(self, values: Array) -> Array:
        return values if self.clip is None else np.clip(values, *self.clip)


@dataclass(frozen=True, eq=False)
class Cleaned(Fitted):
    """A model of the low-rank part, and how far off a cell may be.

    Attributes
    ----------
    failed : str
        Why errors cannot be told from the rest, or "". The model then has no outliers.
    """

    failed: str = ""

    def rows(self, X: Array, times: Array | None = None) -> Array:
        if not self.failed:
            return super().rows(X, times)
        data, _ = self.model._read_rows(_framed(X, times), None)
        return self._clipped(self.model._estimated(data))

    def limit(self, columns: Array) -> Array | float:
        """Return how far off cells of some columns may be without being errors."""
        if self.failed:
            return math.inf
        known, threshold = self.model._model, float(self.model.threshold_)
        if self.smooth == "rows":  # every series has its own noise
            return float(known.threshold * known.size) * np.asarray(known.unit(None))[:, columns]
        if self.units is None:
            return threshold
        scale = self.units.scale  # the threshold is that of a typical column
        return threshold * scale[columns] / np.median(scale)


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
            model.fit(_framed(values, data.stamps[0].astype("datetime64[ns]")))
        elif not isinstance(data, np.ndarray):
            model.fit_entries(data.coordinates, data.y, data.shape)
        else:
            model.fit(data)
    except (ValueError, MemoryError) as error:
        raise Failure(reworded(" ".join(str(error).split()))) from error


def _framed(values: Array, times: Array | None) -> Any:
    """A table whose index is times; the array itself if there are none."""
    if times is None:
        return values
    import pandas as pd

    return pd.DataFrame(values, index=pd.DatetimeIndex(times))


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
    from ..estimators.holes import held_out

    count = min(int(settings.hold_out * observed.size), HELD_OUT)
    if observed.size < FEWEST or not count:
        return None
    share = count / observed.size
    (chosen,) = held_out(observed.coordinates, observed.shape, share, settings.seed, 1)
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
