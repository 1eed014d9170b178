"""Fits as the commands want them: nothing to tune, one fit where data are many, and a score."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..factors import LowRank
from .cells import Triplets, Units
from .failures import Failure

Array = Any

LARGE = 1_000_000
"""Cells from which on a fit is made once: choices on a part, and held-out cells left out of it."""
SURVEYED = 300_000
"""Cells on which offsets are chosen for a rank that was given."""
HELD_OUT = 100_000
"""Cells that are held out at most."""
NARROW = 60
"""Columns, or rows, below which held-out cells choose the rank among gross errors."""
FEWEST = 50
"""Cells of which some can be held out."""


@dataclass(frozen=True)
class Settings:
    """What a user may say about a fit."""

    rank: Any = "auto"
    center: str = "auto"
    scale: str = "auto"
    clip: tuple[float | None, float | None] | None = None
    seed: int = 0
    hold_out: float = 0.1
    verbose: int = 0


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Cells that a fit did not see, what it made of them, and what column means would have."""

    truth: Array
    estimate: Array
    plain: Array

    @property
    def rmse(self) -> float:
        return _rms(self.truth - self.estimate)

    @property
    def plain_rmse(self) -> float:
        return _rms(self.truth - self.plain)

    @property
    def r2(self) -> float:
        total = _rms(self.truth - self.truth.mean())
        return 1 - (self.rmse / total) ** 2 if total > 0 else float(self.rmse == 0)


