"""Gross errors: narrow tables, faces and a video."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

import scaledgd as sg

from ..tensors import f_measure
from .asked import Array, Ask, Peer, Row
from .peers import principal_component_pursuit
from .tables import of_sklearn


@dataclass(frozen=True)
class Corrupted:
    """A table, what is observed of it, and which cells are wrong."""

    truth: Array
    observed: Array
    wrong: Array

    def error(self, estimate: Array) -> float:
        """Return the root-mean-square error."""
        return float(np.sqrt(np.mean((estimate - self.truth) ** 2)))

    def at_outliers(self, estimate: Array) -> float:
        """Return the root-mean-square error where cells are wrong."""
        return float(np.sqrt(np.mean((estimate - self.truth)[self.wrong] ** 2)))

    def elsewhere(self, estimate: Array) -> float:
        """Return the root-mean-square error where cells are right."""
        return float(np.sqrt(np.mean((estimate - self.truth)[~self.wrong] ** 2)))

    def worst(self, estimate: Array) -> float:
        """Return the largest error."""
        return float(np.abs(estimate - self.truth).max())


def cleaned(Y: Array) -> Array:
    """Return the low-rank part with the default settings."""
    return sg.RobustPCA(random_state=0).fit(Y).reconstruct()


OURS = {"RobustPCA()": lambda table: cleaned(table.observed)}
PURSUIT = (Peer("pursuit", lambda table: principal_component_pursuit(table.observed)),)


def narrow_table(rank: int, seed: int) -> Corrupted:
    """Draw a 200×20 table of unit variance, with noise 0.1 and 5 % outliers."""
    rng = np.random.default_rng([seed, rank])
    X = rng.standard_normal((200, rank)) @ rng.standard_normal((rank, 20)) / np.sqrt(rank)
    wrong = rng.random(X.shape) < 0.05
    Y = X + 0.1 * rng.standard_normal(X.shape) + wrong * rng.uniform(-10, 10, X.shape)
    return Corrupted(X, Y, wrong)


def spoilt(name: str, seed: int) -> Corrupted:
    """Add outliers of 10 standard deviations to 5 % of the cells of a table of scikit-learn."""
    rng = np.random.default_rng(seed)
    X = of_sklearn(name)
    wrong = rng.random(X.shape) < 0.05
    return Corrupted(X, X + wrong * rng.choice([-10.0, 10.0], X.shape), wrong)


def far_off(seed: int) -> Corrupted:
    """Draw a 26×13 table of rank 2 about 1000, a tenth wrong by up to 50, a block missing."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((26, 2)) @ rng.standard_normal((2, 13)) / np.sqrt(2) + 1000
    wrong = rng.random(X.shape) < 0.1
    Y = X + 0.1 * rng.standard_normal(X.shape) + wrong * rng.uniform(-50, 50, X.shape)
    Y[5:13, 3:7] = np.nan
    return Corrupted(X, Y, wrong & np.isfinite(Y))


def robust(ask: Ask) -> Iterator[Row]:
    """Clean narrow tables without giving their rank."""
    for rank in (1, 3, 5, 8):
        yield from ask.compared(
            f"200 x 20, rank {rank}",
            lambda rank=rank: [narrow_table(rank, seed) for seed in ask.seeds(5)],  # type: ignore[misc]
            OURS,
            PURSUIT,
            {"rms error": Corrupted.error},
        )
    for name in ("wine", "diabetes", "breast_cancer", "iris"):
        yield from ask.compared(
            f"{name}, 5 % of 10 sd",
            lambda name=name: [spoilt(name, seed) for seed in ask.seeds(3)],  # type: ignore[misc]
            OURS,
            PURSUIT,
            {"rms error at outliers": Corrupted.at_outliers, "elsewhere": Corrupted.elsewhere},
        )
    yield from ask.compared(
        "26 x 13 about 1000, a block missing",
        lambda: [far_off(seed) for seed in ask.seeds(10)],
        OURS,
        (),
        {"largest error": Corrupted.worst},
        max,
    )


def blackened(X: Array, low: Array) -> int:
    """Count images (rows) whose bright pixels mostly lose more than half of their value."""
    bright = X > 80
    lost = (bright & (low < X / 2)).sum(axis=1)
    return int(np.sum(lost > bright.sum(axis=1) / 2))


def faces(ask: Ask) -> Iterator[Row]:
    """Remove shadows from the 64 images of a face; count the images that it blackens."""
    X = ask.load("yaleb3")["X"].astype(float)
    images = X.reshape(-1, X.shape[2]).T
    for subject in range(3):
        yield from ask.compared(
            f"subject {subject + 1}, 64 images",
            partial(list, [images[64 * subject : 64 * (subject + 1)]]),
            {"RobustPCA()": cleaned},
            (Peer("pursuit", principal_component_pursuit),),
            {"images blackened": blackened},
        )


def video(ask: Ask) -> Iterator[Row]:
    """Find the moving pixels of the highway video."""
    loaded = ask.load("highway-cdnet")
    frames, truth = loaded["frames"].astype(float), loaded["gt"]
    if ask.quick:
        frames, truth = frames[::4], truth[::4]
    flat, truth = frames.reshape(len(frames), -1), truth.reshape(len(frames), -1)
    yield from ask.compared(
        f"highway, {len(frames)} frames",
        lambda: [flat],
        {"RobustPCA()": cleaned},
        (Peer("pursuit", partial(principal_component_pursuit, tol=1e-4)),),
        {"F-measure": lambda X, low: f_measure(np.abs(X - low), truth)},
    )
