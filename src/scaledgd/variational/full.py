"""A sweep that keeps the full covariances of all rows, for tables that are not large.

With the mode matrices A = [L, b, u] and B = [R, v, c] an entry of X is a · b, the product of two
rows. Some of their columns are given (u and v) and have no covariance. A row depends on the rows of
the other side only through the sum of their second moments E[b bᵀ] over its entries.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ..ambient import Sparse
from ..kernels import Sums, WholeRows, WholeUpdate
from ..linalg import identity, invert_systems
from ..namespaces import array_namespace
from ..problems import View
from .posterior import Left, Posterior, Rows, positive, products, some, swapped
from .triangles import taken, triangle

Array = Any
Some = TypeVar("Some", bound=Rows)


def sweep(view: View, F: Rows, posterior: Posterior) -> tuple[Rows, Posterior, Left | None]:
    """Return factors and posterior after solving both blocks in turn.

    Also return the remaining squares, if kernels have summed them on the way.

    Parameters
    ----------
    view : View
        Least squares over entries, weighted by the posterior.
    F : LowRank or Bordered
    posterior : Posterior
    """
    sums, old = None, posterior.noise
    for k in (0, 1):
        sums = None
        if F.blocks[k].shape[1]:
            F, posterior, sums = _updated(view, F, posterior, k)
    left = None if sums is None or not view.plain else Left.after(sums, float(old), F.L)
    return F, posterior, left


def column_gains(view: View, F: Rows, posterior: Posterior, ridge: Array) -> Array | None:
    """Return Σ w (y² − e² − s) over the entries of every column, right after a sweep.

    With the system G b = t of a column, ridge λ included, and its covariance σ² G⁻¹, that is
    bᵀt + Σ λ E[b²] − q σ²: nothing of the size of the data is formed.

    Parameters
    ----------
    view : View
        As for the sweep.
    F : LowRank or Bordered
    posterior : Posterior
        Its noise is that of the sweep.
    ridge : array of shape (q,)
        The penalty of the second block, in the sweep.
    """
    xp, B, width = array_namespace(F.L), F.blocks[1], F.width
    if not 0 < B.shape[1] == width:
        return None
    target = products(view.pulled(), 1, F.modes[0])
    known = target * B + ridge * (B * B + posterior.variance[1])
    return xp.sum(known, axis=1) - width * posterior.noise


def solved(view: View, F: Some, posterior: Posterior, k: int) -> tuple[Some, Posterior]:
    """Return factors and posterior with the rows of block k solved.

    Parameters
    ----------
    view : View
    F : LowRank or Bordered
    posterior : Posterior
    k : int
    """
    F, posterior, _ = _updated(view, F, posterior, k)
    return F, posterior


def _updated(
    view: View, F: Some, posterior: Posterior, k: int
) -> tuple[Some, Posterior, Sums | None]:
    """The same, with sums over the entries if a kernel has computed them."""
    xp = array_namespace(F.L)
    update = _by_kernel(view, F, posterior, k)
    if update is None:
        B, covariance = _by_products(view, F, posterior, k)
        total = xp.sum(covariance, axis=0)
    else:
        B, covariance, total, _ = update
    variance = xp.linalg.diagonal(covariance)
    known = posterior.covariance
    if known is None:
        known = tuple(0 * C[:, :, None] * C[:, None, :] for C in F.blocks)
    blocks = (B, F.blocks[1]) if k == 0 else (F.blocks[0], B)
    prior = positive(xp.mean(B * B + variance, axis=0))
    posterior = replace(
        posterior,
        prior=swapped(posterior.prior, k, prior),
        variance=swapped(posterior.variance, k, variance),
        total=swapped(posterior.total, k, total),
        covariance=swapped(known, k, covariance),
    )
    moved: Any = F.with_blocks(blocks)
    return moved, posterior, None if update is None else update.sums


def _by_kernel(view: View, F: Rows, posterior: Posterior, k: int) -> WholeUpdate | None:
    """The rows of block k, by one pass over the entries."""
    coverage = view.coverage()
    if not isinstance(coverage, Sparse) or not coverage.pattern.compiled:
        return None
    pulled = view.pulled()
    assert isinstance(pulled, Sparse)
    C = None if posterior.covariance is None else posterior.covariance[1 - k]
    known, free, noise, modes = _free(F, 1 - k), _free(F, k), float(posterior.noise), F.modes
    system = WholeRows(modes[k], modes[1 - k], C, known, free, posterior.penalty(k), noise, k)
    return coverage.pattern.whole_rows(system, coverage.weights, pulled.weights)


def _by_products(view: View, F: Rows, posterior: Posterior, k: int) -> tuple[Array, Array]:
    """The same in array-API calls: the rows of block k, and their covariances."""
    noise = posterior.noise
    other, width = F.modes[1 - k], F.width
    free = _free(F, k)
    given = [c for c in range(width) if c not in free]
    moments = _squares(other) + _covariances(F, posterior, 1 - k)
    G = triangle(width).unpacked(products(view.coverage(), k, moments))
    target = products(view.pulled(), k, other)
    if given:
        known = some(F.modes[k], given, 1)
        target = target - (some(G, given, 2) @ known[:, :, None])[:, :, 0]
        G, target = some(some(G, free, 1), free, 2), some(target, free, 1)
    penalty = posterior.penalty(k)
    inverses = invert_systems(G + penalty * identity(len(free), like=G))
    return (inverses @ target[:, :, None])[:, :, 0], noise * inverses


def unsure_factors(F: Rows, posterior: Posterior) -> tuple[Array, Array]:
    """Return A and B such that A Bᵀ are the posterior variances of the entries of X."""
    xp = array_namespace(F.L)
    C, D = (_covariances(F, posterior, k) for k in (0, 1))
    weight = triangle(F.width).counts(F.modes[0])
    left = xp.concat([C + _squares(F.modes[0]), C], axis=1) * xp.concat([weight, weight])
    return left, xp.concat([D, _squares(F.modes[1])], axis=1)


def _squares(M: Array) -> Array:
    """The upper triangles of a aᵀ for the rows a of a matrix, as rows."""
    pairs = triangle(M.shape[1])
    return taken(M, pairs.rows) * taken(M, pairs.columns)


def _covariances(F: Rows, posterior: Posterior, k: int) -> Array:
    """The upper triangles of the covariances of the rows of mode matrix k, as rows.

    Given columns have none.
    """
    M, free = F.modes[k], _free(F, k)
    xp, width, g = array_namespace(M), M.shape[1], len(free)
    if posterior.covariance is None:
        return 0 * _squares(M)
    flat = xp.reshape(posterior.covariance[k], (M.shape[0], g * g))
    place = np.full((width, width), g * g)  # a column of zeros
    place[np.ix_(free, free)] = np.arange(g * g).reshape(g, g)
    if g < width:
        flat = xp.concat([flat, 0 * M[:, :1]], axis=1)
    pairs = triangle(width)
    return taken(flat, place[pairs.rows, pairs.columns])


def _free(F: Rows, k: int) -> list[int]:
    """The columns of mode matrix k that are estimated."""
    r, width = F.rank, F.width
    if k == 0:
        return list(range(F.blocks[0].shape[1]))
    last = [width - 1] if F.blocks[1].shape[1] > r else []
    return [*range(r), *last]
