"""When a fit is over: stopping rules, and the work that is left."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

from array_api_compat import array_namespace

from ..factors import Tucker
from ..linalg import epsilon, mode_products, norm
from ..problems import Observed
from ..solve import Record, Result, State, Stop, StoppingRule, solve

Array = Any


@dataclass
class Budget:
    """How much work is left, and what was done."""

    tol: float = 1e-9
    max_iter: int = 500
    max_time: float | None = None
    history: list[Record] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    converged: bool = True
    status: str = "nothing had to be fitted"

    def run(
        self,
        problem: Observed,
        init: Any,
        method: Any,
        stop: list[StoppingRule],
        max_iter: int | None = None,
        stage: str = "",
    ) -> Result:
        rules = [*stop, self._in_time]
        most = self.max_iter if max_iter is None else min(max_iter, self.max_iter)
        result = solve(problem, init, method, max_iter=most, stop=rules)
        done = len(self.history)
        before = self.history[-1]["seconds"] if done else 0.0
        self.history += [
            {**record, "t": done + k, "seconds": before + record["seconds"], "stage": stage}
            for k, record in enumerate(result.history[1 if done else 0 :])
        ]
        self.converged, self.status = result.converged, result.status
        return result

    def _in_time(self, state: State, history: list[Record]) -> Stop | None:
        if self.out_of_time:
            return Stop(f"the time limit of {self.max_time:g} s was reached", converged=False)
        return None

    def apart(self, tol: float = 1e-9, max_iter: int = 500) -> Budget:
        """A budget of its own, with the same end."""
        return replace(self, tol=tol, max_iter=max_iter, history=[])

    @property
    def out_of_time(self) -> bool:
        return self.max_time is not None and time.perf_counter() - self.began > self.max_time


def difference(F: Any, G: Any) -> float:
    """‖X_F − X_G‖, without the cancellation that Gram matrices would bring."""
    xp = array_namespace(F.blocks[0])
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
        moved = difference(F, last.pop()) if last else math.inf
        last.append(F)
        size = float(F.norm())
        least = 4 * epsilon(F.blocks[0])
        if moved <= max(tol, least) * size:
            return Stop(f"X changes by less than {max(tol, least):.2g} of itself")
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
    """Stop when X changes by a small share of the residual: noise hides what is to come."""
    last: list[Any] = []

    def rule(state: State, history: list[Record]) -> Stop | None:
        F: Any = state.factors
        moved = difference(F, last.pop()) if last else math.inf
        last.append(F)
        seen = math.sqrt(math.prod(state.problem.y.shape) / math.prod(F.shape))
        enough = share * max(1.0, len(history) / 20)  # a slow drift is not worth waiting for
        if moved * seen <= enough * math.sqrt(2 * float(state.value)):
            return Stop(f"X changes by less than {enough:.2g} of the residual")
        return None

    return rule
