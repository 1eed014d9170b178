"""Items that count iterations over the condition number, for ScaledGD and gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import scaledgd as sg

from ..report import Beside, Table
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .runs import (
    Error,
    as_rows,
    count_chart,
    count_rows,
    error_chart,
    error_to,
    errors_of,
    kappa_claims,
    shown,
)


class Run(NamedTuple):
    """A problem with its start, how far off factors are, and the two methods."""

    problem: Any
    start: Any
    error: Error
    scaled: Any
    plain: Any


Make = Callable[..., Run]
"""Called with κ, a random generator, and the size."""


@dataclass(frozen=True)
class Sweep:
    """One problem over κ: its sizes, and how many iterations each method may take."""

    make: Make
    quick: Mapping[str, Any]
    full: Mapping[str, Any]
    scaled: int
    plain: Callable[[float], int]
    growth: tuple[float, float] = (0.7, 1.4)
    """The power of κ by which gradient descent may slow down."""


def kappa_item(
    name: str,
    source: str,
    title: str,
    about: str,
    sweeps: Mapping[str, Sweep],
    kappas: Sequence[float] = (1, 2, 5, 10, 20),
    quick_kappas: Sequence[float] | None = None,
    levels: Sequence[float] = (1e-3, 1e-6, 1e-10),
    level: float = 1e-6,
    since: float | None = None,
    unit: str = "relative error",
    further: Callable[[Rows], list[Claim]] | None = None,
    notes: Sequence[str] = (),
) -> Item:
    """An item from one sweep or several; `further` adds claims.

    Iterations are counted from the start, or from where the error is below `since`.
    """

    def cases(setting: Setting) -> list[Case]:
        chosen = setting.pick(quick_kappas or kappas, kappas)
        return [
            {
                "problem": problem,
                "method": method,
                "kappa": kappa,
                "limit": sweep.scaled if method == "ScaledGD" else sweep.plain(kappa),
                "size": dict(setting.pick(sweep.quick, sweep.full)),
                "seed": 0,
            }
            for problem, sweep in sweeps.items()
            for method in ("ScaledGD", "GD")
            for kappa in chosen
        ]

    def measure(
        problem: str, method: str, kappa: float, limit: int, size: Mapping[str, Any], seed: int
    ) -> list[Row]:
        run = sweeps[problem].make(kappa, np.random.default_rng(seed), **size)
        step = run.scaled if method == "ScaledGD" else run.plain
        errors = errors_of(run.problem, run.start, step, run.error, limit, 0.5 * min(levels))
        return as_rows(errors, 400) + count_rows(errors, levels)

    def judge(rows: Rows) -> Verdict:
        claims, blocks, table = [], [], []
        for problem, sweep in sweeps.items():
            ours = rows.where(problem=problem)
            counts = Rows(r for r in ours if "level" in r)
            named = problem if len(sweeps) > 1 else ""
            judged = counts if since is None else _from(counts, since)
            claims += kappa_claims(judged, level, sweep.growth, named)
            blocks.append(
                Beside(
                    error_chart(f"{problem}: error", Rows(r for r in ours if "t" in r), unit),
                    count_chart(f"{problem}: iterations", counts, level),
                )
            )
            for (kappa, method), part in counts.groups("kappa", "method"):
                text = [shown(r["count"], r["limit"]) for r in part]
                table.append([problem, kappa, method, *text])
        claims += further(rows) if further else []
        head = ["problem", "κ", "method", *(f"to {e:g}" for e in levels)]
        return Verdict(claims, [*blocks, Table(head, table, "Iterations")], notes)

    return Item(name, source, title, about, cases, measure, judge)


def _from(counts: Rows, since: float) -> Rows:
    """The counts less those to a first level."""
    first = {(r["method"], r["kappa"]): r["count"] for r in counts.where(level=since)}
    return Rows({**r, "count": r["count"] - first[r["method"], r["kappa"]]} for r in counts)


def scaled_and_plain(eta: float = 0.5) -> tuple[Any, Any]:
    """The two methods with the step of the monograph, for σ₁ = 1."""
    return sg.ScaledGD(eta), sg.GradientDescent(eta)


def subgradients(problem: Any, truth: Any, rank: int) -> Run:
    """Both methods on an l1 loss, with Polyak's step, which is told the optimal value."""
    step = sg.polyak(float(problem.linearize(truth).value))  # ‖y⋆ − y‖₁
    start = sg.spectral(rank, keep=0.8)
    return Run(problem, start, error_to(truth), sg.ScaledGD(step), sg.GradientDescent(step))
