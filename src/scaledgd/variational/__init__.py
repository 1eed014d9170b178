"""Low rank, noise and gross errors in one model, whose parameters are learnt from the data."""

from .full import solved
from .method import Variational, current, extended, joint, mean_square
from .posterior import Posterior, some

__all__ = [
    "Posterior",
    "Variational",
    "current",
    "extended",
    "joint",
    "mean_square",
    "solved",
    "some",
]
