"""Instances of the monograph's problems, with their truth."""

from .synthetic import (
    hankel_completion,
    low_rank,
    low_rank_tensor,
    matrix_completion,
    matrix_sensing,
    quadratic_sampling,
    robust_pca,
    robust_sensing,
    tensor_completion,
    tensor_robust_pca,
    tensor_sensing,
)

__all__ = [
    "hankel_completion",
    "low_rank",
    "low_rank_tensor",
    "matrix_completion",
    "matrix_sensing",
    "quadratic_sampling",
    "robust_pca",
    "robust_sensing",
    "tensor_completion",
    "tensor_robust_pca",
    "tensor_sensing",
]
