"""Measurements: A(X) of a factored X, and the adjoint A*(w)."""

from .base import BlockProblem, Operator
from .entries import Around, Entries, Full, Weighted
from .sensing import RankOne, Sensing

__all__ = [
    "Around",
    "BlockProblem",
    "Entries",
    "Full",
    "Operator",
    "RankOne",
    "Sensing",
    "Weighted",
]
