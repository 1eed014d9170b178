"""Fit an instance, and judge the result."""

from __future__ import annotations

import json
import signal
import time
import traceback
import warnings
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

import scaledgd as sg
import scaledgd.estimators  # so that the time of the first fit does not include imports

from .instances import LABELLED, TABLES, Data, Recipe, determined, drawn, made

Array = Any

SECONDS = 20
"""CPU seconds that a fit may take."""
PATIENCE = 2
"""Multiple of that after which a fit is ended."""
WORSE = 1.1
"""Ratio to the error of column means above which an answer is bad."""
FEW = 20
"""Number of entries that is too small to judge."""
SPOKEN = (sg.DataWarning, ConvergenceWarning)
"""Warnings about an answer, as opposed to those of other libraries."""
ROUNDING = 1e-6
"""Error, as a share of the size of the data, below which nothing is bad."""


class TooSlowError(BaseException):
    """A fit took too long; no library code catches this."""


def judged(seed: int, number: int) -> dict[str, Any]:
    """Return the result of an instance as plain values, a line of the record."""
    return {"number": number, "seed": seed, **verdict(drawn(seed, number))}


def verdict(recipe: Recipe) -> dict[str, Any]:
    """Fit the data of a recipe, and return the failures and the measurements."""
    if recipe.lacking:
        return {"recipe": recipe.plain, "failures": ["skipped"], "message": recipe.lacking}
    data = made(recipe)
    found: dict[str, Any] = {"recipe": recipe.plain, "determined": determined(recipe, data)}
    failures: list[str] = []
    began = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found |= _limited(lambda: _answer(recipe, data))
        except TooSlowError:
            failures.append("slow")
        except Exception as error:
            found["message"] = f"{type(error).__name__}: {error}"[:300]
            found["at"] = _place(error)
            failures.append("refused" if clear(error) else "unclear exception")
    found["cpu"] = round(time.process_time() - began, 2)
    if found["cpu"] > SECONDS and "slow" not in failures:
        failures.append("slow")
    ours = [w for w in caught if issubclass(w.category, SPOKEN)]
    numeric = [w for w in caught if issubclass(w.category, RuntimeWarning)]
    if numeric:
        failures.append("RuntimeWarning")
        found["runtime_warning"] = f"{numeric[0].message} ({_short(numeric[0].filename)})"
    found["warned"] = bool(ours)
    found["doubted"] = any(map(_doubts, ours))
    found["said"] = [f"{w.category.__name__}: {w.message}"[:150] for w in ours]
    failures += opinion(found)
    return json.loads(json.dumps({**found, "failures": failures}))  # type: ignore[no-any-return]


def _doubts(warning: Any) -> bool:
    """Whether a warning says that an answer may be poor.

    That it has not converged does not: one worse than means of columns should not be given.
    """
    given = issubclass(warning.category, sg.DataWarning)
    return given or "offsets alone" in str(warning.message)


def opinion(found: dict[str, Any]) -> list[str]:
    """Return the failures of an answer, from its measurements."""
    if "error" not in found:
        return []
    failures = []
    if not found["finite"]:
        failures.append("not finite")
    elif not found.get("doubted", found["warned"]) and any(
        found[f"{how}error"] > WORSE * found[f"{how}means"] + ROUNDING
        for how in ("", "plain ")
        if f"{how}error" in found
    ):
        failures.append("bad, determined" if found["determined"] else "bad")
    if found.get("constant", 0.0) > 0:
        failures.append("constant")
    return failures


def clear(error: Exception) -> bool:
    """Whether an exception is a message of ours, or of a requested check."""
    if type(error) not in (ValueError, TypeError, MemoryError) and not type(
        error
    ).__module__.startswith("scaledgd"):
        return False
    where = traceback.extract_tb(error.__traceback__)[-1]
    ours = "/scaledgd/" in where.filename or "sklearn/utils" in where.filename
    # what NumPy raises in a line of ours is no sentence of ours
    raised = (where.line or "").lstrip().startswith("raise")
    return ours and raised and len(str(error).split()) >= 5


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if "/scaledgd/" in f.filename] or frames
    return f"{_short(inside[-1].filename)}:{inside[-1].lineno}"


