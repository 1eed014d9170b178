"""Random instances of the monograph's matrix problems, with their truth.

Singular vectors are those of random ±1 matrices, and singular values go from 1 to 1/κ. Arrays are
NumPy arrays of float64 or complex128.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import checks
from ..factors import LowRank, Symmetric
from ..initialize import Seed
from ..losses import Absolute, TopTrim
from ..operators import Entries, Full, RankOne, Sensing
from ..problems import HankelCompletion, Observed

Array = Any


def incoherent_vectors(n: int, rank: int, rng: np.random.Generator) -> Array:
    """Return the left singular vectors of a random ±1 matrix.

    Parameters
    ----------
    n, rank : int
        Shape of the matrix.
    rng : numpy.random.Generator

    Returns
    -------
    array of shape (n, rank)
    """
    signs = rng.integers(0, 2, size=(n, rank)) * 2.0 - 1.0
    return np.linalg.svd(signs, full_matrices=False)[0]


def low_rank(n1: int, n2: int, rank: int, kappa: float, rng: Seed = None) -> LowRank:
    """Make a matrix with incoherent singular vectors and σ = linspace(1, 1/κ, r).

    Parameters
    ----------
    n1, n2 : int
        Shape of the matrix.
    rank : int
    kappa : float
        Condition number; the singular values are linspace(1, 1/κ, r).
    rng : numpy.random.Generator or int, optional
        Generator or seed.

    Returns
    -------
    LowRank
        Balanced factors.

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
    return LowRank(
        incoherent_vectors(n1, rank, rng) * root, incoherent_vectors(n2, rank, rng) * root
    )


def matrix_sensing(
    n1: int, n2: int, rank: int, kappa: float, m: int, rng: Seed = None
) -> tuple[Observed, LowRank]:
    """Make an instance of matrix sensing with `m` Gaussian measurements of variance 1/m.

    Parameters
    ----------
    n1, n2 : int
        Shape of the matrix.
    rank : int
    kappa : float
        Condition number; the singular values are linspace(1, 1/κ, r).
    m : int
        Number of measurements.
    rng : numpy.random.Generator or int, optional
        Generator or seed.

    Returns
    -------
    problem : Observed
    truth : LowRank

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
    """Make an instance of matrix completion.

    Parameters
    ----------
    n1, n2 : int
        Shape of the matrix.
    rank : int
    kappa : float
        Condition number; the singular values are linspace(1, 1/κ, r).
    p : float
        Probability that an entry is observed.
    noise : float
        Standard deviation of Gaussian noise.
    rng : numpy.random.Generator or int, optional
        Generator or seed.

    Returns
    -------
    problem : Observed
        With scale 1/p.
    truth : LowRank

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
    """Make an instance of robust PCA.

    All entries are observed. The corruption is T_α of a normal matrix, so that at most a fraction
    α of each row and column is corrupted.

    Parameters
    ----------
    n1, n2 : int
        Shape of the matrix.
    rank : int
    kappa : float
        Condition number; the singular values are linspace(1, 1/κ, r).
    fraction : float
        The fraction α.
    rng : numpy.random.Generator or int, optional
        Generator or seed.

    Returns
    -------
    problem : Observed
        With the loss `TopTrim(fraction)`.
    truth : LowRank

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
    """Make an instance of Hankel completion: samples of a sum of complex sinusoids.

    Parameters
    ----------
    n1, n2 : int
        Shape of the Hankel matrix; the signal has n1 + n2 − 1 samples.
    rank : int
        Number of sinusoids, with different frequencies on the grid 0, 1/n1, 2/n1, ….
    kappa : float
        The amplitudes are linspace(1, 1/κ, r).
    p : float
        Probability that a sample is observed.
    rng : numpy.random.Generator or int, optional
        Generator or seed.

    Returns
    -------
    problem : HankelCompletion
    signal : complex array of shape (n1 + n2 - 1,)
        The truth.

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
    """Return y with a random fraction of its entries moved by up to ±10 ‖y‖_∞."""
    where = rng.random(y.shape) < fraction
    return y + where * rng.uniform(-10, 10, y.shape) * np.max(np.abs(y))


def robust_sensing(
    n1: int, n2: int, rank: int, kappa: float, m: int, fraction: float, rng: Seed = None
) -> tuple[Observed, LowRank]:
    """Make an instance of robust matrix sensing: Gaussian measurements, some of them outliers.

    Parameters
    ----------
    n1, n2 : int
        Shape of the matrix.
    rank : int
    kappa : float
        Condition number; the singular values are linspace(1, 1/κ, r).
    m : int
        Number of measurements, of variance 1.
    fraction : float
        Fraction of measurements that are outliers, moved by up to ±10 ‖y‖_∞.
    rng : numpy.random.Generator or int, optional
        Generator or seed.

    Returns
    -------
    problem : Observed
        With the loss `Absolute()`.
    truth : LowRank

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
    """Make an instance of quadratic sampling: y_k = ‖a_kᵀ L‖², some of them outliers.

    Parameters
    ----------
    n, rank : int
        Shape of the factor L.
    kappa : float
        Condition number of L Lᵀ.
    m : int
        Number of measurements, with Gaussian a_k of variance 1.
    fraction : float
        Fraction of measurements that are outliers, moved by up to ±10 ‖y‖_∞.
    rng : numpy.random.Generator or int, optional
        Generator or seed.

    Returns
    -------
    problem : Observed
        With the loss `Absolute()`.
    truth : Symmetric

    Examples
    --------
    >>> import scaledgd as sg
    >>> problem, truth = sg.datasets.quadratic_sampling(9, 2, 3, m=100, fraction=0.2, rng=0)
    >>> truth.rank
    2
    """
    rng = np.random.default_rng(rng)
    truth = Symmetric(incoherent_vectors(n, rank, rng) * np.sqrt(np.linspace(1, 1 / kappa, rank)))
    operator = RankOne(rng.standard_normal((m, n)))
    y = _outliers(operator.apply(truth), fraction, rng)
    return Observed(operator, y, Absolute()), truth
