"""The problems P1 to P8, each with the accuracy to reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

Array = Any


@dataclass(frozen=True, eq=False)
class Problem:
    """Data, and the error of an estimate.

    Attributes
    ----------
    name : str
        Such as "P1 κ=10 1e-06".
    kind : {"completion", "robust", "tensor", "ratings", "skewed"}
    target : float
        The error to reach.
    error : callable
        From an estimate to its error. The estimate is a function of coordinates for completion,
        ratings and skewed, and a dense array otherwise.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    rank: Any
    data: dict[str, Array]
    target: float
    error: Any = field(repr=False)


def _spectrum(kappa: float, rank: int) -> Array:
    return np.linspace(1, 1 / kappa, rank)


def factors(
    n1: int, n2: int, rank: int, kappa: float, normal: Callable[[tuple[int, int]], Array]
) -> tuple[Array, Array]:
    """Return factors of a matrix whose entries have root mean square 1.

    Parameters
    ----------
    n1, n2, rank : int
    kappa : float
    normal : callable
        Returns an array of normal numbers of some shape, of any library.
    """
    G = [normal((n, rank)) for n in (n1, n2)]
    xp = array_namespace(*G)
    U, V = (xp.linalg.qr(M)[0] for M in G)
    s = _spectrum(kappa, rank)
    s = s * (math.sqrt(n1 * n2) / np.linalg.norm(s))
    return U * xp.asarray(s, dtype=U.dtype, device=device(U)), V


def _factors(n1: int, n2: int, rank: int, kappa: float, rng: Any) -> tuple[Array, Array]:
    return factors(n1, n2, rank, kappa, rng.standard_normal)


def completion(kappa: float, target: float, seed: int = 1) -> Problem:
    """Make P1: 1000 × 1000, rank 10, 20 % observed, no noise."""
    n, r = 1000, 10
    rng = np.random.default_rng(seed)
    L, R = _factors(n, n, r, kappa, rng)
    X = L @ R.T
    i, j = np.nonzero(rng.random((n, n)) < 0.2)
    data = {"rows": i, "columns": j, "values": X[i, j]}

    def error(estimate: Any) -> float:
        return float(np.linalg.norm(estimate() - X) / np.linalg.norm(X))

    name = f"P1 completion 1000², κ={kappa:g}, to {target:g}"
    return Problem(name, "completion", (n, n), r, data, target, error)


def large(seed: int = 1, share: float = 1.0) -> Problem:
    """Make P2: 50,000 × 20,000, rank 16, 10 million observed, κ = 10, noise 0.05 of the rms."""
    n1, n2, r = int(50_000 * share), int(20_000 * share), 16
    m = int(10_000_000 * share**2)
    rng = np.random.default_rng(seed)
    L, R = _factors(n1, n2, r, 10, rng)
    flat = np.unique(rng.integers(0, n1 * n2, int(1.11 * m)))
    flat = np.sort(rng.choice(flat, min(len(flat), int(1.1 * m)), replace=False))
    i, j = flat // n2, flat % n2
    y = np.concatenate(
        [np.einsum("ek,ek->e", L[a], R[b]) for a, b in _chunks(i, j)]
    ) + 0.05 * rng.standard_normal(len(i))
    test = rng.random(len(i)) < 1 / 11
    data = {"rows": i[~test], "columns": j[~test], "values": y[~test]}
    hidden = i[test], j[test], y[test]
    # least squares with a known factor uses r degrees of freedom per row and column
    best = 0.05 * math.sqrt(1 + r * (n1 + n2) / (~test).sum())

    def error(estimate: Any) -> float:
        a, b, truth = hidden
        return float(np.sqrt(np.mean((estimate((a, b)) - truth) ** 2))) / best - 1

    name = f"P2 completion {n1}×{n2}, {len(data['values']) / 1e6:.1f} M entries, noise"
    return Problem(name, "completion", (n1, n2), r, data, 0.01, error)


def _chunks(i: Array, j: Array, size: int = 1 << 18) -> Iterator[tuple[Array, Array]]:
    for s in range(0, len(i), size):
        yield i[s : s + size], j[s : s + size]


def scarce(kappa: float, ratio: float, seed: int) -> Problem:
    """Make P3: 500 × 500, rank 10, `ratio` entries per degree of freedom; success is 1e-6."""
    n, r = 500, 10
    rng = np.random.default_rng(seed)
    L, R = _factors(n, n, r, kappa, rng)
    X = L @ R.T
    m = round(ratio * r * (2 * n - r))
    while True:
        flat = rng.choice(n * n, m, replace=False)
        i, j = flat // n, flat % n
        if min(np.bincount(i, minlength=n).min(), np.bincount(j, minlength=n).min()) >= r:
            break
    data = {"rows": i, "columns": j, "values": X[i, j]}

    def error(estimate: Any) -> float:
        return float(np.linalg.norm(estimate() - X) / np.linalg.norm(X))

    name = f"P3 {ratio:g} × degrees of freedom, κ={kappa:g}, seed {seed}"
    return Problem(name, "completion", (n, n), r, data, 1e-6, error)


def robust(kappa: float, seed: int = 1) -> Problem:
    """Make P4: robust PCA, 1000 × 1000, rank 10, 10 % wrong by up to ±10 rms."""
    n, r = 1000, 10
    rng = np.random.default_rng(seed)
    L, R = _factors(n, n, r, kappa, rng)
    X = L @ R.T
    wrong = rng.random((n, n)) < 0.1
    data = {"Y": X + wrong * rng.uniform(-10, 10, (n, n))}

    def error(estimate: Array) -> float:
        return float(np.linalg.norm(estimate - X) / np.linalg.norm(X))

    name = f"P4 robust PCA 1000², κ={kappa:g}, to 1e-06"
    return Problem(name, "robust", (n, n), r, data, 1e-6, error)