def _short(filename: str) -> str:
    return "/".join(filename.split("/")[-2:])


def _limited(work: Any) -> Any:
    """Call a function, and raise if it takes too much CPU time, where the system can tell."""
    if not hasattr(signal, "setitimer"):
        return work()

    def ring(*_: Any) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE * SECONDS)
    try:
        return work()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# ---- answers


def _answer(recipe: Recipe, data: Data) -> dict[str, Any]:
    model = getattr(sg, recipe.estimator)(**recipe.options)
    if data.design is not None:
        return _regression(model, recipe, data)
    X, seen = data.given, data.seen
    weight = None
    if recipe.weights:
        weight = np.random.default_rng(recipe.seed + 2).uniform(0.1, 2, X.shape)
    if recipe.form == "entries" or (recipe.form == "sparse" and recipe.estimator not in TABLES):
        index = np.nonzero(seen)
        weight = weight if weight is None else weight[index]
        model.fit_entries(index, X[index], X.shape, entry_weight=weight)
    else:
        if weight is not None and recipe.form == "sparse":
            weight = weight[np.nonzero(seen)]
        model.fit(_formed(recipe, X), entry_weight=weight)
    estimate = _numbers(recipe, model.reconstruct())
    if recipe.form not in ("sparse", "entries"):
        filled = _numbers(recipe, model.transform(_formed(recipe, X)))
        if not recipe.robust:
            estimate = np.where(seen, estimate, filled)
    some = tuple(i[:20] for i in np.nonzero(np.ones(X.shape)))
    values, std = model.predict_entries(some, return_std=True)
    finite = _sound((estimate, values), (std, *model.interval(some)))
    return {**errors(recipe, data, estimate), "finite": finite, "rank": model.rank_}


def _sound(values: tuple[Array, ...], bounds: tuple[Array, ...]) -> bool:
    """Whether values are finite, and bounds are numbers; unknown values have infinite bounds."""
    finite = all(bool(np.all(np.isfinite(x))) for x in values)
    return finite and not any(bool(np.any(np.isnan(x))) for x in bounds)


def _formed(recipe: Recipe, X: Array) -> Any:
    if recipe.form == "masked":
        return np.ma.masked_invalid(X)
    if recipe.form == "sparse" and recipe.estimator in TABLES:
        seen = np.nonzero(np.isfinite(X))
        return sparse.csr_array((X[seen], seen), shape=X.shape)
    if recipe.form in LABELLED:
        return _labelled(recipe, X)
    if recipe.kind == "int64" and np.all(np.isfinite(X)):
        return X.astype(np.int64)
    return X


def _numbers(recipe: Recipe, table: Any) -> Array:
    """Return a table as an array, without the column of times of a polars frame."""
    if recipe.form == "polars":
        table = table.select([name for name in table.columns if name != "time"])
    return np.asarray(table, dtype=float)


def _labelled(recipe: Recipe, X: Array) -> Any:
    """Return a table with names, and times of its rows if there are any."""
    rng = np.random.default_rng(recipe.seed + 3)
    step = rng.uniform(0.2, 3, len(X)) if recipe.times == "irregular" else np.ones(len(X))
    hours = np.datetime64("2024-01-01", "ns") + (3.6e12 * np.cumsum(step)).astype("timedelta64[ns]")
    names = [f"c{j}" for j in range(X.shape[1])]
    if recipe.form == "frame":
        import pandas as pd

        return pd.DataFrame(X, index=hours if recipe.times else None, columns=names)
    if recipe.form == "polars":
        import polars as pl

        first = {"time": hours} if recipe.times else {}
        return pl.DataFrame({**first, **dict(zip(names, X.T, strict=True))})
    import xarray as xr

    coords = {"time": hours} if recipe.times else {}
    return xr.DataArray(X, dims=("time", "feature"), coords=coords)


