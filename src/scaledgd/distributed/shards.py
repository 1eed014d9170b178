"""A shard: the observed entries of some rows, or of some columns, of a matrix.

Every entry is kept twice, in a shard of rows and in a shard of columns, so that the systems of all
rows, and those of all columns, can each be solved where the entries are. What a worker does with a
shard is what one machine does with a table of these rows: the same code, the same kernels. Entries
of a tensor are kept once for every mode. Its shards are those of its unfoldings: the cells of all
other modes are numbered, and their number is the coordinate along "the other mode".
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from ..estimators.local_observations import LocalObservations
from ..factors import Bordered, Factors, LowRank, Tucker
from ..kernels import Pattern, backend, cpp
from ..kernels.cpp import CppPattern
from ..kernels.entries import numbered
from ..operators import Entries
from .sorting import by_slice, counted_order, repeated

Array = Any
Rows = LowRank | Bordered | Tucker
Piece = tuple[Array, Array, Array]
"""Coordinates along the mode of a shard, along the other mode, and values."""


@dataclass(frozen=True, eq=False)
class Chain:
    """What was done to the values since they were read, in order.

    Attributes
    ----------
    steps : tuple of (name, arguments)
        Methods of `Observations`: "scaled", "standardised", "shifted", "bounded" or "residual".
        Tuples among the arguments have one number per row, or per column, of the whole table, and
        factors all of their rows.
    """

    steps: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def then(self, name: str, *arguments: Any) -> Chain:
        """Return the chain with one more step."""
        return Chain((*self.steps, (name, arguments)))

    def apply(self, data: LocalObservations, shard: Shard | None = None) -> LocalObservations:
        """Return the values of a shard, or of some rows, after all steps."""
        for name, arguments in self.steps:
            cut = arguments if shard is None else shard.cut_all(arguments)
            data = getattr(data, name)(*cut)
        return data

    @property
    def nbytes(self) -> int:
        given = [x for _, arguments in self.steps for x in arguments]
        sides = [x.blocks if isinstance(x, Factors) else x for x in given]
        tuples = (side for side in sides if isinstance(side, tuple))
        return sum(int(x.nbytes) for side in tuples for x in side if x is not None)


@dataclass(frozen=True, eq=False)
class Shard:
    """The entries of consecutive slices of a mode, sorted by slice and then along the other mode.

    Attributes
    ----------
    mode : int
    first : int
        The number of its first slice.
    whole : (n1, n2), or the shape of a tensor
    starts : int64 array of shape (slices + 1,)
        Where the entries of each slice begin.
    places : int32 or int64 array of shape (m,), optional
        Coordinates along the other mode; None once the kernels have a copy of them. Of a tensor,
        the numbers of cells of all other modes, in C order.
    y : array of shape (m,)
    dense : bool
        Whether most entries of the whole table are observed, which decides between kernels.
    """

    mode: int
    first: int
    whole: tuple[int, ...]
    starts: Array
    places: Array | None
    y: Array
    dense: bool = False

    @classmethod
    def assembled(
        cls,
        mode: int,
        bounds: tuple[int, int],
        whole: tuple[int, ...],
        dense: bool,
        *pieces: Piece,
    ) -> Shard:
        """Return the shard of the pieces that fall into it; no entry may occur twice."""
        first, last = bounds
        some = [piece for piece in pieces if len(piece[0])]
        own, others, y = (np.concatenate([p[k] for p in some or pieces]) for k in range(3))
        width = math.prod(others_of(whole, mode))
        starts, others, y = by_slice(own - own.dtype.type(first), others, y, (last - first, width))
        again = repeated(starts, others)
        if len(again):
            at = int(np.searchsorted(starts, again[0], side="right")) - 1
            where = spread_out(int(others[again[0]]), others_of(whole, mode))
            raise DuplicateError(len(again), (*where[:mode], at + first, *where[mode:]))
        return cls(mode, first, whole, starts, others, y, dense)

    @property
    def slices(self) -> int:
        return len(self.starts) - 1

    @property
    def size(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part of the table that the shard is about."""
        return (*self.whole[: self.mode], self.slices, *self.whole[self.mode + 1 :])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the other modes."""
        return others_of(self.whole, self.mode)

    def __sizeof__(self) -> int:
        # the scheduler and the limits of a worker go by this
        places = self.size * np.dtype(integers(math.prod(self.sizes))).itemsize
        return int(self.starts.nbytes + places + self.y.nbytes)

    def __getstate__(self) -> dict[str, Any]:
        made = "operator", "pattern", "_columns"
        state = {k: v for k, v in self.__dict__.items() if k not in made}
        return {**state, "places": self.others}

    @property
    def others(self) -> Array:
        """Coordinates along the other mode, of every entry."""
        places = self.places
        return self.pattern.others() if places is None else places  # type: ignore[attr-defined]

    @property
    def own(self) -> Array:
        """Numbers within the shard along its mode, of every entry."""
        xp, starts = array_namespace(self.starts), self.starts
        every = xp.arange(self.slices, device=device(starts))
        return xp.repeat(every, starts[1:] - starts[:-1])

    @property
    def index(self) -> tuple[Array, ...]:
        """Coordinates within the shard, made when they are asked for."""
        others = self.beside
        return (*others[: self.mode], self.own, *others[self.mode :])

    @property
    def beside(self) -> tuple[Array, ...]:
        """Coordinates along all other modes."""
        return spread_out(wide(self.others), self.sizes)

    @property
    def places_in_whole(self) -> tuple[Array, ...]:
        """Coordinates in the whole table."""
        index = self.index
        own = index[self.mode] + self.first
        return (*index[: self.mode], own, *index[self.mode + 1 :])

    def piece(self, mode: int) -> Piece:
        """Return the entries for shards of another mode."""
        if len(self.whole) == 2:
            return self.others, self.own + self.first, self.y
        index = self.places_in_whole
        return index[mode], numbered(index, self.whole, mode), self.y

    def cut(self, x: Array | None, mode: int) -> Array | None:
        """Return the part of an array with a row per slice of a mode that the shard is about."""
        if x is None or mode != self.mode:
            return x
        return x[self.first : self.first + self.slices]

    def cut_all(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments with the shard's parts of tuples that hold one array per mode."""

        def parts(given: Any) -> Any:
            if isinstance(given, Factors):
                return given.with_blocks(parts(given.blocks))
            if isinstance(given, tuple):
                return tuple(self.cut(x, k) for k, x in enumerate(given))
            return given

        return tuple(map(parts, arguments))

    @cached_property
    def _columns(self) -> dict[tuple[int, int], Columns]:
        return {}

    def columns(self, first: int, last: int) -> Columns:
        """Return the entries of some columns of a shard of rows; cached with the shard."""
        if (first, last) not in self._columns:
            others = self.others
            at = np.flatnonzero((others >= first) & (others < last))
            at = at.astype(integers(self.size))
            own, others = self.own[at], others[at] - first
            shape = (self.slices, last - first)
            starts, rows, at = by_slice(others, own.astype(integers(self.slices)), at, shape[::-1])
            part = Shard(1, 0, shape, starts, rows, at)
            self._columns[first, last] = Columns(part, at)
        return self._columns[first, last]

    @cached_property
    def pattern(self) -> Pattern:
        """The entries as kernels want them; cached with the shard."""
        table = len(self.whole) == 2
        if table and cpp.AVAILABLE and self.size and max(self.whole) < 2**31 - 1:
            return _ShardPattern(self)
        index = self.index
        return backend(*index).pattern(index, self.shape)

    @cached_property
    def operator(self) -> Entries:
        return _ShardEntries(self)

    def local(self, chain: Chain) -> LocalObservations:
        """Return the entries with the values after a chain of steps."""
        table = len(self.whole) == 2
        # those of a table are made for as long as a task, those of a tensor stay with the pattern
        coordinates: Any = _Coordinates(self, keep=True) if table else self.pattern.index
        data = LocalObservations(coordinates, self.y, self.shape)
        data._shared["operator"] = self.operator
        return chain.apply(data, self)

    def values(self, chain: Chain) -> Array:
        """Return the values after a chain of steps."""
        return self.local(chain).y

    def restricted(self, x: Array, other: Any, own: Array | None, border: Array | None) -> Rows:
        """Return the factors of this part of the table.

        Parameters
        ----------
        x : array of shape (slices, q)
            The block of the mode of the shard, these slices only.
        other : array, or tuple of arrays
            The whole other block; of a tensor all others, the core included.
        own : array of shape (slices,), optional
            What the offsets of the other mode are multiplied by.
        border : array, optional
            What those of this mode are.
        """
        if len(self.whole) > 2:
            blocks = *other[: self.mode], x, *other[self.mode :]
            return Tucker(blocks[:-1], blocks[-1])
        blocks, sides = (x, other), (own, border)
        if self.mode == 1:
            blocks, sides = blocks[::-1], sides[::-1]
        return Bordered(*blocks, *sides)

    def some(self, chosen: Array) -> Shard:
        """Return some of the entries."""
        xp = array_namespace(chosen)
        ends = xp.cumulative_sum(xp.astype(chosen, xp.int64), include_initial=True)
        starts = xp.take(ends, self.starts)
        return replace(self, starts=starts, places=self.others[chosen], y=self.y[chosen])


