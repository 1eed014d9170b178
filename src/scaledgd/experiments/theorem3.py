"""Theorem 3: matrix completion."""

from __future__ import annotations

import math

import numpy as np

import scaledgd as sg

from .theorem import Instance, Theorem, in_units, theorem_item


def make(rng: np.random.Generator, n: int, rank: int, p: float, kappa: float = 1) -> Instance:
    """Make an instance of matrix completion with the projection of the theorem."""
    problem, truth = sg.datasets.matrix_completion(n, n, rank, kappa, p, rng=rng)
    mu = float(sg.metrics.incoherence(truth))
    project = sg.incoherence(1.02 * math.sqrt(mu * rank))  # C_B √(μ r) σ₁
    return Instance(problem, sg.spectral(rank, project), in_units(truth, 1 / kappa), project)


def of(quick: bool) -> Theorem:
    """Return the theorem and its cases."""
    sizes = [(1000, 1, 1, 0.9), (1000, 2, 1, 0.97), (500, 2, 2, 0.99)]
    small = {"n": 200, "rank": 3, "kappa": 2}
    return Theorem(
        make,
        0.03,
        2 / 3,
        [{"n": n, "rank": r, "kappa": k, "p": p, "eta": 0.5} for n, r, k, p in sizes],
        {**small, "p": 0.6},
        1.3,
        ("p", (0.9, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05), small),
        "share of entries seen",
    )


ITEM = theorem_item(
    "theorem3",
    "Theorem 3",
    "Matrix completion",
    "‖L_t R_tᵀ − X⋆‖_F ≤ (1 − 0.6 η)ᵗ 0.03 σ_r(X⋆) if p ≥ C (μκ² ∨ log n) μ r² κ² / n, for "
    "η ≤ 2/3 and the projection radius 1.02 √(μ r) σ₁. The whole "
    "bound was seen to hold only where nearly all entries are observed.",
    of,
)
