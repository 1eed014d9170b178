"""The reference backend: every kernel in array-API calls, for arrays of any library.

All loops over entries run in chunks, so that temporaries stay far below the data in size. The
other backends override what they do faster, and are tested in lock-step with this one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from array_api_compat import array_namespace, device

from ..linalg import (
    adjoint,
    conj,
    epsilon,
    identity,
    invert_systems,
    magnitude2,
    mode_product,
    solve_systems,
    unfold,
    whitening,
)
from .design import Design, Index, RowSolution, RowSystem, kronecker

Array = Any

CHUNK = 1 << 18
"""Numbers in a temporary: about what stays in cache."""

JITTER = 1e-10
"""Share of the largest weight of a row below which a direction counts as not observed."""


def jitter(x: Array) -> float:
    """Return `JITTER`, or what the precision of x can tell from zero if that is more."""
    return max(JITTER, 8 * epsilon(x))


def numbered(index: Index, shape: tuple[int, ...], skip: int | None = None) -> Array:
    """Return the numbers of entries in C order, along all modes but `skip`."""
    flat = array_namespace(*index).zeros_like(index[0])
    for j, n in enumerate(shape):
        if j != skip:
            flat = flat * n + index[j]
    return flat


def compact(x: Array) -> Array:
    """Return a contiguous copy of x, for the libraries that have strides."""
    xp = array_namespace(x)
    return xp.reshape(xp.reshape(x, (-1,)), x.shape)


class Generic:
    """Kernels over observed entries in array-API calls. The other backends subclass it."""

    name = "generic"

    def chunk(self, like: Array) -> int:
        """Return how many numbers a temporary may hold beside an array."""
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
            small = _Absorbed(modes, core)
            for part in self.chunks(index[0], 2 * small.width):
                found.append(small.contracted(small.at(index, part), small.rows(index, part)))
        if not found:
            return xp.zeros_like(modes[0][:0, 0])
        values = found[0] if len(found) == 1 else xp.concat(found)
        return values if y is None else values - y

    def dense_residual(self, L: Array, R: Array, Y: Array) -> Array:
        """Return L Rᵀ − Y."""
        return L @ R.T - Y

    # ---- sums per row

    def scatter(self, rows: Array, values: Array, n: int) -> Array:
        """Return the sums of values[:, e] over rows[e] == i, as an array of shape (n, width).

        The standard has no scattered addition. Sorting and doubling takes log2(longest run)
        passes and adds in a tree, so it is also the most accurate way.
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
        """Return the sums of values over rows[e] == i for i < n; counts where values is None."""
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
        flat = xp.sort(numbered(index, shape))
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
            # every root learns the smallest label that a slice of its part has seen
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
        """Return the places and values of what is not NaN, or is said to be observed.

        None twice where that is everything; and whether any of the values is not finite.
        """
        xp = array_namespace(x)
        seen = ~xp.isnan(x) if observed is None else observed
        strange = bool(xp.any(seen & ~xp.isfinite(x)))
        if bool(xp.all(seen)):
            return None, None, strange
        return tuple(xp.nonzero(seen)), x[seen], strange


class _Absorbed:
    """A Tucker decomposition whose core has absorbed the factor of largest rank.

    One small tensor, of Π r_k / max r_k numbers, is left for every index of that mode. Entries
    come last here and below, so that all arithmetic runs along them.
    """

    def __init__(self, modes: tuple[Array, ...], core: Array) -> None:
        xp = array_namespace(core)
        self.mode = max(range(core.ndim), key=lambda k: core.shape[k])
        self.rest = [k for k in range(core.ndim) if k != self.mode]
        product = mode_product(core, modes[self.mode], self.mode)
        self.tensors = compact(xp.moveaxis(product, self.mode, -1))
        self.columns = {j: compact(modes[j].T) for j in self.rest}
        self.width = math.prod(self.tensors.shape[:-1])

    def rows(self, index: Index, part: slice) -> dict[int, Array]:
        """Return the rows of the other factors at some entries, as columns."""
        xp = array_namespace(self.tensors)
        return {j: xp.take(M, index[j][part], axis=1) for j, M in self.columns.items()}

    def at(self, index: Index, part: slice) -> Array:
        """Return the small tensors of some entries."""
        return array_namespace(self.tensors).take(self.tensors, index[self.mode][part], axis=-1)

    def contracted(self, value: Array, rows: dict[int, Array], skip: int | None = None) -> Array:
        """Contract small tensors with the rows of every other mode but `skip`."""
        xp = array_namespace(value)
        for axis, j in reversed(list(enumerate(self.rest))):
            if j != skip:
                shape = [1] * value.ndim
                shape[axis], shape[-1] = rows[j].shape
                value = xp.sum(value * xp.reshape(rows[j], tuple(shape)), axis=axis)
        return value


