"""Starts: functions of the problem that return the first factors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from . import checks
from .ambient import Ambient
from .factors import Factors, LowRank, Symmetric
from .linalg import adjoint, conj, epsilon, fix_signs, gaussian, gram, top_eigh, truncated_svd
from .methods import Projection, ScaledGD
from .solve import Init, Problem

Array = Any
Seed = int | np.random.Generator | None


def incoherence(radius: float) -> Callable[[Any], Any]:
    """The scaled projection P_B: rows are shortened to √n₁ ‖L_i Rᴴ‖ ≤ radius, and so for R.

    It is the projection in ScaledGD's norm, so it commutes with reparameterisation. The
    radius must be at least √n times the largest row norm of X⋆; C √(μr) σ₁ is, for C ≥ 1.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> F = sg.LowRank(np.asarray([[3.0], [0.0], [0.0], [1.0]]), np.asarray([[1.0]]))
    >>> sg.incoherence(4.0)(F).L
    array([[2.],
           [0.],
           [0.],
           [1.]])
    """
    radius = checks.number("radius", radius, least=0, open_=True)
    return lambda factors: factors.clip_rows(radius)


def _times(Z: Ambient, V: Array) -> Array:
    """Z V."""
    return Z.contract((V, conj(V)), skip=0)


def _adjoint_times(Z: Ambient, U: Array) -> Array:
    """Zᴴ U."""
    return adjoint(Z.contract((U, conj(U)), skip=1))


def _wants_symmetric(symmetric: bool | None, problem: Problem) -> bool:
    symmetric = problem.symmetric if symmetric is None else symmetric
    if symmetric and len(set(problem.shape)) > 1:
        raise ValueError(f"symmetric factors need a square problem, not shape {problem.shape}")
    return symmetric


def spectral(
    rank: int,
    project: Projection | None = None,
    keep: float | None = None,
    *,
    symmetric: bool | None = None,
    tol: float | None = None,
    rng: Seed = 0,
) -> Init:
    """The best rank-r approximation of the backprojection A*(y), its spectrum split evenly.

    Computed by products with the backprojection only, from a seeded block, with the signs
    fixed: the same problem gives the same start.

    Parameters
    ----------
    rank : int
    project : callable, optional
        Applied to the result, such as `incoherence(radius)`.
    keep : float in (0, 1], optional
        For l1 problems: only this share of the measurements is used, those with the
        smallest |y|. Those of `Sensing` and `RankOne` are averaged, as for A_i with
        entries of unit variance.
    symmetric : bool, optional
        Make `Symmetric` factors from the largest eigenvalues. By default where the
        operator is `RankOne`, whose start is also freed of its identity part.
    tol : float, optional
        Accuracy of the singular vectors; a few hundred ulp by default.
    rng : int or numpy.random.Generator
        Draws the first block of the iteration.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((2, 2)), np.diag([3.0, 1.0]))
    >>> sg.spectral(1)(problem).full().round(12)
    array([[3., 0.],
           [0., 0.]])
    """

    def start(problem: Problem) -> Factors:
        r = checks.rank(rank, problem.shape)
        Z = problem.backproject() if keep is None else problem.backproject(keep)
        example, seeded = problem.example, np.random.default_rng(rng)
        xp = array_namespace(example)
        factors: Factors
        if _wants_symmetric(symmetric, problem):
            n = problem.shape[0]
            block = gaussian((n, min(r + 4, n)), seeded, example)
            values, U = top_eigh(
                lambda V: 0.5 * (_times(Z, V) + _adjoint_times(Z, V)),
                block,
                r,
                500 * epsilon(example) if tol is None else tol,
            )
            root = xp.sqrt(xp.where(values > 0, values, xp.zeros_like(values)))
            factors = Symmetric(U * (xp.astype(root, U.dtype) * fix_signs(U))[None, :])
        else:
            U, s, V = truncated_svd(
                lambda V: _times(Z, V),
                lambda U: _adjoint_times(Z, U),
                (problem.shape[0], problem.shape[1]),
                r,
                example,
                seeded,
                tol,
            )
            root = xp.astype(xp.sqrt(s), U.dtype)[None, :]
            factors = LowRank(U * root, V * root)
        return factors if project is None else project(factors)

    return start


def small_random(
    rank: int, scale: float, rng: Seed = None, *, symmetric: bool | None = None
) -> Init:
    """Independent Gaussian factors: L has entries scale · N(0, 1/n₁), R scale · N(0, 1/n₂).

    Parameters
    ----------
    rank : int
        May exceed the rank of X⋆.
    scale : float
        The monograph's α; ScaledGD(λ) wants it small.
    rng : int or numpy.random.Generator, optional
    symmetric : bool, optional
        Make `Symmetric` factors; by default where the operator is `RankOne`.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((3, 2)), np.ones((3, 2)))
    >>> sg.small_random(2, 1e-3, rng=0)(problem).L.shape
    (3, 2)
    """
    scale = checks.number("scale", scale, least=0, open_=True)

    def start(problem: Problem) -> Factors:
        r = checks.rank(rank, problem.shape)
        example, seeded = problem.example, np.random.default_rng(rng)

        def block(n: int) -> Array:
            return scale / math.sqrt(n) * gaussian((n, r), seeded, example)

        if _wants_symmetric(symmetric, problem):
            return Symmetric(block(problem.shape[0]))
        return LowRank(block(problem.shape[0]), block(problem.shape[1]))

    return start


def smallest_square(factors: Factors) -> float:
    """The smallest σ²_min of the blocks: what the switch of `mixed` compares with λ."""
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
    """ScaledGD(λ) from a small random start, until ScaledGD without damping can take over.

    It can once σ²_min of every block is at least λ and has settled: it changed by less
    than 10 % and the loss did not rise. Where it settles below λ, λ is halved, because a
    λ above σ_r(X⋆) would never let it through. If `max_iter` warm-up steps do not get there
    (the rank may exceed what the data hold) the iterate of least loss is returned.

    Parameters
    ----------
    rank : int
    damping : float
        λ to begin with.
    scale : float
        Of the small random start.
    rng : int or numpy.random.Generator, optional
    symmetric : bool, optional
        As in `small_random`.
    step : number or rule, optional
        Of the warm-up.
    max_iter : int
        Warm-up steps at most.

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
        state = problem.linearize(small_random(rank, scale, rng, symmetric=symmetric)(problem))
        best, lam = state, damping
        value, smallest = float(state.value), smallest_square(state.factors)
        for _ in range(max_iter):
            factors, memory = ScaledGD(step, lam)(problem, state)
            state = problem.linearize(factors, state.t + 1, memory)
            last_value, value = value, float(state.value)
            last_smallest, smallest = smallest, smallest_square(state.factors)
            if not math.isfinite(value):
                break
            if value <= float(best.value):
                best = state
            if value <= last_value and abs(smallest - last_smallest) < 0.1 * smallest:
                if smallest >= lam:
                    return state.factors
                lam /= 2
        return best.factors

    return start
