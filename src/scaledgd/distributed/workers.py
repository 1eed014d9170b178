"""Where shards live, and who works on them: a cluster, or this process with the shards on disk."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np

from ..estimators.journal import log
from ..kernels.threads import limited
from .shards import Piece, Shard

Array = Any
Work = Callable[..., Any]

TRIES = 8
"""How often a step is begun anew when workers are lost in the middle of it."""
SMALL = 1 << 14
"""Bytes for one shard up to which they travel with the task."""
KEPT = 6
"""Arrays that stay on the workers after they were sent, because the next step may need them."""


class Workers(ABC):
    """Computes things about blocks of data and about shards."""

    threads: int
    """How many shards can be worked on at a time."""

    @abstractmethod
    def compute(self, tasks: Sequence[Any]) -> list[Any]:
        """Return what delayed tasks amount to, in order."""

    @abstractmethod
    def shuffle(
        self,
        blocks: Sequence[Any],
        cut: Work,
        bounds: list[tuple[int, int]],
        assemble: Work,
    ) -> list[Any]:
        """Cut every block into a piece for every shard, and assemble the shards.

        Parameters
        ----------
        blocks : list of delayed blocks, or of shards
        cut : callable
            ``cut(block)`` returns a piece for every shard.
        bounds : list of (first, last)
        assemble : callable
            ``assemble((first, last), *pieces)`` returns a shard.
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
        """Return the sum of what is computed for every shard."""
        found = self.each(work, shards, [()] * len(shards), *shared)
        return sum(found[1:], start=found[0])

    @abstractmethod
    def close(self) -> None:
        """Release everything."""


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
    ) -> list[Any]:
        files: list[list[Path]] = [[] for _ in bounds]
        for block in blocks:
            found = block if isinstance(block, Shard) else self.compute([block])[0]
            for k, piece in enumerate(cut(found)):
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
        return [work(shard, *mine, *shared) for shard, mine in zip(shards, own, strict=True)]

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class Cluster(Workers):
    """The workers of a `distributed.Client`.

    Shards stay on the workers, and the scheduler knows how to make them again. What a step needs
    besides is sent once to every worker. A step that fails because a worker was lost is begun
    anew: its tasks are pure, and the factors are here.
    """

    def __init__(self, client: Any) -> None:
        if client.status != "running":
            raise ValueError(
                f"the Dask client is {client.status}, not running; start one with "
                "distributed.Client(...), or close it to work without one"
            )
        self.client = client
        self.direct = _reachable(client)
        self.sent = 0
        """Bytes handed to the cluster, counted once per worker that gets them."""
        self.received = 0
        self._known: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self._workers = len(client.nthreads())
        self._places: dict[tuple[str, ...], list[Any]] = {}
        self._made: list[Any] = []
        self._names = itertools.count()
        self._name = f"scaledgd-{id(self):x}"

    @property
    def threads(self) -> int:  # type: ignore[override]
        return max(1, int(sum(self.client.nthreads().values())))

    def compute(self, tasks: Sequence[Any]) -> list[Any]:
        futures = self.client.compute(list(tasks))
        try:
            return list(self._safely(lambda: self.client.gather(futures, direct=self.direct)))
        finally:
            _release(futures)

    def shuffle(
        self,
        blocks: Sequence[Any],
        cut: Work,
        bounds: list[tuple[int, int]],
        assemble: Work,
    ) -> list[Any]:
        from dask import delayed

        n = len(bounds)
        cutting = [delayed(_cut, nout=n, pure=False)(cut, block) for block in blocks]
        shards = [
            delayed(_assembled, pure=False)(assemble, bounds[k], *(part[k] for part in cutting))
            for k in range(n)
        ]
        return self._finished(self.client.compute(shards))

    def derive(self, work: Work, shards: Sequence[Any], *shared: Any) -> list[Any]:
        futures = [
            self.client.submit(_run, work, shard, (), *shared, key=self._key(work), pure=False)
            for shard in shards
        ]
        return self._finished(futures)

    def _finished(self, shards: Sequence[Any]) -> list[Any]:
        """Keep shards that are being made, and wait for them."""
        from distributed import wait

        def attempt() -> None:
            wait(shards)
            for shard in shards:
                if shard.status == "error":
                    raise shard.exception()

        self._made += shards
        self._safely(attempt, shards)
        return list(shards)

    def each(
        self, work: Work, shards: Sequence[Any], own: Sequence[tuple[Any, ...]], *shared: Any
    ) -> list[Any]:
        def attempt() -> list[Any]:
            everyone, mine = self._sent(shards, own, shared)
            futures = [
                self.client.submit(
                    _run, work, shard, part, *everyone, key=self._key(work), pure=False
                )
                for shard, part in zip(shards, mine, strict=True)
            ]
            try:
                return list(self.client.gather(futures, direct=self.direct))
            finally:
                _release(futures)

        found = self._safely(attempt, shards)
        self.received += size_of(found)
        return list(found)

    def _key(self, work: Work) -> str:
        # the dashboard groups tasks by what comes before the first number
        return f"{work.__name__}-{self._name}-{next(self._names)}"

    def _sent(
        self, shards: Sequence[Any], own: Sequence[tuple[Any, ...]], shared: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Send what every worker needs, and what every shard does; all of it at a time."""
        fresh = {_name(x): x for x in shared if size_of(x) > SMALL and _name(x) not in self._known}
        groups: dict[Any, list[int]] = {}
        if max(map(size_of, own), default=0) > SMALL:
            groups = self._holders(shards)
        found = self.client.sync(self._scattered, list(fresh.values()), own, groups)
        for (name, x), future in zip(fresh.items(), found[0], strict=True):
            # the object is kept, so that its id is not given to another
            self._known[name] = x, future
            self.sent += size_of(x) * self._workers
        everyone = [self._known[_name(x)][1] if size_of(x) > SMALL else x for x in shared]
        while len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
        if not groups:
            return everyone, list(own)
        placed: dict[int, Any] = {}
        for numbers, parts in zip(groups.values(), found[1:], strict=True):
            placed.update(zip(numbers, parts, strict=True))
        self.sent += sum(map(size_of, own))
        return everyone, [placed[k] for k in range(len(own))]

    async def _scattered(
        self, everyone: list[Any], own: Sequence[tuple[Any, ...]], groups: dict[Any, list[int]]
    ) -> list[Any]:
        usual: dict[str, Any] = {"hash": False, "direct": self.direct, "asynchronous": True}

        async def to_all() -> Any:
            return await self.client.scatter(everyone, broadcast=True, **usual) if everyone else []

        async def to_one(worker: Any, numbers: list[int]) -> Any:
            where = None if worker is None else [worker]
            return await self.client.scatter([own[k] for k in numbers], workers=where, **usual)

        return await asyncio.gather(to_all(), *itertools.starmap(to_one, groups.items()))

    def _holders(self, shards: Sequence[Any]) -> dict[Any, list[int]]:
        """Return the numbers of the shards that every worker has."""
        keys = tuple(shard.key for shard in shards)
        if keys not in self._places:
            found = self.client.who_has(list(shards))
            self._places[keys] = [next(iter(sorted(found.get(key) or ())), None) for key in keys]
        groups: dict[Any, list[int]] = {}
        for k, worker in enumerate(self._places[keys]):
            groups.setdefault(worker, []).append(k)
        return groups

    def _safely(self, attempt: Callable[[], Any], shards: Sequence[Any] = ()) -> Any:
        """Do something; begin anew if workers were lost meanwhile."""
        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        lost = (KilledWorker, CancelledError, CommClosedError, TimeoutError, ConnectionError)
        for k in range(TRIES):
            try:
                return attempt()
            except lost as error:
                if k == TRIES - 1 or self.client.status != "running":
                    raise
                log.info("a worker was lost (%s): the step is begun anew", type(error).__name__)
                self._known.clear()
                self._places.clear()
                self.client.wait_for_workers(1, timeout=60)
                self._workers = len(self.client.nthreads())
                failed = [f for f in shards if f.status in ("error", "cancelled", "lost")]
                if failed:
                    self.client.retry(failed)
        raise AssertionError

    def close(self) -> None:
        self._known.clear()
        _release(self._made)
        self._made.clear()


def _release(futures: Sequence[Any]) -> None:
    """Let go of results now: an exception that is looked at later would keep them."""
    for future in futures:
        future.release()


def _cut(cut: Work, block: Any) -> list[Piece]:
    return list(cut(block))


def _assembled(assemble: Work, bounds: tuple[int, int], *parts: Piece) -> Shard:
    shard: Shard = assemble(bounds, *parts)
    return shard


def _run(work: Work, shard: Shard, own: tuple[Any, ...], *shared: Any) -> Any:
    # shards are worked on side by side, so each gets one thread
    with limited(1, 1), np.errstate(over="ignore", under="ignore"):
        return work(shard, *own, *shared)


def _reachable(client: Any) -> bool | None:
    """Whether workers are spoken to directly: as the client was told, or on one machine."""
    told = getattr(client, "direct_to_workers", None)
    if told is not None:
        return bool(told)
    address = str(client.scheduler.address) if client.scheduler is not None else ""
    return True if "127.0.0.1" in address or address.startswith("inproc") else None


def _name(x: Any) -> tuple[int, ...]:
    """What tells an object from others while it is kept."""
    return tuple(map(id, x)) if isinstance(x, tuple) else (id(x),)


def size_of(x: Any) -> int:
    """Return the bytes of arrays in nested tuples and lists."""
    if isinstance(x, tuple | list):
        return sum(map(size_of, x))
    return int(getattr(x, "nbytes", 0))


@contextlib.contextmanager
def opened(client: Any) -> Iterator[Workers]:
    """Give the workers of a client, of the active one, or of this process; release them all."""
    if client is None:
        client = _active()
    workers: Workers = Here() if client is None else Cluster(client)
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
