"""What theorems 1 to 6 share: a bound C (1 − c η)ᵗ, and where it stops holding.

The full bound, with its constant, is checked where its conditions hold. Sweeps over the step
size and over the amount of data show the measured contraction beside the bound's rate,
beyond those conditions too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import scaledgd as sg

from ..report import Beside, Chart, Curve
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .runs import errors_of, rate

FLOOR = 1e-12
"""Of errors in units of σ_r, where rounding takes over."""


SYMBOLS = {"kappa": "κ", "eta": "η", "fraction": "α", "rank": "r", "measurements": "m/dof"}


class Instance(NamedTuple):
    """A problem, where to begin, and the error in the units of the theorem."""

    problem: Any
    start: Any
    error: Callable[[Any], float]
    project: Any = None


@dataclass(frozen=True)
class Theorem:
    """A bound ‖X_t − X⋆‖ ≤ constant · (1 − speed · η)ᵗ and the cases that try it."""

    make: Callable[..., Instance]
    """Called with a random generator and parameters."""
    constant: float | None
    """None where the theorem leaves it open: then the error of the start stands for it."""
    most: float
    """The largest step size of the theorem."""
    inside: Sequence[Mapping[str, Any]]
    """Parameters, with `eta`, for which the bound is to hold as it stands."""
    steps: Mapping[str, Any]
    """Parameters of the sweep over step sizes."""
    too_long: float
    """A step that must fail."""
    data: tuple[str, Sequence[float], Mapping[str, Any]]
    """A name, its values from plenty to too little, and the other parameters."""
    data_label: str
    speed: float = 0.6
    iterations: int = 60
    eta: float = 0.5
    """Of the sweep over the amount of data."""
    least: float = 0.1
    """The smallest step size."""


def theorem_item(
    name: str, source: str, title: str, about: str, of: Callable[[bool], Theorem], notes: Any = ()
) -> Item:
    """An item from the theorem, which may be of reduced size."""

    def cases(setting: Setting) -> list[Case]:
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
            {"part": "data", **every, "given": {**rest, key: value, "eta": t.eta}}
            for value in values
        ]

    def measure(part: str, quick: bool, given: Mapping[str, Any], seed: int) -> list[Row]:
        t = of(quick)
        eta = given["eta"]
        rest = {k: v for k, v in given.items() if k != "eta"}
        instance = t.make(np.random.default_rng(seed), **rest)
        method = sg.ScaledGD(eta, project=instance.project)
        # long enough to see the rate of a small step
        limit = int(t.iterations * max(1.0, 0.5 / eta))
        errors = errors_of(
            instance.problem, instance.start, method, instance.error, limit, 0.1 * FLOOR
        )
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

    def judge(rows: Rows) -> Verdict:
        t = of(rows[0]["quick"])
        key = t.data[0]
        bound = Rows(r for r in rows.where(part="bound") if "worst" in r)
        steps = rows.where(part="step")
        inside = Rows(r for r in steps if r["eta"] <= t.most + 1e-3)
        data = rows.where(part="data")
        worst, fastest = max(r["worst"] for r in bound), bound.column("rate")
        begins = "as it stands" if t.constant is not None else "from the error of the start on"
        claims = [
            Claim(
                f"the bound holds {begins} at every iteration where its conditions hold",
                f"the error is at most {worst:.2g} times the bound, in {len(bound)} settings; "
                f"measured contraction {np.min(fastest):.3f} to {np.max(fastest):.3f}",
                0 < worst <= 1 + 1e-9,
            ),
            Claim(
                f"linear convergence at 1 − {t.speed:g} η or faster for every η up to {t.most:.3g}",
                "measured against allowed: "
                + ", ".join(f"{r['rate']:.3f}/{r['allowed']:.3f}" for r in inside),
                all(r["rate"] <= r["allowed"] + 1e-3 for r in inside),
            ),
        ]
        failing = [r for r in steps if not r["rate"] < 1]
        claims.append(
            Claim(
                "the step size must be bounded (a control: beyond the theorem it fails)",
                "diverges at η = " + (", ".join(f"{r['eta']:g}" for r in failing) or "none tried"),
                any(math.isclose(r["eta"], t.too_long) for r in failing),
            )
        )
        fine = [r for r in data if r["rate"] <= r["allowed"] + 1e-3]
        few = [r for r in data if not r["rate"] <= r["allowed"] + 1e-3]
        claims.append(
            Claim(
                f"it takes enough data (a control: the rate is lost along {t.data_label})",
                f"holds for {', '.join(f'{r[key]:g}' for r in fine) or 'none'}; "
                f"is lost for {', '.join(f'{r[key]:g}' for r in few) or 'none'}",
                bool(fine) and bool(few) and fine[0] is data[0] and few[-1] is data[-1],
            )
        )
        return Verdict(claims, _blocks(t, rows, steps, data), notes)

    return Item(name, source, title, about, cases, measure, judge)


def _blocks(t: Theorem, rows: Rows, steps: Rows, data: Rows) -> list[Any]:
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

    where = "iterations that grow are left out"
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
    """‖X − X⋆‖_F / σ_r(X⋆)."""
    norm = float(truth.norm())
    return lambda F: float(sg.metrics.relative_error(F, truth)) * norm / sigma
