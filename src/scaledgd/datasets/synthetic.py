"""The monograph's random instances: singular vectors of ±1 matrices, σ from 1 to 1/κ.

Each function returns (problem, truth); arrays are NumPy, float64 or complex128.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import checks
from ..factors import LowRank, Symmetric, Tucker
from ..initialize import Seed
from ..losses import Absolute, Loss, SoftTrim, TopTrim, median_threshold
from ..operators import Entries, Full, RankOne, Sensing
from ..problems import HankelCompletion, Observed

Array = Any


def _vectors(n: int, rank: int, rng: np.random.Generator) -> Array:
    """The left singular vectors of a random ±1 matrix of shape (n, rank)."""
    signs = rng.integers(0, 2, size=(n, rank)) * 2.0 - 1.0
    return np.linalg.svd(signs, full_matrices=False)[0]


def low_rank(n1: int, n2: int, rank: int, kappa: float, rng: Seed = None) -> LowRank:
    """A matrix with incoherent singular vectors and σ = linspace(1, 1/κ, r), balanced.

    Examples
    --------
    >>> import scaledgd as sg
    >>> X = sg.datasets.low_rank(50, 40, rank=3, kappa=10, rng=0)
    >>> float(sg.metrics.condition_number(X).round(9))
    10.0
    """
    rng = np.random.default_rng(rng)
    rank = checks.rank(rank, (n1, n2))
    kappa = checks.number("kappa", kappa, least=1)
    root = np.sqrt(np.linspace(1, 1 / kappa, rank))
    return LowRank(_vectors(n1, rank, rng) * root, _vectors(n2, rank, rng) * root)


def matrix_sensing(
    n1: int, n2: int, rank: int, kappa: float, m: int, rng: Seed = None
) -> tuple[Observed, LowRank]:
    """M Gaussian measurements N(0, 1/m).

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_sensing(9, 8, rank=2, kappa=3, m=100, rng=0)
    >>> problem.y.shape
    (100,)
    """
    rng = np.random.default_rng(rng)
    truth = low_rank(n1, n2, rank, kappa, rng)
    operator = Sensing(rng.standard_normal((m, n1, n2)) / math.sqrt(m))
    return Observed(operator, operator.apply(truth)), truth


def matrix_completion(
    n1: int, n2: int, rank: int, kappa: float, p: float, noise: float = 0.0, rng: Seed = None
) -> tuple[Observed, LowRank]:
    """Each entry is observed with probability p, with Gaussian noise of that deviation.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.matrix_completion(9, 8, rank=2, kappa=3, p=0.5, rng=0)
    >>> problem.scale
    2.0
    """
    rng = np.random.default_rng(rng)
    p = checks.number("p", p, least=0, most=1, open_=True)
    truth = low_rank(n1, n2, rank, kappa, rng)
    index = np.nonzero(rng.random((n1, n2)) < p)
    y = truth.at(index)
    if noise:
        y = y + noise * rng.standard_normal(y.shape)
    return Observed(Entries(index, (n1, n2)), y, scale=1 / p), truth


def robust_pca(
    n1: int, n2: int, rank: int, kappa: float, fraction: float, rng: Seed = None
) -> tuple[Observed, LowRank]:
    """Every entry, a fraction of each row and column corrupted by S = T_α of a normal matrix.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.robust_pca(20, 10, rank=2, kappa=3, fraction=0.1, rng=0)
    >>> int((problem.y != truth.full()).sum(axis=0).max())
    2
    """
    rng = np.random.default_rng(rng)
    truth = low_rank(n1, n2, rank, kappa, rng)
    operator, loss = Full((n1, n2)), TopTrim(fraction)
    noise = rng.standard_normal((n1, n2))
    corruption = noise - loss.bind(operator).clean(noise)
    return Observed(operator, truth.full() + corruption, loss), truth


def hankel_completion(
    n1: int, n2: int, rank: int, kappa: float, p: float, rng: Seed = None
) -> tuple[HankelCompletion, Array]:
    """A sum of complex sinusoids on the grid, amplitudes σ; the truth is the signal.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, x = sg.datasets.hankel_completion(20, 15, rank=2, kappa=3, p=0.5, rng=0)
    >>> problem.shape, x.shape
    ((20, 15), (34,))
    """
    rng = np.random.default_rng(rng)
    frequencies = rng.choice(n1, size=rank, replace=False) / n1
    n = n1 + n2 - 1
    waves = np.exp(2j * np.pi * np.outer(np.arange(n), frequencies))
    x = waves @ np.linspace(1, 1 / kappa, rank)
    observed = rng.random(n) < p
    return HankelCompletion(x * observed, observed, n1, p), x


def _outliers(y: Array, fraction: float, rng: np.random.Generator) -> Array:
    """Y with a fraction of its entries, drawn at random, moved by up to ±10 ‖y‖_∞."""
    where = rng.random(y.shape) < fraction
    return y + where * rng.uniform(-10, 10, y.shape) * np.max(np.abs(y))


def robust_sensing(
    n1: int, n2: int, rank: int, kappa: float, m: int, fraction: float, rng: Seed = None
) -> tuple[Observed, LowRank]:
    """M Gaussian measurements N(0, 1), some with gross outliers; the l1 loss.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.robust_sensing(9, 8, 2, 3, m=100, fraction=0.2, rng=0)
    >>> problem.loss
    Absolute()
    """
    rng = np.random.default_rng(rng)
    truth = low_rank(n1, n2, rank, kappa, rng)
    operator = Sensing(rng.standard_normal((m, n1, n2)))
    y = _outliers(operator.apply(truth), fraction, rng)
    return Observed(operator, y, Absolute()), truth


def quadratic_sampling(
    n: int, rank: int, kappa: float, m: int, fraction: float, rng: Seed = None
) -> tuple[Observed, Symmetric]:
    """y_k = ‖a_kᵀ L‖² with Gaussian a_k, some with gross outliers; the l1 loss.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.quadratic_sampling(9, 2, 3, m=100, fraction=0.2, rng=0)
    >>> truth.rank
    2
    """
    rng = np.random.default_rng(rng)
    truth = Symmetric(_vectors(n, rank, rng) * np.sqrt(np.linspace(1, 1 / kappa, rank)))
    operator = RankOne(rng.standard_normal((m, n)))
    y = _outliers(operator.apply(truth), fraction, rng)
    return Observed(operator, y, Absolute()), truth


def low_rank_tensor(
    shape: tuple[int, ...], ranks: int | tuple[int, ...], kappa: float, rng: Seed = None
) -> Tucker:
    """A tensor with incoherent factors and the mode-1 spectrum linspace(1, 1/κ, r).

    With equal ranks the core is constant where (j₁ + j₂ + …) mod r = 0, times that spectrum
    along mode 1 (the monograph's experiments), and the other modes are well conditioned;
    with different ranks it is random.

    Examples
    --------
    >>> import scaledgd as sg
    >>> X = sg.datasets.low_rank_tensor((30, 25, 20), 3, kappa=10, rng=0)
    >>> X.shape, X.ranks
    ((30, 25, 20), (3, 3, 3))
    """
    rng = np.random.default_rng(rng)
    shape = checks.shape("shape", shape)
    ranks = checks.ranks(ranks, shape)
    kappa = checks.number("kappa", kappa, least=1)
    r, d = ranks[0], len(ranks)
    spectrum = np.linspace(1, 1 / kappa, r).reshape(-1, *(1,) * (d - 1))
    if len(set(ranks)) == 1:
        core = (sum(np.indices(ranks)) % r == 0) / r ** ((d - 2) / 2) * spectrum
    else:
        rows = np.linalg.qr(rng.standard_normal((math.prod(ranks[1:]), r)))[0].T
        core = rows.reshape(ranks) * spectrum
    factors = (_vectors(n, k, rng) for n, k in zip(shape, ranks, strict=True))
    return Tucker(tuple(factors), core)


def tensor_completion(
    shape: tuple[int, ...],
    ranks: int | tuple[int, ...],
    kappa: float,
    p: float,
    noise: float = 0.0,
    rng: Seed = None,
) -> tuple[Observed, Tucker]:
    """Each entry is observed with probability p, with Gaussian noise of that deviation.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, X = sg.datasets.tensor_completion((9, 8, 7), (2, 2, 2), kappa=3, p=0.5, rng=0)
    >>> problem.shape
    (9, 8, 7)
    """
    rng = np.random.default_rng(rng)
    p = checks.number("p", p, least=0, most=1, open_=True)
    truth = low_rank_tensor(shape, ranks, kappa, rng)
    index = np.nonzero(rng.random(shape) < p)
    y = truth.at(index)
    if noise:
        y = y + noise * rng.standard_normal(y.shape)
    return Observed(Entries(index, shape), y, scale=1 / p), truth


def tensor_sensing(
    shape: tuple[int, ...], ranks: int | tuple[int, ...], kappa: float, m: int, rng: Seed = None
) -> tuple[Observed, Tucker]:
    """M Gaussian measurements N(0, 1/m).

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, X = sg.datasets.tensor_sensing((6, 5, 4), (2, 2, 2), kappa=3, m=100, rng=0)
    >>> problem.y.shape
    (100,)
    """
    rng = np.random.default_rng(rng)
    truth = low_rank_tensor(shape, ranks, kappa, rng)
    operator = Sensing(rng.standard_normal((m, *shape)) / math.sqrt(m))
    return Observed(operator, operator.apply(truth)), truth


def tensor_robust_pca(
    shape: tuple[int, ...],
    ranks: int | tuple[int, ...],
    kappa: float,
    fraction: float,
    loss: Loss | None = None,
    rng: Seed = None,
) -> tuple[Observed, Tucker]:
    """Every entry, a fraction of them at random moved by up to ±3 ‖X‖_∞.

    Without a loss, the soft trim that `median_threshold` controls.

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, X = sg.datasets.tensor_robust_pca((9, 8, 7), 2, kappa=3, fraction=0.1, rng=0)
    >>> problem.y.shape
    (9, 8, 7)
    """
    rng = np.random.default_rng(rng)
    truth = low_rank_tensor(shape, ranks, kappa, rng)
    X = truth.full()
    where = rng.random(shape) < fraction
    Y = X + where * rng.uniform(-3, 3, shape) * np.max(np.abs(X))
    return Observed(Full(shape), Y, loss or SoftTrim(median_threshold())), truth
