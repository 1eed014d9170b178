"""Entries sorted by one of their modes, cut into pieces of about equal work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

Array = Any

PIECE = 2048
"""Largest number of entries that one program processes; longer rows are cut."""

SMALL = 2**31 - 1
"""Largest number of entries whose order is stored in 32 bits."""


class Work(NamedTuple):
    """How the rows of a mode are distributed: whole rows, pieces of long rows, and long rows.

    `single` are the rows of one piece, the longest first. `rows`, `begins` and `ends` say where
    the pieces of the `long` rows are; those of the k-th of these are first[k] .. first[k + 1] − 1.
    """

    single: Array
    rows: Array
    begins: Array
    ends: Array
    long: Array
    first: Array


@dataclass(frozen=True, eq=False)
class Sorted:
    """Entries sorted by a mode.

    Attributes
    ----------
    order : array of shape (m,), or None if the entries came in that order
    others : tuple of 32-bit integer arrays of shape (m,)
        Coordinates along the other modes.
    starts : array of shape (n + 1,)
        Where the entries of each row begin.
    """

    order: Array | None
    others: tuple[Array, ...]
    starts: Array
    _work: dict[int, Work] = field(default_factory=dict)

    @classmethod
    def by(cls, index: tuple[Array, ...], shape: tuple[int, ...], mode: int) -> Sorted:
        """Return the entries at `index` sorted by a mode.

        Parameters
        ----------
        index : tuple of integer arrays of shape (m,)
        shape : tuple of int
        mode : int
        """
        rows, order = index[mode].to(torch.int32), None
        if not bool((rows[1:] >= rows[:-1]).all()):
            rows, order = torch.sort(rows, stable=True)
        every = torch.arange(shape[mode] + 1, dtype=torch.int32, device=rows.device)
        starts = torch.searchsorted(rows, every)
        del rows
        others = tuple(
            (i if order is None else i[order]).to(torch.int32)
            for k, i in enumerate(index)
            if k != mode
        )
        if order is not None and order.shape[0] <= SMALL:
            order = order.to(torch.int32)
        return cls(order, others, starts)

    def arranged(self, values: Array) -> Array:
        """Return per-entry values in this order."""
        return values.contiguous() if self.order is None else values[self.order]

    def measured(self, values: Array) -> Array:
        """Return per-entry values in the original order."""
        if self.order is None:
            return values
        found = torch.empty_like(values)
        found[self.order] = values
        return found

    def work(self, width: int) -> Work:
        """Return how rows are distributed for systems of some width."""
        piece = PIECE * max(1, width // 32)
        if piece not in self._work:
            self._work[piece] = self._shared_out(piece)
        return self._work[piece]

    def _shared_out(self, piece: int) -> Work:
        counts = self.starts[1:] - self.starts[:-1]
        single = torch.nonzero(counts <= piece)[:, 0]
        single = single[torch.argsort(counts[single], descending=True)]
        long = torch.nonzero(counts > piece)[:, 0]
        pieces = (counts[long] + piece - 1) // piece
        first = torch.zeros(long.shape[0] + 1, dtype=torch.int64, device=counts.device)
        torch.cumsum(pieces, 0, out=first[1:])
        which = torch.repeat_interleave(torch.arange(len(long), device=counts.device), pieces)
        rows = long[which]
        number = torch.arange(which.shape[0], device=counts.device) - first[which]
        begins = self.starts[rows] + number * piece
        ends = torch.minimum(begins + piece, self.starts[rows + 1])
        small = (x.to(torch.int32) for x in (single, rows, long))
        single, rows, long = small
        return Work(single, rows, begins, ends, long, first)
