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

from ... import report
from ..failures import Failure
from ..writers.files import check_output
from .checks import check_chlorine

Array = Any
HIDDEN = 0.2
"""Share of the cells that are hidden."""


@dataclass(frozen=True)
class Score:
    """How well a method filled the hidden cells.

    Attributes
    ----------
    method : str
    error : float
        ‖filled − true‖ / ‖true‖ over the hidden cells.
    seconds : float
    note : str
        How the method was tuned.
    """

    method: str
    error: float
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class Demonstration:
    """The result of a demonstration.

    Attributes
    ----------
    data : Chlorine
    X : array of shape (readings, sensors)
        The true values.
    hidden : boolean array of the same shape
    model : MatrixCompletion
        The fit of scaledgd.
    filled : dict
        The table filled by each method, by its name.
    scores : tuple of Score
        Column means first, scaledgd last.
    """

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
    """Hide cells, fill them by scaledgd and by three other methods, and compare.

    Parameters
    ----------
    path : path, optional
        A copy of the real data, see `scaledgd.datasets.load_chlorine`.
    seed : int
        Decides which cells are hidden.
    watch : callable
        Called with the name of each method before it runs.

    Returns
    -------
    Demonstration

    Examples
    --------
    >>> from scaledgd.cli.commands.demo import demonstrate
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
    methods: dict[str, Callable[[], tuple[Array, str]]] = {
        "column means": lambda: (_column_means(table), ""),
        "gradient descent": lambda: _gradient_descent(table, rng),
        "SoftImpute-like": lambda: _soft_impute(table, rng),
        "scaledgd": lambda: (model.fit_transform(table), "nothing was tuned"),
    }
    filled, scores = {}, []
    for name, method in methods.items():
        watch(name)
        # BLAS threads slow matrices of this size down
        with threadpool_limits(1, "blas"):
            since = time.perf_counter()
            filled[name], note = method()
            seconds = time.perf_counter() - since
        error = np.linalg.norm((filled[name] - X)[hidden]) / np.linalg.norm(X[hidden])
        scores.append(Score(name, float(error), seconds, note))
    return Demonstration(data, X, hidden, model, filled, tuple(scores))


# ---- the other methods


def _column_means(table: Array) -> Array:
    return np.where(np.isnan(table), np.nanmean(table, axis=0), table)


def _gradient_descent(table: Array, rng: np.random.Generator) -> tuple[Array, str]:
    """Fill by 500 iterations of gradient descent on the factors, from the spectral start."""

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
    """Fill by iterated soft thresholding of singular values, with λ from large to small."""
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


# ---- the page


def write_page(found: Demonstration, path: str | os.PathLike[str]) -> None:
    """Write the comparison as a page with pictures."""
    report.write(
        path,
        "A fifth of the sensor readings were hidden",
        [_accuracy(found), _before_and_after(found), _sensors(found), _fit(found)],
        "Chlorine in a water network: scaledgd fills in what is missing, and nothing was tuned.",
        f"scaledgd {sg.__version__}, scaledgd demo",
    )


def _accuracy(found: Demonstration) -> report.Section:
    steps, sensors = found.X.shape
    means, best = found.scores[0], found.scores[-1]
    facts = {
        "sensors": sensors,
        "steps": steps,
        "hidden cells": f"{found.hidden.mean():.0%}",
        "rank found": int(found.model.rank_),
        "error on hidden cells": f"{best.error:.1%}",
        "of column means": f"{means.error:.1%}",
    }
    rows = [[s.method, f"{s.error:.2%}", f"{s.seconds:.2f}", s.note] for s in found.scores]
    table = report.Table(
        ["method", "error on the hidden cells", "seconds", ""],
        rows,
        "‖filled − true‖ / ‖true‖ over the hidden cells",
    )
    source = report.Text(f"The data: {found.data.source}.")
    return report.Section("Accuracy", report.Facts(facts), table, source)


def _before_and_after(found: Demonstration) -> report.Section:
    X, hidden, filled = found.X, found.hidden, found.filled["scaledgd"]
    hours = [f"{m / 60:.1f}" for m in found.data.minutes]

    def picture(title: str, values: Array, **how: Any) -> report.HeatMap:
        return report.HeatMap(title, values.T, "hours", "sensor", hours, unit="mg/L", **how)

    bounds = {"low": float(X.min()), "high": float(X.max())}
    given = picture("Given", np.where(hidden, np.nan, X), **bounds)
    error = np.where(hidden, filled - X, np.nan)
    return report.Section(
        "Before and after",
        report.Beside(given, picture("Filled", filled, **bounds)),
        report.Beside(
            picture("True", X, **bounds),
            picture("Filled less true, hidden cells", error, diverging=True),
        ),
    )


def _sensors(found: Demonstration) -> report.Section:
    X, filled, hours = found.X, found.filled["scaledgd"], found.data.minutes / 60
    charts = []
    for k in np.linspace(0, X.shape[1] - 1, 6)[1:5].astype(int).tolist():
        holes = np.flatnonzero(found.hidden[:, k])
        lower, upper = found.model.interval((holes, np.full(holes.shape, k)), 0.95)
        curves = [
            report.Curve("true", hours, X[:, k]),
            report.Curve("filled", hours[holes], filled[holes, k], points=True),
            report.Curve("95 % interval", *_bars(hours[holes], lower, upper), colour=6),
        ]
        title = f"Sensor {found.data.junctions[k]}"
        charts.append(report.Chart(title, "hours", "chlorine, mg/L", curves))
    return report.Section("Some sensors", report.Beside(*charts))


def _fit(found: Demonstration) -> report.Section:
    values, history = found.model.singular_values_, found.model.history_
    spectrum = report.Curve("singular values", np.arange(1, len(values) + 1), values)
    descent = report.Curve("loss", [r["t"] for r in history], [r["value"] for r in history])
    return report.Section(
        "The fit",
        report.Text(f"{found.model.status_}."),
        report.Beside(
            report.Chart("Spectrum", "k", "σ_k", [spectrum], log_y=True),
            report.Chart("Convergence", "iteration", "loss", [descent], log_y=True),
        ),
    )


def _bars(x: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Return vertical bars from `lower` to `upper` as one curve with gaps."""
    gap = np.full_like(x, np.nan)
    return np.stack([x, x, gap], axis=1).ravel(), np.stack([lower, upper, gap], axis=1).ravel()


# ---- the command


def run(out: Path, chlorine: Path | None = None, seed: int = 0, quiet: bool = False) -> None:
    """Run the demonstration, print the comparison, and write the page.

    Parameters
    ----------
    out : path
        The page. Only a page that scaledgd wrote is replaced.
    chlorine : path, optional
        A copy of the real data.
    seed : int
        Decides which cells are hidden.
    quiet : bool
        Print nothing.
    """
    from rich.console import Console

    check_output("--out", out, [], force=True)
    if out.exists() and not _is_our_page(out):
        raise Failure(f"--out {out} exists and is not a page of scaledgd; give another name")
    check_chlorine(chlorine)
    screen, err = Console(quiet=quiet, highlight=False), Console(stderr=True, quiet=quiet)
    with err.status("filling") as status:
        found = demonstrate(chlorine, seed, lambda name: status.update(f"filling: {name}"))
    _print_comparison(found, screen)
    write_page(found, out)
    screen.print(f"\nPictures, intervals and the fit: {out}", soft_wrap=True)


def _print_comparison(found: Demonstration, screen: Any) -> None:
    from rich.table import Table

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


def _is_our_page(path: Path) -> bool:
    with path.open("rb") as file:
        return b'name="generator" content="scaledgd"' in file.read(1000)
