"""Where shards live, and who works on them: a cluster, or this process with shards on disk."""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .shards import Piece, Shard
from .tall import Kept, attached, detached

Array = Any
Work = Callable[..., Any]


class Workers(ABC):
    """Does work on blocks of data and on shards."""

    threads: int
    """How many shards can be worked on at a time."""

    beside: int = 1
    """How many tasks a worker does at a time."""

    @property
    def memory(self) -> float:
        """Bytes that all workers together may use; infinity if there is no limit."""
        return math.inf

    @abstractmethod
    def compute(self, tasks: Sequence[Any]) -> list[Any]:
        """Return the results of delayed tasks, in order."""

    @abstractmethod
    def shuffle(
        self,
        blocks: Sequence[Any],
        cut: Work,
        bounds: list[tuple[int, int]],
        assemble: Work,
        passes: int = 1,
    ) -> list[Any]:
        """Cut every block into a piece for every shard, and assemble the shards.

        Parameters
        ----------
        blocks : list of delayed blocks, or of shards
        cut : callable
            ``cut(block, bounds)`` returns a piece for every one of some consecutive shards.
        bounds : list of (first, last)
        assemble : callable
            ``assemble((first, last), *pieces)`` returns a shard.
        passes : int
            How often a cluster may go through the blocks: pieces for that part of the shards
            are in memory at a time.
        """

    @abstractmethod
    def derive(self, work: Work, shards: Sequence[Any], *shared: Any) -> list[Any]:
        """Return other shards, one for each."""

    @abstractmethod
    def each(
        self, work: Work, shards: Sequence[Any], own: Sequence[tuple[Any, ...]], *shared: Any
    ) -> list[Any]:
        """Return ``work(shard, *own, *shared)`` for every shard, in order."""

    def total(self, work: Work, shards: Sequence[Any], *shared: Any) -> Any:
        """Return the sum of what is computed for every shard, added up where the shards are."""
        return self.added(asked_of, shards, [()] * len(shards), [(work,)], the_sum, *shared)[0]

    def keep(
        self,
        work: Work,
        shards: Sequence[Any],
        own: Sequence[tuple[Any, ...]],
        *shared: Any,
        again: Sequence[tuple[Any, ...]] | None = None,
    ) -> tuple[Kept, list[Any]]:
        """Do ``work(shard, *own, *shared)``, which returns a tuple of arrays and something small.

        The arrays stay where the shards are.

        Parameters
        ----------
        work, shards, own, shared
            As in `each`.
        again : list of tuples, optional
            What shards may have in place of `own` if the arrays must be made again. `own` is not
            needed any more then.

        Returns
        -------
        kept : Kept
        small : list
        """
        raise NotImplementedError

    def added(
        self,
        work: Work,
        shards: Sequence[Any],
        own: Sequence[tuple[Any, ...]],
        asked: Sequence[tuple[Any, ...]],
        finish: Work,
        *shared: Any,
    ) -> list[Any]:
        """Return what follows from sums over all shards, one for each of several questions.

        For every question of `asked`, a tuple, that is ``finish(total, *question)``, where the
        total is the sum of ``work(shard, *own, question[0], *shared)`` over the shards.
        """
        found = []
        for ask in asked:
            parts = self.each(work, shards, [(*mine, ask[0]) for mine in own], *shared)
            found.append(finish(sum(parts[1:], start=parts[0]), *ask))
        return found

    def released(self, kept: Kept, heights: list[int]) -> Any:
        """Return an array that stays when everything else is released, as a Dask array.

        Parameters
        ----------
        kept : Kept
            Of one array.
        heights : list of int
            Rows of its parts.
        """
        raise NotImplementedError

    @property
    def least(self) -> float:
        """Bytes that the worker with the least memory may use; infinity if there is no limit."""
        return math.inf

    @abstractmethod
    def close(self) -> None:
        """Release everything."""


def asked_of(shard: Any, work: Work, *shared: Any) -> Any:
    """Return the result of some work on a shard."""
    return work(shard, *shared)


def the_sum(total: Any, work: Work) -> Any:
    """Return a sum unchanged."""
    return total


