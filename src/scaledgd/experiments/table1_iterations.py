"""Table 1, iteration complexity: sensing, robust PCA and completion over κ and ε."""

from __future__ import annotations

import numpy as np

import scaledgd as sg

from .item import Claim, Rows
from .kappa import Count, Run, Sweep, kappa_item, scaled_and_plain
from .runs import Error, error_to

LEVELS = (1e-1, 1e-2, 1e-4, 1e-6)
"""ε, in ‖X − X⋆‖_F ≤ ε σ_r(X⋆)."""


def in_sigma_r(truth: sg.LowRank, kappa: float) -> Error:
    """Return the error ‖X − X⋆‖_F / σ_r(X⋆) as a function of the estimate, for σ₁ = 1."""
    relative, scale = error_to(truth), float(truth.norm()) * kappa
    return lambda F: scale * float(relative(F))


def sensing(kappa: float, rng: np.random.Generator, n: int, rank: int, m: int) -> Run:
    """Make an instance of matrix sensing."""
    problem, truth = sg.datasets.matrix_sensing(n, n, rank, kappa, m, rng=rng)
    return Run(problem, sg.spectral(rank), in_sigma_r(truth, kappa), *scaled_and_plain())


def robust_pca(kappa: float, rng: np.random.Generator, n: int, rank: int, fraction: float) -> Run:
    """Make an instance of robust PCA."""
    problem, truth = sg.datasets.robust_pca(n, n, rank, kappa, fraction, rng=rng)
    return Run(problem, sg.spectral(rank), in_sigma_r(truth, kappa), *scaled_and_plain())


def completion(kappa: float, rng: np.random.Generator, n: int, rank: int, p: float) -> Run:
    """Make an instance of matrix completion."""
    problem, truth = sg.datasets.matrix_completion(n, n, rank, kappa, p, rng=rng)
    return Run(problem, sg.spectral(rank), in_sigma_r(truth, kappa), *scaled_and_plain())


def further(rows: Rows) -> list[Claim]:
    """Claim that the iterations of both methods grow as log(1/ε)."""
    claims = []
    for (problem,), ours in Rows(r for r in rows if "level" in r).groups("problem"):
        ratios = []
        for _, part in ours.groups("method", "kappa"):
            at = {r["level"]: r["count"] for r in part}
            if np.isfinite(at[1e-6]):
                ratios.append((at[1e-6] - at[1e-4]) / (at[1e-4] - at[1e-2]))
        claims.append(
            Claim(
                f"{problem}: iterations grow as log(1/ε), for both methods",
                "from 1e-4 to 1e-6 takes "
                f"{min(ratios):.2f} to {max(ratios):.2f} times what 1e-2 to 1e-4 takes",
                min(ratios) >= 0.75 and max(ratios) <= 1.33,
            )
        )
    return claims


def allowed(kappa: float) -> int:
    """Return the iterations that gradient descent may take."""
    return int(250 + 120 * kappa)


ITEM = kappa_item(
    "table1_iterations",
    "Table 1, iterations",
    "log(1/ε) against κ log(1/ε)",
    "Iterations until ‖X − X⋆‖_F ≤ ε σ_r(X⋆), spectral start, η = 0.5 for both methods (σ₁ = 1). "
    "Counted from ε = 0.1 on, because in units of σ_r the start is worse for larger κ.",
    {
        "sensing": Sweep(
            sensing,
            {"n": 36, "rank": 3, "m": 10 * 36 * 3},
            {"n": 60, "rank": 5, "m": 10 * 60 * 5},
            300,
            allowed,
        ),
        "robust PCA": Sweep(
            robust_pca,
            {"n": 250, "rank": 5, "fraction": 0.05},
            {"n": 600, "rank": 10, "fraction": 0.05},
            150,
            allowed,
        ),
        "completion": Sweep(
            completion,
            {"n": 400, "rank": 5, "p": 0.4},
            {"n": 1000, "rank": 10, "p": 0.2},
            150,
            allowed,
        ),
    },
    quick_kappas=(1, 5, 20),
    count=Count(LEVELS, since=1e-1, unit="error / σᵣ"),
    further=further,
)
