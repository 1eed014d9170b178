"""The variational model of CP factors: tensors as sums of uncertain outer products.

Rows of all factors have normal priors, one variance per component; the entries have normal noise.
Given the other factors, every row is a small least-squares problem. Its vectors are products of
rows of the other factors, so their second moments are entrywise products of second moments of rows.
Components that noise explains vanish.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from array_api_compat import device

from ..ambient import Ambient, Dense, Sparse
from ..factors import CP, Factors
from ..kernels.entries import compact
from ..linalg import epsilon, invert_systems, is_complex, like, smallest
from ..namespaces import array_namespace
from ..operators import Entries, Full, Operator, Weighted
from ..problems import Observed, Problem
from ..state import State
from .method import mean_square
from .posterior import positive
from .triangles import taken, triangle

Array = Any
Each = tuple[Array, ...]

FLOOR = 100
"""Least noise relative to the mean square of the data, in rounding errors, because sums cancel."""

SLACK = 1.0
"""Number of entries of average noise that are added to those of a slice."""

EMPTY = 12
"""Cells per observed entry up to which sums run over all cells, as products of matrices."""

WIDTH = 256
"""Number of columns of second moments that are made at a time."""

SYSTEMS = 1 << 21
"""Total size of the systems that are inverted at a time."""

IRRELEVANT = 1e-6
"""Mean square of a component, in units of the noise, below which it is dropped."""


@dataclass(frozen=True, eq=False)
class PosteriorCP:
    """The approximate posterior of the rows of CP factors.

    Parameters
    ----------
    noise : float
        The variance of the noise where all scales are 1.
    scales : tuple of arrays of shape (n_k,), one per mode
        The noise variance of an entry is multiplied by the scales of its slices.
    prior : array of shape (r,)
        The prior variance of every component, the same for all modes.
    spread : tuple of arrays of shape (n_k, r (r + 1) / 2), one per mode
        The covariance of every row, as the upper triangle.
    """

    noise: float
    scales: Each
    prior: Array
    spread: Each

    @classmethod
    def first(cls, F: CP, noise: float) -> PosteriorCP:
        """Return the initial posterior: the given factors, without uncertainty.

        Parameters
        ----------
        F : CP
        noise : float

        Returns
        -------
        PosteriorCP
        """
        xp, pairs = array_namespace(F.factors[0]), F.rank * (F.rank + 1) // 2
        squares = [xp.mean(U * U, axis=0) for U in F.factors]
        return cls(
            noise,
            tuple(0 * U[:, 0] + 1 for U in F.factors),
            _positive(math.prod(squares[1:], start=squares[0]) ** (1 / len(squares))),
            tuple(
                xp.zeros((U.shape[0], pairs), dtype=U.dtype, device=device(U)) for U in F.factors
            ),
        )

    def variance(self, k: int) -> Array:
        """Return the posterior variance of every number in block k.

        Parameters
        ----------
        k : int

        Returns
        -------
        array of shape (n_k, r)
        """
        pairs = triangle(self.prior.shape[0])
        return taken(self.spread[k], np.nonzero(pairs.rows == pairs.columns)[0])


@dataclass(frozen=True, eq=False)
class VariationalCP:
    """One sweep over the rows of all modes of `CP` factors that also learns priors and noise.

    What it has learnt is ``state.memory.method``, a `PosteriorCP`. The first one has the factors
    without uncertainty, and as noise the share of the data that they should not explain.

    Parameters
    ----------
    share : float
        The share of the mean square of the data that the initial factors should explain.
    uneven : tuple of int
        Modes whose slices each have their own noise level.
    """

    share: float = 0.99
    uneven: tuple[int, ...] = ()

    advice: ClassVar[str] = "begin with joint_start"

    def __call__(self, problem: Problem, state: State) -> tuple[Factors, Any]:
        F = state.factors
        if not isinstance(F, CP) or not isinstance(problem, Observed) or is_complex(F.factors[0]):
            raise TypeError(f"VariationalCP needs real CP factors, not {type(F).__name__}")
        cells = Cells.of(problem)
        posterior = self.current(state)
        # if everything is zero, any noise explains it
        least = FLOOR * epsilon(F.factors[0]) * (cells.mean_square or 1.0)
        left: Any = None
        for k in range(len(F.factors)):
            # the first sweep has random factors, which say nothing about the noise
            uneven = k in self.uneven and state.t > 0
            F, posterior, left = _solved(cells, F, posterior, k, uneven)
        # not before all modes are solved: far from a fit everything would look like noise
        posterior = replace(posterior, noise=max(left / cells.total, least))
        return _relevant(F, posterior) if state.t % 5 == 4 else (F, posterior)

    def current(self, state: State) -> PosteriorCP:
        """Return what a state remembers, or the first posterior of its factors.

        Parameters
        ----------
        state : State

        Returns
        -------
        PosteriorCP
        """
        F, known = state.factors, state.memory.method
        assert isinstance(F, CP)
        if isinstance(known, PosteriorCP) and known.prior.shape[0] == F.rank:
            return known
        return PosteriorCP.first(F, (1 - self.share) * (mean_square(state.problem) or 1.0))


def joint_start(problem: Problem, rank: int, share: float, seed: int) -> CP:
    """Return random factors whose mean square is a share of that of the data.

    Parameters
    ----------
    problem : Problem
    rank : int
    share : float
    seed : int

    Returns
    -------
    CP
    """
    rng, d = np.random.default_rng(seed), len(problem.shape)
    size = (share * mean_square(problem) / rank) ** (0.5 / d)
    return CP(
        tuple(like(size * rng.standard_normal((n, rank)), problem.example) for n in problem.shape)
    )


@dataclass(frozen=True, eq=False)
class Cells:
    """Weights, weighted values and weighted squares of the observed entries.

    Parameters
    ----------
    weight, value, square : Ambient
    total : float
        The sum of the weights.
    mean_square : float
    """

    weight: Ambient
    value: Ambient
    square: Ambient
    total: float
    mean_square: float

    @classmethod
    def of(cls, problem: Observed) -> Cells:
        """Return the entries of a problem, as dense arrays if enough of them are observed.

        Parameters
        ----------
        problem : Observed

        Returns
        -------
        Cells
        """
        if problem not in _LAID_OUT:
            _LAID_OUT[problem] = cls._of(problem)
        return _LAID_OUT[problem]

    @classmethod
    def _of(cls, problem: Observed) -> Cells:
        operator: Operator = problem.operator
        y, xp = problem.y, array_namespace(problem.y)
        weight, value = xp.ones_like(y), y
        if isinstance(operator, Weighted):
            weight, value, operator = operator.root**2, operator.root * y, operator.operator
        if not isinstance(operator, Entries | Full):
            raise TypeError("VariationalCP needs observed entries")
        total = float(xp.sum(weight))
        weights, values, squares = (_laid_out(operator, x) for x in (weight, value, y * y))
        return cls(weights, values, squares, total, float(xp.sum(y * y)) / max(total, smallest(y)))


_LAID_OUT: WeakKeyDictionary[Observed, Cells] = WeakKeyDictionary()
"""Cache of the entries of the problems being solved, which every sweep reads."""


def _laid_out(operator: Entries | Full, values: Array) -> Ambient:
    if isinstance(operator, Full):
        return Dense(values)
    if math.prod(operator.shape) > EMPTY * values.shape[0]:
        return Sparse(operator.pattern, values)
    xp = array_namespace(values)
    whole = xp.zeros(operator.shape, dtype=values.dtype, device=device(values))
    whole[operator.index] = values
    return Dense(whole)


def _positive(x: Array) -> Array:
    """Positive numbers, large enough that products do not vanish."""
    return positive(x, smallest(x) ** 0.5)


def _moments(U: Array, spread: Array, part: slice) -> Array:
    """Return some columns of the second moments of rows."""
    xp, columns, pairs = array_namespace(U), compact(U.T), triangle(U.shape[1])
    sides = (pairs.rows, pairs.columns)
    first, second = (xp.asarray(x[part], device=device(U)) for x in sides)
    # whole columns are taken, which are contiguous
    both = xp.take(columns, first, axis=0) * xp.take(columns, second, axis=0)
    return both.T + spread[:, part]


def _grams(cells: Cells, F: CP, posterior: PosteriorCP, k: int) -> Array:
    """Return the expected Gram matrices of the rows of mode k, as upper triangles."""
    xp = array_namespace(F.factors[0])
    found = []
    for first in range(0, F.rank * (F.rank + 1) // 2, WIDTH):
        part = slice(first, first + WIDTH)
        moments = tuple(
            None if m == k else _moments(U, C, part) / s[:, None]
            for m, (U, C, s) in enumerate(
                zip(F.factors, posterior.spread, posterior.scales, strict=True)
            )
        )
        found.append(cells.weight.columnwise(moments, k))
    return xp.concat(found, axis=1)


def _solved(
    cells: Cells, F: CP, posterior: PosteriorCP, k: int, uneven: bool
) -> tuple[CP, PosteriorCP, float]:
    """Solve the rows of mode k; learn their prior and scales, and the residual squares."""
    xp, r = array_namespace(F.factors[0]), F.rank
    pairs = triangle(r)
    scales, own = posterior.scales, posterior.scales[k][:, None]
    packed = _grams(cells, F, posterior, k)
    weighted = tuple(U / s[:, None] for U, s in zip(F.factors, scales, strict=True))
    target = cells.value.columnwise(weighted, k)
    noise = posterior.noise * own
    rows, covariances = [], []
    step = max(1, SYSTEMS // r**2)
    for first in range(0, target.shape[0], step):
        part = slice(first, first + step)
        G = pairs.unpacked(packed[part, :])
        G = G / noise[part][:, :, None]
        # scaled to a diagonal of ones, whatever the sizes of the components
        root = xp.sqrt(xp.linalg.diagonal(G) + 1 / posterior.prior)
        S = G / (root[:, :, None] * root[:, None, :])
        eye = xp.eye(r, dtype=S.dtype, device=device(S))
        S = S * (1 - eye) + eye
        C = invert_systems(S) / (root[:, :, None] * root[:, None, :])
        rows.append(xp.sum(C * (target[part, :] / noise[part])[:, None, :], axis=2))
        covariances.append(pairs.packed(C))
    U, spread = xp.concat(rows), xp.concat(covariances)
    F = F.with_blocks((*F.factors[:k], U, *F.factors[k + 1 :]))
    spreads = (*posterior.spread[:k], spread, *posterior.spread[k + 1 :])
    posterior = replace(posterior, spread=spreads)
    # expected squares of the residual, by slice
    moments = _moments(U, spread, slice(None)) * pairs.counts(U)
    shares = tuple(1 / s[:, None] for s in scales)
    squares = cells.square.columnwise(shares, k)[:, 0]
    left = squares - 2 * xp.sum(U * target, axis=1) + xp.sum(packed * moments, axis=1)
    left = xp.where(left > 0, left, xp.zeros_like(left))
    new = scales[k]
    if uneven:
        ones = tuple(0 * s[:, None] + 1 for s in scales)
        seen = cells.weight.columnwise(ones, k)[:, 0]
        mean = xp.sum(left / new) / cells.total
        new = (left / mean + SLACK) / (seen + SLACK) if float(mean) > 0 else new
        new = new * cells.total / xp.sum(seen * new)
    posterior = replace(posterior, scales=(*scales[:k], new, *scales[k + 1 :]))
    return *_balanced(F, posterior, k), float(xp.sum(left / new))


def _balanced(F: CP, posterior: PosteriorCP, k: int) -> tuple[CP, PosteriorCP]:
    """Learn the prior of the rows of mode k, and rescale so that all modes share it."""
    xp, d = array_namespace(F.factors[0]), len(F.factors)
    pairs = triangle(F.rank)
    own = _positive(xp.mean(F.factors[k] ** 2 + posterior.variance(k), axis=0))
    prior = _positive(own ** (1 / d) * posterior.prior ** (1 - 1 / d))
    blocks, spreads = [], []
    for m, (U, C) in enumerate(zip(F.factors, posterior.spread, strict=True)):
        size = xp.sqrt(prior / (own if m == k else posterior.prior))
        blocks.append(U * size)
        spreads.append(C * (taken(size[None, :], pairs.rows) * taken(size[None, :], pairs.columns)))
    return F.with_blocks(tuple(blocks)), replace(posterior, prior=prior, spread=tuple(spreads))


def _relevant(F: CP, posterior: PosteriorCP) -> tuple[CP, PosteriorCP]:
    """Drop the components that are negligible compared with the noise."""
    xp = array_namespace(F.factors[0])
    squares = [xp.mean(U * U, axis=0) for U in F.factors]
    size = math.prod(squares[1:], start=squares[0])
    keep = np.asarray([float(s) > IRRELEVANT * posterior.noise for s in size])
    if keep.all() or not keep.any():
        return F, posterior
    whole, kept = triangle(F.rank), np.nonzero(keep)[0]
    pairs = np.nonzero(keep[whole.rows] & keep[whole.columns])[0]
    return F.with_blocks(tuple(taken(U, kept) for U in F.factors)), replace(
        posterior,
        prior=taken(posterior.prior[None, :], kept)[0, :],
        spread=tuple(taken(C, pairs) for C in posterior.spread),
    )


def mean_uncertainty(F: CP, posterior: PosteriorCP) -> Array:
    """Return the mean covariance, over all entries, of the vectors that multiply rows of mode 0.

    It is divided by the scales of the noise.

    Parameters
    ----------
    F : CP
    posterior : PosteriorCP

    Returns
    -------
    array of shape (r, r)
    """
    xp, pairs = array_namespace(F.factors[0]), triangle(F.rank)
    moments: Any = 1.0
    means: Any = 1.0
    for U, C, s in list(zip(F.factors, posterior.spread, posterior.scales, strict=True))[1:]:
        means = means * ((U / s[:, None]).T @ U) / U.shape[0]
        spread = xp.mean(C / s[:, None], axis=0)
        own = pairs.unpacked(spread[None, :])[0, :, :]
        moments = moments * ((U / s[:, None]).T @ U / U.shape[0] + own)
    return moments - means