class Folder:
    """Arrays in files, which are removed when nobody needs them.

    Parameters
    ----------
    path : Path
    count : int
    """

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        self._end = weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)

    def __reduce__(self) -> Any:
        return _Mapped, (self.path, self.count)  # whoever gets it does not remove the files

    def arrays(self) -> tuple[Array, ...]:
        """Return the arrays, mapped."""
        return tuple(np.load(self.path / f"{k}.npy", mmap_mode="r") for k in range(self.count))


class _Mapped(Folder):
    """The same files, which somebody else removes."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count


class Here(Workers):
    """The process itself: one block at a time is in memory, and shards are mapped from files."""

    threads = 1

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="scaledgd-"))
        self._names = itertools.count()

    def compute(self, tasks: Sequence[Any]) -> list[Any]:
        import dask

        return [dask.compute(task)[0] for task in tasks]

    def shuffle(
        self,
        blocks: Sequence[Any],
        cut: Work,
        bounds: list[tuple[int, int]],
        assemble: Work,
        passes: int = 1,
    ) -> list[Any]:
        files: list[list[Path]] = [[] for _ in bounds]
        for block in blocks:
            found = block if isinstance(block, Shard) else self.compute([block])[0]
            for k, piece in enumerate(cut(found, bounds)):
                if len(piece[0]):
                    files[k].append(self._stored(piece))
        shards = []
        for limits, parts in zip(bounds, files, strict=True):
            shards.append(self._kept(assemble(limits, *map(self._loaded, parts))))
            for part in parts:
                shutil.rmtree(part)
        return shards

    def _stored(self, arrays: Sequence[Array]) -> Path:
        folder = self._folder / str(next(self._names))
        folder.mkdir()
        for k, x in enumerate(arrays):
            np.save(folder / f"{k}.npy", x)
        return folder

    def _loaded(self, folder: Path) -> Piece:
        a, b, c = (np.load(folder / f"{k}.npy", mmap_mode="r") for k in range(3))
        return a, b, c

    def _kept(self, shard: Shard) -> Shard:
        starts, others, y = self._loaded(self._stored((shard.starts, shard.others, shard.y)))
        return Shard(shard.mode, shard.first, shard.whole, starts, others, y, shard.dense)

    def derive(self, work: Work, shards: Sequence[Any], *shared: Any) -> list[Any]:
        return [self._kept(work(shard, *shared)) for shard in shards]

    def each(
        self, work: Work, shards: Sequence[Any], own: Sequence[tuple[Any, ...]], *shared: Any
    ) -> list[Any]:
        return [work(shard, *self._own(x), *shared) for shard, x in zip(shards, own, strict=True)]

    def _own(self, own: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a shard has, with the rows of tall arrays."""
        parts: list[Folder] = []
        own = detached(own, parts)
        return tuple(attached(own, [part.arrays() for part in parts]) if parts or own else own)

    def keep(
        self,
        work: Work,
        shards: Sequence[Any],
        own: Sequence[tuple[Any, ...]],
        *shared: Any,
        again: Sequence[tuple[Any, ...]] | None = None,
    ) -> tuple[Kept, list[Any]]:
        parts, small = [], []
        for shard, mine in zip(shards, own, strict=True):
            arrays, rest = work(shard, *self._own(mine), *shared)
            parts.append(Folder(self._stored(arrays), len(arrays)))
            small.append(rest)
        return Kept(parts, [None] * len(parts)), small

    def added(
        self,
        work: Work,
        shards: Sequence[Any],
        own: Sequence[tuple[Any, ...]],
        asked: Sequence[tuple[Any, ...]],
        finish: Work,
        *shared: Any,
    ) -> list[Any]:
        found = []
        for ask in asked:
            total: Any = 0
            for shard, mine in zip(shards, own, strict=True):
                total = total + work(shard, *self._own(mine), ask[0], *shared)
            found.append(finish(total, *ask))
        return found

    def released(self, kept: Kept, heights: list[int]) -> Any:
        from .far import in_files

        example = kept.parts[0].arrays()[0]
        return in_files(kept, heights, example.shape[1], example.dtype)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def opened(client: Any) -> Iterator[Workers]:
    """Give the workers of a client, of the active client, or of this process; then release all."""
    if client is None:
        client = _active()
    if client is None:
        workers: Workers = Here()
    else:
        from .cluster import Cluster

        workers = Cluster(client)
    try:
        yield workers
    finally:
        workers.close()


def _active() -> Any:
    try:
        from distributed import default_client
    except ImportError:
        return None
    try:
        return default_client()
    except ValueError:
        return None
