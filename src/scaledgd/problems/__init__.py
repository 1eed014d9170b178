"""Problems: measurements, a loss, and its view from an iterate."""

from .base import Problem, View
from .hankel import HankelCompletion
from .observed import Observed

__all__ = ["HankelCompletion", "Observed", "Problem", "View"]
