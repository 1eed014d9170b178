"""Iterations to a relative error of 1e-3, 1e-6 and 1e-10 at full size, over κ.

``python -m scaledgd.experiments.iterations`` runs every matrix problem of the monograph
and its companion papers with ScaledGD and with gradient descent, prints the median counts
of three seeds next to the expected ones, and says whether ScaledGD is κ-free and gradient
descent is not. All of it takes about twenty minutes on two cores; name rows to run some.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import scaledgd as sg

LEVELS = (1e-3, 1e-6, 1e-10)
Counts = tuple[float, ...]
Run = tuple[Any, Any, Callable[[Any], Any], Any, Any]
"""problem, start, error of factors, ScaledGD, gradient descent"""


def _completion(kappa: float, rng: np.random.Generator) -> Run:
    problem, truth = sg.datasets.matrix_completion(1000, 1000, 10, kappa, p=0.2, rng=rng)
    return problem, sg.spectral(10), _error(truth), sg.ScaledGD(0.5), sg.GradientDescent(0.5)


def _sensing(kappa: float, rng: np.random.Generator) -> Run:
    problem, truth = sg.datasets.matrix_sensing(200, 200, 10, kappa, m=5 * 200 * 10, rng=rng)
    return problem, sg.spectral(10), _error(truth), sg.ScaledGD(0.5), sg.GradientDescent(0.5)


def _robust_pca(kappa: float, rng: np.random.Generator) -> Run:
    problem, truth = sg.datasets.robust_pca(1000, 1000, 10, kappa, fraction=0.1, rng=rng)
    return problem, sg.spectral(10), _error(truth), sg.ScaledGD(0.5), sg.GradientDescent(0.5)


def _hankel(kappa: float, rng: np.random.Generator) -> Run:
    problem, x = sg.datasets.hankel_completion(1000, 1000, 10, kappa, p=0.2, rng=rng)
    w = problem.lengths
    scale = np.sqrt(np.sum(w * np.abs(x) ** 2))

    def error(F: Any) -> Any:
        return np.sqrt(np.sum(w * np.abs(problem.signal(F) - x) ** 2)) / scale

    # a sinusoid of amplitude 1 has the singular value sqrt(n1 n2)
    return problem, sg.spectral(10), error, sg.ScaledGD(0.5), sg.GradientDescent(0.5 / 1000)


def _robust_sensing(kappa: float, rng: np.random.Generator) -> Run:
    problem, truth = sg.datasets.robust_sensing(100, 100, 10, kappa, 8000, 0.2, rng=rng)
    step = sg.polyak(_outliers(problem, truth))
    start = sg.spectral(10, keep=0.8)
    return problem, start, _error(truth), sg.ScaledGD(step), sg.GradientDescent(step)


def _quadratic(kappa: float, rng: np.random.Generator) -> Run:
    problem, truth = sg.datasets.quadratic_sampling(100, 5, kappa, 4000, 0.2, rng=rng)
    step = sg.polyak(_outliers(problem, truth))
    start = sg.spectral(5, keep=0.8)
    return problem, start, _error(truth), sg.ScaledGD(step), sg.GradientDescent(step)


def _error(truth: Any) -> Callable[[Any], Any]:
    return lambda F: sg.metrics.relative_error(F, truth)


def _outliers(problem: Any, truth: Any) -> float:
    """‖y⋆ − y‖₁, the optimal value that Polyak's step is told."""
    return float(problem.linearize(truth).value)


@dataclass(frozen=True)
class Row:
    """One line of the table; counts are None where more than `limit` are needed."""

    make: Callable[[float, np.random.Generator], Run]
    kappas: tuple[float, ...]
    scaled: tuple[tuple[int, int, int], ...]
    plain: tuple[tuple[int | None, int | None, int | None], ...]
    limits: tuple[int, ...]
    """Updates of gradient descent to make at each κ."""


ROWS = {
    "completion": Row(
        _completion,
        (2, 10, 50),
        ((15, 39, 74), (16, 40, 74), (19, 41, 75)),
        ((25, 65, 123), (168, 355, 639), (756, 1641, None)),
        (160, 800, 3000),
    ),
    "sensing": Row(
        _sensing,
        (1, 20),
        ((57, 142, 261), (60, 144, 261)),
        ((59, 144, 263), (None, None, None)),
        (320, 263),
    ),
    "robust_pca": Row(
        _robust_pca,
        (1, 10, 20),
        ((17, 55, 115), (17, 59, 124), (17, 57, 122)),
        ((17, 55, 115), (95, 370, None), (213, 773, None)),
        (150, 750, 1350),
    ),
    "hankel": Row(
        _hankel,
        (1, 20),
        ((9, 25, 46), (11, 27, 48)),
        ((9, 25, 46), (356, 592, 968)),
        (80, 1200),
    ),
    "robust_sensing": Row(
        _robust_sensing,
        (1, 20),
        ((53, 125, 220), (55, 126, 222)),
        ((53, 125, 221), (422, None, None)),
        (280, 600),
    ),
    "quadratic": Row(
        _quadratic,
        (1, 20),
        ((39, 86, 156), (40, 87, 157)),
        ((47, 97, 160), (352, 941, None)),
        (220, 1500),
    ),
}


