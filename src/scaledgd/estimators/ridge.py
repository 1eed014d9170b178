"""Fits with a ridge that was given, and without negative entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from array_api_compat import array_namespace

from ..factors import Bordered
from ..methods import Alternating, NonNegative
from ..solve import State
from .budget import Budget
from .cells import Cells
from .matrix import _beginning, edge, singular, with_part
from .rules import beside_residual, change, settled, vanished

Array = Any


def fit_ridge(
    cells: Cells, start: Bordered, rank: int, ridge: float, budget: Budget
) -> tuple[State, tuple[Array, Array]]:
    """Least squares plus ½ λ (‖L‖² + ‖R‖²), that is λ times the nuclear norm of X.

    λ is `ridge` times the norm that noise as large as the data would have, so that it is a
    pure number: about the size of the noise relative to the data.
    """
    xp = array_namespace(cells.y)
    n1, n2 = cells.shape
    level = ridge * edge(cells, float(xp.mean(cells.y * cells.y)))
    first = (
        start if start.rank or not rank else _beginning(cells.problem(), start, min(rank, n1, n2))
    )
    # offsets are held by what one more cell of the noise would hold them by
    little = ridge**2
    ridges = tuple(
        xp.concat(
            [xp.zeros_like(B[0, : first.rank]) + level, xp.zeros_like(B[0, first.rank :]) + little]
        )
        for B in first.blocks
    )
    problem = replace(cells.problem(), ridge=ridges)
    if not sum(B.shape[1] for B in first.blocks):
        return problem.linearize(first), ridges
    rules = [change(budget.tol), beside_residual(1e-4)]
    state = budget.run(problem, first, Alternating(), rules, stage="ridge").state
    F: Any = state.factors
    U, s, V = singular(F)
    keep = int((s > 1e-9 * max(float(s[0]), 1e-300)).sum()) if F.rank else 0
    F = with_part(F, U[:, :keep], s[:keep], V[:, :keep])
    ridges = tuple(xp.concat([g[:keep], g[first.rank :]]) for g in ridges)
    return replace(problem, ridge=ridges).linearize(F), ridges


def fit_non_negative(cells: Cells, start: Bordered, rank: int, budget: Budget) -> State:
    """Nonnegative factors, from the magnitudes of a spectral start."""
    xp = array_namespace(cells.y)
    problem = cells.problem()
    first = start if start.rank else _beginning(problem, start, min(max(rank, 1), *cells.shape))
    first = first.with_blocks(tuple(xp.abs(B) for B in first.blocks))
    rules = [vanished(0.1 * budget.tol), change(max(budget.tol, 1e-5)), settled(1e-4)]
    return budget.run(problem, first, NonNegative(), rules, stage="non-negative").state
