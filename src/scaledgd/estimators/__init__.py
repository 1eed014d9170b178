"""Estimators in the manner of scikit-learn."""

from .base import DataWarning
from .completion import MatrixCompletion, RobustPCA
from .tensors import TensorCompletion, TensorRobustPCA

__all__ = ["DataWarning", "MatrixCompletion", "RobustPCA", "TensorCompletion", "TensorRobustPCA"]