class Columns(NamedTuple):
    """The entries of some columns within a shard of rows: a shard of columns, and their places."""

    shard: Shard
    at: Array


class DuplicateError(ValueError):
    """Some entry was given more than once."""

    def __init__(self, count: int, pair: tuple[int, ...]) -> None:
        super().__init__(count, pair)
        self.count, self.pair = count, pair

    @property
    def place(self) -> list[str]:
        """Where the entry is, in words."""
        if len(self.pair) > 2:
            return [f"entry {self.pair}"]
        return [f"row {self.pair[0]}", f"column {self.pair[1]}"]

    def __str__(self) -> str:
        return (
            f"{', '.join(self.place)} is given more than once ({self.count:,} entries of this part "
            "repeat another); average repeated observations first"
        )


class _Coordinates:
    """The coordinates of a shard, made when they are asked for: they take much memory."""

    def __init__(self, shard: Shard, keep: bool = False) -> None:
        self.shard, self._keep = shard, keep
        self._made: dict[int, Array] = {}

    def __len__(self) -> int:
        return 2

    def __getitem__(self, mode: int) -> Array:
        if mode in self._made:
            return self._made[mode]
        found = self.shard.own if mode == self.shard.mode else wide(self.shard.others)
        if self._keep:
            self._made[mode] = found
        return found

    def __iter__(self) -> Iterator[Array]:
        return iter((self[0], self[1]))


