"""Low-rank objects held as factors: X = φ(F).

A factorisation evaluates X, pulls an ambient gradient Z back to its blocks by the chain rule, and
preconditions those gradients with inverse Gram matrices.
"""

from .base import Blocks, Factors
from .cp import CP
from .matrices import Bordered, LowRank, Symmetric
from .tucker import Tucker

__all__ = ["CP", "Blocks", "Bordered", "Factors", "LowRank", "Symmetric", "Tucker"]
