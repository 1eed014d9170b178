"""Recover low-rank matrices and tensors from incomplete, corrupted or indirect data.

The mathematics reads as one sentence: ``solve(problem, init, method)``. A problem is
``Observed(operator, y, loss)``; the operators, losses, starts and methods below combine
freely.
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import datasets, metrics
from .factors import CP, Bordered, Factors, LowRank, Symmetric, Tucker
from .files import FileError
from .growth import grown, mixed
from .initialize import diagonal_deleted, hosvd, incoherence, small_random, spectral
from .losses import Absolute, HardTrim, Loss, SoftTrim, Squared, TopTrim
from .methods import Alternating, GradientDescent, NonNegative, ScaledGD, ScaledLBFGS
from .operators import Entries, Full, Operator, RankOne, Sensing, Weighted
from .problems import HankelCompletion, Observed, Problem, View
from .solve import DivergenceWarning, Interrupted, Result, iterate, solve
from .state import Memory, State
from .steps import geometric, line_search, polyak
from .stopping import Stop, gradient_norm, loss_change, time_limit
from .thresholds import median_threshold, thresholds
from .variational import Posterior, Variational, joint

if TYPE_CHECKING:
    from .estimators import (
        BlockSplit,
        DataWarning,
        EntrySplit,
        EntryTable,
        MatrixCompletion,
        MatrixRegressor,
        RobustPCA,
        RowSplit,
        TensorCompletion,
        TensorRegressor,
        TensorRobustPCA,
        TimeSplit,
        load,
        rank_curve,
        scorer,
    )
    from .plots import (
        ConvergenceDisplay,
        IntervalDisplay,
        MissingDisplay,
        RankCurveDisplay,
        ResidualDisplay,
        SeparationDisplay,
        SpectrumDisplay,
    )

__version__ = "0.2.0.dev0"

__all__ = [
    "CP",
    "Absolute",
    "Alternating",
    "BlockSplit",
    "Bordered",
    "ConvergenceDisplay",
    "DataWarning",
    "DivergenceWarning",
    "Entries",
    "EntrySplit",
    "EntryTable",
    "Factors",
    "FileError",
    "Full",
    "GradientDescent",
    "HankelCompletion",
    "HardTrim",
    "Interrupted",
    "IntervalDisplay",
    "Loss",
    "LowRank",
    "MatrixCompletion",
    "MatrixRegressor",
    "Memory",
    "MissingDisplay",
    "NonNegative",
    "Observed",
    "Operator",
    "Posterior",
    "Problem",
    "RankCurveDisplay",
    "RankOne",
    "ResidualDisplay",
    "Result",
    "RobustPCA",
    "RowSplit",
    "ScaledGD",
    "ScaledLBFGS",
    "Sensing",
    "SeparationDisplay",
    "SoftTrim",
    "SpectrumDisplay",
    "Squared",
    "State",
    "Stop",
    "Symmetric",
    "TensorCompletion",
    "TensorRegressor",
    "TensorRobustPCA",
    "TimeSplit",
    "TopTrim",
    "Tucker",
    "Variational",
    "View",
    "Weighted",
    "datasets",
    "diagonal_deleted",
    "geometric",
    "gradient_norm",
    "grown",
    "hosvd",
    "incoherence",
    "iterate",
    "joint",
    "line_search",
    "load",
    "loss_change",
    "median_threshold",
    "metrics",
    "mixed",
    "polyak",
    "rank_curve",
    "scorer",
    "small_random",
    "solve",
    "spectral",
    "thresholds",
    "time_limit",
]


def __getattr__(name: str) -> Any:
    # scikit-learn takes long to import: only those who use the estimators wait for it
    if name in __all__:
        room = "plots" if name.endswith("Display") else "estimators"
        return getattr(importlib.import_module(f".{room}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
