"""The workers of a cluster: shards stay there, and what a step needs is sent to them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

import numpy as np

from ..estimators.journal import log
from ..kernels.threads import limited
from . import memory
from .places import Places
from .shards import Piece, Shard, pieces
from .tall import Kept, attached, detached
from .workers import Work, Workers

TRIES = 8
"""How often a step is begun anew when workers are lost in the middle of it."""
FETCH = 30.0
"""Seconds after which it is looked whether workers whose results are being fetched are there."""
SMALL = 1 << 14
"""Bytes for one shard up to which they travel with the task."""
GROUPS = 8
"""Groups of shards for every thread, for which entries are cut into pieces."""
FAN = 8
"""Sums of workers that are added by one task."""
KEPT = 6
"""Arrays that stay on the workers after they were sent, because the next step may need them."""


class Cluster(Workers):
    """The workers of a `distributed.Client`.

    Shards stay on the workers, and the scheduler knows how to make them again. What a step needs
    besides is sent once to every worker. A step that fails because a worker was lost is begun
    anew: its tasks are pure, and the factors are here.
    """

    def __init__(self, client: Any) -> None:
        if client.status != "running":
            raise ValueError(
                f"the Dask client is {client.status}; start another with "
                "distributed.Client(...), or leave client out to work without one"
            )
        self.client = client
        self.direct = _reachable(client)
        self.places = Places(client)
        self.sent = 0
        """Bytes handed to the cluster, counted once per worker that gets them."""
        self.received = 0
        self.passed = 0
        """Bytes of sums that workers handed to each other."""
        self._known: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self._made: list[Any] = []
        self._kept: weakref.WeakSet[Kept] = weakref.WeakSet()
        self._names = itertools.count()
        self._name = f"scaledgd-{id(self):x}"

    @property
    def threads(self) -> int:  # type: ignore[override]
        return max(1, int(sum(self.client.nthreads().values())))

    @property
    def beside(self) -> int:  # type: ignore[override]
        return int(max(1, *self.client.nthreads().values()))

    @property
    def memory(self) -> float:
        limits = self._limits
        return float(sum(limits)) if all(limits) else math.inf

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
        passes: int = 1,
    ) -> list[Any]:
        from dask import delayed

        # pieces are for several shards: small ones are many, and leave holes in the memory
        per = math.ceil(len(bounds) / (GROUPS * self.threads))
        groups = [bounds[k : k + per] for k in range(0, len(bounds), per)]
        found: list[Any] = []
        for some in np.array_split(np.arange(len(groups)), min(passes, len(groups))):
            wanted = [groups[k] for k in some]
            ends = [(group[0][0], group[-1][1]) for group in wanted]
            cutting = [delayed(_cut, nout=len(ends), pure=False)(cut, b, ends) for b in blocks]
            shards: list[Any] = []
            for k, group in enumerate(wanted):
                parts = (part[k] for part in cutting)
                made = delayed(_assembled, nout=len(group), pure=False)(assemble, group, *parts)
                shards += [made[n] for n in range(len(group))]
            found += self._finished(self.client.compute(shards))
        return found

    def derive(self, work: Work, shards: Sequence[Any], *shared: Any) -> list[Any]:
        futures = [
            self.client.submit(_run, work, shard, (), [], *shared, key=self._key(work), pure=False)
            for shard in shards
        ]
        return self._finished(futures)

    def _finished(self, shards: Sequence[Any]) -> list[Any]:
        """Keep shards that are being made, and wait until they are there."""
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
            places = self.places.of(shards)
            futures = self._submitted(work, shards, places, own, shared)
            try:
                return self._fetched(futures, places)
            finally:
                _release(futures)

        found = self._safely(attempt, shards)
        self.received += size_of(found)
        return list(found)

    def _fetched(self, futures: list[Any], places: list[Any]) -> list[Any]:
        """Return results; fail if a worker is lost, also while they are being fetched."""
        patience = FETCH
        while True:
            self.places.watch(futures, places)
            try:
                return list(
                    self.client.sync(
                        self.client._gather,
                        futures,
                        direct=self.direct,
                        callback_timeout=patience,
                    )
                )
            except TimeoutError:  # the next look at the workers says whether to wait longer
                there = self.client.nthreads()
                if any(place is not None and place not in there for place in places):
                    raise
                patience *= 2

    def _submitted(
        self,
        work: Work,
        shards: Sequence[Any],
        places: list[Any],
        own: Sequence[tuple[Any, ...]],
        shared: Sequence[Any],
    ) -> list[Any]:
        parts: list[list[Any]] = [[] for _ in shards]
        own = [detached(x, needed) for x, needed in zip(own, parts, strict=True)]
        everyone, mine = self._sent(places, own, shared)
        return [
            self.client.submit(
                *(_run, work, shard, part, needed, *everyone),
                key=self._key(work),
                pure=False,
                workers=None if place is None else [place],  # or shards would travel
            )
            for shard, part, needed, place in zip(shards, mine, parts, places, strict=True)
        ]

    # ---- arrays that stay on the workers

    def keep(
        self,
        work: Work,
        shards: Sequence[Any],
        own: Sequence[tuple[Any, ...]],
        *shared: Any,
        again: Sequence[tuple[Any, ...]] | None = None,
    ) -> tuple[Kept, list[Any]]:
        def attempt() -> tuple[list[Any], list[Any], list[Any]]:
            places = self.places.of(shards)
            made = self._submitted(work, shards, places, own, shared)
            small = self._second(made, places)
            try:
                self.places.watch(small, places)
                return made, places, list(self.client.gather(small, direct=self.direct))
            finally:
                _release(small)

        made, places, small = self._safely(attempt, shards)
        self.received += size_of(small)
        recipe = work, list(shards), list(own if again is None else again), shared
        kept = Kept(made, list(places), recipe)
        self._kept.add(kept)
        return kept, small

    def _second(self, made: list[Any], places: list[Any]) -> list[Any]:
        return [
            self.client.submit(
                *(_small, part),
                key=f"{_small.__name__}-{self._name}-{next(self._names)}",
                pure=False,
                workers=None if place is None else [place],
            )
            for part, place in zip(made, places, strict=True)
        ]

    def _repair(self) -> None:
        """Recompute the arrays of workers that are gone, the oldest first."""
        there = self.client.nthreads()
        for kept in sorted(self._kept, key=lambda kept: kept.number):
            lost = [
                k
                for k, (part, place) in enumerate(zip(kept.parts, kept.places, strict=True))
                if place not in there or part.status in ("error", "cancelled", "lost")
            ]
            if not lost:
                continue
            work, shards, own, shared = kept.recipe
            some = [shards[k] for k in lost]
            places = self.places.of(some)
            made = self._submitted(work, some, places, [own[k] for k in lost], shared)
            small = self._second(made, places)
            try:
                self.places.watch(small, places)
                self.client.gather(small, direct=self.direct)
            finally:
                _release(small)
            for k, part, place in zip(lost, made, places, strict=True):
                kept.parts[k], kept.places[k] = part, place

    def added(
        self,
        work: Work,
        shards: Sequence[Any],
        own: Sequence[tuple[Any, ...]],
        asked: Sequence[tuple[Any, ...]],
        finish: Work,
        *shared: Any,
    ) -> list[Any]:
        def attempt() -> list[Any]:
            places = self.places.of(shards)
            parts: list[list[Any]] = [[] for _ in shards]
            mine = [detached(x, needed) for x, needed in zip(own, parts, strict=True)]
            everyone, mine = self._sent(places, mine, (*shared, *asked))
            everyone, questions = everyone[: len(shared)], everyone[len(shared) :]
            there: dict[Any, list[int]] = {}
            for k, place in enumerate(places):
                there.setdefault(place, []).append(k)
            futures = []
            for ask in questions:
                # a worker adds up what its shards have, so that it sends one sum
                sums = [
                    self._task(
                        *(_sum_of, work, [shards[k] for k in some], [mine[k] for k in some]),
                        *([parts[k] for k in some], ask, *everyone),
                        place=place,
                    )
                    for place, some in there.items()
                ]
                while len(sums) > FAN:
                    sums = [
                        self._task(_added, *sums[k : k + FAN]) for k in range(0, len(sums), FAN)
                    ]
                futures.append(self._task(_finished, finish, ask, *sums))
            try:
                self.places.watch(futures, places)
                return list(self.client.gather(futures, direct=self.direct))
            finally:
                _release(futures)

        answers, sizes = zip(*self._safely(attempt, shards), strict=True)
        self.received += size_of(answers)
        self.passed += (self.places.workers - 1) * sum(sizes)
        return list(answers)

    def _task(self, work: Work, *arguments: Any, place: Any = None) -> Any:
        return self.client.submit(
            *(work, *arguments),
            key=self._key(work),
            pure=False,
            workers=None if place is None else [place],
        )

    def _key(self, work: Work) -> str:
        # the dashboard groups tasks by what comes before the first number
        return f"{work.__name__}-{self._name}-{next(self._names)}"

    def _sent(
        self, places: list[Any], own: Sequence[tuple[Any, ...]], shared: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Send what every worker needs and what every shard needs, all at once."""
        fresh = {_name(x): x for x in shared if size_of(x) > SMALL and _name(x) not in self._known}
        groups: dict[Any, list[int]] = {}
        if max(map(size_of, own), default=0) > SMALL:
            for k, place in enumerate(places):
                groups.setdefault(place, []).append(k)
        found = self.client.sync(self._scattered, list(fresh.values()), own, groups)
        for (name, x), future in zip(fresh.items(), found[0], strict=True):
            # the object is kept, so that its id is not given to another
            self._known[name] = x, future
            self.sent += size_of(x) * self.places.workers
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

    def _safely(self, attempt: Callable[[], Any], shards: Sequence[Any] = ()) -> Any:
        """Try something, and start over if workers are lost meanwhile."""
        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        lost = (KilledWorker, CancelledError, CommClosedError, TimeoutError, ConnectionError)
        broken = False
        for k in range(TRIES):
            try:
                if broken:
                    self._repair()
                return attempt()
            except lost as error:
                if k == TRIES - 1 or self.client.status != "running":
                    raise
                log.info("a worker was lost (%s): the step is begun anew", type(error).__name__)
                self._known.clear()
                self.places.forget()
                self.client.wait_for_workers(1, timeout=60)
                broken = True
                failed = [f for f in shards if f.status in ("error", "cancelled", "lost")]
                if failed:
                    self.client.retry(failed)
        raise AssertionError

    def released(self, kept: Kept, heights: list[int]) -> Any:
        import dask.array as da

        self._finished(
            [
                self._task(_only, part, place=p)
                for part, p in zip(kept.parts, kept.places, strict=True)
            ]
        )
        parts, self._made = self._made[-len(heights) :], self._made[: -len(heights)]
        width, dtype = self._safely(lambda: self._task(_kind_of, parts[0]).result())
        name = f"rows-{self._name}-{next(self._names)}"
        graph = {(name, k, 0): part for k, part in enumerate(parts)}
        return da.Array(graph, name, (tuple(heights), (width,)), dtype=dtype)

    @property
    def least(self) -> float:
        return float(min((x for x in self._limits if x), default=math.inf))

    @property
    def _limits(self) -> list[Any]:
        """The memory of every worker."""
        # many versions return five workers unless told otherwise; the oldest ignore this
        info = self.client.scheduler_info(n_workers=-1)
        return [w.get("memory_limit") for w in info["workers"].values()]

    def close(self) -> None:
        self._known.clear()
        _release(self._made)
        self._made.clear()
        for kept in list(self._kept):
            _release(kept.parts)
        if self.client.status == "running":
            with contextlib.suppress(Exception):  # workers may be lost at any time
                self.client.run(memory.as_before, on_error="ignore")


