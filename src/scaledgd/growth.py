"""Starts that run a method: the rank grown column by column, and a damped warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from . import checks
from .factors import Bordered, Factors, LowRank
from .initialize import Seed, small_random, spectral
from .linalg import gram, truncated_svd
from .methods import ScaledGD, ScaledLBFGS
from .namespaces import array_namespace
from .problems import Problem
from .solve import Init, Method, solve
from .state import State
from .stopping import loss_change

Array = Any


def widened(
    state: State, columns: int, tol: float | None = 1e-3, rng: Seed = 0
) -> LowRank | Bordered:
    """Return the factors of a state with more columns, taken from its residual.

    The new columns are the top singular pairs of the residual, all scaled by the one factor
    that fits the data best.

    Parameters
    ----------
    state : State
        Of `LowRank` or `Bordered` factors.
    columns : int
    tol : float, optional
        Accuracy of the singular vectors.
    rng : int or numpy.random.Generator

    Returns
    -------
    LowRank or Bordered
    """
    F = state.factors
    if not isinstance(F, LowRank | Bordered):
        raise TypeError(f"only LowRank and Bordered factors can be widened, not {type(F).__name__}")
    Z = state.view.ambient()
    xp, seeded = array_namespace(F.L), np.random.default_rng(rng)
    U, s, V = truncated_svd(Z.times, Z.adjoint_times, F.shape, columns, F.L, seeded, tol)
    weights = xp.astype(s, F.L.dtype)[None, :]
    along, bend = xp.sum(s * s), state.problem.measured_square(LowRank(U * weights, V))
    root = xp.sqrt(weights * (along / bend)) if float(bend) > 0 else 0 * weights
    r = F.rank
    L = xp.concat([F.L[:, :r], -U * root, F.L[:, r:]], axis=1)
    return replace(F, L=L, R=xp.concat([F.R[:, :r], V * root, F.R[:, r:]], axis=1))


def grown(
    rank: int,
    method: Method | None = None,
    *,
    start: Factors | None = None,
    tol: float = 1e-3,
    max_iter: int = 60,
    rng: Seed = 0,
    run: Callable[..., Any] = solve,
) -> Init:
    """Return a start that grows the rank by one column at a time.

    For few observations, and for extreme κ. Each new column is the top singular pair of the
    residual, and the fit is refined before the next one is added. So the large singular values are
    known before the search for the small ones, which sampling noise would hide in a spectral start.

    Parameters
    ----------
    rank : int
    method : Method, optional
        Refines each rank but the last; `ScaledLBFGS` by default.
    start : Factors, optional
        `LowRank` or `Bordered` factors of a lower rank to begin with; by default the
        spectral start of rank 1.
    tol : float
        Each rank is refined until the relative change of the loss is below this.
    max_iter : int
        The largest number of iterations for each rank.
    rng : int or numpy.random.Generator
    run : callable
        Runs the refinements; it takes the arguments of `solve`.

    Returns
    -------
    start
        A function of the problem that returns factors.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_completion(90, 80, rank=4, kappa=1e4, p=0.3, rng=0)
    >>> result = sg.solve(problem, sg.grown(4), sg.ScaledLBFGS(), max_iter=200)
    >>> bool(sg.metrics.relative_error(result.factors, truth) < 1e-8)
    True
    """
    refine = ScaledLBFGS() if method is None else method

    def grow(problem: Problem) -> Factors:
        r = checks.rank(rank, problem.shape)
        factors = spectral(1, tol=1e-3, rng=rng)(problem) if start is None else start
        assert isinstance(factors, LowRank | Bordered)
        while factors.rank < r:
            stop = loss_change(tol)
            most = max_iter if math.prod(factors.L.shape) else 0
            state = run(problem, factors, refine, max_iter=most, stop=stop).state
            factors = widened(state, 1, rng=rng)
        return factors

    return grow


def smallest_square(factors: Factors) -> float:
    """Return the smallest σ²_min of the blocks, which `mixed` compares with λ."""
    xp = array_namespace(factors.blocks[0])
    return min(float(xp.min(xp.linalg.eigvalsh(gram(B)))) for B in factors.blocks)


def mixed(
    rank: int,
    damping: float,
    scale: float,
    rng: Seed = None,
    *,
    symmetric: bool | None = None,
    step: Any = None,
    max_iter: int = 500,
) -> Init:
    """Return a start by ScaledGD(λ) that ends when ScaledGD without damping can take over.

    It begins with a small random start. It ends once σ²_min of every block is at least λ and has
    settled: it changed by less than 10 % and the loss did not rise. If it settles below λ, λ is
    halved, because with λ above σ_r(X⋆) the warm-up would never end; but not below a thousandth of
    its first value. If `max_iter` warm-up steps are not enough (the rank may exceed that of the
    data), the iterate with the least loss is returned.

    Parameters
    ----------
    rank : int
    damping : float
        The first λ.
    scale : float
        The size of the small random start.
    rng : int or numpy.random.Generator, optional
    symmetric : bool, optional
        As in `small_random`.
    step : number or rule, optional
        The step of the warm-up.
    max_iter : int
        The largest number of warm-up steps.

    Returns
    -------
    start
        A function of the problem that returns factors.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_completion(60, 50, rank=3, kappa=5, p=0.7, rng=0)
    >>> warm = sg.mixed(3, damping=0.05, scale=1e-6, rng=0)
    >>> result = sg.solve(problem, warm, sg.ScaledGD(), max_iter=80)
    >>> bool(sg.metrics.relative_error(result.factors, truth) < 1e-7)
    True
    """
    damping = checks.number("damping", damping, least=0, open_=True)
    max_iter = checks.count("max_iter", max_iter, least=1)

    def start(problem: Problem) -> Factors:
        if len(problem.shape) != 2:
            raise ValueError(f"mixed is for matrices, not for shape {problem.shape}; use hosvd")
        state = problem.linearize(small_random(rank, scale, rng, symmetric=symmetric)(problem))
        best, lam = state, damping
        value, smallest = float(state.value), smallest_square(state.factors)
        for _ in range(max_iter):
            factors, kept = ScaledGD(step, lam)(problem, state)
            state = problem.linearize(factors, state.t + 1, replace(state.memory, method=kept))
            last_value, value = value, float(state.value)
            last_smallest, smallest = smallest, smallest_square(state.factors)
            if not math.isfinite(value):
                break
            if value <= float(best.value):
                best = state
            if value <= last_value and abs(smallest - last_smallest) < 0.1 * smallest:
                if smallest >= lam:
                    return state.factors
                lam = max(lam / 2, 1e-3 * damping)
        return best.factors

    return start
