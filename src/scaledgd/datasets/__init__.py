"""Instances of the monograph's problems, with their truth."""

from .synthetic import (
    hankel_completion,
    low_rank,
    matrix_completion,
    matrix_sensing,
    quadratic_sampling,
    robust_pca,
    robust_sensing,
)

__all__ = [
    "hankel_completion",
    "low_rank",
    "matrix_completion",
    "matrix_sensing",
    "quadratic_sampling",
    "robust_pca",
    "robust_sensing",
]
