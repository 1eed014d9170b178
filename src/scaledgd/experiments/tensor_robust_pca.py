"""Companion papers: the phase transition of tensor robust PCA."""

from __future__ import annotations

from typing import Any

import numpy as np

import scaledgd as sg

from ..report import Beside, Chart, Curve
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .phase import borders, marked, phase_map, recovered
from .runs import as_rows, error_to, errors_of, free, listed, needed

ETA = 0.4
RHO = 1 - 0.45 * ETA


def cases(setting: Setting) -> list[Case]:
    """Return phase transitions over the rank and over κ, and runs at 5 % corruptions."""
    n = setting.pick(30, 50)
    ranks, kappas = setting.pick(((2, 4, 8), (1, 5, 20)), ((2, 4, 6, 8, 12), (1, 2, 5, 10, 20)))
    grid = setting.pick((0.1, 0.2, 0.3, 0.45), (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5))
    trials = setting.pick(2, 4)
    both = {"n": n, "trials": trials}
    found = [
        {"part": "phase", "rank": rank, "kappa": 5, "fraction": f, **both}
        for rank in ranks
        for f in grid
    ]
    found += [
        {"part": "phase κ", "rank": 4, "kappa": kappa, "fraction": f, **both}
        for kappa in kappas
        for f in grid
    ]
    size = {"n": setting.pick(50, 100), "trials": 1}
    return found + [
        {"part": "curves", "rank": 5, "kappa": kappa, "fraction": 0.05, **size}
        for kappa in (1, 5, 20)
    ]


def measure(part: str, rank: int, kappa: float, fraction: float, n: int, trials: int) -> list[Row]:
    """Return which trials succeed, or the errors of a run."""
    rows = []
    for seed in range(trials):
        problem, truth = sg.datasets.tensor_robust_pca((n,) * 3, rank, kappa, fraction, rng=seed)
        largest = float(np.max(np.abs(truth.full())))
        soft = sg.SoftTrim(sg.thresholds(largest, largest, RHO))
        given = sg.Observed(problem.operator, problem.y, soft)
        if part == "curves":
            errors = errors_of(given, sg.hosvd(rank), sg.ScaledGD(ETA), error_to(truth), 130, 1e-11)
            return [{"count": needed(errors, 1e-6)}, *as_rows(errors)]
        good = recovered(given, sg.hosvd(rank), sg.ScaledGD(ETA), truth, 80, 1e-4)
        rows.append({"seed": seed, "success": int(good)})
    return rows


def judge(rows: Rows) -> Verdict:
    """Judge the tolerated fractions and the iterations over κ."""
    phase, over = rows.where(part="phase"), rows.where(part="phase κ")
    ranks, by_rank = borders(phase, "fraction", "rank", rising=False)
    kappas, by_kappa = borders(over, "fraction", "kappa", rising=False)
    counts = [r["count"] for r in rows if "count" in r]
    easy = over.where(fraction=0.1).column("success")
    claims = [
        Claim(
            "a tenth of the entries may be wrong at any κ up to 20",
            f"{np.mean(easy):.0%} recovered at 10 % corruptions, r = 4, κ = "
            f"{listed(sorted(over.distinct('kappa')))}",
            bool(np.all(easy == 1)),
        ),
        Claim(
            "the tolerated fraction falls no faster than 1/(r₁ r₂ r₃ κ)",
            f"half recovered at {marked(ranks)} for r = "
            f"{listed(sorted(phase.distinct('rank')))}: r^{by_rank:.2f}; and at "
            f"{marked(kappas)} over κ: κ^{by_kappa:.2f}",
            not by_rank < -3 and not by_kappa < -1,
        ),
        Claim(
            "with 5 % corruptions the iterations do not depend on κ",
            f"{listed(counts)} to 1e-6 for κ = 1, 5, 20",
            free(counts),
        ),
    ]
    paths = Rows(r for r in rows if "t" in r)
    curves = [
        Curve(f"κ = {kappa}", part.column("t"), part.column("error"))
        for (kappa,), part in paths.groups("kappa")
    ]
    blocks: list[Any] = [
        Beside(
            phase_map("Over the rank, κ = 5", phase, "fraction", "rank", ("fraction wrong", "r")),
            phase_map("Over κ, r = 4", over, "fraction", "kappa", ("fraction wrong", "κ")),
        ),
        Chart("5 % wrong", "iteration", "relative error", curves, log_y=True),
    ]
    return Verdict(claims, blocks)


ITEM = Item(
    "tensor_robust_pca",
    "Tensor robust PCA",
    "How much of a tensor may be wrong",
    "Entries moved by up to three times the largest; soft thresholds from ‖X⋆‖_∞, falling by "
    "ρ = 1 − 0.45 η; η = 0.4.",
    cases,
    measure,
    judge,
)
