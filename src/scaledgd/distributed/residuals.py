"""Residuals of entries in shards, and which entries are rejected."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import coo_array

from ..ambient import Ambient
from ..estimators.magnitudes import scale_of, typical_of
from ..estimators.observations import MULTIPLE, Measure, Model, Summary, position_of
from ..estimators.packing import host
from ..estimators.reading import available_memory
from ..factors import LowRank
from . import magnitudes, tasks
from .in_shards import InShards
from .operator import Distant, other_of, own_of
from .shards import concatenated
from .trimming import Within

Array = Any

COPIES = 3
"""Copies of entries there are, about, when they are brought here."""


@dataclass(frozen=True, eq=False)
class Residuals(InShards):
    """The part of `ShardedObservations` that is about residuals."""

    def bounded(self, low: tuple[Array | None, ...], high: tuple[Array | None, ...]) -> Self:
        """Return the values, cut at the bounds of their slices."""
        return self._then("bounded", low, high)

    def outside(self, low: tuple[Array | None, ...], high: tuple[Array | None, ...]) -> bool:
        """Return whether some value is outside of such bounds."""
        return any(self.each(magnitudes.outside, 0, None, self.chain, low, high))

    def without_outliers(self, factors: Model, threshold: float | None) -> Self:
        """Return the same entries, of which only those count that are no outliers."""
        return self if threshold is None else replace(self, kept=Within(factors, threshold))

    def spreads(self, mode: int) -> tuple[Array, Array]:
        """Return the medians of all slices of a mode, and the median distances to them."""
        found = self.each(magnitudes.spreads, mode, None, self.chain)
        middle, beyond = (concatenated([one[k] for one in found]) for k in (0, 1))
        return middle, beyond

    @cached_property
    def _typical(self) -> dict[float, float]:
        return {}

    def typical(self, quantile: float = 0.5) -> float:
        if quantile not in self._typical:
            self._typical[quantile] = typical_of(self.y, quantile)
        return self._typical[quantile]

    def residual_scale(self, factors: Model) -> float:
        return scale_of(Distant(self, factors))

    def residual_quantile(self, factors: Model, fraction: float) -> float:
        r = Distant(self, factors)
        return float(r.backend.kth_magnitude(r, position_of(fraction, self.size)))

    def within(self, factors: Model, limit: float) -> int:
        r = Distant(self, factors)
        return int(r.backend.within(r, limit)[1])

    def rejected(self, factors: Model, limit: float) -> tuple[float, list[Array]]:
        xp, r = array_namespace(self.example), Distant(self, factors)
        kept, count, *_ = r.backend.within(r, limit)
        there = self.operator.coverage(kept, None)
        modes = range(len(self.shape))
        ones = tuple(self.blank(mode, 1) + 1 for mode in modes)
        shares = []
        for mode in modes:
            n = self.counts(mode)
            number = xp.reshape(there.contract(ones, skip=mode), (-1,))
            share = 1 - number / xp.where(n > 0, n, xp.ones_like(n))
            shares.append(xp.where(n > 0, share, xp.zeros_like(n)))
        return 1 - int(count) / self.size, shares

    def clean_residual(self, factors: Model) -> tuple[Ambient, float, float]:
        r, whole = Distant(self, factors), math.prod(self.shape)
        kept, count, squares, _ = r.backend.within(r, MULTIPLE * scale_of(r))
        Z = self.operator.adjoint(replace(r, kept=kept))
        return Z, math.sqrt(squares / whole), int(count) / whole

    def rows_without_outliers(
        self, factors: Model, mode: int, floor: float, ridge: Array | None = None
    ) -> Model:
        ridges: list[Any] = [ridge] * len(self.shards[mode])
        if ridge is not None and ridge.ndim == 2:
            ridges = self.cut(ridge, mode)
        own = list(zip(own_of(self, factors, mode), ridges, strict=True))
        found = self.each(
            magnitudes.rows_without_outliers, mode, own, other_of(factors, mode), self.chain, floor
        )
        new = concatenated(found)
        return factors.with_blocks(
            tuple(new if k == mode else B for k, B in enumerate(factors.blocks))
        )

    def summary(self, estimate: Model, by: Measure) -> Summary:
        """Return what a fit leaves of the data, as `LocalObservations.summary` does."""
        # numbers of rows may stay on the workers, as the factor does
        rows = [self.cut(side[0] if side else None, 0) for side in (by.offsets, by.scales)]
        own = list(zip(own_of(self, estimate, 0), *rows, strict=True))
        other, sides = other_of(estimate, 0), (by.offsets[1:], by.scales[1:])

        def ask(outliers: bool) -> list[Summary]:
            return self.each(tasks.summary, 0, own, other, sides, by.size, by.threshold, outliers)

        found = ask(False)
        counts = self._sizes
        count = sum(one.count for one in found)
        units = sum(n * one.mean_unit for n, one in zip(counts, found, strict=True)) / self.size
        squares = math.fsum(one.squares for one in found)
        if by.threshold is None:
            return Summary(count, squares, units)
        self._check_room(self.size - int(count), "the outliers of this fit")
        scale = None
        if by.robust_scale:
            plain = self.shifted(by.offsets).standardised(by.scales).scaled(by.size)
            (L, R), (d, e) = estimate.blocks, by.scales or (None, None)
            L = L / by.size if d is None else L / (by.size * d[:, None])
            R = R if e is None else R / e[:, None]
            scale = scale_of(Distant(plain, LowRank(L, R)))
        return Summary(count, squares, units, self._outliers(ask(True)), scale)

    @property
    def _sizes(self) -> list[int]:
        """The number of entries of every shard of rows."""
        ends = np.cumsum(np.rint(host(self.counts(0)))).astype(np.int64)
        lasts = ends[[last - 1 for _, last in self.limits[0]]].tolist()
        return [b - a for a, b in pairwise([0, *lasts])]

    def _outliers(self, parts: list[Summary]) -> Any:
        """The outliers of all shards of rows as one sparse array."""
        firsts = [first for first, _ in self.limits[0]]
        rows = [p.outliers.coords[0] + first for p, first in zip(parts, firsts, strict=True)]
        others = zip(*(p.outliers.coords[1:] for p in parts), strict=True)
        index: Any = (np.concatenate(rows), *map(np.concatenate, others))
        values = np.concatenate([p.outliers.data for p in parts])
        return coo_array((values, index), shape=self.shape)

    def _check_room(self, entries: int, what: str) -> None:
        """Refuse to bring more entries here than there is memory for."""
        needed, left = COPIES * entries * (16 + np.dtype(self.dtype).itemsize), available_memory()
        if needed > left:
            raise MemoryError(
                f"{what}, {entries:,} entries, would take about {needed / 2**30:.3g} GiB on this "
                f"machine, which has {left / 2**30:.3g} GiB left; fit some of the rows"
            )
