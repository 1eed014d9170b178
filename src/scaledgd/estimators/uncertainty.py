"""How sure an estimate is, entry by entry.

X is linear in the rows of each mode matrix, and the rows are least-squares problems of their
own. So to first order the error of an entry is the sum of what the rows that it lies on
contribute: σ² vᵀ (Σ v vᵀ)⁻¹ v for each mode, the sum over the observed entries of the row and v
what multiplies it. Where entries are observed at random with probability p this is
the σ²/p (‖U_i‖² + ‖V_j‖²) of Chen, Fan, Ma and Yan (2019); but it knows how often each row and
each column was observed, and with what weights. A ridge stands in the inverse: beside the
variance that it takes away it leaves a bias, and if it is the noise over the prior variance, as
the learnt one is, the expected square of that bias is what (Σ v vᵀ + ridge)⁻¹ has too much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .. import checks, kernels
from ..factors import LowRank, Tucker
from ..linalg import identity, mode_product, whitening
from .cells import Cells
from .packing import host, packable

Array = Any
Index = tuple[Array, ...]

PART = 1 << 22
"""Numbers that are held at a time."""


@dataclass(frozen=True, eq=False)
class Spread:
    """The variance of estimates.

    Attributes
    ----------
    factors : Bordered or Tucker
        A Tucker model with orthonormal factors.
    cells : Cells
        What was fitted, with the weights it had.
    ridges : tuple of arrays of shape (q,) or (n, q), one per mode
    noise : float
        The variance of an observation of weight 1.
    offsets : tuple of arrays of shape (n,) or None, one per mode
        The variance of additive offsets that are no part of the factors, over the noise.
    """

    factors: Any
    cells: Cells
    ridges: tuple[Array, ...]
    noise: float
    offsets: tuple[Array | None, ...] = ()

    def variance(self, index: Index) -> Array:
        """Of the estimates at some coordinates, each the square of a standard error."""
        xp, F = array_namespace(self.cells.y), self.factors
        total = xp.zeros_like(xp.astype(index[0], self.cells.y.dtype))
        inside = total + 1 / self.cells.p
        for mode in range(len(self.cells.shape)):
            share = total + 0
            if not self._width(mode):
                # no factor was found: one that just escaped notice would be as unsure as this
                share = share + 1 / (1 + xp.take(self.cells.counts(mode), index[mode]))
            for part, V, inverses in self._systems(mode, index):
                share[part] = xp.sum(V * xp.sum(inverses * V[:, None, :], axis=2), axis=1)
            if isinstance(F, Tucker):
                # what lies within the span of a factor is the core's
                within = xp.take(xp.sum(F.factors[mode] ** 2, axis=1), index[mode])
                share, inside = share * (1 - within), inside * within
            total = total + share
        for known, i in zip(self.offsets, index, strict=False):
            total = total if known is None else total + xp.take(known, i)
        return self.noise * (total + inside if isinstance(F, Tucker) else total)

    def drawn(self, rng: np.random.Generator) -> Any:
        """Factors as they could be, with what they are known by."""
        F, modes = self.factors, len(self.cells.shape)
        moved = [B + self.draws(k, rng) if k < modes else B for k, B in enumerate(F.blocks)]
        return F.with_blocks(tuple(moved))

    def draws(self, mode: int, rng: np.random.Generator) -> Array:
        """What to add to every row of a mode matrix, as a draw of its error."""
        xp, B = array_namespace(self.cells.y), self.factors.blocks[mode]
        if not B.shape[1]:
            return xp.zeros_like(B)
        found = []
        for _, _, T, G in self._grams(mode, self.cells):
            z = xp_normal(rng, G[:, 0, :])
            # with G = C Cᵀ the rows of T C⁻ᵀ z have the covariance T G⁻¹ Tᵀ
            C = xp.linalg.cholesky(G)
            x = xp.linalg.solve(xp.matrix_transpose(C), z[:, :, None])[:, :, 0]
            found.append(x @ T.T)
        return math.sqrt(self.noise) * xp.concat(found)

    def _width(self, mode: int) -> int:
        return int(self.factors.design(mode).gram().shape[0])

    def _grams(self, mode: int, cells: Cells, ridge: Any = None) -> Any:
        """Parts of the rows of a mode, and their systems where all v together are orthonormal."""
        xp = array_namespace(cells.y)
        plain = self.factors.design(mode)
        T = whitening(plain.gram())
        design, q = plain.transformed(T), T.shape[0]
        ridge = self.ridges[mode] if ridge is None else ridge
        rows: Any = kernels.Grid(cells.shape)
        if cells.index is not None:
            rows = kernels.pattern(cells.index, cells.shape)
        step = max(1, PART // max(1, q * q))
        for first in range(0, cells.shape[mode], step):
            last = min(first + step, cells.shape[mode])
            G = rows.row_grams(design, mode, first, last, cells.weight)
            G = G + (T.T * (ridge if ridge.ndim == 1 else ridge[first:last, None, :])) @ T
            size = xp.max(xp.linalg.diagonal(G), axis=1)
            size = xp.where(size > 0, size, xp.ones_like(size))
            yield first, last, T, G + kernels.JITTER * size[:, None, None] * identity(q, like=G)

    def _systems(self, mode: int, index: Index) -> Any:
        """Parts of the coordinates: which, their v, and the inverse of the system of their row."""
        xp = array_namespace(self.cells.y)
        if not self._width(mode):
            return
        wanted, place = np.unique(host(index[mode]), return_inverse=True)
        cells, ridge = self.cells, self.ridges[mode]
        if 2 * len(wanted) < cells.shape[mode]:
            there = xp.asarray(wanted, device=device(cells.y))
            cells = cells.slices(mode, there)
            ridge = ridge if ridge.ndim == 1 else xp.take(ridge, there, axis=0)
        else:
            place = host(index[mode])
        order = np.argsort(place, kind="stable")
        starts = np.searchsorted(place[order], np.arange(cells.shape[mode] + 1))
        for first, last, T, G in self._grams(mode, cells, ridge):
            begin, end = int(starts[first]), int(starts[last])
            if begin == end:
                continue
            inverses, design = xp.linalg.inv(G), self.factors.design(mode).transformed(T)
            step = max(1, PART // T.shape[0] ** 2)
            for s in range(begin, end, step):
                chosen = order[s : min(s + step, end)]
                part = xp.asarray(chosen, device=device(cells.y))
                here = xp.asarray(place[chosen] - first, device=device(cells.y))
                yield part, design.columns(index, part).T, xp.take(inverses, here, axis=0)


def xp_normal(rng: np.random.Generator, like: Array) -> Array:
    """Standard normal numbers of the shape and kind of an array."""
    xp = array_namespace(like)
    return xp.asarray(rng.standard_normal(tuple(like.shape)), dtype=like.dtype, device=device(like))


# ---- intervals


def student_quantile(level: float, free: float) -> float:
    """How many standard errors a two-sided interval reaches, the noise known by so many cells."""
    from scipy.special import stdtrit

    return float(stdtrit(max(1.0, free), 0.5 + 0.5 * level))


def check_level(level: float) -> float:
    """A share that is neither none nor all."""
    level = checks.number("level", level, least=0, most=1, open_=True)
    if level == 1:
        raise ValueError("level must be below 1: no interval holds everything")
    return level


def conformal_scores(off: Array, tolerance: Array) -> Array:
    """How far off estimates are, in units of what was expected, in order; never infinite."""
    xp = array_namespace(off)
    return xp.sort(xp.clip(off / tolerance, 0.0, 1e300))


def conformal_quantile(scores: Array, level: float) -> float:
    """The score that a new one does not exceed with a probability of at least `level`.

    Parameters
    ----------
    scores : array of shape (m,), sorted
        Of entries that the fit did not see. A new entry is as likely to fall anywhere among
        them, whatever the noise is like.
    """
    m = scores.shape[0]
    k = math.ceil((m + 1) * level - 1e-9)
    if k > m:
        raise ValueError(
            f"level={level:g} needs {math.ceil(level / (1 - level))} entries to calibrate with, "
            f"and there are {m}; set calibrate higher, or ask for a lower level"
        )
    return float(scores[k - 1])


# ---- regression

LARGEST = 1500
"""Parameters of a model whose information is kept whole."""


@packable
@dataclass(frozen=True, eq=False)
class Information:
    """What measurements say about the parameters of a low-rank coefficient.

    Attributes
    ----------
    total : array of shape (q, q), or None where there are too many parameters
        Σ g gᵀ + ridge over the measurements, g the gradient of one by the parameters, centred
        where there is an intercept.
    mean : array of shape (q,)
        Of the gradients; zero where there is no intercept.
    square : float
        The mean of ‖g‖², centred.
    m : int
    intercept : bool
    """

    total: Array | None
    mean: Array
    square: float
    m: int
    intercept: bool

    @classmethod
    def of(cls, F: Any, A: Array, intercept: bool, ridge: float) -> Information:
        """Of a Tucker model only the core, its last block, is held by the ridge."""
        xp = array_namespace(A)
        q, m = sum(math.prod(B.shape) for B in F.blocks), A.shape[0]
        mean: Any = xp.zeros_like(A[0, :1]) * xp.ones(q, dtype=A.dtype, device=device(A))
        parts = _parts(A, q)
        if intercept:
            mean = sum(xp.sum(gradients(F, A[part]), axis=0) for part in parts) / m
        held = q if isinstance(F, LowRank) else math.prod(F.blocks[-1].shape)
        last = xp.astype(xp.arange(q, device=device(A)) >= q - held, A.dtype)
        total: Any = 0.0 if q > LARGEST else ridge * last[None, :] * identity(q, like=A)
        square = 0.0
        for part in parts:
            g = gradients(F, A[part]) - mean
            square += float(xp.sum(g * g)) / m
            total = total if q > LARGEST else total + g.T @ g
        return cls(None if q > LARGEST else total, mean, square, m, intercept)

    def leverage(self, F: Any, A: Array, centred: bool = True) -> Array:
        """The variance of ⟨A, coefficient⟩ (and of the intercept) over that of the noise."""
        xp, root = array_namespace(A), self._root
        # without the whole, as if all parameters were measured equally often
        each = 1 / math.sqrt(self.m * self.square / self.mean.shape[0] or 1.0)
        found = []
        for part in _parts(A, self.mean.shape[0]):
            g = gradients(F, A[part]) - (self.mean if centred else 0.0)
            found.append(xp.sum((g * each if root is None else g @ root) ** 2, axis=1))
        constant = 1 / self.m if self.intercept and centred else 0.0
        return xp.concat(found) + constant if found else A[:, 0]

    @property
    def _root(self) -> Array | None:
        """T with T Tᵀ the inverse of the total, along what was measured."""
        if self.total is None:
            return None
        xp = array_namespace(self.mean)
        values, Q = xp.linalg.eigh(self.total)
        seen = values > 1e-10 * values[-1]
        safe = xp.where(seen, values, xp.ones_like(values))
        return Q * xp.where(seen, 1 / xp.sqrt(safe), xp.zeros_like(values))[None, :]


def _parts(A: Array, q: int) -> list[slice]:
    step = max(1, PART // max(1, q, A.shape[1]))
    return [slice(s, s + step) for s in range(0, A.shape[0], step)]


def gradients(F: Any, A: Array) -> Array:
    """Of ⟨A_i, X⟩ by all numbers in all blocks: shape (m, q)."""
    xp, shape = array_namespace(A), F.shape
    T = xp.reshape(A, (-1, *shape))
    modes = list(F.blocks[: len(shape)])
    found = []
    for k in range(len(shape)):
        G = T
        for j, M in enumerate(modes):
            if j != k:
                G = mode_product(G, M.T, j + 1)
        if isinstance(F, LowRank):
            # the rank of the other matrix is where its rows were
            G = G if k == 0 else xp.matrix_transpose(G)
        else:
            core, others = xp.moveaxis(F.core, k, 0), tuple(range(1, len(shape)))
            rest = tuple(j + 1 for j in others)
            G = xp.tensordot(xp.moveaxis(G, k + 1, 1), core, axes=(rest, others))
        found.append(xp.reshape(G, (T.shape[0], -1)))
    if not isinstance(F, LowRank):
        for j, M in enumerate(modes):
            T = mode_product(T, M.T, j + 1)
        found.append(xp.reshape(T, (T.shape[0], -1)))
    return xp.concat(found, axis=1)
