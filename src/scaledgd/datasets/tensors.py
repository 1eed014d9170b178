"""Random instances of the monograph's tensor problems, with their truth.

Factors are singular vectors of random ±1 matrices. Arrays are NumPy arrays of float64.
"""

from __future__ import annotations

import math

import numpy as np

from .. import checks
from ..factors import Tucker
from ..initialize import Seed
from ..losses import Loss, SoftTrim
from ..operators import Entries, Full, Sensing
from ..problems import Observed
from ..thresholds import median_threshold
from .matrices import incoherent_vectors


def low_rank_tensor(
    shape: tuple[int, ...], ranks: int | tuple[int, ...], kappa: float, rng: Seed = None
) -> Tucker:
    """Make a tensor with incoherent factors whose first unfolding has σ = linspace(1, 1/κ, r).

    If all ranks are equal, the core is constant where (j₁ + j₂ + …) mod r = 0, times that spectrum
    along the first mode, as in the monograph's experiments. The other modes are then well
    conditioned. If ranks differ, the core is random.

    Parameters
    ----------
    shape : tuple of int
    ranks : int or tuple of int
        Multilinear rank, one for all modes or one per mode.
    kappa : float
        Condition number of the first unfolding.
    rng : numpy.random.Generator or int, optional
        Generator or seed.

    Returns
    -------
    Tucker

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
    factors = (incoherent_vectors(n, k, rng) for n, k in zip(shape, ranks, strict=True))
    return Tucker(tuple(factors), core)


def tensor_completion(
    shape: tuple[int, ...],
    ranks: int | tuple[int, ...],
    kappa: float,
    p: float,
    noise: float = 0.0,
    rng: Seed = None,
) -> tuple[Observed, Tucker]:
    """Make an instance of tensor completion.

    Parameters
    ----------
    shape : tuple of int
    ranks : int or tuple of int
        Multilinear rank, one for all modes or one per mode.
    kappa : float
        Condition number of the first unfolding, see `low_rank_tensor`.
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
    truth : Tucker

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
    """Make an instance of tensor sensing with `m` Gaussian measurements of variance 1/m.

    Parameters
    ----------
    shape : tuple of int
    ranks : int or tuple of int
        Multilinear rank, one for all modes or one per mode.
    kappa : float
        Condition number of the first unfolding, see `low_rank_tensor`.
    m : int
        Number of measurements.
    rng : numpy.random.Generator or int, optional
        Generator or seed.

    Returns
    -------
    problem : Observed
    truth : Tucker

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
    """Make an instance of tensor robust PCA: all entries, some moved by up to ±3 ‖X‖_∞.

    Parameters
    ----------
    shape : tuple of int
    ranks : int or tuple of int
        Multilinear rank, one for all modes or one per mode.
    kappa : float
        Condition number of the first unfolding, see `low_rank_tensor`.
    fraction : float
        Fraction of entries that are moved, drawn at random.
    loss : Loss, optional
        By default `SoftTrim` with `median_threshold`.
    rng : numpy.random.Generator or int, optional
        Generator or seed.

    Returns
    -------
    problem : Observed
    truth : Tucker

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