def _release(futures: Sequence[Any]) -> None:
    """Release results now; otherwise the traceback of an exception would keep them alive."""
    for future in futures:
        future.release()


def _cut(cut: Work, block: Any, bounds: list[tuple[int, int]]) -> list[Piece]:
    memory.trim()
    return list(cut(block, bounds))


def _assembled(assemble: Work, group: list[tuple[int, int]], *parts: Piece) -> list[Shard]:
    memory.trim()
    if len(group) == 1:
        return [assemble(group[0], *parts)]
    cut = [pieces(part, group, (part[0].dtype, part[1].dtype)) for part in parts]
    return [assemble(limits, *(some[k] for some in cut)) for k, limits in enumerate(group)]


def _run(work: Work, shard: Shard, own: tuple[Any, ...], parts: list[Any], *shared: Any) -> Any:
    memory.keep()
    # shards are worked on side by side, so each gets one thread
    with limited(1, 1), np.errstate(over="ignore", under="ignore"):
        return work(shard, *attached(own, [part[0] for part in parts]), *shared)


def _only(made: tuple[Any, Any]) -> Any:
    return made[0][0]


def _kind_of(x: Any) -> tuple[int, Any]:
    return x.shape[1], x.dtype


def _small(made: tuple[Any, Any]) -> Any:
    return made[1]


