"""Theorem 6: tensor completion."""

from __future__ import annotations

import math

import numpy as np

import scaledgd as sg

from .theorem import Instance, Theorem, in_units, theorem_item


def make(rng: np.random.Generator, n: int, rank: int, p: float, kappa: float = 1) -> Instance:
    """Make an instance of tensor completion with the projection of the theorem."""
    problem, truth = sg.datasets.tensor_completion((n,) * 3, rank, kappa, p, rng=rng)
    mu = float(sg.metrics.incoherence(truth))
    project = sg.incoherence(1.1 * math.sqrt(mu * rank))  # C_B √(μ r) σ_max
    start = sg.diagonal_deleted(rank, project)
    return Instance(problem, start, in_units(truth, 1 / kappa), project)


def of(quick: bool) -> Theorem:
    """Return the theorem and its cases."""
    n = 40 if quick else 80
    small = {"n": 40, "rank": 2, "kappa": 2}
    inside = [{"n": n, "rank": 3, "kappa": k, "p": 0.5, "eta": 0.3} for k in (1, 2, 5)]
    return Theorem(
        make,
        None,
        2 / 5,
        inside,
        {**small, "p": 0.3},
        0.9,
        ("p", (0.6, 0.4, 0.2, 0.1, 0.05, 0.03, 0.02), small),
        "share of entries seen",
        eta=0.3,
    )


ITEM = theorem_item(
    "theorem6",
    "Theorem 6",
    "Tensor completion",
    "‖X_t − X⋆‖_F ≤ 3 ε₀ (1 − 0.6 η)ᵗ σ_min(X⋆) for enough entries and η ≤ 2/5. ε₀ is left open, "
    "so the error of the start replaces 3 ε₀ σ_min.",
    of,
)
