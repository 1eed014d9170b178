"""The few hot loops over observed entries, one module per kind of array.

`gather` evaluates a factored object on entries, a `Pattern` contracts weights on entries
with mode matrices, and `kth_largest` finds the order statistics that trimming needs. All
of them go over the entries in chunks, so that temporaries stay far below the data in size.
This is the one place where the kind of array decides anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from array_api_compat import array_namespace, is_numpy_namespace, is_torch_namespace

from ..linalg import adjoint, conj, mode_product, unfold

Array = Any
Index = tuple[Array, ...]

CHUNK = 1 << 18
"""Numbers that a temporary may hold: about what stays in cache."""


def _chunks(m: int, width: int) -> Iterator[slice]:
    """Ranges of entries for which temporaries of `width` numbers each are small."""
    step = max(256, CHUNK // width)
    return (slice(s, min(s + step, m)) for s in range(0, m, step))


def gather(modes: tuple[Array, ...], index: Index, core: Array | None = None) -> Array:
    """The entries of core ×₁ modes[0] ×₂ modes[1] … at `index`.

    Without a core (a matrix, L Rᴴ) they are Σ_k Π_j modes[j][index[j], k].
    """
    xp = array_namespace(modes[0])
    parts = []
    if core is None:
        A, B = modes[0], conj(modes[1])  # vecdot conjugates its first argument
        for part in _chunks(index[0].shape[0], 2 * A.shape[1]):
            i, j = (x[part] for x in index)
            parts.append(xp.vecdot(xp.take(B, j, axis=0), xp.take(A, i, axis=0)))
    else:
        widest, rest = _widest(core.shape)
        T = _absorbed(core, modes, widest)
        for part in _chunks(index[0].shape[0], 2 * math.prod(T.shape[1:])):
            value = xp.take(T, index[widest][part], axis=0)
            for j in reversed(rest):
                value = _along(value, xp.take(modes[j], index[j][part], axis=0), 1 + rest.index(j))
            parts.append(value)
    return parts[0] if len(parts) == 1 else xp.concat(parts)


def _widest(ranks: tuple[int, ...]) -> tuple[int, list[int]]:
    """The mode of largest rank, and the others: absorbing it leaves the fewest numbers."""
    widest = max(range(len(ranks)), key=lambda k: ranks[k])
    return widest, [k for k in range(len(ranks)) if k != widest]


def _absorbed(core: Array, modes: tuple[Array, ...], mode: int) -> Array:
    """Core ×_mode modes[mode], with that mode first: one small tensor per index."""
    return array_namespace(core).moveaxis(mode_product(core, modes[mode], mode), mode, 0)


def _along(values: Array, rows: Array, axis: int) -> Array:
    """Contract axis `axis` of values (entries first) with one row per entry."""
    xp = array_namespace(values)
    shape = [1] * values.ndim
    shape[0], shape[axis] = rows.shape
    return xp.sum(values * xp.reshape(rows, tuple(shape)), axis=axis)


def _outer(rows: list[Array]) -> Array:
    """The row-wise Kronecker products, of shape (entries, product of the widths), C order."""
    xp = array_namespace(*rows)
    result = rows[0]
    for M in rows[1:]:
        result = xp.reshape(result[:, :, None] * M[:, None, :], (M.shape[0], -1))
    return result


def scatter(rows: Array, values: Array, n: int) -> Array:
    """Row i of the result, of shape (n, width), is the sum of values[e] over rows[e] == i."""
    xp = array_namespace(values)
    if is_numpy_namespace(xp):
        from .numpy import scatter as implementation
    elif is_torch_namespace(xp):
        from .torch import scatter as implementation
    else:
        from .generic import scatter as implementation
    return implementation(rows, values, n)


class Pattern:
    """A fixed set of observed entries of an object of some shape."""

    def __init__(self, index: Index, shape: tuple[int, ...]) -> None:
        self.index, self.shape = index, shape

    def contract(self, weights: Array, modes: tuple[Array, ...], skip: int | None = None) -> Array:
        """Contract the array with `weights` on the pattern, as `Ambient.contract` says."""
        xp = array_namespace(weights)
        keep = len(self.shape) - 1 if skip is None else skip
        others = [j for j in range(len(self.shape)) if j != keep]
        widths = [modes[j].shape[1] for j in others]
        result = 0
        for part in _chunks(weights.shape[0], math.prod(widths)):
            rows = [conj(xp.take(modes[j], self.index[j][part], axis=0)) for j in others]
            rows[0] = weights[part][:, None] * rows[0]
            i = self.index[keep][part]
            if skip is None:
                result = result + conj(xp.take(modes[keep], i, axis=0)).T @ _outer(rows)
            else:
                result = result + scatter(i, _outer(rows), self.shape[keep])
        return xp.moveaxis(xp.reshape(result, (-1, *widths)), 0, keep)

    def tucker_gradients(
        self, weights: Array, modes: tuple[Array, ...], core: Array
    ) -> tuple[Array, ...]:
        """The gradients of a Tucker decomposition, factors then core, in one pass.

        An entry costs about Π r_k / max r_k for each mode: the core absorbs the factor of
        largest rank, which leaves one small tensor per entry to contract with the rows of
        the other factors; the gradient of the absorbed factor comes from their outer
        products instead.
        """
        xp = array_namespace(weights)
        widest, rest = _widest(core.shape)
        T = _absorbed(core, modes, widest)
        grads: dict[int, Any] = dict.fromkeys(range(core.ndim), 0)
        outer: Any = 0
        for part in _chunks(weights.shape[0], 2 * math.prod(T.shape[1:])):
            w = weights[part][:, None]
            rows = {j: xp.take(modes[j], self.index[j][part], axis=0) for j in rest}
            small = xp.take(T, self.index[widest][part], axis=0)
            for k in rest:
                value = small
                for j in reversed(rest):
                    if j != k:
                        value = _along(value, rows[j], 1 + rest.index(j))
                i = self.index[k][part]
                grads[k] = grads[k] + scatter(i, w * conj(value), self.shape[k])
            products = w * conj(_outer([rows[j] for j in rest]))
            outer = outer + scatter(self.index[widest][part], products, self.shape[widest])
        grads[widest] = outer @ adjoint(unfold(core, widest))
        flat = adjoint(modes[widest]) @ outer
        grad_core = xp.reshape(flat, (-1, *(core.shape[j] for j in rest)))
        return (*(grads[k] for k in range(core.ndim)), xp.moveaxis(grad_core, 0, widest))

    def squares(self, weights: Array, mode: int) -> Array:
        """Σ |w|² over the entries of every slice of a mode."""
        xp = array_namespace(weights)
        square = xp.astype(xp.abs(weights) ** 2, weights.dtype)
        return scatter(self.index[mode], square[:, None], self.shape[mode])[:, 0]

    def unfold(self, mode: int) -> Pattern:
        """The pattern of an unfolding, empty columns left out."""
        xp = array_namespace(*self.index)
        columns = xp.zeros_like(self.index[0])
        for j, n in enumerate(self.shape):
            if j != mode:
                columns = columns * n + self.index[j]
        found, columns = xp.unique_inverse(columns)
        return pattern((self.index[mode], columns), (self.shape[mode], int(found.shape[0])))


def pattern(index: Index, shape: tuple[int, ...]) -> Pattern:
    """The entries at `index`, prepared for products."""
    if len(shape) == 2 and is_numpy_namespace(array_namespace(*index)):
        from .numpy import CSRPattern

        return CSRPattern(index, shape)
    return Pattern(index, shape)


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
