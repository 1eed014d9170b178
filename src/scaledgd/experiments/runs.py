"""Runs that are watched, and the numbers read off them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import scaledgd as sg

from ..report import Chart, Curve
from .item import Claim, Row, Rows

Error = Callable[[Any], Any]


def error_to(truth: Any) -> Error:
    """‖X − X⋆‖_F / ‖X⋆‖_F."""
    return lambda F: sg.metrics.relative_error(F, truth)


def errors_of(
    problem: Any, start: Any, method: Any, error: Error, max_iter: int, until: float = 1e-14
) -> Any:
    """The error of every iterate, until one is below a level or the run fails."""
    found: list[float] = []

    def watch(state: sg.State) -> bool:
        found.append(float(error(state.factors)))
        return not until < found[-1] < 1e6

    sg.solve(problem, start, method, max_iter=max_iter, callback=watch)
    return np.asarray(found)


def needed(errors: Any, level: float) -> float:
    """The first iteration at or below a level; infinite where there is none."""
    below = np.flatnonzero(np.asarray(errors) <= level)
    return float(below[0]) if below.size else math.inf


def rate(errors: Any, floor: float = 1e-12) -> float:
    """The factor by which an iteration shrinks the error once the start is forgotten.

    Between the middle and the end of what is above rounding; infinite where the error grew.
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
    """Of log y against log x, by least squares over what is finite."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    fine = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)
    if np.count_nonzero(fine) < 2:
        return math.nan
    return float(np.polyfit(np.log(x[fine]), np.log(y[fine]), 1)[0])


def as_rows(errors: Any, most: int = 1500, **labels: Any) -> list[Row]:
    """A trajectory as rows, all of it or evenly thinned."""
    chosen = np.unique(np.linspace(0, len(errors) - 1, min(len(errors), most)).astype(int))
    return [{**labels, "t": int(t), "error": float(errors[t])} for t in chosen]


def free(counts: Iterable[float]) -> bool:
    """κ-free: the largest count is at most 1.1 times the smallest plus 2."""
    counts = list(counts)
    return max(counts) <= 1.1 * min(counts) + 2


def shown(count: float, limit: float | None = None) -> str:
    """A count of iterations as text."""
    if math.isfinite(count):
        return f"{count:g}"
    return "not reached" if limit is None else f"> {limit:g}"


def listed(values: Iterable[float]) -> str:
    return ", ".join(shown(v) for v in values)


# ---- iterations against κ, for two methods: what most of the items are about

LEVELS = (1e-3, 1e-6, 1e-10)


def count_rows(errors: Any, levels: Sequence[float] = LEVELS, **labels: Any) -> list[Row]:
    """How many iterations each level took."""
    limit = len(errors) - 1
    return [
        {**labels, "level": level, "count": needed(errors, level), "limit": limit}
        for level in levels
    ]


def kappa_claims(
    rows: Rows, level: float, growth: tuple[float, float], name: str = ""
) -> list[Claim]:
    """ScaledGD is κ-free up to 20 and beyond, gradient descent slows down by a power of κ."""
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
    # a run that was broken off took at least so many
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
    """Errors over iterations: a colour per κ, ScaledGD in full lines and GD dashed."""
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
    """Iterations to a level over κ, for each method."""
    curves = [
        Curve(method, part.column("kappa"), part.column("count"), dashed=method == "GD")
        for (method,), part in rows.where(level=level).groups("method")
    ]
    what = f"iterations to {level:g}"
    return Chart(title, "condition number κ", what, curves, log_x=True, log_y=True)
