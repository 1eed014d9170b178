"""Entries that do not fit on a GPU: some stay on the host, and are sent there part by part.

A part holds the entries of some rows, or of some columns: it is a shard, and the GPU the only
worker. While it works on one part, the next one is on its way. Parts that there is room for,
factors, and whatever else is of their size, stay on the GPU throughout.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from ..estimators.local_observations import LocalObservations
from ..estimators.models import CACHES
from ..estimators.packing import on_device
from ..estimators.reading import Kind
from ..kernels import Pattern, backend
from ..kernels.torch import all_reached
from .observations import ShardedObservations
from .remembered import unseen
from .shards import DuplicateError, Shard, _Coordinates, boundaries
from .workers import Work, Workers

Array = Any
Slot = tuple[Array, Array]

LIMIT = "SCALEDGD_GPU_MEMORY"
"""The environment variable that says how many bytes of a GPU entries may take."""
WHOLE = 40
"""Bytes per entry, beside four copies of its value, that a fit takes if all are on the GPU."""
SORTING = 80
"""The same per entry of those that are sorted at a time."""
PART = 16
"""The same per entry of a part, while the GPU works on it and the next one comes."""
WORKING = 0.5
"""Share of the room for that; the rest is for parts that stay. Few parts cost the host less."""
LINE = 2048
"""Bytes that a fit takes for a row or column."""
SPARE = 0.9
"""Share of the free memory that is used."""


def room(place: Any, shape: tuple[int, ...]) -> float:
    """Return how many bytes entries may take on a device.

    Parameters
    ----------
    place : torch.device
    shape : tuple of int
        Of the table, whose factors are there too.
    """
    limit = os.environ.get(LIMIT)
    if limit is not None:
        return float(limit)
    if place.type != "cuda":
        return math.inf
    free, _ = torch.cuda.mem_get_info(place)
    cached = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
    return float(SPARE * (free + cached) - LINE * sum(shape))


def fits(data: LocalObservations, place: Any) -> bool:
    """Return whether a fit on a device leaves all entries there."""
    sent = 0 if data.y.device == place else 8 * len(data.shape)
    needed = data.size * (WHOLE + sent + 4 * int(data.y.itemsize))
    return needed <= room(place, data.shape)


def place_of(data: LocalObservations) -> Any:
    """Return the GPU that entries are to be fitted on: theirs, or one for pinned memory.

    None if they are to be fitted where they are, without a GPU.
    """
    if data.index is None or not data.size:
        return None
    if data.y.is_cuda:
        return data.y.device
    return torch.device("cuda", torch.cuda.current_device()) if data.y.is_pinned() else None


# ---- parts


@dataclass(frozen=True, eq=False)
class Part(Shard):
    """A shard whose entries are on the host, or on a GPU while it works on them.

    Attributes
    ----------
    shared : dict
        How the rows are shared out among programs: the same whenever the part is sent.
    stays : bool
        Whether it stays on the GPU.
    """

    shared: dict[int, Any] = field(default_factory=dict)
    stays: bool = False

    def sent(self, place: Any, slot: Slot | None = None) -> Part:
        """Return the part on a device, perhaps in a slot; the copies are under way."""
        if slot is None:
            there = [x.to(place, non_blocking=True) for x in (self.others, self.y)]
        else:
            pairs = zip(slot, (self.others, self.y), strict=True)
            there = [x[: self.size].copy_(y, non_blocking=True) for x, y in pairs]
        return replace(self, places=there[0], y=there[1])

    def let_go(self) -> None:
        """Forget what refers to the part: memory would be freed only when cycles are collected."""
        for name in ("pattern", "operator"):
            self.__dict__.pop(name, None)

    def kept(self) -> Part:
        """Return the part with its entries on the host."""
        there = {"places": pinned(self.others), "y": pinned(self.y)}
        return replace(self, **there, shared={}, stays=False)

    @cached_property
    def pattern(self) -> Pattern:
        kernels = backend(self.y)
        if not self.size or kernels.name != "gpu":
            return kernels.pattern(self.index, self.shape)
        from ..kernels.gpu.backend import SortedPattern
        from ..kernels.gpu.sorting import Sorted

        entries = Sorted(None, (self.others,), self.starts, self.shared)
        coordinates: Any = _Coordinates(self)
        return SortedPattern(entries, self.mode, coordinates, self.shape)


def pinned(x: Array, dtype: Any = None) -> Array:
    """Return an array in memory of the host that a GPU copies from on its own."""
    there = empty(x.shape[0], x.dtype if dtype is None else dtype)
    there.copy_(x)
    return there


def empty(size: int, dtype: Any) -> Array:
    """Return pinned memory; plain memory where there is no GPU."""
    return torch.empty(size, dtype=dtype, pin_memory=torch.cuda.is_available())


class Stream(Workers):
    """A GPU that parts are sent to, each while it works on the one before.

    There are two slots of memory for parts. A copy waits until the work on the part before it in
    its slot is done. The GPU waits, not the host, which may be many parts ahead.
    """

    threads = 1

    def __init__(self, place: Any) -> None:
        self.place = place
        cuda: Any = torch.cuda
        self._copies = cuda.Stream(place) if place.type == "cuda" else None
        self._slots: list[Slot] = []
        self._free: list[Any] = [None, None]
        self._next = 0

    def compute(self, tasks: Sequence[Any]) -> list[Any]:
        raise NotImplementedError

    def shuffle(self, *arguments: Any) -> list[Any]:
        raise NotImplementedError

    def each(
        self, work: Work, shards: Sequence[Any], own: Sequence[tuple[Any, ...]], *shared: Any
    ) -> list[Any]:
        found: list[Any] = []
        coming = self._sent(shards[0], shards)
        for k, mine in enumerate(own):
            part, slot, ready = coming
            if k + 1 < len(shards):
                coming = self._sent(shards[k + 1], shards)
            if ready is None:
                found.append(work(part, *mine, *shared))
            else:
                stream = torch.cuda.current_stream(self.place)
                stream.wait_event(ready)
                found.append(_apart(work(part, *mine, *shared), self._slots[slot]))
                self._free[slot] = stream.record_event()
            if not part.stays:
                part.let_go()
        return found

    def _sent(self, part: Part, all_parts: Sequence[Part]) -> tuple[Part, int, Any]:
        """A part on its way, its slot, and the event that it has arrived; None if it is there."""
        if part.stays or self._copies is None:
            return part if part.stays else part.sent(self.place), 0, None
        if not self._slots or part.size > self._slots[0][0].shape[0]:
            self._make_slots(max(int(one.size) for one in all_parts), part.y.dtype)
        slot, self._next = self._next, 1 - self._next
        with torch.cuda.stream(self._copies):
            if self._free[slot] is not None:
                self._copies.wait_event(self._free[slot])
            there = part.sent(self.place, self._slots[slot])
        return there, slot, self._copies.record_event()

    def _make_slots(self, size: int, dtype: Any) -> None:
        """Take memory for two parts of some size; larger than before if there was some."""
        torch.cuda.synchronize(self.place)  # no copy, and no work, is under way
        self._slots, self._free = [], [None, None]
        here: Any = {"device": self.place}
        for _ in range(2):
            others = torch.empty(size, dtype=torch.int32, **here)
            self._slots.append((others, torch.empty(size, dtype=dtype, **here)))

    def derive(self, work: Work, shards: Sequence[Any], *shared: Any) -> list[Any]:
        def back(part: Part, *arguments: Any) -> Part:
            found: Part = work(part, *arguments)
            return found.kept()

        return self.each(back, shards, [()] * len(shards), *shared)

    def close(self) -> None:
        """Nothing is held."""


def _apart(found: Any, slot: Slot) -> Any:
    """Return results without references to a slot, which the next part overwrites."""
    if isinstance(found, tuple | list):
        parts = [_apart(x, slot) for x in found]
        return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)
    if isinstance(found, torch.Tensor):
        here = found.untyped_storage().data_ptr()
        if any(here == x.untyped_storage().data_ptr() for x in slot):
            return found.clone()
    return found


# ---- observations


@dataclass(frozen=True, eq=False)
class StreamedObservations(ShardedObservations):
    """Values at coordinates, in parts on the host that a GPU works on."""

    workers: Stream

    @property
    def example(self) -> Array:
        return torch.empty(0, dtype=self.dtype, device=self.workers.place)

    @property
    def sent(self) -> int:
        """How many of the entries do not stay on the GPU."""
        sent = (sum(int(part.size) for part in parts if not part.stays) for parts in self.shards)
        return max(sent)

    def components(self) -> int:
        def next_to(mode: int, reached: Array) -> Array:
            return torch.cat(self.each(_next_to, mode, None, reached))

        seen = [self.counts(k) > 0 for k in (0, 1)]
        if "components" not in self._shared and all_reached(seen, next_to):
            self._shared["components"] = 1
        return super().components()

    def dense(self) -> tuple[Array, Array]:
        """Return values as a whole array, and how much each counts: of a small table."""
        return self.gathered().dense()

    def _refuse(self, what: str) -> Any:
        raise NotImplementedError(
            f"{what} of {self.size:,} entries that do not fit on the GPU: not streamed yet; fit "
            "some of the rows, or fit NumPy arrays on the host"
        )


def _next_to(part: Part, reached: Array) -> Array:
    """Return which slices of a part have an entry at what is reached of the other mode."""
    sums = part.pattern.sums(reached[part.others].to(part.y.dtype), part.mode, part.y)
    return sums > 0


def streamed(data: LocalObservations, place: Any) -> StreamedObservations:
    """Return entries in parts on the host, each twice: by row and by column.

    Parameters
    ----------
    data : LocalObservations
        On the host or on a device.
    place : torch.device
        The GPU.
    """
    bytes_left = room(place, data.shape)
    working, values = WORKING * bytes_left, 4 * data.y.itemsize
    sorting, sending = (int(working / (each + values)) for each in (SORTING, PART))
    together = math.ceil(sending / max(1, sorting))
    sorting = min(sorting, sending // together) if together else 0
    if sorting < 1:
        raise MemoryError(
            f"the factors of a table of shape {data.shape} leave no room for entries on the GPU; "
            "fit NumPy arrays on the host"
        )
    (rows, first), (columns, second) = _parts(data, place, sorting, together)
    left = (1 - WORKING) * bytes_left
    for k in range(max(len(rows), len(columns))):
        for parts in (rows, columns):
            taken = parts[k].size * (4 + data.y.itemsize) if k < len(parts) else 0
            if 0 < taken <= left:
                parts[k], left = replace(parts[k].sent(place), stays=True), left - taken
    return StreamedObservations(
        Stream(place), (rows, columns), (first, second), data.shape, data.size, data.y.dtype
    )


class _Store:
    """Pinned memory for entries, in the order of the rows or of the columns.

    They are sorted piece by piece; a part that is sent has several consecutive pieces.
    """

    def __init__(
        self, data: LocalObservations, mode: int, counts: Array, sorting: int, together: int
    ) -> None:
        self.mode, self.shape, self.place = mode, data.shape, counts.device
        pieces = boundaries(counts.cpu().numpy(), math.ceil(data.size / sorting))
        lasts = torch.tensor([last for _, last in pieces], device=self.place)
        ends = torch.cumsum(counts, 0)[lasts - 1].tolist()
        begins = [0, *ends[:-1]]
        self._pieces = list(zip(pieces, begins, ends, strict=True))
        self._lasts, self._filled = lasts[:-1], begins
        self._together = together
        kinds = torch.int32, torch.int32, data.y.dtype
        self._all = [empty(data.size, dtype) for dtype in kinds]

    def put(self, here: Sequence[Array]) -> None:
        """Store coordinates and values that are on the GPU, each in the piece it belongs to."""
        own, others, y = here[self.mode], here[1 - self.mode], here[2]
        piece = torch.searchsorted(self._lasts.to(own.dtype), own, right=True)
        piece, order = torch.sort(piece, stable=True)
        lengths = torch.bincount(piece, minlength=len(self._pieces)).tolist()
        first = 0
        ordered = [(x[order], there) for x, there in zip((own, others, y), self._all, strict=True)]
        for k, length in enumerate(lengths):
            at = self._filled[k]
            for x, there in ordered:
                there[at : at + length].copy_(x[first : first + length], non_blocking=True)
            self._filled[k] += length
            first += length

    def parts(self) -> Iterator[Part]:
        """Sort all pieces, one after the other."""
        for k in range(0, len(self._pieces), self._together):
            pieces = self._pieces[k : k + self._together]
            (first, _), begin, _ = pieces[0]
            end = pieces[-1][2]
            starts = [self._sorted(*piece) - begin for piece in pieces]
            last = starts[-1].new_tensor([end - begin])
            shape: Any = self.shape
            others, y = (x[begin:end] for x in self._all[1:])
            yield Part(self.mode, first, shape, torch.cat([*starts, last]), others, y)

    def _sorted(self, bounds: tuple[int, int], begin: int, end: int) -> Array:
        """Sort a piece; return where each of its slices begins."""
        (first, last), width = bounds, self.shape[1 - self.mode]
        own, others, y = (x[begin:end].to(self.place, non_blocking=True) for x in self._all)
        key, order = torch.sort((own.to(torch.int64) - first) * width + others, stable=True)
        _refuse_repeated(key, first, width, self.mode)
        for x, there in zip((others, y), self._all[1:], strict=True):
            there[begin:end].copy_(x[order], non_blocking=True)
        return begin + torch.searchsorted(
            key, width * torch.arange(last - first, device=key.device)
        )


def _parts(
    data: LocalObservations, place: Any, sorting: int, together: int
) -> list[tuple[list[Part], list[tuple[int, int]]]]:
    """The entries in sorted parts of whole rows, and of whole columns."""
    chunks = [slice(s, min(s + sorting, data.size)) for s in range(0, data.size, sorting)]

    def coordinates(chunk: slice) -> list[Array]:
        whole = (i[chunk] for i in data.coordinates)
        return [x if x.device == place else pinned(x, torch.int32) for x in whole]

    counts = [torch.zeros(n, dtype=torch.int64, device=place) for n in data.shape]
    narrow = [coordinates(chunk) for chunk in chunks]  # made once, and needed twice
    for index in narrow:
        for i, count in zip(index, counts, strict=True):
            count += torch.bincount(i.to(place), minlength=count.shape[0])
    stores = [_Store(data, mode, c, sorting, together) for mode, c in enumerate(counts)]
    for chunk in chunks:
        here = [*(i.to(place) for i in narrow.pop(0)), data.flat[chunk].to(place)]
        for store in stores:
            store.put(here)
    found = []
    for store in stores:
        parts = list(store.parts())
        found.append((parts, [(part.first, part.first + part.slices) for part in parts]))
    return found


def _refuse_repeated(key: Array, first: int, width: int, mode: int) -> None:
    again = torch.nonzero(key[1:] == key[:-1])[:, 0]
    if again.shape[0]:
        own, other = divmod(int(key[again[0]]), width)
        pair = (own + first, other) if mode == 0 else (other, own + first)
        raise DuplicateError(again.shape[0], pair)


# ---- fits


def fit(estimator: Any, data: LocalObservations, kind: Kind, X: Any = None) -> bool:
    """Fit an estimator of a table on a GPU if its entries are not there, or leave no room there.

    The model is where the entries are in the end.

    Parameters
    ----------
    estimator : estimator
    data : LocalObservations
    kind : Kind
    X : object
        What the user passed, for callbacks.

    Returns
    -------
    fitted : bool
        False if there is nothing special about the entries.
    """
    place = place_of(data)
    if place is None or (data.y.device == place and fits(data, place)):
        return False
    if fits(data, place):
        known: Any = on_device(data, place)
    else:
        _refuse_options(estimator, data)
        known = streamed(data, place)
    earlier = getattr(estimator, "_model", None)
    if earlier is not None:
        estimator._model = earlier = _moved(earlier, place, earlier.observations)
    try:
        estimator._fit(known, kind, X=X)
    finally:
        found: Any = getattr(estimator, "_model", None)
        if found is not earlier:
            found._row_levels  # noqa: B018, found while the entries are on the GPU
            estimator._publish(_moved(found, data.y.device, _seen(data, found.observations)))
    if isinstance(known, StreamedObservations):
        estimator.status_ += f"; {known.sent:,} of {data.size:,} entries were streamed to the GPU"
    return True


def _moved(model: Any, place: Any, observations: Any) -> Any:
    """A model on another device, with observations that are where they should be."""
    blank = LocalObservations(None, torch.empty(0), (0, 0))
    known = model.__dict__
    caches = {k: on_device(known[k], place) for k in (*CACHES, "_row_levels") if k in known}
    other = replace(on_device(replace(model, observations=blank), place), observations=observations)
    other.__dict__.update(caches)
    return other


def _seen(data: LocalObservations, known: Any) -> LocalObservations:
    """The entries that a fit saw, on the device they came from."""
    if not isinstance(known, StreamedObservations):
        found: LocalObservations = on_device(known, data.y.device)
        return found
    held = unseen(known.choice)
    return data if held is None else data.some(torch.nonzero(~held(data.coordinates))[:, 0])


def _refuse_options(estimator: Any, data: LocalObservations) -> None:
    """Say which options need all entries on the GPU at once."""
    named = {
        "outliers": estimator._outliers() is not None,
        "weights": data.weight is not None,
        "smooth": estimator._smooth in ("rows", "columns"),
    }
    for name, asked in named.items():
        if asked:
            raise NotImplementedError(
                f"{data.size:,} entries do not fit on the GPU, and {name} needs all of them "
                "there; leave it out, fit some of the rows, or fit NumPy arrays on the host"
            )
