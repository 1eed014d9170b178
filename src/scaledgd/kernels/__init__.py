"""The few hot loops over observed entries, one module per kind of array.

This is the one place where the kind of array decides anything. `gather` evaluates a
factored matrix on entries, `pattern` prepares entries for sparse products, and
`kth_largest` finds the order statistics that trimming needs.
"""

from __future__ import annotations

from typing import Any, Protocol

from array_api_compat import array_namespace, is_numpy_namespace, is_torch_namespace

from ..linalg import conj

Array = Any

CHUNK = 1 << 15
"""Entries handled at once: a few thousand rows of the factors stay in cache, and the
temporaries stay far below the data in size."""


class Pattern(Protocol):
    """A fixed set of observed entries."""

    shape: tuple[int, ...]

    def contract(self, weights: Array, modes: tuple[Array, ...], skip: int | None) -> Array:
        """Contract the array with `weights` on the pattern, as `Ambient.contract` says."""


def gather(modes: tuple[Array, ...], index: tuple[Array, ...]) -> Array:
    """Σ_k Π_j modes[j][index[j], k], in chunks of entries."""
    A, B = modes
    i, j = index
    xp = array_namespace(A)
    B = conj(B)  # vecdot conjugates its first argument
    m = i.shape[0]
    parts = []
    for s in range(0, m, CHUNK):
        part = slice(s, min(s + CHUNK, m))
        parts.append(xp.vecdot(xp.take(B, j[part], axis=0), xp.take(A, i[part], axis=0)))
    return parts[0] if len(parts) == 1 else xp.concat(parts)


def pattern(index: tuple[Array, ...], shape: tuple[int, ...]) -> Pattern:
    """The entries at `index`, prepared for products."""
    xp = array_namespace(*index)
    if is_numpy_namespace(xp):
        from .numpy import CSRPattern

        return CSRPattern(index, shape)
    if is_torch_namespace(xp):
        from .torch import ScatterPattern

        return ScatterPattern(index, shape)
    from .generic import SegmentPattern

    return SegmentPattern(index, shape)


def kth_largest(x: Array, k: int, axis: int) -> Array:
    """The k-th largest value along an axis (k ≥ 1), kept as an axis of size 1."""
    xp = array_namespace(x)
    n = x.shape[axis]
    if is_numpy_namespace(xp):
        import numpy as np

        return np.take(np.partition(x, n - k, axis=axis), [n - k], axis=axis)
    if is_torch_namespace(xp):
        return x.kthvalue(n - k + 1, dim=axis, keepdim=True).values
    return xp.take(xp.sort(x, axis=axis), xp.asarray([n - k]), axis=axis)
