"""Random instances of the monograph's problems, and its sensor data."""

from .chlorine import Chlorine, load_chlorine
from .matrices import (
    hankel_completion,
    low_rank,
    matrix_completion,
    matrix_sensing,
    quadratic_sampling,
    robust_pca,
    robust_sensing,
)
from .tensors import low_rank_tensor, tensor_completion, tensor_robust_pca, tensor_sensing

__all__ = [
    "Chlorine",
    "hankel_completion",
    "load_chlorine",
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
