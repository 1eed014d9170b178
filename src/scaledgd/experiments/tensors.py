"""The tensor experiments of the monograph and its companion papers, at full size.

``python -m scaledgd.experiments.tensors`` runs them all and prints what was measured next to
what is expected; name parts to run some:

- ``figure2``: iterations to 1e-3 of tensor completion over κ, ScaledGD, plain gradient
  descent and regularised gradient descent (about ten minutes);
- ``robust``: tensor robust PCA with 5 % and 20 % corruptions to 1e-10;
- ``noise``: the floors that ScaledGD and gradient descent reach at 40, 60 and 80 dB;
- ``random``: from random starts instead of spectral ones;
- ``sparse``: ten million entries of a 5,000 × 4,000 × 3,000 tensor, next to as many of a matrix;
- ``real``: real data against the same data unfolded (needs ``--data``, a folder of npz files).
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import scaledgd as sg

from .iterations import counts, run_parts, show, verdict

N, R, P, ETA = 100, 5, 0.1, 0.3


def _run(problem: Any, start: Any, truth: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
    return problem, start, lambda F: sg.metrics.relative_error(F, truth)


def _say(text: str, good: bool) -> bool:
    print(f"{text}  {'ok' if good else 'NOT AS EXPECTED'}", flush=True)
    return good


def figure2(_: Path | None) -> bool:
    """Fig. 2: 16 or 17 iterations for every κ, while gradient descent slows down as κ²."""
    good = True
    expected = {1: 16, 2: 52, 5: 412, 10: 2324}
    # the step is η/σ²_max for the factors and η for the core, and σ_max = 1
    descents = {"plain": sg.GradientDescent(ETA), "regularised": sg.GradientDescent(ETA, 0.1)}
    for kappa in (1, 2, 5, 10, 20):
        needed: dict[str, list[float]] = {"ScaledGD": [], "plain": [], "regularised": []}
        for seed in range(3):
            problem, truth = sg.datasets.tensor_completion((N,) * 3, R, kappa, P, rng=seed)
            run = _run(problem, sg.diagonal_deleted(R)(problem), truth)
            needed["ScaledGD"].append(counts(*run, sg.ScaledGD(ETA), 40, stop_at=1e-3)[0])
            run = _run(problem, sg.diagonal_deleted(R, variant="unbiased")(problem), truth)
            for name, method in descents.items():
                if kappa in expected and (name == "plain" or seed == 0):
                    limit = 2 * expected[kappa] + 20
                    needed[name].append(counts(*run, method, limit, stop_at=1e-3)[0])
        for name, found in needed.items():
            if not found:
                continue
            wanted = 16 if name == "ScaledGD" else expected[kappa]
            standing = verdict([(count,) for count in found], [wanted])
            good &= name == "regularised" or standing != "NOT AS EXPECTED"
            print(f"figure 2  κ={kappa:<3} {name:11s} {show(found):15s} expected {wanted}", end="")
            print("" if name == "regularised" else f"  {standing}", flush=True)
    return good


def robust(_: Path | None) -> bool:
    """Tensor robust PCA: 21/56/102 at 5 % for every κ, by the theory's schedule and without it."""
    good, eta = True, 0.4
    for fraction in (0.05, 0.2):
        for kappa in (1, 5, 20):
            problem, truth = sg.datasets.tensor_robust_pca((N,) * 3, R, kappa, fraction, rng=0)
            largest = float(np.max(np.abs(truth.full())))
            schedules: dict[str, Any] = {
                "theory": sg.thresholds(largest, largest, 1 - 0.45 * eta),
                "median": sg.median_threshold(),
            }
            for name, schedule in schedules.items():
                soft = sg.Observed(problem.operator, problem.y, sg.SoftTrim(schedule))
                found = counts(*_run(soft, sg.hosvd(R), truth), sg.ScaledGD(eta), 160)
                fine = math.isfinite(found[-1])
                if name == "theory" and fraction == 0.05:
                    fine &= all(abs(a - b) <= 2 for a, b in zip(found, (21, 56, 102), strict=True))
                text = f"robust  {fraction:.0%} corrupted  κ={kappa:<3} {name:7s} {show(found)}"
                good &= _say(text, fine)
    return good


def noise(_: Path | None) -> bool:
    """ScaledGD reaches the floor of gradient descent, in a time that does not depend on κ."""
    good, n = True, 60
    for decibel in (40, 60, 80):
        needed = []
        for kappa in (1, 5):
            rng = np.random.default_rng(0)
            truth = sg.datasets.low_rank_tensor((n,) * 3, R, kappa, rng)
            sigma = float(truth.norm()) / math.sqrt(n**3) / 10 ** (decibel / 20)
            index = np.nonzero(rng.random((n,) * 3) < 0.2)
            y = truth.at(index) + sigma * rng.standard_normal(index[0].shape)
            problem = sg.Observed(sg.Entries(index, (n,) * 3), y, scale=5.0)
            start = sg.diagonal_deleted(R)(problem)
            error = lambda F, truth=truth: sg.metrics.relative_error(F, truth)  # noqa: E731
            floors = {}
            for name, method, limit in (
                ("ScaledGD", sg.ScaledGD(ETA), 100),
                ("GD", sg.GradientDescent((ETA,) * 4), 150 if kappa == 1 else 2000),
            ):
                result = sg.solve(problem, start, method, max_iter=limit, metrics={"error": error})
                errors = np.asarray([record["error"] for record in result.history])
                floors[name] = errors[-1]
                if name == "ScaledGD":
                    needed.append(int(np.argmax(errors <= 1.1 * errors[-1])))
            ratio = floors["ScaledGD"] / floors["GD"]
            good &= _say(
                f"noise  {decibel} dB  κ={kappa}  floors {floors['ScaledGD']:.2e} (ScaledGD) and "
                f"{floors['GD']:.2e} (GD); ScaledGD was there after {needed[-1]}",
                0.9 < ratio < 1.1,
            )
        good &= _say(
            f"noise  {decibel} dB  iterations over κ: {needed}",
            max(needed) <= 1.1 * min(needed) + 2,
        )
    return good


