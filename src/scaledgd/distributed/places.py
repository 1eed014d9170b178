"""Which worker handles which shard."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

WATCH = 2.0
"""Seconds after which it is looked again which workers there are, and what they have."""


class Places:
    """Assigns shards to workers that hold them, the same number to every thread.

    A scheduler that is free to choose lets idle workers fetch shards from others, again and again.

    Parameters
    ----------
    client : distributed.Client
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._known: dict[tuple[str, ...], list[str | None]] = {}
        self._threads: dict[str, int] = {}
        self._looked = -float("inf")

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return len(self._threads)

    def forget(self) -> None:
        """Look again before the next step."""
        self._looked = -float("inf")

    def of(self, shards: Sequence[Any]) -> list[str | None]:
        """Return the address of a worker for each shard; None where nobody has it now."""
        now = time.monotonic()
        if now > self._looked + WATCH:
            self._looked, self._threads = now, dict(self._client.nthreads())
            self._known.clear()
        keys = tuple(shard.key for shard in shards)
        if keys not in self._known:
            self._known[keys] = self._chosen(shards)
        return self._known[keys]

    def _chosen(self, shards: Sequence[Any]) -> list[str | None]:
        holders = self._client.who_has(list(shards))
        had: dict[str, list[int]] = {worker: [] for worker in self._threads}
        there = [[w for w in holders.get(shard.key) or () if w in had] for shard in shards]
        for k in sorted(range(len(shards)), key=lambda k: len(there[k])):
            if there[k]:
                least = min(there[k], key=lambda w: (len(had[w]) / self._threads[w], w))
                had[least].append(k)
        for worker, numbers in self._moves(had).items():
            self._client.replicate([shards[k] for k in numbers], n=1, workers=[worker])
        places: list[str | None] = [None] * len(shards)
        for worker, numbers in had.items():
            for k in numbers:
                places[k] = worker
        return places

    def _moves(self, had: dict[str, list[int]]) -> dict[str, list[int]]:
        """Move shards from workers that have many to those that have few; return which."""
        moves: dict[str, list[int]] = {}
        while had:
            most = max(had, key=lambda w: (len(had[w]) - 1) / self._threads[w])
            least = min(had, key=lambda w: (len(had[w]) + 1) / self._threads[w])
            after = (len(had[most]) - 1) / self._threads[most]
            if after < (len(had[least]) + 1) / self._threads[least]:
                break
            shard = had[most].pop()
            had[least].append(shard)
            moves.setdefault(least, []).append(shard)
        return moves

    def watch(self, futures: Sequence[Any], places: Sequence[str | None]) -> None:
        """Wait until tasks are done; fail if a worker that one of them is meant for is lost."""
        from distributed import wait

        while True:
            try:
                wait(futures, timeout=WATCH)
                return
            except TimeoutError:
                there = self._client.nthreads()
                if any(place is not None and place not in there for place in places):
                    raise ConnectionResetError("a worker is gone") from None
