"""Fig. 4: completing the chlorine data at r = 5 and r = 20, from four starts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import scaledgd as sg

from ..report import Beside, Chart, Curve
from .figure3 import best_errors
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .runs import as_rows, error_to, errors_of, needed, shown

P, DAMPING, SCALE = 0.8, 0.02, 1e-8
"""Share of entries seen; λ in units of σ₁; size of the random start in units of √σ₁."""
NAMES = ("ScaledGD, spectral", "ScaledGD(λ)", "ScaledGD, mixed", "GD")


class Watched:
    """A problem that remembers the iterates it was asked about, those of a warm-up too."""

    def __init__(self, problem: Any) -> None:
        self._problem, self.seen = problem, list[Any]()

    def linearize(self, factors: Any, *rest: Any) -> Any:
        self.seen.append(factors)
        return self._problem.linearize(factors, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)


def cases(setting: Setting) -> list[Case]:
    path = None if setting.chlorine is None else str(setting.chlorine)
    limit = setting.pick(250, 400)
    return [
        {"path": path, "rank": rank, "method": name, "limit": limit, "seed": 0}
        for rank in (5, 20)
        for name in NAMES
    ]


def measure(path: str | None, rank: int, method: str, limit: int, seed: int) -> list[Row]:
    data = sg.datasets.load_chlorine(path)
    X = data.X
    index = np.nonzero(np.random.default_rng(seed).random(X.shape) < P)
    problem = sg.Observed(sg.Entries(index, X.shape), X[index], scale=1 / P)
    largest = float(np.linalg.norm(X, 2))
    damping, scale = DAMPING * largest, SCALE * math.sqrt(largest)
    error, before = error_to(X), []
    start: Any = sg.spectral(rank)
    step: Any = sg.ScaledGD(0.5)
    if method == "GD":
        step = sg.GradientDescent(0.5 / largest)
    elif method == "ScaledGD(λ)":
        start, step = sg.small_random(rank, scale, rng=seed), sg.ScaledGD(0.5, damping=damping)
    elif method == "ScaledGD, mixed":
        watched = Watched(problem)
        start = sg.mixed(rank, damping, scale, rng=seed)(watched)
        before = [float(error(F)) for F in watched.seen[:-1]]
    after = errors_of(problem, start, step, error, limit)
    errors = np.concatenate([before, after])[: limit + 1]
    summary = {"source": data.source, "best": float(best_errors(X)[rank]), "warm-up": len(before)}
    return [{**summary, "last": float(errors[-1])}, *as_rows(errors)]


def judge(rows: Rows) -> Verdict:
    sums = Rows(r for r in rows if "best" in r)
    paths = Rows(r for r in rows if "t" in r)
    claims, charts = [], []
    for rank, panel in ((5, "a"), (20, "b")):
        last = {r["method"]: r["last"] for r in sums.where(rank=rank)}
        best = sums.where(rank=rank)[0]["best"]
        ours = paths.where(rank=rank)
        errors = {name: part.column("error") for (name,), part in ours.groups("method")}
        level = 1.01 * min(last.values())
        counts = {name: needed(e, level) for name, e in errors.items()}
        seen = ", ".join(f"{name}: {shown(c)}" for name, c in counts.items())
        ends = ", ".join(f"{name}: {e:.2g}" for name, e in last.items())
        scaled = [n for n in NAMES if n != "GD"]
        if rank == 5:
            claims += [
                Claim(
                    "(a) r = 5: spectral ScaledGD is fastest, others warm up first, all before GD",
                    f"iterations to within 1 % of the lowest error: {seen}",
                    counts[NAMES[0]] == min(counts.values())
                    and all(counts[name] < counts["GD"] for name in scaled),
                ),
                Claim(
                    "(a) all variants of ScaledGD approach the optimal rank-r error",
                    f"optimal {best:.3g}; {ends}",
                    all(best <= last[name] <= 1.1 * best for name in scaled),
                ),
            ]
        else:
            claims += [
                Claim(
                    "(b) r = 20: spectral ScaledGD no longer converges",
                    f"optimal {best:.2g}; {ends}",
                    last[NAMES[0]] > 2 * max(last[NAMES[1]], last[NAMES[2]]),
                ),
                Claim(
                    "(b) ScaledGD(λ) and the mixed start still come near the optimal error",
                    ", ".join(f"{last[n] / best:.2f}" for n in NAMES[1:3]) + " times the optimal",
                    last[NAMES[1]] < 8 * best and last[NAMES[2]] < 2.5 * best,
                ),
                Claim(
                    "(b) gradient descent is still significantly slower",
                    f"{last['GD']:.2g} after {ours[-1]['limit']} iterations",
                    last["GD"] > 2 * last[NAMES[2]],
                ),
            ]
        curves = [
            Curve(name, np.arange(len(e)), e, dashed=name == "GD") for name, e in errors.items()
        ]
        title = f"({panel}) r = {rank}"
        level_line = [("optimal rank-r error", best)]
        charts.append(
            Chart(title, "iteration", "relative error", curves, log_y=True, levels=level_line)
        )
    lengths = ", ".join(f"{r['warm-up']} at r = {r['rank']}" for r in sums if r["warm-up"])
    notes = [
        f"The data: {sums[0]['source']}.",
        f"λ = {DAMPING} σ₁, a random start of size {SCALE:g} √σ₁; the mixed start took {lengths} "
        "warm-up iterations, which are drawn and counted.",
    ]
    return Verdict(claims, [Beside(*charts)], notes)


ITEM = Item(
    "figure4",
    "Fig. 4",
    "Completing the chlorine data from four fifths of its entries",
    "Data that are only approximately of low rank: a larger r fits better, at a higher κ.",
    cases,
    measure,
    judge,
)
