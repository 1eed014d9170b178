"""Starts: functions of the problem that return the first factors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from . import checks
from .ambient import Ambient, Dense
from .factors import Factors, LowRank, Symmetric, Tucker
from .linalg import (
    adjoint,
    fix_signs,
    gaussian,
    identity,
    mode_product,
    sketched_svd,
    top_eigh,
    truncated_svd,
)
from .namespaces import array_namespace
from .problems import Problem
from .solve import Init
from .steps import Projection, check_projection

Array = Any
Seed = int | np.random.Generator | None


def incoherence(radius: float) -> Callable[[Any], Any]:
    """Return the scaled projection P_B, which shortens rows to √n₁ ‖L_i Rᴴ‖ ≤ radius.

    It does the same for R. It is the projection in ScaledGD's norm, so it commutes with
    reparameterisation. The radius must be at least √n times the largest row norm of X⋆; C √(μr) σ₁
    with C ≥ 1 is large enough.

    Parameters
    ----------
    radius : float

    Returns
    -------
    callable
        A function of factors that returns factors.

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


def _check(tol: float | None, project: Any = None) -> None:
    if tol is not None:
        checks.number("tol", tol, least=0)
    check_projection(project)


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
    rounds: int | None = None,
    rng: Seed = 0,
) -> Init:
    """Return the start from the best rank-r approximation of the backprojection A*(y).

    Both factors get the square roots of the singular values. It needs only products with the
    backprojection. The first block is seeded and signs are fixed, so the same problem gives the
    same start.

    Parameters
    ----------
    rank : int
    project : callable, optional
        Applied to the result, such as `incoherence(radius)`.
    keep : float in (0, 1], optional
        For l1 problems: use only this share of the measurements, those with the smallest |y|.
        Measurements of `Sensing` and `RankOne` are averaged, as for A_i with entries of unit
        variance.
    symmetric : bool, optional
        Make `Symmetric` factors from the largest eigenvalues. This is the default if the operator
        is `RankOne`; then the identity part is removed as well.
    tol : float, optional
        Accuracy of the singular vectors; a few hundred ulp by default.
    rounds : int, optional
        Use this many rounds of a randomised subspace iteration, whatever the accuracy.
    rng : int or numpy.random.Generator
        Draws the first block of the iteration.

    Returns
    -------
    start
        A function of the problem that returns factors.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((2, 2)), np.diag([3.0, 1.0]))
    >>> sg.spectral(1)(problem).full().round(12)
    array([[3., 0.],
           [0., 0.]])
    """
    _check(tol, project)

    def start(problem: Problem) -> Factors:
        if len(problem.shape) != 2:
            raise ValueError(
                f"spectral is for matrices, not for shape {problem.shape}; use hosvd or "
                "diagonal_deleted"
            )
        r = checks.rank(rank, problem.shape)
        Z = problem.backproject() if keep is None else problem.backproject(keep)
        example, seeded = problem.example, np.random.default_rng(rng)
        xp = array_namespace(example)
        factors: Factors
        if _wants_symmetric(symmetric, problem):
            values, U = _top(
                lambda V: 0.5 * (Z.times(V) + Z.adjoint_times(V)),
                problem.shape[0],
                r,
                example,
                seeded,
                tol,
            )
            root = xp.sqrt(xp.where(values > 0, values, xp.zeros_like(values)))
            factors = Symmetric(U * xp.astype(root, U.dtype)[None, :])
        else:
            if rounds is None:
                U, s, V = truncated_svd(
                    Z.times, Z.adjoint_times, problem.shape, r, example, seeded, tol
                )
            else:
                U, s, V = sketched_svd(
                    Z.times, Z.adjoint_times, problem.shape, r, example, seeded, rounds
                )
            root = xp.astype(xp.sqrt(s), U.dtype)[None, :]
            factors = LowRank(U * root, V * root)
        return factors if project is None else project(factors)

    return start


def _top(
    apply: Callable[[Array], Array],
    n: int,
    rank: int,
    example: Array,
    rng: np.random.Generator,
    tol: float | None,
) -> tuple[Array, Array]:
    """Return the largest eigenvalues of a Hermitian operator, and eigenvectors with fixed signs."""
    block = gaussian((n, min(rank + 4, n)), rng, example)
    values, U = top_eigh(apply, block, rank, tol)
    return values, U * fix_signs(U)[None, :]


def _gram_times(M: Ambient, drop: Array, V: Array) -> Array:
    """Return (M Mᴴ − diag(drop)) V."""
    return M.gram_times(V) - drop * V


def _mode_subspaces(
    Z: Ambient,
    ranks: tuple[int, ...],
    example: Array,
    diagonal: float,
    sequential: bool,
    tol: float | None,
    rng: Seed,
) -> tuple[Array, ...]:
    """Return for every mode the top eigenvectors of the Gram of its unfolding.

    The diagonal is multiplied by `diagonal`. A mode that is not compressed keeps the identity. With
    `sequential`, each mode is compressed before the next is decomposed.
    """
    seeded = np.random.default_rng(rng)
    modes: list[Array] = []
    for k, (n, r) in enumerate(zip(Z.shape, ranks, strict=True)):
        if r == n:
            modes.append(identity(n, like=example))
            continue
        M = Z.unfold(k)
        if diagonal == 1:
            svd = truncated_svd(M.times, M.adjoint_times, M.shape, r, example, seeded, tol)
            modes.append(svd[0])
        else:
            squares, xp = Z.squares(k), array_namespace(example)
            # a slice without entries is an eigenvector of its own, and others may be negative
            squares = xp.where(squares > 0, squares, xp.max(squares))
            drop = (1 - diagonal) * squares[:, None]
            modes.append(_top(partial(_gram_times, M, drop), n, r, example, seeded, tol)[1])
        if sequential:
            if not isinstance(Z, Dense):
                raise ValueError("sequential truncation makes sparse data dense; leave it out")
            Z = Dense(mode_product(Z.array, adjoint(modes[k]), k))
    return tuple(modes)


