"""Solve slices of mode 0 of a tensor against the other factors, one at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from array_api_compat import array_namespace

from ..factors import Tucker
from ..losses import Squared
from ..operators import BlockProblem
from ..variational.cp import SLACK
from . import validation
from .local_observations import LocalObservations
from .packing import packable

Array = Any

ROUNDS = 6
"""Number of rounds of estimating the noise of a slice and solving the slice."""


@packable
@dataclass(frozen=True, eq=False)
class SlicePrior:
    """Prior of a slice of mode 0, and of its noise.

    Attributes
    ----------
    prior : array of shape (r_0,)
        The variance of the numbers in a row of the first factor.
    unsure : array of shape (r_0,)
        The mean variance, over the entries, of the numbers that multiply them.
    scales : tuple of arrays of shape (n_k,) or None, one per mode but the first
        The noise variance of an entry is multiplied by the scales of its other slices.
    noise : float
        The variance of the noise where all scales are 1.
    uneven : bool
        Whether each slice has its own noise level.
    """

    prior: Array
    unsure: Array
    scales: tuple[Array | None, ...]
    noise: float
    uneven: bool

    def solve(self, F: Tucker, data: LocalObservations) -> Tucker:
        """Return the factors with the rows of mode 0 solved; each depends only on its slice.

        Parameters
        ----------
        F : Tucker
            Its first factor is not read.
        data : LocalObservations
        """
        xp = array_namespace(data.y)
        weight = xp.ones_like(data.y) if data.weight is None else data.weight
        for k, s in enumerate(self.scales):
            weight = weight if s is None else weight / data.along(k + 1, s)
        data = replace(data, weight=weight)
        problem = data.problem()
        total = data.total_weight(0)[:, None]
        seen = data.counts(0)[:, None]
        own = 0 * total + 1
        blank = own * xp.zeros_like(self.prior)[None, :]
        F = Tucker((blank, *F.factors[1:]), F.core)
        for _ in range(ROUNDS if self.uneven else 1):
            level = self.noise * own
            ridge = level / self.prior + total * self.unsure
            rows = BlockProblem(F, 0, problem.y, Squared(), ridge, spread=True)
            solution = problem.operator.step_block(rows)
            G = F.moved(0, -solution.step)
            U = G.factors[0]
            residual = problem.operator.residual(G, problem.y)
            # expected squares of the row, and of the numbers that multiply it
            inverse = solution.diagonal
            learnt = F.core.shape[0] - xp.sum(ridge * inverse, axis=1)[:, None]
            left = data._sums(0, xp.reshape(residual * residual, (-1,)))[:, None] + level * learnt
            left = left + total * xp.sum(self.unsure * (U * U + level * inverse), axis=1)[:, None]
            own = (left / self.noise + SLACK) / (seen + SLACK)
        return G

    def validate(self, F: Tucker) -> None:
        """Raise a FileError if the prior does not match the factors."""
        validation.shaped(self.prior, self.prior.shape[:1], least=0)
        validation.shaped(self.unsure, self.prior.shape[:1])
        validation.must(len(self.scales) == len(F.shape) - 1, "the noise of slices")
        for s, n in zip(self.scales, F.shape[1:], strict=True):
            validation.shaped(s, (n,), optional=True, least=0)
        validation.number(self.noise, least=0)
        validation.must(isinstance(self.uneven, bool), "the noise of slices")


def solve_parts(parts: tuple[SlicePrior, ...], F: Tucker, data: LocalObservations) -> Tucker:
    """Return the mean of several models, each with its rows of mode 0 solved.

    Parameters
    ----------
    parts : tuple of SlicePrior
        In the order of the rows of the core.
    F : Tucker
        The mean: the cores of all models, divided by their number and stacked.
    data : LocalObservations
    """
    rows, done = [], 0
    for known in parts:
        last = done + known.prior.shape[0]
        core = len(parts) * F.core[done:last, ...]
        one = Tucker((F.factors[0][:, done:last], *F.factors[1:]), core)
        rows.append(known.solve(one, data).factors[0])
        done = last
    return Tucker((array_namespace(data.y).concat(rows, axis=1), *F.factors[1:]), F.core)