class _ShardPattern(CppPattern):
    """Entries that are sorted already, without their coordinates."""

    def __init__(self, shard: Shard) -> None:
        self._of = weakref.ref(shard)  # or a shard that is moved to disk would stay in memory, too
        self.shape, self.backend = shard.shape, backend(shard.y)  # type: ignore[assignment]
        self._entries, self._known = {}, []

    @property
    def _shard(self) -> Shard:
        return _alive(self._of)

    @property
    def index(self) -> Any:  # type: ignore[override]
        return _Coordinates(self._shard)

    def sorted_by(self, mode: int) -> Any:
        found, shard = super().sorted_by(mode), self._shard
        if mode == shard.mode and not isinstance(shard.places, np.memmap):
            # once is enough: it is a third of the memory
            self._entries[mode] = found
            shard.__dict__["places"] = None
        return found

    def others(self) -> Array:
        """Return the coordinates along the other mode, of which only the kernels have a copy.

        They are the values of the matrix of rank one whose columns are constant.
        """
        shard = self._shard
        width = shard.whole[1 - shard.mode]
        modes = np.ones((shard.slices, 1)), np.arange(width, dtype=np.float64)[:, None]
        found = self.residual_along(shard.mode, modes if shard.mode == 0 else modes[::-1], None)
        return found.astype(integers(width))

    @cached_property
    def dense(self) -> bool:
        return self._shard.dense

    def ones(self, like: Array) -> Array:
        if like.dtype not in self._ones:
            self._ones[like.dtype] = np.ones(self._shard.size, dtype=like.dtype)
        return self._ones[like.dtype]

    def residual(self, modes: tuple[Array, ...], y: Array | None = None) -> Array:
        mode = self._shard.mode
        if not cpp.suits(y, *modes):
            return super().residual(modes, y)
        return self.residual_along(mode, modes, y)


