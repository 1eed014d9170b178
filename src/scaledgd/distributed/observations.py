"""Observed entries in shards, as the fitting code asks for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from array_api_compat import array_namespace, device
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ..estimators.local_observations import LocalObservations
from ..estimators.observations import Model
from ..factors import Tucker
from ..linalg import epsilon, gram
from ..losses import HardTrim, Loss, Squared
from ..problems import Observed
from . import among, tasks
from .operator import other_of, own_of
from .problem import ShardedProblem
from .residuals import Residuals
from .shards import concatenated, others_of
from .systems import Doubts, shares

Array = Any


@dataclass(frozen=True, eq=False)
class ShardedObservations(Residuals):
    """Values at coordinates, in shards of rows and in shards of columns."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """What a checkpoint compares: the same for any number of shards."""
        found = self.each(among.fingerprint, 0)
        return self.shape, self.size, sum(found) & (2**63 - 1)

    # ---- other values

    def in_precision_of(self, like: Array) -> ShardedObservations:
        """Return the values in the precision of another array."""
        if like.dtype != self.dtype:
            self._refuse("data in another precision than that of the fit")
        return self

    def residual(self, factors: Model) -> ShardedObservations:
        if not isinstance(factors, Tucker):
            self._refuse("residuals as data")
        return self._then("residual", factors)

    # ---- other entries

    def gathered(self) -> LocalObservations:
        """Return all entries, here."""
        return self._local(self.each(among.entries, 0, None, None, self.chain))

    def _local(self, parts: list[Any]) -> LocalObservations:
        *index, y = map(concatenated, zip(*parts, strict=True))
        return LocalObservations(tuple(index), y, self.shape)

    def split(  # type: ignore[override]
        self, fraction: float, seed: int, parts: int = 1
    ) -> list[tuple[ShardedObservations, LocalObservations]]:
        pairs = []
        for part in range(parts):
            choice = fraction, self.size, seed, parts, part
            held = self._local(self.each(among.held, 0, None, self.chain, *choice))
            if 0 < held.size < self.size:
                pairs.append((self._kept(choice, held.size), held))
        return pairs

    def _kept(self, choice: tuple[Any, ...], held: int) -> ShardedObservations:
        """The entries that are not held out, in shards of their own."""
        shards = tuple(self.workers.derive(among.kept, some, *choice) for some in self.shards)
        return replace(self, shards=shards, count=self.size - held, choice=choice[:3])

    def core(self, most: int, seed: int) -> LocalObservations:  # type: ignore[override]
        if self.size <= most:
            return self.gathered()
        xp, places = array_namespace(self.example), tuple(self.by_counts(seed))
        within = self.workers.total(among.reach, self.shards[0], places, max(self.shape))
        ends = xp.cumulative_sum(within)
        last = max(2, int(xp.sum(xp.astype(ends <= most, xp.int64))))
        part = self._local(self.each(among.nearest, 0, None, places, last, self.chain))
        return replace(part, shape=tuple(int(i.max()) + 1 for i in part.coordinates))

    def sampled(self, mode: int, count: int, seed: int) -> LocalObservations:  # type: ignore[override]
        rng = np.random.default_rng(seed)
        chosen = np.sort(rng.choice(self.shape[mode], count, replace=False))
        where = device(self.example)
        return self.slices(mode, array_namespace(self.example).asarray(chosen, device=where))

    def slices(self, mode: int, chosen: Array) -> LocalObservations:  # type: ignore[override]
        self._check_room(int(self.counts(mode)[chosen].sum()), "the part that is looked at")
        data = self._local(self.each(among.entries, mode, None, chosen, self.chain))
        return data.slices(mode, chosen)

    def stacked(self, other: Any) -> NoReturn:
        self._refuse("partial_fit")

    # ---- reductions

    def counts(self, mode: int) -> Array:
        known = self._shared.setdefault("counts", {})
        if mode not in known:
            known[mode] = self._along("counts", mode)
        return known[mode]

    def total_weight(self, mode: int) -> Array:
        """Return the sums of the weights, which are ones."""
        return self.counts(mode)

    def means(self, mode: int, extra: float = 0.0) -> Array:
        return self._along("means", mode, extra)

    def medians(self, mode: int) -> Array:
        return self._along("medians", mode)

    def squares(self, mode: int, robust: bool = False) -> Array:
        return self._along("squares", mode, robust)

    @property
    def constant(self) -> bool:
        """Whether all values are equal."""
        low, high = zip(*self.each(among.extremes, 0, None, self.chain), strict=True)
        return bool(min(low) == max(high))

    def mean(self) -> float:
        return self._moments[1] / self.size

    def mean_square(self) -> float:
        return self._moments[2] / self.size

    def magnitude(self) -> float:
        largest = self._moments[3]
        if largest == 0.0:
            return 1.0
        exponent, safe = math.frexp(largest)[1], 100 if epsilon(self.example) < 1e-10 else 12
        if abs(exponent) > safe:  # squares of these may not be numbers
            return math.ldexp(1.0, exponent) * self.scaled(math.ldexp(1.0, exponent)).magnitude()
        return math.ldexp(1.0, math.frexp(math.sqrt(self.mean_square()))[1])

    # ---- constants, for holes in rows and columns that have nothing else

    def equal(self, mode: int) -> tuple[Array, Array]:
        """Return a value of every line, and how often it occurs if the line has no other."""
        value, count = zip(*self.each(among.equal, mode, None, self.chain), strict=True)
        return np.concatenate(value), np.concatenate(count)

    def common(self, values: Array) -> Array:
        """Return how often values occur."""
        if not len(values):
            return np.zeros(0, dtype=np.int64)
        some, place = np.unique(values, return_inverse=True)
        return self.workers.total(among.common, self.shards[0], some, self.chain)[place]

    def frequent(self, share: float) -> tuple[Array, Array]:
        """Return the values that make up at least a share of the entries, and their counts."""
        # one that does so altogether does so in some shard
        values = np.unique(np.concatenate(self.each(among.frequent, 0, None, share, self.chain)))
        return values, self.common(values)

    # ---- the graph that joins rows and columns

    @cached_property
    def _joined(self) -> tuple[Array, ...]:
        """The connected part of every slice, by mode; −1 where there is no entry."""
        mode = 0 if self.shape[1] <= self.shape[0] else 1
        found, sizes = self.each(among.joined, mode), others_of(self.shape, mode)
        width, base, ends = sum(sizes), 0, []
        for _, others in found:
            seen = np.flatnonzero(others >= 0)
            ends.append((others[seen] + base, seen))
            base += self.shape[mode] + width
        nodes = np.concatenate([end[0] for end in ends])
        some, nodes = np.unique(nodes, return_inverse=True)
        beside = np.concatenate([end[1] for end in ends]) + len(some)
        n = len(some) + width
        edges = coo_array((np.ones(len(nodes), dtype=np.int8), (nodes, beside)), shape=(n, n))
        label = connected_components(edges.tocsr(), directed=False)[1]
        own, base = [], 0
        for mine, _ in found:
            at = np.searchsorted(some, np.where(mine >= 0, mine + base, some[0]))
            own.append(np.where(mine >= 0, label[at], -1))
            base += self.shape[mode] + width
        seen = np.zeros(width, dtype=bool)
        seen[beside - len(some)] = True
        others = np.where(seen, label[len(some) :], -1)
        sides = np.split(others, np.cumsum(sizes[:-1]))
        return (*sides[:mode], np.concatenate(own), *sides[mode:])

    def components(self) -> int:
        if "components" not in self._shared:
            rows = self._joined[0]
            self._shared["components"] = len(np.unique(rows[rows >= 0]))
        return int(self._shared["components"])

    def component_labels(self) -> list[Any]:
        return list(self._joined)

    # ---- problems and residuals

    def problem(self, loss: Loss | None = None) -> Observed:
        if loss is not None and not isinstance(loss, HardTrim):
            self._refuse("a loss other than least squares and rejection")
        return ShardedProblem(self.operator, self.y, Squared() if loss is None else loss)

    def squared_errors(self, factors: Model, scales: Any = None) -> Array:
        return self.gathered().squared_errors(factors, scales)

    def shares_of_variance(
        self, F: Any, ridge: Array, noise: float, mode: int, index: tuple[Array, ...]
    ) -> Array:
        """Return what the rows of a mode add to the variance of entries, over the noise."""
        if self.far and mode == 1:
            return self._shares_of_columns(F, ridge, index)
        xp, where = array_namespace(self.example), device(self.example)
        lasts = xp.asarray(
            [last for _, last in self.limits[mode][:-1]], dtype=xp.int64, device=where
        )
        part = xp.searchsorted(lasts, index[mode], side="right")
        ridges = [ridge] * len(self.shards[mode]) if ridge.ndim == 1 else self.cut(ridge, mode)
        own, places = [], []
        for k, (first, _) in enumerate(self.limits[mode]):
            chosen = xp.nonzero(part == k)[0]
            here = [xp.take(i, chosen) for i in index]
            here[mode] = here[mode] - first
            places.append(chosen)
            own.append(tuple(here))
        mine = zip(own_of(self, F, mode), ridges, own, strict=True)
        limit = None if self.kept is None else self.kept.limit
        found = self.each(
            tasks.share_of_variance, mode, list(mine), other_of(F, mode), self.chain, noise, limit
        )
        share = xp.zeros(index[0].shape[0], dtype=self.dtype, device=where)
        for chosen, values in zip(places, found, strict=True):
            share[chosen] = values
        return share

    def _shares_of_columns(self, F: Any, ridge: Array, index: tuple[Array, ...]) -> Array:
        """The same for columns, where rows stay on the workers."""
        M = F.partner(1)
        if not M.shape[1]:
            return 1 / (1 + self.counts(1)[index[1]])
        whole, vectors = gram(M), M.take(index[0])
        rows = [(x, None) for x in own_of(self, F, 0)]
        asked, places = [], []
        for ask in self.questions(F, systems=True):
            at = np.flatnonzero((index[1] >= ask.first) & (index[1] < ask.last))
            some = ridge if ridge.ndim == 1 else ridge[ask.first : ask.last]
            asked.append((ask, Doubts(whole, some, vectors[at], index[1][at] - ask.first)))
            places.append(at)
        found = self.added(tasks.column_systems, rows, asked, shares, self.chain)
        share = np.zeros(len(index[0]), dtype=self.dtype)
        for at, values in zip(places, found, strict=True):
            share[at] = values
        return share

    def forget(self) -> None:
        """Drop the caches."""

    def rest(self) -> None:
        """Let go of what the rows of a model do not need: nothing is held here."""
