"""The cost of the defaults: noisy tables of five sizes, a regression, a tensor and a video."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

import scaledgd as sg

from .asked import RELATIVE, Array, Ask, Hidden, Peer, Row
from .peers import NARROW, soft_impute

SIZES = ((200, 20), (1000, 50), (500, 500), (2000, 300), (5000, 1000))
KINDS = ((5, 0.1, 0.5), (3, 0.3, 0.3), (8, 0.03, 0.7))
"""Rank, standard deviation of the noise relative to the table, and share that is seen."""

NEAREST = 1_500_000
"""Cells above which nearest neighbours and regressions of columns take many minutes."""


@dataclass(frozen=True)
class Noisy(Hidden):
    """A low-rank table with some noisy cells observed."""

    noise: Array = 0.0

    @property
    def holes(self) -> Array:
        """The noisy table, NaN where it is hidden."""
        return np.where(self.hidden, np.nan, self.truth + self.noise)


def noisy(shape: tuple[int, ...], rank: int, noise: float, seen: float, seed: int) -> Noisy:
    """Draw a table or tensor of unit mean square and some rank, plus an offset per column."""
    rng = np.random.default_rng([seed, rank, *shape])
    factors = [rng.standard_normal((n, rank)) for n in shape]
    letters = "abcd"[: len(shape)]
    X = np.einsum(",".join(f"{a}r" for a in letters) + f"->{letters}", *factors) / np.sqrt(rank)
    if len(shape) == 2:
        X = X + rng.standard_normal(shape[1])
    return Noisy(X, rng.random(shape) >= seen, seed, noise * rng.standard_normal(shape))


def completed(table: Noisy) -> Array:
    """Fill a table with the default settings."""
    return sg.MatrixCompletion(random_state=table.seed).fit(table.holes).reconstruct()


PEERS = (*NARROW[:2], Peer("SoftImpute", lambda table: soft_impute(table.holes)))


@dataclass(frozen=True)
class Measured:
    """Measurements of a matrix by random designs, and others to test with."""

    A: Array
    y: Array
    A_test: Array
    y_test: Array

    def determination(self, predicted: Array) -> float:
        """Return R² of predictions."""
        off, spread = predicted - self.y_test, self.y_test - self.y_test.mean()
        return float(1 - np.sum(off**2) / np.sum(spread**2))


def measured(rank: int, noise: float, seed: int, count: int = 400) -> Measured:
    """Measure a 30×20 matrix of some rank."""
    rng = np.random.default_rng([seed, rank])
    X = rng.standard_normal((30, rank)) @ rng.standard_normal((rank, 20))
    A = rng.standard_normal((count + 1000, 30, 20))
    y = np.tensordot(A, X, 2)
    y = y + noise * y.std() * rng.standard_normal(len(y))
    return Measured(A[:count], y[:count], A[count:], y[count:])


def _regressed(task: Measured) -> Array:
    return sg.MatrixRegressor(random_state=0).fit(task.A, task.y).predict(task.A_test)


def _ridge(task: Measured) -> Array:
    from sklearn.linear_model import RidgeCV

    A, B = (x.reshape(len(x), -1) for x in (task.A, task.A_test))
    return RidgeCV(np.geomspace(1e-2, 1e4, 13)).fit(A, task.y).predict(B)


def _filled(tensor: Noisy) -> Array:
    return sg.TensorCompletion(random_state=0).fit(tensor.holes).reconstruct()


def defaults(ask: Ask) -> Iterator[Row]:
    """Fill tables of five sizes with rank="auto", and predict, complete and clean by default."""
    for shape in SIZES:
        for rank, noise, seen in KINDS[:1] if ask.quick else KINDS:
            peers = PEERS if np.prod(shape) <= NEAREST else PEERS[2:]
            yield from ask.compared(
                f"{shape[0]} x {shape[1]}, rank {rank}, noise {noise:g}, {seen:.0%} seen",
                lambda shape=shape, kind=(rank, noise, seen): [noisy(shape, *kind, 0)],  # type: ignore[misc]
                {"MatrixCompletion()": completed},
                peers,
                RELATIVE,
            )
    for rank, noise in ((2, 0.1), (3, 0.3))[: 1 if ask.quick else 2]:
        yield from ask.compared(
            f"400 measurements of 30 x 20, rank {rank}, noise {noise:g}",
            partial(list, [measured(rank, noise, seed) for seed in ask.seeds(3)]),
            {"MatrixRegressor()": _regressed},
            (Peer("RidgeCV", _ridge, "sklearn"),),
            {"R²": Measured.determination},
        )
    for rank, noise, seen in ((5, 0.1, 0.1), (3, 0.01, 0.3))[: 1 if ask.quick else 2]:
        yield from ask.compared(
            f"100³, rank {rank}, noise {noise:g}, {seen:.0%} seen",
            lambda kind=(rank, noise, seen): [noisy((100,) * 3, *kind, 0)],  # type: ignore[misc]
            {"TensorCompletion()": _filled},
            (),
            RELATIVE,
        )
