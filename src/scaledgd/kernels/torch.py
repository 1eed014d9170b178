"""PyTorch tensors, on the device where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .design import Index
from .entries import CHUNK
from .generic import Generic

Array = Any


class Torch(Generic):
    """Scattered sums and order statistics by PyTorch's own functions."""

    name = "torch"

    def chunk(self, like: Array) -> int:
        # a device has no cache to fit into, and launching a kernel is expensive
        return CHUNK if like.device.type == "cpu" else CHUNK << 8

    def scatter(self, rows: Array, values: Array, n: int) -> Array:
        # index_add, unlike index_add_, can be differentiated
        return values.new_zeros((values.shape[0], n)).index_add(1, rows, values).T

    def scatter_min(self, rows: Array, values: Array, n: int, empty: int) -> Array:
        return values.new_full((n,), empty).scatter_reduce(0, rows, values, "amin")

    def parts(self, index: Index, shape: tuple[int, ...]) -> int:
        if len(shape) != 2 or not index[0].numel():
            return super().parts(index, shape)
        seen = [x.new_zeros(n, dtype=torch.bool) for x, n in zip(index, shape, strict=True)]
        for mask, x in zip(seen, index, strict=True):
            mask[x] = True

        def next_to(mode: int, reached: Array) -> Array:
            found = reached.new_zeros(shape[mode] + 1)
            found[torch.where(reached[index[1 - mode]], index[mode], shape[mode])] = True
            return found[:-1]

        return 1 if all_reached(seen, next_to) else super().parts(index, shape)

    def kth_largest(self, x: Array, k: int, axis: int) -> Array:
        return x.kthvalue(x.shape[axis] - k + 1, dim=axis, keepdim=True).values


def all_reached(seen: list[Array], next_to: Callable[[int, Array], Array]) -> bool:
    """Return whether all rows and columns with entries are within a few steps of one of them.

    They nearly always are, if they are connected at all.

    Parameters
    ----------
    seen : pair of bool arrays of shape (n_k,)
        Which rows, and which columns, have entries.
    next_to : callable
        Given a mode and the reached slices of the other one, returns which slices of the mode have
        an entry there.
    """
    # slices of the shorter side have more entries, which lead further
    mode = min((0, 1), key=lambda k: seen[k].shape[0])
    reached = torch.zeros_like(seen[mode])
    reached[torch.argmax(seen[mode].to(torch.int8))] = True
    for _ in range(6):
        mode = 1 - mode
        reached, before = next_to(mode, reached), reached
        if bool((reached == seen[mode]).all() & (before == seen[1 - mode]).all()):
            return True
    return False
