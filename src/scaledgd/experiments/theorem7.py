"""Theorem 7: ScaledGD(λ) from a small random start, with more columns than the truth has."""

from __future__ import annotations

import math

import scaledgd as sg

from ..report import Beside, Chart, Curve
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .overparameterised import ETA, columns, symmetric_sensing
from .runs import as_rows, error_to, errors_of, listed, needed, slope


def cases(setting: Setting) -> list[Case]:
    """Return sizes of the start for several r', and two values of λ that are too small."""
    n, rank, kappa = setting.pick((40, 2, 5.0), (60, 3, 10.0))
    scales = setting.pick((1e-3, 1e-6, 1e-9), (1e-3, 1e-5, 1e-7, 1e-9, 1e-12))
    size = {"n": n, "rank": rank, "kappa": kappa, "seed": 0}
    found = [
        {**size, "columns": c, "scale": scale, "damping": 1.0}
        for c in columns(n, rank)
        for scale in scales
    ]
    # far below the theorem's range of λ
    return found + [{**size, "columns": n, "scale": 1e-9, "damping": d} for d in (0.1, 1e-4)]


def measure(
    n: int, rank: int, kappa: float, columns: int, scale: float, damping: float, seed: int
) -> list[Row]:
    """Find the best error, and when it is below the bound."""
    problem, truth = symmetric_sensing(n, rank, kappa, seed=seed)
    start = sg.small_random(columns, scale, rng=1, symmetric=True)
    limit = 150 + int(8 * math.log10(1 / scale))
    method = sg.ScaledGD(ETA, damping=damping / kappa)
    errors = float(truth.norm()) * errors_of(problem, start, method, error_to(truth), limit)
    best = float(errors.min())
    summary = {"best": best, "bound": scale ** (1 / 3), "at": needed(errors, scale ** (1 / 3))}
    return [summary, *as_rows(errors, 300)]


def judge(rows: Rows) -> Verdict:
    """Judge the accuracy over α, the iterations it takes, and a λ that is too small."""
    sums = Rows(r for r in rows if "best" in r)
    inside = sums.where(damping=1.0)
    claims = [*_accuracy_claims(inside), _time_claim(inside), _damping_claim(sums, inside)]
    return Verdict(claims, [_charts(rows.where(damping=1.0), inside)])


def _accuracy_claims(inside: Rows) -> list[Claim]:
    worst = max(r["best"] / r["bound"] for r in inside)
    slopes = [
        slope(part.column("scale"), part.column("best")) for _, part in inside.groups("columns")
    ]
    return [
        Claim(
            "some iterate has ‖L_T L_Tᵀ − X⋆‖_F ≤ α^(1/3) ‖L⋆‖^(5/3), for r' up to n",
            f"at most {worst:.2g} times that, for r' = {listed(inside.distinct('columns'))}",
            worst <= 1,
        ),
        Claim(
            "the accuracy falls with the size α of the start, at least as α^(1/3)",
            f"log-log slopes {', '.join(f'{s:.2f}' for s in slopes)}",
            min(slopes) >= 1 / 3,
        ),
    ]


def _time_claim(inside: Rows) -> Claim:
    # solve T = C/η · log(‖L⋆‖/α) for C
    constants = [ETA * r["at"] / math.log(1 / r["scale"]) for r in inside]
    return Claim(
        "by iteration T ≤ (C/η) log(‖L⋆‖/α) with one constant C",
        f"C = {min(constants):.2f} to {max(constants):.2f}",
        all(math.isfinite(c) for c in constants) and max(constants) < 2,
    )


def _damping_claim(sums: Rows, inside: Rows) -> Claim:
    small = sums.where(damping=1e-4)[0]
    full = inside.where(columns=small["columns"], scale=small["scale"])[0]
    return Claim(
        "λ must not be far too small (a control, λ = 1e-4 σ_r)",
        f"best error {small['best']:.1e} instead of {full['best']:.1e}",
        small["best"] > 3 * full["best"],
    )


def _charts(rows: Rows, inside: Rows) -> Beside:
    paths = Rows(r for r in rows if "t" in r)
    most = paths.where(columns=paths[-1]["columns"])
    curves = [
        Curve(f"α = {scale:g}", part.column("t"), part.column("error"))
        for (scale,), part in most.groups("scale")
    ]
    floors = [
        Curve(f"r' = {c}", part.column("scale"), part.column("best"))
        for (c,), part in inside.groups("columns")
    ]
    bound = inside.where(columns=inside[0]["columns"])
    floors.append(Curve("α^(1/3)", bound.column("scale"), bound.column("bound"), dashed=True))
    return Beside(
        Chart("As many columns as rows", "iteration", "error / ‖X⋆‖", curves, log_y=True),
        Chart("Best error", "size α of the start", "error / ‖X⋆‖", floors, True, True),
    )


ITEM = Item(
    "theorem7",
    "Theorem 7",
    "ScaledGD(λ) from a small random start",
    "Symmetric matrix sensing with r' columns, r ≤ r' ≤ n, from entries N(0, α²/n), λ = σ_r: after "
    "(C/η) log(‖L⋆‖/α) iterations or before, the error is below α^(1/3) ‖L⋆‖^(5/3).",
    cases,
    measure,
    judge,
)
