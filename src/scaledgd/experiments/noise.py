"""Companion papers: with noise, ScaledGD ends at the error of gradient descent, for any κ."""

from __future__ import annotations

import math

import numpy as np

import scaledgd as sg

from ..report import Beside, Chart, Curve
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .runs import as_rows, error_to, errors_of, free, listed, needed


def cases(setting: Setting) -> list[Case]:
    """Return matrices and tensors at several noise levels and condition numbers."""
    sizes = setting.pick({"matrix": 300, "tensor": 40}, {"matrix": 1000, "tensor": 100})
    shares = setting.pick({"matrix": 0.4, "tensor": 0.25}, {"matrix": 0.2, "tensor": 0.1})
    kappas = {"matrix": (1, 5, 10), "tensor": (1, 3)}
    decibels = setting.pick((40, 60), (40, 60, 80))
    return [
        {"kind": kind, "n": n, "p": shares[kind], "decibel": db, "kappa": k, "method": m, "seed": 0}
        for kind, n in sizes.items()
        for db in decibels
        for k in kappas[kind]
        for m in ("ScaledGD", "GD")
    ]


def measure(
    kind: str, n: int, p: float, decibel: float, kappa: float, method: str, seed: int
) -> list[Row]:
    """Run one method; return its final error and its errors."""
    rank = 5 if kind == "matrix" else 3
    rng = np.random.default_rng(seed)
    shape = (n,) * (2 if kind == "matrix" else 3)
    truth: sg.Factors
    if kind == "matrix":
        truth, eta = sg.datasets.low_rank(n, n, rank, kappa, rng), 0.5
    else:
        truth, eta = sg.datasets.low_rank_tensor(shape, rank, kappa, rng), 0.3
    index = np.nonzero(rng.random(shape) < p)
    sigma = float(truth.norm()) / math.sqrt(math.prod(shape)) / 10 ** (decibel / 20)
    y = truth.at(index) + sigma * rng.standard_normal(index[0].shape)
    problem = sg.Observed(sg.Entries(index, shape), y, scale=1 / p)
    start = sg.spectral(rank) if kind == "matrix" else sg.diagonal_deleted(rank)
    scaled = method == "ScaledGD"
    step = sg.ScaledGD(eta) if scaled else sg.GradientDescent(eta)
    power = 1 if kind == "matrix" else 2
    limit = 90 if scaled else int(100 + 60 * kappa**power)
    errors = errors_of(problem, start, step, error_to(truth), limit)
    floor = float(errors[-1])
    return [{"floor": floor, "count": needed(errors, 1.1 * floor)}, *as_rows(errors, 200)]


def judge(rows: Rows) -> Verdict:
    """Judge the final errors and the iterations to reach them."""
    sums = Rows(r for r in rows if "floor" in r)
    claims, charts = [], []
    for (kind,), ours in sums.groups("kind"):
        ratios = [
            part.where(method="ScaledGD")[0]["floor"] / part.where(method="GD")[0]["floor"]
            for _, part in ours.groups("decibel", "kappa")
        ]
        claims.append(
            Claim(
                f"{kind} completion: ScaledGD ends at the noise floor of gradient descent",
                f"{min(ratios):.3f} to {max(ratios):.3f} times that floor",
                min(ratios) > 0.9 and max(ratios) < 1.1,
            )
        )
        scaled = ours.where(method="ScaledGD")
        counts = {db: part.column("count") for (db,), part in scaled.groups("decibel")}
        claims.append(
            Claim(
                f"{kind} completion: ScaledGD takes the same number of iterations for every κ",
                "; ".join(f"{db} dB: {listed(found)}" for db, found in counts.items()),
                all(free(found) for found in counts.values()),
            )
        )
        paths = Rows(r for r in rows.where(kind=kind) if "t" in r)
        paths = Rows(r for r in paths if r["kappa"] == max(paths.distinct("kappa")))
        curves = [
            Curve(
                f"{method}, {db} dB",
                part.column("t"),
                part.column("error"),
                method == "GD",
                colour=db // 20,
            )
            for (db, method), part in paths.groups("decibel", "method")
        ]
        title = f"{kind}, κ = {paths[0]['kappa']}"
        charts.append(Chart(title, "iteration", "relative error", curves, log_y=True))
    return Verdict(claims, [Beside(*charts)])


ITEM = Item(
    "noise",
    "Noise",
    "Completion with noise",
    "Gaussian noise 40 to 80 dB below the entries. Both methods end at the same statistical error.",
    cases,
    measure,
    judge,
)
