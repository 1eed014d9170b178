"""A sweep that keeps the whole covariances of all rows: for tables that are not large.

With the mode matrices A = [L, b, u] and B = [R, v, c] an entry of X is a · b, the product of two
rows. Some of their columns are given (u and v) and have no covariance. What a row needs to know
about the rows on the other side is the sum of their second moments E[b bᵀ] over its entries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from array_api_compat import array_namespace, device

from ..linalg import identity, invert_systems
from ..problems import View
from .posterior import Posterior, Rows, positive, products, some, swapped
from .triangles import triangle

Array = Any
Some = TypeVar("Some", bound=Rows)


def sweep(view: View, F: Rows, posterior: Posterior) -> tuple[Rows, Posterior]:
    """Return factors and posterior after both blocks were solved for in turn.

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
    return F, posterior


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
    pairs, free = triangle(width), _free(F, k)
    given = [c for c in range(width) if c not in free]
    moments = pairs.packed(second_moments(F, posterior, 1 - k))
    G = pairs.unpacked(products(view.coverage(), k, moments))
    target = products(view.pulled(), k, other)
    if given:
        known = some(F.modes[k], given, 1)
        target = target - (some(G, given, 2) @ known[:, :, None])[:, :, 0]
        G, target = some(some(G, free, 1), free, 2), some(target, free, 1)
    penalty = posterior.penalty(k)
    inverses = invert_systems(G + penalty * identity(len(free), like=G))
    B = (inverses @ target[:, :, None])[:, :, 0]
    covariance = noise * inverses
    variance = xp.linalg.diagonal(covariance)
    known = posterior.covariance
    if known is None:
        known = tuple(_outer(0 * B) for B in F.blocks)
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
    return _outer(M) + covariances(F, posterior, k)


def covariances(F: Rows, posterior: Posterior, k: int) -> Array:
    """Return the covariances of the rows of mode matrix k; given columns have none."""
    M, free = F.modes[k], _free(F, k)
    xp, width = array_namespace(M), M.shape[1]
    if posterior.covariance is None:
        return _outer(0 * M)
    C = posterior.covariance[k]
    if len(free) == width:
        return C
    place = np.zeros((len(free), width))
    place[np.arange(len(free)), free] = 1.0
    P = xp.asarray(place, dtype=M.dtype, device=device(M))
    return P.T @ C @ P


def unsure_factors(F: Rows, posterior: Posterior) -> tuple[Array, Array]:
    """Return A and B such that A Bᵀ are the posterior variances of the entries of X."""
    xp, pairs = array_namespace(F.L), triangle(F.modes[0].shape[1])
    C, D = (covariances(F, posterior, k) for k in (0, 1))
    left = [pairs.packed(x) for x in (C + _outer(F.modes[0]), C)]
    right = [pairs.packed(x) for x in (D, _outer(F.modes[1]))]
    weight = pairs.counts(F.modes[0])
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
