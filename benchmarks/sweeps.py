"""The cost of a sweep of `Variational` compared with one of `Alternating`, and with a floor.

    python -m benchmarks.sweeps                   10 million entries, ranks 16 and 32
    python -m benchmarks.sweeps --share 0.1       a tenth of them

Sweeps of both are timed in turn, because the speed of a machine changes, and medians compared. The
counts of entries per row and column follow power laws, as ratings and sales do. The floor counts
only the arithmetic and the data, as if reading factors were free.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import scaledgd as sg
from scaledgd.kernels import cpp
from scaledgd.state import State

from .kernels import bandwidth, flops
from .problems import skewed_index

Array = Any


def problem(shape: tuple[int, int], index: tuple[Array, Array], dtype: Any) -> sg.Observed:
    """Return noisy entries of a matrix of rank 16."""
    rng = np.random.default_rng(1)
    L, R = (rng.standard_normal((n, 16)) / 2 for n in shape)
    y = sg.Entries(index, shape).apply(sg.LowRank(L, R)) + 0.3 * rng.standard_normal(len(index[0]))
    return sg.Observed(sg.Entries(index, shape), y.astype(dtype))


def sweep(method: Callable[..., Any], state: State) -> State:
    """Return the next state, with its value, as the loop computes it."""
    factors, memory = method(state.problem, state)
    fresh = state.problem.linearize(factors, memory=state.memory).remembering(memory)
    float(fresh.value)
    return fresh


def beside(
    methods: list[Callable[..., Any]], state: State, repeats: int
) -> list[tuple[float, float]]:
    """Return the median seconds, of the clock and of the processor, of sweeps taken in turn."""
    states = [sweep(method, sweep(method, state)) for method in methods]
    spent: list[list[tuple[float, float]]] = [[] for _ in methods]
    for _ in range(repeats):
        for k, method in enumerate(methods):
            begun = time.perf_counter(), time.process_time()
            states[k] = sweep(method, states[k])
            spent[k].append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    return [
        (statistics.median(a for a, _ in times), statistics.median(b for _, b in times))
        for times in spent
    ]


def large(share: float, ranks: tuple[int, ...], repeats: int) -> None:
    """Compare the two methods on a large table."""
    shape = int(100_000 * share), int(20_000 * share)
    index = skewed_index(*shape, int(10_000_000 * share), np.random.default_rng(0).random)
    m, copied = len(index[0]), bandwidth()
    print(f"{shape[0]} × {shape[1]}, {m} entries; seconds per sweep")
    print("dtype    rank  Alternating  Variational  ratio  ratio of CPU time  floor")
    for dtype in (np.float64, np.float32):
        peak, size = flops(dtype), np.dtype(dtype).itemsize
        observed = problem(shape, index, dtype)
        for r in ranks:
            start = sg.small_random(r, 1.0, rng=0)
            state = sg.solve(observed, start, sg.Alternating(), max_iter=2).state
            (a, ca), (v, cv) = beside([sg.Alternating(), sg.Variational()], state, repeats)
            # twice the Gram matrices, right sides and data, and once a residual
            floor = m * max((2 * r * (r + 1) + 12 * r) / peak, 3 * (4 + size) / copied)
            name = np.dtype(dtype).name
            print(
                f"{name:8} {r:4}  {a:11.3f}  {v:11.3f}  {v / a:5.2f}  {cv / ca:17.2f}  {floor:.3f}"
            )


def small(repeats: int) -> None:
    """Compare compiled sweeps with whole covariances to those in NumPy."""
    print("\nwhole covariances, offsets of both sides; ms per sweep")
    print("shape        rank  noise         compiled   NumPy  ratio")
    for n1, n2, r in ((200, 20, 6), (1000, 50, 10), (1000, 50, 20)):
        rng = np.random.default_rng(0)
        index = np.nonzero(rng.random((n1, n2)) < 0.7)
        observed = problem((n1, n2), index, np.float64)
        ones = np.ones(n1), np.ones(n2)
        start = sg.Bordered(*(rng.standard_normal((n, r + 1)) for n in (n1, n2)), *ones)
        for columns in (False, True):
            method = sg.Variational(full=True, columns=columns)

            def slow(problem: Any, state: State, method: Any = method) -> Any:
                cpp.CppPattern.compiled = False
                try:
                    return method(problem, state)
                finally:
                    cpp.CppPattern.compiled = True

            (a, _), (b, _) = beside([method, slow], observed.linearize(start), 4 * repeats)
            kind = "of columns" if columns else "one level"
            print(f"{n1:5} × {n2:3}  {r:4}  {kind:12} {1e3 * a:9.2f}  {1e3 * b:6.2f}  {b / a:5.1f}")


def main() -> None:
    """Read the command line and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    with sg.kernels.cpp.threads.limited(1, None):  # the BLAS, as `solve` does
        large(asked.share, tuple(asked.ranks), asked.repeats)
        small(asked.repeats)


if __name__ == "__main__":
    main()
