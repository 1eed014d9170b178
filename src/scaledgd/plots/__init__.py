"""Pictures of fitted models, of what was missing, and of what is left; they need matplotlib.

Every class is a display in the sense of scikit-learn: it holds the numbers that are drawn, so that
it can be made by hand; ``from_estimator`` reads them from a fitted model and draws, ``plot``
draws. With ``ax`` it draws on your axes, in your style; without, on a new figure whose sizes are
those of a paper. Images are rasterised, all else stays vectors.
"""

from .curves import ConvergenceDisplay, IntervalDisplay, RankCurveDisplay, SpectrumDisplay
from .maps import MissingDisplay, ResidualDisplay, SeparationDisplay

__all__ = [
    "ConvergenceDisplay",
    "IntervalDisplay",
    "MissingDisplay",
    "RankCurveDisplay",
    "ResidualDisplay",
    "SeparationDisplay",
    "SpectrumDisplay",
]
