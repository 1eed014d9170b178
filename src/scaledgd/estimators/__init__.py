"""Estimators with the interface of scikit-learn."""

from .completion import MatrixCompletion, RobustPCA
from .diagnostics import DataWarning
from .entry_table import EntryTable
from .regression import MatrixRegressor, TensorRegressor
from .saving import load
from .scoring import rank_curve, scorer
from .splitting import BlockSplit, EntrySplit, RowSplit, TimeSplit
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
