"""Theorem 4: tensor sensing."""

from __future__ import annotations

import numpy as np

import scaledgd as sg

from .theorem import Instance, Theorem, in_units, theorem_item

SHAPE, R = (11, 10, 9), 2


def make(rng: np.random.Generator, kappa: float, measurements: float) -> Instance:
    """Make an instance with Gaussian measurements, given per degree of freedom."""
    m = round(measurements * (R**3 + R * sum(n - R for n in SHAPE)))
    problem, truth = sg.datasets.tensor_sensing(SHAPE, R, kappa, m, rng=rng)
    return Instance(problem, sg.hosvd(R), in_units(truth, 1 / kappa))


def of(quick: bool) -> Theorem:
    """Return the theorem and its cases."""
    etas = (0.3,) if quick else (0.1, 0.25, 0.4)
    return Theorem(
        make,
        None,
        2 / 5,
        [{"kappa": k, "measurements": 50, "eta": eta} for k in (1, 2, 4) for eta in etas],
        {"kappa": 2, "measurements": 40},
        0.9,
        ("measurements", (60, 40, 20, 10, 5, 3), {"kappa": 2}),
        "Gaussian measurements per degree of freedom",
        eta=0.3,
    )


ITEM = theorem_item(
    "theorem4",
    "Theorem 4",
    "Tensor sensing",
    "‖X_t − X⋆‖_F ≤ 3 ε₀ (1 − 0.6 η)ᵗ σ_min(X⋆) for enough Gaussian measurements and η ≤ 2/5. "
    f"ε₀ is left open, so the error of the start replaces 3 ε₀ σ_min. Tensors {SHAPE}, rank {R}.",
    of,
)
