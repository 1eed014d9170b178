"""How far an estimate is from the truth, and how hard the truth is."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from . import checks
from .factors import Factors, LowRank, Symmetric
from .linalg import epsilon, is_complex, magnitude2, norm, unfold

Array = Any


def _mode_svds(
    X: Factors | Array, rank: int | tuple[int, ...] | None = None
) -> list[tuple[Array, Array]]:
    """For every mode the singular vectors U_k and values σ_k of the unfolding.

    As many as `rank` says, or as the numerical rank.
    """
    if isinstance(X, Factors):
        xp = array_namespace(X.modes[0])
        bases, triangles = zip(*(xp.linalg.qr(M) for M in X.modes), strict=True)
        small = X.assemble(triangles)
    else:
        xp = checks.floating(X=X)
        bases, small = (None,) * X.ndim, X
    if small.ndim < 2:
        raise ValueError(f"X must be a matrix or tensor, not of shape {tuple(small.shape)}")
    ranks = tuple(rank) if isinstance(rank, (tuple, list)) else (rank,) * small.ndim
    if len(ranks) != small.ndim:
        raise ValueError(f"rank {rank} must have one entry per mode, {small.ndim}, or be a number")
    found = []
    for k, (Q, r) in enumerate(zip(bases, ranks, strict=True)):
        U, s, _ = xp.linalg.svd(unfold(small, k), full_matrices=False)
        if r is None:
            floor = float(s[0]) * max(X.shape) * epsilon(s)
            r = max(1, int(xp.count_nonzero(s > floor)))
        else:
            r = checks.rank(r, (X.shape[k], s.shape[0]))
        found.append(((U if Q is None else Q @ U)[:, :r], s[:r]))
    return found


def relative_error(estimate: Factors | Array, truth: Factors | Array) -> Array:
    """‖X − X⋆‖_F / ‖X⋆‖_F, a 0-d array.

    Two factored objects are compared without forming either, to full precision.

    Parameters
    ----------
    estimate, truth : factors or arrays of one shape

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> float(sg.metrics.relative_error(1.1 * np.eye(2), np.eye(2)).round(12))
    0.1
    """
    if tuple(estimate.shape) != tuple(truth.shape):
        raise ValueError(
            f"the estimate has shape {tuple(estimate.shape)}, the truth {tuple(truth.shape)}"
        )
    if isinstance(estimate, Factors) and isinstance(truth, Factors):
        xp = checks.floating(estimate=estimate.modes[0], truth=truth.modes[0])
        # in an orthonormal basis of both their ranges, each is a small core
        ours, theirs = [], []
        for M, M_star in zip(estimate.modes, truth.modes, strict=True):
            T = xp.linalg.qr(xp.concat([M, M_star], axis=1))[1]
            ours.append(T[:, : M.shape[1]])
            theirs.append(T[:, M.shape[1] :])
        gap = estimate.assemble(tuple(ours)) - truth.assemble(tuple(theirs))
        return norm(gap) / truth.norm()
    X, X_star = (F.full() if isinstance(F, Factors) else F for F in (estimate, truth))
    checks.namespace(estimate=X, truth=X_star)
    return norm(X - X_star) / norm(X_star)


def condition_number(X: Factors | Array, rank: int | tuple[int, ...] | None = None) -> Array:
    """κ: the largest over the smallest non-zero singular value of the unfoldings of X.

    For a matrix σ₁ / σ_r; r is the numerical rank where not given.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> float(sg.metrics.condition_number(np.diag([4.0, 2.0, 0.0])))
    2.0
    """
    spectra = [s for _, s in _mode_svds(X, rank)]
    xp = array_namespace(*spectra)
    return xp.max(xp.stack([s[0] for s in spectra])) / xp.min(xp.stack([s[-1] for s in spectra]))


def incoherence(X: Factors | Array, rank: int | tuple[int, ...] | None = None) -> Array:
    """The smallest μ for which X is μ-incoherent: max over modes of n_k/r_k · ‖U_k‖²_{2,∞}.

    1 where the singular vectors are spread evenly, n/r where one sits on an axis.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> float(sg.metrics.incoherence(np.ones((4, 3))).round(12))
    1.0
    """
    found = [
        U.shape[0] / s.shape[0] * array_namespace(U).sum(magnitude2(U), axis=1)
        for U, s in _mode_svds(X, rank)
    ]
    xp = array_namespace(*found)
    return xp.max(xp.stack([xp.max(rows) for rows in found]))


class Distance(NamedTuple):
    """dist(F, F⋆), the alignment Q that gives it, and whether the infimum was attained."""

    value: float
    Q: Any
    attained: bool

    def __float__(self) -> float:
        return self.value


def dist(factors: LowRank | Symmetric, truth: LowRank | Symmetric) -> Distance:
    """The monograph's distance between factors, up to invertible transforms.

    dist² = inf over Q ∈ GL(r) of ‖(LQ − L⋆)Σ⋆^½‖² + ‖(RQ^−ᴴ − R⋆)Σ⋆^½‖², where L⋆, R⋆ are
    the balanced factors of X⋆ = `truth.full()`, whatever factors of it are given. The
    infimum has no closed form: it is minimised by Levenberg–Marquardt on r × r matrices, from
    Q = L⁺L⋆ and from Q^−ᴴ = R⁺R⋆. Near the truth that is the infimum; far from it, it may be
    a local minimum.

    Parameters
    ----------
    factors, truth : LowRank or Symmetric, of one rank

    Returns
    -------
    Distance
        A tuple (value, Q, attained). Q is a NumPy array that takes L to the factor L of the
        truth as given, and R by Q^−ᴴ to its R. Not attained means that the
        minimiser runs to the border of GL(r), where LQ or RQ^−ᴴ loses rank, as it can for
        factors far from the truth; the value is then an upper bound.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> L, R, Q = np.eye(3, 2), np.eye(4, 2), np.asarray([[2.0, 1.0], [0.0, 3.0]])
    >>> d = sg.metrics.dist(sg.LowRank(L @ Q, R @ np.linalg.inv(Q).T), sg.LowRank(L, R))
    >>> bool(d.value < 1e-12), d.attained
    (True, True)
    """
    from scipy.optimize import least_squares

    for F in (factors, truth):
        if not isinstance(F, (LowRank, Symmetric)):
            raise TypeError(f"dist is about LowRank or Symmetric factors, not {type(F).__name__}")
    L, R, L_star, R_star = (_numpy(B) for F in (factors, truth) for B in (F.L, F.R))
    U, s, V = _compact_svd(L_star, R_star)
    if L.shape != U.shape or R.shape != V.shape:
        raise ValueError(
            f"factors of shapes {L.shape} and {R.shape} cannot be aligned with factors of "
            f"shapes {U.shape} and {V.shape}: sizes and rank must agree"
        )
    r = L.shape[1]
    if s[-1] <= s[0] * max(U.shape[0], V.shape[0]) * epsilon(s):
        raise ValueError(f"truth has {r} columns but a smaller rank; give factors of its rank")
    unit = float(s[0])  # squares below: measure in units of σ₁
    L, R, L_star, s = L / unit**0.5, R / unit**0.5, L_star / unit**0.5, s / unit
    root = np.sqrt(s)
    # Only the parts of L⋆, R⋆ in the ranges of L and R depend on Q: all is r × r.
    (QL, TL), (QR, TR) = np.linalg.qr(L), np.linalg.qr(R)
    target_L, target_R = QL.conj().T @ (U * s), QR.conj().T @ (V * s)
    rest = np.linalg.norm(U * s - QL @ target_L) ** 2 + np.linalg.norm(V * s - QR @ target_R) ** 2
    split = bool(is_complex(L) or is_complex(R) or is_complex(U))

    def unpack(x: Array) -> Array:
        return (x[: r * r] + 1j * x[r * r :] if split else x).reshape(r, r)

    def pack(*parts: Array) -> Array:
        flat = np.concatenate([p.ravel() for p in parts])
        return np.concatenate([flat.real, flat.imag]) if split else flat

    def residual(x: Array) -> Array:
        Q = unpack(x)
        inverse = np.linalg.inv(Q).conj().T
        return pack(TL @ Q * root - target_L, TR @ inverse * root - target_R)

    def jacobian(x: Array) -> Array:
        inverse = np.linalg.inv(unpack(x)).conj().T
        columns = []
        for axis in (1.0, 1j) if split else (1.0,):
            for k in range(r * r):
                E = np.zeros(r * r, dtype=complex if split else float)
                E[k] = axis
                E = E.reshape(r, r)
                dR = -TR @ (inverse @ E.conj().T @ inverse) * root
                columns.append(pack(TL @ E * root, dR))
        return np.stack(columns, axis=1)

    def minimise(start: Array) -> Any:
        if np.linalg.cond(start) > 1e12:  # a factor does not see all of the truth
            start = start + max(float(np.linalg.norm(start)), 1.0) * np.eye(r)
        return least_squares(
            residual, pack(start), jacobian, method="lm", ftol=1e-15, xtol=1e-15, gtol=1e-15
        )

    left, right = (np.linalg.lstsq(B, W * root, rcond=None)[0] for B, W in ((L, U), (R, V)))
    starts = [left] if np.linalg.cond(right) > 1e12 else [left, np.linalg.inv(right).conj().T]
    found = min((minimise(start) for start in starts), key=lambda f: float(f.cost))
    Q = unpack(found.x)
    value = unit * float(np.sqrt(2 * found.cost + rest))
    J, f = jacobian(found.x), residual(found.x)
    slack = max(float(np.linalg.norm(f)), 1e-8 * s[0]) * np.linalg.norm(J)
    stationary = np.linalg.norm(J.T @ f) <= 1e-6 * slack
    # on the border of GL(r) one of the aligned factors loses rank
    aligned = (TL @ Q, TR @ np.linalg.inv(Q).conj().T)
    inside = min(np.linalg.svd(M)[1][-1] for M in aligned) > 1e-6 * root[-1]
    given = np.linalg.lstsq(U * root, L_star, rcond=None)[0]
    return Distance(value, Q @ given, bool(stationary and inside))


def _compact_svd(L: Array, R: Array) -> tuple[Array, Array, Array]:
    """(U, σ, V) of L Rᴴ, with as many columns as the factors."""
    (Q, S), (P, T) = np.linalg.qr(L), np.linalg.qr(R)
    U, s, Vh = np.linalg.svd(S @ T.conj().T)
    return Q @ U, s, P @ Vh.conj().T


def _numpy(x: Array) -> Any:
    # NumPy reads host memory only, and torch conjugates lazily
    return np.asarray(x.detach().cpu().resolve_conj() if is_torch_array(x) else x)
