"""Stopping rules: functions of the state and the history that end a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import checks
from .factors import Blocks, Factors
from .linalg import epsilon, inner, plain_float

if TYPE_CHECKING:
    from .state import State

Record = dict[str, Any]


@dataclass(frozen=True)
class Stop:
    """The verdict of a stopping rule.

    Parameters
    ----------
    reason : str
        Why the run ends, as the beginning of a sentence.
    converged : bool
        Whether the run has converged.

    Examples
    --------
    >>> import scaledgd as sg
    >>> stop_early = lambda state, history: sg.Stop("enough", False) if state.t == 3 else None
    >>> problem, _ = sg.datasets.matrix_sensing(9, 8, rank=1, kappa=1, m=90, rng=0)
    >>> sg.solve(problem, sg.spectral(1), sg.ScaledGD(), stop=stop_early).status
    'enough (iteration 3)'
    """

    reason: str
    converged: bool = True


StoppingRule = Callable[["State", list[Record]], Stop | None]


def loss_change(tol: float = 1e-9) -> StoppingRule:
    """Stop when the relative change of the loss is below `tol`, or the loss vanishes to rounding.

    It vanishes if it is within rounding of zero, relative to the loss of X = 0. Values of losses
    whose threshold moves are not comparable: use `gradient_norm` for these.

    Parameters
    ----------
    tol : float

    Returns
    -------
    stopping rule

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((2, 2)), np.eye(2))
    >>> start = sg.LowRank(np.eye(2), 2 * np.eye(2))
    >>> sg.solve(problem, start, sg.ScaledGD(0.5), stop=sg.loss_change(1e-6)).converged
    True
    """
    tol = checks.number("tol", tol, least=0)

    def rule(state: State, history: list[Record]) -> Stop | None:
        value, zero = history[-1]["value"], state.problem.value_at_zero
        eps = epsilon(state.factors.blocks[0])
        # rounding is eps of the data, and a smooth loss is quadratic there
        rounding = 20 * (eps**2 if state.problem.smooth else eps) * zero
        if value <= rounding and math.isfinite(zero):
            return Stop(f"the loss vanished: {value:.2g}, from {zero:.2g} at X = 0")
        if len(history) > 1 and abs(history[-2]["value"] - value) <= tol * value:
            return Stop(f"the relative change of the loss is below {tol:.2g}")
        return None

    return rule


def gradient_norm(tol: float = 1e-9, update: tuple[int, ...] | None = None) -> StoppingRule:
    """Stop when the scaled gradient is at most `tol` of that of the data alone.

    The norm is √⟨g, P g⟩ with ScaledGD's preconditioner P. It is divided by that of the gradient at
    X = 0, pulled back to the same factors. The ratio does not depend on the parameterisation, nor
    on the scales of the data, the operator or the loss. It does not vanish for `Absolute`, because
    its subgradients do not. It is computed at every third iterate, because it costs as much as a
    gradient.

    Parameters
    ----------
    tol : float
        At least ten times the precision of the data is used.
    update : tuple of int, optional
        The blocks to consider; give the same as to the method.

    Returns
    -------
    stopping rule

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((2, 2)), np.eye(2))
    >>> start = sg.LowRank(np.eye(2), 2 * np.eye(2))
    >>> sg.solve(problem, start, sg.ScaledGD(0.5), stop=sg.gradient_norm(1e-6)).converged
    True
    """
    tol = checks.number("tol", tol, least=0)

    def size(factors: Factors, grads: Blocks) -> float:
        direction = factors.precondition(grads)
        chosen = factors.free if update is None else update
        square = sum(plain_float(inner(grads[k], direction[k])) for k in chosen)
        return math.sqrt(max(square, 0.0))

    def rule(state: State, history: list[Record]) -> Stop | None:
        if len(history) % 3 != 1:  # the comparison costs as much as a gradient
            return None
        F = state.factors
        ours, whole = size(F, state.gradient), size(F, F.pullback(state.problem.gradient_at_zero))
        if ours <= max(tol, 10 * epsilon(F.blocks[0])) * whole:
            return Stop(f"the scaled gradient is {ours / (whole or 1.0):.2g} of that of the data")
        return None

    return rule


def time_limit(seconds: float) -> StoppingRule:
    """Stop after some seconds of computing; metrics and callbacks are not counted.

    Parameters
    ----------
    seconds : float

    Returns
    -------
    stopping rule

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, _ = sg.datasets.matrix_sensing(9, 8, rank=1, kappa=1, m=90, rng=0)
    >>> sg.solve(problem, sg.spectral(1), sg.ScaledGD(), stop=sg.time_limit(0.0)).n_iter
    0
    """
    seconds = checks.number("seconds", seconds, least=0)

    def rule(state: State, history: list[Record]) -> Stop | None:
        if history[-1]["seconds"] >= seconds:
            return Stop(f"the time limit of {seconds:g} s was reached", converged=False)
        return None

    return rule
