"""Companion papers: spectrally sparse signals as incomplete Hankel matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import scaledgd as sg

from .kappa import Run, Sweep, kappa_item


def make(kappa: float, rng: np.random.Generator, n: int, rank: int, p: float) -> Run:
    """Make an instance of Hankel completion."""
    problem, x = sg.datasets.hankel_completion(n, n, rank, kappa, p, rng=rng)
    w = problem.lengths
    norm = math.sqrt(float(np.sum(w * np.abs(x) ** 2)))

    def error(F: Any) -> float:
        return math.sqrt(float(np.sum(w * np.abs(problem.signal(F) - x) ** 2))) / norm

    # a sinusoid of amplitude 1 has the singular value √(n₁ n₂)
    return Run(problem, sg.spectral(rank), error, sg.ScaledGD(0.5), sg.GradientDescent(0.5 / n))


ITEM = kappa_item(
    "hankel",
    "Hankel",
    "Spectrally sparse signals from a fifth of their samples",
    "A sum of r complex sinusoids with amplitudes linspace(1, 1/κ, r): its Hankel matrix has rank "
    "r and condition number κ. Spectral start, η = 0.5.",
    {
        "Hankel completion": Sweep(
            make,
            {"n": 300, "rank": 5, "p": 0.3},
            {"n": 1000, "rank": 10, "p": 0.2},
            100,
            lambda kappa: int(60 + 60 * kappa),
            (0.6, 1.5),
        )
    },
    quick_kappas=(1, 5, 20),
)
