"""Estimators in the manner of scikit-learn."""

from .base import DataWarning
from .completion import MatrixCompletion, RobustPCA

__all__ = ["DataWarning", "MatrixCompletion", "RobustPCA"]
