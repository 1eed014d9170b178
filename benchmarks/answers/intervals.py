"""Coverage of intervals on real data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import scaledgd as sg

from .asked import Array, Ask, Row, timed

LEVEL = 0.9


def covered(model: Any, index: tuple[Array, ...], values: Array, case: str, cpu: float) -> Any:
    """Yield the coverage and the mean width of two kinds of intervals."""
    for kind in ("prediction", "conformal"):
        try:
            lower, upper = model.interval(index, LEVEL, kind=kind)
        except ValueError as error:  # a version without this kind
            yield Row(case=case, who=kind, measure="failed", value=float("nan"), note=str(error))
            continue
        share = np.mean((lower <= values) & (values <= upper))
        yield Row(case=case, who=kind, measure="coverage of 90 %", value=float(share), cpu=cpu)
        width = np.mean(upper - lower) / np.std(values)
        yield Row(case=case, who=kind, measure="mean width / deviation", value=float(width))


def days(shape: tuple[int, int], share: float = 0.3, seed: int = 0) -> Array:
    """Draw runs of 24 missing steps (columns) in the rows."""
    drawn = np.random.default_rng(seed).random((shape[0], -(-shape[1] // 24))) < share
    return np.repeat(drawn, 24, axis=1)[:, : shape[1]]


def intervals(ask: Ask) -> Iterator[Row]:
    """Count how many hidden values lie in their 90 % intervals."""
    loaded = ask.load("movielens-100k")
    i, j = (loaded[k].astype(np.int64) for k in ("user", "item"))
    y, test = loaded["rating"].astype(float), loaded["fold_u1_u5"] == 1
    case, table = "movielens-100k, u1", ((i[~test], j[~test]), y[~test], (943, 1682))
    if ask.only in case:
        model: Any = sg.MatrixCompletion(clip=(1, 5), calibrate=0.1, random_state=0)
        _, cpu = timed(lambda: model.fit_entries(*table))
        yield from covered(model, (i[test], j[test]), y[test], case, cpu)
    electricity = ask.load("electricity-321")["X"].astype(float)
    chlorine = ask.load("chlorine")["X"].T[:120, :180].astype(float)
    speeds = ask.load("metr-la-week")["X"].astype(float)
    half = {
        X.shape: np.random.default_rng(0).random(X.shape) < 0.5
        for X in (electricity, chlorine, speeds)
    }
    for case, X, hidden in (
        ("electricity-321, 50 % seen", electricity, half[electricity.shape]),
        ("electricity-321, days lost", electricity, days(electricity.shape)),
        ("chlorine, 50 % seen", chlorine, half[chlorine.shape]),
        ("metr-la-week, 50 % seen", speeds, half[speeds.shape]),
    ):
        if ask.only in case:
            made = sg.MatrixCompletion if X.ndim == 2 else sg.TensorCompletion
            model = made(calibrate=0.1, random_state=0)
            holes = np.where(hidden, np.nan, X)
            _, cpu = timed(lambda: model.fit(holes))  # noqa: B023
            yield from covered(model, np.nonzero(hidden), X[hidden], case, cpu)
