"""The variance of estimates, entry by entry.

X is linear in the rows of each mode matrix, and the rows are separate least-squares problems. So
to first order the error of an entry is a sum over modes, and mode k contributes
σ² vᵀ (Σ v vᵀ)⁻¹ v: v multiplies the row of mode k that the entry lies on, and the sum goes over
the observed entries of that row. If entries are observed at random with probability p, this is
the σ²/p (‖U_i‖² + ‖V_j‖²) of Chen, Fan, Ma and Yan (2019), but it accounts for how often each
row and column was observed, and with what weights. A ridge enters the inverse. It reduces the
variance and adds a bias; if it is the noise over the prior variance, as the learnt one is, then
σ² vᵀ (Σ v vᵀ + ridge)⁻¹ v is the expected square of the whole error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .. import checks
from ..factors import Tucker
from ..kernels import JITTER
from ..linalg import epsilon, identity, invert_systems, smallest, solve_systems, whitening
from .local_observations import LocalObservations
from .packing import host

Array = Any
Index = tuple[Array, ...]

PART = 1 << 22
"""Number of values that are processed at a time."""


@dataclass(frozen=True, eq=False)
class Spread:
    """The variance of estimates.

    Attributes
    ----------
    factors : Bordered or Tucker
        A Tucker model with orthonormal factors.
    data : LocalObservations
        The fitted data, with their weights.
    ridges : tuple of arrays of shape (q,) or (n, q), one per mode
    noise : float
        The variance of an observation of weight 1.
    offsets : tuple of arrays of shape (n,) or None, one per mode
        The variance of additive offsets outside the factors, relative to the noise.
    """

    factors: Any
    data: LocalObservations
    ridges: tuple[Array, ...]
    noise: float
    offsets: tuple[Array | None, ...] = ()

    def variance(self, index: Index) -> Array:
        """Return the variance of the estimates at coordinates."""
        xp, F = array_namespace(self.data.y), self.factors
        total = xp.zeros_like(xp.astype(index[0], self.data.y.dtype))
        inside = total + 1 / self.data.fraction
        for mode in range(len(self.data.shape)):
            share = self.share(mode, index)
            if isinstance(F, Tucker):
                # the part within the span of a factor belongs to the core
                within = xp.take(xp.sum(F.factors[mode] ** 2, axis=1), index[mode])
                share, inside = share * (1 - within), inside * within
            total = total + share
        for known, i in zip(self.offsets, index, strict=False):
            total = total if known is None else total + xp.take(known, i)
        total = total + inside if isinstance(F, Tucker) else total
        # rounding may give slightly negative values
        return self.noise * xp.where(total > 0, total, 0 * total)

    def share(self, mode: int, index: Index) -> Array:
        """Return what the rows of a mode add to the variance at coordinates, in units of the
        noise.
        """
        elsewhere = getattr(self.data, "shares_of_variance", None)
        if elsewhere is not None:
            return elsewhere(self.factors, self.ridges[mode], self.noise, mode, index)
        xp = array_namespace(self.data.y)
        share = xp.zeros_like(xp.astype(index[0], self.data.y.dtype))
        if not self._width(mode):
            # no component was found: use the variance of one just below detection
            share = share + 1 / (1 + xp.take(self.data.counts(mode), index[mode]))
        for part, V, inverses in self._systems(mode, index):
            share[part] = xp.sum(V * xp.sum(inverses * V[:, None, :], axis=2), axis=1)
        return share

    def drawn(self, rng: np.random.Generator) -> Any:
        """Return factors drawn with their uncertainty."""
        F, modes = self.factors, len(self.data.shape)
        moved = [B + self.draws(k, rng) if k < modes else B for k, B in enumerate(F.blocks)]
        return F.with_blocks(tuple(moved))

    def draws(self, mode: int, rng: np.random.Generator) -> Array:
        """Return a draw of the error of every row of a mode matrix."""
        xp, B = array_namespace(self.data.y), self.factors.blocks[mode]
        if not B.shape[1]:
            return xp.zeros_like(B)
        found = []
        for _, _, T, G in self._grams(mode, self.data):
            z = normal_numbers(rng, G[:, 0, :])
            # with G = C Cᵀ the rows of T C⁻ᵀ z have the covariance T G⁻¹ Tᵀ
            C = xp.linalg.cholesky(G)
            x = solve_systems(xp.matrix_transpose(C), z[:, :, None])[:, :, 0]
            found.append(x @ T.T)
        return math.sqrt(self.noise) * xp.concat(found)

    def _width(self, mode: int) -> int:
        return int(self.factors.design(mode).width)

    def _grams(self, mode: int, data: LocalObservations, ridge: Any = None) -> Any:
        """Batches of the rows of a mode, and their systems in coordinates that orthonormalise v."""
        xp = array_namespace(data.y)
        plain = self.factors.design(mode)
        # squares of huge numbers overflow, and so does one over the smallest
        size = float(xp.max(xp.abs(plain.arrays[0])))
        size = size if size > smallest(data.y) else 1.0
        whole = identity(plain.width, like=plain.arrays[0]) / size
        T = whitening(plain.transformed(whole).gram()) / size
        design, q = plain.transformed(T), T.shape[0]
        ridge = self.ridges[mode] if ridge is None else ridge
        rows, most = data.operator.rows(data.y), smallest(data.y) ** -0.25
        step = max(1, PART // max(1, q * q))
        for first in range(0, data.shape[mode], step):
            last = min(first + step, data.shape[mode])
            G = rows.row_grams(design, mode, first, last, data.weight)
            size = xp.max(xp.linalg.diagonal(G), axis=1)
            size = xp.where(size > 0, size, xp.ones_like(size))
            held = xp.sqrt(ridge if ridge.ndim == 1 else ridge[first:last, :])[..., None] * T
            # the ridge of a vanished component may be so large that its square overflows
            held = xp.clip(held, -most, most)
            G = G + xp.matrix_transpose(held) @ held
            jitter = max(JITTER, q * epsilon(G))
            yield first, last, T, G + jitter * size[:, None, None] * identity(q, like=G)

    def _systems(self, mode: int, index: Index) -> Any:
        """Batches of the coordinates: positions, their v, and the inverse systems of their rows."""
        xp = array_namespace(self.data.y)
        if not self._width(mode):
            return
        wanted, place = np.unique(host(index[mode]), return_inverse=True)
        data, ridge = self.data, self.ridges[mode]
        there = xp.asarray(wanted, device=device(data.y))
        # rows without entries have no systems
        if 2 * len(wanted) < data.shape[mode] and bool(xp.any(xp.take(data.counts(mode), there))):
            data = data.slices(mode, there)
            ridge = ridge if ridge.ndim == 1 else xp.take(ridge, there, axis=0)
        else:
            place = host(index[mode])
        order = np.argsort(place, kind="stable")
        starts = np.searchsorted(place[order], np.arange(data.shape[mode] + 1))
        for first, last, T, G in self._grams(mode, data, ridge):
            begin, end = int(starts[first]), int(starts[last])
            if begin == end:
                continue
            inverses, design = invert_systems(G), self.factors.design(mode).transformed(T)
            step = max(1, PART // T.shape[0] ** 2)
            for s in range(begin, end, step):
                chosen = order[s : min(s + step, end)]
                part = xp.asarray(chosen, device=device(data.y))
                here = xp.asarray(place[chosen] - first, device=device(data.y))
                yield part, design.columns(index, part).T, xp.take(inverses, here, axis=0)


def normal_numbers(rng: np.random.Generator, like: Array) -> Array:
    """Return standard normal numbers of the shape and kind of an array."""
    xp = array_namespace(like)
    return xp.asarray(rng.standard_normal(tuple(like.shape)), dtype=like.dtype, device=device(like))


# ---- intervals


def student_quantile(level: float, free: float) -> float:
    """Return the half width of a two-sided interval, in standard errors.

    The noise is estimated with `free` degrees of freedom.
    """
    from scipy.special import stdtrit

    return float(stdtrit(max(1.0, free), 0.5 + 0.5 * level))


def check_level(level: float) -> float:
    """Require a share between 0 and 1, both excluded."""
    level = checks.number("level", level, least=0, most=1, open_=True)
    if level == 1:
        raise ValueError("level must be below 1: no interval contains everything")
    return level


def conformal_scores(off: Array, tolerance: Array) -> Array:
    """Return sorted errors of estimates in units of their expected size; never infinite."""
    xp = array_namespace(off)
    most = min(1e300, 0.1 * float(xp.finfo(off.dtype).max))
    return xp.sort(xp.clip(off / tolerance, 0.0, most))


def conformal_quantile(scores: Array, level: float) -> float:
    """Return the score that a new one does not exceed with a probability of at least `level`.

    Parameters
    ----------
    scores : array of shape (m,), sorted
        Scores of entries that the fit did not see. The rank of a new score among them is
        uniform, for any noise.
    """
    m = scores.shape[0]
    k = math.ceil((m + 1) * level - 1e-9)
    if k > m:
        raise ValueError(
            f"level={level:g} needs {math.ceil(level / (1 - level))} entries to calibrate with, "
            f"and there are {m}; set calibrate higher, or ask for a lower level"
        )
    return float(scores[k - 1])
