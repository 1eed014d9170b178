"""The alternatives: other libraries, imported when they run, and classical methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .asked import Array, Hidden, Peer

# ---- narrow tables


def _nearest(table: Hidden) -> Array:
    from sklearn.impute import KNNImputer

    return KNNImputer(n_neighbors=10).fit_transform(table.holes)


def _iterative(table: Hidden) -> Array:
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    return IterativeImputer(random_state=0).fit_transform(table.holes)


def gaussian(Y: Array, ridge: float = 1e-3, tol: float = 1e-3, rounds: int = 100) -> Array:
    """Fill a table by EM for a normal distribution of its rows, with full covariance.

    Parameters
    ----------
    Y : array of shape (n, d)
        NaN where nothing was observed. Columns are of unit size.
    ridge : float
        Added to the diagonal of the covariance.
    tol : float
        Stop if no cell changes by more.
    rounds : int
        Stop after this many rounds.

    Returns
    -------
    filled : array of shape (n, d)
    """
    seen = np.isfinite(Y)
    filled = np.where(seen, Y, np.nanmean(Y, axis=0))
    eye, spread = np.eye(Y.shape[1]), np.zeros((Y.shape[1],) * 2)
    for _ in range(rounds):
        mean = filled.mean(axis=0)
        off = filled - mean
        covariance = (off.T @ off + spread) / len(Y) + ridge * eye
        precision = np.linalg.inv(covariance)
        before, spread = filled.copy(), np.zeros_like(covariance)
        for i in np.nonzero(~seen.all(axis=1))[0]:
            o, m = seen[i], ~seen[i]
            within = np.linalg.inv(precision[np.ix_(m, m)])  # covariance given the observed cells
            filled[i, m] = mean[m] - within @ precision[np.ix_(m, o)] @ off[i, o]
            spread[np.ix_(m, m)] += within
        if np.abs(filled - before).max() < tol:
            break
    return filled


def soft_impute(Y: Array, steps: int = 15, tol: float = 1e-3, rounds: int = 50) -> Array:
    """Fill a table by soft thresholding of singular values, the threshold chosen on held-out cells.

    Parameters
    ----------
    Y : array of shape (n, d)
        NaN where nothing was observed.
    steps : int
        Thresholds that are tried, from the largest singular value down to a thousandth of it.
    tol : float
        Stop if the filled table changes by less, relative to its norm.
    rounds : int
        Stop after this many rounds.

    Returns
    -------
    filled : array of shape (n, d)
    """
    seen, rng = np.isfinite(Y), np.random.default_rng(0)
    mean = np.nanmean(Y, axis=0)
    off = np.where(seen, Y - mean, 0.0)
    fit = seen & (rng.random(Y.shape) >= 0.1)

    def path(known: Array, last: int) -> Iterator[Array]:
        low, top = np.zeros_like(off), np.linalg.norm(off * known, 2)
        for level in np.geomspace(top, 1e-3 * top, steps)[:last]:
            for _ in range(rounds):
                U, s, V = np.linalg.svd(np.where(known, off, low), full_matrices=False)
                kept = s > level
                fresh = (U[:, kept] * (s[kept] - level)) @ V[kept]
                change = np.linalg.norm(fresh - low)
                low = fresh
                if change <= tol * np.linalg.norm(low):
                    break
            yield low

    errors: list[float] = []
    for low in path(fit, steps):
        errors.append(float(np.sum((low - off)[seen & ~fit] ** 2)))
        if errors[-1] > min(errors):
            break
    *_, low = path(seen, int(np.argmin(errors)) + 1)
    return low + mean


NARROW = (
    Peer("KNNImputer(10)", _nearest, "sklearn"),
    Peer("IterativeImputer()", _iterative, "sklearn"),
    Peer("Gaussian EM", lambda table: gaussian(table.holes)),
)


# ---- gaps in time


def _interpolated(table: Hidden) -> Array:
    """Interpolate columns linearly; the ends take the nearest value, empty columns zero."""
    filled, steps = table.holes, np.arange(len(table.truth))
    for column in filled.T:
        seen = np.isfinite(column)
        column[:] = np.interp(steps, steps[seen], column[seen]) if seen.any() else 0.0
    return filled


TIME = (Peer("interpolation", _interpolated),)


# ---- gross errors


def principal_component_pursuit(Y: Array, tol: float = 1e-6, rounds: int = 500) -> Array:
    """Return the low-rank part of Y by principal component pursuit (inexact ALM)."""
    weight = 1 / np.sqrt(max(Y.shape))
    size = np.linalg.norm(Y, 2)
    dual = Y / max(size, np.abs(Y).max() / weight)
    penalty, sparse = 1.25 / size, np.zeros_like(Y)
    for _ in range(rounds):
        U, s, V = np.linalg.svd(Y - sparse + dual / penalty, full_matrices=False)
        low = (U * np.maximum(s - 1 / penalty, 0)) @ V
        rest = Y - low + dual / penalty
        sparse = np.sign(rest) * np.maximum(np.abs(rest) - weight / penalty, 0)
        left = Y - low - sparse
        dual, penalty = dual + penalty * left, 1.5 * penalty
        if np.linalg.norm(left) <= tol * np.linalg.norm(Y):
            break
    return low


# ---- tensors


def _tucker(rank: int) -> Any:
    def fill(tensor: Hidden) -> Array:
        from tensorly import tucker_to_tensor
        from tensorly.decomposition import tucker

        ranks = [min(rank, n) for n in tensor.truth.shape]
        known, seen = np.nan_to_num(tensor.holes), np.isfinite(tensor.holes).astype(float)
        return tucker_to_tensor(tucker(known, ranks, mask=seen, random_state=0, n_iter_max=200))

    return fill


def _parafac(rank: int) -> Any:
    def fill(tensor: Hidden) -> Array:
        from tensorly import cp_to_tensor
        from tensorly.decomposition import parafac

        known, seen = np.nan_to_num(tensor.holes), np.isfinite(tensor.holes).astype(float)
        found = parafac(known, rank, mask=seen, init="random", random_state=0, n_iter_max=200)
        return cp_to_tensor(found)

    return fill


TENSORS = tuple(
    Peer(f"tensorly {name}, rank {rank}", way(rank), "tensorly")
    for name, way in (("tucker", _tucker), ("parafac", _parafac))
    for rank in (5, 10, 20)
)
