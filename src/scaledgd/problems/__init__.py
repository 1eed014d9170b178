"""Problems: what was measured, how a misfit is counted, and how that looks from an iterate."""

from .base import Problem, View
from .hankel import HankelCompletion
from .observed import Observed

__all__ = ["HankelCompletion", "Observed", "Problem", "View"]
