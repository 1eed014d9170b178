"""Companion papers: quadratic samples ‖aᵀL‖² of a symmetric matrix, 20 % of them wrong."""

from __future__ import annotations

import numpy as np

import scaledgd as sg

from .kappa import Run, Sweep, kappa_item, subgradients


def make(kappa: float, rng: np.random.Generator, n: int, rank: int, m: int) -> Run:
    """Make an instance of quadratic sampling with outliers."""
    problem, truth = sg.datasets.quadratic_sampling(n, rank, kappa, m, 0.2, rng=rng)
    return subgradients(problem, truth, rank)


ITEM = kappa_item(
    "quadratic_sampling",
    "Quadratic sampling",
    "Scaled subgradients for covariance sketches",
    "y = ‖aᵀL⋆‖² with Gaussian a, a fifth moved by up to ten times the largest; X = L Lᵀ, the sum "
    "of absolute residuals, Polyak's step (told the optimal value), truncated spectral start.",
    {
        "quadratic sampling": Sweep(
            make,
            {"n": 60, "rank": 3, "m": 8 * 60 * 3},
            {"n": 100, "rank": 5, "m": 8 * 100 * 5},
            220,
            lambda kappa: int(200 + 70 * kappa),
            (0.5, 1.6),
        )
    },
    quick_kappas=(1, 5, 20),
)
