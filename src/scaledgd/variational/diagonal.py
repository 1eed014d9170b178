"""A sweep that keeps only the diagonals of the covariances, for large tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..factors import Bordered
from ..kernels import UnsureRows
from ..namespaces import array_namespace
from ..problems import View
from .posterior import Left, Posterior, Rows, positive, swapped

Array = Any


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
    update, noise = None, posterior.noise
    for k in (0, 1):
        update = None
        if not F.blocks[k].shape[1]:
            continue  # offsets of one side only, and no factors yet
        if view.plain:
            update = view.block_update(_unsure_rows(F, posterior, k), at=F)
        if update is None:
            ridge = posterior.ridge(F, k, view.coverage())
            solution = view.block_solution(k, at=F, ridge=ridge)
            F = F.moved(k, -solution.step)
            B, variance, total = F.blocks[k], noise * solution.diagonal, noise * solution.total
            prior = array_namespace(B).mean(B * B + variance, axis=0)
        else:
            B, variance, total, moments, _ = update
            F, prior = F.with_blocks(swapped(F.blocks, k, B)), moments / B.shape[0]
        posterior = replace(
            posterior,
            prior=swapped(posterior.prior, k, positive(prior)),
            variance=swapped(posterior.variance, k, variance),
            total=swapped(posterior.total, k, total),
            covariance=None,
        )
    return F, posterior, None if update is None else Left.after(update.sums, noise, F.L)


def _unsure_rows(F: Rows, posterior: Posterior, k: int) -> UnsureRows:
    """The systems of the rows of a block whose partner is uncertain."""
    r, variance, own, given = F.rank, posterior.variance[1 - k], None, None
    if isinstance(F, Bordered):
        own = (F.u, F.v)[k]
    if own is not None:
        columns = [F.blocks[1 - k][:, r:], variance[:, r:]]
        given = array_namespace(F.L).concat(columns, axis=1)
    penalty, noise = posterior.penalty(k), posterior.noise
    return UnsureRows(F.partner(k), variance[:, :r], penalty, noise, k, own, given)


def unsure_factors(F: Rows, posterior: Posterior) -> tuple[Array, Array]:
    """Return A and B such that A Bᵀ are the posterior variances of the entries of X."""
    xp, r = array_namespace(F.L), F.rank
    (CL, CR), L, R = posterior.variance, F.L[:, :r], F.R[:, :r]
    left, right = [L * L + CL[:, :r], CL[:, :r]], [CR[:, :r], R * R]
    for k in (0, 1):
        border = F.partner(k)[:, r:]
        if border.shape[1]:
            sides = (posterior.variance[k][:, r:], border * border)
            left.append(sides[k])
            right.append(sides[1 - k])
    return xp.concat(left, axis=1), xp.concat(right, axis=1)
