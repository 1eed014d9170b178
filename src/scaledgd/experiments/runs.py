"""Error trajectories of runs, numbers derived from them, and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import scaledgd as sg

from ..report import Chart, Curve
from .item import Claim, Row, Rows

Error = Callable[[Any], Any]
"""From factors to an error."""


def error_to(truth: Any) -> Error:
    """Return the relative error ‖X − X⋆‖_F / ‖X⋆‖_F as a function of the estimate.

    Parameters
    ----------
    truth : Factors or array
        X⋆.

    Returns
    -------
    callable
    """
    return lambda F: sg.metrics.relative_error(F, truth)


def errors_of(
    problem: Any, start: Any, method: Any, error: Error, max_iter: int, until: float = 1e-14
) -> Any:
    """Run a method and return the error of every iterate.

    Parameters
    ----------
    problem, start, method : as of `solve`
    error : callable
        From factors to a float.
    max_iter : int
    until : float
        Stop at this error; a run also stops at an error of 1e6.

    Returns
    -------
    array
    """
    found: list[float] = []

    def watch(state: sg.State) -> bool:
        found.append(float(error(state.factors)))
        return not until < found[-1] < 1e6

    sg.solve(problem, start, method, max_iter=max_iter, callback=watch)
    return np.asarray(found)


def needed(errors: Any, level: float) -> float:
    """Return the first iteration with an error at or below a level, or infinity.

    Parameters
    ----------
    errors : array
    level : float

    Returns
    -------
    float

    Examples
    --------
    >>> from scaledgd.experiments.runs import needed
    >>> needed([1.0, 0.5, 0.1], 0.5), needed([1.0, 0.5, 0.1], 1e-3)
    (1.0, inf)
    """
    below = np.flatnonzero(np.asarray(errors) <= level)
    return float(below[0]) if below.size else math.inf


def rate(errors: Any, floor: float = 1e-12) -> float:
    """Return the factor by which an iteration shrinks the error, after the first iterations.

    It is averaged over the second half of the iterations above rounding.

    Parameters
    ----------
    errors : array
    floor : float
        Error below which rounding dominates.

    Returns
    -------
    float
        Infinite if the error grew, NaN if there are too few iterations.

    Examples
    --------
    >>> from scaledgd.experiments.runs import rate
    >>> rate([1.0, 0.5, 0.25, 0.125, 0.0625])
    0.5
    """
    errors = np.asarray(errors, dtype=float)
    end = needed(errors, floor)
    above = errors[: int(end) + 1] if math.isfinite(end) else errors
    if not np.all(np.isfinite(above)) or above[-1] > above[0]:
        return math.inf
    half = len(above) // 2
    if len(above) - 1 == half:
        return math.nan
    return float((above[-1] / above[half]) ** (1 / (len(above) - 1 - half)))


def slope(x: Any, y: Any) -> float:
    """Return the least-squares slope of log y against log x.

    Parameters
    ----------
    x, y : arrays of one length
        Pairs that are not finite and positive are ignored.

    Returns
    -------
    float
        NaN if fewer than two pairs are left.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    fine = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)
    if np.count_nonzero(fine) < 2:
        return math.nan
    return float(np.polyfit(np.log(x[fine]), np.log(y[fine]), 1)[0])


def as_rows(errors: Any, most: int = 1500, **labels: Any) -> list[Row]:
    """Return a trajectory as rows.

    Parameters
    ----------
    errors : array
    most : int
        Largest number of rows; longer trajectories are thinned evenly.
    **labels : object
        Added to every row.

    Returns
    -------
    list of dict
        With the keys "t" and "error".
    """
    chosen = np.unique(np.linspace(0, len(errors) - 1, min(len(errors), most)).astype(int))
    return [{**labels, "t": int(t), "error": float(errors[t])} for t in chosen]


def free(counts: Iterable[float]) -> bool:
    """Tell whether counts do not depend on κ: the largest is at most 1.1 times the smallest plus 2.

    Parameters
    ----------
    counts : iterable of float

    Returns
    -------
    bool
    """
    counts = list(counts)
    return max(counts) <= 1.1 * min(counts) + 2


