"""Micro-benchmarks: compare kernels with the memory bandwidth and flops of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import scaledgd as sg
from scaledgd.kernels import _compiled as C  # noqa: N812

Array = Any


def best(work: Callable[[], Any], repeats: int = 5) -> float:
    """Return the least seconds of several runs."""
    found = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found)


def bandwidth(threads: int = 2) -> float:
    """Return the bytes per second of copying arrays too large for the caches."""
    from concurrent.futures import ThreadPoolExecutor

    n = 8_000_000
    pairs = [(np.zeros(n), np.ones(n)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = best(lambda: list(pool.map(lambda p: np.copyto(*p), pairs)))
    return threads * 2 * 8 * n / seconds


def flops(dtype: Any) -> float:
    """Return the multiplications and additions per second of a large matrix product."""
    A = np.ones((1500, 1500), dtype=dtype)
    return float(2 * 1500**3 / best(lambda: A @ A))


def entries(n1: int, n2: int, m: int, seed: int = 0) -> tuple[Array, Array]:
    """Return random coordinates sorted by row, equally many per row."""
    rng = np.random.default_rng(seed)
    each = max(1, m // n1)
    width = n2 // each
    columns = rng.integers(0, width, (n1, each), dtype=np.int32) + width * np.arange(each)
    return np.repeat(np.arange(n1), each), columns.ravel()


def table(share: float = 1.0, ranks: tuple[int, ...] = (8, 16, 32, 64)) -> list[dict[str, Any]]:
    """Measure every kernel on 10 million entries, or on a share of them."""
    n1, n2, m = int(50_000 * share), int(20_000 * share), int(10_000_000 * share**2)
    i, j = entries(n1, n2, m)
    m = len(i)
    sides = [C.sorted([i, j], [n1, n2], mode) for mode in (0, 1)]
    copied = bandwidth()
    rng, rows = np.random.default_rng(0), []
    for dtype in (np.float64, np.float32):
        peak, size = flops(dtype), np.dtype(dtype).itemsize
        y = rng.standard_normal(m).astype(dtype)
        ordered = [y, C.arranged(sides[1], y)]
        for r in ranks:
            factors = [rng.standard_normal((n, r)).astype(dtype) for n in (n1, n2)]
            kinds = {
                "residual and gradient by rows": (partial(_pass, 0), 4 * r),
                "residual and gradient by columns": (partial(_pass, 1), 4 * r),
                "least squares by rows": (partial(_solve, 0, 0), r * (r + 1) + 4 * r),
                "four conjugate-gradient steps by rows": (partial(_solve, 0, 4), 20 * r),
            }
            for name, (work, needed) in kinds.items():
                seconds = best(partial(work, sides, factors, ordered), 3)
                # an entry reads its column, its measurement and a row of the factor
                moved = 4 + size + r * size
                record = {"kernel": name, "dtype": np.dtype(dtype).name, "rank": r}
                record |= {"ns": 1e9 * seconds / m, "flops": needed * m / seconds / peak}
                record |= {"bandwidth": moved * m / seconds / copied}
                # a lower bound, as if reading factors were free
                record |= {"floor": 1e9 * max((4 + size) / copied, needed / peak)}
                rows.append(record)
    return rows


def _pass(mode: int, sides: Any, factors: Any, ordered: Any) -> Any:
    x, M = factors[mode], factors[1 - mode]
    return C.one_pass(sides[mode], M, x, ordered[mode], None, False, True)


def _solve(mode: int, steps: int, sides: Any, factors: Any, ordered: Any) -> Any:
    x, M = factors[mode], factors[1 - mode]
    given = x, None, ordered[mode], None, None, None, None
    eye = np.eye(M.shape[1], dtype=M.dtype)
    return C.solve_rows(sides[mode], M[:, None, :], [], 0, eye, *given, 1e-10, steps, 0.0, False)


# ---- growth


def growth(largest: int = 100_000_000) -> list[dict[str, Any]]:
    """Measure seconds per iteration of `Alternating` over entries, rank and threads."""
    rows: list[dict[str, Any]] = []

    def iteration(m: int, r: int, threads: tuple[int, ...], kind: str) -> None:
        n = max(200, round(m / 800))  # large problems have 400 entries per row and 800 per column
        n1, n2 = 2 * n, n
        i, j = entries(n1, n2, min(m, n1 * n2 // 4))
        rng = np.random.default_rng(0)
        problem = sg.Observed(sg.Entries((i, j), (n1, n2)), rng.standard_normal(len(i)))
        start = sg.LowRank(*(rng.standard_normal((k, r)) / r for k in (n1, n2)))
        for number in threads:
            with threadpool_limits(limits=number):
                done = sg.solve(problem, start, sg.Alternating(), max_iter=3)
            spent = np.diff([record["seconds"] for record in done.history])
            record = {"kind": kind, "entries": len(i), "rank": r, "threads": number}
            rows.append({**record, "seconds": float(min(spent[1:]))})  # the first sorts the entries

    for m in (10**k for k in range(5, 9) if 10**k <= largest):
        iteration(m, 16, (1, 2), "entries")
    for r in (4, 8, 16, 32, 64, 128):
        iteration(1_000_000, r, (2,), "rank")
    return rows
