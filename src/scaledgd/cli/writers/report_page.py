"""The HTML report about a fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import report
from ..fitted import Accuracy
from .pictures import Picture

if TYPE_CHECKING:
    from ..commands.summary import Summary

Array = Any

TABLE_ROWS = 12
"""Number of columns listed by name, at most."""
LEVEL = 0.9
"""Level of the intervals that are shown."""
RISE = 1 + 1e-9
"""Largest growth of a loss that rounding explains; a loss that grows more is not shown."""
FALL = 0.5
"""A loss that ends above this share of its initial value has hardly fallen, and is not shown."""


@dataclass(frozen=True, eq=False)
class Series:
    """Some rows of a column that was filled or repaired.

    Attributes
    ----------
    column : int
        Number of the column, among the used ones.
    x : array of shape (rows,)
        Times or numbers of rows.
    kept, filled, wrong : float arrays of shape (rows,)
        Kept cells, new values, and outliers that were replaced; NaN elsewhere.
    lower, upper : float arrays of shape (rows,)
        Intervals of new values.
    """

    column: int
    x: Array
    kept: Array
    filled: Array
    wrong: Array
    lower: Array
    upper: Array


def write_report(path: Path, summary: Summary, series: list[Series] | None = None) -> None:
    """Write the report of a command.

    Parameters
    ----------
    path : path
    summary : Summary
    series : list of Series, optional
        Columns to show.
    """
    accuracy = summary.fitted.accuracy
    sections = [
        report.Section("Result", report.Facts(_facts(summary)), *_warnings(summary)),
        _series(summary, series or []),
        None if accuracy is None else _accuracy(summary, accuracy),
        _missing(summary),
        _pictures(summary),
        _model(summary),
    ]
    verb = "cleaned" if summary.command == "clean" else "completed"
    report.write(path, f"{summary.file.name}, {verb}", [s for s in sections if s is not None])


def _facts(summary: Summary) -> dict[str, str]:
    size = " × ".join(f"{n:,}" for n in summary.shape)
    facts = {"size": size, "observed": f"{summary.observed:,}"}
    done = "filled" if summary.command == "complete" else "missing, filled"
    facts[done] = f"{summary.missing:,}"
    if "outliers" in summary.also:
        facts["outliers"] = f"{summary.also['outliers']:,}"
    accuracy = summary.fitted.accuracy
    if accuracy is not None:
        facts["typical error"] = f"{three_digits(accuracy.rmse)}{_unit(summary)}"
        facts["of column means"] = f"{three_digits(accuracy.plain_rmse)}{_unit(summary)}"
        facts["squared error removed"] = f"{max(0.0, 100 * accuracy.r2):.1f} %"
    return facts


def _unit(summary: Summary) -> str:
    return " sd" if summary.fitted.standardised else ""


def _warnings(summary: Summary) -> list[Any]:
    notes = [*summary.warnings, *summary.assumed]
    sentences = [note[0].upper() + note[1:] + "." for note in notes]
    return [report.Text(*sentences)] if sentences else []


# ---- what was filled


def _series(summary: Summary, series: list[Series]) -> Any:
    if not series:
        return None
    charts = []
    for s in series:
        timed = np.asarray(s.x).dtype.kind == "M"
        curves = [
            report.Curve(f"{LEVEL:.0%} interval", s.x, s.lower, upper=s.upper, colour=0),
            report.Curve("given", s.x, s.kept, points=not timed, colour=5),
            report.Curve("outliers", s.x, s.wrong, points=True, colour=1),
            report.Curve("estimated", s.x, s.filled, points=True, colour=0),
        ]
        shown = [c for c in curves if np.isfinite(np.asarray(c.y)).any()]
        name = summary.names[s.column]
        charts.append(report.Chart(name, "time" if timed else "row", name, shown))
    text = report.Text(
        "The columns with the most new cells, and the rows with most of these. A new "
        f"reading would lie in its band with a probability of {LEVEL:.0%}."
    )
    return report.Section("Some columns", text, report.Beside(*charts))


def _missing(summary: Summary) -> Any:
    if summary.counts:
        return _missing_pairs(summary)
    if not summary.missing:
        return None
    before, after, *_ = summary.pictures.values()
    share = 100 * (1 - before.counts / after.counts)
    here = _map(
        "Missing, %", share, before, summary.names, summary.times, low=0.0, high=100.0, unit="%"
    )
    if not summary.names or summary.holes is None or summary.fitted.accuracy is not None:
        return report.Section("Missing cells", here)
    rows = [
        [summary.names[j], int(summary.holes[j]), 100 * float(summary.holes[j]) / summary.shape[0]]
        for j in _worst(summary)
    ]
    table = report.Table(
        ["column", "missing cells", "missing, %"], rows, _most(summary), formats=["", ",", ".1f"]
    )
    return report.Section("Missing cells", report.Beside(here, table))


def _worst(summary: Summary) -> list[int]:
    """The columns with the most missing cells."""
    assert summary.holes is not None
    return np.argsort(-summary.holes, kind="stable")[:TABLE_ROWS].tolist()  # type: ignore[no-any-return]


def _most(summary: Summary) -> str:
    return "The columns with the most missing cells" if len(summary.names) > TABLE_ROWS else ""


def _missing_pairs(summary: Summary) -> report.Section:
    """Describe how sparse a long file is."""
    curves = [
        report.Curve(side, np.arange(1, len(n) + 1), np.sort(n)[::-1])
        for side, n in summary.counts.items()
    ]
    chart = report.Chart(
        "Number of values per row and per column",
        "rows and columns, in order of their number of values",
        "values",
        curves,
        log_x=True,
        log_y=True,
    )
    pairs = math.prod(summary.shape)
    share = 100 * summary.observed / pairs
    text = report.Text(
        f"Of {pairs:,} pairs, {summary.observed:,} have a value ({share:.3g} %); "
        f"{summary.missing:,} were predicted."
    )
    return report.Section("Missing cells", text, chart)


# ---- how good it is


def _accuracy(summary: Summary, accuracy: Accuracy) -> Any:
    how = (
        "a second fit did not see them. The fit that filled the file used all cells."
        if summary.fitted.apart
        else "the fit did not see them."
    )
    text = [f"{len(accuracy.truth):,} known cells were hidden and predicted: {how}"]
    if summary.fitted.standardised:
        text.append(
            "Columns have different units, so errors over all columns are given in standard "
            "deviations of the columns (sd)."
        )
    if accuracy.rmse > 0.95 * accuracy.plain_rmse:
        text.append(
            "The fit is hardly better than column means: the columns say little about each other."
        )
    drawn = np.random.default_rng(0).permutation(len(accuracy.truth))[:600]
    truth, estimate = (accuracy.common(x)[drawn] for x in (accuracy.truth, accuracy.estimate))
    ends = np.asarray([min(truth.min(), estimate.min()), max(truth.max(), estimate.max())])
    unit = ", in standard deviations" if summary.fitted.standardised else ""
    chart = report.Chart(
        "Estimates and true values",
        f"true value{unit}",
        f"estimate{unit}",
        [
            report.Curve("hidden cells", truth, estimate, points=True),
            report.Curve("perfect", ends, ends, dashed=True, colour=5),
        ],
    )
    blocks: list[Any] = [chart, *_by_column(summary, accuracy)]
    if len(blocks) > 1:
        blocks = [report.Beside(*blocks)]
    return report.Section("Accuracy", report.Text(*text), *blocks)


def _by_column(summary: Summary, accuracy: Accuracy) -> list[Any]:
    """A table of errors, column by column, in the units of the data."""
    if not summary.names or summary.holes is None:
        return []
    rows: list[list[Any]] = []
    for j in _worst(summary):
        count, ours, plain = accuracy.of_column(j)
        rows.append([summary.names[j], int(summary.holes[j]), count, ours, plain])
    titles = ["column", "missing", "hidden", "error", "of the mean"]
    caption = "Typical errors (root mean square) in the units of each column"
    formats: list[Any] = ["", ",", ",", three_digits, three_digits]
    return [report.Table(titles, rows, f"{_most(summary)}. {caption}".lstrip(". "), formats)]


def three_digits(value: float) -> str:
    """Write a number with three digits, and without a power of ten if it is not extreme.

    Examples
    --------
    >>> from scaledgd.cli.writers.report_page import three_digits
    >>> [three_digits(x) for x in (10912.3, 253.2, 0.55, 0.000552)]
    ['10,900', '253', '0.550', '0.000552']
    """
    if not value or not 1e-6 < abs(value) < 1e9:
        return f"{value:.3g}"
    places = 2 - math.floor(math.log10(abs(float(f"{value:.2e}"))))
    return f"{round(value, places):,.{max(0, places)}f}"


# ---- pictures and the model


def _map(
    title: str, values: Array, of: Picture, names: list[str], times: Array | None, **how: Any
) -> report.HeatMap:
    """Draw a picture whose axes name the rows and columns."""
    columns: list[Any] = of.block_starts(1)
    if len(names) == of.shape[1]:
        columns = [names[j] for j in columns]
    rows: Any = of.block_starts(0) if times is None else times[of.block_starts(0)]
    label = "rows" if times is None else "time"
    return report.HeatMap(title, values, "columns", label, columns, rows, **how)


def _pictures(summary: Summary) -> Any:
    if not summary.pictures:
        return None
    first = next(iter(summary.pictures.values())).means
    low, high = np.quantile(first[np.isfinite(first)], [0.01, 0.99]).tolist()
    maps = []
    for title, picture in summary.pictures.items():
        bounds: dict[str, Any] = {"low": low, "high": high}
        if title == "outliers":
            # a few huge values would make all others white
            sizes = np.abs(picture.means[np.nan_to_num(picture.means) != 0])
            most = float(np.quantile(sizes, 0.9)) if sizes.size else 1.0
            bounds = {"low": -most, "high": most, "diverging": True}
        unit = "sd" if title == "outliers" else "sd from the mean"
        unit = "" if summary.counts else unit
        maps.append(
            _map(title, picture.means, picture, summary.names, summary.times, unit=unit, **bounds)
        )
    note = "In a large table, a dot is the mean of several cells."
    if summary.counts:
        note += " The estimates are those of cells drawn at random."
    else:
        note += " Values are standard deviations (sd) above or below the mean of their column."
    return report.Section("Before and after", report.Text(note), report.Beside(*maps))


def _model(summary: Summary) -> Any:
    model, facts = summary.fitted.model, summary.facts(0.0)
    sides = {"none": "nothing", "rows": "rows", "columns": "columns", "both": "rows and columns"}
    about = {"rank": str(model.rank_), "noise": f"{summary.noise:.3g}{_unit(summary)}"}
    about["offsets of"] = sides.get(str(facts["center"]), str(facts["center"]))
    about["scales of"] = sides.get(str(facts["scale"]), str(facts["scale"]))
    if facts.get("smooth", "none") != "none":
        about["neighbours used along"] = str(facts["smooth"])
    ended = "converged" if model.converged_ else "stopped before it converged"
    text = report.Text(f"The fit {ended} after {model.n_iter_:,} iterations.")
    charts = [chart for chart in (spectrum_chart(model), descent_chart(model)) if chart is not None]
    beside = [report.Beside(*charts)] if charts else []
    return report.Section("The model", report.Facts(about), text, *beside)


def spectrum_chart(model: Any) -> Any:
    """Return a chart of the singular values; None if there is no low-rank part."""
    values = model.singular_values_
    sides = values if isinstance(values, tuple) else (values,)
    curves = [
        report.Curve(
            "size of each component" if len(sides) == 1 else f"mode {k}",
            np.arange(1, len(s) + 1),
            np.asarray(s),
            points=True,
        )
        for k, s in enumerate(sides)
        if len(s)
    ]
    if not curves:
        return None
    return report.Chart(
        "Components of the low-rank part", "component", "singular value", curves, log_y=True
    )


def descent_chart(model: Any) -> Any:
    """Return a chart of the loss of the last stage.

    None if the loss rises anywhere: if a prior is learnt as well, it may rise while the fit
    improves. Also None if it hardly falls: then the stages before did the work.
    """
    history = model.history_
    last = [r for r in history if r["stage"] == history[-1]["stage"]] if history else []
    loss = np.asarray([record["value"] for record in last], dtype=float)
    if len(loss) < 3 or not loss[0] > 0 or np.any(loss[1:] > RISE * loss[:-1]):
        return None
    if loss[-1] > FALL * loss[0]:
        return None
    curve = report.Curve("loss", [r["t"] for r in last], np.maximum(loss / loss[0], 1e-32))
    return report.Chart(
        "Misfit over iterations, relative to the first", "iteration", "misfit", [curve], log_y=True
    )
