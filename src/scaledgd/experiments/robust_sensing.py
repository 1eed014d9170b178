"""Companion papers: matrix sensing with 20 % gross errors and the l1 loss."""

from __future__ import annotations

import numpy as np

import scaledgd as sg

from .kappa import Run, Sweep, kappa_item, subgradients


def make(kappa: float, rng: np.random.Generator, n: int, rank: int, m: int) -> Run:
    """Make an instance of matrix sensing with outliers."""
    problem, truth = sg.datasets.robust_sensing(n, n, rank, kappa, m, 0.2, rng=rng)
    return subgradients(problem, truth, rank)


ITEM = kappa_item(
    "robust_sensing",
    "Robust sensing",
    "Scaled subgradients when a fifth of the measurements is wrong",
    "m Gaussian measurements, a fifth of them moved by up to ten times the largest. The loss is "
    "the sum of absolute residuals, the step Polyak's (told the optimal value), the start a "
    "spectral one that keeps the four fifths of smallest magnitude.",
    {
        "robust sensing": Sweep(
            make,
            {"n": 36, "rank": 3, "m": 8 * 36 * 3},
            {"n": 60, "rank": 6, "m": 8 * 60 * 6},
            300,
            lambda kappa: int(200 + 80 * kappa),
            (0.2, 1.5),
        )
    },
    quick_kappas=(1, 5, 20),
)