def tensor(kappa: float, seed: int = 1) -> Problem:
    """Make P5: 100 × 100 × 100, multilinear rank 5, 10 % observed."""
    n, r = 100, 5
    rng = np.random.default_rng(seed)
    U = [np.linalg.qr(rng.standard_normal((n, r)))[0] for _ in range(3)]
    core = np.where(np.indices((r, r, r)).sum(0) % r == 0, 1 / math.sqrt(r), 0.0)
    core = core * _spectrum(kappa, r)[:, None, None]
    X = np.einsum("abc,ia,jb,kc->ijk", core, *U, optimize=True)
    X *= math.sqrt(X.size) / np.linalg.norm(X)
    observed = rng.random(X.shape) < 0.1
    data = {"X": np.where(observed, X, np.nan), "observed": observed}

    def error(estimate: Array) -> float:
        return float(np.linalg.norm(estimate - X) / np.linalg.norm(X))

    name = f"P5 tensor completion 100³, κ={kappa:g}, to 1e-06"
    return Problem(name, "tensor", X.shape, (r, r, r), data, 1e-6, error)


def ratings(path: Path) -> Problem:
    """Make P6: ratings from an npz file with user, item, rating and is_test."""
    with np.load(path) as found:
        user, item, rating, test = (found[k] for k in ("user", "item", "rating", "is_test"))
    test = test.astype(bool)
    shape = int(user.max()) + 1, int(item.max()) + 1
    train = {"rows": user[~test], "columns": item[~test], "values": rating[~test]}
    train = {k: v.astype(np.float64 if k == "values" else np.int64) for k, v in train.items()}
    low, high = float(rating.min()), float(rating.max())
    hidden = user[test].astype(np.int64), item[test].astype(np.int64), rating[test]

    def error(estimate: Any) -> float:
        a, b, truth = hidden
        return float(np.sqrt(np.mean((np.clip(estimate((a, b)), low, high) - truth) ** 2)))

    data = {**train, "bounds": np.asarray([low, high])}
    return Problem(f"P6 ratings {path.stem}", "ratings", shape, None, data, math.inf, error)


def movielens(path: Path) -> Problem:
    """Make P8: the first split of movielens-100k, from an npz file with all folds."""
    with np.load(path) as found:
        user, item, rating = (found[k] for k in ("user", "item", "rating"))
        test = found["fold_u1_u5"] == 1
    train = {"rows": user[~test].astype(np.int64), "columns": item[~test].astype(np.int64)}
    hidden = user[test].astype(np.int64), item[test].astype(np.int64), rating[test].astype(float)

    def error(estimate: Any) -> float:
        a, b, truth = hidden
        return float(np.sqrt(np.mean((np.clip(estimate((a, b)), 1, 5) - truth) ** 2)))

    data = {**train, "values": rating[~test].astype(float), "bounds": np.asarray([1.0, 5.0])}
    shape = int(user.max()) + 1, int(item.max()) + 1
    return Problem("P8 movielens-100k, u1", "ratings", shape, None, data, math.inf, error)


def skewed_index(n1: int, n2: int, m: int, uniform: Callable[[int], Array]) -> tuple[Array, Array]:
    """Return coordinates of about m distinct entries, most of them in a few rows and columns.

    Rows and columns are drawn with probabilities that are powers of uniform numbers, so their
    counts follow power laws, as in ratings and sales.

    Parameters
    ----------
    n1, n2, m : int
    uniform : callable
        Returns so many uniform numbers in double precision, of any library.
    """
    chances = uniform(n1) ** 3 + 0.02, uniform(n2) ** 4 + 0.003
    xp = array_namespace(*chances)
    i, j = (_drawn(p, uniform(m)) for p in chances)
    flat = xp.unique_values(i * n2 + j)
    return flat // n2, flat % n2


def _drawn(chances: Array, at: Array) -> Array:
    """Numbers with given probabilities, from uniform ones."""
    xp = array_namespace(chances)
    ends = xp.cumulative_sum(chances / xp.sum(chances))
    return xp.searchsorted(ends / ends[-1], at, side="right")


def skewed(m: int, seed: int = 0) -> Problem:
    """Make P7: rank 16, κ = 10, noise 0.3 of the rms, and counts that follow power laws.

    20,000 × 5000 for a million entries, 100,000 × 20,000 for ten; the error is the RMSE on 2 %.
    """
    n1, n2 = (20_000, 5000) if m <= 1_000_000 else (100_000, 20_000)
    r, rng = 16, np.random.default_rng(seed)
    i, j = skewed_index(n1, n2, m, rng.random)
    L, R = _factors(n1, n2, r, 10, rng)
    y = np.concatenate([np.einsum("ek,ek->e", L[a], R[b]) for a, b in _chunks(i, j)])
    y += 0.3 * rng.standard_normal(len(y))
    test = rng.random(len(y)) < 0.02
    data = {"rows": i[~test], "columns": j[~test], "values": y[~test]}
    a, b, truth = i[test], j[test], y[test]

    def error(estimate: Any) -> float:
        return float(np.sqrt(np.mean((estimate((a, b)) - truth) ** 2)))

    name = f"P7 skewed counts {n1}×{n2}, {len(data['values']) / 1e6:.2g} M entries"
    return Problem(name, "skewed", (n1, n2), r, data, math.inf, error)
