"""Per-iteration cost: ScaledGD, gradient descent, and methods that do more per iteration."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import scaledgd as sg

from ..report import Block, Chart, Curve, Table
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .runs import error_to

MOST, LEVEL = 1.3, 1e-6
"""Largest allowed cost relative to gradient descent; error to which iterations are counted."""


def cases(setting: Setting) -> list[Case]:
    """Return the problems to time, and one on which other methods are timed."""
    sizes = setting.pick(
        {"completion": 1500, "sensing": 40, "robust PCA": 400, "tensor completion": 60},
        {"completion": 2000, "sensing": 60, "robust PCA": 1000, "tensor completion": 100},
    )
    repeats = setting.pick(11, 21)
    found: list[Case] = [
        {"part": "step", "problem": problem, "n": n, "repeats": repeats, "seed": 0}
        for problem, n in sizes.items()
    ]
    n = setting.pick(500, 1000)
    return [*found, {"part": "others", "problem": "completion", "n": n, "repeats": 3, "seed": 0}]


def instance(problem: str, n: int, seed: int) -> tuple[Any, Any, Any]:
    """Return a problem of size n, its truth and its start."""
    if problem == "completion":
        return *sg.datasets.matrix_completion(n, n, 10, 10, 0.2, rng=seed), sg.spectral(10)
    if problem == "sensing":
        return *sg.datasets.matrix_sensing(n, n, 4, 10, 8 * n * 4, rng=seed), sg.spectral(4)
    if problem == "robust PCA":
        return *sg.datasets.robust_pca(n, n, 10, 10, 0.05, rng=seed), sg.spectral(10)
    given, truth = sg.datasets.tensor_completion((n,) * 3, 5, 5, 0.2, rng=seed)
    return given, truth, sg.diagonal_deleted(5)


def measure(part: str, problem: str, n: int, repeats: int, seed: int) -> list[Row]:
    """Time iterations of both methods side by side, or of all methods on completion."""
    given, truth, start = instance(problem, n, seed)
    begin = start(given)
    if part == "others":
        return _others(given, truth, begin, repeats)
    methods: dict[str, Any] = {"ScaledGD": sg.ScaledGD(0.3), "GD": sg.GradientDescent(0.3)}
    rows = []
    for repeat in range(repeats + 1):
        for name, method in methods.items():
            since = time.perf_counter()
            result = sg.solve(given, begin, method, max_iter=10)
            seconds = (time.perf_counter() - since) / result.n_iter
            if repeat:  # the first run warms the caches
                rows.append({"method": name, "repeat": repeat, "seconds": seconds})
    return rows


# ---- methods of the related work, on completion


Trajectory = list[tuple[float, Any]]
"""Seconds since the start, and the factors, at every iterate."""


def _others(given: Any, truth: Any, begin: sg.LowRank, repeats: int) -> list[Row]:
    """Time every method until its error is below LEVEL."""
    runs: dict[str, Callable[[], Trajectory]] = {
        "ScaledGD": lambda: _solved(given, begin, sg.ScaledGD(0.5), 80),
        "GD": lambda: _solved(given, begin, sg.GradientDescent(0.5), 500),
        "alternating minimisation": lambda: _solved(given, begin, sg.Alternating(), 30),
        "singular value projection": lambda: _projected(given, begin, 80),
        "Riemannian descent": lambda: _riemannian(given, begin, 80),
    }
    error, rows = error_to(truth), []
    for repeat in range(repeats):
        for name, run in runs.items():
            with threadpool_limits(1, "blas"):  # more threads slow small products down
                path = run()
            errors = np.asarray([float(error(F)) for _, F in path])
            below = np.flatnonzero(errors <= LEVEL)
            last = int(below[0]) if below.size else len(path) - 1
            seconds = path[last][0] - path[0][0]
            rows.append(
                {
                    "method": name,
                    "repeat": repeat,
                    "count": last if below.size else math.inf,
                    "seconds": seconds / max(1, last),
                    "total": seconds if below.size else math.inf,
                    "error": float(errors[last]),
                }
            )
    return rows


def _solved(given: Any, begin: Any, method: Any, limit: int) -> Trajectory:
    path = []

    def watch(state: sg.State) -> None:
        path.append((0.0, state.factors))

    result = sg.solve(given, begin, method, max_iter=limit, callback=watch)
    return [(r["seconds"], F) for r, (_, F) in zip(result.history, path, strict=True)]


def _residual(given: Any, X: sg.LowRank) -> Any:
    """Return the gradient in the ambient space, a sparse matrix."""
    from scipy.sparse import csr_matrix

    weights = given.scale * (X.at(given.operator.index) - given.y)
    return csr_matrix((weights, given.operator.index), shape=given.shape)


def _projected(given: Any, begin: sg.LowRank, limit: int) -> Trajectory:
    """Iterate X ← the best rank-r approximation of X − η ∇f(X), by a Lanczos SVD."""
    from scipy.sparse.linalg import LinearOperator, svds

    X, path, since = begin, [(0.0, begin)], time.perf_counter()
    for _ in range(limit):
        Z = 0.5 * _residual(given, X)

        def times(v: Any, X: Any = X, Z: Any = Z) -> Any:
            return X.L @ (X.R.T @ v) - Z @ v

        def back(v: Any, X: Any = X, Z: Any = Z) -> Any:
            return X.R @ (X.L.T @ v) - Z.T @ v

        stepped = LinearOperator(given.shape, matvec=times, rmatvec=back, matmat=times, dtype=float)
        U, s, Vt = svds(stepped, k=begin.rank, random_state=0)
        X = sg.LowRank(U * np.sqrt(s), Vt.T * np.sqrt(s))
        path.append((time.perf_counter() - since, X))
    return path


def _riemannian(given: Any, begin: sg.LowRank, limit: int) -> Trajectory:
    """Descend on the manifold of rank-r matrices: a tangent step, then a small SVD."""
    path, since, r = [(0.0, begin)], time.perf_counter(), begin.rank
    U, TU = np.linalg.qr(begin.L)
    V, TV = np.linalg.qr(begin.R)
    P, s, Qt = np.linalg.svd(TU @ TV.T)
    U, V = U @ P, V @ Qt.T
    for _ in range(limit):
        Z = _residual(given, sg.LowRank(U * s, V))
        ZV, ZU = Z @ V, Z.T @ U
        M = U.T @ ZV
        left, right = ZV - U @ M, ZU - V @ M.T
        # X − η P_T(Z) = [U, left] K [V, right]ᵀ with a 2r × 2r matrix K
        QU, RU = np.linalg.qr(np.concatenate([U, left], axis=1))
        QV, RV = np.linalg.qr(np.concatenate([V, right], axis=1))
        eta, one = 0.5, np.eye(r)
        K = np.block([[np.diag(s) - eta * M, -eta * one], [-eta * one, np.zeros((r, r))]])
        A, s, Bt = np.linalg.svd(RU @ K @ RV.T)
        U, s, V = QU @ A[:, :r], s[:r], QV @ Bt[:r].T
        path.append((time.perf_counter() - since, sg.LowRank(U * s, V)))
    return path


def judge(rows: Rows) -> Verdict:
    """Judge the time of an iteration compared with gradient descent and other methods."""
    steps, others = rows.where(part="step"), _medians(rows.where(part="others"))
    title = "Completion, κ = 10: iterations to 1e-6, and their cost"
    curves = [
        Curve(name, [m["count"]], [1e3 * m["seconds"]], points=True) for name, m in others.items()
    ]
    blocks: list[Block] = [
        _step_table(steps),
        _others_table(others, title),
        Chart(title, "iterations", "ms per iteration", curves, True, True),
    ]
    notes = [
        "Alternating minimisation solves every row exactly, with the compiled kernels; "
        "the other two use the sparse products and the Lanczos SVD of SciPy."
    ]
    return Verdict([*_step_claims(steps), _others_claim(others)], blocks, notes)


def _seconds(part: Rows) -> dict[str, Any]:
    """Return the times of an iteration by method."""
    return {method: found.column("seconds") for (method,), found in part.groups("method")}


def _ratio(seconds: dict[str, Any]) -> float:
    return float(np.median(seconds["ScaledGD"] / seconds["GD"]))


def _step_claims(steps: Rows) -> list[Claim]:
    claims = []
    for (problem,), part in steps.groups("problem"):
        seconds = _seconds(part)
        ratio = _ratio(seconds)
        claims.append(
            Claim(
                f"{problem}: an iteration costs at most {MOST} times one of gradient descent",
                f"{ratio:.2f} times, median of {len(seconds['GD'])} runs side by side",
                ratio <= MOST,
            )
        )
    return claims


def _step_table(steps: Rows) -> Table:
    lines = []
    for (problem,), part in steps.groups("problem"):
        seconds = _seconds(part)
        each = [1e3 * float(np.median(seconds[method])) for method in ("GD", "ScaledGD")]
        lines.append([problem, *each, _ratio(seconds)])
    return Table(["problem", "GD, ms", "ScaledGD, ms", "ratio"], lines, "Per iteration")


def _medians(others: Rows) -> dict[str, dict[str, float]]:
    """Return the medians over repeats, by method."""
    keys = ("seconds", "count", "total", "error")
    return {
        name: {key: float(np.median(part.column(key))) for key in keys}
        for (name,), part in others.groups("method")
    }


def _others_claim(others: dict[str, dict[str, float]]) -> Claim:
    base = others["ScaledGD"]["seconds"]
    return Claim(
        "an iteration is cheaper than one with a singular value decomposition",
        ", ".join(f"{name}: {m['seconds'] / base:.1f}" for name, m in others.items())
        + " times the time of an iteration of ScaledGD",
        others["singular value projection"]["seconds"] > base,
    )


def _others_table(others: dict[str, dict[str, float]], title: str) -> Table:
    base = others["ScaledGD"]
    lines = [
        [
            name,
            1e3 * m["seconds"],
            m["seconds"] / base["seconds"],
            m["count"],
            m["total"] / base["total"],
            m["error"],
        ]
        for name, m in others.items()
    ]
    head = [
        "method",
        "ms per iteration",
        "relative",
        "iterations to 1e-6",
        "relative time",
        "error",
    ]
    return Table(head, lines, title + " (relative to ScaledGD)")


ITEM = Item(
    "cost",
    "Per-iteration cost",
    "The cost of an iteration",
    "Times of iterations on the same problem from the same start, run alternately.",
    cases,
    measure,
    judge,
    alone=True,
)
