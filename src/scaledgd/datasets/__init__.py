"""Random instances of the monograph's problems, and sensor data."""

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
from .water import Water, load_water

__all__ = [
    "Chlorine",
    "Water",
    "hankel_completion",
    "load_chlorine",
    "load_water",
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
