"""Tables as people have them: counts, amounts, flags, seasons, clusters, images, mixed units.

Most of them have no exact low rank, and no model is right. So default answers are compared with
column means, with given ranks, and with other imputers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

import scaledgd as sg

from . import peers
from .asked import Array, Ask, Hidden, Row

Draw = Callable[[np.random.Generator, int, int], Array]
RANKS = (1, 2, 4)
COUNT = 20
"""Tables per family."""


def low_rank(rng: np.random.Generator, n: int, p: int, rank: int) -> Array:
    """Draw a matrix of some rank, whose entries have unit variance."""
    return rng.standard_normal((n, rank)) @ rng.standard_normal((rank, p)) / np.sqrt(rank)


def counts(rng: np.random.Generator, n: int, p: int) -> Array:
    """Poisson counts whose rates differ by orders of magnitude."""
    level = rng.normal(0, 1.5, (n, 1)) + rng.normal(0, 1, (1, p))
    return rng.poisson(np.exp(np.clip(0.7 * low_rank(rng, n, p, 2) + level, -8, 7))).astype(float)


def sales(rng: np.random.Generator, n: int, p: int) -> Array:
    """Amounts with two decimals, many of them zero."""
    amount = np.exp(low_rank(rng, n, p, 2) / 2 + rng.normal(2, 1, (1, p)))
    return np.round(amount * (rng.random((n, p)) < rng.random(p)), 2)


def mixed(rng: np.random.Generator, n: int, p: int) -> Array:
    """Scores, amounts, flags, ages, row numbers and grades in one table."""
    Z = low_rank(rng, n, p, min(4, p)) + 0.3 * rng.standard_normal((n, p))
    ways = (
        lambda z: z,
        lambda z: np.exp(2 * z + 8),
        lambda z: 1.0 * (z > 0),
        lambda z: np.rint(40 + 12 * z),
        lambda z: np.arange(float(n)),
        lambda z: np.rint(2 * z) / 2,
    )
    return np.stack([ways[k](z) for k, z in zip(rng.integers(6, size=p), Z.T, strict=True)], axis=1)


def units(rng: np.random.Generator, n: int, p: int) -> Array:
    """Columns of different units, many of them far from zero."""
    X = low_rank(rng, n, p, 2) + rng.choice([0.1, 0.5]) * rng.standard_normal((n, p))
    return X * 10 ** rng.uniform(-4, 4, p) + 10 ** rng.uniform(-3, 5, p)


def products(rng: np.random.Generator, n: int, p: int) -> Array:
    """Positive amounts: a factor per row, one per column, and relative errors."""
    rows, columns = np.exp(rng.standard_normal((n, 1))), np.exp(rng.standard_normal((1, p)))
    return rows * columns * np.exp(rng.choice([0.01, 0.1, 0.5]) * rng.standard_normal((n, p)))


def seasons(rng: np.random.Generator, n: int, p: int) -> Array:
    """Series of one period, each with its own level, size and phase."""
    turn = np.arange(n)[:, None] / rng.choice([7, 12, 24]) + rng.random((1, p))
    wave = rng.normal(5, 2, (1, p)) * np.sin(2 * np.pi * turn)
    return rng.normal(20, 5, (1, p)) + wave + rng.choice([0.1, 1]) * rng.standard_normal((n, p))


def walks(rng: np.random.Generator, n: int, p: int) -> Array:
    """Random walks that share some of their steps."""
    common = np.cumsum(rng.standard_normal((n, 2)), axis=0) @ rng.standard_normal((2, p))
    return common + rng.choice([0, 0.1, 1]) * np.cumsum(rng.standard_normal((n, p)), axis=0)


def clusters(rng: np.random.Generator, n: int, p: int) -> Array:
    """Rows near one of a few centres."""
    k = rng.integers(2, 9)
    centres = 3 * rng.standard_normal((k, p))
    return centres[rng.integers(k, size=n)] + rng.choice([0.1, 0.5]) * rng.standard_normal((n, p))


def images(rng: np.random.Generator, n: int, p: int) -> Array:
    """A wave and a checkerboard, without noise or with some."""
    i, j = np.mgrid[:n, :p]
    a, b = 0.5 * rng.random(2)
    board = (i // max(1, n // 6) + j // max(1, p // 6)) % 2
    grain = rng.choice([0, 3]) * rng.standard_normal((n, p))
    return 128 + 60 * np.sin(a * i + b * j) + 40 * board + grain


def ratings(rng: np.random.Generator, n: int, p: int) -> Array:
    """Stars from one to five."""
    taste = 3.6 + rng.normal(0, 0.4, (n, 1)) + rng.normal(0, 0.5, (1, p))
    stars = taste + 0.6 * low_rank(rng, n, p, 3) + rng.normal(0, 0.8, (n, p))
    return np.clip(np.rint(stars), 1, 5)


FAMILIES: dict[str, Draw] = {
    draw.__name__: draw
    for draw in (
        counts,
        sales,
        mixed,
        units,
        products,
        seasons,
        walks,
        clusters,
        images,
        ratings,
    )
}


def holes(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Draw which cells are hidden: single ones, more in some rows than in others, or runs."""
    n, p = shape
    share, kind = rng.choice([0.05, 0.2, 0.5]), rng.integers(3)
    hidden = rng.random(shape) < share
    if kind == 1:
        hidden = rng.random(shape) > (1 - share) * 2 * rng.random((n, 1)) ** 2
    if kind == 2:
        length = max(2, n // 10)
        starts = rng.random(shape) < share / length
        hidden = np.stack([np.convolve(s, np.ones(length))[:n] > 0 for s in starts.T], axis=1)
    hidden[rng.integers(n, size=p), np.arange(p)] = False
    return hidden


def table(family: str, number: int) -> Hidden:
    """Draw a table, which depends on its family and number only."""
    rng = np.random.default_rng([*family.encode(), number])
    n, p = (int(np.exp(rng.uniform(*np.log(ends)))) for ends in ((20, 300), (4, 50)))
    X = FAMILIES[family](rng, n, p)
    while True:
        hidden = holes(rng, X.shape)
        if hidden.any():
            return Hidden(X, hidden, number)


def error(one: Hidden, estimate: Array) -> float:
    """Return the error at hidden cells, in deviations of the columns."""
    unit = one.truth.std(axis=0)
    off = (estimate - one.truth) / np.where(unit > 0, unit, 1.0)
    return float(np.sqrt(np.mean(off[one.hidden] ** 2)))


@dataclass(frozen=True)
class Answer:
    """The error of a default answer, and whether a warning casts doubt on it."""

    error: float
    doubted: bool


def answered(one: Hidden) -> Answer:
    """Fill a table with the default settings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        filled = sg.MatrixCompletion(random_state=one.seed).fit(one.holes).reconstruct()
    doubted = any(issubclass(w.category, sg.DataWarning) for w in caught)
    return Answer(error(one, filled), doubted)


def with_rank(one: Hidden) -> float:
    """Return the least error of some given ranks."""
    ranks = [r for r in RANKS if r < min(one.truth.shape)]
    fits = (sg.MatrixCompletion(r, random_state=one.seed).fit(one.holes) for r in ranks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return min(error(one, fit.reconstruct()) for fit in fits)


def means(one: Hidden) -> float:
    """Return the error of column means."""
    return error(one, np.broadcast_to(np.nanmean(one.holes, axis=0), one.truth.shape))


def families(ask: Ask) -> Iterator[Row]:
    """Fill tables of every family, and compare the errors, in deviations of the columns.

    "worse than means" counts answers 10 % worse than those, without a doubt; "worse than given
    ranks" those 25 % worse than the best of some ranks.
    """
    for family in FAMILIES:
        if ask.only not in f"{family}, MatrixCompletion()":
            continue
        tables = [table(family, k) for k in range(3 if ask.quick else COUNT)]
        ours, simple = [answered(one) for one in tables], [means(one) for one in tables]
        ranks = [with_rank(one) for one in tables]
        pairs = list(zip(ours, simple, ranks, strict=True))
        found = {
            "median error": np.median([one.error for one in ours]),
            "median error of means": np.median(simple),
            "worse than means": sum(
                one.error > 1.1 * least and not one.doubted for one, least, _ in pairs
            ),
            "worse than given ranks": sum(one.error > 1.25 * best + 1e-6 for one, _, best in pairs),
        }
        for other in peers.NARROW if ask.peers else ():
            if other.installed:
                values = [error(one, np.asarray(other.fill(one))) for one in tables]
                found[f"of {other.name}"] = np.median(values)
        for measure, value in found.items():
            yield Row(case=f"{family}, {len(tables)} tables", measure=measure, value=float(value))
