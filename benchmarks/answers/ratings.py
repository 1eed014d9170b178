"""Entries of large, sparse tables: ratings, and counts that follow power laws."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import scaledgd as sg

from .asked import Array, Ask, Peer, Row


@dataclass(frozen=True)
class Split:
    """Entries of a table, some of which are for testing."""

    shape: tuple[int, int]
    index: tuple[Array, Array]
    values: Array
    test: Array
    bounds: tuple[float, float] | None = None
    """Range of the values, to which predictions are clipped."""

    def part(self, test: bool) -> tuple[tuple[Array, Array], Array]:
        """Return coordinates and values of the entries for testing, or of the others."""
        chosen = self.test == test
        return (self.index[0][chosen], self.index[1][chosen]), self.values[chosen]

    def clipped(self, values: Array) -> Array:
        """Return values clipped to the range."""
        return values if self.bounds is None else np.clip(values, *self.bounds)

    def rmse(self, predicted: Array) -> float:
        """Return the root-mean-square error of predictions for testing."""
        return float(np.sqrt(np.mean((predicted - self.values[self.test]) ** 2)))


RMSE = {"RMSE, test": Split.rmse}


def predicted(split: Split, rank: int | str = "auto") -> Array:
    """Predict with the default settings."""
    model = sg.MatrixCompletion(rank=rank, clip=split.bounds, random_state=0)
    model.fit_entries(*split.part(False), split.shape)
    return model.predict_entries(split.part(True)[0])


# ---- peers


def _offsets(split: Split, damping: float = 5.0) -> Array:
    """Predict by offsets of rows and columns that are shrunk towards zero."""
    (i, j), y = split.part(False)
    mean, rows, columns = y.mean(), np.zeros(split.shape[0]), np.zeros(split.shape[1])
    for _ in range(20):
        for mine, at, others, across in ((columns, j, rows, i), (rows, i, columns, j)):
            left = np.bincount(at, y - mean - others[across], len(mine))
            mine[:] = left / (np.bincount(at, minlength=len(mine)) + damping)
    (i, j), _ = split.part(True)
    return split.clipped(mean + rows[i] + columns[j])


def _cmfrec(split: Split, **settings: Any) -> Array:
    from cmfrec import CMF
    from scipy.sparse import coo_matrix

    index, values = split.part(False)
    model = CMF(verbose=False, nthreads=1, random_state=0, **settings)
    model.fit(coo_matrix((values, index), shape=split.shape))
    return split.clipped(model.predict(*split.part(True)[0]))


def _myfm(split: Split) -> Array:
    from myfm import MyFMRegressor
    from scipy.sparse import csr_array, csr_matrix

    def features(index: tuple[Array, Array]) -> Any:
        rows = np.repeat(np.arange(len(index[0])), 2)
        columns = np.stack([index[0], split.shape[0] + index[1]], axis=1).ravel()
        ones = np.ones(len(rows))
        return csr_matrix(csr_array((ones, (rows, columns)), (len(index[0]), sum(split.shape))))

    model = MyFMRegressor(rank=10, random_seed=0)
    index, values = split.part(False)
    with contextlib.redirect_stderr(io.StringIO()):  # it shows its progress
        model.fit(features(index), values, n_iter=200, group_shapes=list(split.shape))
    return split.clipped(model.predict(features(split.part(True)[0])))


PEERS = (
    Peer("offsets, damped", _offsets),
    Peer("cmfrec, k=10 lambda=10", partial(_cmfrec, k=10, lambda_=10, niter=20), "cmfrec"),
    Peer("myfm, rank 10, 200 draws", _myfm, "myfm"),
)


# ---- sections


def ratings(ask: Ask) -> Iterator[Row]:
    """Predict ratings: the five folds of movielens-100k, flixster and yahoo-music."""
    loaded = ask.load("movielens-100k")
    index = tuple(loaded[k].astype(np.int64) for k in ("user", "item"))
    values, folds = loaded["rating"].astype(float), loaded["fold_u1_u5"]
    for k in range(1, 6):
        split = Split((943, 1682), index, values, folds == k, (1, 5))
        ours = {"MatrixCompletion()": predicted}
        yield from ask.compared(f"movielens-100k, u{k}", partial(list, [split]), ours, PEERS, RMSE)
    for name, bounds in (("gcmc-flixster", (0.5, 5.0)), ("gcmc-yahoo-music", (1.0, 100.0))):
        loaded = ask.load(name)
        index = tuple(loaded[k].astype(np.int64) for k in ("user", "item"))
        test = loaded["is_test"].astype(bool)
        split = Split((3000, 3000), index, loaded["rating"].astype(float), test, bounds)
        yield from ask.compared(name, partial(list, [split]), ours, PEERS, RMSE)


def power_law(
    n1: int, n2: int, m: int, rank: int, kappa: float = 10.0, noise: float = 0.3, seed: int = 0
) -> Split:
    """Draw a table whose counts per row and column follow power laws, as those of clicks do.

    Parameters
    ----------
    n1, n2 : int
    m : int
        Number of entries that are drawn; repeated ones count once.
    rank : int
    kappa : float
        Condition number.
    noise : float
        Standard deviation; entries have mean square 1.
    seed : int

    Returns
    -------
    split : Split
        2 % of the entries are for testing.
    """
    rng = np.random.default_rng(seed)
    rows, columns = rng.random(n1) ** 3 + 0.02, rng.random(n2) ** 4 + 0.003
    i = rng.choice(n1, m, p=rows / rows.sum())
    j = rng.choice(n2, m, p=columns / columns.sum())
    i, j = np.divmod(np.unique(i.astype(np.int64) * n2 + j), n2)
    singular = np.linspace(1, 1 / kappa, rank)
    root = np.sqrt(singular / np.linalg.norm(singular) * np.sqrt(n1 * n2))
    L, R = (np.linalg.qr(rng.standard_normal((n, rank)))[0] * root for n in (n1, n2))
    values = (L[i] * R[j]).sum(axis=1) + noise * rng.standard_normal(i.size)
    test = np.random.default_rng(seed + 1).random(i.size) < 0.02
    return Split((n1, n2), (i, j), values, test)


def skewed(ask: Ask) -> Iterator[Row]:
    """Predict entries of a table with power laws; the noise alone is 0.3."""
    sizes = (2000, 500, 60_000, 8) if ask.quick else (20_000, 5000, 1_000_000, 16)
    plain = {"center": False, "user_bias": False, "item_bias": False}
    als = partial(_cmfrec, k=sizes[3], lambda_=1, niter=40, **plain)
    yield from ask.compared(
        f"{sizes[0]} x {sizes[1]}, rank {sizes[3]}",
        lambda: [power_law(*sizes)],
        {
            f"MatrixCompletion({sizes[3]})": partial(predicted, rank=sizes[3]),
            "MatrixCompletion()": predicted,
        },
        (Peer("cmfrec, lambda=1, 40 its", als, "cmfrec"),),
        RMSE,
    )
