"""``scaledgd demo``: hide a fifth of the bundled sensor data, fill it, and compare."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import scaledgd as sg

from .. import report
from .failures import Failure, check_chlorine, check_output

Array = Any
HIDDEN = 0.2


@dataclass(frozen=True)
class Score:
    """How well a method filled what was hidden."""

    method: str
    error: float
    """‖filled − true‖ / ‖true‖ over the hidden cells."""
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class Demonstration:
    """The table (time × sensor), what was hidden, and what every method made of it."""

    data: sg.datasets.Chlorine
    X: Array
    hidden: Array
    model: Any
    filled: dict[str, Array]
    scores: tuple[Score, ...]


def demonstrate(
    path: str | os.PathLike[str] | None = None,
    seed: int = 0,
    watch: Callable[[str], None] = lambda method: None,
) -> Demonstration:
    """Hide cells, fill them by scaledgd and by three others, and compare with the truth.

    Parameters
    ----------
    path : path, optional
        A copy of the real data, see `scaledgd.datasets.load_chlorine`.
    seed : int
        Which cells are hidden.
    watch : callable
        Told which method comes next.

    Examples
    --------
    >>> from scaledgd.cli.demo import demonstrate
    >>> found = demonstrate()
    >>> best = min(found.scores, key=lambda score: score.error)
    >>> best.method
    'scaledgd'
    """
    data = sg.datasets.load_chlorine(path)
    X = data.X.T
    rng = np.random.default_rng(seed)
    hidden = rng.random(X.shape) < HIDDEN
    table = np.where(hidden, np.nan, X)
    model = sg.MatrixCompletion(random_state=seed)
    ways: dict[str, Callable[[], tuple[Array, str]]] = {
        "column means": lambda: (_column_means(table), ""),
        "gradient descent": lambda: _gradient_descent(table, rng),
        "SoftImpute-like": lambda: _soft_impute(table, rng),
        "scaledgd": lambda: (model.fit_transform(table), "nothing was tuned"),
    }
    filled, scores = {}, []
    for name, way in ways.items():
        watch(name)
        # threads of the BLAS are no help with matrices as small as this
        with threadpool_limits(1, "blas"):
            since = time.perf_counter()
            filled[name], note = way()
            seconds = time.perf_counter() - since
        error = np.linalg.norm((filled[name] - X)[hidden]) / np.linalg.norm(X[hidden])
        scores.append(Score(name, float(error), seconds, note))
    return Demonstration(data, X, hidden, model, filled, tuple(scores))


# ---- what it is compared with


def _column_means(table: Array) -> Array:
    return np.where(np.isnan(table), np.nanmean(table, axis=0), table)


def _gradient_descent(table: Array, rng: np.random.Generator) -> tuple[Array, str]:
    """Plain gradient descent on the factors, from the spectral start, 500 iterations."""

    def fill(table: Array, rank: int) -> Array:
        index = np.nonzero(~np.isnan(table))
        p = len(index[0]) / table.size
        problem = sg.Observed(sg.Entries(index, table.shape), table[index], scale=1 / p)
        start = sg.spectral(rank)(problem)
        step = 0.5 / float(np.linalg.norm(start.full(), 2))
        return sg.solve(problem, start, sg.GradientDescent(step), max_iter=500).factors.full()

    held = ~np.isnan(table) & (rng.random(table.shape) < 0.1)
    ranks = (1, 2, 3, 5, 8, 12, 20)
    rest = np.where(held, np.nan, table)
    errors = [float(np.linalg.norm((fill(rest, rank) - table)[held])) for rank in ranks]
    rank = ranks[int(np.argmin(errors))]
    return np.where(np.isnan(table), fill(table, rank), table), f"rank {rank}, by held-out cells"


def _soft_impute(table: Array, rng: np.random.Generator) -> tuple[Array, str]:
    """Singular values shrunk by λ, again and again, with λ from large to small."""
    largest = float(np.linalg.norm(np.nan_to_num(table), 2))
    held = ~np.isnan(table) & (rng.random(table.shape) < 0.1)
    shares = np.geomspace(0.3, 0.001, 12)

    def path(table: Array, least: float) -> list[Array]:
        missing, found, Z = np.isnan(table), [], np.zeros_like(table)
        for share in shares[shares >= least]:
            for _ in range(10):
                U, s, Vt = np.linalg.svd(np.where(missing, Z, table), full_matrices=False)
                Z = (U * np.maximum(s - share * largest, 0)) @ Vt
            found.append(Z)
        return found

    tried = path(np.where(held, np.nan, table), 0.0)
    errors = [float(np.linalg.norm((Z - table)[held])) for Z in tried]
    least = float(shares[int(np.argmin(errors))])
    filled = np.where(np.isnan(table), path(table, least)[-1], table)
    return filled, f"λ = {least:.2g} σ₁, by held-out cells"


# ---- what is shown


def write_page(found: Demonstration, path: str | os.PathLike[str]) -> None:
    """The comparison as a page with pictures."""
    X, hidden, model = found.X, found.hidden, found.model
    filled = found.filled["scaledgd"]
    table = np.where(hidden, np.nan, X)
    names = [found.data.junctions[k] for k in _shown_sensors(hidden)]
    steps, sensors = X.shape
    low, high = float(X.min()), float(X.max())
    labels, hours = ("hours", "sensor"), [f"{m / 60:.1f}" for m in found.data.minutes]

    def picture(title: str, values: Array) -> report.HeatMap:
        return report.HeatMap(title, values.T, *labels, hours, unit="mg/L", low=low, high=high)

    best, means = found.scores[-1], found.scores[0]
    at = found.data.minutes / 60
    lines = []
    for name, k in zip(names, _shown_sensors(hidden), strict=True):
        holes = np.flatnonzero(hidden[:, k])
        lower, upper = model.interval((holes, np.full(holes.shape, k)), 0.95)
        curves = [
            report.Curve("true", at, X[:, k]),
            report.Curve("filled", at[holes], filled[holes, k], points=True),
            report.Curve("95 % interval", *_bars(at[holes], lower, upper), colour=6),
        ]
        lines.append(report.Chart(f"Sensor {name}", "hours", "chlorine, mg/L", curves))
    values = model.singular_values_
    spectrum = report.Curve("singular values", np.arange(1, len(values) + 1), values)
    history = model.history_
    descent = report.Curve("loss", [r["t"] for r in history], [r["value"] for r in history])
    gap = np.where(hidden, filled - X, np.nan)
    sections = [
        report.Section(
            "Accuracy",
            report.Facts(
                {
                    "sensors": sensors,
                    "steps": steps,
                    "hidden cells": f"{hidden.mean():.0%}",
                    "rank found": int(model.rank_),
                    "error on hidden cells": f"{best.error:.1%}",
                    "of column means": f"{means.error:.1%}",
                }
            ),
            report.Table(
                ["method", "error on the hidden cells", "seconds", ""],
                [[s.method, f"{s.error:.2%}", f"{s.seconds:.2f}", s.note] for s in found.scores],
                "‖filled − true‖ / ‖true‖ over the cells that were hidden",
            ),
            report.Text(f"The data: {found.data.source}."),
        ),
        report.Section(
            "Before and after",
            report.Beside(picture("What was given", table), picture("Filled", filled)),
            report.Beside(
                picture("The truth", X),
                report.HeatMap(
                    "Filled less true, hidden cells", gap.T, *labels, hours, unit="mg/L",
                    diverging=True,
                ),
            ),
        ),
        report.Section("Some sensors", report.Beside(*lines)),
        report.Section(
            "The fit",
            report.Text(f"{model.status_}."),
            report.Beside(
                report.Chart("Spectrum", "k", "σ_k", [spectrum], log_y=True),
                report.Chart("Convergence", "iteration", "loss", [descent], log_y=True),
            ),
        ),
    ]  # fmt: skip
    report.write(
        path,
        "A fifth of the sensor readings were hidden",
        sections,
        "Chlorine in a water network: scaledgd fills in what is missing, and nothing was tuned.",
        f"scaledgd {sg.__version__}, scaledgd demo",
    )


def _bars(x: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Upright lines from lower to upper, as one curve with gaps."""
    gap = np.full_like(x, np.nan)
    return np.stack([x, x, gap], axis=1).ravel(), np.stack([lower, upper, gap], axis=1).ravel()


