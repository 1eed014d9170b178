"""The method: alternating least squares with priors, noise and weights learnt from the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from array_api_compat import device

from .. import checks
from ..factors import Bordered, LowRank
from ..initialize import Seed
from ..linalg import blank, epsilon, gram, is_complex, like, smallest, to_host, whitening
from ..namespaces import array_namespace
from ..problems import Observed, Problem
from ..state import Found, State
from . import diagonal, full
from .noise import column_noise, entry_noise, noise_of, one_noise
from .posterior import Posterior, Rows, products

Array = Any

FLOOR = 1e-26
"""Share of the mean square of the data below which noise is rounding."""


@dataclass(frozen=True, eq=False)
class Variational:
    """`Alternating` with a ridge learnt from the data: for noise, and rows with few entries.

    Rows of L and R have normal priors, one variance per column. The variances, the level of
    the noise and the uncertainty of each row are estimated along the way (variational Bayes
    with automatic relevance determination). Rows with few observations are shrunk, columns that
    noise explains vanish, and the ridge vanishes with the residual. Start close to a fit, or with
    `joint`: from other starts everything looks like noise.

    What it has learnt is ``state.memory.method``, a `Posterior`.

    Parameters
    ----------
    full : bool
        Whether to keep full covariances of rows, not only their diagonals. This is better for ranks
        above the true one and for few entries per row; it takes memory for (n1 + n2) r² numbers.
    columns : bool
        Whether every column of X has its own noise level.
    freedom : float, optional
        Degrees of freedom of Student's t distribution of the noise, for gross errors: 1 rejects
        the most. Normal noise by default.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_completion(90, 80, rank=2, kappa=3, p=0.5, rng=0)
    >>> noise = 1e-3 * np.random.default_rng(0).standard_normal(problem.y.shape)
    >>> noisy = sg.Observed(problem.operator, problem.y + noise)
    >>> result = sg.solve(noisy, sg.joint(6), sg.Variational(full=True), max_iter=30)
    >>> np.linalg.svd(result.factors.full())[1][1:4].round(2)
    array([0.33, 0.  , 0.  ])
    """

    full: bool = False
    columns: bool = False
    freedom: float | None = None

    advice: ClassVar[str] = "begin closer to a fit, with `Alternating`, `grown` or `joint`"

    def __call__(self, problem: Problem, state: State) -> Found:
        F = state.factors
        if not isinstance(F, LowRank | Bordered):
            raise TypeError(
                "Variational needs LowRank or Bordered factors of observed entries, not "
                f"{type(F).__name__}; use Alternating with a ridge"
            )
        if is_complex(F.L):
            raise TypeError("Variational is for real data; use Alternating with a ridge")
        posterior, view = current(state), state.view
        if posterior.weight is not None:
            view = view.reweighted(posterior.weight)
        size = full if self.full else diagonal
        ridge = posterior.penalty(1)
        floor = max(FLOOR, epsilon(F.L) ** 2) * mean_square(problem)
        F, posterior, left = size.sweep(view, F, posterior)
        for done in (view, state.view):
            done.forget()  # before the residual of the new factors is formed
        floor = max(floor, smallest(F.L) / epsilon(F.L))  # if the data are zero
        if self.columns or self.freedom is not None:
            if not isinstance(problem, Observed):
                raise TypeError("noise of columns and Student weights need an Observed problem")
            gains = None
            if self.full and self.freedom is None and state.view.plain:
                gains = full.column_gains(view, F, posterior, ridge)
            if gains is not None:
                posterior = column_noise(problem, gains, posterior, floor)
            else:
                unsure, settings = size.unsure_factors(F, posterior), (self.columns, self.freedom)
                posterior = entry_noise(problem, F, posterior, unsure, floor, *settings)
        elif left is not None:
            posterior = noise_of(left, posterior, floor)
        else:
            unsure = size.unsure_factors(F, posterior)
            posterior = one_noise(view.moved(F), F, posterior, unsure, floor)
        frozen = isinstance(problem, Observed) and not problem.loss.least_squares
        if isinstance(getattr(problem, "y", F.L), np.ndarray) or frozen:
            return posterior.balanced(F)
        # one request for everything read from a device, or from entries on other machines
        if left is None or posterior.weight is not None or posterior.columns is not None:
            return posterior.balanced(F, state.view.moved(F).value)
        return posterior.balanced(F, 0.5 * left.residual)


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


def joint(
    rank: int,
    share: float = 0.9,
    *,
    start: Rows | None = None,
    variance: float | None = None,
    rounds: int = 0,
    order: Array | None = None,
    rng: Seed = 0,
) -> Callable[[Problem], State]:
    """Return a start for `Variational`: random factors of the full rank, and their priors.

    All columns start alike, with priors that together explain a share of the variance of the data;
    the rest is noise. The method then finds which columns the data support.

    Parameters
    ----------
    rank : int
        An upper bound.
    share : float in (0, 1)
        The share of the variance that is not noise: .5 for ratings, .99 or more if there is little
        noise. It matters little with full covariances.
    start : LowRank or Bordered, optional
        Says which offsets there are, and where they start; its low-rank part is replaced.
    variance : float, optional
        The variance of the low-rank part and the noise together; by default the mean square of the
        residual of the offsets of `start`.
    rounds : int
        Power iterations that turn the random directions towards those of the data, of observed
        entries only. Each takes less time than a sweep of the method, and saves one.
    order : integer array of shape (n2,), optional
        The positions of the columns of X that random numbers follow; by default as they are.
    rng : int or numpy.random.Generator

    Returns
    -------
    start
        A function of the problem that returns a `State`.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_completion(60, 50, rank=3, kappa=5, p=0.5, rng=0)
    >>> result = sg.solve(problem, sg.joint(6), sg.Variational(full=True), max_iter=40)
    >>> bool(sg.metrics.relative_error(result.factors, truth) < 1e-5)
    True
    """
    rank = checks.count("rank", rank, least=1)
    share = checks.number("share", share, least=0, most=1, open_=True)

    def begin(problem: Problem) -> State:
        like = problem.example
        xp, there = array_namespace(like), device(like)
        seeded = np.random.default_rng(rng)

        def random(n: int, scale: float) -> Array:
            # in double precision, so that single precision begins at the same numbers
            drawn = scale * seeded.standard_normal((n, rank))
            drawn = drawn if order is None else drawn[order]
            return xp.asarray(drawn, dtype=like.dtype, device=there)

        offsets = start
        if offsets is None:
            none = (xp.zeros((n, 0), dtype=like.dtype, device=there) for n in problem.shape)
            offsets = Bordered(*none)
        r = offsets.rank
        left = variance
        if left is None:
            empty = offsets.with_blocks(tuple(_columns(B, r, 0 * B[:, :0]) for B in offsets.blocks))
            nothing = not any(B.shape[1] for B in empty.blocks)
            value = problem.value_at_zero if nothing else problem.linearize(empty).value
            left = 2 * float(value) / max(1, problem.size)
        left = max(left, 1e-300)
        each = math.sqrt(share * left / rank)
        # L is solved first, so its values do not matter
        L, R = offsets.blocks
        blocks = (
            _columns(L, r, blank(L, rank)),
            _columns(R, r, random(R.shape[0], math.sqrt(each))),
        )
        F = offsets.with_blocks(blocks)
        if rounds:
            F = _nearer(problem, F, rank, rounds)
        first = Posterior.first(F, (1 - share) * left)
        # offsets may be as large as the data
        prior = tuple(
            xp.concat(
                [each + 0 * v[:rank], xp.where(v[rank:] > left, v[rank:], left + 0 * v[rank:])]
            )
            for v in first.prior
        )
        return problem.linearize(F).remembering(replace(first, prior=prior))

    return begin


def extended(
    state: State,
    columns: int,
    share: float = 0.9,
    *,
    variance: float | None = None,
    order: Array | None = None,
    rng: Seed = 0,
) -> State:
    """Return a state with more columns, which begin in the residual as `joint` does in the data.

    A component that is small beside the others may be taken for noise, because the noise begins as
    a share of the whole variance. Here it begins as a share of the noise that was found.

    Parameters
    ----------
    state : State
        An iterate of `Variational`.
    columns : int
        How many columns are added.
    share : float in (0, 1)
        The share of the noise that the new columns are to explain.
    variance : float, optional
        The variance of the noise, if that of the state includes gross errors.
    order : integer array of shape (n2,), optional
        The positions of the columns of X, as for `joint`.
    rng : int or numpy.random.Generator

    Returns
    -------
    state : State
    """
    F, known = state.factors, current(state)
    assert isinstance(F, LowRank | Bordered)
    xp, r, noise = array_namespace(F.L), F.rank, float(known.noise)
    left = noise if variance is None else variance
    each, less = math.sqrt(share * left / columns), (1 - share) * left / noise

    def more(x: Array, *axes: int, value: float = 0.0) -> Array:
        """New numbers after the first r along some axes."""
        for axis in axes:
            x = xp.moveaxis(x, axis, -1)
            new = xp.zeros((*x.shape[:-1], columns), dtype=x.dtype, device=device(x)) + value
            x = xp.moveaxis(xp.concat([x[..., :r], new, x[..., r:]], axis=-1), -1, axis)
        return x

    # L is solved first, so its values do not matter
    L, R = (more(B, 1) for B in F.blocks)
    drawn = np.random.default_rng(rng).standard_normal((R.shape[0], columns))
    drawn = drawn if order is None else drawn[order]
    new = like(math.sqrt(each) * drawn, R)
    if known.columns is not None:
        new = new * xp.sqrt(known.columns)[:, None]
    R = xp.concat([R[:, :r], new, R[:, r + columns :]], axis=1)
    # covariances are proportional to the noise
    covariance = known.covariance
    if covariance is not None:
        covariance = tuple(less * more(C, 1, 2) for C in covariance)
    posterior = replace(
        known,
        noise=less * noise,
        prior=tuple(more(v, 0, value=each) for v in known.prior),
        variance=tuple(less * more(v, 1) for v in known.variance),
        total=tuple(less * more(S, 0, 1) for S in known.total),
        covariance=covariance,
    )
    return state.problem.linearize(F.with_blocks((L, R))).remembering(posterior)


def _nearer(problem: Problem, F: Rows, rank: int, rounds: int) -> Rows:
    """Return factors, of which L is zero, with R after power iterations of the residual.

    Products with the residual are divided by the numbers of entries, or the rows and columns with
    the most entries would be all that matters; those with few entries, of which products are mostly
    noise, are kept small. Directions that rounding hides stay random.
    """
    if not isinstance(problem, Observed):
        raise TypeError("rounds of the start need an Observed problem")
    (L, R), operator, y = F.blocks, problem.operator, problem.y
    xp, coverage = array_namespace(L), operator.coverage(None, y)
    counts = [products(coverage, k, xp.ones_like(B[:, :1])) for k, B in enumerate((R, L))]
    counts = [n + xp.mean(n) for n in counts]

    def mean(G: Rows, k: int) -> Array:
        """Orthogonal columns of the size of R, from the products with block 1 − k."""
        if operator.fuses(G, y):
            sums = operator.squares_and_gradient(G, y, k)[1][:, :rank]
        else:
            sums = products(problem.linearize(G).view.ambient(), k, G.blocks[1 - k][:, :rank])
        V = sums / counts[k]
        return V @ (size * like(whitening(to_host(gram(V))), V))

    size = xp.sqrt(xp.linalg.trace(gram(R[:, :rank])) / rank)
    for _ in range(rounds):
        U = mean(F, 0)
        V = mean(F.with_blocks((_columns(L, rank, U), _columns(R, rank, blank(R, rank)))), 1)
        lost = xp.sum(V * V, axis=0) < 0.5 * size * size
        F = F.with_blocks((L, _columns(R, rank, xp.where(lost, F.blocks[1][:, :rank], V))))
    return F


def _columns(B: Array, r: int, fresh: Array) -> Array:
    """A block with its first r columns replaced."""
    return array_namespace(B).concat([fresh, B[:, r:]], axis=1)
