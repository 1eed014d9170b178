"""Table 1, samples and corruptions: what recovery needs and tolerates, over κ and r."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import scaledgd as sg

from ..report import Beside, Table
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .phase import borders, marked, phase_map, recovered

ORDERS: dict[str, tuple[str, bool, dict[str, tuple[float, float]]]] = {
    # problem: what varies, whether more of it helps, and the powers of κ and r in the table
    "sensing": ("measurements", True, {"ScaledGD": (2, 2), "GD": (2, 2)}),
    "completion": ("share seen", True, {"ScaledGD": (4, 2), "GD": (2, 2)}),
    "robust PCA": ("fraction wrong", False, {"ScaledGD": (-1, -1.5), "GD": (-2, -1.5)}),
}
SIZES = {"sensing": 24, "completion": 120, "robust PCA": 120}


def cases(setting: Setting) -> list[Case]:
    """Return sweeps over κ and r for every problem and method."""
    kappas, ranks = setting.pick(((1, 4, 16), (1, 2, 4)), ((1, 2, 4, 8, 16), (1, 2, 4, 6, 8)))
    points, trials = setting.pick((6, 2), (10, 5))
    grids = {
        "sensing": np.geomspace(60, 1600, points),
        "completion": np.geomspace(0.03, 0.7, points),
        "robust PCA": np.geomspace(0.02, 0.6, points),
    }
    found = []
    for problem, grid in grids.items():
        for method in ("ScaledGD", "GD"):
            settings = [("κ", kappa, 2) for kappa in kappas] + [("r", 2, rank) for rank in ranks]
            for against, kappa, rank in settings:
                if method == "GD" and kappa > setting.pick(4, 8):
                    continue  # it would take too long
                base = {"problem": problem, "method": method, "against": against}
                base |= {"kappa": kappa, "rank": rank, "trials": trials}
                found.append({**base, "grid": [float(f"{g:.3g}") for g in grid]})
    return found


def instance(problem: str, amount: float, kappa: float, rank: int, seed: int) -> tuple[Any, Any]:
    """Make an instance with a given amount of data or corruption."""
    n = SIZES[problem]
    if problem == "sensing":
        return sg.datasets.matrix_sensing(n, n, rank, kappa, round(amount), rng=seed)
    if problem == "completion":
        return sg.datasets.matrix_completion(n, n, rank, kappa, amount, rng=seed)
    return sg.datasets.robust_pca(n, n, rank, kappa, amount, rng=seed)


def measure(
    problem: str,
    method: str,
    against: str,
    kappa: float,
    rank: int,
    trials: int,
    grid: list[float],
) -> list[Row]:
    """Try every amount in `grid` several times."""
    rows = []
    # κ does not change how long ScaledGD takes, and gradient descent takes κ times as long
    limit, step = (
        (150, sg.ScaledGD(0.5))
        if method == "ScaledGD"
        else (
            int(150 * kappa),
            sg.GradientDescent(0.5),
        )
    )
    for amount in grid:
        for seed in range(trials):
            given, truth = instance(problem, amount, kappa, rank, seed)
            level = 0.03 / (kappa * math.sqrt(rank))  # well below σ_r
            good = recovered(given, sg.spectral(rank), step, truth, limit, level)
            rows.append({"amount": amount, "seed": seed, "success": int(good)})
    return rows


def judge(rows: Rows) -> Verdict:
    """Judge the powers of κ and r by which the borders move."""
    claims, table, maps = [], [], []
    for problem, (varied, rising, orders) in ORDERS.items():
        for method, powers in orders.items():
            ours = rows.where(problem=problem, method=method)
            for name, column, power in (("κ", "kappa", powers[0]), ("r", "rank", powers[1])):
                part = ours.where(against=name)
                found, measured = borders(part, "amount", column, rising)
                values = marked(found)
                table.append([problem, method, varied, name, values, measured, power])
                # the orders are sufficient: what is needed may grow more slowly, but not faster
                within = measured <= power + 0.35 if rising else measured >= power - 0.35
                claims.append(
                    Claim(
                        f"{problem}, {method}: the order {name}^{power:g} suffices",
                        f"measured border {varied} {values}: {name}^{measured:.2f}",
                        within,
                    )
                )
                if method == "ScaledGD":
                    title = f"{problem}: {varied} over {name}"
                    maps.append(phase_map(title, part, "amount", column, (varied, name)))
    head = [
        "problem",
        "method",
        "border of",
        "over",
        "half succeed at",
        "power",
        "table",
    ]
    caption = "Powers of κ and r: measured, and in the table (sufficient orders only)"
    notes = [
        "The table's orders are sufficient, so a measured power that is smaller agrees with them. "
        "Success is an error below 0.03 σ_r/√r within 150 iterations (gradient descent: 150 κ)."
    ]
    pairs = [Beside(*maps[k : k + 2]) for k in range(0, len(maps), 2)]
    return Verdict(claims, [Table(head, table, caption), *pairs], notes)


ITEM = Item(
    "table1_samples",
    "Table 1, samples",
    "How many samples, how many corruptions",
    "Recovery from the spectral start with η = 0.5, over κ at rank 2 and over the rank at κ = 2. "
    "Sensing: 24 × 24; completion and robust PCA: 120 × 120.",
    cases,
    measure,
    judge,
)
