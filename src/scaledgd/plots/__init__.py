"""Plots of fitted models, missing data and residuals; they need matplotlib.

Every class is a display, as in scikit-learn. It holds the numbers to draw, so it can also be made
by hand. ``from_estimator`` reads the numbers from a fitted model and draws them; ``plot`` draws
them again. With ``ax`` it draws on your axes in your style; without, on a new figure with sizes
that suit a paper. Images are rasterised; everything else stays vector graphics.
"""

from .convergence import ConvergenceDisplay
from .intervals import IntervalDisplay
from .missing import MissingDisplay
from .ranks import RankCurveDisplay, SpectrumDisplay
from .residuals import ResidualDisplay
from .separation import SeparationDisplay

__all__ = [
    "ConvergenceDisplay",
    "IntervalDisplay",
    "MissingDisplay",
    "RankCurveDisplay",
    "ResidualDisplay",
    "SeparationDisplay",
    "SpectrumDisplay",
]
