"""Companion papers: the error after 80 iterations over the step size."""

from __future__ import annotations

import math

import numpy as np

import scaledgd as sg

from ..report import Chart, Curve
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .runs import error_to, errors_of

AFTER = 80


def cases(setting: Setting) -> list[Case]:
    """Return both methods over κ and η."""
    n, rank, p = setting.pick((300, 4, 0.5), (1000, 10, 0.2))
    etas = np.round(np.arange(0.1, 1.31, setting.pick(0.2, 0.1)), 2).tolist()
    return [
        {"method": method, "kappa": kappa, "eta": eta, "n": n, "rank": rank, "p": p, "seed": 0}
        for method in ("ScaledGD", "GD")
        for kappa in (1, 5, 20)
        for eta in etas
    ]


def measure(
    method: str, kappa: float, eta: float, n: int, rank: int, p: float, seed: int
) -> list[Row]:
    """Return the error after AFTER iterations."""
    problem, truth = sg.datasets.matrix_completion(n, n, rank, kappa, p, rng=seed)
    step = sg.ScaledGD(eta) if method == "ScaledGD" else sg.GradientDescent(eta)
    errors = errors_of(problem, sg.spectral(rank), step, error_to(truth), AFTER)
    return [{"error": float(errors[-1]) if errors[-1] < 1e3 else math.inf}]


def judge(rows: Rows) -> Verdict:
    """Judge which step sizes work."""
    scaled = rows.where(method="ScaledGD")
    working = {
        kappa: [r["eta"] for r in part if r["error"] < 1e-2]
        for (kappa,), part in scaled.groups("kappa")
    }
    best = {
        kappa: min(part, key=lambda r: r["error"])["eta"]
        for (kappa,), part in scaled.groups("kappa")
    }
    plain = rows.where(method="GD", kappa=20)
    least = min(r["error"] for r in plain)
    reached = min(r["error"] for r in scaled.where(kappa=20))
    claims = [
        Claim(
            "ScaledGD converges for the same range of step sizes at every κ",
            "; ".join(f"κ = {k}: {min(e):g} to {max(e):g}" for k, e in working.items()),
            all(min(e) <= 0.31 and max(e) >= 0.65 for e in working.values())
            and max(best.values()) - min(best.values()) <= 0.21,
        ),
        Claim(
            f"no step size works for gradient descent at κ = 20 within {AFTER} iterations",
            f"its best error is {least:.1e}, that of ScaledGD {reached:.1e}",
            least > 1e3 * reached,
        ),
        Claim(
            "a step beyond 1 fails (a control)",
            f"error at η = {scaled[-1]['eta']:g}: {scaled[-1]['error']:.2g}",
            not scaled[-1]["error"] < 0.1,
        ),
    ]
    kappas = rows.distinct("kappa")
    curves = [
        Curve(
            f"{method}, κ = {kappa}", part.column("eta"), part.column("error"),
            method == "GD", colour=kappas.index(kappa),
        )
        for (method, kappa), part in rows.groups("method", "kappa")
    ]  # fmt: skip
    title = f"Error after {AFTER} iterations"
    return Verdict(claims, [Chart(title, "step size η", "relative error", curves, log_y=True)])


ITEM = Item(
    "step_size",
    "Step sizes",
    "Which step sizes work",
    "Matrix completion from the spectral start; steps are η for ScaledGD and η/σ₁ "
    "for gradient descent.",
    cases,
    measure,
    judge,
)
