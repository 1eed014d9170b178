"""The HTML report about a fit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import report
from ..fits import Accuracy
from .pictures import Picture

if TYPE_CHECKING:
    from ..commands.summary import Summary

Array = Any

TABLE_ROWS = 12
"""Number of columns listed by name, at most."""


def write_report(path: Path, summary: Summary) -> None:
    """Write the report of a command."""
    sections = [
        report.Section("Result", report.Facts(_facts(summary)), *_warnings(summary)),
        _missing(summary),
        _pictures(summary),
        _spectrum(summary),
        _convergence(summary),
    ]
    if summary.fitted.accuracy is not None:
        sections.insert(3, _accuracy(summary, summary.fitted.accuracy))
    verb = "cleaned" if summary.command == "clean" else "completed"
    report.write(path, f"{summary.file.name}, {verb}", [s for s in sections if s is not None])


def _facts(summary: Summary) -> dict[str, str]:
    model = summary.fitted.model
    known = summary.facts(0.0)
    size = " × ".join(f"{n:,}" for n in summary.shape)
    facts = {"size": size, "observed": f"{summary.observed:,}", "missing": f"{summary.missing:,}"}
    facts |= {"rank": str(model.rank_), "noise": f"{summary.noise:.3g}"}
    facts |= {"centred": known["center"], "scaled": known["scale"]}
    if known.get("smooth", "none") != "none":
        facts["smooth"] = known["smooth"]
    if summary.fitted.accuracy is not None:
        facts["held-out R²"] = f"{summary.fitted.accuracy.r2:.3f}"
    if "outliers" in summary.also:
        facts["outliers"] = f"{summary.also['outliers']:,}"
    return facts


def _warnings(summary: Summary) -> list[Any]:
    sentences = [note[0].upper() + note[1:] + "." for note in summary.warnings]
    return [report.Text(*sentences)] if sentences else []


def _missing(summary: Summary) -> Any:
    if summary.counts:
        return _missing_pairs(summary)
    if not summary.missing:
        return None
    before, after, *_ = summary.pictures.values()
    share = 100 * (1 - before.counts / after.counts)
    blocks: list[Any] = [_map("Missing, %", share, before, summary.names, summary.times, low=0.0)]
    if summary.names and summary.holes is not None:
        order = np.argsort(-summary.holes, kind="stable")[:TABLE_ROWS]
        rows = [
            [
                summary.names[j],
                int(summary.holes[j]),
                100 * float(summary.holes[j]) / summary.shape[0],
            ]
            for j in order.tolist()
        ]
        caption = ""
        if len(summary.names) > TABLE_ROWS:
            caption = "The columns with the most missing cells"
        blocks.append(report.Table(["column", "missing cells", "missing, %"], rows, caption))
    return report.Section("Missing cells", report.Beside(*blocks))


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


def _map(
    title: str, values: Array, of: Picture, names: list[str], times: Array | None, **how: Any
) -> report.HeatMap:
    """Draw a picture whose axes name the rows and columns."""
    columns: list[Any] = of.block_starts(1)
    if len(names) == of.shape[1]:
        columns = [names[j] for j in columns]
    rows: Any = of.block_starts(0) if times is None else times[of.block_starts(0)]
    return report.HeatMap(title, values, "columns", "rows", columns, rows, **how)


def _pictures(summary: Summary) -> Any:
    if not summary.pictures:
        return None
    first = next(iter(summary.pictures.values())).means
    low, high = np.quantile(first[np.isfinite(first)], [0.01, 0.99]).tolist()
    maps = []
    for title, picture in summary.pictures.items():
        bounds = {"diverging": True} if title == "outliers" else {"low": low, "high": high}
        maps.append(_map(title, picture.means, picture, summary.names, summary.times, **bounds))
    note = "Means over blocks of cells. Blocks without a value are blank."
    if not summary.counts:
        note += " Every column is standardised: its mean is subtracted, and it is divided by its "
        note += "standard deviation."
    return report.Section("Before and after", report.Text(note), report.Beside(*maps))


def _spectrum(summary: Summary) -> Any:
    values = summary.fitted.model.singular_values_
    sides = values if isinstance(values, tuple) else (values,)
    curves = [
        report.Curve(
            "singular values" if len(sides) == 1 else f"mode {k}",
            np.arange(1, len(s) + 1),
            np.asarray(s),
            points=True,
        )
        for k, s in enumerate(sides)
        if len(s)
    ]
    if not curves:
        return report.Section("Spectrum", report.Text("The data support no low-rank part."))
    return report.Section(
        "Spectrum", report.Chart("Singular values", "component", "size", curves, log_y=True)
    )


def _convergence(summary: Summary) -> Any:
    model = summary.fitted.model
    history = model.history_
    if not history:
        return None
    stages = list(dict.fromkeys(record["stage"] for record in history))
    first = history[0]["value"] or 1.0
    curves = []
    for stage in stages:
        records = [record for record in history if record["stage"] == stage]
        t = [record["t"] for record in records]
        loss = [max(record["value"] / first, 1e-32) for record in records]
        curves.append(report.Curve(stage or "fit", t, loss, points=len(records) == 1))
    chart = report.Chart(
        "Loss over iterations, relative to the start", "iteration", "loss", curves, log_y=True
    )
    return report.Section("Convergence", report.Text(f"Ended: {model.status_}."), chart)


def _accuracy(summary: Summary, accuracy: Accuracy) -> Any:
    how = (
        "These cells were held out of a second fit with the same offsets and scales. The fit "
        "that filled the table used all cells."
        if summary.fitted.apart
        else "The fit that filled the table did not use these cells."
    )
    facts = {
        "cells": f"{len(accuracy.truth):,}",
        "RMSE": accuracy.rmse,
        "RMSE of column means": accuracy.plain_rmse,
        "R²": accuracy.r2,
    }
    drawn = np.random.default_rng(0).permutation(len(accuracy.truth))[:600]
    truth, estimate = accuracy.truth[drawn], accuracy.estimate[drawn]
    ends = np.asarray([min(truth.min(), estimate.min()), max(truth.max(), estimate.max())])
    chart = report.Chart(
        "Estimates and true values",
        "held-out value",
        "estimate",
        [
            report.Curve("held-out cells", truth, estimate, points=True),
            report.Curve("perfect", ends, ends, dashed=True),
        ],
    )
    return report.Section(
        "Accuracy",
        report.Text(f"Some observed cells were held out and predicted. {how}"),
        report.Facts(facts),
        chart,
    )
