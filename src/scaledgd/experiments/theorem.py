"""Items for theorems that bound the error by C (1 − c η)ᵗ (1 to 4, and 6).

The full bound, with its constant, is checked where its conditions hold. Sweeps over the step size
and the amount of data compare the measured contraction with the rate of the bound, even beyond
those conditions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import scaledgd as sg

from ..report import Beside, Block, Chart, Curve
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .runs import errors_of, rate

FLOOR, SLACK = 1e-12, 1e-3
"""Error in units of σ_r below which rounding dominates; slack for a measured rate."""

SYMBOLS = {"kappa": "κ", "eta": "η", "fraction": "α", "rank": "r", "measurements": "m/dof"}


class Instance(NamedTuple):
    """One run: a problem, its start, the error in the units of the theorem, a projection."""

    problem: Any
    start: Any
    error: Callable[[Any], float]
    project: Any = None


@dataclass(frozen=True)
class Theorem:
    """A bound ‖X_t − X⋆‖ ≤ constant · (1 − speed · η)ᵗ and the cases that test it.

    Parameters
    ----------
    make : callable
        Called with a random generator and parameters; returns an `Instance`.
    constant : float or None
        None if the theorem leaves it open; the error of the start replaces it.
    most : float
        Largest step size of the theorem.
    inside : sequence of dict
        Parameters, with `eta`, for which the whole bound must hold.
    steps : dict
        Parameters of the sweep over step sizes.
    too_long : float
        A step that must fail.
    data : tuple of (str, sequence of float, dict)
        The sweep over the amount of data: the parameter that varies, its values from plenty to
        too little, and the other parameters.
    data_label : str
        Label of that parameter.
    speed : float
    iterations : int
        For a step of 0.5; shorter steps take more.
    eta : float
        Step size of the sweep over the amount of data.
    least : float
        Smallest step size.
    """

    make: Callable[..., Instance]
    constant: float | None
    most: float
    inside: Sequence[Mapping[str, Any]]
    steps: Mapping[str, Any]
    too_long: float
    data: tuple[str, Sequence[float], Mapping[str, Any]]
    data_label: str
    speed: float = 0.6
    iterations: int = 60
    eta: float = 0.5
    least: float = 0.1


Of = Callable[[bool], Theorem]
"""Returns the theorem with its cases, of reduced size if its argument is true."""


def theorem_item(
    name: str, source: str, title: str, about: str, of: Of, notes: Sequence[str] = ()
) -> Item:
    """Make an item from a theorem.

    Parameters
    ----------
    name, source, title, about : str
        As of `Item`.
    of : callable
        Called with True for reduced size; returns the `Theorem`.
    notes : sequence of str
        Shown in the report.

    Returns
    -------
    Item
    """
    measure, judge = partial(_measure, of), partial(_judge, of, notes)
    return Item(name, source, title, about, partial(_cases, of), measure, judge)


def _cases(of: Of, setting: Setting) -> list[Case]:
    t = of(setting.quick)
    key, values, rest = t.data
    etas = np.round(np.linspace(t.least, t.most, 5), 3).tolist()
    every = {"quick": setting.quick, "seed": 0}
    found: list[Case] = [{"part": "bound", **every, "given": dict(c)} for c in t.inside]
    found += [
        {"part": "step", **every, "given": {**t.steps, "eta": eta}}
        for eta in [*etas, round((t.most + t.too_long) / 2, 3), t.too_long]
    ]
    return found + [
        {"part": "data", **every, "given": {**rest, key: value, "eta": t.eta}} for value in values
    ]


def _measure(of: Of, part: str, quick: bool, given: Mapping[str, Any], seed: int) -> list[Row]:
    """Compare the errors of one run with the bound; return a summary, and the curves of bounds."""
    t = of(quick)
    eta = given["eta"]
    errors = _errors(t, given, seed)
    constant = errors[0] if t.constant is None else t.constant
    bound = constant * (1 - t.speed * eta) ** np.arange(len(errors))
    worst = float(np.max(errors / (bound + FLOOR)))
    label = ", ".join(f"{SYMBOLS.get(k, k)} = {v:.3g}" for k, v in given.items())
    summary = {**given, "worst": worst, "rate": rate(errors, FLOOR), "first": float(errors[0])}
    rows = [{"label": label, **summary, "allowed": 1 - t.speed * eta}]
    if part == "bound":
        rows += [
            {"label": label, "t": k, "error": float(e), "bound": float(b)}
            for k, (e, b) in enumerate(zip(errors, bound, strict=True))
        ]
    return rows


def _errors(t: Theorem, given: Mapping[str, Any], seed: int) -> Any:
    """Return the error of every iterate, in units of σ_r."""
    eta = given["eta"]
    rest = {k: v for k, v in given.items() if k != "eta"}
    instance = t.make(np.random.default_rng(seed), **rest)
    method = sg.ScaledGD(eta, project=instance.project)
    # long enough to see the rate of a small step
    limit = int(t.iterations * max(1.0, 0.5 / eta))
    return errors_of(instance.problem, instance.start, method, instance.error, limit, 0.1 * FLOOR)


def _judge(of: Of, notes: Sequence[str], rows: Rows) -> Verdict:
    t = of(rows[0]["quick"])
    bound = Rows(r for r in rows.where(part="bound") if "worst" in r)
    steps, data = rows.where(part="step"), rows.where(part="data")
    claims = [
        _bound_claim(t, bound),
        _rate_claim(t, steps),
        _step_claim(t, steps),
        _data_claim(t, data),
    ]
    return Verdict(claims, _blocks(t, rows, steps, data), notes)


def _bound_claim(t: Theorem, bound: Rows) -> Claim:
    worst, rates = max(r["worst"] for r in bound), bound.column("rate")
    begins = "as it stands" if t.constant is not None else "from the error of the start on"
    return Claim(
        f"the bound holds {begins} at every iteration where its conditions hold",
        f"the error is at most {worst:.2g} times the bound, in {len(bound)} settings; "
        f"measured contraction {np.min(rates):.3f} to {np.max(rates):.3f}",
        0 < worst <= 1 + 1e-9,
    )


def _rate_claim(t: Theorem, steps: Rows) -> Claim:
    inside = Rows(r for r in steps if r["eta"] <= t.most + 1e-3)
    return Claim(
        f"linear convergence at 1 − {t.speed:g} η or faster for every η up to {t.most:.3g}",
        "measured against allowed: "
        + ", ".join(f"{r['rate']:.3f}/{r['allowed']:.3f}" for r in inside),
        all(_fast(r) for r in inside),
    )


def _step_claim(t: Theorem, steps: Rows) -> Claim:
    failing = [r for r in steps if not r["rate"] < 1]
    return Claim(
        "the step size must be bounded (a control: beyond the theorem it fails)",
        "diverges at η = " + (", ".join(f"{r['eta']:g}" for r in failing) or "none tried"),
        any(math.isclose(r["eta"], t.too_long) for r in failing),
    )


def _data_claim(t: Theorem, data: Rows) -> Claim:
    key = t.data[0]
    fine = [r for r in data if _fast(r)]
    few = [r for r in data if not _fast(r)]
    return Claim(
        f"enough data are needed (a control: the rate is lost along {t.data_label})",
        f"holds for {', '.join(f'{r[key]:g}' for r in fine) or 'none'}; "
        f"is lost for {', '.join(f'{r[key]:g}' for r in few) or 'none'}",
        bool(fine) and bool(few) and fine[0] is data[0] and few[-1] is data[-1],
    )


def _fast(row: Row) -> bool:
    """Tell whether the measured contraction is at least as fast as the bound's."""
    return bool(row["rate"] <= row["allowed"] + SLACK)


