"""The page about a fit: what was missing, what was found, how good it is, before and after."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from .. import report
from .fits import Accuracy
from .stories import Picture, Story

Array = Any

MOST_COLUMNS = 12
"""Columns that are named one by one."""


def write(path: Path, story: Story) -> None:
    """Write the page of what happened to a table."""
    sections = [
        report.Section("What was found", report.Facts(_facts(story)), *_words(story)),
        _missing(story),
        _pictures(story),
        _spectrum(story),
        _convergence(story),
    ]
    if story.fitted.accuracy is not None:
        sections.insert(3, _accuracy(story, story.fitted.accuracy))
    verb = "cleaned" if story.command == "clean" else "completed"
    report.write(path, f"{story.file.name}, {verb}", [s for s in sections if s is not None])


def _facts(story: Story) -> dict[str, str]:
    model = story.fitted.model
    known = story.facts(0.0)
    size = " × ".join(f"{n:,}" for n in story.shape)
    facts = {"size": size, "observed": f"{story.observed:,}", "missing": f"{story.missing:,}"}
    facts |= {"rank": str(model.rank_), "noise": f"{story.noise:.3g}"}
    facts |= {"centred": known["center"], "scaled": known["scale"]}
    if story.fitted.accuracy is not None:
        facts["held-out R²"] = f"{story.fitted.accuracy.r2:.3f}"
    if "outliers" in story.also:
        facts["outliers"] = f"{story.also['outliers']:,}"
    return facts


def _words(story: Story) -> list[Any]:
    words = [note[0].upper() + note[1:] + "." for note in (*story.fitted.warnings, *story.notes)]
    return [report.Text(*words)] if words else []


def _missing(story: Story) -> Any:
    if story.counts:
        curves = [
            report.Curve(side, np.arange(1, len(n) + 1), np.sort(n)[::-1])
            for side, n in story.counts.items()
        ]
        chart = report.Chart(
            "How many values rows and columns have",
            "those with most first",
            "values",
            curves,
            log_x=True,
            log_y=True,
        )
        pairs = math.prod(story.shape)
        share = 100 * story.observed / pairs
        known = report.Text(
            f"Of {pairs:,} pairs {story.observed:,} have a value ({share:.3g} %); "
            f"{story.missing:,} were asked for."
        )
        return report.Section("What was missing", known, chart)
    if not story.missing:
        return None
    blocks: list[Any] = []
    before, after, *_ = story.pictures.values()
    gone = 100 * (1 - before.counts / after.counts)
    blocks.append(_map("Missing, %", gone, before, story.names, low=0.0))
    if story.names and story.holes is not None:
        order = np.argsort(-story.holes, kind="stable")[:MOST_COLUMNS]
        rows = [
            [story.names[j], int(story.holes[j]), 100 * float(story.holes[j]) / story.shape[0]]
            for j in order.tolist()
        ]
        several = len(story.names) > MOST_COLUMNS
        caption = "The columns with most holes" if several else ""
        blocks.append(report.Table(["column", "missing cells", "missing, %"], rows, caption))
    return report.Section("What was missing", report.Beside(*blocks))


def _map(title: str, values: Array, of: Picture, names: list[str], **how: Any) -> report.HeatMap:
    """A picture whose sides say which rows and columns they show."""
    columns: list[Any] = of.begins(1)
    if len(names) == of.shape[1]:
        columns = [names[j] for j in columns]
    return report.HeatMap(title, values, "columns", "rows", columns, of.begins(0), **how)


def _pictures(story: Story) -> Any:
    if not story.pictures:
        return None
    first = next(iter(story.pictures.values())).means
    low, high = np.quantile(first[np.isfinite(first)], [0.01, 0.99]).tolist()
    maps = []
    for title, picture in story.pictures.items():
        bounds = {"diverging": True} if title == "outliers" else {"low": low, "high": high}
        maps.append(_map(title, picture.means, picture, story.names, **bounds))
    scaled = "" if story.counts else ", every column less its mean and in its standard deviations"
    note = f"Means over blocks of cells{scaled}. What is missing in a whole block is left blank."
    return report.Section("Before and after", report.Text(note), report.Beside(*maps))


def _spectrum(story: Story) -> Any:
    values = story.fitted.model.singular_values_
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


def _convergence(story: Story) -> Any:
    model = story.fitted.model
    history = model.history_
    if not history:
        return None
    stages = list(dict.fromkeys(record["stage"] for record in history))
    first = history[0]["value"] or 1.0
    curves = []
    for stage in stages:
        some = [record for record in history if record["stage"] == stage]
        t = [record["t"] for record in some]
        loss = [max(record["value"] / first, 1e-32) for record in some]
        curves.append(report.Curve(stage or "fit", t, loss, points=len(some) == 1))
    chart = report.Chart(
        "Loss over iterations, relative to the start", "iteration", "loss", curves, log_y=True
    )
    return report.Section("Convergence", report.Text(f"Ended: {model.status_}."), chart)


def _accuracy(story: Story, accuracy: Accuracy) -> Any:
    how = (
        "They were those of a second fit with the same offsets and scales; the one that filled "
        "the table saw every cell."
        if story.fitted.apart
        else "The fit that filled the table did not see them."
    )
    facts = {
        "cells": f"{len(accuracy.truth):,}",
        "RMSE": accuracy.rmse,
        "RMSE of column means": accuracy.plain_rmse,
        "R²": accuracy.r2,
    }
    some = np.random.default_rng(0).permutation(len(accuracy.truth))[:600]
    truth, estimate = accuracy.truth[some], accuracy.estimate[some]
    ends = np.asarray([min(truth.min(), estimate.min()), max(truth.max(), estimate.max())])
    chart = report.Chart(
        "Estimates beside the truth",
        "held-out value",
        "estimate",
        [
            report.Curve("held-out cells", truth, estimate, points=True),
            report.Curve("perfect", ends, ends, dashed=True),
        ],
    )
    return report.Section(
        "How good it is",
        report.Text(f"Some observed cells were held out and predicted. {how}"),
        report.Facts(facts),
        chart,
    )
