"""Observed entries in shards, as the fitting code asks for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
from array_api_compat import array_namespace, device
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ..ambient import Ambient
from ..estimators.local_observations import LocalObservations
from ..estimators.observations import Model, Observations, Summary
from ..factors import Bordered
from ..linalg import epsilon, gram
from ..losses import Loss
from ..problems import Observed
from . import tasks
from .operator import Distant, ShardedEntries, ShardedProblem, other_of, own_of
from .shards import Chain, concatenated
from .systems import Doubts, shares
from .tall import RowsOfTable, Tall
from .workers import Work, Workers

Array = Any

SUMS = 1 << 26
"""Bytes of the sums of columns that a task makes at a time, about."""


@dataclass(frozen=True, eq=False)
class ShardedObservations(Observations):
    """Values at coordinates, in shards of rows and in shards of columns.

    Attributes
    ----------
    workers : Workers
    shards : pair of lists
        Those of rows and those of columns, as the workers know them.
    limits : pair of lists of (first, last)
        Which slices they hold.
    shape : (n1, n2)
    size : int
    dtype : dtype
    crowded : bool
        Whether most entries of the table are observed, which decides between kernels.
    chain : Chain
        What was done to the values since they were read.
    choice : tuple, optional
        Which entries were held out: a fraction, of how many, and the seed.
    far : bool
        Whether the factor of the rows stays on the workers.
    """

    workers: Workers
    shards: tuple[list[Any], list[Any]]
    limits: tuple[list[tuple[int, int]], list[tuple[int, int]]]
    shape: tuple[int, ...]
    count: int
    dtype: Any
    crowded: bool = False
    chain: Chain = field(default_factory=Chain)
    choice: tuple[Any, ...] | None = None
    far: bool = False

    index = None
    weight = None
    stamps = ()

    @property
    def size(self) -> int:
        return self.count

    @property
    def example(self) -> Array:
        return np.empty(0, dtype=self.dtype)

    @property
    def y(self) -> Any:
        """The values, as something to ask the problem about."""
        return Distant(self)

    @property
    def identity(self) -> tuple[Any, ...]:
        """What a checkpoint compares: the same for any number of shards."""
        found = self.each(tasks.fingerprint, 0)
        return self.shape, self.size, sum(found) & (2**63 - 1)

    # ---- asking the shards

    def each(
        self, work: Work, mode: int, own: Sequence[tuple[Any, ...]] | None = None, *shared: Any
    ) -> list[Any]:
        """Return what every shard of a mode answers, in order."""
        shards = self.shards[mode]
        return self.workers.each(work, shards, [()] * len(shards) if own is None else own, *shared)

    # ---- a factor that stays on the workers

    @property
    def rows(self) -> RowsOfTable:
        """Where the rows are."""
        return RowsOfTable(self.workers, self.shards[0], self.limits[0])

    def blank(self, mode: int, width: int) -> Array:
        if mode == 0 and self.far:
            return self.rows.zeros((width,), np.dtype(self.dtype))
        return super().blank(mode, width)

    def tall(
        self,
        work: Work,
        own: Sequence[tuple[Any, ...]],
        *shared: Any,
        widths: list[int],
        solves: bool = False,
    ) -> list[Any]:
        """Return the arrays that work of shards of rows leaves there, and what comes back.

        Rows that are solved for do not depend on where they were before. So they can be made again
        from nothing if they are lost, and what was before can be forgotten.
        """
        again = None
        if solves:
            again = [(x._replace(x=x.x.blank), *rest) for x, *rest in own]
        kept, small = self.rows.kept(work, own, *shared, again=again)
        arrays = [
            self.rows.leaf(kept, k, (width,), np.dtype(self.dtype))
            for k, width in enumerate(widths)
        ]
        return [*arrays, small]

    def questions(self, F: Any = None, systems: bool = False) -> list[tasks.Ask]:
        """Return parts of the columns, with what they have of factors.

        Parameters
        ----------
        F : LowRank or Bordered, optional
        systems : bool
            Whether sums are as large as systems.
        """
        n = self.shape[1]
        width = 1 if F is None else F.blocks[1].shape[1]
        width = width * (width + 5) // 2 + 2 if systems else width
        parts = min(n, max(math.ceil(8 * n * width / SUMS), self.workers.beside))
        ends = np.linspace(0, n, parts + 1).astype(int).tolist()
        if F is None:
            return [tasks.Ask(a, b) for a, b in pairwise(ends)]
        v = F.v if isinstance(F, Bordered) else None
        R = F.blocks[1]
        return [tasks.Ask(a, b, R[a:b], None if v is None else v[a:b]) for a, b in pairwise(ends)]

    def added(
        self,
        work: Work,
        own: Sequence[tuple[Any, ...]],
        asked: Sequence[tuple[Any, ...]],
        finish: Work,
        *shared: Any,
    ) -> list[Any]:
        """Return what follows from sums over the shards of rows, for every part of the columns."""
        return self.workers.added(work, self.shards[0], own, asked, finish, *shared)

    def cut(self, x: Array | None, mode: int) -> list[Any]:
        """Return the part of an array, with a row per slice, that every shard of a mode has."""
        if isinstance(x, Tall):
            return list(x.parts())
        limits = self.limits[mode]
        return [None if x is None else x[first:last] for first, last in limits]

    def _along(self, name: str, mode: int, *arguments: Any) -> Array:
        return concatenated(self.each(tasks.along, mode, None, self.chain, name, arguments))

    @cached_property
    def _shared(self) -> dict[str, Any]:
        """Caches that observations at the same coordinates share."""
        return {}

    def _then(self, name: str, *arguments: Any) -> ShardedObservations:
        other = replace(self, chain=self.chain.then(name, *arguments))
        other.__dict__["_shared"] = self._shared
        return other

    # ---- other values

    def in_precision_of(self, like: Array) -> ShardedObservations:
        """Return the values in the precision of another array."""
        if like.dtype != self.dtype:
            self._refuse("data in another precision than that of the fit")
        return self

    def scaled(self, size: float) -> ShardedObservations:
        return self if size == 1.0 else self._then("scaled", size)

    def standardised(
        self, scales: tuple[Array | None, ...], mean: float = 0.0
    ) -> ShardedObservations:
        if not mean and all(d is None for d in scales):
            return self
        return self._then("standardised", scales, mean)

    def shifted(self, offsets: tuple[Array | None, ...]) -> ShardedObservations:
        return self._then("shifted", offsets)

    def with_zeros(self) -> ShardedObservations:
        """Return zeros in place of the values."""
        return self._then("standardised", (math.inf + 0 * self.counts(0), None), 0.0)

    def residual(self, factors: Model) -> ShardedObservations:
        self._refuse("residuals as data")

    def without_outliers(self, factors: Model, threshold: float | None) -> ShardedObservations:
        """Return the entries; none is rejected."""
        return self

    # ---- other entries

    def gathered(self) -> LocalObservations:
        """Return all entries, here."""
        return self._local(self.each(tasks.entries, 0, None, None, self.chain))

    def _local(self, parts: list[Any]) -> LocalObservations:
        i, j, y = (concatenated([part[k] for part in parts]) for k in range(3))
        return LocalObservations((i, j), y, self.shape)

    def split(  # type: ignore[override]
        self, fraction: float, seed: int, parts: int = 1
    ) -> list[tuple[ShardedObservations, LocalObservations]]:
        pairs = []
        for part in range(parts):
            choice = fraction, self.size, seed, parts, part
            held = self._local(self.each(tasks.held, 0, None, self.chain, *choice))
            if 0 < held.size < self.size:
                pairs.append((self._kept(choice, held.size), held))
        return pairs

    def _kept(self, choice: tuple[Any, ...], held: int) -> ShardedObservations:
        """The entries that are not held out, in shards of their own."""
        rows, columns = (self.workers.derive(tasks.kept, shards, *choice) for shards in self.shards)
        return replace(self, shards=(rows, columns), count=self.size - held, choice=choice[:3])

    def core(self, most: int, seed: int) -> LocalObservations:  # type: ignore[override]
        if self.size <= most:
            return self.gathered()
        xp, both = array_namespace(self.example), tuple(self.by_counts(seed))
        within = self.workers.total(tasks.reach, self.shards[0], both, max(self.shape))
        ends = xp.cumulative_sum(within)
        last = max(2, int(xp.sum(xp.astype(ends <= most, xp.int64))))
        found = self.each(tasks.nearest, 0, None, both, last, self.chain)
        i, j, y = (concatenated([part[k] for part in found]) for k in range(3))
        return LocalObservations((i, j), y, (int(i.max()) + 1, int(j.max()) + 1))

    def sampled(self, mode: int, count: int, seed: int) -> LocalObservations:  # type: ignore[override]
        rng = np.random.default_rng(seed)
        chosen = np.sort(rng.choice(self.shape[mode], count, replace=False))
        where = device(self.example)
        return self.slices(mode, array_namespace(self.example).asarray(chosen, device=where))

    def slices(self, mode: int, chosen: Array) -> LocalObservations:  # type: ignore[override]
        data = self._local(self.each(tasks.entries, mode, None, chosen, self.chain))
        return data.slices(mode, chosen)

    def stacked(self, other: Any) -> NoReturn:
        self._refuse("partial_fit")

    # ---- reductions

    def counts(self, mode: int) -> Array:
        known = self._shared.setdefault("counts", {})
        if mode not in known:
            known[mode] = self._along("counts", mode)
        return known[mode]

    def means(self, mode: int, extra: float = 0.0) -> Array:
        return self._along("means", mode, extra)

    def medians(self, mode: int) -> Array:
        return self._along("medians", mode)

    def squares(self, mode: int, robust: bool = False) -> Array:
        return self._along("squares", mode, robust)

    @cached_property
    def _moments(self) -> tuple[float, float, float, float]:
        count, total, squares, largest = zip(
            *self.each(tasks.moments, 0, None, self.chain), strict=True
        )
        return sum(count), math.fsum(total), math.fsum(squares), max(largest)

    @property
    def sum_of_squares(self) -> float:
        return self._moments[2]

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

    def typical(self, quantile: float = 0.5) -> float:
        self._refuse("quantiles of all values")

    # ---- constants, for holes in rows and columns that have nothing else

    def equal(self, mode: int) -> tuple[Array, Array]:
        """Return a value of every line, and how often it occurs if the line has no other."""
        value, count = zip(*self.each(tasks.equal, mode, None, self.chain), strict=True)
        return np.concatenate(value), np.concatenate(count)

    def common(self, values: Array) -> Array:
        """Return how often values occur."""
        if not len(values):
            return np.zeros(0, dtype=np.int64)
        some, place = np.unique(values, return_inverse=True)
        return self.workers.total(tasks.common, self.shards[0], some, self.chain)[place]

    def frequent(self, share: float) -> tuple[Array, Array]:
        """Return the values that make up at least a share of the entries, and their counts."""
        # one that does so altogether does so in some shard
        values = np.unique(np.concatenate(self.each(tasks.frequent, 0, None, share, self.chain)))
        return values, self.common(values)

    # ---- the graph that joins rows and columns

    @cached_property
    def _joined(self) -> tuple[Array, Array]:
        """The connected part of every row and of every column; −1 where there is no entry."""
        mode = 0 if self.shape[1] <= self.shape[0] else 1
        found = self.each(tasks.parts, mode)
        width, base, ends = self.shape[1 - mode], 0, []
        for _, others in found:
            seen = np.flatnonzero(others >= 0)
            ends.append((others[seen] + base, seen))
            base += self.shape[mode] + width
        nodes = np.concatenate([end[0] for end in ends])
        some, nodes = np.unique(nodes, return_inverse=True)
        columns = np.concatenate([end[1] for end in ends]) + len(some)
        n = len(some) + width
        edges = coo_array((np.ones(len(nodes), dtype=np.int8), (nodes, columns)), shape=(n, n))
        label = connected_components(edges.tocsr(), directed=False)[1]
        own, base = [], 0
        for mine, _ in found:
            at = np.searchsorted(some, np.where(mine >= 0, mine + base, some[0]))
            own.append(np.where(mine >= 0, label[at], -1))
            base += self.shape[mode] + width
        seen = np.zeros(width, dtype=bool)
        seen[columns - len(some)] = True
        sides = np.concatenate(own), np.where(seen, label[len(some) :], -1)
        return sides if mode == 0 else sides[::-1]

    def components(self) -> int:
        if "components" not in self._shared:
            rows = self._joined[0]
            self._shared["components"] = len(np.unique(rows[rows >= 0]))
        return int(self._shared["components"])

    def component_labels(self) -> list[Any]:
        return list(self._joined)

    # ---- problems and residuals

    @property
    def operator(self) -> ShardedEntries:
        """The operator that observes these entries."""
        return ShardedEntries(self)

    def problem(self, loss: Loss | None = None) -> Observed:
        if loss is not None:
            self._refuse("a loss other than least squares")
        return ShardedProblem(self.operator, self.y)

    def squared_errors(self, factors: Model, scales: Any = None) -> Array:
        return self.gathered().squared_errors(factors, scales)

    def summary(
        self,
        estimate: Model,
        offsets: tuple[Array | None, ...] = (),
        size: float = 1.0,
        scales: tuple[Array | None, ...] = (),
        threshold: float | None = None,
        robust_scale: bool = False,
    ) -> Summary:
        """Return what a fit leaves of the data, as `LocalObservations.summary` does."""
        b, c = offsets or (None, None)
        d, e = scales or (None, None)
        parts = (self.cut(x, 0) for x in (b, d))
        own = list(zip(own_of(self, estimate, 0), *parts, strict=True))
        found = self.each(tasks.summary, 0, own, other_of(estimate, 0), (c, e), size)
        count = sum(one.count for one in found)
        units = sum(one.count * one.mean_unit for one in found)
        return Summary(count, math.fsum(one.squares for one in found), units / count)

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
        found = self.each(
            tasks.share_of_variance, mode, list(mine), other_of(F, mode), self.chain, noise
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

    # ---- what needs the entries on one machine

    def residual_scale(self, factors: Model) -> float:
        self._refuse("robust fits")

    def residual_quantile(self, factors: Model, fraction: float) -> float:
        self._refuse("robust fits")

    def within(self, factors: Model, limit: float) -> int:
        self._refuse("robust fits")

    def rejected(self, factors: Model, limit: float) -> tuple[float, list[Array]]:
        self._refuse("robust fits")

    def clean_residual(self, factors: Model) -> tuple[Ambient, float, float]:
        self._refuse("robust fits")

    def rows_without_outliers(
        self, factors: Model, mode: int, floor: float, ridge: Array | None = None
    ) -> Model:
        self._refuse("robust fits")

    def _refuse(self, what: str) -> NoReturn:
        raise NotImplementedError(
            f"{what} of {self.size:,} entries on a cluster: not distributed yet; fit data that one "
            "machine can hold, such as X.compute()"
        )
