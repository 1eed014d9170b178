"""Micro-benchmarks: what each kernel reaches of the machine's own memory bandwidth and flops."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


def best(work: Callable[[], Any], repeats: int = 5) -> float:
    """The least seconds of several runs."""
    found = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found)


def bandwidth(threads: int = 2) -> float:
    """Bytes per second of copying arrays that no cache holds, on some threads."""
    from concurrent.futures import ThreadPoolExecutor

    n = 8_000_000
    pairs = [(np.zeros(n), np.ones(n)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = best(lambda: list(pool.map(lambda p: np.copyto(*p), pairs)))
    return threads * 2 * 8 * n / seconds


def flops(dtype: Any) -> float:
    """Multiplications and additions per second of a large matrix product."""
    A = np.ones((1500, 1500), dtype=dtype)
    return float(2 * 1500**3 / best(lambda: A @ A))


def entries(n1: int, n2: int, m: int, seed: int = 0) -> tuple[Array, Array]:
    """Random places, in the order of rows."""
    rng = np.random.default_rng(seed)
    flat = np.unique(rng.integers(0, n1 * n2, int(1.02 * m)))
    return flat // n2, flat % n2


def table(share: float = 1.0, ranks: tuple[int, ...] = (8, 16, 32, 64)) -> list[dict[str, Any]]:
    """Every kernel, for 10 million entries (or a share of them)."""
    from scaledgd.kernels import _compiled as C

    n1, n2, m = int(50_000 * share), int(20_000 * share), int(10_000_000 * share**2)
    i, j = entries(n1, n2, m)
    m = len(i)
    sides = [C.sorted([i, j], [n1, n2], mode) for mode in (0, 1)]
    copied = bandwidth()
    rng, rows = np.random.default_rng(0), []
    for dtype in (np.float64, np.float32):
        peak = flops(dtype)
        size = np.dtype(dtype).itemsize
        y = rng.standard_normal(m).astype(dtype)
        ordered = [y, C.arranged(sides[1], y)]
        for r in ranks:
            L, R = (rng.standard_normal((n, r)).astype(dtype) for n in (n1, n2))
            eye = np.eye(r, dtype=dtype)

            def one(mode: int, x: Array, M: Array) -> Any:
                return C.one_pass(sides[mode], M, x, ordered[mode], None, False, True)

            def solve(mode: int, x: Array, M: Array, steps: int, spread: bool = False) -> Any:
                given = (x, None, ordered[mode], None, None, None, None)
                return C.solve_rows(
                    sides[mode], M[:, None, :], [], 0, eye, *given, 1e-10, steps, 0.0, spread
                )

            # bytes and flops that each must move at least, per entry: its index, its measurement
            # and, unless a cache holds the matrix, the row of it
            near = size + 4
            far = near + r * size
            kinds = {
                "residual and gradient by rows": (lambda: one(0, L, R), 4 * r, near, far),
                "residual and gradient by columns": (lambda: one(1, R, L), 4 * r, near, far),
                "least squares by rows": (
                    lambda: solve(0, L, R, 0),
                    r * (r + 1) + 4 * r,
                    near,
                    far,
                ),
                "four steps of conjugate gradients by rows": (
                    lambda: solve(0, L, R, 4),
                    4 * r * 5,
                    near,
                    far,
                ),
            }
            for name, (work, work_flops, least, most) in kinds.items():
                seconds = best(work, 3)
                rows.append(
                    {
                        "kernel": name,
                        "dtype": np.dtype(dtype).name,
                        "rank": r,
                        "ns": 1e9 * seconds / m,
                        "flops": work_flops * m / seconds / peak,
                        "bandwidth": most * m / seconds / copied,
                        "floor": 1e9 * max(least / copied, work_flops / peak),
                    }
                )
    return rows


# ---- growth


def growth(largest: int = 100_000_000) -> list[dict[str, Any]]:
    """Seconds per iteration of `Alternating` against |Ω|, the rank and the threads."""
    import scaledgd as sg
    from scaledgd.kernels import _compiled as C

    rows: list[dict[str, Any]] = []

    def iteration(m: int, r: int, threads: int, kind: str) -> None:
        # 50 entries per degree of freedom of a row, whatever the size
        n = max(200, round(m / 800))
        n1, n2 = 2 * n, n
        i, j = entries(n1, n2, min(m, n1 * n2 // 4), seed=m % 1000)
        rng = np.random.default_rng(0)
        problem = sg.Observed(sg.Entries((i, j), (n1, n2)), rng.standard_normal(len(i)))
        start = sg.LowRank(*(rng.standard_normal((k, r)) / r for k in (n1, n2)))
        before = C.get_num_threads()
        C.set_num_threads(threads)
        try:
            repeats = 3 if m < 20_000_000 else 2
            done = sg.solve(problem, start, sg.Alternating(), max_iter=repeats)
        finally:
            C.set_num_threads(before)
        spent = np.diff([record["seconds"] for record in done.history])
        seconds = float(min(spent[1:]))  # the first sorts the entries
        rows.append({"kind": kind, "entries": len(i), "rank": r, "threads": threads})
        rows[-1]["seconds"] = seconds

    sizes = [10**k for k in range(5, 9) if 10**k <= largest]
    for threads in (1, 2):
        for m in sizes:
            iteration(m, 16, threads, "entries")
    for r in (4, 8, 16, 32, 64, 128):
        iteration(1_000_000, r, 2, "rank")
    return rows
