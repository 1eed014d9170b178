"""Real tables: narrow ones, and sensors with gaps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

import scaledgd as sg

from . import peers
from .asked import RELATIVE, RMSE, Array, Ask, Hidden, Row

NARROW = ("diabetes", "wine", "breast_cancer", "iris", "linnerud", "digits")
SERIES = ("climate", "airq", "electricity")
GAPS = ("points", "blocks", "outage", "blackout")


def standardised(X: Array) -> Array:
    """Return the columns that are not constant, with mean 0 and deviation 1."""
    X = np.asarray(X, dtype=float)
    X = X[:, X.std(axis=0) > 1e-9]
    return (X - X.mean(axis=0)) / X.std(axis=0)


def of_sklearn(name: str) -> Array:
    """Load one of scikit-learn's tables, standardised."""
    from sklearn import datasets

    return standardised(getattr(datasets, f"load_{name}")().data)


def completed(table: Hidden) -> Array:
    """Fill a table with the default settings."""
    return sg.MatrixCompletion(random_state=table.seed).fit(table.holes).reconstruct()


OURS = {"MatrixCompletion()": completed}


def narrow(ask: Ask) -> Iterator[Row]:
    """Fill tables with few columns, a fifth of which is hidden; mean of five masks."""

    def instances(name: str) -> list[Hidden]:
        X = of_sklearn(name)
        masks = (np.random.default_rng(seed).random(X.shape) < 0.2 for seed in ask.seeds(5))
        return [Hidden(X, mask) for mask in masks]

    for name in NARROW:
        yield from ask.compared(name, partial(instances, name), OURS, peers.NARROW, RMSE)


def gaps(shape: tuple[int, int], kind: str, seed: int = 0) -> Array:
    """Draw gaps that are typical of sensors.

    Parameters
    ----------
    shape : tuple of two int
        Time and sensor.
    kind : str
        ``points``: a fifth of the cells, one by one; ``blocks``: runs of 10 in every column, until
        a fifth is hidden; ``outage``: a quarter of the columns lose a fifth of all time in one
        piece; ``blackout``: five times all columns lose 12 steps.
    seed : int

    Returns
    -------
    hidden : boolean array of the given shape
    """
    rng = np.random.default_rng([seed, GAPS.index(kind)])
    steps, n = shape
    hidden = np.zeros(shape, dtype=bool)
    if kind == "points":
        hidden = rng.random(shape) < 0.2
    elif kind == "blocks":
        for j in range(n):
            while hidden[:, j].mean() < 0.2:
                start = rng.integers(0, steps - 10)
                hidden[start : start + 10, j] = True
    elif kind == "outage":
        for j in rng.choice(n, max(1, n // 4), replace=False):
            start = rng.integers(0, int(0.8 * steps))
            hidden[start : start + steps // 5, j] = True
    else:
        for _ in range(5):
            start = rng.integers(20, steps - 40)
            hidden[start : start + 12] = True
    return hidden


def completed_in_time(table: Hidden) -> Array:
    """Fill a table whose rows are hours, with the default settings."""
    import pandas as pd

    hours = pd.date_range("2024-01-01", periods=len(table.truth), freq="h")
    frame = pd.DataFrame(table.holes, index=hours)
    return np.asarray(sg.MatrixCompletion(random_state=0).fit_transform(frame), dtype=float)


def sensors(ask: Ask) -> Iterator[Row]:
    """Fill chlorine and electricity, cells seen at random, and three tables with gaps in time."""
    for name in ("chlorine", "electricity-321"):
        X = ask.load(name)["X"].astype(float)
        X = X.T[:120, :180] if name == "chlorine" else X
        for p in (0.8, 0.5, 0.2):

            def instances(X: Array = X, p: float = p) -> list[Hidden]:
                masks = {s: np.random.default_rng(s).random(X.shape) >= p for s in ask.seeds(3)}
                return [Hidden(X, mask, seed) for seed, mask in masks.items()]

            yield from ask.compared(f"{name}, {p:.0%} seen", instances, OURS, (), RELATIVE)
    for name in SERIES:
        X = standardised(ask.load("time-series", name)["X"][:1000])
        for kind in GAPS:
            yield from ask.compared(
                f"{name}, {kind}",
                lambda X=X, kind=kind: [Hidden(X, gaps(X.shape, kind))],  # type: ignore[misc]
                {"MatrixCompletion()": completed_in_time},
                peers.TIME,
                RMSE,
            )