def hosvd(
    ranks: int | tuple[int, ...],
    *,
    sequential: bool = False,
    tol: float | None = None,
    rng: Seed = 0,
) -> Init:
    """Return the start from the truncated higher-order SVD of the backprojection.

    Parameters
    ----------
    ranks : int or tuple of int
        One per mode. A rank equal to the size of its mode leaves the mode uncompressed.
    sequential : bool
        Truncate each mode before the next is decomposed: cheaper, and as accurate up to a
        factor √d. Dense data only.
    tol : float, optional
        As in `spectral`.
    rng : int or numpy.random.Generator
        As in `spectral`.

    Returns
    -------
    start
        A function of the problem that returns factors.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> Y = np.ones((4, 3, 2))
    >>> X = sg.hosvd((1, 1, 1))(sg.Observed(sg.Full((4, 3, 2)), Y))
    >>> bool(np.allclose(X.full(), Y))
    True
    """
    _check(tol)

    def start(problem: Problem) -> Factors:
        r = checks.ranks(ranks, problem.shape)
        Z = problem.backproject()
        modes = _mode_subspaces(Z, r, problem.example, 1.0, sequential, tol, rng)
        return Tucker(modes, Z.contract(modes))

    return start


def diagonal_deleted(
    ranks: int | tuple[int, ...],
    project: Projection | None = None,
    *,
    variant: str = "text",
    tol: float | None = None,
    rng: Seed = 0,
) -> Init:
    """Return the start of tensor completion: subspaces from Grams without their diagonal.

    If few entries are observed, the diagonal of M_k M_kᴴ is dominated by sampling noise.

    Parameters
    ----------
    ranks : int or tuple of int
    project : callable, optional
        Applied to the result, such as `incoherence(radius)`.
    variant : {"text", "unbiased"}
        Delete the diagonal, as the monograph says, or multiply it by p = 1/scale of the
        problem, which makes the Gram unbiased, as its authors' code does.
    tol : float, optional
        As in `spectral`.
    rng : int or numpy.random.Generator
        As in `spectral`.

    Returns
    -------
    start
        A function of the problem that returns factors.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.tensor_completion((30, 25, 20), 2, kappa=2, p=0.3, rng=0)
    >>> start = sg.diagonal_deleted((2, 2, 2))(problem)
    >>> bool(sg.metrics.relative_error(start, truth) < 0.5)
    True
    """
    if variant not in ("text", "unbiased"):
        raise ValueError(f'variant must be "text" or "unbiased", not {variant!r}')
    _check(tol, project)

    def start(problem: Problem) -> Factors:
        r = checks.ranks(ranks, problem.shape)
        Z = problem.backproject()
        diagonal = 0.0 if variant == "text" else problem.sampling
        modes = _mode_subspaces(Z, r, problem.example, diagonal, False, tol, rng)
        factors = Tucker(modes, Z.contract(modes))
        return factors if project is None else project(factors)

    return start


def small_random(
    rank: int | tuple[int, ...], scale: float, rng: Seed = None, *, symmetric: bool | None = None
) -> Init:
    """Return a random start: L has entries scale · N(0, 1/n₁), R scale · N(0, 1/n₂).

    For tensors, or if ranks are a tuple, it makes Tucker factors with entries N(0, 1/n_k), which
    are nearly orthonormal, and a core of norm about `scale`.

    Parameters
    ----------
    rank : int, or tuple of multilinear ranks
        May exceed the rank of X⋆.
    scale : float
        The monograph's α; small for ScaledGD(λ).
    rng : int or numpy.random.Generator, optional
    symmetric : bool, optional
        Make `Symmetric` factors; the default if the operator is `RankOne`.

    Returns
    -------
    start
        A function of the problem that returns factors.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem = sg.Observed(sg.Full((3, 2)), np.ones((3, 2)))
    >>> sg.small_random(2, 1e-3, rng=0)(problem).L.shape
    (3, 2)
    """
    scale = checks.number("scale", scale, least=0, open_=True)

    def start(problem: Problem) -> Factors:
        example, seeded = problem.example, np.random.default_rng(rng)

        def block(n: int, r: int) -> Array:
            return gaussian((n, r), seeded, example) / math.sqrt(n)

        if isinstance(rank, tuple) or len(problem.shape) > 2:
            ranks = checks.ranks(rank, problem.shape)
            modes = tuple(
                identity(n, like=example) if r == n else block(n, r)
                for n, r in zip(problem.shape, ranks, strict=True)
            )
            size = scale / math.sqrt(math.prod(ranks))
            return Tucker(modes, size * gaussian(ranks, seeded, example))
        r = checks.rank(rank, problem.shape)
        if _wants_symmetric(symmetric, problem):
            return Symmetric(scale * block(problem.shape[0], r))
        return LowRank(scale * block(problem.shape[0], r), scale * block(problem.shape[1], r))

    return start
