"""Phase transitions: how much data recovery needs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import scaledgd as sg

from ..report import HeatMap
from .item import Rows
from .runs import slope


def recovered(problem: Any, start: Any, method: Any, truth: Any, limit: int, level: float) -> bool:
    """Tell whether a run brings the relative error below a level.

    Parameters
    ----------
    problem, start, method : as of `solve`
    truth : Factors
    limit : int
        Most iterations.
    level : float

    Returns
    -------
    bool
    """
    found = [math.inf]

    def watch(state: sg.State) -> bool:
        found[0] = float(sg.metrics.relative_error(state.factors, truth))
        return not level < found[0] < 1e3

    sg.solve(problem, start, method, max_iter=limit, callback=watch)
    return found[0] <= level


def border(rows: Rows, along: str, rising: bool = True) -> float:
    """Return where half of the trials succeed, interpolated on a log scale.

    Parameters
    ----------
    rows : Rows
        Trials, with "success".
    along : str
        Column that varies.
    rising : bool
        Whether larger values help.

    Returns
    -------
    float
        NaN if the border is outside the grid.
    """
    values = sorted(rows.distinct(along), reverse=not rising)
    shares = [float(np.mean(rows.where(**{along: v}).column("success"))) for v in values]
    for k in range(len(values)):
        if shares[k] >= 0.5 and all(s >= 0.5 for s in shares[k:]):
            if k == 0:
                return math.nan
            part = (0.5 - shares[k - 1]) / (shares[k] - shares[k - 1])
            low, high = math.log(values[k - 1]), math.log(values[k])
            return math.exp(low + part * (high - low))
    return math.nan


def borders(rows: Rows, along: str, against: str, rising: bool = True) -> tuple[Any, float]:
    """Return the border for every value of a second column, and the power by which it moves.

    Parameters
    ----------
    rows, along, rising : as of `border`
    against : str
        The second column.

    Returns
    -------
    borders : array
        In ascending order of `against`.
    power : float
    """
    xs = sorted(rows.distinct(against))
    found = [border(rows.where(**{against: x}), along, rising) for x in xs]
    return np.asarray(found), slope(xs, found)


def phase_map(title: str, rows: Rows, along: str, against: str, labels: tuple[str, str]) -> HeatMap:
    """Draw the share of trials that succeed over two columns.

    Parameters
    ----------
    title : str
    rows : Rows
        Trials, with "success".
    along, against : str
        Columns of the vertical and of the horizontal axis.
    labels : pair of str
        Of these axes.

    Returns
    -------
    HeatMap
    """
    ys, xs = sorted(rows.distinct(along), reverse=True), sorted(rows.distinct(against))
    shares = [
        [
            float(np.mean(part.column("success")))
            if (part := rows.where(**{along: y, against: x}))
            else math.nan
            for x in xs
        ]
        for y in ys
    ]
    return HeatMap(
        title, shares, labels[1], labels[0], xs, [f"{y:.3g}" for y in ys], "share recovered", 0, 1
    )


def marked(found: Any) -> str:
    """Return borders as text.

    Parameters
    ----------
    found : iterable of float

    Returns
    -------
    str
    """
    return ", ".join("off the grid" if math.isnan(b) else f"{b:.3g}" for b in found)