def counts(
    problem: Any,
    start: Any,
    error: Callable[[Any], Any],
    method: Any,
    limit: int,
    stop_at: float = LEVELS[-1],
) -> Counts:
    """The first iteration at or below each level; infinite where `limit` is not enough."""
    errors: list[float] = []

    def watch(state: sg.State) -> bool:
        errors.append(float(error(state.factors)))
        return errors[-1] <= stop_at

    sg.solve(problem, start, method, max_iter=limit, callback=watch)
    reached = np.asarray(errors)[:, None] <= np.asarray(LEVELS)[None, :]
    return tuple(float(np.argmax(r)) if r.any() else math.inf for r in reached.T)


def verdict(runs: list[Counts], expected: Iterable[int | None]) -> str:
    """How the counts of several draws stand to the expected ones.

    "ok" if every median is within 10 % or 2 iterations; "within the draws" if the expected
    counts are so close to what some draws between them needed: how long the start takes to
    be forgotten, and so the counts of gradient descent above all, varies from draw to draw.
    Where more than the limit is expected, it must not be reached.
    """
    standing = "ok"
    for found, e in zip(zip(*runs, strict=True), expected, strict=True):
        if e is None:
            if not all(math.isinf(f) for f in found):
                return "NOT AS EXPECTED"
            continue
        slack = max(2, 0.1 * e)
        if abs(median(found) - e) > slack:
            standing = "within the draws"
        if not min(found) - slack <= e <= max(found) + slack:
            return "NOT AS EXPECTED"
    return standing


def kappa_free(columns: Iterable[Counts]) -> bool:
    """At each level the largest count is at most 1.1 times the smallest plus 2."""
    return all(max(c) <= 1.1 * min(c) + 2 for c in zip(*columns, strict=True))


def show(values: Iterable[float | None]) -> str:
    return "/".join(">" if v is None or math.isinf(v) else f"{v:g}" for v in values)


def run_row(name: str, row: Row, seeds: int, scaled_only: bool) -> bool:
    """Measure one row, print it, and say whether all of it is as expected."""
    good = True
    measured: dict[str, list[Counts]] = {"ScaledGD": [], "GD": []}
    for kappa, scaled, plain, limit in zip(
        row.kappas, row.scaled, row.plain, row.limits, strict=True
    ):
        runs: dict[str, list[Counts]] = {"ScaledGD": [], "GD": []}
        for seed in range(seeds):
            # only σ differs between κ
            problem, start, error, fast, slow = row.make(kappa, np.random.default_rng(seed))
            runs["ScaledGD"].append(counts(problem, start, error, fast, 2 * scaled[-1]))
            if not scaled_only:
                runs["GD"].append(counts(problem, start, error, slow, limit))
        for method, expected in (("ScaledGD", scaled), ("GD", plain)):
            if not runs[method]:
                continue
            middle = tuple(median(c) for c in zip(*runs[method], strict=True))
            if kappa <= 20:  # "κ-free" is a statement about κ = 1 … 20
                measured[method].append(middle)
            standing = verdict(runs[method], expected)
            good &= standing != "NOT AS EXPECTED"
            seen = " ".join(show(c) for c in runs[method])
            print(
                f"{name:15s} κ={kappa:<4g} {method:9s} {show(middle):15s} expected "
                f"{show(expected):15s} {standing}  (draws: {seen})",
                flush=True,
            )
    free = kappa_free(measured["ScaledGD"])
    print(f"{name:15s} ScaledGD is {'' if free else 'NOT '}κ-free", end="")
    slowed = not measured["GD"] or not kappa_free(measured["GD"])
    if measured["GD"]:
        print(f", GD is {'not' if slowed else 'κ-free TOO'}", end="")
    print(flush=True)
    return good and free and slowed


def main(arguments: list[str] | None = None) -> int:
    """Run the rows named on the command line, or all; 0 if all is as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="row", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scaled-only", action="store_true", help="leave gradient descent out")
    options = parser.parse_args(arguments)
    rows = {
        name: partial(run_row, name, row, options.seeds, options.scaled_only)
        for name, row in ROWS.items()
    }
    return run_parts(parser, options.rows, rows)


def run_parts(
    parser: argparse.ArgumentParser, names: list[str], parts: Mapping[str, Callable[[], bool]]
) -> int:
    """Run the parts named, or all, with their times; 0 if all of them are as expected."""
    unknown = set(names) - set(parts)
    if unknown:
        parser.error(f"unknown: {sorted(unknown)}; there are {', '.join(parts)}")
    good = True
    for name in names or parts:
        since = time.perf_counter()
        good &= parts[name]()
        print(f"{name} took {time.perf_counter() - since:.0f} s\n", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
