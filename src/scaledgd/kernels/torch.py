"""PyTorch tensors, on the device where they are."""

from __future__ import annotations

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
        # a few steps from any row nearly always lead everywhere
        if len(shape) != 2 or not index[0].numel():
            return super().parts(index, shape)
        seen = [x.new_zeros(n, dtype=torch.bool) for x, n in zip(index, shape, strict=True)]
        for mask, x in zip(seen, index, strict=True):
            mask[x] = True
        reached = torch.zeros_like(seen[0])
        reached[index[0][:1]] = True
        for step in range(6):
            k = 1 - step % 2
            found = torch.zeros_like(torch.cat([seen[k], seen[k][:1]]))
            found[torch.where(reached[index[1 - k]], index[k], shape[k])] = True
            reached, before = found[:-1], reached
            if bool((reached == seen[k]).all()) and bool((before == seen[1 - k]).all()):
                return 1
        return super().parts(index, shape)

    def kth_largest(self, x: Array, k: int, axis: int) -> Array:
        return x.kthvalue(x.shape[axis] - k + 1, dim=axis, keepdim=True).values
