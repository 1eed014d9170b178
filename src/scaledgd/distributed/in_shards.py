"""Where the shards are, and how they are asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NoReturn, Self

import numpy as np

from ..estimators.observations import Observations
from ..factors import Bordered
from . import tasks
from .operator import Distant, ShardedEntries
from .shards import Chain, concatenated
from .tall import RowsOfTable, Tall
from .trimming import Within
from .workers import Work, Workers

Array = Any

SUMS = 1 << 26
"""Bytes of the sums of columns that a task makes at a time, about."""


@dataclass(frozen=True, eq=False)
class InShards(Observations):
    """Values at coordinates, in shards of rows and in shards of columns, or of every mode.

    Attributes
    ----------
    workers : Workers
    shards : tuple of lists, one per mode
        Those of rows and those of columns, as the workers know them.
    limits : tuple of lists of (first, last)
        Which slices they hold.
    shape : tuple of int
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
    kept : Within, optional
        Which entries count, where a fit has rejected others.
    """

    workers: Workers
    shards: tuple[list[Any], ...]
    limits: tuple[list[tuple[int, int]], ...]
    shape: tuple[int, ...]
    count: int
    dtype: Any
    crowded: bool = False
    chain: Chain = field(default_factory=Chain)
    choice: tuple[Any, ...] | None = None
    far: bool = False
    kept: Within | None = None

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
        """Do work that leaves arrays with the shards of rows; return these and what comes back.

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
        """Return ranges of columns, with their rows of the column factor.

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
        """Return what follows from sums over the shards of rows, for every range of columns."""
        return self.workers.added(work, self.shards[0], own, asked, finish, *shared)

    def cut(self, x: Array | None, mode: int) -> list[Any]:
        """Cut an array with one row per slice into parts for the shards of a mode."""
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

    def _then(self, name: str, *arguments: Any) -> Self:
        other = replace(self, chain=self.chain.then(name, *arguments))
        other.__dict__["_shared"] = self._shared
        return other

    # ---- other values

    def scaled(self, size: float) -> Self:
        return self if size == 1.0 else self._then("scaled", size)

    def standardised(self, scales: tuple[Array | None, ...], mean: float = 0.0) -> Self:
        if not mean and all(d is None for d in scales):
            return self
        return self._then("standardised", scales, mean)

    def shifted(self, offsets: tuple[Array | None, ...]) -> Self:
        return self._then("shifted", offsets)

    def with_zeros(self) -> Self:
        """Return zeros in place of the values."""
        return self._then("standardised", (math.inf + 0 * self.counts(0), None), 0.0)

    @cached_property
    def _moments(self) -> tuple[float, float, float, float]:
        count, total, squares, largest = zip(
            *self.each(tasks.moments, 0, None, self.chain), strict=True
        )
        return sum(count), math.fsum(total), math.fsum(squares), max(largest)

    @property
    def sum_of_squares(self) -> float:
        return self._moments[2]

    @property
    def operator(self) -> ShardedEntries:
        """The operator that observes these entries."""
        return ShardedEntries(self)

    def _refuse(self, what: str) -> NoReturn:
        raise NotImplementedError(
            f"{what} of {self.size:,} entries in shards: not distributed yet; fit data that one "
            "machine can hold, such as X.compute()"
        )
