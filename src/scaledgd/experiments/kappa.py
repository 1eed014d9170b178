"""Items that count the iterations of ScaledGD and gradient descent over κ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import scaledgd as sg

from ..report import Beside, Block, Table
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .runs import (
    LEVELS,
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
    """One instance: a problem, its start, the error of factors, and the two methods."""

    problem: Any
    start: Any
    error: Error
    scaled: Any
    plain: Any


Make = Callable[..., Run]
"""Called with κ, a random generator, and the size as keyword arguments."""


@dataclass(frozen=True)
class Sweep:
    """One problem over κ.

    Parameters
    ----------
    make : callable
        Called with κ, a random generator and a size; returns a `Run`.
    quick, full : dict
        The reduced and the full size.
    scaled : int
        Iterations that ScaledGD may take.
    plain : callable
        From κ to the iterations that gradient descent may take.
    growth : pair of float
        Range of the power of κ by which gradient descent slows down.
    """

    make: Make
    quick: Mapping[str, Any]
    full: Mapping[str, Any]
    scaled: int
    plain: Callable[[float], int]
    growth: tuple[float, float] = (0.7, 1.4)


@dataclass(frozen=True)
class Count:
    """How iterations are counted and shown.

    Parameters
    ----------
    levels : sequence of float
        Errors to which iterations are counted.
    level : float
        The one that claims are about.
    since : float, optional
        Count from this error on, instead of from the start.
    unit : str
        Label of the error.
    """

    levels: Sequence[float] = LEVELS
    level: float = 1e-6
    since: float | None = None
    unit: str = "relative error"


USUAL = Count()
"""How iterations are counted in most items."""


def kappa_item(
    name: str,
    source: str,
    title: str,
    about: str,
    sweeps: Mapping[str, Sweep],
    *,
    kappas: Sequence[float] = (1, 2, 5, 10, 20),
    quick_kappas: Sequence[float] | None = None,
    count: Count = USUAL,
    further: Callable[[Rows], list[Claim]] | None = None,
) -> Item:
    """Make an item from one sweep over κ or several.

    Parameters
    ----------
    name, source, title, about : str
        As of `Item`.
    sweeps : dict of str to Sweep
        By the name of their problem.
    kappas, quick_kappas : sequence of float
        Condition numbers at full and at reduced size; the latter default to the former.
    count : Count
    further : callable, optional
        From all rows to more claims.

    Returns
    -------
    Item
    """
    cases = partial(_cases, sweeps, kappas, quick_kappas or kappas)
    measure, judge = partial(_measure, sweeps, count), partial(_judge, sweeps, count, further)
    return Item(name, source, title, about, cases, measure, judge)


def _cases(
    sweeps: Mapping[str, Sweep],
    kappas: Sequence[float],
    quick_kappas: Sequence[float],
    setting: Setting,
) -> list[Case]:
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
        for kappa in setting.pick(quick_kappas, kappas)
    ]


def _measure(
    sweeps: Mapping[str, Sweep],
    count: Count,
    problem: str,
    method: str,
    kappa: float,
    limit: int,
    size: Mapping[str, Any],
    seed: int,
) -> list[Row]:
    run = sweeps[problem].make(kappa, np.random.default_rng(seed), **size)
    step = run.scaled if method == "ScaledGD" else run.plain
    errors = errors_of(run.problem, run.start, step, run.error, limit, 0.5 * min(count.levels))
    return as_rows(errors, 400) + count_rows(errors, count.levels)


def _judge(
    sweeps: Mapping[str, Sweep],
    count: Count,
    further: Callable[[Rows], list[Claim]] | None,
    rows: Rows,
) -> Verdict:
    claims: list[Claim] = []
    blocks: list[Block] = []
    for problem, sweep in sweeps.items():
        ours = rows.where(problem=problem)
        counts = Rows(r for r in ours if "level" in r)
        judged = counts if count.since is None else _counted_from(counts, count.since)
        named = problem if len(sweeps) > 1 else ""
        claims += kappa_claims(judged, count.level, sweep.growth, named)
        curves = Rows(r for r in ours if "t" in r)
        blocks.append(
            Beside(
                error_chart(f"{problem}: error", curves, count.unit),
                count_chart(f"{problem}: iterations", counts, count.level),
            )
        )
    claims += further(rows) if further else []
    return Verdict(claims, [*blocks, _table(rows, count.levels)])


def _table(rows: Rows, levels: Sequence[float]) -> Table:
    """List the iterations to every level, by problem, κ and method."""
    counts = Rows(r for r in rows if "level" in r)
    lines = [
        [problem, kappa, method, *(shown(r["count"], r["limit"]) for r in part)]
        for (problem,), ours in counts.groups("problem")
        for (kappa, method), part in ours.groups("kappa", "method")
    ]
    head = ["problem", "κ", "method", *(f"to {e:g}" for e in levels)]
    return Table(head, lines, "Iterations")


def _counted_from(counts: Rows, since: float) -> Rows:
    """Subtract the iterations to a first level from all counts."""
    first = {(r["method"], r["kappa"]): r["count"] for r in counts.where(level=since)}
    return Rows({**r, "count": r["count"] - first[r["method"], r["kappa"]]} for r in counts)


def scaled_and_plain(eta: float = 0.5) -> tuple[Any, Any]:
    """Return ScaledGD and gradient descent with the step of the monograph, for σ₁ = 1.

    Parameters
    ----------
    eta : float

    Returns
    -------
    pair of methods
    """
    return sg.ScaledGD(eta), sg.GradientDescent(eta)


def subgradients(problem: Any, truth: Any, rank: int) -> Run:
    """Return a run of both methods on an l1 loss with Polyak steps that know the optimal value.

    Parameters
    ----------
    problem : Problem
    truth : Factors
    rank : int

    Returns
    -------
    Run
    """
    step = sg.polyak(float(problem.linearize(truth).value))  # ‖y⋆ − y‖₁
    start = sg.spectral(rank, keep=0.8)
    return Run(problem, start, error_to(truth), sg.ScaledGD(step), sg.GradientDescent(step))
