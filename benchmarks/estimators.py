"""Check the claims of the estimators: recovery, few entries, noise, rank.

``python -m benchmarks.estimators`` runs everything (about 25 minutes). Name some of ``recovery``,
``few``, ``robust``, ``tensors``, ``noise``, ``rank`` and ``random`` to run only those. Every
estimator has its default settings, except for the rank where a line names one. Real data are in
``benchmarks.answers``.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import scaledgd as sg

Array = Any
Line = tuple[str, float, float]
"""What was measured, its value, and the largest value allowed."""


def spectrum(kappa: float, rank: int, log: bool = False) -> Array:
    """Return singular values from 1 to 1/κ, equally spaced or with `log` geometrically."""
    return np.geomspace(1, 1 / kappa, rank) if log else np.linspace(1, 1 / kappa, rank)


def matrix(shape: tuple[int, int], singular: Array, rng: np.random.Generator) -> Array:
    """Return a matrix with the given spectrum, scaled so that its entries have mean square 1."""
    U, V = (np.linalg.qr(rng.standard_normal((n, len(singular))))[0] for n in shape)
    X = (U * singular) @ V.T
    return X * math.sqrt(X.size) / np.linalg.norm(X)


def observed(shape: tuple[int, int], count: int, least: int, rng: np.random.Generator) -> Array:
    """Choose `count` cells at random, at least `least` in every row and column."""
    n1, n2 = shape
    seen = np.zeros(shape, dtype=bool)
    seen.ravel()[rng.choice(n1 * n2, count, replace=False)] = True
    for _ in range(100):
        lacking = [np.nonzero(seen.sum(1 - k) < least)[0] for k in (0, 1)]
        if not len(lacking[0]) and not len(lacking[1]):
            return seen
        for mode, lines in enumerate(lacking):
            table = seen if mode == 0 else seen.T
            for i in lines:
                free = np.nonzero(~table[i])[0]
                table[i, rng.choice(free, least - int(table[i].sum()), replace=False)] = True
        # remove as many where rows and columns can spare them
        rows, columns = np.nonzero(seen)
        for e in rng.permutation(len(rows)):
            if seen.sum() <= count:
                break
            i, j = rows[e], columns[e]
            if seen[i].sum() > least and seen[:, j].sum() > least:
                seen[i, j] = False
    return seen


def error(model: Any, X: Array) -> float:
    """Return the relative error of a model's estimate."""
    return float(np.linalg.norm(model.reconstruct() - X) / np.linalg.norm(X))