def _shown_sensors(hidden: Array) -> tuple[int, ...]:
    n = hidden.shape[1]
    return tuple(int(k) for k in np.linspace(0, n - 1, 6)[1:5])


def run(out: Path, chlorine: Path | None = None, seed: int = 0, quiet: bool = False) -> None:
    """Demonstrate, print the comparison, and write the page."""
    from rich.console import Console
    from rich.table import Table

    check_output("--out", out, [], force=True)
    if out.exists() and not _is_ours(out):
        raise Failure(f"--out {out} exists and is no page of scaledgd; give another name")
    check_chlorine(chlorine)
    screen, err = Console(quiet=quiet, highlight=False), Console(stderr=True, quiet=quiet)
    with err.status("filling") as status:
        found = demonstrate(chlorine, seed, lambda name: status.update(f"filling: {name}"))
    steps, sensors = found.X.shape
    screen.print(
        f"{sensors} sensors, {steps} readings each, {found.hidden.mean():.0%} of them hidden.\n"
        f"The data: {found.data.source}.\n",
        soft_wrap=True,
    )
    table = Table("filled by", "error on hidden cells", "seconds", "", box=None)
    for score in found.scores:
        style = "bold" if score is found.scores[-1] else None
        row = (score.method, f"{score.error:.1%}", f"{score.seconds:.2f}", score.note)
        table.add_row(*row, style=style)
    screen.print(table)
    write_page(found, out)
    screen.print(f"\nPictures, intervals and the fit: {out}", soft_wrap=True)


def _is_ours(path: Path) -> bool:
    """Whether a file is a page that this library wrote, and may be written again."""
    with path.open("rb") as file:
        return b'name="generator" content="scaledgd"' in file.read(1000)
