"""Companion papers: the error over time."""

from __future__ import annotations

from typing import Any

import numpy as np

import scaledgd as sg

from ..report import Beside, Chart, Curve
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .runs import error_to

LEVEL = 1e-6


def cases(setting: Setting) -> list[Case]:
    """Return both problems at two condition numbers."""
    sizes = setting.pick(
        {"completion": (400, 5), "robust PCA": (200, 5)},
        {"completion": (1000, 10), "robust PCA": (500, 10)},
    )
    return [
        {"problem": problem, "kappa": kappa, "n": n, "rank": rank, "seed": 0}
        for problem, (n, rank) in sizes.items()
        for kappa in (1, 10)
    ]


def near(state: sg.State, history: list[Any]) -> sg.Stop | None:
    """Stop when the error is below LEVEL."""
    return sg.Stop("accurate", True) if history[-1]["error"] < LEVEL else None


def measure(problem: str, kappa: float, n: int, rank: int, seed: int) -> list[Row]:
    """Time three runs of both methods."""
    if problem == "completion":
        instance, truth = sg.datasets.matrix_completion(n, n, rank, kappa, 0.3, rng=seed)
    else:
        instance, truth = sg.datasets.robust_pca(n, n, rank, kappa, 0.05, rng=seed)
    error, rows = error_to(truth), []
    for repeat in range(3):
        for name, method, limit in (
            ("ScaledGD", sg.ScaledGD(0.5), 100),
            ("GD", sg.GradientDescent(0.5), int(100 + 60 * kappa)),
        ):
            result = sg.solve(
                instance,
                sg.spectral(rank),
                method,
                max_iter=limit,
                metrics={"error": error},
                stop=near,
            )
            rows += [
                {
                    "method": name,
                    "repeat": repeat,
                    "t": r["t"],
                    "seconds": r["seconds"],
                    "error": float(r["error"]),
                }
                for r in result.history
            ]
    return rows


def judge(rows: Rows) -> Verdict:
    """Judge the times to reach LEVEL."""
    claims, charts = [], []
    for (problem, kappa), ours in rows.groups("problem", "kappa"):
        times: dict[str, list[float]] = {}
        middle: dict[str, Rows] = {}
        for (name,), part in ours.groups("method"):
            ends = [run[-1]["seconds"] - run[0]["seconds"] for _, run in part.groups("repeat")]
            times[name] = ends
            order = int(np.argsort(ends)[len(ends) // 2])
            middle[name] = part.where(repeat=order)
        ratio = float(np.median(times["GD"]) / np.median(times["ScaledGD"]))
        reached = all(part[-1]["error"] <= LEVEL for part in middle.values())
        if kappa == 1:
            says = f"{problem}: at κ = 1 ScaledGD takes about as long as gradient descent"
            holds = 0.6 < ratio < 1.7
        else:
            says = f"{problem}: at κ = {kappa} ScaledGD is faster in seconds, too"
            holds = ratio > 3
        seen = f"gradient descent takes {ratio:.2f} times as long to {LEVEL:g}, median of 3"
        claims.append(Claim(says, seen, holds and reached))
        curves = [
            Curve(
                name,
                part.column("seconds") - part[0]["seconds"],
                part.column("error"),
                name == "GD",
            )
            for name, part in middle.items()
        ]
        title = f"{problem}, κ = {kappa}"
        charts.append(Chart(title, "seconds", "relative error", curves, log_y=True))
    return Verdict(claims, [Beside(*charts)])


ITEM = Item(
    "run_time",
    "Run time",
    "The error over time",
    "Seconds of the iterations alone, from the same spectral start to a relative error of 1e-6.",
    cases,
    measure,
    judge,
    alone=True,
)