class RowSystems:
    """Observed entries whose rows, along any mode, are separate least-squares problems."""

    shape: tuple[int, ...]
    backend: Generic

    def row_grams(self, design: Design, mode: int, first: int, last: int, weights: Any) -> Array:
        """Return Σ w_e v_e v_eᴴ over the entries of each of the rows first .. last − 1."""
        raise NotImplementedError

    def medians(self, values: Array, mode: int) -> Array:
        """Return the lower median of per-entry values over every slice of a mode.

        0 where a slice has no entry.
        """
        raise NotImplementedError

    def solve_rows(
        self, system: RowSystem, target: Array, weights: Array | None = None
    ) -> RowSolution:
        """Solve a small system for every row: x (Σ w_e v_e v_eᴴ + ridge) = target.

        In coordinates in which the vectors v of all entries are orthonormal, as ScaledGD's
        preconditioner makes them. There a row with too few entries shows as small eigenvalues,
        and does not move along them.

        Parameters
        ----------
        system : RowSystem
        target : array of shape (n, q), n the size of the mode
        weights : array like the measurements, optional

        Returns
        -------
        RowSolution
        """
        xp = array_namespace(target)
        T = whitening(system.design.gram())
        target, design = target @ T, system.design.transformed(conj(T))
        n, q = target.shape
        ridge, solved, diagonals = system.ridge, [], []
        total: Any = 0
        rows = max(1, CHUNK * 4 // q**2)
        for first in range(0, n, rows):
            last = min(first + rows, n)
            G = self.row_grams(design, system.mode, first, last, weights)
            if ridge is not None:
                held = ridge if ridge.ndim == 1 else ridge[first:last, None, :]
                G = G + (adjoint(T) * held) @ T
            size = xp.max(xp.real(xp.linalg.diagonal(G)), axis=1)
            size = xp.where(size > 0, size, xp.ones_like(size))
            little = xp.astype(jitter(G) * size, G.dtype)[:, None, None]
            # row by row x G = t, that is Gᵀ xᵀ = tᵀ
            G = xp.matrix_transpose(G + little * identity(q, like=G))
            solved.append(solve_systems(G, target[first:last, :, None])[:, :, 0])
            if system.spread:
                inverses = invert_systems(xp.matrix_transpose(G))
                diagonals.append(xp.real(xp.sum((T @ inverses) * conj(T), axis=2)))
                total = total + T @ xp.sum(inverses, axis=0) @ adjoint(T)
        x = xp.concat(solved) @ adjoint(T)
        return RowSolution(x, xp.concat(diagonals), total) if system.spread else RowSolution(x)

    def steps(self, system: RowSystem, root: Array | None, *arrays: Array | None) -> bool:
        """Return whether `step_rows` can work on such arrays."""
        return False

    def step_rows(
        self,
        system: RowSystem,
        x: Array,
        y: Array,
        root: Array | None = None,
        kept: Array | None = None,
    ) -> RowSolution:
        """Return what every row x of a mode matrix is off the solution of its system by.

        That is `solve_rows` for the gradient at x of ½ Σ (root x · v − y)² over the entries
        that are kept, plus ½ ridge x², in one pass and without a residual. Only where `steps`
        says so.
        """
        raise NotImplementedError


class Grid(RowSystems):
    """All entries of an object of some shape."""

    def __init__(self, shape: tuple[int, ...], backend: Generic) -> None:
        self.shape, self.backend = shape, backend

    def row_grams(self, design: Design, mode: int, first: int, last: int, weights: Any) -> Array:
        xp = array_namespace(design.gram())
        if weights is None:
            return xp.broadcast_to(design.gram(), (last - first, *design.gram().shape))
        V, W = design.everything(), unfold(weights, mode)[first:last, :]
        q, step = V.shape[1], max(256, CHUNK * 4 // V.shape[1] ** 2)
        total: Any = 0
        for s in range(0, V.shape[0], step):
            part = V[s : s + step, :]
            products = xp.reshape(part[:, :, None] * conj(part)[:, None, :], (-1, q * q))
            total = total + W[:, s : s + step] @ products
        return xp.reshape(total, (last - first, q, q))

    def medians(self, values: Array, mode: int) -> Array:
        rows, axis = values, 1 - mode
        if values.ndim != 2:
            rows, axis = unfold(values, mode), 1
        n = rows.shape[axis]
        middle = self.backend.kth_largest(rows, n - (n - 1) // 2, axis)
        return array_namespace(values).reshape(middle, (-1,))


class Pattern(RowSystems):
    """A fixed set of observed entries of an object of some shape."""

    def __init__(self, index: Index, shape: tuple[int, ...], backend: Generic) -> None:
        self.index, self.shape, self.backend = index, shape, backend

    def residual(self, modes: tuple[Array, ...], y: Array | None = None) -> Array:
        """Return L Rᵀ (minus y) on the entries of a matrix."""
        return self.backend.gather(modes, self.index, None, y)

    def fuses(self, *arrays: Array) -> bool:
        """Return whether `squares_and_gradient` needs one pass over such arrays."""
        return False

    def squares_and_gradient(
        self, x: Array, M: Array, y: Array, mode: int
    ) -> tuple[Array | float, Array]:
        """Return ‖X − y‖² on the entries, and the gradient by x of half of it.

        X = x Mᵀ for mode 0, and its transpose for mode 1.
        """
        modes = (x, M) if mode == 0 else (M, x)
        r = self.residual(modes, y)
        sums = self.contract(r, modes, mode)
        return array_namespace(r).sum(magnitude2(r)), sums if mode == 0 else sums.T

    @cached_property
    def _ones(self) -> dict[Any, Array]:
        return {}

    def ones(self, like: Array) -> Array:
        """Return a one for every entry."""
        if like.dtype not in self._ones:
            self._ones[like.dtype] = array_namespace(like).ones(
                self.index[0].shape[0], dtype=like.dtype, device=device(like)
            )
        return self._ones[like.dtype]

    def contract(self, weights: Array, modes: tuple[Array, ...], skip: int | None = None) -> Array:
        """Contract the array with `weights` on the pattern, as `Ambient.contract` says."""
        xp = array_namespace(weights)
        keep = len(self.shape) - 1 if skip is None else skip
        others = [j for j in range(len(self.shape)) if j != keep]
        columns = {j: compact(conj(M).T) for j, M in enumerate(modes) if j != skip}
        widths = [modes[j].shape[1] for j in others]
        result: Any = 0
        for part in self.backend.chunks(weights, math.prod(widths), self.shape[keep]):
            rows = [xp.take(columns[j], self.index[j][part], axis=1) for j in others]
            products = kronecker([weights[part][None, :] * rows[0], *rows[1:]])
            i = self.index[keep][part]
            if skip is None:
                result = result + xp.take(columns[keep], i, axis=1) @ products.T
            else:
                result = result + self.backend.scatter(i, products, self.shape[keep])
        return xp.moveaxis(xp.reshape(result, (-1, *widths)), 0, keep)

    def tucker_gradients(
        self, weights: Array, modes: tuple[Array, ...], core: Array
    ) -> tuple[Array, ...]:
        """Return the gradients of a Tucker decomposition, factors then core, in one pass.

        An entry costs about Π r_k / max r_k for each mode: the gradients of the factors that
        the core did not absorb come from its small tensors; that of the one it did, and
        the core's, from the outer products of the others' rows.
        """
        xp = array_namespace(weights)
        small = _Absorbed(modes, core)
        grads: dict[int, Any] = dict.fromkeys(range(core.ndim), 0)
        outer: Any = 0
        scatter = self.backend.scatter
        for part in self.backend.chunks(weights, 2 * small.width, max(self.shape)):
            w, i = weights[part][None, :], self.index[small.mode][part]
            tensors, rows = small.at(self.index, part), small.rows(self.index, part)
            for k in small.rest:
                value = w * conj(small.contracted(tensors, rows, skip=k))
                grads[k] = grads[k] + scatter(self.index[k][part], value, self.shape[k])
            products = w * conj(kronecker([rows[j] for j in small.rest]))
            outer = outer + scatter(i, products, self.shape[small.mode])
        grads[small.mode] = outer @ adjoint(unfold(core, small.mode))
        flat = adjoint(modes[small.mode]) @ outer
        grad_core = xp.reshape(flat, (-1, *(core.shape[j] for j in small.rest)))
        return (*(grads[k] for k in range(core.ndim)), xp.moveaxis(grad_core, 0, small.mode))

    @cached_property
    def _sorted(self) -> dict[int, tuple[Array, Array]]:
        return {}

    @cached_property
    def _bounds(self) -> dict[tuple[int, int, int], tuple[int, int]]:
        return {}

    def sorted(self, mode: int) -> tuple[Array, Array]:
        """Return the order of the entries by their row in a mode, and where each row starts."""
        if mode not in self._sorted:
            xp = array_namespace(*self.index)
            rows = self.index[mode]
            order = xp.argsort(rows, stable=True)
            every = xp.arange(self.shape[mode] + 1, dtype=rows.dtype, device=device(rows))
            self._sorted[mode] = order, xp.searchsorted(xp.take(rows, order), every)
        return self._sorted[mode]

    def row_grams(self, design: Design, mode: int, first: int, last: int, weights: Any) -> Array:
        xp = array_namespace(*self.index)
        order, starts = self.sorted(mode)
        if (mode, first, last) not in self._bounds:  # reading them synchronises a device, once
            self._bounds[mode, first, last] = int(starts[first]), int(starts[last])
        begin, end = self._bounds[mode, first, last]
        q = design.width
        total: Any = 0
        span = max(256, last - first, self.backend.chunk(order) // q**2)
        for s in range(begin, max(end, begin + 1), span):
            part = order[s : min(s + span, end)]
            v = design.columns(self.index, part)
            left = v if weights is None else v * xp.take(weights, part)[None, :]
            products = xp.reshape(left[:, None, :] * conj(v)[None, :, :], (q * q, -1))
            rows = xp.take(self.index[mode], part) - first
            total = total + self.backend.scatter(rows, products, last - first)
        return xp.reshape(total, (last - first, q, q))

    def medians(self, values: Array, mode: int) -> Array:
        xp = array_namespace(values)
        rows = self.index[mode]
        order = xp.argsort(values, stable=True)
        order = xp.take(order, xp.argsort(xp.take(rows, order), stable=True))
        every = xp.arange(self.shape[mode] + 1, dtype=rows.dtype, device=device(rows))
        starts = xp.searchsorted(xp.take(rows, order), every)
        counts = starts[1:] - starts[:-1]
        middle = starts[:-1] + (counts - 1) // 2
        middle = xp.where(counts > 0, middle, xp.zeros_like(middle))
        found = xp.take(values, xp.take(order, middle))
        return xp.where(counts > 0, found, xp.zeros_like(found))

    def squares(self, weights: Array, mode: int) -> Array:
        """Return Σ |w|² over the entries of every slice of a mode."""
        xp = array_namespace(weights)
        square = xp.astype(xp.abs(weights) ** 2, weights.dtype)
        return self.backend.scatter(self.index[mode], square[None, :], self.shape[mode])[:, 0]

    def unfold(self, mode: int) -> Pattern:
        """Return the pattern of an unfolding; empty columns are left out where they are many."""
        xp = array_namespace(*self.index)
        n, columns = self.shape[mode], numbered(self.index, self.shape, skip=mode)
        width = math.prod(self.shape) // n
        if width <= 4 * columns.shape[0]:  # few are empty: not worth looking for
            return self.backend.pattern((self.index[mode], columns), (n, max(n, width)))
        found, columns = xp.unique_inverse(columns)
        size = (n, max(n, int(found.shape[0])))
        return self.backend.pattern((self.index[mode], columns), size)
