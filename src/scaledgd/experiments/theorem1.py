"""Theorem 1: matrix sensing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import scaledgd as sg

from .theorem import Instance, Theorem, in_units, theorem_item

N1, N2, R = 20, 16, 3


def isometry(delta: float, rng: np.random.Generator) -> sg.Sensing:
    """Make an operator with the RIP constant δ at every rank: A*A = Q diag(1 ± δ) Qᵀ."""
    n = N1 * N2
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    signs = rng.integers(0, 2, n) * 2.0 - 1
    return sg.Sensing((np.sqrt(1 + delta * signs)[:, None] * Q.T).reshape(n, N1, N2))


def make(rng: np.random.Generator, kappa: float, measurements: float = 0.0) -> Instance:
    """Make an instance with Gaussian measurements, or with the theorem's RIP if there are none.

    Parameters
    ----------
    rng : numpy.random.Generator
    kappa : float
    measurements : float
        Gaussian measurements per degree of freedom.

    Returns
    -------
    Instance
    """
    truth = sg.datasets.low_rank(N1, N2, R, kappa, rng)
    A: Any
    if measurements:
        m = round(measurements * R * (N1 + N2 - R))
        A = sg.Sensing(rng.standard_normal((m, N1, N2)) / math.sqrt(m))
    else:
        A = isometry(0.02 / (math.sqrt(R) * kappa), rng)
    return Instance(sg.Observed(A, A.apply(truth)), sg.spectral(R), in_units(truth, 1 / kappa))


def of(quick: bool) -> Theorem:
    """Return the theorem and its cases."""
    etas = (0.5,) if quick else (0.1, 0.5, 2 / 3)
    return Theorem(
        make,
        0.15,
        2 / 3,
        [{"kappa": k, "eta": eta} for k in (1, 10, 100) for eta in etas],
        {"kappa": 10},
        1.3,
        ("measurements", (100, 50, 20, 10, 5, 3, 2), {"kappa": 3}),
        "Gaussian measurements per degree of freedom",
        iterations=80,
    )


ITEM = theorem_item(
    "theorem1",
    "Theorem 1",
    "Matrix sensing",
    "‖L_t R_tᵀ − X⋆‖_F ≤ (1 − 0.6 η)ᵗ 0.15 σ_r(X⋆) under the RIP with δ ≤ 0.02/(√r κ), for η ≤ 2/3."
    " The operator is built to have that δ: A*A = Q diag(1 ± δ) Qᵀ on all 20 × 16 matrices, r = 3.",
    of,
)
