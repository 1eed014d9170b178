"""Estimators in the manner of scikit-learn."""

from .base import DataWarning
from .completion import MatrixCompletion, RobustPCA
from .regression import MatrixRegressor, TensorRegressor
from .saving import load
from .selection import (
    BlockSplit,
    EntrySplit,
    EntryTable,
    RowSplit,
    TimeSplit,
    rank_curve,
    scorer,
)
from .tensors import TensorCompletion, TensorRobustPCA

__all__ = [
    "BlockSplit",
    "DataWarning",
    "EntrySplit",
    "EntryTable",
    "MatrixCompletion",
    "MatrixRegressor",
    "RobustPCA",
    "RowSplit",
    "TensorCompletion",
    "TensorRegressor",
    "TensorRobustPCA",
    "TimeSplit",
    "load",
    "rank_curve",
    "scorer",
]
