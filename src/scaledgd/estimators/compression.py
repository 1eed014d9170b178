"""CP factors as Tucker factors, and unfoldings as tensors."""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace

from ..factors import CP, Tucker
from ..kernels import numbered
from ..linalg import identity, mode_products, unfold
from .local_observations import LocalObservations

Array = Any

LARGEST = 20_000_000
"""Largest size of a core, and of its factors, for which a Tucker model is made."""


def unfolded(data: LocalObservations, mode: int) -> LocalObservations:
    """Return the unfolding of a tensor: its rows are the slices of a mode."""
    shape = (data.shape[mode], math.prod(data.shape) // data.shape[mode])
    if data.index is None:
        weight = None if data.weight is None else unfold(data.weight, mode)
        return LocalObservations(None, unfold(data.y, mode), shape, weight)
    columns = numbered(data.index, data.shape, skip=mode)
    return LocalObservations((data.index[mode], columns), data.y, shape, data.weight)


def folds(shape: tuple[int, ...], mode: int, rank: int) -> bool:
    """Return whether a matrix model of an unfolding is small enough as a Tucker model."""
    others = [n for k, n in enumerate(shape) if k != mode]
    return rank * math.prod(others) + sum(n * n for n in others) <= LARGEST


def folded(F: CP, mode: int, shape: tuple[int, ...]) -> Tucker:
    """Return the tensor whose unfolding along a mode is a factorised matrix."""
    xp = array_namespace(F.factors[0])
    left, right = F.factors
    others = tuple(n for k, n in enumerate(shape) if k != mode)
    core = xp.moveaxis(xp.reshape(right, (*others, F.rank)), -1, mode)
    eyes = (left if k == mode else identity(n, like=left) for k, n in enumerate(shape))
    return Tucker(tuple(eyes), core)


def fits(shape: tuple[int, ...], rank: int) -> bool:
    """Return whether the core of a compressed CP model is small enough."""
    return math.prod(min(n, rank) for n in shape) * max(1, rank // min(shape[0], rank)) <= LARGEST


def as_tucker(F: CP) -> Tucker:
    """Return CP factors as Tucker factors; the first factor stays as it is."""
    xp = array_namespace(F.factors[0])
    pairs = [xp.linalg.qr(U) for U in F.factors[1:]]
    first = identity(F.rank, like=F.factors[0])
    core = CP((first, *(R for _, R in pairs))).full()
    return Tucker((F.factors[0], *(Q for Q, _ in pairs)), core)


def mean_of(parts: list[Tucker]) -> Tucker:
    """Return the mean of Tucker factors: their first factors side by side, cores divided."""
    if len(parts) == 1:
        return parts[0]
    xp, d = array_namespace(parts[0].core), parts[0].core.ndim
    bases = [xp.linalg.qr(xp.concat([F.factors[k] for F in parts], axis=1))[0] for k in range(1, d)]
    cores = []
    for F in parts:
        turns = [B.T @ U for B, U in zip(bases, F.factors[1:], strict=True)]
        eye = identity(F.core.shape[0], like=F.core)
        cores.append(mode_products(F.core, [eye, *turns]) / len(parts))
    first = xp.concat([F.factors[0] for F in parts], axis=1)
    return Tucker((first, *bases), xp.concat(cores, axis=0))


def compressed(F: Tucker, lost: float, first: bool = True) -> Tucker:
    """Return Tucker factors of smaller ranks, orthonormal and in order of importance.

    Parameters
    ----------
    F : Tucker
    lost : float
        The sum of squares by which X may change, for each mode.
    first : bool
        Whether to include the first factor; otherwise it stays as it is.
    """
    xp = array_namespace(F.core)
    pairs = [xp.linalg.qr(U) for U in F.factors]
    small = mode_products(F.core, [R for _, R in pairs])
    factors, back = [], []
    for k, (Q, R) in enumerate(pairs):
        if k == 0 and not first:
            factors.append(F.factors[0])
            back.append(identity(F.core.shape[0], like=F.core))
            continue
        U, s, _ = xp.linalg.svd(unfold(small, k), full_matrices=False)
        tail = xp.flip(xp.cumulative_sum(xp.flip(s * s)))
        rank = max(1, int(xp.sum(xp.astype(tail > lost, xp.int64))))
        U = U[:, :rank]
        factors.append(Q @ U)
        back.append(U.T @ R)
    return Tucker(tuple(factors), mode_products(F.core, back))
