"""How far an estimate is from the truth, and how hard the truth is."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from . import checks
from .factors import Factors, LowRank, Symmetric
from .linalg import adjoint, epsilon, is_complex, magnitude2, norm

Array = Any


def _pair(factors: Factors) -> tuple[Array, Array]:
    """L and R with X = L Rᴴ."""
    if isinstance(factors, Symmetric):
        return factors.L, factors.L
    if isinstance(factors, LowRank):
        return factors.L, factors.R
    raise TypeError(f"needs matrix factors, not {type(factors).__name__}")


def _svd(X: Factors | Array, rank: int | None = None) -> tuple[Array, Array, Array]:
    """The compact SVD (U, σ, V) of rank `rank`, or of the numerical rank."""
    if isinstance(X, Factors):
        L, R = _pair(X)
        xp = array_namespace(L)
        Q, S = xp.linalg.qr(L)
        P, T = xp.linalg.qr(R)
        U, s, Vh = xp.linalg.svd(S @ adjoint(T), full_matrices=False)
        U, V = Q @ U, P @ adjoint(Vh)
    else:
        xp = checks.floating(X=X)
        checks.dimensions("X", X, 2)
        U, s, Vh = xp.linalg.svd(X, full_matrices=False)
        V = adjoint(Vh)
    if rank is None:
        floor = float(s[0]) * max(U.shape[0], V.shape[0]) * epsilon(s)
        rank = max(1, int(xp.count_nonzero(s > floor)))
    else:
        rank = checks.rank(rank, (U.shape[0], V.shape[0], s.shape[0]))
    return U[:, :rank], s[:rank], V[:, :rank]


def relative_error(estimate: Factors | Array, truth: Factors | Array) -> Array:
    """‖X − X⋆‖_F / ‖X⋆‖_F, a 0-d array.

    Two factored matrices are compared without forming either, to full precision.

    Parameters
    ----------
    estimate, truth : factors or arrays of one shape

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> float(sg.metrics.relative_error(1.1 * np.eye(2), np.eye(2)).round(12))
    0.1
    """
    if isinstance(estimate, Factors) and isinstance(truth, Factors):
        L, R = _pair(estimate)
        L_star, R_star = _pair(truth)
        xp = checks.floating(estimate=L, truth=L_star)
        # X − X⋆ = [L, −L⋆] [R, R⋆]ᴴ, whose norm is that of the product of triangles
        S = xp.linalg.qr(xp.concat([L, -L_star], axis=1))[1]
        T = xp.linalg.qr(xp.concat([R, R_star], axis=1))[1]
        return norm(S @ adjoint(T)) / truth.norm()
    X, X_star = (F.full() if isinstance(F, Factors) else F for F in (estimate, truth))
    checks.namespace(estimate=X, truth=X_star)
    return norm(X - X_star) / norm(X_star)


def condition_number(X: Factors | Array, rank: int | None = None) -> Array:
    """κ = σ₁ / σ_r of a matrix; r is its numerical rank where not given.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> float(sg.metrics.condition_number(np.diag([4.0, 2.0, 0.0])))
    2.0
    """
    _, s, _ = _svd(X, rank)
    return s[0] / s[-1]


def incoherence(X: Factors | Array, rank: int | None = None) -> Array:
    """The smallest μ for which a matrix is μ-incoherent (Definition 2).

    1 where the singular vectors are spread evenly, n/r where one sits on an axis.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> float(sg.metrics.incoherence(np.ones((4, 3))).round(12))
    1.0
    """
    U, s, V = _svd(X, rank)
    xp = array_namespace(U)
    row = [M.shape[0] / s.shape[0] * xp.max(xp.sum(magnitude2(M), axis=1)) for M in (U, V)]
    return row[0] if bool(row[0] > row[1]) else row[1]


class Distance(NamedTuple):
    """dist(F, F⋆), the alignment Q that gives it, and whether the infimum was attained."""

    value: float
    Q: Any
    attained: bool

    def __float__(self) -> float:
        return self.value


def dist(factors: Factors, truth: Factors) -> Distance:
    """The monograph's distance between factors, up to invertible transforms.

    dist² = inf over Q ∈ GL(r) of ‖(LQ − L⋆)Σ⋆^½‖² + ‖(RQ^−ᴴ − R⋆)Σ⋆^½‖², where L⋆, R⋆ are
    the balanced factors of X⋆ = `truth.full()`, whatever factors of it are given. The
    infimum has no closed form: it is minimised from Q = L⁺L⋆ by Levenberg–Marquardt on
    r × r matrices.

    Parameters
    ----------
    factors, truth : LowRank or Symmetric, of one rank

    Returns
    -------
    Distance
        A tuple (value, Q, attained). Q is a NumPy array. Not attained means that the
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

    L, R = (_numpy(B) for B in _pair(factors))
    U, s, V = (_numpy(B) for B in _svd(truth, _pair(truth)[0].shape[1]))
    if L.shape != U.shape or R.shape != V.shape:
        raise ValueError(
            f"factors of shapes {L.shape} and {R.shape} cannot be aligned with factors of "
            f"shapes {U.shape} and {V.shape}: sizes and rank must agree"
        )
    r = L.shape[1]
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
        for unit in (1.0, 1j) if split else (1.0,):
            for k in range(r * r):
                E = np.zeros(r * r, dtype=complex if split else float)
                E[k] = unit
                E = E.reshape(r, r)
                dR = -TR @ (inverse @ E.conj().T @ inverse) * root
                columns.append(pack(TL @ E * root, dR))
        return np.stack(columns, axis=1)

    start = np.linalg.lstsq(L, U * root, rcond=None)[0]
    if np.linalg.cond(start) > 1e12:  # L does not see all of L⋆: begin inside GL(r)
        start = start + max(float(np.linalg.norm(start)), 1.0) * np.eye(r)
    found = least_squares(
        residual, pack(start), jacobian, method="lm", ftol=1e-15, xtol=1e-15, gtol=1e-15
    )
    Q = unpack(found.x)
    value = float(np.sqrt(2 * found.cost + rest))
    J, f = jacobian(found.x), residual(found.x)
    slack = max(float(np.linalg.norm(f)), 1e-8 * s[0]) * np.linalg.norm(J)
    stationary = np.linalg.norm(J.T @ f) <= 1e-6 * slack
    # on the border of GL(r) one of the aligned factors loses rank
    aligned = (TL @ Q, TR @ np.linalg.inv(Q).conj().T)
    inside = min(np.linalg.svd(M)[1][-1] for M in aligned) > 1e-6 * root[-1]
    return Distance(value, Q, bool(stationary and inside))


def _numpy(x: Array) -> Any:
    # NumPy reads host memory only, and torch conjugates lazily
    return np.asarray(x.detach().cpu().resolve_conj() if is_torch_array(x) else x)
