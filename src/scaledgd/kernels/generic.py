"""The reference backend: every kernel in array-API calls, for arrays of any library.

All loops over entries run in chunks, so that temporaries are much smaller than the data. The other
backends override what they can do faster, and are tested in lock-step with this one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from array_api_compat import device

from ..linalg import conj, magnitude2
from ..namespaces import array_namespace
from .design import Conditionals, Index
from .entries import CHUNK, Absorbed, Grid, Pattern, numbered

Array = Any


class Generic:
    """Kernels over observed entries in array-API calls. The other backends subclass it."""

    name = "generic"

    def chunk(self, like: Array) -> int:
        """Return how many numbers a temporary array may hold."""
        return CHUNK

    def chunks(self, like: Array, width: int, target: int = 0) -> Iterator[slice]:
        """Return ranges over the entries of `like`, with temporaries of `width` numbers each.

        A range is no shorter than the `target` rows that it is summed into, which would
        dominate the cost.
        """
        m = like.shape[0]
        step = max(256, target, self.chunk(like) // max(1, width))
        return (slice(s, min(s + step, m)) for s in range(0, m, step))

    # ---- entries of factored objects

    def pattern(self, index: Index, shape: tuple[int, ...]) -> Pattern:
        """Return the entries at `index`, prepared for products."""
        return Pattern(index, shape, self)

    def grid(self, shape: tuple[int, ...]) -> Grid:
        """Return all entries of an object of some shape, prepared for products."""
        return Grid(shape, self)

    def gather(
        self,
        modes: tuple[Array, ...],
        index: Index,
        core: Array | None = None,
        y: Array | None = None,
    ) -> Array:
        """Return the entries of core ×₁ modes[0] ×₂ modes[1] … at `index`, minus y.

        Without a core (a matrix L Rᴴ) they are Σ_k Π_j modes[j][index[j], k].
        """
        xp = array_namespace(modes[0])
        found = []
        if core is None:
            A, B = modes[0], conj(modes[1])  # vecdot conjugates its first argument
            for part in self.chunks(index[0], 2 * A.shape[1]):
                i, j = (x[part] for x in index)
                found.append(xp.vecdot(xp.take(B, j, axis=0), xp.take(A, i, axis=0)))
        else:
            small = Absorbed(modes, core)
            for part in self.chunks(index[0], 2 * small.width):
                found.append(small.contracted(small.at(index, part), small.rows(index, part)))
        if not found:
            return xp.zeros_like(modes[0][:0, 0])
        values = found[0] if len(found) == 1 else xp.concat(found)
        return values if y is None else values - y

    def dense_residual(self, L: Array, R: Array, Y: Array) -> Array:
        """Return L Rᵀ − Y."""
        return L @ R.T - Y

    def turned(self, C: Array, M: Array) -> Array:
        """Return Mᵀ C M for the symmetric matrices in C, of shape (n, q, q)."""
        xp, q = array_namespace(C), C.shape[-1]
        # two products of large matrices instead of many small ones
        half = xp.reshape(C, (-1, q)) @ M
        half = xp.permute_dims(xp.reshape(half, C.shape), (0, 2, 1))
        return xp.reshape(xp.reshape(half, (-1, q)) @ M, C.shape)

    def conditionals(
        self,
        Z: Array,
        covariance: Array,
        precision: Array,
        *,
        total: bool = False,
        variances: bool = False,
        others: bool = False,
    ) -> Conditionals:
        """Return rows of a Gaussian of mean zero given their observed entries.

        Parameters
        ----------
        Z : array of shape (n, d)
            With NaN at missing entries.
        covariance, precision : arrays of shape (d, d)
            Inverses of one another.
        total : bool
            Whether to sum the conditional covariances.
        variances : bool
            Whether to return the variances of missing entries, and zeros at observed ones.
        others : bool
            Whether to predict every entry from the other observed entries of its row; variances are
            then those of the predictions.
        """
        xp, d = array_namespace(Z), Z.shape[1]
        missing = xp.isnan(Z)
        known = xp.where(missing, xp.zeros_like(Z), Z)
        pull = known @ precision
        counts = xp.sum(xp.astype(missing, xp.int64), axis=1)
        # the columns of every row, missing ones first
        columns = xp.argsort(xp.astype(~missing, xp.int8), axis=1, stable=True)
        flat, sizes = xp.reshape(precision, (-1,)), xp.linalg.diagonal(precision)
        sums = xp.zeros_like(flat) if total else None
        places, filled, predicted, spread = [], [], [], []
        for k in sorted({int(k) for k in xp.unique_values(counts)}):
            group = xp.nonzero(counts == k)[0]
            step = max(1, self.chunk(Z) // max(1, d * k))
            for part in (group[a : a + step] for a in range(0, group.shape[0], step)):
                at, m = xp.take(columns, part, axis=0), part.shape[0]
                back = xp.argsort(at, axis=1)
                holes, rest = at[:, :k], at[:, k:]
                near = holes[:, :, None] * d + holes[:, None, :]
                V = xp.reshape(xp.take(flat, xp.reshape(near, (-1,))), (m, k, k))
                V = xp.linalg.inv(V) if k else V
                found = xp.take_along_axis(xp.take(pull, part, axis=0), holes, axis=1)
                found = -(V @ found[:, :, None])[:, :, 0]
                values = xp.take_along_axis(xp.take(known, part, axis=0), rest, axis=1)
                whole = xp.take_along_axis(xp.concat([found, values], axis=1), back, axis=1)
                places.append(part)
                filled.append(whole)
                if total and k:
                    near, V_ = xp.reshape(near, (-1,)), xp.reshape(V, (-1,))
                    sums = sums + self.sums(near, V_, d * d, V_)
                unsure = xp.linalg.diagonal(V)
                if others:
                    far = holes[:, :, None] * d + rest[:, None, :]
                    B = xp.reshape(xp.take(flat, xp.reshape(far, (-1,))), (m, k, d - k))
                    own = xp.reshape(xp.take(sizes, xp.reshape(rest, (-1,))), (m, d - k))
                    own = own - xp.sum(B * (V @ B), axis=1)
                    tilt = xp.take_along_axis(whole @ precision, rest, axis=1)
                    alone = xp.concat([found, values - tilt / own], axis=1)
                    predicted.append(xp.take_along_axis(alone, back, axis=1))
                    unsure = xp.concat([unsure, 1 / own], axis=1)
                elif variances:
                    unsure = xp.concat([unsure, xp.zeros_like(values)], axis=1)
                if others or variances:
                    spread.append(xp.take_along_axis(unsure, back, axis=1))
        order = xp.argsort(xp.concat(places)) if places else None

        def joined(found: list[Array]) -> Array:
            return xp.take(xp.concat(found), order, axis=0) if found else xp.zeros_like(Z)

        return Conditionals(
            joined(filled),
            None if sums is None else xp.reshape(sums, (d, d)),
            joined(predicted) if others else None,
            joined(spread) if others or variances else None,
        )

    # ---- sums per row

    def scatter(self, rows: Array, values: Array, n: int) -> Array:
        """Return the sums of values[:, e] over rows[e] == i, as an array of shape (n, width).

        The array API has no scattered addition. Sorting and doubling takes log2(longest run) passes
        and adds in a tree, which is also the most accurate way.
        """
        return self._reduced(rows, values, n, lambda a, b, same: a + same * b, 0)

    def scatter_min(self, rows: Array, values: Array, n: int, empty: int) -> Array:
        """Return the minimum of values[e] over rows[e] == i, and `empty` where there is none."""
        xp = array_namespace(values)

        def smaller(a: Array, b: Array, same: Array) -> Array:
            return xp.where((same > 0) & (b < a), b, a)

        return self._reduced(rows, values[None, :], n, smaller, empty)[:, 0]

    def _reduced(self, rows: Array, values: Array, n: int, join: Any, empty: int) -> Array:
        """Join the columns of values within runs of equal rows."""
        xp = array_namespace(values)
        order = xp.argsort(rows, stable=True)
        rows, total = xp.take(rows, order), xp.take(values.T, order, axis=0)
        step = 1
        while step < total.shape[0] and bool(xp.any(rows[step:] == rows[:-step])):
            same = xp.astype(rows[step:] == rows[:-step], total.dtype)[:, None]
            joined = join(total[:-step, :], total[step:, :], same)
            total = xp.concat([joined, total[-step:, :]])
            step *= 2
        # the first entry of each run now holds its result
        every = xp.arange(n, dtype=rows.dtype, device=device(rows))
        first = xp.searchsorted(rows, every)
        first = xp.where(first < rows.shape[0], first, xp.zeros_like(first))
        found = (xp.take(rows, first) == every)[:, None]
        taken = xp.take(total, first, axis=0)
        return xp.where(found, taken, xp.zeros_like(taken) + empty)

    def sums(self, rows: Array, values: Array | None, n: int, like: Array) -> Array:
        """Return the sums of values over rows[e] == i for i < n; counts if values is None."""
        if values is None:
            xp = array_namespace(like)
            values = xp.ones(rows.shape[0], dtype=like.dtype, device=device(like))
        return self.scatter(rows, values[None, :], n)[:, 0]

    # ---- order statistics

    def kth_largest(self, x: Array, k: int, axis: int) -> Array:
        """Return the k-th largest value along an axis (k ≥ 1), kept as an axis of size 1."""
        xp = array_namespace(x)
        return xp.take(xp.sort(x, axis=axis), xp.asarray([x.shape[axis] - k]), axis=axis)

    def kth_magnitude(self, x: Array, k: int) -> Array:
        """Return the k-th largest magnitude (k ≥ 1) in an array of any shape, a 0-d array."""
        xp = array_namespace(x)
        return self.kth_largest(xp.reshape(xp.abs(x), (-1,)), k, 0)[0]

    def median_magnitude(self, x: Array) -> Array:
        """Return the lower median of the magnitudes in an array, a 0-d array."""
        n = math.prod(x.shape)
        return self.kth_magnitude(x, n - (n - 1) // 2)

    def within(self, x: Array, threshold: Any) -> tuple[Array, Array, Array, Array]:
        """Return where |x| ≤ threshold, and of those the count, Σ |x|² and the largest |x|."""
        xp = array_namespace(x)
        size = xp.abs(x)
        kept = size <= threshold
        inside = xp.where(kept, size, xp.zeros_like(size))
        return kept, xp.count_nonzero(kept), xp.sum(inside * inside), xp.max(inside)

    def kept_squares(self, x: Array, kept: Array) -> Array:
        """Return Σ |x|² over the entries that are kept, a 0-d array."""
        xp = array_namespace(x)
        return xp.sum(magnitude2(x * xp.astype(kept, x.dtype)))

    # ---- coordinates

    def distinct(self, index: Index, shape: tuple[int, ...]) -> bool:
        """Return whether no entry is named twice."""
        xp = array_namespace(*index)
        flat = numbered(index, shape)
        if bool(xp.all(flat[1:] > flat[:-1])):  # entries often come in order
            return True
        flat = xp.sort(flat)
        return not bool(xp.any(flat[1:] == flat[:-1]))

    def labels(self, index: Index, shape: tuple[int, ...]) -> list[Array]:
        """Return for every mode the number of the connected part that each slice is in.

        Slices that share an entry are connected; a slice without entries is a part of its
        own. Labels are the smallest node number of a part, found by propagating minima along
        entries and jumping, which takes about log2(diameter) rounds.
        """
        xp = array_namespace(*index)
        total, where = sum(shape), device(index[0])
        starts = [sum(shape[:k]) for k in range(len(shape))]
        label = xp.arange(total, dtype=index[0].dtype, device=where)
        nodes = [i + start for i, start in zip(index, starts, strict=True)]
        while True:
            least = xp.take(label, nodes[0])
            for node in nodes[1:]:
                other = xp.take(label, node)
                least = xp.where(other < least, other, least)
            fresh = label
            for node in nodes:
                found = self.scatter_min(node, least, total, total)
                fresh = xp.where(found < fresh, found, fresh)
            # every root gets the smallest label that a slice of its part has seen
            hooked = self.scatter_min(label, fresh, total, total)
            fresh = xp.where(hooked < fresh, hooked, fresh)
            fresh = xp.take(fresh, fresh)
            if bool(xp.all(fresh == label)):
                break
            label = fresh
        return [label[a : a + n] for a, n in zip(starts, shape, strict=True)]

    def parts(self, index: Index, shape: tuple[int, ...]) -> int:
        """Return the number of connected parts that have entries."""
        xp = array_namespace(*index)
        return int(xp.unique_values(xp.take(self.labels(index, shape)[0], index[0])).shape[0])

    def present(self, x: Array, observed: Array | None) -> tuple[Any, Any, bool]:
        """Return the positions and values of entries that are not NaN, or that `observed` marks.

        Both are None if that is every entry. Also return whether any value is not finite.
        """
        xp = array_namespace(x)
        seen = ~xp.isnan(x) if observed is None else observed
        strange = bool(xp.any(seen & ~xp.isfinite(x)))
        if bool(xp.all(seen)):
            return None, None, strange
        return tuple(xp.nonzero(seen)), x[seen], strange
