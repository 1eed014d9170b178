"""Measure kernels and fits on a CUDA device: ``python -m benchmarks --device cuda``.

Every time is the median of several, after one that compiles and warms up; accuracy is printed
beside it. Passes are compared with the bandwidth of a copy on the device.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import scaledgd as sg
from scaledgd.distributed.streaming import LIMIT
from scaledgd.kernels import UnsureRows, backend

from .problems import factors, skewed_index

Array = Any

DEVICE = "cuda"

SIZES = {
    "netflix": (480_189, 17_770, 105_000_000),
    "billion": (2_000_000, 500_000, 1_000_000_000),
}


def finished() -> float:
    """Return the time when the device has finished all its work."""
    torch.cuda.synchronize()
    return time.perf_counter()


def timed(work: Callable[[], Any], repeats: int = 5) -> float:
    """Return the median time of some work, in seconds."""
    work()
    times = []
    for _ in range(repeats):
        began = finished()
        work()
        times.append(finished() - began)
    return statistics.median(times)


def skewed(n1: int, n2: int, m: int, rank: int = 16, noise: float = 0.3) -> tuple[Array, ...]:
    """Return entries whose counts per row and column follow power laws, and what to hold out.

    Parameters
    ----------
    n1, n2 : int
    m : int
        Entries to draw; repeated ones are dropped.
    rank : int
        Of the truth, whose condition number is 10 and whose entries have mean square 1.
    noise : float
    """
    rng = torch.Generator(DEVICE).manual_seed(0)
    here: Any = {"generator": rng, "device": DEVICE}
    i, j = skewed_index(n1, n2, m, lambda n: torch.rand(n, dtype=torch.float64, **here))
    y = sg.LowRank(*factors(n1, n2, rank, 10, lambda n: torch.randn(n, **here))).gather((i, j))
    y += noise * torch.randn(y.shape[0], **here)
    return i, j, y, torch.rand(y.shape[0], **here) < 0.02


def bandwidth() -> float:
    """Return the bytes per second that a copy on the device reads and writes."""
    x = torch.empty(1 << 30, dtype=torch.float32, device=DEVICE).normal_()
    y = torch.empty_like(x)
    return 2 * x.nbytes / timed(lambda: y.copy_(x))


def kernels(ranks: tuple[int, ...] = (16, 32, 64, 128)) -> Iterator[str]:
    """Yield how fast single passes are, and what share of the floor they reach.

    The floor of a pass is the time to read its entries, and one row of a factor for each, at the
    rate of a copy. Factors may be in the cache of the device, so a share can exceed 1.
    """
    n1, n2, m = SIZES["netflix"]
    i, j, y, _ = skewed(n1, n2, m)
    rate, size = bandwidth(), y.shape[0]
    yield f"copy {rate / 1e12:.2f} TB/s; {size:,} entries"
    both = torch.randperm(size, device=DEVICE)
    i, j, y = i[both], j[both], y[both]
    kernel = backend(y)
    pattern: Any = None

    def sort() -> None:
        nonlocal pattern
        pattern = kernel.pattern((i, j), (n1, n2))
        for mode in (0, 1):
            pattern.arranged(y, mode)

    yield f"sorting by rows and by columns {1e3 * timed(sort):.1f} ms"
    for r in ranks:
        F = [0.1 * torch.randn(n, r, device=DEVICE) for n in (n1, n2)]
        C = [torch.rand(n, r, device=DEVICE) for n in (n1, n2)]
        floor = size * (4 + 4 + 4 * r) / rate
        for k, side in ((0, "rows"), (1, "columns")):
            system = UnsureRows(F[1 - k], C[1 - k], torch.ones(r, device=DEVICE), 0.1, k)

            def gradient(k: int = k, F: list[Array] = F) -> Any:
                return pattern.squares_and_gradient(F[k], F[1 - k], y, k)

            def update(k: int = k, F: list[Array] = F, system: UnsureRows = system) -> Any:
                return pattern.update_rows(system, F[k], y)

            one, other = timed(gradient), timed(update)
            flops = 2.0 * size * r * r + 2.0 * (n1, n2)[k] * r**3
            yield (
                f"r = {r:3d}, {side:7s}: gradient {1e3 * one:6.1f} ms ({floor / one:4.0%} of the "
                f"floor), systems solved {1e3 * other:6.1f} ms ({flops / other / 1e12:.1f} TFLOP/s)"
            )


def shapes(widths: tuple[int, ...] = (16, 32, 64, 128), m: int = 25_000_000) -> Iterator[str]:
    """Yield the time of the row systems for every launch configuration, the fastest last.

    Use it to choose `scaledgd.kernels.gpu.backend.SHAPES`. Compiling takes some minutes.
    """
    from scaledgd.kernels.gpu import backend as gpu

    n1, n2, _ = SIZES["netflix"]
    i, j, y, _ = skewed(n1 // 4, n2, m)
    pattern: Any = backend(y).pattern((i, j), (n1 // 4, n2))
    for r in widths:
        F = [0.1 * torch.randn(n, r, device=DEVICE) for n in pattern.shape]
        ones = torch.ones(r, device=DEVICE)
        systems = [UnsureRows(F[1 - k], 0.1 + F[1 - k] ** 2, ones, 0.1, k) for k in (0, 1)]

        def sweep(F: list[Array] = F, systems: list[UnsureRows] = systems) -> None:
            for k in (0, 1):
                pattern.update_rows(systems[k], F[k], y)

        before, found = gpu.SHAPES[r], {}
        for shape in tried(r, before):
            gpu.SHAPES[r] = shape
            try:
                found[shape] = timed(sweep, 3)
            except Exception as error:  # too much shared memory
                yield f"r = {r:3d}, {shape}: {type(error).__name__}"
        gpu.SHAPES[r] = before
        for shape, seconds in sorted(found.items(), key=lambda pair: -pair[1]):
            now = "  <- now" if shape == before else ""
            yield f"r = {r:3d}, {shape}: {1e3 * seconds:7.1f} ms{now}"


def tried(r: int, now: Any) -> Iterator[Any]:
    """Yield the configurations to try for a width, the current one first."""
    yield now
    entries, warps = ((32, 64), (1, 2)) if r <= 32 else ((16, 32), (2, 4, 8))
    for one in itertools.product(entries, warps, (1, 2, 4, 8, 16, 32), (1, 2)):
        few = one[1] * one[2] <= 64  # warps that fit on a multiprocessor
        if few and one != tuple(now):
            yield type(now)(*one)


def fitted(size: str, rank: Any, true: int = 16, repeats: int = 3) -> str:
    """Return the time of a fit, and its error on held-out entries."""
    n1, n2, m = SIZES[size]
    i, j, y, test = skewed(n1, n2, m, true)
    at, truth = (i[test], j[test]), y[test]
    i, j, y = i[~test], j[~test], y[~test]
    torch.cuda.empty_cache()
    model: Any = None

    def fit() -> None:
        nonlocal model
        model = None
        model = sg.MatrixCompletion(rank=rank).fit_entries((i, j), y, (n1, n2))

    seconds = timed(fit, repeats)
    error = torch.sqrt(torch.mean((model.predict_entries(at) - truth) ** 2))
    return (
        f"{size}, {y.shape[0]:,} entries, rank {rank}: {seconds:.2f} s, rank {model.rank_}, "
        f"{model.n_iter_} iterations, RMSE {error:.4f}"
    )


def streamed(rank: int = 32) -> str:
    """Return the time of a fit that may use half of the memory that its entries need."""
    n1, n2, m = SIZES["netflix"]
    *index, y, _ = skewed(n1, n2, m)
    here = [tuple(index), y]
    host = tuple(x.cpu() for x in index), y.cpu().pin_memory()
    size, some = y.shape[0], tuple(x[:9] for x in host[0])
    del index, y
    model: Any = None

    def fit(index: Any, values: Any) -> None:
        nonlocal model
        model = None
        model = sg.MatrixCompletion(rank=rank).fit_entries(index, values, (n1, n2))

    whole = timed(lambda: fit(*here), 3)
    expected = model.predict_entries(some).cpu()
    here.clear()
    torch.cuda.empty_cache()
    each = sum(x.itemsize for x in (*host[0], host[1]))
    os.environ[LIMIT] = str(each * size // 2)
    try:
        seconds = timed(lambda: fit(*host), 3)
    finally:
        del os.environ[LIMIT]
    off = model.predict_entries(some) - expected
    return (
        f"{size:,} entries, rank {rank}: {whole:.2f} s on the GPU, {seconds:.2f} s from the host "
        f"({seconds / whole:.1f} times); {model.status_}; largest difference {off.abs().max():.1e}"
    )


def video(frames: int = 1000, height: int = 720, width: int = 1280) -> str:
    """Return the time to separate moving squares from a changing background."""
    rng = torch.Generator(DEVICE).manual_seed(0)
    t = torch.linspace(0, 1, frames, device=DEVICE)
    light = torch.stack([torch.ones_like(t), torch.sin(6 * t), t], 1)
    X = light @ torch.rand(3, height * width, generator=rng, device=DEVICE)
    X = X.reshape(frames, height, width)
    moving = torch.zeros_like(X, dtype=torch.bool)
    for f in range(frames):
        top, left = f * (height - 100) // frames, 3 * f % (width - 100)
        moving[f, top : top + height // 8, left : left + width // 12] = True
    X[moving] = 2.5
    X += 0.01 * torch.randn(X.shape, generator=rng, device=DEVICE)
    X, moving = X.reshape(frames, -1), moving.reshape(frames, -1)
    model: Any = None

    def fit() -> None:
        nonlocal model
        model = sg.RobustPCA().fit(X)

    seconds = timed(fit, 3)
    found = torch.zeros_like(moving)
    found[tuple(torch.as_tensor(c, device=DEVICE) for c in model.outliers_.coords)] = True
    both = int((found & moving).sum())
    return (
        f"video of {frames} frames of {height} x {width}: {seconds:.2f} s, rank {model.rank_}, "
        f"recall {both / int(moving.sum()):.4f}, precision {both / int(found.sum()):.4f}"
    )


def tensor(shape: tuple[int, ...] = (5000, 4000, 3000), m: int = 100_000_000, r: int = 8) -> str:
    """Return the time and the error of a tensor fit of given ranks."""
    rng = torch.Generator(DEVICE).manual_seed(0)
    flat = torch.unique(
        torch.randint(shape[0] * shape[1] * shape[2], (m,), generator=rng, device=DEVICE)
    )
    index = (flat // (shape[1] * shape[2]), flat // shape[2] % shape[1], flat % shape[2])
    del flat
    factors = tuple(torch.randn(n, r, generator=rng, device=DEVICE) for n in shape)
    core = torch.randn(r, r, r, generator=rng, device=DEVICE) / r**1.5
    y = sg.Tucker(factors, core).gather(index)
    truth = y[:1_000_000].clone()
    y += 0.1 * torch.randn(y.shape[0], generator=rng, device=DEVICE)
    model: Any = None

    def fit() -> None:
        nonlocal model
        model = sg.TensorCompletion(rank=(r, r, r)).fit_entries(index, y, shape)

    seconds = timed(fit, 3)
    off = model.predict_entries(tuple(x[:1_000_000] for x in index)) - truth
    return (
        f"tensor {shape}, {y.shape[0]:,} entries, ranks {r}: {seconds:.2f} s, error without noise "
        f"{torch.linalg.vector_norm(off) / torch.linalg.vector_norm(truth):.5f}"
    )


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "kernels": kernels,
    "streamed": lambda: iter([streamed()]),
    "given": lambda: iter([fitted("netflix", 32)]),
    "auto": lambda: iter([fitted("netflix", "auto")]),
    "wide": lambda: iter([fitted("netflix", 64, 32, 1), fitted("netflix", 128, 32, 1)]),
    "billion": lambda: iter([fitted("billion", 32, repeats=1)]),
    "video": lambda: iter([video()]),
    "tensor": lambda: iter([tensor()]),
}


CHOOSING: dict[str, Callable[[], Iterator[str]]] = {"shapes": shapes}
"""Parts that are run only if they are named."""


def main(parts: list[str]) -> None:
    """Print the measurements of some parts, or of all."""
    known = {**PARTS, **CHOOSING}
    unknown = set(parts) - set(known)
    if unknown:
        raise SystemExit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__, flush=True)
    for name in parts or PARTS:
        for line in known[name]():
            print(line, flush=True)
        torch.cuda.empty_cache()
