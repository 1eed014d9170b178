"""PyTorch tensors, on the device where they are."""

from __future__ import annotations

from typing import Any

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

    def kth_largest(self, x: Array, k: int, axis: int) -> Array:
        return x.kthvalue(x.shape[axis] - k + 1, dim=axis, keepdim=True).values