def random(_: Path | None) -> bool:
    """A random start costs some iterations more, for every κ alike."""
    good = True
    needed = []
    for kappa in (1, 5, 20):
        problem, truth = sg.datasets.tensor_completion((N,) * 3, R, kappa, 0.2, rng=0)
        run = _run(problem, sg.small_random(R, 1.0, rng=0), truth)
        found = counts(*run, sg.ScaledGD(ETA), 200)
        needed.append(found[-1])
        text = f"random  κ={kappa:<3} from a random start {show(found)}"
        good &= _say(text, math.isfinite(found[-1]))
    return good and max(needed) <= 1.1 * min(needed) + 2


def _peak() -> float:
    """Peak resident memory in GiB."""
    unit = 2**30 if sys.platform == "darwin" else 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def sparse(_: Path | None) -> bool:
    """Ten million entries: time per iteration, and memory under 6 GiB."""
    good, m, iterations = True, 10_000_000, 20
    for shape in ((5000, 4000, 3000), (50_000, 20_000)):
        rng = np.random.default_rng(0)
        flat = np.unique(rng.integers(0, math.prod(shape), m))
        index = np.unravel_index(flat, shape)
        del flat
        truth: sg.Factors
        if len(shape) == 3:
            modes = tuple(rng.standard_normal((n, R)) / math.sqrt(n) for n in shape)
            truth = sg.Tucker(modes, rng.standard_normal((R,) * 3))
            start: Any = sg.small_random(R, 1.0, rng=1)
        else:
            truth = sg.LowRank(*(rng.standard_normal((n, R)) / math.sqrt(n) for n in shape))
            start = sg.small_random(R, 1.0, rng=1)
        y = truth.at(index)
        problem = sg.Observed(sg.Entries(index, shape), y, scale=math.prod(shape) / y.size)
        del index
        method = sg.ScaledGD(1e-3, damping=1.0)  # what a step costs, not where it leads
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
    """The estimate of a completion whose steps are searched for."""
    method = sg.ScaledGD(sg.line_search())
    return sg.solve(problem, start, method, max_iter=iterations).factors.full()


def hidden_errors(
    X: Any, p: float, ranks: tuple[int, ...], rank: int, mode: int, iterations: int = 60
) -> tuple[float, float]:
    """Relative errors on the hidden entries, as a tensor and as its unfolding along a mode."""
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
    """|X − background| of a video (time, height, width), by tensor robust PCA over h × w × t.

    Height and width are compressed no further than the rank in time implies: a still
    background has low rank in time only.
    """
    X = np.moveaxis(np.asarray(frames, dtype=np.float64), 0, -1)
    problem = sg.Observed(sg.Full(X.shape), X, sg.SoftTrim(sg.median_threshold()))
    height, width, _ = X.shape
    ranks = (min(height, rank * width), min(width, rank * height), rank)
    result = sg.solve(problem, sg.hosvd(ranks, tol=1e-6), sg.ScaledGD(0.4), max_iter=iterations)
    return np.moveaxis(np.abs(X - result.factors.full()), -1, 0)


def f_measure(difference: Any, truth: Any, level: float = 25.0) -> float:
    """Of the pixels that differ by more than `level`: 255 moves, 0 and 50 do not."""
    found, moving, still = difference > level, truth == 255, (truth == 0) | (truth == 50)
    hits = np.sum(found & moving)
    return float(2 * hits / (2 * hits + np.sum(found & still) + np.sum(~found & moving)))


def real(data: Path | None) -> bool:
    """Real data: the tensor beats its unfolding on the hidden entries."""
    if data is None:
        print("real  needs --data FOLDER, with the npz files of the data sets; left out")
        return True
    good = True
    for name, file, p, ranks, rank, mode in (
        ("metr-la-week", "metr-la-week/metr_la_week.npz", 0.5, (20, 20, 7), 12, 0),
        ("indian-pines", "indian-pines/indian_pines.npz", 0.1, (30, 30, 8), 4, 2),
    ):
        X = np.load(data / file)["X"].astype(np.float64)
        tensor, matrix = hidden_errors(X, p, ranks, rank, mode)
        good &= _say(
            f"real  {name}, {p:.0%} seen, error on the hidden entries: tensor {ranks} "
            f"{tensor:.4f}, unfolded (rank {rank}) {matrix:.4f}",
            tensor < matrix,
        )
    video = np.load(data / "highway-cdnet/highway_300x120x160.npz")
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


PARTS = {
    "figure2": figure2,
    "robust": robust,
    "noise": noise,
    "random": random,
    "sparse": sparse,
    "real": real,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the parts named on the command line, or all; 0 if all is as expected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--data", type=Path, help="folder of the real data")
    options = parser.parse_args(arguments)
    parts = {name: partial(run, options.data) for name, run in PARTS.items()}
    return run_parts(parser, options.parts, parts)


if __name__ == "__main__":
    sys.exit(main())
