"""Measure tensors beyond the monograph: random starts, ten million entries, real data.

``python -m benchmarks.tensors`` runs all parts and prints what was measured. Name parts to run
only those:

- ``random``: random starts instead of spectral ones;
- ``sparse``: ten million entries of a 5,000 × 4,000 × 3,000 tensor, next to as many of a matrix;
- ``real``: real data against the same data unfolded (needs the real data, ``--data FOLDER``).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import scaledgd as sg
from scaledgd.experiments.runs import error_to, errors_of, free, needed

from . import real_data

N, R, ETA = 100, 5, 0.3


def _say(text: str, good: bool) -> bool:
    print(f"{text}  {'ok' if good else 'NOT AS EXPECTED'}", flush=True)
    return good


def random() -> bool:
    """Check that a random start costs a few more iterations, the same for every κ."""
    good, counts = True, []
    for kappa in (1, 5, 20):
        problem, truth = sg.datasets.tensor_completion((N,) * 3, R, kappa, 0.2, rng=0)
        start = sg.small_random(R, 1.0, rng=0)
        errors = errors_of(problem, start, sg.ScaledGD(ETA), error_to(truth), 200, 1e-10)
        counts.append(needed(errors, 1e-10))
        text = f"random  κ={kappa:<3} from a random start {counts[-1]:g} iterations to 1e-10"
        good &= _say(text, math.isfinite(counts[-1]))
    return good and free(counts)


def _peak() -> float:
    """Return the peak resident memory in GiB."""
    import resource  # Windows has none, where tests import this module

    unit = 2**30 if sys.platform == "darwin" else 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def sparse() -> bool:
    """Time an iteration on ten million entries, and check that memory stays below 6 GiB."""
    good, m, iterations = True, 10_000_000, 20
    for shape in ((5000, 4000, 3000), (50_000, 20_000)):
        rng = np.random.default_rng(0)
        flat = np.unique(rng.integers(0, math.prod(shape), m))
        index = np.unravel_index(flat, shape)
        del flat
        modes = tuple(rng.standard_normal((n, R)) / math.sqrt(n) for n in shape)
        truth: sg.Factors
        if len(shape) == 3:
            truth = sg.Tucker(modes, rng.standard_normal((R,) * 3))
        else:
            truth = sg.LowRank(*modes)
        start = sg.small_random(R, 1.0, rng=1)
        y = truth.at(index)
        problem = sg.Observed(sg.Entries(index, shape), y, scale=math.prod(shape) / y.size)
        del index
        method = sg.ScaledGD(1e-3, damping=1.0)  # only the cost of a step matters here
        result = sg.solve(problem, start, method, max_iter=iterations)
        seconds = result.history[-1]["seconds"] - result.history[0]["seconds"]
        sizes = " × ".join(f"{n:,}" for n in shape)
        good &= _say(
            f"sparse  {sizes}, {y.size:,} entries: {seconds / iterations:.2f} s per iteration, "
            f"peak memory {_peak():.2f} GiB",
            _peak() < 6,
        )
    return good


def _completed(problem: Any, start: Any, iterations: int) -> Any:
    """Return the estimate of a completion by ScaledGD with line search."""
    method = sg.ScaledGD(sg.line_search())
    return sg.solve(problem, start, method, max_iter=iterations).factors.full()


def hidden_errors(
    X: Any, p: float, ranks: tuple[int, ...], rank: int, mode: int, iterations: int = 60
) -> tuple[float, float]:
    """Return the relative errors on hidden entries, of the tensor and of its unfolding.

    Parameters
    ----------
    X : array of shape (n1, ..., nd)
    p : float
        Share of entries that are seen.
    ranks : tuple of int
        Multilinear rank of the tensor.
    rank : int
        Rank of the unfolding.
    mode : int
        Mode of the unfolding.
    iterations : int
    """
    seen = np.random.default_rng(0).random(X.shape) < p
    index = np.nonzero(seen)
    tensor = sg.Observed(sg.Entries(index, X.shape), X[index], scale=1 / p)
    estimate = _completed(tensor, sg.diagonal_deleted(ranks, tol=1e-6), iterations)

    def unfolded(A: Any) -> Any:
        return np.moveaxis(A, mode, 0).reshape(A.shape[mode], -1)

    index = np.nonzero(unfolded(seen))
    M = unfolded(X)
    matrix = sg.Observed(sg.Entries(index, M.shape), M[index], scale=1 / p)
    flat = _completed(matrix, sg.spectral(rank, tol=1e-6), iterations)
    hidden = np.linalg.norm(X[~seen])
    return (
        float(np.linalg.norm((estimate - X)[~seen]) / hidden),
        float(np.linalg.norm((flat - M)[~unfolded(seen)]) / hidden),
    )


def movers(frames: Any, rank: int = 2, iterations: int = 40) -> Any:
    """Return |X − background| of a video (time, height, width), by tensor robust PCA.

    Height and width are compressed no further than the rank in time implies, because a still
    background has low rank in time only.
    """
    X = np.moveaxis(np.asarray(frames, dtype=np.float64), 0, -1)
    problem = sg.Observed(sg.Full(X.shape), X, sg.SoftTrim(sg.median_threshold()))
    height, width, _ = X.shape
    ranks = (min(height, rank * width), min(width, rank * height), rank)
    result = sg.solve(problem, sg.hosvd(ranks, tol=1e-6), sg.ScaledGD(0.4), max_iter=iterations)
    return np.moveaxis(np.abs(X - result.factors.full()), -1, 0)


def f_measure(difference: Any, truth: Any, level: float = 25.0) -> float:
    """Return the F-measure of the pixels above `level`; in `truth` 255 moves, 0 and 50 do not."""
    found, moving, still = difference > level, truth == 255, (truth == 0) | (truth == 50)
    hits = np.sum(found & moving)
    return float(2 * hits / (2 * hits + np.sum(found & still) + np.sum(~found & moving)))


def real(folder: Path) -> bool:
    """Check on real data that the tensor predicts hidden entries better than its unfolding."""
    good = True
    for name, p, ranks, rank, mode in (
        ("metr-la-week", 0.5, (20, 20, 7), 12, 0),
        ("indian-pines", 0.1, (30, 30, 8), 4, 2),
    ):
        X = real_data.load(folder, name)["X"].astype(np.float64)
        tensor, matrix = hidden_errors(X, p, ranks, rank, mode)
        good &= _say(
            f"real  {name}, {p:.0%} seen, error on the hidden entries: tensor {ranks} "
            f"{tensor:.4f}, unfolded (rank {rank}) {matrix:.4f}",
            tensor < matrix,
        )
    video = real_data.load(folder, "highway-cdnet")
    for rank in (1, 2):
        since = time.perf_counter()
        score = f_measure(movers(video["frames"], rank), video["gt"])
        seconds = time.perf_counter() - since
        good &= _say(
            f"real  highway-cdnet, movers by tensor robust PCA, rank {rank} in time: F-measure "
            f"{score:.3f} in {seconds:.0f} s",
            score > 0.7,
        )
    return good


PARTS: dict[str, Callable[..., bool]] = {"random": random, "sparse": sparse, "real": real}


def main(arguments: list[str] | None = None) -> int:
    """Run the parts named on the command line, or all; return 0 if all is as expected."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tensors",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}")
    real_data.add_option(parser)
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown: {sorted(unknown)}; there are {', '.join(PARTS)}")
    folder, good = real_data.find_folder(options.data), True
    for name in options.parts or PARTS:
        if name != "real":
            good &= PARTS[name]()
        elif folder is None:
            real_data.left_out(name)
        else:
            good &= real(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
