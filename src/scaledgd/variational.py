"""Alternating least squares with a ridge that the data choose."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from array_api_compat import array_namespace, device

from .ambient import Ambient
from .factors import Bordered, Factors, LowRank
from .linalg import adjoint, gram
from .solve import Memory, Problem, State

Array = Any
Pair = tuple[Array, Array]

FLOOR = 1e-26
"""Of the mean square of the data: noise below this is rounding."""

HOLD = 1e30
"""A ridge that holds a column at zero, and is still a number to calculate with."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is believed about the rows of two blocks, [L, b] and [R, c].

    Attributes
    ----------
    noise : float
        The variance of the noise.
    prior : pair of arrays of shape (q_k,)
        The prior variance of every column of a block.
    variance : pair of arrays of shape (n_k, q_k)
        How uncertain every number in a block is.
    total : pair of arrays of shape (q_k, q_k)
        The covariances of all rows of a block, added up.
    """

    noise: float
    prior: Pair
    variance: Pair
    total: Pair

    @classmethod
    def first(cls, F: Any, noise: float) -> Posterior:
        """Nothing but the factors themselves to go by."""
        xp = array_namespace(F.L)
        squares = (xp.mean(B * B, axis=0) for B in F.blocks)
        # a column of zeros (offsets, at first) may be as large as the data
        prior = tuple(xp.where(v > 0, v, xp.zeros_like(v) + noise) for v in squares)
        nothing = (0 * gram(F.L), 0 * gram(F.R))
        return cls(noise, prior, (xp.zeros_like(F.L), xp.zeros_like(F.R)), nothing)

    def ridge(self, F: Any, k: int, coverage: Ambient) -> Array:
        """What stands beside the Gram of a row of block k, as an array of its shape.

        The prior; and, because the other block is not exactly known, its uncertainty summed
        over the entries of the row.
        """
        xp, r = array_namespace(F.L), F.rank
        unsure = _products(coverage, k, self.variance[1 - k][:, :r])
        border = xp.zeros_like(F.blocks[k][:, r:])
        prior = self.noise / self.prior[k]
        prior = xp.where(prior < HOLD, prior, xp.zeros_like(prior) + HOLD)
        return prior[None, :] + xp.concat([unsure, border], axis=1)

    def learnt(self, F: Any, k: int, diagonals: Array, total: Array) -> Posterior:
        """The same after block k was solved for; the inverses of its systems are given."""
        B, variance = F.blocks[k], self.noise * diagonals
        prior = _positive(array_namespace(B).mean(B * B + variance, axis=0))
        return Posterior(
            self.noise,
            _swapped(self.prior, k, prior),
            _swapped(self.variance, k, variance),
            _swapped(self.total, k, self.noise * total),
        )

    def with_noise(self, F: Any, squares: float, coverage: Ambient, floor: float) -> Posterior:
        """The noise that the residual and the uncertainty of both blocks show together."""
        xp, r = array_namespace(F.L), F.rank
        (CL, CR), L, R = self.variance, F.L[:, :r], F.R[:, :r]
        both = _products(coverage, 0, xp.concat([R * R + CR[:, :r], CR[:, :r]], axis=1))
        unsure = both[:, :r] * CL[:, :r] + both[:, r:] * L * L
        total = squares + float(xp.sum(unsure))
        for k in (0, 1):
            border = F.partner(k)[:, r:]
            spread = _products(coverage, k, border * border) * self.variance[k][:, r:]
            total += float(xp.sum(spread)) if border.shape[1] else 0.0
        seen = float(xp.sum(_products(coverage, 0, xp.ones_like(F.modes[1][:, :1]))))
        return replace(self, noise=max(total / max(seen, 1.0), floor))

    def balanced(self, F: Any) -> tuple[Any, Posterior]:
        """Other factors of the same X: both second moments diagonal, and equal."""
        xp, r = array_namespace(F.L), F.rank
        if not r:
            return F, self
        blocks, n = [F.L[:, :r], F.R[:, :r]], F.shape
        moments = [
            (gram(B) + S[:r, :r]) / size for B, S, size in zip(blocks, self.total, n, strict=True)
        ]
        values, Q = xp.linalg.eigh(moments[0])
        values = xp.where(values > 1e-28 * values[-1], values, 1e-28 * values[-1] + 0 * values)
        values = _positive(values)
        root = Q * xp.sqrt(values)[None, :]
        U, s, _ = xp.linalg.svd(adjoint(root) @ moments[1] @ root)
        s = _positive(xp.where(s > 1e-40 * s[0], s, 1e-40 * s[0] + 0 * s))
        quarter = xp.sqrt(xp.sqrt(s))
        T = (Q / xp.sqrt(values)[None, :]) @ U * quarter[None, :]
        inverse = adjoint(U / quarter[None, :]) @ adjoint(root)
        turned = (blocks[0] @ T, blocks[1] @ adjoint(inverse))
        turned = tuple(
            xp.concat([B, whole[:, r:]], axis=1) for B, whole in zip(turned, F.blocks, strict=True)
        )
        prior = tuple(xp.concat([xp.sqrt(s), v[r:]]) for v in self.prior)
        # of a covariance only the diagonal is kept, so it is turned as if it were one
        variance = tuple(
            xp.concat([C[:, :r] @ (M * M), C[:, r:]], axis=1)
            for C, M in zip(self.variance, (T, adjoint(inverse)), strict=True)
        )
        # of the sum nothing is used before it is computed afresh
        fresh = Posterior(self.noise, prior, variance, self.total)
        return F.with_blocks(turned), fresh

    def kept(self, columns: tuple[Array, Array]) -> Posterior:
        """Of some columns of the blocks only."""
        return Posterior(
            self.noise,
            tuple(v[c] for v, c in zip(self.prior, columns, strict=True)),
            tuple(C[:, c] for C, c in zip(self.variance, columns, strict=True)),
            tuple(S[c, :][:, c] for S, c in zip(self.total, columns, strict=True)),
        )


def _products(coverage: Ambient, k: int, M: Array) -> Array:
    """Sums over the entries of every row (k = 0) or column (k = 1)."""
    if not M.shape[1]:
        xp = array_namespace(M)
        return xp.zeros((coverage.shape[k], 0), dtype=M.dtype, device=device(M))
    return coverage.times(M) if k == 0 else coverage.adjoint_times(M)


def _positive(x: Array) -> Array:
    xp = array_namespace(x)
    tiny = float(xp.finfo(x.dtype).smallest_normal)
    return xp.where(x > tiny, x, xp.zeros_like(x) + tiny)


def _swapped(pair: Pair, k: int, new: Array) -> Pair:
    return (new, pair[1]) if k == 0 else (pair[0], new)


@dataclass(frozen=True, eq=False)
class Variational:
    """`Alternating`, with a ridge that the data choose: for noise, and rows with few entries.

    Rows of L and R have normal priors, one variance per column. The variances, the level of
    the noise and how well each row is known are estimated on the way (variational Bayes
    with automatic relevance determination; the covariance of a row enters by its diagonal).
    Rows with few observations are held back, columns that noise explains shrink away, and as
    the residual vanishes so does the ridge. It must begin near a fit: far from one
    everything looks like noise.

    What it learnt is ``state.memory["posterior"]``, a `Posterior`.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_completion(90, 80, rank=2, kappa=3, p=0.5, rng=0)
    >>> noise = 1e-3 * np.random.default_rng(0).standard_normal(problem.y.shape)
    >>> noisy = sg.Observed(problem.operator, problem.y + noise)
    >>> start = sg.solve(noisy, sg.spectral(4), sg.Alternating(), max_iter=10).factors
    >>> result = sg.solve(noisy, start, sg.Variational(), max_iter=30)
    >>> np.linalg.svd(result.factors.full())[1][1:4].round(2)
    array([0.33, 0.  , 0.  ])
    """

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Memory]:
        F: Any = state.factors
        if not isinstance(F, LowRank | Bordered) or state.coverage is None:
            raise TypeError("Variational is for LowRank and Bordered factors of observed entries")
        coverage = state.coverage()
        posterior = current(state)
        for k in (0, 1):
            if not F.blocks[k].shape[1]:
                continue  # offsets of one side, and no factors yet
            ridge = posterior.ridge(F, k, coverage)
            step, *inverses = state.block_step(k, ridge, spread=True, at=F)  # type: ignore[misc]
            F = F.moved(k, -step)
            posterior = posterior.learnt(F, k, *inverses)
        floor = FLOOR * mean_square(problem)
        left = 2 * float(state.again(F).value)  # type: ignore[misc]
        posterior = posterior.with_noise(F, left, coverage, floor)
        F, posterior = posterior.balanced(F)
        return F, {**state.memory, "posterior": posterior}


def current(state: State) -> Posterior:
    """What a state remembers, or the first posterior of its factors."""
    F: Any = state.factors
    known = state.memory.get("posterior")
    if known is not None and [v.shape[0] for v in known.prior] == [B.shape[1] for B in F.blocks]:
        return known  # type: ignore[no-any-return]
    measured = state.problem.y
    return Posterior.first(F, 2 * float(state.value) / max(1, math.prod(measured.shape)))


def mean_square(problem: Any) -> float:
    """Of the data."""
    return 2 * float(problem.value_at_zero) / max(1, int(math.prod(problem.y.shape)))
