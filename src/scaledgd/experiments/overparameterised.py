"""Section 4, overparameterisation: ScaledGD(λ) over κ, n, r', α and λ, with noise and a tail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import scaledgd as sg

from ..report import Beside, Chart, Curve
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict
from .runs import error_to, errors_of, listed, needed, shown, slope

ETA, LEVEL = 0.3, 1e-3
"""Step size; error, relative to ‖X⋆‖, to which iterations are counted."""


def symmetric_sensing(
    n: int, rank: int, kappa: float, noise: float = 0.0, tail: float = 0.0, seed: int = 0
) -> tuple[sg.Observed, sg.Symmetric]:
    """Make an instance of symmetric matrix sensing with m = 10 n r Gaussian measurements.

    Parameters
    ----------
    n, rank : int
    kappa : float
        Condition number of the low-rank part; its largest singular value is 1.
    noise : float
        Standard deviation of the noise of a measurement.
    tail : float
        The other n − rank singular values of the measured matrix.
    seed : int

    Returns
    -------
    problem : Observed
    truth : Symmetric
        The low-rank part.
    """
    rng = np.random.default_rng(seed)
    m = 10 * n * rank
    U = np.linalg.qr(rng.standard_normal((n, n)))[0]
    sigma = np.concatenate([np.linspace(1, 1 / kappa, rank), np.full(n - rank, tail)])
    B = rng.standard_normal((m, n, n)) / math.sqrt(m)
    A = sg.Sensing((B + B.transpose(0, 2, 1)) / 2)
    X = sg.Symmetric(U * np.sqrt(sigma))
    truth = sg.Symmetric(U[:, :rank] * np.sqrt(sigma[:rank]))
    return sg.Observed(A, A.apply(X) + noise * rng.standard_normal(m)), truth


def columns(n: int, rank: int) -> tuple[int, ...]:
    """Return values of r', from slightly too large to n.

    Parameters
    ----------
    n, rank : int

    Returns
    -------
    tuple of int
    """
    return (rank + 1, n // 2, n)


def cases(setting: Setting) -> list[Case]:
    """Return sweeps over one parameter at a time."""
    n, rank = setting.pick((40, 2), (60, 3))
    base = {"n": n, "rank": rank, "kappa": 5.0, "columns": 2 * rank, "scale": 1e-9, "damping": 1.0}
    base |= {"noise": 0.0, "tail": 0.0, "method": "ScaledGD(λ)", "limit": 300, "seed": 0}
    kappas = setting.pick((1.0, 5.0, 20.0), (1.0, 2.0, 5.0, 10.0, 20.0, 50.0))
    sizes = setting.pick((20, 40, 60), (20, 40, 80, 120))
    scales = setting.pick((1e-3, 1e-6, 1e-12), (1e-3, 1e-6, 1e-9, 1e-12, 1e-15))
    slow = setting.pick((1.0, 4.0, 16.0), (1.0, 2.0, 4.0, 8.0, 16.0, 32.0))
    dampings = (0.01, 0.1, 1.0, 10.0)
    parts: list[tuple[str, list[Case]]] = [
        ("κ", [{"kappa": k} for k in kappas]),
        ("κ", [{"kappa": k, "method": "GD", "limit": int(200 + 150 * k)} for k in slow]),
        ("n", [{"n": size} for size in sizes]),
        ("r'", [{"columns": c} for c in (rank, *columns(n, rank))]),
        ("α", [{"scale": s} for s in scales]),
        ("λ", [{"damping": d} for d in dampings]),
        (
            "noise",
            [{"kappa": k, "noise": s, "scale": 1e-8} for k in (1.0, 10.0) for s in (1e-3, 1e-4)],
        ),
        ("tail", [{"tail": s, "scale": 1e-7} for s in (1e-3, 1e-4)]),
    ]
    return [{"part": part, **base, **given} for part, found in parts for given in found]


def measure(
    part: str,
    n: int,
    rank: int,
    kappa: float,
    columns: int,
    scale: float,
    damping: float,
    noise: float,
    tail: float,
    method: str,
    limit: int,
    seed: int,
) -> list[Row]:
    """Count iterations to LEVEL, and find the best error."""
    problem, truth = symmetric_sensing(n, rank, kappa, noise, tail, seed)
    start = sg.small_random(columns, scale, rng=1, symmetric=True)
    step: Any = sg.GradientDescent(ETA)
    if method != "GD":
        step = sg.ScaledGD(ETA, damping=damping / kappa)
    until = LEVEL if part in ("κ", "n", "r'", "α") else 1e-14
    limit = limit if until == LEVEL else 200
    errors = float(truth.norm()) * errors_of(
        problem, start, step, error_to(truth), limit, 0.3 * until
    )
    return [{"count": needed(errors, LEVEL), "best": float(errors.min())}]


def law(kappa: float, n: float) -> float:
    """Return the bound on the iterations of ScaledGD(λ): log κ · log(κ n) + log(1/ε)."""
    return math.log(max(kappa, 2)) * math.log(max(kappa, 2) * n) + math.log(1 / LEVEL)


def law_of_descent(kappa: float, n: float) -> float:
    """Return the bound on the iterations of gradient descent: κ⁴ + κ³ log(κ n/ε)."""
    return kappa**4 + kappa**3 * math.log(kappa * n / LEVEL)


def judge(rows: Rows) -> Verdict:
    """Judge ScaledGD(λ) over every parameter."""
    part = {name: rows.where(part=name) for name in rows.distinct("part")}
    over, slow = (part["κ"].where(method=method) for method in ("ScaledGD(λ)", "GD"))
    claims = [
        *_kappa_claims(over, slow),
        *_size_claims(part["n"], part["r'"], part["α"]),
        *_error_claims(part["λ"], part["noise"], part["tail"]),
    ]
    return Verdict(claims, [_charts(part, over, slow)])


def _kappa_claims(over: Rows, slow: Rows) -> list[Claim]:
    """ScaledGD(λ) and gradient descent over κ."""
    counts, kappas = over.column("count"), over.column("kappa")
    ratio = counts[-1] / counts[0]
    allowed = law(kappas[-1], over[0]["n"]) / law(kappas[0], over[0]["n"])
    at_least = [r["count"] if math.isfinite(r["count"]) else r["limit"] for r in slow]
    steep = slope(slow.column("kappa")[1:], at_least[1:])
    return [
        Claim(
            "ScaledGD(λ) grows with κ no faster than log κ · log(κ n) + log(1/ε)",
            f"{listed(counts)} iterations for κ = {listed(kappas)}: {ratio:.2f} times, and the law "
            f"{allowed:.2f} times",
            ratio <= allowed,
        ),
        Claim(
            "overparameterised gradient descent is slower by a power of κ",
            ", ".join(shown(r["count"], r["limit"]) for r in slow)
            + f" for κ = {listed(slow.column('kappa'))}: as κ to the power {steep:.2f} (bound: 4)",
            0.6 <= steep <= 4.5 and at_least[-1] > 5 * max(counts),
        ),
    ]


def _size_claims(sizes: Rows, extra: Rows, scales: Rows) -> list[Claim]:
    """The iterations over n, over r' and over the size of the start."""
    growth = np.diff(scales.column("count")) / np.diff(np.log10(1 / scales.column("scale")))
    return [
        Claim(
            "the size n costs a logarithm at most",
            f"{listed(sizes.column('count'))} for n = {listed(sizes.column('n'))}",
            max(sizes.column("count")) <= 1.5 * min(sizes.column("count")),
        ),
        Claim(
            "r' does not matter, from r to n",
            f"{listed(extra.column('count'))} for r' = {listed(extra.column('columns'))}",
            max(extra.column("count")) <= 1.5 * min(extra.column("count")),
        ),
        Claim(
            "a smaller start costs iterations in proportion to log(1/α)",
            f"{listed(scales.column('count'))} for α = {listed(scales.column('scale'))}: "
            f"{np.min(growth):.1f} to {np.max(growth):.1f} per factor of ten",
            bool(np.min(growth) > 0 and np.max(growth) <= 2 * np.min(growth)),
        ),
    ]