def _sum_of(
    work: Work,
    shards: list[Shard],
    own: list[Any],
    parts: list[list[Any]],
    ask: tuple[Any, ...],
    *shared: Any,
) -> Any:
    total: Any = 0
    for shard, mine, needed in zip(shards, own, parts, strict=True):
        total = total + _run(work, shard, mine, needed, ask[0], *shared)
    return total


def _added(*sums: Any) -> Any:
    return sum(sums[1:], start=sums[0])


def _finished(finish: Work, ask: tuple[Any, ...], *sums: Any) -> tuple[Any, int]:
    with limited(1, 1):
        total = _added(*sums)
        return finish(total, *ask), size_of(total)


def _reachable(client: Any) -> bool | None:
    """Whether the client talks to workers directly: as it was told to, or on one machine."""
    told = getattr(client, "direct_to_workers", None)
    if told is not None:
        return bool(told)
    address = str(client.scheduler.address) if client.scheduler is not None else ""
    return True if "127.0.0.1" in address or address.startswith("inproc") else None


def _name(x: Any) -> tuple[int, ...]:
    """Return what identifies an object while it is kept."""
    if not isinstance(x, tuple):
        return (id(x),)
    return len(x), *(number for part in x for number in _name(part))


def size_of(x: Any) -> int:
    """Return the bytes of arrays in nested tuples and lists."""
    if isinstance(x, tuple | list):
        return sum(map(size_of, x))
    return int(getattr(x, "nbytes", 0))