def errors(recipe: Recipe, data: Data, estimate: Array) -> dict[str, Any]:
    """Return errors of an estimate and of simple ones, as shares of the size of the truth.

    They are computed on unseen entries; on all, if few are unseen or some are wrong. Simple
    estimates are medians if errors are expected. If columns have different scales, there are two of
    each. One counts columns (of tensors, slices of the last mode) equally, each in units of its
    observed entries, truth and noise: otherwise a column without any truth of its own would
    outweigh all others. The other ("plain") has no such units, so that large columns decide.
    """
    judged = ~data.seen
    if recipe.robust or judged.sum() < FEW:
        judged = np.ones_like(judged)
    typical = float(np.std(data.truth / recipe.scale)) or 1.0
    unit: Array = typical
    if recipe.spread:
        others = tuple(range(data.truth.ndim - 1))
        unit = np.hypot(np.std(data.truth / recipe.scale, axis=others), data.noise / recipe.scale)
        unit = np.where(unit > 0, unit, typical)

    def size(off: Array, unit: Array) -> float:
        return float(np.sqrt(np.mean((off / recipe.scale / unit)[judged] ** 2)))

    with np.errstate(all="ignore"):
        columns, both = simple(data.given.astype(float), recipe.robust, recipe.scale)
        all_of = {"error": estimate, "means": columns, "offsets": both}
        found = {name: size(x - data.truth, unit) for name, x in all_of.items()}
        if recipe.spread:
            found |= {f"plain {name}": size(x - data.truth, typical) for name, x in all_of.items()}
        if recipe.estimator == "MatrixCompletion" and not recipe.robust:
            found["constant"] = _constants(recipe, data, estimate)
    return {k: float(f"{v:.4g}") for k, v in found.items()}


def simple(given: Array, robust: bool, scale: float) -> tuple[Array, Array]:
    """Return column means, and sums of offsets of rows and columns; medians if robust."""
    middle = np.nanmedian if robust else np.nanmean
    X = given / scale
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = float(middle(X))
        columns = np.nan_to_num(middle(X, axis=0, keepdims=True), nan=whole)
        if len(X) == 1:  # with one slice, the means are the data themselves
            columns = np.full_like(columns, whole)
        rest = tuple(range(1, X.ndim))
        rows = np.nan_to_num(middle(X - columns, axis=rest, keepdims=True), nan=0.0)
    return scale * np.broadcast_to(columns, X.shape), scale * (columns + rows)


def _constants(recipe: Recipe, data: Data, estimate: Array) -> float:
    """How many constant columns, observed several times, are not filled with their constant.

    Others may be constant by rounding, and their few entries equal by chance. Entries held out to
    calibrate with are not counted: the fit does not see them.
    """
    wrong, fitted = 0, 1 - (recipe.options.get("calibrate") or 0.0)
    for j in range(min(recipe.constants, data.given.shape[-1])):
        here = data.given[:, j]
        known = here[np.isfinite(here)]
        constant = fitted * len(known) >= 4 and np.ptp(known) == 0 and np.ptp(data.truth[:, j]) == 0
        if constant:
            holes = estimate[~np.isfinite(here), j]
            wrong += bool(np.any(holes != known[0]))
    return float(wrong)


def _regression(model: Any, recipe: Recipe, data: Data) -> dict[str, Any]:
    model.fit(data.design, data.given)
    rng = np.random.default_rng(recipe.seed + 1)
    A = rng.standard_normal((200, *recipe.shape)).astype(np.asarray(data.design).dtype)
    right = np.tensordot(A.astype(float), data.truth, data.truth.ndim) / recipe.scale
    right = right + recipe.offset
    estimate, std = model.predict(A, return_std=True)
    unit = float(np.std(right)) or 1.0
    plain = float(np.mean(data.given.astype(float) / recipe.scale))
    if model.center == "none":
        plain = 0.0
    error = float(np.sqrt(np.mean((estimate / recipe.scale - right) ** 2))) / unit
    means = float(np.sqrt(np.mean((plain - right) ** 2))) / unit
    finite = _sound((estimate,), (std, *model.interval(A)))
    found = {"error": error, "means": means, "offsets": means}
    return {k: float(f"{v:.4g}") for k, v in found.items()} | {"finite": finite}