def _blocks(t: Theorem, rows: Rows, steps: Rows, data: Rows) -> list[Block]:
    """Draw errors and bounds, and the contraction over step sizes and amounts of data."""
    curves = []
    paths = Rows(r for r in rows if "t" in r)
    for k, ((label,), part) in enumerate(paths.groups("label")):
        x = part.column("t")
        curves.append(Curve(label, x, part.column("error"), colour=k))
        curves.append(Curve(f"bound, {label}", x, part.column("bound"), dashed=True, colour=k))
    key, values, _ = t.data

    def rates(part: Rows, name: str) -> list[Curve]:
        x = part.column(name)
        shown = [r if r <= 1.5 else math.nan for r in part.column("rate")]
        allowed = Curve(f"1 − {t.speed:g} η", x, part.column("allowed"), dashed=True)
        return [Curve("measured", x, shown), allowed]

    where = "Contractions above 1.5 are left out."
    wide = max(values) > 10 * min(values)
    return [
        Chart("Error and bound", "iteration", "error / σᵣ", curves, log_y=True),
        Beside(
            Chart("Over the step size", "η", "contraction", rates(steps, "eta"), caption=where),
            Chart(
                "Over the amount of data", t.data_label, "contraction", rates(data, key),
                log_x=wide, caption=where,
            ),
        ),
    ]  # fmt: skip


def in_units(truth: Any, sigma: float) -> Callable[[Any], float]:
    """Return the error ‖X − X⋆‖_F / σ_r(X⋆) as a function of the estimate.

    Parameters
    ----------
    truth : Factors
        X⋆.
    sigma : float
        σ_r(X⋆).

    Returns
    -------
    callable
        From factors to a float.
    """
    norm = float(truth.norm())
    return lambda F: float(sg.metrics.relative_error(F, truth)) * norm / sigma
