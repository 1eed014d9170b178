"""Theorem 2: matrix robust PCA."""

from __future__ import annotations

import numpy as np

import scaledgd as sg

from .theorem import Instance, Theorem, in_units, theorem_item


def make(
    rng: np.random.Generator, n: int, rank: int, fraction: float, kappa: float = 1
) -> Instance:
    """Make an instance of robust PCA."""
    problem, truth = sg.datasets.robust_pca(n, n, rank, kappa, fraction, rng=rng)
    return Instance(problem, sg.spectral(rank), in_units(truth, 1 / kappa))


def of(quick: bool) -> Theorem:
    """Return the theorem and its cases."""
    n = 500 if quick else 1000
    small = {"n": 200 if quick else 300, "rank": 3, "kappa": 3}
    inside = [{"n": n, "rank": 2, "fraction": 0.004}, {"n": n, "rank": 5, "fraction": 0.002}]
    if not quick:
        inside.append({"n": n, "rank": 5, "fraction": 0.001})
    return Theorem(
        make,
        0.03,
        2 / 3,
        [{**case, "eta": 0.5} for case in inside],
        {**small, "fraction": 0.02},
        1.3,
        ("fraction", (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4), small),
        "fraction of corruptions",
    )


ITEM = theorem_item(
    "theorem2",
    "Theorem 2",
    "Matrix robust PCA",
    "‖L_t R_tᵀ − X⋆‖_F ≤ (1 − 0.6 η)ᵗ 0.03 σ_r(X⋆) if a fraction α ≤ c/(μ r^(3/2) κ) of each row "
    "and column is corrupted, for 0.1 ≤ η ≤ 2/3.",
    of,
)
