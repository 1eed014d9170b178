"""``scaledgd demo``: hide some of the bundled sensor readings, fill them, and compare."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

import scaledgd as sg

from ... import report
from ..failures import Failure
from ..writers.files import check_output
from ..writers.report_page import descent_chart, spectrum_chart

Array = Any

SINGLE = 0.1
"""Share of the cells that are hidden one by one."""
OUTAGES, HOURS = (1, 2), (6, 36)
"""Outages of a sensor, and hours of an outage: fewest and most."""
BLACKOUT = 8
"""Hours in which no sensor reports."""
LEVEL = 0.9
"""Level of the intervals that are shown."""
SHOWN = 4
"""Sensors that are shown."""
MARK = "scaledgd demo"
"""Metadata of our pictures, by which they are recognised."""


@dataclass(frozen=True)
class Score:
    """How well a method filled the hidden cells.

    Attributes
    ----------
    method : str
    errors : dict
        Root mean squares of filled − true, by the kind of gap; "all" is all of them.
    seconds : float
    """

    method: str
    errors: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class Demonstration:
    """The result of a demonstration.

    Attributes
    ----------
    data : Water
    hidden : dict
        Boolean arrays of shape (hours, sensors), by the kind of gap; "all" is all of them.
    model : MatrixCompletion
        The fit of scaledgd.
    filled : dict
        The table filled by each method, by its name.
    scores : tuple of Score
        Column means first, scaledgd last.
    bounds : pair of arrays of shape (hours, sensors)
        Intervals of readings, NaN where nothing is hidden.
    """

    data: sg.datasets.Water
    hidden: dict[str, Array]
    model: Any
    filled: dict[str, Array]
    scores: tuple[Score, ...]
    bounds: tuple[Array, Array]

    @property
    def X(self) -> Array:
        """The true values."""
        return self.data.X

    @property
    def table(self) -> Array:
        """What the methods were given."""
        return np.where(self.hidden["all"], np.nan, self.X)

    @property
    def coverage(self) -> float:
        """The share of the hidden readings within their intervals."""
        lower, upper = (x[self.hidden["all"]] for x in self.bounds)
        truth = self.X[self.hidden["all"]]
        return float(np.mean((lower <= truth) & (truth <= upper)))


def demonstrate(seed: int = 0, watch: Callable[[str], None] = lambda method: None) -> Demonstration:
    """Hide cells, fill them by scaledgd and by four other methods, and compare.

    Parameters
    ----------
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
    >>> best = min(found.scores, key=lambda score: score.errors["all"])
    >>> best.method
    'scaledgd'
    """
    data = sg.datasets.load_water()
    hidden = _hidden(data.X.shape, np.random.default_rng(seed))
    table = data.frame().mask(hidden["all"])
    model = sg.MatrixCompletion(random_state=seed)
    methods: dict[str, Callable[[], Any]] = {
        "column means": lambda: table.fillna(table.mean()),
        "linear interpolation": lambda: table.interpolate("time", limit_direction="both"),
        "KNNImputer": lambda: _knn(table),
        "IterativeImputer": lambda: _iterative(table, seed),
        "scaledgd": lambda: model.fit_transform(table),
    }
    filled, scores = {}, []
    for name, method in methods.items():
        watch(name)
        # BLAS threads slow matrices of this size down
        with threadpool_limits(1, "blas"), warnings.catch_warnings():
            # about imputers that did not converge, and about the rows of the blackout
            for category in (ConvergenceWarning, sg.DataWarning):
                warnings.simplefilter("ignore", category)
            since = time.perf_counter()
            filled[name] = np.asarray(method())
            seconds = time.perf_counter() - since
        off = filled[name] - data.X
        errors = {k: float(np.sqrt(np.mean(off[m] ** 2))) for k, m in hidden.items()}
        scores.append(Score(name, errors, seconds))
    bounds = _bounds(model, hidden["all"])
    return Demonstration(data, hidden, model, filled, tuple(scores), bounds)


def _hidden(shape: tuple[int, int], rng: np.random.Generator) -> dict[str, Array]:
    """Return single cells, outages of every sensor, and a blackout of all, without overlap."""
    rows, columns = shape
    single = rng.random(shape) < SINGLE
    outages, blackout = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    for j in range(columns):
        for _ in range(rng.integers(*OUTAGES, endpoint=True)):
            length = int(rng.integers(*HOURS, endpoint=True))
            begin = int(rng.integers(0, rows - length, endpoint=True))
            outages[begin : begin + length, j] = True
    dark = rng.integers(rows // 4, 3 * rows // 4)
    blackout[dark : dark + BLACKOUT] = True
    kinds = {"single cells": single & ~outages & ~blackout, "outages": outages & ~blackout}
    return {"all": single | outages | blackout, **kinds, "blackout": blackout}


def _bounds(model: Any, hidden: Array) -> tuple[Array, Array]:
    index = np.nonzero(hidden)
    bounds = np.full(hidden.shape, np.nan), np.full(hidden.shape, np.nan)
    for side, values in zip(bounds, model.interval(index, LEVEL, kind="prediction"), strict=True):
        side[index] = values
    return bounds


# ---- methods of scikit-learn, with default settings


def _knn(table: Any) -> Array:
    from sklearn.impute import KNNImputer

    return KNNImputer().fit_transform(table)


def _iterative(table: Any, seed: int) -> Array:
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    return IterativeImputer(random_state=seed).fit_transform(table)


# ---- the page


def write_page(found: Demonstration, path: str | os.PathLike[str]) -> None:
    """Write the comparison as a page with pictures."""
    report.write(
        path,
        "Sensors with gaps, filled",
        [_accuracy(found), _sensors(found), _before_and_after(found), _fit(found)],
        "Chlorine in a water network: scaledgd fills in what is missing, and nothing was tuned.",
        f"scaledgd {sg.__version__}, scaledgd demo",
    )


def _accuracy(found: Demonstration) -> report.Section:
    hours, sensors = found.X.shape
    facts = {
        "sensors": sensors,
        "hours": hours,
        "hidden cells": f"{found.hidden['all'].mean():.0%}",
        "rank found": int(found.model.rank_),
        f"hidden readings within {LEVEL:.0%} intervals": f"{found.coverage:.0%}",
    }
    kinds = list(found.hidden)
    rows = [[s.method, *(s.errors[k] for k in kinds), s.seconds] for s in found.scores]
    best = min(range(len(rows)), key=lambda k: found.scores[k].errors["all"])
    table = report.Table(
        ["filled by", *kinds, "seconds"],
        rows,
        "Typical error of the hidden readings (root mean square, in mg/L); the best is marked",
        formats=["", *[".3f"] * len(kinds), ".1f"],
        marked=[best],
    )
    what = report.Text(
        f"The demo hid single cells, one or two outages of every sensor ({HOURS[0]} to {HOURS[1]} "
        f"hours), and a blackout of all sensors ({BLACKOUT} hours).",
        f"The data: {found.data.source}.",
    )
    return report.Section("Accuracy", report.Facts(facts), table, what)


def _shown(found: Demonstration) -> list[int]:
    return np.linspace(0, found.X.shape[1] - 1, SHOWN + 2)[1:-1].astype(int).tolist()  # type: ignore[no-any-return]


def _sensors(found: Demonstration) -> report.Section:
    times, lower, upper = found.data.times, *found.bounds
    ours, plain = found.filled["scaledgd"], found.filled["linear interpolation"]
    charts = []
    for k in _shown(found):
        gaps = _with_ends(found.hidden["all"][:, k])
        curves = [
            report.Curve(f"{LEVEL:.0%} interval", times, lower[:, k], upper=upper[:, k], colour=0),
            report.Curve("readings", times, found.table[:, k], colour=5),
            report.Curve(
                "hidden, true", times, _only(found.X, found.hidden["all"], k), points=True, colour=4
            ),
            report.Curve(
                "interpolated", times, np.where(gaps, plain[:, k], np.nan), True, colour=1
            ),
            report.Curve("filled by scaledgd", times, np.where(gaps, ours[:, k], np.nan), colour=0),
        ]
        title = f"Sensor {found.data.sensors[k]}"
        charts.append(report.Chart(title, "time", "chlorine, mg/L", curves))
    return report.Section("Some sensors", report.Beside(*charts))


def _only(values: Array, which: Array, k: int) -> Array:
    return np.where(which[:, k], values[:, k], np.nan)


def _with_ends(gaps: Array) -> Array:
    """Gaps and the adjacent cells, so that lines meet the readings."""
    wide = gaps.copy()
    wide[1:] |= gaps[:-1]
    wide[:-1] |= gaps[1:]
    return wide


def _before_and_after(found: Demonstration) -> report.Section:
    X, hidden, filled = found.X, found.hidden["all"], found.filled["scaledgd"]

    def picture(title: str, values: Array, **how: Any) -> report.HeatMap:
        times, sensors = found.data.times, found.data.sensors
        return report.HeatMap(title, values.T, "time", "sensor", times, sensors, **how)

    bounds: dict[str, Any] = {"low": 0.0, "high": float(X.max()), "unit": "mg/L"}
    error = np.where(hidden, filled - X, np.nan)
    # a few large errors would make all others white
    high = float(np.quantile(np.abs(error[hidden]), 0.98))
    return report.Section(
        "Before and after",
        report.Beside(picture("Given", found.table, **bounds), picture("Filled", filled, **bounds)),
        report.Beside(
            picture("True", X, **bounds),
            picture(
                "Errors of the hidden readings (filled minus true)",
                error,
                low=-high,
                high=high,
                diverging=True,
                unit="mg/L",
                caption=f"Colours end at {high:.2g} mg/L; 2 % of the errors are larger.",
            ),
        ),
    )


def _fit(found: Demonstration) -> report.Section:
    model = found.model
    ended = "converged" if model.converged_ else "stopped before it converged"
    text = report.Text(
        f"The fit found {model.rank_} patterns over time that the sensors share, and also uses "
        f"the readings of the hours before and after. It {ended} after {model.n_iter_} iterations."
    )
    charts = [chart for chart in (spectrum_chart(model), descent_chart(model)) if chart is not None]
    return report.Section("The fit", text, report.Beside(*charts))


def draw(found: Demonstration, path: Path) -> None:
    """Draw some sensors; the metadata of the file say that scaledgd made it."""
    from matplotlib.figure import Figure

    from ...plots.drawing import BLACK, BLUE, SKY, VERMILION, time_axis

    times, (lower, upper) = found.data.times, found.bounds
    figure = Figure(figsize=(9, 8), layout="constrained")
    axes = figure.subplots(SHOWN, sharex=True)
    for ax, k in zip(axes, _shown(found), strict=True):
        gaps = _with_ends(found.hidden["all"][:, k])
        ours, plain = (
            np.where(gaps, found.filled[name][:, k], np.nan)
            for name in ("scaledgd", "linear interpolation")
        )
        label = f"{LEVEL:.0%} interval"
        ax.fill_between(times, lower[:, k], upper[:, k], color=SKY, alpha=0.4, lw=0, label=label)
        ax.plot(times, found.table[:, k], color=BLACK, lw=1, label="readings")
        hidden = _only(found.X, found.hidden["all"], k)
        ax.plot(times, hidden, ".", color="0.55", ms=3, label="hidden readings")
        ax.plot(times, plain, color=VERMILION, ls="--", lw=1, label="linear interpolation")
        ax.plot(times, ours, color=BLUE, lw=1.5, label="filled by scaledgd")
        ax.set_ylabel(f"{found.data.sensors[k]}, mg/L")
        ax.margins(x=0.01)
        time_axis(ax.xaxis)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": MARK})


# ---- the command


def run(out: Path, seed: int = 0, quiet: bool = False) -> None:
    """Run the demonstration, print the comparison, and write the page.

    Parameters
    ----------
    out : path
        The page. With matplotlib, a PNG is written beside it. Only files that scaledgd wrote are
        replaced.
    seed : int
        Decides which cells are hidden.
    quiet : bool
        Print nothing.
    """
    from importlib.util import find_spec

    from rich.console import Console

    picture = out.with_suffix(".png") if find_spec("matplotlib") else None
    for path, mark in ((out, b'name="generator" content="scaledgd"'), (picture, MARK.encode())):
        if path is not None:
            check_output("--out", path, [], force=True)
            if path.exists() and not _is_ours(path, mark):
                raise Failure(
                    f"--out {out}: {path} exists and was not written by scaledgd; give another name"
                )
    screen, err = Console(quiet=quiet, highlight=False), Console(stderr=True, quiet=quiet)
    with err.status("filling") as status:
        found = demonstrate(seed, lambda name: status.update(f"filling: {name}"))
    _print_comparison(found, screen)
    write_page(found, out)
    if picture is not None:
        draw(found, picture)
    also = "" if picture is None else f", {picture}"
    screen.print(f"\nPictures, intervals and the fit: {out}{also}", soft_wrap=True)


def _print_comparison(found: Demonstration, screen: Any) -> None:
    from rich.table import Table

    hours, sensors = found.X.shape
    screen.print(
        f"{sensors} sensors, {hours} hours, {found.hidden['all'].mean():.0%} of the readings "
        f"hidden.\nThe data: {found.data.source}.\n",
        soft_wrap=True,
    )
    screen.print("Root mean square errors of hidden cells, in mg/L:")
    table = Table("filled by", *found.hidden, "seconds", box=None)
    for score in found.scores:
        style = "bold" if score is found.scores[-1] else None
        errors = [f"{e:.3f}" for e in score.errors.values()]
        table.add_row(score.method, *errors, f"{score.seconds:.1f}", style=style)
    screen.print(table)
    screen.print(f"\n{found.coverage:.0%} of the hidden readings are within {LEVEL:.0%} intervals.")


def _is_ours(path: Path, mark: bytes) -> bool:
    with path.open("rb") as file:
        return mark in file.read(1000)
