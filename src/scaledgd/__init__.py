"""Recover low-rank matrices and tensors from incomplete, corrupted or indirect data.

Every problem is one call: ``solve(problem, init, method)``. A problem is ``Observed(operator, y,
loss)``; the operators, losses, starts and methods below combine freely.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import datasets, metrics
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
    from .factors import CP, Bordered, Factors, LowRank, Symmetric, Tucker
    from .files import FileError
    from .growth import grown, mixed
    from .initialize import diagonal_deleted, hosvd, incoherence, small_random, spectral
    from .losses import Absolute, HardTrim, Loss, SoftTrim, Squared, TopTrim
    from .methods import Alternating, GradientDescent, NonNegative, ScaledGD, ScaledLBFGS
    from .operators import Entries, Full, Operator, RankOne, Sensing, Weighted
    from .plots import (
        ConvergenceDisplay,
        IntervalDisplay,
        MissingDisplay,
        RankCurveDisplay,
        ResidualDisplay,
        SeparationDisplay,
        SpectrumDisplay,
    )
    from .problems import HankelCompletion, Observed, Problem, View
    from .solve import DivergenceWarning, Interrupted, Result, iterate, solve
    from .state import Memory, State
    from .steps import geometric, line_search, polyak
    from .stopping import Stop, gradient_norm, loss_change, time_limit
    from .thresholds import median_threshold, thresholds
    from .variational import Posterior, Variational, joint
    from .versions import show_versions

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
    "show_versions",
    "small_random",
    "solve",
    "spectral",
    "thresholds",
    "time_limit",
]


_MODULES = ("datasets", "metrics")
_ROOMS = (
    "versions",
    "factors",
    "operators",
    "losses",
    "thresholds",
    "state",
    "stopping",
    "steps",
    "files",
    "initialize",
    "problems",
    "methods",
    "solve",
    "growth",
    "variational",
    "estimators",
    "plots",
)
"""The modules of the public names; slow imports are last."""


def __getattr__(name: str) -> Any:
    # NumPy, and even more so scikit-learn, are slow to import, so they are loaded when first used
    if name in __all__ and name not in _MODULES:
        for room in _ROOMS:
            found = getattr(importlib.import_module(f".{room}", __name__), name, None)
            if found is not None:
                globals()[name] = found
                return found
    if name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # importing the module `solve` must not hide the function of that name
        if not (isinstance(value, ModuleType) and name in __all__ and name not in _MODULES):
            super().__setattr__(name, value)

    def __reduce__(self) -> Any:
        # functions that are sent to other processes may refer to the package
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
