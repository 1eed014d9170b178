"""Theorem 5: tensor robust PCA."""

from __future__ import annotations

import math

import numpy as np

import scaledgd as sg

from ..report import Chart, Curve
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .runs import errors_of, rate

FLOOR = 1e-12


def cases(setting: Setting) -> list[Case]:
    """Return runs inside the theorem, and sweeps over steps and corruptions."""
    n, rank = setting.pick((60, 2), (100, 3))
    base = {"n": n, "rank": rank, "kappa": 1.0, "seed": 0}
    inside = [{"eta": eta, "fraction": 0.01} for eta in (1 / 7, 1 / 4)]
    inside += [{"eta": 1 / 4, "fraction": 1e-4}]
    steps = [{"eta": eta, "fraction": 0.01} for eta in (0.1, 0.4, 0.5, 0.9)]
    fractions = [{"eta": 1 / 4, "fraction": f} for f in (0.03, 0.1, 0.2, 0.3, 0.5)]
    parts = {"bound": inside, "step": steps, "data": fractions}
    return [{"part": part, **base, **given} for part, found in parts.items() for given in found]


def measure(
    part: str, n: int, rank: int, kappa: float, eta: float, fraction: float, seed: int
) -> list[Row]:
    """Compare the errors of one run with the bounds."""
    rho = 1 - 0.45 * eta
    rng = np.random.default_rng(seed)
    problem, truth = sg.datasets.tensor_robust_pca((n,) * 3, rank, kappa, fraction, rng=rng)
    X, mu = truth.full(), float(sg.metrics.incoherence(truth))
    # ζ₁, and the constant of the entrywise bound; σ_min = 1/κ
    first = 8 * math.sqrt(mu**3 * rank**3 / n**3) / kappa
    loss = sg.SoftTrim(sg.thresholds(float(np.max(np.abs(X))), first, rho))
    soft = sg.Observed(problem.operator, problem.y, loss)
    largest: list[float] = []

    def error(F: sg.Tucker) -> float:
        gap = F.full() - X
        largest.append(float(np.max(np.abs(gap))) / first)
        return float(np.linalg.norm(gap)) * kappa

    limit = int(40 / (-math.log10(rho) * 10)) + 60
    errors = errors_of(soft, sg.hosvd(rank), sg.ScaledGD(eta), error, limit, FLOOR)
    entries = np.asarray(largest[: len(errors)])
    allowed = rho ** np.arange(len(errors))
    summary = {
        "frobenius": float(np.max(errors / (0.03 * allowed + FLOOR))),
        "entrywise": float(np.max(entries / (allowed + FLOOR))),
        "rate": rate(errors, 1e-10),
        "allowed": rho,
    }
    curve = [
        {"t": t, "error": float(errors[t]), "entry": float(entries[t]), "bound": float(allowed[t])}
        for t in range(len(errors))
    ]
    return [summary, *(curve if part == "bound" else [])]


def judge(rows: Rows) -> Verdict:
    """Judge the bounds, the rate, a step that is too long, and too many corruptions."""
    sums = Rows(r for r in rows if "rate" in r)
    bound = sums.where(part="bound")
    claims = [
        *_bound_claims(bound),
        _step_claim(sums.where(part="step")[-1]),
        _data_claim(sums.where(part="data")),
    ]
    excess = max(r["frobenius"] for r in bound.where(fraction=0.01))
    fewest = bound.where(fraction=1e-4)[0]
    notes = [
        "The theorem also bounds the Frobenius error by 0.03 ρᵗ σ_min, for corruptions below "
        "an unnamed constant c₀. Measured against it: "
        f"{excess:.2g} times at 1 % corruptions and {fewest['frobenius']:.2g} times at 0.01 %."
    ]
    return Verdict(claims, [_chart(rows)], notes)


def _bound_claims(bound: Rows) -> list[Claim]:
    worst = max(r["entrywise"] for r in bound)
    return [
        Claim(
            "the entrywise bound 8 ρᵗ √(μ³ r₁r₂r₃ / n₁n₂n₃) σ_min holds at every iteration",
            f"at most {worst:.2g} times the bound, at 0.01 % and at 1 % corruptions",
            0 < worst <= 1 + 1e-9,
        ),
        Claim(
            "linear convergence at ρ = 1 − 0.45 η or faster for 1/7 ≤ η ≤ 1/4",
            "measured against allowed: "
            + ", ".join(f"{r['rate']:.3f}/{r['allowed']:.3f}" for r in bound),
            all(_fast(r) for r in bound),
        ),
    ]


def _fast(row: Row) -> bool:
    """Tell whether the error falls by ρ; the slack is there because the thresholds fall by ρ."""
    return bool(row["rate"] <= row["allowed"] + 2e-3)


def _step_claim(failing: Row) -> Claim:
    return Claim(
        "a step of 0.9 is too long (a control)",
        "it diverges" if not failing["rate"] < 1 else f"contraction {failing['rate']:.3f}",
        not failing["rate"] < 1,
    )


def _data_claim(data: Rows) -> Claim:
    lost = [r["fraction"] for r in data if not _fast(r)]
    return Claim(
        "the corruptions must be few (a control: the rate is lost if there are more)",
        f"of {', '.join(f'{r:g}' for r in data.distinct('fraction'))} it is lost for "
        + (", ".join(f"{f:g}" for f in lost) or "none"),
        data[-1]["fraction"] in lost and data[0]["fraction"] not in lost,
    )


def _chart(rows: Rows) -> Chart:
    curves = []
    paths = Rows(r for r in rows if "t" in r)
    for k, ((eta, fraction), part) in enumerate(paths.groups("eta", "fraction")):
        x, label = part.column("t"), f"η = {eta:.3g}, {fraction:.2%} wrong"
        curves.append(Curve(label, x, part.column("entry"), colour=k))
        curves.append(Curve(f"bound, {label}", x, part.column("bound"), dashed=True, colour=k))
    title = "Largest error of an entry, in units of the bound at t = 0"
    return Chart(title, "iteration", "error", curves, log_y=True)


ITEM = Item(
    "theorem5",
    "Theorem 5",
    "Tensor robust PCA",
    "With ‖X⋆‖_∞ ≤ ζ₀ ≤ 2 ‖X⋆‖_∞, ζ₁ = 8 √(μ³ r₁r₂r₃ / n₁n₂n₃) σ_min, ζ_{t+1} = ρ ζ_t and "
    "ρ = 1 − 0.45 η, the errors fall by ρ at every iteration, also entry by entry, "
    "for 1/7 ≤ η ≤ 1/4.",
    cases,
    measure,
    judge,
)
