"""Errors of an estimate, and how hard a matrix or tensor is to recover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_torch_array

from . import checks
from .factors import Factors, LowRank, Symmetric
from .linalg import epsilon, is_complex, magnitude2, norm, unfold
from .namespaces import array_namespace

Array = Any


def _mode_svds(
    X: Factors | Array, rank: int | tuple[int, ...] | None = None
) -> list[tuple[Array, Array]]:
    """Return the singular vectors U_k and values σ_k of every unfolding.

    Their number is `rank`, by default the numerical rank.
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
    """Return the relative error ‖X − X⋆‖_F / ‖X⋆‖_F.

    Factors are compared to full precision without forming either matrix or tensor.

    Parameters
    ----------
    estimate, truth : Factors or array of shape (n1, ..., nd)
        X and X⋆.

    Returns
    -------
    array of shape ()

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
        # in an orthonormal basis of both ranges, each of them is a small core
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
    """Return κ, the largest over the smallest non-zero singular value of the unfoldings.

    For a matrix this is σ₁ / σ_r.

    Parameters
    ----------
    X : Factors or array of shape (n1, ..., nd)
    rank : int or tuple of int, optional
        The rank r, one for all modes or one per mode; by default the numerical rank.

    Returns
    -------
    array of shape ()

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
    """Return the smallest μ for which X is μ-incoherent: max over k of n_k/r_k · ‖U_k‖²_{2,∞}.

    It is 1 if the singular vectors are spread evenly, and n/r if one of them is a unit vector.

    Parameters
    ----------
    X : Factors or array of shape (n1, ..., nd)
    rank : int or tuple of int, optional
        The rank r, one for all modes or one per mode; by default the numerical rank.

    Returns
    -------
    array of shape ()

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
    """The result of `dist`; ``float(distance)`` is its value.

    Parameters
    ----------
    value : float
        dist(F, F⋆).
    Q : array of shape (r, r)
        The alignment that attains it.
    attained : bool
        Whether the infimum was attained.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> L = np.eye(3, 2)
    >>> distance = sg.metrics.dist(sg.Symmetric(L), sg.Symmetric(L))
    >>> bool(float(distance) < 1e-12), distance.Q.shape
    (True, (2, 2))
    """

    value: float
    Q: Any
    attained: bool

    def __float__(self) -> float:
        return self.value


def dist(factors: LowRank | Symmetric, truth: LowRank | Symmetric) -> Distance:
    """Return the monograph's distance between factors, up to invertible transforms.

    dist² = inf over Q ∈ GL(r) of ‖(LQ − L⋆)Σ⋆^½‖² + ‖(RQ^−ᴴ − R⋆)Σ⋆^½‖², where L⋆, R⋆ are
    the balanced factors of X⋆ = `truth.full()`, whichever factors of it are given. The
    infimum has no closed form. It is minimised by Levenberg–Marquardt on r × r matrices, from
    Q = L⁺L⋆ and from Q^−ᴴ = R⁺R⋆. Near the truth this finds the infimum; far from it, it may
    find a local minimum.

    Parameters
    ----------
    factors, truth : LowRank or Symmetric
        Of the same shape and rank.

    Returns
    -------
    Distance
        A tuple (value, Q, attained). Q is a NumPy array. It takes L to the factor L of the truth
        as given, and Q^−ᴴ takes R to its R. If the minimiser runs to the border of GL(r), where
        LQ or RQ^−ᴴ loses rank, `attained` is False and the value is an upper bound. This can
        happen for factors far from the truth.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> L, R, Q = np.eye(3, 2), np.eye(4, 2), np.asarray([[2.0, 1.0], [0.0, 3.0]])
    >>> d = sg.metrics.dist(sg.LowRank(L @ Q, R @ np.linalg.inv(Q).T), sg.LowRank(L, R))
    >>> bool(d.value < 1e-12), d.attained
    (True, True)
    """
    for F in (factors, truth):
        if not isinstance(F, (LowRank, Symmetric)):
            raise TypeError(f"dist takes LowRank or Symmetric factors, not {type(F).__name__}")
    L, R, L_star, R_star = (_numpy(B) for F in (factors, truth) for B in (F.L, F.R))
    U, s, V = _compact_svd(L_star, R_star)
    _check_alignable(L, R, U, s, V)
    unit = float(s[0])  # measure in units of σ₁, because squares are taken
    L, R, L_star, s = L / unit**0.5, R / unit**0.5, L_star / unit**0.5, s / unit
    root = np.sqrt(s)
    # only the parts of L⋆ and R⋆ in the ranges of L and R depend on Q
    (QL, TL), (QR, TR) = np.linalg.qr(L), np.linalg.qr(R)
    target_L, target_R = QL.conj().T @ (U * s), QR.conj().T @ (V * s)
    rest = np.linalg.norm(U * s - QL @ target_L) ** 2 + np.linalg.norm(V * s - QR @ target_R) ** 2
    split = bool(is_complex(L) or is_complex(R) or is_complex(U))
    alignment = _Alignment(TL, TR, target_L, target_R, root, split)
    left, right = (np.linalg.lstsq(B, W * root, rcond=None)[0] for B, W in ((L, U), (R, V)))
    starts = [left] if np.linalg.cond(right) > 1e12 else [left, np.linalg.inv(right).conj().T]
    found = min((alignment.minimise(start) for start in starts), key=lambda f: float(f.cost))
    value = unit * float(np.sqrt(2 * found.cost + rest))
    given = np.linalg.lstsq(U * root, L_star, rcond=None)[0]
    return Distance(value, alignment.unpack(found.x) @ given, alignment.attained(found.x))


def _check_alignable(L: Array, R: Array, U: Array, s: Array, V: Array) -> None:
    """Refuse factors of different shapes, and a truth of smaller rank."""
    if L.shape != U.shape or R.shape != V.shape:
        raise ValueError(
            f"factors of shapes {L.shape} and {R.shape} cannot be aligned with factors of "
            f"shapes {U.shape} and {V.shape}: sizes and rank must agree"
        )
    if s[-1] <= s[0] * max(U.shape[0], V.shape[0]) * epsilon(s):
        raise ValueError(
            f"truth has {L.shape[1]} columns but a smaller rank; give factors of its rank"
        )


@dataclass(frozen=True, eq=False)
class _Alignment:
    """The least-squares problem ‖T_L Q Σ⋆^½ − B_L‖² + ‖T_R Q^−ᴴ Σ⋆^½ − B_R‖² for Q, all r × r.

    The solver takes real vectors: `pack` and `unpack` convert, and `split` is whether there are
    imaginary parts.
    """

    TL: Array
    TR: Array
    BL: Array
    BR: Array
    root: Array
    split: bool

    @property
    def rank(self) -> int:
        return len(self.root)

    def unpack(self, x: Array) -> Array:
        r = self.rank
        return (x[: r * r] + 1j * x[r * r :] if self.split else x).reshape(r, r)

    def pack(self, *parts: Array) -> Array:
        flat = np.concatenate([p.ravel() for p in parts])
        return np.concatenate([flat.real, flat.imag]) if self.split else flat

    def residual(self, x: Array) -> Array:
        Q = self.unpack(x)
        inverse = np.linalg.inv(Q).conj().T
        left, right = self.TL @ Q * self.root, self.TR @ inverse * self.root
        return self.pack(left - self.BL, right - self.BR)

    def jacobian(self, x: Array) -> Array:
        r, inverse = self.rank, np.linalg.inv(self.unpack(x)).conj().T
        columns = []
        for axis in (1.0, 1j) if self.split else (1.0,):
            for k in range(r * r):
                E = np.zeros((r, r), dtype=complex if self.split else float)
                E.flat[k] = axis
                dR = -self.TR @ (inverse @ E.conj().T @ inverse) * self.root
                columns.append(self.pack(self.TL @ E * self.root, dR))
        return np.stack(columns, axis=1)

    def minimise(self, start: Array) -> Any:
        """Run Levenberg–Marquardt from a matrix Q."""
        from scipy.optimize import least_squares

        if np.linalg.cond(start) > 1e12:  # a factor misses some directions of the truth
            start = start + max(float(np.linalg.norm(start)), 1.0) * np.eye(self.rank)
        return least_squares(
            self.residual, self.pack(start), self.jacobian, method="lm",
            ftol=1e-15, xtol=1e-15, gtol=1e-15,
        )  # fmt: skip

    def attained(self, x: Array) -> bool:
        """Tell whether x is stationary and inside GL(r)."""
        J, f = self.jacobian(x), self.residual(x)
        size = float(np.linalg.norm(f))
        # the entries of f are differences of numbers near 1, so their squares are exact only to ε
        # ‖f‖, and a smaller decrease cannot be detected
        least = max(1e-6 * size, float(np.sqrt(10 * epsilon(f) * size)), 1e-14)
        stationary = np.linalg.norm(J.T @ f) <= least * np.linalg.norm(J)
        # on the border of GL(r) one of the aligned factors loses rank
        Q = self.unpack(x)
        aligned = (self.TL @ Q, self.TR @ np.linalg.inv(Q).conj().T)
        inside = min(np.linalg.svd(M)[1][-1] for M in aligned) > 1e-6 * self.root[-1]
        return bool(stationary and inside)


def _compact_svd(L: Array, R: Array) -> tuple[Array, Array, Array]:
    """Return U, σ and V of L Rᴴ, with as many columns as the factors."""
    (Q, S), (P, T) = np.linalg.qr(L), np.linalg.qr(R)
    U, s, Vh = np.linalg.svd(S @ T.conj().T)
    return Q @ U, s, P @ Vh.conj().T


def _numpy(x: Array) -> Any:
    # torch tensors may be on a device, and are conjugated lazily
    return np.asarray(x.detach().cpu().resolve_conj() if is_torch_array(x) else x)
