"""Stopping rules of fits.

A rule may remember the previous iterate, and write into the last record of the history. Rules
must keep no other state, or a resumed fit could stop at another iterate.
"""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace

from ..factors import Tucker
from ..linalg import epsilon, gram, mode_products, norm
from ..solve import Record, State, Stop, StoppingRule

Array = Any


def difference(F: Any, G: Any, level: float = 0.0) -> float:
    """Return ‖X_F − X_G‖, without the cancellation of Gram matrices of both.

    With it if the loss is small relative to a level.
    """
    xp = array_namespace(F.blocks[0])
    if not isinstance(F, Tucker) and F.modes[0].shape == G.modes[0].shape:
        # X_F − X_G = (L_F − L_G) R_Fᵀ + L_G (R_F − R_G)ᵀ: as good, unless the two cancel
        (L, R), (K, S) = F.modes, G.modes
        left, right = xp.concat([L - K, K], axis=1), xp.concat([R, R - S], axis=1)
        products = gram(left) * gram(right)
        square, size = float(xp.sum(products)), float(xp.sum(xp.abs(products)))
        lost = 100 * epsilon(L) * size
        if square > 1e-3 * size or lost <= (0.1 * level) ** 2:
            return math.sqrt(max(square, 0.0) + lost)
    frames = [
        xp.linalg.qr(xp.concat([A, B], axis=1))[1] for A, B in zip(F.modes, G.modes, strict=True)
    ]
    sides = []
    for X in (F, G):
        parts = [
            T[:, : M.shape[1]] if X is F else T[:, T.shape[1] - M.shape[1] :]
            for T, M in zip(frames, X.modes, strict=True)
        ]
        sides.append(
            mode_products(X.core, parts) if isinstance(X, Tucker) else parts[0] @ parts[1].T
        )
    return float(norm(sides[0] - sides[1]))


def change(tol: float) -> StoppingRule:
    """Stop when X changes by less than `tol` of itself between iterates."""
    last: list[Any] = []

    def rule(state: State, history: list[Record]) -> Stop | None:
        F: Any = state.factors
        size = float(F.norm())
        enough = max(tol, 4 * epsilon(F.blocks[0]))
        moved = difference(F, last.pop(), enough * size) if last else math.inf
        last.append(F)
        if moved <= enough * size:
            return Stop(f"X changes by less than {enough:.2g} of itself")
        return None

    return rule


def vanished(tol: float) -> StoppingRule:
    """Stop when the residual is `tol` of the data."""

    def rule(state: State, history: list[Record]) -> Stop | None:
        least = max(tol, 4 * epsilon(state.factors.blocks[0]))
        if float(state.value) <= least**2 * state.problem.value_at_zero:
            return Stop(f"the residual is less than {least:.2g} of the data")
        return None

    return rule


def settled(share: float) -> StoppingRule:
    """Stop when the loss falls by less than a share of itself."""

    def rule(state: State, history: list[Record]) -> Stop | None:
        if len(history) > 1 and history[-2]["value"] - history[-1]["value"] <= share * max(
            history[-1]["value"], 0.0
        ):
            return Stop(f"the loss falls by less than {share:.2g} of itself")
        return None

    return rule


def stalled(share: float, over: int = 10) -> StoppingRule:
    """Stop when the loss fell by less than a share of itself over some iterations."""

    def rule(state: State, history: list[Record]) -> Stop | None:
        if len(history) <= over:
            return None
        fallen = history[-1 - over]["value"] - history[-1]["value"]
        if fallen <= share * over * history[-1]["value"]:
            return Stop(f"the loss fell by less than {share:.2g} of itself per iteration")
        return None

    return rule


def beside_residual(share: float) -> StoppingRule:
    """Stop when X changes by a small share of the residual, because noise hides the rest."""
    last: list[Any] = []

    def rule(state: State, history: list[Record]) -> Stop | None:
        F: Any = state.factors
        seen = math.sqrt(math.prod(state.problem.y.shape) / math.prod(F.shape))
        enough = share * max(1.0, len(history) / 20)  # a slow drift is not worth waiting for
        level = enough * math.sqrt(2 * float(state.value)) / seen
        moved = difference(F, last.pop(), level) if last else math.inf
        last.append(F)
        if moved <= level:
            return Stop(f"X changes by less than {enough:.2g} of the residual")
        return None

    return rule
