"""Stopping rules of fits.

A rule may remember the previous iterate, and write into the last record of the history. Rules
must keep no other state, or a resumed fit could stop at another iterate.
"""

from __future__ import annotations

import math

from ..factors import Factors
from ..linalg import epsilon
from ..losses import Squared
from ..operators import Entries, Full
from ..problems import Observed
from ..state import State
from ..stopping import Record, Stop, StoppingRule


def change(tol: float) -> StoppingRule:
    """Stop when the relative change of X between iterates is below `tol`."""
    last: list[Factors] = []

    def rule(state: State, history: list[Record]) -> Stop | None:
        F = state.factors
        size = float(F.norm())
        enough = max(tol, 4 * epsilon(F.blocks[0]))
        moved = math.inf
        if last and _residual_change(state, history) <= enough * size:
            moved = F.distance(last[0], enough * size)
        last[:] = [F]
        if moved <= enough * size:
            return Stop(f"the relative change of X is below {enough:.2g}")
        return None

    return rule


def _residual_change(state: State, history: list[Record]) -> float:
    """The change of the norm of the residual, at most that of X; 0 where it is not known."""
    problem = state.problem
    if not isinstance(problem, Observed) or not isinstance(problem.operator, Entries | Full):
        return 0.0
    if type(problem.loss) is not Squared or problem.scale != 1 or problem.ridge is not None:
        return 0.0
    before, after = (math.sqrt(2 * max(record["value"], 0.0)) for record in history[-2:])
    return abs(before - after)


def vanished(tol: float) -> StoppingRule:
    """Stop when the residual is less than `tol` times the data."""

    def rule(state: State, history: list[Record]) -> Stop | None:
        least = max(tol, 4 * epsilon(state.factors.blocks[0]))
        if history[-1]["value"] <= least**2 * state.problem.value_at_zero:
            return Stop(f"the residual is less than {least:.2g} of the data")
        return None

    return rule


def settled(share: float, after: int = 1) -> StoppingRule:
    """Stop when the relative decrease of the loss is small, after some iterations."""

    def rule(state: State, history: list[Record]) -> Stop | None:
        if len(history) > after and history[-2]["value"] - history[-1]["value"] <= share * max(
            history[-1]["value"], 0.0
        ):
            return Stop(f"the relative decrease of the loss is below {share:.2g}")
        return None

    return rule


def stalled(share: float, over: int = 10) -> StoppingRule:
    """Stop when the relative decrease of the loss over some iterations was small."""

    def rule(state: State, history: list[Record]) -> Stop | None:
        if len(history) <= over:
            return None
        fallen = history[-1 - over]["value"] - history[-1]["value"]
        if fallen <= share * over * history[-1]["value"]:
            return Stop(f"the relative decrease of the loss is below {share:.2g} per iteration")
        return None

    return rule


def beside_residual(share: float) -> StoppingRule:
    """Stop when X changes little compared with the residual: noise hides the rest."""
    last: list[Factors] = []

    def rule(state: State, history: list[Record]) -> Stop | None:
        F = state.factors
        seen = math.sqrt(state.problem.size / math.prod(F.shape))
        enough = share * max(1.0, len(history) / 20)  # a slow drift is not worth waiting for
        level = enough * math.sqrt(2 * history[-1]["value"]) / seen
        moved = F.distance(last.pop(), level) if last else math.inf
        last.append(F)
        if moved <= level:
            return Stop(f"X changes by less than {enough:.2g} times the residual")
        return None

    return rule