class _ShardEntries(Entries):
    """The operator of a shard, whose entries were checked for repetitions when it was assembled."""

    fused = True

    def __init__(self, shard: Shard) -> None:
        object.__setattr__(self, "shape", shard.shape)
        object.__setattr__(self, "pattern", shard.pattern)
        object.__setattr__(self, "_of", weakref.ref(shard))

    @property
    def index(self) -> Any:
        if len(self.shape) > 2:
            return self.pattern.index
        return _alive(self._of).index  # type: ignore[attr-defined]

    @property
    def measured(self) -> tuple[int, ...]:
        return (_alive(self._of).size,)  # type: ignore[attr-defined]


def _alive(shard: weakref.ref[Shard]) -> Shard:
    found = shard()
    assert found is not None, "the shard is used longer than it is there"
    return found


def others_of(shape: tuple[int, ...], mode: int) -> tuple[int, ...]:
    """Return the sizes of all other modes."""
    return (*shape[:mode], *shape[mode + 1 :])


def spread_out(numbers: Any, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the coordinates of cells that are numbered in C order."""
    found = []
    for n in reversed(sizes[1:]):
        found.append(numbers % n)
        numbers = numbers // n
    return (numbers, *reversed(found))


def wide(numbers: Array) -> Array:
    """Return coordinates in 64 bits."""
    xp = array_namespace(numbers)
    return xp.astype(numbers, xp.int64)


def concatenated(parts: Sequence[Array]) -> Array:
    """Concatenate what shards have found."""
    return array_namespace(*parts).concat(list(parts))


def boundaries(counts: Array, parts: int) -> list[tuple[int, int]]:
    """Return consecutive slices with about as many entries in every part; none is empty.

    Parameters
    ----------
    counts : integer array of shape (n,)
    parts : int
        Parts at most.
    """
    n, ends = len(counts), np.cumsum(counts)
    wanted = int(ends[-1]) * np.arange(1, parts) / parts
    cuts = np.searchsorted(ends, wanted, side="left") + 1
    places = np.unique(np.concatenate([[0], cuts])).tolist()
    # slices without entries at the end belong to the last part that has some
    places = [first for first in places if first == 0 or ends[first - 1] < ends[-1]]
    return list(pairwise([*places, n]))


def pieces(entries: Piece, bounds: list[tuple[int, int]], narrow: tuple[Any, Any]) -> list[Piece]:
    """Cut entries into one piece for every one of some consecutive shards.

    Parameters
    ----------
    entries : tuple
        Coordinates along the mode of the shards, along the other mode, and values.
    bounds : list of (first, last)
    narrow : pair of dtypes
        What coordinates are kept in.
    """
    own, other, y = entries
    own, other = own.astype(narrow[0], copy=False), other.astype(narrow[1], copy=False)
    # what comes before the first of them, or after the last, is not asked for
    edges = np.asarray([bounds[0][0], *(last for _, last in bounds)], dtype=own.dtype)
    order, ends = counted_order(np.searchsorted(edges, own, side="right"), len(bounds) + 2)
    # arrays of their own: a part of a larger one would keep all of it in memory
    places = (order[first:last] for first, last in pairwise(ends[1:-1].tolist()))
    return [(own[at], other[at], y[at]) for at in places]


def integers(n: int) -> Any:
    """Return the type that coordinates below n are kept in."""
    return np.int32 if n < 2**31 - 1 else np.int64