def _error_claims(dampings: Rows, noise: Rows, tail: Rows) -> list[Claim]:
    """The best error over λ, with noise, and with a tail of singular values."""
    best = {r["damping"]: r["best"] for r in dampings}
    levels = [r["best"] / (r["noise"] * math.sqrt(r["n"] * r["rank"])) for r in noise]
    tails = [r["best"] / (r["tail"] * math.sqrt(r["n"] - r["rank"])) for r in tail]
    return [
        Claim(
            "λ of the order of σ_r works best",
            ", ".join(f"λ = {d:g} σ_r: {e:.1e}" for d, e in best.items()),
            best[1.0] <= 2 * min(best.values()),
        ),
        Claim(
            "with noise, the minimax level σ √(n r) is reached for every κ",
            f"{min(levels):.2f} to {max(levels):.2f} times that level, κ = 1 and 10",
            min(levels) > 0.3 and max(levels) < 3,
        ),
        Claim(
            "a truth that is only approximately of low rank costs an error of the size of its tail",
            f"{min(tails):.2f} to {max(tails):.2f} times the norm of the tail",
            min(tails) > 0.01 and max(tails) < 3,
        ),
    ]


def _charts(part: dict[str, Rows], over: Rows, slow: Rows) -> Beside:
    def scaled(rows: Rows, bound: Any) -> Any:
        """Scale a law to agree with the count at the first κ."""
        values = np.asarray([bound(k, rows[0]["n"]) for k in rows.column("kappa")])
        return values * rows[0]["count"] / values[0]

    fast, plain = over.column("kappa"), slow.column("kappa")
    curves = [
        Curve("ScaledGD(λ)", fast, over.column("count"), colour=0),
        Curve("log κ · log(κ n) + log(1/ε)", fast, scaled(over, law), dashed=True, colour=0),
        Curve("GD", plain, slow.column("count"), colour=1),
        Curve("κ⁴ + κ³ log(κ n/ε)", plain, scaled(slow, law_of_descent), dashed=True, colour=1),
    ]
    what = f"iterations to {LEVEL:g}"

    def single(name: str, column: str, label: str, log_x: bool) -> Chart:
        found = part[name]
        curve = Curve("ScaledGD(λ)", found.column(column), found.column("count"))
        return Chart(f"Over {label}", label, what, [curve], log_x)

    floor = Curve("best error", part["λ"].column("damping"), part["λ"].column("best"))
    return Beside(
        Chart(
            "Over the condition number",
            "κ",
            what,
            curves,
            log_x=True,
            log_y=True,
            caption="The laws (dashed) are scaled to agree at κ = 1.",
        ),
        single("n", "n", "n", False),
        single("r'", "columns", "r'", False),
        single("α", "scale", "α", True),
        Chart("Over λ", "λ / σ_r", "best error / ‖X⋆‖", [floor], True, True),
    )


ITEM = Item(
    "overparameterised",
    "Section 4",
    "Preconditioning meets overparameterisation",
    "Symmetric matrix sensing, m = 10 n r, ScaledGD(λ) with λ = σ_r and η = 0.3 from a small "
    "random start, until ‖X − X⋆‖_F ≤ 1e-3 ‖X⋆‖.",
    cases,
    measure,
    judge,
)