def shown(count: float, limit: float | None = None) -> str:
    """Return a count of iterations as text.

    Parameters
    ----------
    count : float
        Infinite if the level was not reached.
    limit : float, optional
        Iterations that were run.

    Returns
    -------
    str
    """
    if math.isfinite(count):
        return f"{count:g}"
    return "not reached" if limit is None else f"> {limit:g}"


def listed(values: Iterable[float]) -> str:
    """Return counts as a list separated by commas.

    Parameters
    ----------
    values : iterable of float

    Returns
    -------
    str
    """
    return ", ".join(shown(v) for v in values)


# ---- iterations over κ, for ScaledGD and gradient descent

LEVELS = (1e-3, 1e-6, 1e-10)


def count_rows(errors: Any, levels: Sequence[float] = LEVELS, **labels: Any) -> list[Row]:
    """Return the number of iterations to each level as rows.

    Parameters
    ----------
    errors : array
    levels : sequence of float
    **labels : object
        Added to every row.

    Returns
    -------
    list of dict
        With the keys "level", "count" and "limit".
    """
    limit = len(errors) - 1
    return [
        {**labels, "level": level, "count": needed(errors, level), "limit": limit}
        for level in levels
    ]


def kappa_claims(
    rows: Rows, level: float, growth: tuple[float, float], name: str = ""
) -> list[Claim]:
    """Claim that ScaledGD does not depend on κ and that gradient descent slows down with κ.

    Parameters
    ----------
    rows : Rows
        From `count_rows`, with "method" and "kappa".
    level : float
        Error to which iterations are compared.
    growth : pair of float
        Range of the power of κ by which gradient descent slows down.
    name : str
        Prefix of the claims.

    Returns
    -------
    list of Claim
    """
    said = f"{name}: " if name else ""
    counts = rows.where(level=level)
    scaled, plain = counts.where(method="ScaledGD"), counts.where(method="GD")
    mild = [r["count"] for r in scaled if r["kappa"] <= 20]
    claims = [
        Claim(
            f"{said}the iterations of ScaledGD do not depend on κ",
            f"iterations to {level:g} over κ = {listed(scaled.distinct('kappa'))}: "
            f"{listed(r['count'] for r in scaled)}",
            free(mild) and max(r["count"] for r in scaled) <= 1.3 * min(mild) + 8,
        )
    ]
    ill = Rows(r for r in plain if r["kappa"] >= 2)
    # a run that was stopped would have taken more
    at_least = [r["count"] if math.isfinite(r["count"]) else r["limit"] for r in ill]
    steep = slope(ill.column("kappa"), at_least)
    text = ", ".join(shown(r["count"], r["limit"]) for r in plain)
    low, high = growth
    claims.append(
        Claim(
            f"{said}gradient descent slows down with κ",
            f"over κ = {listed(plain.distinct('kappa'))}: {text}; as κ to the power {steep:.2f}",
            low <= steep <= high,
        )
    )
    return claims


def error_chart(title: str, rows: Rows, unit: str = "relative error") -> Chart:
    """Draw errors over iterations: one colour per κ, solid for ScaledGD, dashed for GD.

    Parameters
    ----------
    title : str
    rows : Rows
        From `as_rows`, with "method" and "kappa".
    unit : str
        Label of the error.

    Returns
    -------
    Chart
    """
    kappas = rows.distinct("kappa")
    curves = [
        Curve(
            f"{method}, κ = {kappa:g}",
            part.column("t"),
            part.column("error"),
            dashed=method == "GD",
            colour=kappas.index(kappa),
        )
        for (method, kappa), part in rows.groups("method", "kappa")
    ]
    return Chart(title, "iteration", unit, curves, log_y=True)


def count_chart(title: str, rows: Rows, level: float) -> Chart:
    """Draw the iterations to a level over κ, one curve per method.

    Parameters
    ----------
    title : str
    rows : Rows
        From `count_rows`, with "method" and "kappa".
    level : float

    Returns
    -------
    Chart
    """
    curves = [
        Curve(method, part.column("kappa"), part.column("count"), dashed=method == "GD")
        for (method,), part in rows.where(level=level).groups("method")
    ]
    what = f"iterations to {level:g}"
    return Chart(title, "condition number κ", what, curves, log_x=True, log_y=True)