def _rms(x: Array) -> float:
    return math.sqrt(float(np.mean(np.square(x))))


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model, how good it is, and what it warned of."""

    model: Any
    accuracy: Accuracy | None
    seconds: float
    warnings: tuple[str, ...]
    clip: tuple[float | None, float | None] | None = None
    units: Units | None = None
    """Of the model, where they are not those of the data."""
    apart: bool = True
    """Whether the held-out cells were those of another fit, and the model saw them all."""

    @cached_property
    def _sides(self) -> tuple[LowRank, Array, Array]:
        """The factors and offsets of a matrix, each with a typical row at the end."""
        m = self.model
        F = m.factors_
        sides = [(F.L, m.row_offset_), (F.R, m.column_offset_)]
        blocks = [np.concatenate([B, B.mean(axis=0)[None, :]]) for B, _ in sides]
        rows, columns = (np.append(b, b.mean()) for _, b in sides)
        return LowRank(*blocks), rows, columns

    def at(self, rows: Array, columns: Array) -> Array:
        """Estimates; −1 stands for a row or a column of which nothing is known: a typical one."""
        F, b, c = self._sides
        i, j = (
            np.where(k < 0, len(x) - 1, k).astype(np.int64) for k, x in ((rows, b), (columns, c))
        )
        return self._ended(F.gather((i, j)) + b[i] + c[j], columns)

    def rows(self, X: Array) -> Array:
        """Estimates of rows, or slices of a tensor, of which something is known."""
        units = self.units
        return self._ended(self.model.transform(X if units is None else units.applied(X)))

    @cached_property
    def typical(self) -> Array:
        """The row, or slice of a tensor, to give where nothing is known of one."""
        shape = self.model.factors_.shape
        if len(shape) > 2:
            return self._ended(self.model.reconstruct().mean(axis=0))
        return self.at(np.full(shape[1], -1), np.arange(shape[1]))

    def _ended(self, values: Array, columns: Any = slice(-1)) -> Array:
        """In the units of the data, and within the bounds that were asked for."""
        if self.units is not None:
            values = self.units.undone(values, columns)
        return values if self.clip is None else np.clip(values, *self.clip)


@dataclass(frozen=True, eq=False)
class Cleaned(Fitted):
    """A model of what is low-rank, and how far off a cell may be."""

    def limit(self, columns: Array) -> Array | float:
        """How far off a cell of some columns may be without being an error."""
        threshold = float(self.model.threshold_)
        return threshold if self.units is None else threshold * self.units.scale[columns]


def complete(observed: Triplets, settings: Settings) -> Fitted:
    """A model of a table or tensor with holes, and its score on cells that it did not see.

    Few cells are fitted twice: all of them, and all but the held-out ones with the offsets
    and scales of the first fit. Many are fitted once, without the held-out ones.
    """
    began = time.perf_counter()
    units = None
    if len(observed.shape) == 2 and settings.scale == "auto":
        units = Units.usual(observed)
        observed = observed if units is None else units.applied(observed)
    hidden = _hidden(observed, settings)
    once = observed.size > LARGE and hidden is not None
    part, test = (observed, None) if hidden is None else _parted(observed, hidden)
    known = part if once else observed
    del observed
    chosen = _chosen(known, settings)
    model, said = _fitted(known, chosen)
    if model.rank_ == 0 and model.center_ == "none" and settings.center == "auto":
        # offsets are left, and there were none; zeros would be the worst of all guesses
        center = "both" if known.size >= FEWEST else "columns"
        model, said = _fitted(known, replace(chosen, center=center, scale="none"))
    accuracy = None
    if test is not None:
        judged = model if once else _fitted(part, _as_found(model, chosen))[0]
        estimate = judged.predict_entries(test.index)
        if settings.clip is not None:
            estimate = _bounded(estimate, test, settings.clip, units)
        accuracy = Accuracy(test.values, estimate, _column_means(part)[test.columns])
    seconds = time.perf_counter() - began
    return Fitted(model, accuracy, seconds, said, settings.clip, units, not once)


def _parted(observed: Triplets, hidden: Array) -> tuple[Triplets, Triplets]:
    """What is known, and what is held out."""
    kept = ~hidden
    # as the estimators have them, so that they make no copy
    index = tuple(i[kept].astype(np.int64) for i in observed.index)
    return Triplets(index, observed.values[kept], observed.shape), observed.some(hidden)


def clean(data: Triplets | Array, settings: Settings) -> Cleaned:
    """A model of what is low-rank in a table or tensor with gross errors."""
    from ..estimators import RobustPCA, TensorRobustPCA

    began = time.perf_counter()
    matrix = len(data.shape) == 2
    for name, side in (("--center", settings.center), ("--scale", settings.scale)):
        if side not in ("auto", "none", "columns"):
            raise Failure(f"{name} must be auto, none or columns for clean, not {side}")
    units = Units.robust(data, settings.center, settings.scale) if matrix else None
    kind = RobustPCA if matrix else TensorRobustPCA

    def fitted() -> tuple[Any, tuple[str, ...]]:
        plain = data if units is None else units.applied(data)
        rank = settings.rank
        if rank == "auto" and matrix and min(data.shape) < NARROW:
            rank = _robust_rank(plain, settings)
        model = kind(rank, **_common(settings))
        return model, _quietly(lambda: _fit(model, plain))

    model, said = fitted()
    if units is not None and units.scaled:
        # what is left says how noisy each column is, which is what one threshold asks for
        units = units.finer(data, model)
        model, said = fitted()
    return Cleaned(model, None, time.perf_counter() - began, said, settings.clip, units)


def _robust_rank(data: Triplets | Array, settings: Settings) -> int:
    """The rank of a narrow table, whose spectrum is too short to see where noise begins.

    Of those that predict held-out cells well, the smallest; by medians, because the cells that
    are held out may be wrong themselves.
    """
    from ..estimators import RobustPCA

    if not isinstance(data, Triplets):
        rng = np.random.default_rng(settings.seed)
        rows = rng.permutation(len(data))[: max(2, SURVEYED // data.shape[1])]
        data = Triplets.of(data[np.sort(rows)])
    part = _core(data, SURVEYED, settings.seed)
    hidden = _hidden(part, replace(settings, hold_out=0.1))
    if hidden is None:
        return 1
    known, test = _parted(part, hidden)
    errors = []
    for rank in range(1, max(1, min(10, min(part.shape) // 2)) + 1):
        model = RobustPCA(rank, random_state=settings.seed)
        _quietly(lambda model=model: _fit(model, known))  # type: ignore[misc]
        errors.append(float(np.median(np.abs(model.predict_entries(test.index) - test.values))))
    return next(k for k, error in enumerate(errors, 1) if error <= 1.1 * min(errors))


def _common(settings: Settings) -> dict[str, Any]:
    return {"random_state": settings.seed, "verbose": settings.verbose}


def _fitted(known: Triplets, settings: Settings) -> tuple[Any, tuple[str, ...]]:
    from ..estimators import MatrixCompletion, TensorCompletion

    kind = MatrixCompletion if len(known.shape) == 2 else TensorCompletion
    model = kind(settings.rank, center=settings.center, scale=settings.scale, **_common(settings))
    return model, _quietly(lambda: _fit(model, known))


def _fit(model: Any, data: Triplets | Array) -> None:
    try:
        if isinstance(data, Triplets):
            model.fit_entries(data.index, data.values, data.shape)
        else:
            model.fit(data)
    except (ValueError, MemoryError) as error:
        raise Failure(" ".join(str(error).split())) from error


def _quietly(work: Callable[[], None]) -> tuple[str, ...]:
    """What was warned of meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return tuple(dict.fromkeys(str(w.message) for w in caught))


