"""A sweep that keeps the diagonals of the covariances: for large tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from array_api_compat import array_namespace

from ..problems import View
from .posterior import Posterior, Rows, positive, swapped

Array = Any


def sweep(view: View, F: Rows, posterior: Posterior) -> tuple[Rows, Posterior]:
    """Return factors and posterior after both blocks were solved for in turn.

    Parameters
    ----------
    view : View
        Least squares over entries, weighted as the posterior says.
    F : LowRank or Bordered
    posterior : Posterior
    """
    coverage = view.coverage()
    for k in (0, 1):
        if not F.blocks[k].shape[1]:
            continue  # offsets of one side, and no factors yet
        solution = view.block_solution(k, at=F, ridge=posterior.ridge(F, k, coverage))
        F = F.moved(k, -solution.step)
        B, variance = F.blocks[k], posterior.noise * solution.diagonal
        prior = positive(array_namespace(B).mean(B * B + variance, axis=0))
        posterior = replace(
            posterior,
            prior=swapped(posterior.prior, k, prior),
            variance=swapped(posterior.variance, k, variance),
            total=swapped(posterior.total, k, posterior.noise * solution.total),
            covariance=None,
        )
    return F, posterior


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
