"""A sweep that keeps the whole covariances of all rows: for tables that are not large.

With the mode matrices A = [L, b, u] and B = [R, v, c] an entry of X is a · b, the product of two
rows. Some of their columns are given (u and v) and have no covariance. What a row needs to know
about the rows on the other side is the sum of their second moments E[b bᵀ] over its entries.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
from array_api_compat import array_namespace, device

from ..linalg import identity, invert_systems
from ..problems import View
from .posterior import Left, Posterior, Rows, positive, products, swapped

Array = Any
Some = TypeVar("Some", bound=Rows)


def sweep(view: View, F: Rows, posterior: Posterior) -> tuple[Rows, Posterior, Left | None]:
    """Return factors and posterior after both blocks were solved for in turn.

    What is left after it is not added up on the way.

    Parameters
    ----------
    view : View
        Least squares over entries, weighted as the posterior says.
    F : LowRank or Bordered
    posterior : Posterior
    """
    for k in (0, 1):
        if F.blocks[k].shape[1]:
            F, posterior = solved(view, F, posterior, k)
    return F, posterior, None


def solved(view: View, F: Some, posterior: Posterior, k: int) -> tuple[Some, Posterior]:
    """Return factors and posterior with the rows of block k solved for.

    Parameters
    ----------
    view : View
    F : LowRank or Bordered
    posterior : Posterior
    k : int
    """
    xp, noise = array_namespace(F.L), posterior.noise
    other, width = F.modes[1 - k], F.modes[0].shape[1]
    packed, unpacked = _triangle(width)
    free = _free(F, k)
    given = [c for c in range(width) if c not in free]
    moments = _packed(second_moments(F, posterior, 1 - k), packed)
    G = products(view.coverage(), k, moments)
    G = xp.reshape(xp.take(G, _index(unpacked, G), axis=1), (-1, width, width))
    target = products(view.pulled(), k, other)
    if given:
        known = F.modes[k][:, given]
        target = target - (G[:, :, given] @ known[:, :, None])[:, :, 0]
    G, target = G[:, free, :][:, :, free], target[:, free]
    penalty = posterior.penalty(k)
    inverses = invert_systems(G + penalty * identity(len(free), like=G))
    B = (inverses @ target[:, :, None])[:, :, 0]
    covariance = noise * inverses
    variance = xp.linalg.diagonal(covariance)
    known = posterior.covariance
    if known is None:
        known = tuple(xp.zeros((*C.shape, 1), dtype=C.dtype) * C[:, None, :] for C in F.blocks)
    blocks = (B, F.blocks[1]) if k == 0 else (F.blocks[0], B)
    prior = positive(xp.mean(B * B + variance, axis=0))
    posterior = replace(
        posterior,
        prior=swapped(posterior.prior, k, prior),
        variance=swapped(posterior.variance, k, variance),
        total=swapped(posterior.total, k, xp.sum(covariance, axis=0)),
        covariance=swapped(known, k, covariance),
    )
    moved: Any = F.with_blocks(blocks)
    return moved, posterior


def second_moments(F: Rows, posterior: Posterior, k: int) -> Array:
    """Return E[a aᵀ] of the rows of mode matrix k, an array of shape (n_k, width, width)."""
    M = F.modes[k]
    return M[:, :, None] * M[:, None, :] + covariances(F, posterior, k)


def covariances(F: Rows, posterior: Posterior, k: int) -> Array:
    """Return the covariances of the rows of mode matrix k; given columns have none."""
    M, free = F.modes[k], _free(F, k)
    xp, width = array_namespace(M), M.shape[1]
    if posterior.covariance is None:
        return 0 * M[:, :, None] * M[:, None, :]
    C = posterior.covariance[k]
    if len(free) == width:
        return C
    place = np.zeros((len(free), width))
    place[np.arange(len(free)), free] = 1.0
    P = xp.asarray(place, dtype=M.dtype, device=device(M))
    return P.T @ C @ P


def unsure_factors(F: Rows, posterior: Posterior) -> tuple[Array, Array]:
    """Return A and B such that A Bᵀ are the posterior variances of the entries of X."""
    packed, _ = _triangle(F.modes[0].shape[1])
    xp = array_namespace(F.L)
    C, D = (covariances(F, posterior, k) for k in (0, 1))
    left, right = ([_packed(x, packed) for x in pair] for pair in (
        (C + _outer(F.modes[0]), C), (D, _outer(F.modes[1]))
    ))  # fmt: skip
    weight = _index_weights(packed, F.modes[0])
    return xp.concat(left, axis=1) * xp.concat([weight, weight]), xp.concat(right, axis=1)


def _outer(M: Array) -> Array:
    return M[:, :, None] * M[:, None, :]


def _free(F: Rows, k: int) -> list[int]:
    """The columns of mode matrix k that are estimated."""
    r, width = F.rank, F.modes[0].shape[1]
    if k == 0:
        return list(range(F.blocks[0].shape[1]))
    last = [width - 1] if F.blocks[1].shape[1] > r else []
    return [*range(r), *last]


@cache
def _triangle(width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions of the upper triangle in a flat square, and of the square in the triangle."""
    place = np.zeros((width, width), dtype=int)
    rows, columns = np.triu_indices(width)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    return tuple((rows * width + columns).tolist()), tuple(place.ravel().tolist())


def _packed(S: Array, packed: tuple[int, ...]) -> Array:
    """Symmetric matrices as rows: their upper triangles."""
    xp = array_namespace(S)
    flat = xp.reshape(S, (S.shape[0], -1))
    return xp.take(flat, _index(packed, S), axis=1)


def _index(positions: tuple[int, ...], like: Array) -> Array:
    return array_namespace(like).asarray(np.asarray(positions), device=device(like))


def _index_weights(packed: tuple[int, ...], like: Array) -> Array:
    """How often every number of a triangle stands in the square."""
    width = like.shape[1]
    twice = np.asarray([1.0 if p % width == p // width else 2.0 for p in packed])
    return array_namespace(like).asarray(twice, dtype=like.dtype, device=device(like))