def _as_found(model: Any, settings: Settings) -> Settings:
    """The same again, without choosing once more; what grew on its own grows again."""
    rank = model.rank_ if isinstance(model.rank_, tuple) else settings.rank
    return replace(settings, rank=rank, center=model.center_, scale=model.scale_)


# ---- what is held out


def _hidden(observed: Triplets, settings: Settings) -> Array | None:
    """Which cells are held out; every row and every column keeps one."""
    count = min(int(settings.hold_out * observed.size), HELD_OUT)
    if observed.size < FEWEST or not count:
        return None
    rng = np.random.default_rng(settings.seed)
    chosen = np.zeros(observed.size, dtype=bool)
    chosen[rng.choice(observed.size, count, replace=False, shuffle=False)] = True
    for i, n in zip(observed.index, observed.shape, strict=True):
        keep = np.full(n, -1)
        keep[i] = np.arange(observed.size)  # the last of each
        chosen[keep[keep >= 0]] = False
    return chosen if chosen.any() else None


def _column_means(known: Triplets) -> Array:
    n = math.prod(known.shape[1:])
    counts = np.bincount(known.columns, minlength=n)
    sums = np.bincount(known.columns, known.values, minlength=n)
    return np.where(counts > 0, sums / np.maximum(counts, 1), known.values.mean())


def _bounded(values: Array, test: Triplets, clip: Any, units: Units | None) -> Array:
    """Estimates within bounds, which are in the units of the data."""
    if units is None:
        return np.clip(values, *clip)
    inside = np.clip(units.undone(values, test.columns), *clip)
    return units.applied(replace(test, values=inside)).values


# ---- what is chosen on a part


def _chosen(known: Triplets, settings: Settings) -> Settings:
    """Settings for one fit of all cells; what was left open is chosen on a part of them."""
    if len(known.shape) > 2:
        return settings
    if isinstance(settings.rank, tuple):
        raise Failure("--rank must be auto or one number for a table, not several")
    open_ = "auto" in (settings.center, settings.scale)
    if settings.rank == "auto" and known.size > LARGE:
        part = _core(known, LARGE, settings.seed)
        found = _fitted(part, settings)[0]
        settings = replace(settings, center=found.center_, scale=found.scale_)
        return replace(settings, rank=max(1, found.rank_))
    if settings.rank != "auto" and open_ and known.size >= FEWEST:
        return _offsets(_core(known, SURVEYED, settings.seed), settings)
    return settings


def _core(known: Triplets, most: int, seed: int) -> Triplets:
    """About so many cells, of the rows and columns that have most of them.

    What can be told from noise depends on the number of cells beside the longer side: so the
    part is as square, and as dense, as there is one.
    """
    if known.size <= most:
        return known
    rng = np.random.default_rng(seed)
    places = []
    for i, n in zip(known.index, known.shape, strict=True):
        counts = np.bincount(i, minlength=n) + rng.random(n)
        place = np.empty(n, dtype=np.int32)
        place[np.argsort(-counts)] = np.arange(n, dtype=np.int32)
        places.append(place[i])
    reach = np.maximum(*places)
    chosen = reach < max(2, int(np.partition(reach, most)[most]))
    index = tuple(place[chosen].astype(np.int64) for place in places)
    return Triplets(index, known.values[chosen], tuple(int(i.max()) + 1 for i in index))


def _offsets(part: Triplets, settings: Settings) -> Settings:
    """Offsets and scales for a rank that was given: those that predict held-out cells best.

    A later choice is taken only where its errors are smaller by 3 %.
    """
    from ..estimators.choosing import CHOICES

    sides = [(choice.center, choice.scale) for choice in CHOICES]
    given = settings.center, settings.scale
    sides = [s for s in sides if all(g in ("auto", x) for g, x in zip(given, s, strict=True))]
    plain = tuple("none" if g == "auto" else g for g in given)
    hidden = _hidden(part, replace(settings, hold_out=0.1))
    best = replace(settings, center=plain[0], scale=plain[1])
    if hidden is None or not sides:
        return best
    (known, test), least = _parted(part, hidden), math.inf
    for center, scale in sides:
        option = replace(settings, center=center, scale=scale)
        model, _ = _fitted(known, option)
        error = float(np.mean((model.predict_entries(test.index) - test.values) ** 2))
        if error < 0.97 * least:
            best, least = option, error
    return best
