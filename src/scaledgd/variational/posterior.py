"""The approximate posterior of the rows of factors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import device

from ..ambient import Ambient
from ..factors import Bordered, LowRank
from ..kernels import Sums, backend
from ..linalg import adjoint, epsilon, gram, larger, like, smallest, to_host
from ..namespaces import array_namespace
from ..state import Found

Array = Any
Pair = tuple[Array, Array]
Rows = LowRank | Bordered

HOLD = 1e30
"""A finite ridge that keeps a column at zero."""


class Left(NamedTuple):
    """The remaining squares: Σ w (e² + s) over entries with residual e and variance s, and Σ w.

    The sum of the squared residuals alone is also kept.
    """

    squares: Any
    seen: Any
    residual: Any

    @classmethod
    def after(cls, sums: Sums, noise: Any, like: Array) -> Left:
        """Return the remaining squares after solving a block with some noise level."""
        # a difference, which rounding limits to this accuracy
        residual = larger(sums.after, epsilon(like) * sums.before)
        whole = residual + noise * sums.from_rows + sums.from_others
        return cls(whole, sums.seen, residual)


@dataclass(frozen=True, eq=False)
class Posterior:
    """The approximate posterior of the rows of two blocks, [L, b] and [R, c].

    Parameters
    ----------
    noise : float or 0-d array
        The variance of the noise; an array if reading it would make a device wait.
    prior : pair of arrays of shape (q_k,)
        The prior variance of every column of a block.
    variance : pair of arrays of shape (n_k, q_k)
        The posterior variance of every number in a block.
    total : pair of arrays of shape (q_k, q_k)
        The sum of the posterior covariances of all rows of a block.
    covariance : pair of arrays of shape (n_k, q_k, q_k), optional
        The posterior covariances of the rows; None if only their diagonals are kept.
    columns : array of shape (n2,), optional
        The variance of the noise of every column of X, relative to `noise`.
    weight : array of the shape of the measurements, optional
        The weight of every measurement, if gross errors are possible.

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
    covariance: Pair | None = None
    columns: Array | None = None
    weight: Array | None = None

    @classmethod
    def first(cls, F: Rows, noise: float) -> Posterior:
        """Return the initial posterior: the given factors, without uncertainty.

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
        """Return the terms added to the Gram matrices of the rows of block k.

        They are the prior and, because the other block is uncertain, its variance summed over the
        entries of the row.

        Parameters
        ----------
        F : LowRank or Bordered
        k : int
        coverage : Ambient
            The weight of every entry.

        Returns
        -------
        array like block k
        """
        xp, r = array_namespace(F.L), F.rank
        unsure = products(coverage, k, self.variance[1 - k][:, :r])
        border = xp.zeros_like(F.blocks[k][:, r:])
        return self.penalty(k)[None, :] + xp.concat([unsure, border], axis=1)

    def penalty(self, k: int) -> Array:
        """Return the ridge of the prior of block k, one number per column.

        Parameters
        ----------
        k : int

        Returns
        -------
        array of shape (q_k,)
        """
        prior = self.prior[k]
        xp = array_namespace(prior)
        # a column without variance vanishes, even if there is no noise
        known = prior > self.noise / HOLD
        ridge = self.noise / xp.where(known, prior, xp.ones_like(prior))
        return xp.where(known, ridge, xp.zeros_like(ridge) + HOLD)

    @property
    def unsure(self) -> bool:
        """Whether rows were solved with their uncertainty, unlike those of the first posterior."""
        return any(bool(array_namespace(v).any(v > 0)) for v in self.variance)

    @property
    def spent(self) -> float:
        """The degrees of freedom of the data that the factors have used.

        A prior holds a number that the data do not determine, and what it holds is not spent: the
        trace of I minus posterior over prior covariance. Both blocks can move X along a column of
        one times a column of the other, which counts once. Without any shrinkage this is
        q1 n1 + q2 n2 - q1 q2, which is r (n1 + n2 - r) without offsets.
        """
        used = []
        for variance, prior in zip(self.variance, self.prior, strict=True):
            xp = array_namespace(variance)
            n, unsure = variance.shape[0], xp.sum(variance, axis=0)
            share = to_host(unsure / positive(n * prior)) if n else np.ones(prior.shape[0])
            used.append((n, np.clip(1 - share, 0.0, 1.0)))
        (n1, first), (n2, second) = used
        # odds of data to prior add up where both blocks can do the same
        both, free = first[:, None] * second[None, :], (1 - first)[:, None] + (1 - second)[None, :]
        left = 1 - both
        common = np.where(left > 1e-12, both * free / np.where(left > 1e-12, left, 1.0), both)
        return float(n1 * first.sum() + n2 * second.sum() - common.sum())

    def balanced(self, F: Rows, loss: Array | None = None) -> Found:
        """Return factors of the same X whose second moments are diagonal and equal.

        Parameters
        ----------
        F : LowRank or Bordered
        loss : 0-d array, optional
            The loss of X, to be read from a device along with the rest.

        Returns
        -------
        factors : LowRank or Bordered
        posterior : Posterior
            The posterior of the new factors; its noise is a number.
        """
        xp, r = array_namespace(F.L), F.rank
        if not r:
            return Found(F, self, None if loss is None else float(loss))
        blocks, n = [F.L[:, :r], F.R[:, :r]], F.shape
        moments = [
            (gram(B) + S[:r, :r]) / size for B, S, size in zip(blocks, self.total, n, strict=True)
        ]
        # one array each way, because every copy makes a device wait
        flat = xp.astype(xp.reshape(xp.stack(moments), (-1,)), xp.float64)
        asked = [self.noise] if loss is None else [self.noise, loss]
        few = [xp.reshape(xp.zeros_like(flat[0]) + x, (1,)) for x in asked]
        read = to_host(xp.concat([flat, *few]))
        size = np.float32 if epsilon(F.L) > 1e-10 else np.float64
        pair, numbers = read[: 2 * r * r].reshape(2, r, r).astype(size), read[2 * r * r :].tolist()
        whole = like(np.concatenate(_balancing(*pair)), F.L)
        T, inverse, s = whole[:r, :], whole[r : 2 * r, :], whole[2 * r, :]
        turned = (blocks[0] @ T, blocks[1] @ adjoint(inverse))
        turned = tuple(
            _with_border(B, whole[:, r:]) for B, whole in zip(turned, F.blocks, strict=True)
        )
        prior = tuple(xp.concat([xp.sqrt(s), v[r:]]) for v in self.prior)
        # diagonals alone are transformed as if the covariances were diagonal
        turns = (T, adjoint(inverse))
        covariance = None
        if self.covariance is not None:
            pairs = zip(self.covariance, turns, strict=True)
            covariance = tuple(_turned(C, M) for C, M in pairs)
            variance = tuple(xp.linalg.diagonal(C) for C in covariance)
        else:
            variance = tuple(
                _with_border(C[:, :r] @ (M * M), C[:, r:])
                for C, M in zip(self.variance, turns, strict=True)
            )
        # the sum is recomputed before it is used
        noise, *known = numbers
        fresh = replace(self, prior=prior, variance=variance, covariance=covariance, noise=noise)
        return Found(F.with_blocks(turned), fresh, *known)

    def kept(self, columns: tuple[Array, Array]) -> Posterior:
        """Return the posterior of some columns of the blocks.

        Parameters
        ----------
        columns : pair of lists of int

        Returns
        -------
        Posterior
        """
        covariance = self.covariance
        if covariance is not None:
            pairs = zip(covariance, columns, strict=True)
            covariance = tuple(some(some(C, c, 1), c, 2) for C, c in pairs)
        return replace(
            self,
            prior=tuple(some(v, c, 0) for v, c in zip(self.prior, columns, strict=True)),
            variance=tuple(some(C, c, 1) for C, c in zip(self.variance, columns, strict=True)),
            total=tuple(
                some(some(S, c, 0), c, 1) for S, c in zip(self.total, columns, strict=True)
            ),
            covariance=covariance,
        )


def _balancing(first: Array, second: Array) -> tuple[Array, Array, Array]:
    """Return T, its inverse, and a row with the squares of the moments of both blocks after it.

    It uses NumPy: the matrices are r × r, and a device would wait for its decompositions anyway.
    """
    if not np.all(np.isfinite(first)) or not np.all(np.isfinite(second)):
        lost = np.full_like(first, np.nan)  # the loop reports it
        return lost, lost, lost[:1]
    values, Q = np.linalg.eigh(first)
    values = np.where(values > 1e-28 * values[-1], values, 1e-28 * values[-1] + 0 * values)
    values = positive(values)
    root = Q * np.sqrt(values)[None, :]
    U, s, _ = np.linalg.svd(root.T @ second @ root)
    s = positive(np.where(s > 1e-40 * s[0], s, 1e-40 * s[0] + 0 * s))
    quarter = np.sqrt(np.sqrt(s))
    T = (Q / np.sqrt(values)[None, :]) @ U * quarter[None, :]
    return T, (U / quarter[None, :]).T @ root.T, s[None, :]


def _with_border(M: Array, border: Array) -> Array:
    """Return M with more columns, without a copy if there are none."""
    return array_namespace(M).concat([M, border], axis=1) if border.shape[1] else M


def products(coverage: Ambient, k: int, M: Array) -> Array:
    """Return sums over the entries of every row (k = 0) or column (k = 1)."""
    if not M.shape[1]:
        xp = array_namespace(M)
        return xp.zeros((coverage.shape[k], 0), dtype=M.dtype, device=device(M))
    return coverage.times(M) if k == 0 else coverage.adjoint_times(M)


def positive(x: Array, least: float | None = None) -> Array:
    """Return x with values raised to at least a positive bound, by default the smallest number."""
    xp = array_namespace(x)
    tiny = smallest(x) if least is None else least
    return xp.where(x > tiny, x, xp.zeros_like(x) + tiny)


def not_negative(x: Array) -> Array:
    """Return variances that were computed as differences, which rounding may make negative.

    NaN stays NaN.
    """
    xp = array_namespace(x)
    return xp.where(x < 0, xp.zeros_like(x), x)


def swapped(pair: Pair, k: int, new: Array) -> Pair:
    """Return a pair with another member k."""
    return (new, pair[1]) if k == 0 else (pair[0], new)


def _turned(C: Array, M: Array) -> Array:
    """Covariances of rows whose leading columns are multiplied by M."""
    xp, r, q = array_namespace(C), M.shape[0], C.shape[-1]
    if q > r:
        zeros = 0 * C[0, :r, r:]
        corner = xp.eye(q - r, dtype=C.dtype, device=device(C))
        M = xp.concat([xp.concat([M, zeros], axis=1), xp.concat([zeros.T, corner], axis=1)])
    return backend(C, M).turned(C, M)


def some(x: Array, chosen: list[int], axis: int) -> Array:
    """Return some slices of an array, in C order."""
    if isinstance(x, np.ndarray):
        return np.take(x, np.asarray(chosen, dtype=np.int64), axis=axis)
    # a device copies contiguous blocks much faster than single elements
    breaks = [k for k in range(1, len(chosen)) if chosen[k] != chosen[k - 1] + 1]
    ends = zip([0, *breaks], [*breaks, len(chosen)], strict=True)
    runs = [(chosen[a], chosen[b - 1] + 1) if b else (0, 0) for a, b in ends]
    before = (slice(None),) * axis
    return array_namespace(x).concat([x[(*before, slice(*run), ...)] for run in runs], axis=axis)
