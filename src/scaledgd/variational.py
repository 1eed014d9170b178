"""Alternating least squares with a ridge learnt from the data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, device

from .ambient import Ambient
from .factors import Bordered, Factors, LowRank
from .kernels import RowSolution
from .linalg import adjoint, gram, is_complex, like, on_host, smallest, to_host
from .problems import Problem
from .state import State

Array = Any
Pair = tuple[Array, Array]
Rows = LowRank | Bordered

FLOOR = 1e-26
"""Share of the mean square of the data below which noise is rounding."""

HOLD = 1e30
"""A finite ridge that holds a column at zero."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """The approximate posterior of the rows of two blocks, [L, b] and [R, c].

    Parameters
    ----------
    noise : float or 0-d array
        The variance of the noise. An array where reading it would make a device wait.
    prior : pair of arrays of shape (q_k,)
        The prior variance of every column of a block.
    variance : pair of arrays of shape (n_k, q_k)
        The posterior variance of every number in a block.
    total : pair of arrays of shape (q_k, q_k)
        The sum of the posterior covariances of all rows of a block.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> F = sg.LowRank(np.ones((3, 1)), 2 * np.ones((2, 1)))
    >>> sg.Posterior.first(F, noise=0.1).prior
    (array([1.]), array([4.]))
    """

    noise: Any
    prior: Pair
    variance: Pair
    total: Pair

    @classmethod
    def first(cls, F: Rows, noise: float) -> Posterior:
        """Return the posterior to begin with: the factors as they are, without uncertainty.

        Parameters
        ----------
        F : LowRank or Bordered
        noise : float

        Returns
        -------
        Posterior
        """
        xp = array_namespace(F.L)
        squares = (xp.mean(B * B, axis=0) for B in F.blocks)
        # a column of zeros (offsets, at first) gets the noise as its prior
        prior = tuple(xp.where(v > 0, v, xp.zeros_like(v) + noise) for v in squares)
        nothing = (0 * gram(F.L), 0 * gram(F.R))
        return cls(noise, prior, (xp.zeros_like(F.L), xp.zeros_like(F.R)), nothing)

    def ridge(self, F: Rows, k: int, coverage: Ambient) -> Array:
        """Return what is added to the Gram matrices of the rows of block k.

        The prior; and, because the other block is not known exactly, its variance summed over
        the entries of the row.

        Parameters
        ----------
        F : LowRank or Bordered
        k : int
        coverage : Ambient
            How much every entry counts.

        Returns
        -------
        array like block k
        """
        xp, r = array_namespace(F.L), F.rank
        unsure = _products(coverage, k, self.variance[1 - k][:, :r])
        border = xp.zeros_like(F.blocks[k][:, r:])
        prior = self.noise / self.prior[k]
        prior = xp.where(prior < HOLD, prior, xp.zeros_like(prior) + HOLD)
        return prior[None, :] + xp.concat([unsure, border], axis=1)

    def learnt(self, F: Rows, k: int, solution: RowSolution) -> Posterior:
        """Return the posterior after block k was solved for.

        Parameters
        ----------
        F : LowRank or Bordered
            With the new block.
        k : int
        solution : RowSolution
            With the inverses of the systems of its rows.

        Returns
        -------
        Posterior
        """
        B, variance = F.blocks[k], self.noise * solution.diagonal
        prior = _positive(array_namespace(B).mean(B * B + variance, axis=0))
        return Posterior(
            self.noise,
            _swapped(self.prior, k, prior),
            _swapped(self.variance, k, variance),
            _swapped(self.total, k, self.noise * solution.total),
        )

    def with_noise(self, F: Rows, squares: Array, coverage: Ambient, floor: float) -> Posterior:
        """Return the posterior with the noise that residual and uncertainty show together.

        Parameters
        ----------
        F : LowRank or Bordered
        squares : 0-d array
            The sum of squares of the residual.
        coverage : Ambient
        floor : float
            The least noise.

        Returns
        -------
        Posterior
        """
        xp, r = array_namespace(F.L), F.rank
        (CL, CR), L, R = self.variance, F.L[:, :r], F.R[:, :r]
        both = _products(coverage, 0, xp.concat([R * R + CR[:, :r], CR[:, :r]], axis=1))
        unsure = both[:, :r] * CL[:, :r] + both[:, r:] * L * L
        total = squares + xp.sum(unsure)
        for k in (0, 1):
            border = F.partner(k)[:, r:]
            spread = _products(coverage, k, border * border) * self.variance[k][:, r:]
            total = total + xp.sum(spread) if border.shape[1] else total
        seen = xp.sum(_products(coverage, 0, xp.ones_like(F.modes[1][:, :1])))
        noise = total / xp.where(seen > 1, seen, xp.ones_like(seen))
        noise = xp.where(noise > floor, noise, xp.zeros_like(noise) + floor)
        return replace(self, noise=on_host(noise))

    def balanced(self, F: Rows) -> tuple[Rows, Posterior]:
        """Return factors of the same X whose second moments are diagonal and equal.

        Parameters
        ----------
        F : LowRank or Bordered

        Returns
        -------
        factors : LowRank or Bordered
        posterior : Posterior
            That of the new factors.
        """
        xp, r = array_namespace(F.L), F.rank
        if not r:
            return F, self
        blocks, n = [F.L[:, :r], F.R[:, :r]], F.shape
        moments = [
            (gram(B) + S[:r, :r]) / size for B, S, size in zip(blocks, self.total, n, strict=True)
        ]
        # one array each way, because every copy makes a device wait
        whole = like(np.concatenate(_balancing(*to_host(xp.stack(moments)))), F.L)
        T, inverse, s = whole[:r, :], whole[r : 2 * r, :], whole[2 * r, :]
        turned = (blocks[0] @ T, blocks[1] @ adjoint(inverse))
        turned = tuple(
            xp.concat([B, whole[:, r:]], axis=1) for B, whole in zip(turned, F.blocks, strict=True)
        )
        prior = tuple(xp.concat([xp.sqrt(s), v[r:]]) for v in self.prior)
        # only the diagonals of covariances are kept, and are transformed as if they were whole
        variance = tuple(
            xp.concat([C[:, :r] @ (M * M), C[:, r:]], axis=1)
            for C, M in zip(self.variance, (T, adjoint(inverse)), strict=True)
        )
        # the sum is computed again before it is used
        fresh = Posterior(self.noise, prior, variance, self.total)
        return F.with_blocks(turned), fresh

    def kept(self, columns: tuple[Array, Array]) -> Posterior:
        """Return the posterior of some columns of the blocks.

        Parameters
        ----------
        columns : pair of lists of int

        Returns
        -------
        Posterior
        """
        return Posterior(
            self.noise,
            tuple(v[c] for v, c in zip(self.prior, columns, strict=True)),
            tuple(C[:, c] for C, c in zip(self.variance, columns, strict=True)),
            tuple(S[c, :][:, c] for S, c in zip(self.total, columns, strict=True)),
        )


def _balancing(first: Array, second: Array) -> tuple[Array, Array, Array]:
    """Return T, its inverse, and a row with the squares of the moments of both blocks after it.

    In NumPy: the matrices are r × r, and a device would wait for its decompositions anyway.
    """
    if not np.all(np.isfinite(first)) or not np.all(np.isfinite(second)):
        lost = np.full_like(first, np.nan)  # the loop reports it
        return lost, lost, lost[:1]
    values, Q = np.linalg.eigh(first)
    values = np.where(values > 1e-28 * values[-1], values, 1e-28 * values[-1] + 0 * values)
    values = _positive(values)
    root = Q * np.sqrt(values)[None, :]
    U, s, _ = np.linalg.svd(root.T @ second @ root)
    s = _positive(np.where(s > 1e-40 * s[0], s, 1e-40 * s[0] + 0 * s))
    quarter = np.sqrt(np.sqrt(s))
    T = (Q / np.sqrt(values)[None, :]) @ U * quarter[None, :]
    return T, (U / quarter[None, :]).T @ root.T, s[None, :]


def _products(coverage: Ambient, k: int, M: Array) -> Array:
    """Return sums over the entries of every row (k = 0) or column (k = 1)."""
    if not M.shape[1]:
        xp = array_namespace(M)
        return xp.zeros((coverage.shape[k], 0), dtype=M.dtype, device=device(M))
    return coverage.times(M) if k == 0 else coverage.adjoint_times(M)


def _positive(x: Array) -> Array:
    xp = array_namespace(x)
    tiny = smallest(x)
    return xp.where(x > tiny, x, xp.zeros_like(x) + tiny)


def _swapped(pair: Pair, k: int, new: Array) -> Pair:
    return (new, pair[1]) if k == 0 else (pair[0], new)


@dataclass(frozen=True, eq=False)
class Variational:
    """`Alternating` with a ridge learnt from the data: for noise, and rows with few entries.

    Rows of L and R have normal priors, one variance per column. The variances, the level of
    the noise and the uncertainty of each row are estimated along the way (variational Bayes
    with automatic relevance determination; the covariance of a row enters by its diagonal).
    Rows with few observations are shrunk, columns that noise explains vanish, and as
    the residual vanishes so does the ridge. It must begin near a fit: far from one
    everything looks like noise.

    What it has learnt is ``state.memory.method``, a `Posterior`.

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

    advice: ClassVar[str] = "begin closer to a fit, with `Alternating` or `grown`"

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Any]:
        F = state.factors
        if not isinstance(F, LowRank | Bordered):
            raise TypeError(
                "Variational needs LowRank or Bordered factors of observed entries, not "
                f"{type(F).__name__}; use Alternating with a ridge"
            )
        if is_complex(F.L):
            raise TypeError("Variational is for real data; use Alternating with a ridge")
        coverage = state.view.coverage()
        posterior = current(state)
        for k in (0, 1):
            if not F.blocks[k].shape[1]:
                continue  # offsets of one side, and no factors yet
            ridge = posterior.ridge(F, k, coverage)
            solution = state.view.block_solution(k, at=F, ridge=ridge)
            F = F.moved(k, -solution.step)
            posterior = posterior.learnt(F, k, solution)
        floor = FLOOR * mean_square(problem)
        left = 2 * state.view.moved(F).value
        posterior = posterior.with_noise(F, left, coverage, floor)
        return posterior.balanced(F)


def current(state: State) -> Posterior:
    """Return what a state remembers, or the first posterior of its factors.

    Parameters
    ----------
    state : State

    Returns
    -------
    Posterior
    """
    F, known = state.factors, state.memory.method
    assert isinstance(F, LowRank | Bordered)
    widths = [B.shape[1] for B in F.blocks]
    if isinstance(known, Posterior) and [v.shape[0] for v in known.prior] == widths:
        return known
    return Posterior.first(F, 2 * float(state.value) / max(1, state.problem.size))


def mean_square(problem: Problem) -> float:
    """Return the mean square of the data.

    Parameters
    ----------
    problem : Problem

    Returns
    -------
    float
    """
    return 2 * float(problem.value_at_zero) / max(1, problem.size)