def recovery() -> Iterator[Line]:
    """Recover matrices from plenty of cells, for any condition number."""
    for kappa in (1, 10, 100, 1000):
        rng = np.random.default_rng(kappa)
        X = matrix((5000, 2000), spectrum(kappa, 16), rng)
        cells = rng.choice(X.size, 10**6, replace=False)
        index = (cells // 2000, cells % 2000)
        model = sg.MatrixCompletion(rank=16).fit_entries(index, X[index], X.shape)
        yield f"5000 x 2000, rank 16, 1e6 cells, kappa {kappa}", error(model, X), 1e-6
        X = matrix((1000, 1000), spectrum(kappa, 10), rng)
        model = sg.MatrixCompletion(rank=10).fit(np.where(rng.random(X.shape) < 0.2, X, np.nan))
        yield f"1000 x 1000, rank 10, p = 0.2, kappa {kappa}", error(model, X), 1e-8


def few() -> Iterator[Line]:
    """Recover matrices from few more cells than degrees of freedom."""
    cases = [(rho, kappa, False) for rho in (1.6, 2.0, 2.5, 3.0) for kappa in (1, 100)]
    for rho, kappa, log in [*cases, (2.0, 100000, True)]:
        for seed in range(5):
            rng = np.random.default_rng(seed)
            X = matrix((500, 500), spectrum(kappa, 10, log), rng)
            seen = observed(X.shape, int(rho * 10 * 990), 10, rng)
            model = sg.MatrixCompletion(rank=10).fit(np.where(seen, X, np.nan))
            yield f"500 x 500, rank 10, rho {rho}, kappa {kappa:g}, {seed}", error(model, X), 1e-6


def robust() -> Iterator[Line]:
    """Recover matrices with gross errors, without knowing how many."""
    for kappa in (1, 100, 1000):
        for fraction in (0.02, 0.1, 0.3):
            rng = np.random.default_rng(kappa)
            X = matrix((1000, 1000), spectrum(kappa, 10), rng)
            wrong = rng.random(X.shape) < fraction
            Y = X + wrong * rng.uniform(-10, 10, X.shape)
            model = sg.RobustPCA(rank=10).fit(Y)
            yield f"robust PCA, kappa {kappa}, {fraction:.0%} wrong", error(model, X), 1e-6
    for kappa in (1, 20, 100):
        rng = np.random.default_rng(kappa)
        X = matrix((500, 500), spectrum(kappa, 5), rng)
        Y = X + (rng.random(X.shape) < 0.1) * rng.uniform(-10, 10, X.shape)
        holes = np.where(rng.random(X.shape) < 0.4, Y, np.nan)
        model = sg.MatrixCompletion(rank=5, outliers="auto").fit(holes)
        yield f"40 % seen, 10 % of it wrong, kappa {kappa}", error(model, X), 1e-6


def tensors() -> Iterator[Line]:
    """Complete tensors, and clean tensors with gross errors."""
    shape = (100, 100, 100)
    for kappa in (1, 10):
        problem, truth = sg.datasets.tensor_completion(shape, 5, kappa=kappa, p=0.1, rng=kappa)
        X, operator = truth.full(), problem.operator
        model = sg.TensorCompletion(rank=5).fit_entries(operator.index, problem.y, shape)  # type: ignore[attr-defined]
        yield f"tensor completion 100^3, p = 0.1, kappa {kappa}", error(model, X), 1e-6
        rng = np.random.default_rng(kappa)
        size = math.sqrt(float(np.mean(X * X)))
        Y = X + (rng.random(shape) < 0.1) * size * rng.uniform(-10, 10, shape)
        robust_model = sg.TensorRobustPCA(rank=5).fit(Y)
        yield f"tensor robust PCA 100^3, 10 %, kappa {kappa}", error(robust_model, X), 1e-6


def noise() -> Iterator[Line]:
    """Compare the error with the oracle's, and the estimated noise variance with the true one."""
    for decibel in (20, 40):
        rng = np.random.default_rng(decibel)
        X = matrix((1000, 800), spectrum(10, 8), rng)
        sigma = 10 ** (-decibel / 20)
        seen = rng.random(X.shape) < 0.3
        Y = np.where(seen, X + sigma * rng.standard_normal(X.shape), np.nan)
        oracle = sigma * math.sqrt(8 * (1800 - 8) / seen.sum())
        for rank, most in ((8, 1.08), (24, 1.08 * 1.2)):
            model = sg.MatrixCompletion(rank=rank).fit(Y)
            name = f"{decibel} dB, rank {rank} given"
            yield f"{name}: error over the oracle's", error(model, X) / oracle, most
            off = abs(model.noise_variance_ / sigma**2 - 1)
            yield f"{name}: variance of the noise off by", off, 0.05


def rank() -> Iterator[Line]:
    """Count how often rank="auto" misses the rank of a noisy matrix, of 100."""
    missed, total = 0, 100
    for seed in range(total):
        rng = np.random.default_rng(seed)
        while True:
            n1, n2 = rng.integers(150, 501, 2)
            r, kappa = int(rng.integers(1, 21)), 10 ** rng.uniform(0, 2)
            p, decibel = rng.uniform(0.3, 0.8), rng.uniform(20, 60)
            singular = spectrum(kappa, r)
            singular = singular * math.sqrt(n1 * n2 / np.sum(singular**2))
            sigma = 10 ** (-decibel / 20)
            visible = singular[-1] >= 3 * sigma * math.sqrt(max(n1, n2) / p)
            if visible and p * n1 * n2 > 3 * r * (n1 + n2 - r):
                break
        X = matrix((n1, n2), spectrum(kappa, r), rng)
        seen = rng.random(X.shape) < p
        Y = np.where(seen, X + sigma * rng.standard_normal(X.shape), np.nan)
        model = sg.MatrixCompletion(random_state=seed).fit(Y)
        if model.rank_ != r:
            missed += 1
            print(
                f"   {n1} x {n2}, rank {r}, found {model.rank_}, kappa {kappa:.1f}, p {p:.2f}, "
                f"{decibel:.0f} dB, {model.center_}, {model.scale_}"
            )
    yield f'ranks missed by rank="auto", of {total}', missed, 5


def random(total: int = 1000) -> Iterator[Line]:
    """Count random instances whose estimate is worse than the zero matrix."""
    worse = 0
    for seed in range(total):
        rng = np.random.default_rng(seed)
        n1, n2 = (int(10 ** rng.uniform(0.7, 2.2)) for _ in range(2))
        r = int(rng.integers(1, max(2, min(n1, n2, 20))))
        kappa, p = 10 ** rng.uniform(0, 4), rng.uniform(0.02, 1.0)
        sigma, size = 10 ** rng.uniform(-8, 1), 10 ** rng.uniform(-150, 150)
        X = matrix((n1, n2), spectrum(kappa, min(r, n1, n2)), rng)
        given = int(rng.integers(1, 2 * r + 1))
        Y = X + (sigma if rng.random() < 0.7 else 0.0) * rng.standard_normal(X.shape)
        Y = np.where(rng.random(X.shape) < p, Y, np.nan)
        if np.isnan(Y).all():
            continue
        with np.errstate(all="ignore"):
            model = sg.MatrixCompletion(rank=given).fit(Y * size)
            off = np.linalg.norm(model.reconstruct() / size - X) / np.linalg.norm(X)
        if not off <= 1.0:
            worse += 1
            print(
                f"   {seed}: {n1} x {n2}, rank {r}, given {given}, kappa {kappa:.1f}, p {p:.2f}, "
                f"noise {sigma:.2g}: {off:.4f}"
            )
    yield f"worse than the zero matrix, of {total}", worse, 0


PARTS: dict[str, Callable[..., Iterator[Line]]] = {
    part.__name__: part for part in (recovery, few, robust, tensors, noise, rank, random)
}


def run_part(name: str, part: Callable[[], Iterator[Line]], about: str | None) -> int:
    """Run a part and print its lines; return how many missed their limit."""
    missed, began = 0, time.perf_counter()
    print(f"{name}: {about or ''}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for what, value, most in part():
            good = value <= most
            missed += not good
            sign = "ok  " if good else "MISS"
            seconds = time.perf_counter() - began
            print(f"{sign} {what}: {value:.3g} (at most {most:g}), {seconds:.1f} s", flush=True)
            began = time.perf_counter()
    return missed


def main(arguments: list[str] | None = None) -> int:
    """Run the parts named on the command line, or all; return how many lines missed their limit."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.estimators", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    given = parser.parse_args(arguments)
    return sum(run_part(name, PARTS[name], PARTS[name].__doc__) for name in given.parts or PARTS)


if __name__ == "__main__":
    raise SystemExit(main())
