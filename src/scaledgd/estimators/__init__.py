"""Estimators in the manner of scikit-learn."""

from .base import DataWarning
from .completion import MatrixCompletion, RobustPCA
from .regression import MatrixRegressor, TensorRegressor
from .saving import load
from .tensors import TensorCompletion, TensorRobustPCA

__all__ = [
    "DataWarning",
    "MatrixCompletion",
    "MatrixRegressor",
    "RobustPCA",
    "TensorCompletion",
    "TensorRegressor",
    "TensorRobustPCA",
    "load",
]
