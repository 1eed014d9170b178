"""Observed entries, prepared for products and row systems, in array-API calls.

A `Pattern` holds some entries of an object and a `Grid` all of them. Both solve the small systems
of the rows of a mode matrix. Other backends subclass them.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

from array_api_compat import device

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
from ..namespaces import array_namespace
from .design import (
    Cleaning,
    Design,
    Index,
    RowSolution,
    RowSystem,
    RowUpdate,
    UnsureRows,
    WholeRows,
    WholeUpdate,
    decoupled,
    kronecker,
)

if TYPE_CHECKING:
    from .generic import Generic

Array = Any

CHUNK = 1 << 18
"""Size of a temporary array, which should stay in cache."""

JITTER = 1e-10
"""Share of the largest weight of a row below which a direction counts as not observed."""


def jitter(x: Array) -> float:
    """Return `JITTER`, or the resolution of the precision of x if that is larger."""
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


class Absorbed:
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

    compiled = False
    """Whether some loops over the entries are compiled."""

    def row_grams(self, design: Design, mode: int, first: int, last: int, weights: Any) -> Array:
        """Return Σ w_e v_e v_eᴴ over the entries of each of the rows first .. last − 1."""
        raise NotImplementedError

    def medians(self, values: Array, mode: int) -> Array:
        """Return the lower median of per-entry values over every slice of a mode.

        0 where a slice has no entry.
        """
        raise NotImplementedError

    def spreads(self, values: Array, mode: int) -> tuple[Array, Array] | None:
        """Return medians over every slice of a mode, and the median distances to them.

        None if one pass cannot give both.
        """
        return None

    def cleaned_rows(self, system: RowSystem, y: Array, cleaning: Cleaning) -> Array | None:
        """Return rows fitted to their entries within limits; None if there is no kernel.

        See `LocalObservations.rows_without_outliers`.
        """
        return None

    def solve_rows(
        self, system: RowSystem, target: Array, weights: Array | None = None
    ) -> RowSolution:
        """Solve a small system for every row: x (Σ w_e v_e v_eᴴ + ridge) = target.

        It works in coordinates in which the vectors v of all entries are orthonormal, as with
        ScaledGD's preconditioner. There a row with too few entries has small eigenvalues, and does
        not move along their directions.

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
        T = whitening(decoupled(system.design.gram(), system.ridge))
        target, design = target @ T, system.design.transformed(conj(T))
        n, q = target.shape
        ridge, solved, diagonals = system.ridge, [], []
        total: Any = 0
        rows = max(1, CHUNK * 4 // q**2)
        for first in range(0, n, rows):
            last = min(first + rows, n)
            G = self.row_grams(design, system.mode, first, last, weights)
            # the ridge of a vanishing column is huge, and must not affect the others
            size = xp.max(xp.real(xp.linalg.diagonal(G)), axis=1)
            size = xp.where(size > 1e-12, size, xp.ones_like(size))
            if ridge is not None:
                held = ridge if ridge.ndim == 1 else ridge[first:last, None, :]
                G = G + (adjoint(T) * held) @ T
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
        """Return the distance of every row x of a mode matrix from the solution of its system.

        This is `solve_rows` for the gradient at x of ½ Σ (root x · v − y)² over the kept entries,
        plus ½ ridge x², in one pass and without a residual. It is available if `steps` says so.
        """
        raise NotImplementedError

    def update_rows(
        self,
        system: UnsureRows,
        x: Array,
        y: Array,
        root: Array | None = None,
        kept: Array | None = None,
    ) -> RowUpdate | None:
        """Return the updated rows, their uncertainty, and sums over the entries.

        It takes one pass over the entries; None if that is not possible or not cheaper. X and y are
        multiplied by `root`, and entries that are not kept do not count.
        """
        return None

    def whole_rows(self, system: WholeRows, weights: Array, pulled: Array) -> WholeUpdate | None:
        """Return solutions and covariances of uncertain rows; None if there is no kernel.

        Entries have weights w, and `pulled` are w y.
        """
        return None


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

    def rest(self) -> None:
        """Release what can be made again and is not needed to solve rows once more."""

    def parts(self) -> int:
        """Return into how many parts, without common rows or columns, the entries fall."""
        return self.backend.parts(self.index, self.shape)

    def residual(self, modes: tuple[Array, ...], y: Array | None = None) -> Array:
        """Return L Rᵀ (minus y) on the entries of a matrix."""
        return self.backend.gather(modes, self.index, None, y)

    def fuses(self, *arrays: Array) -> bool:
        """Return whether `squares_and_gradient` needs one pass over such arrays."""
        return False

    def squares_and_gradient(
        self, x: Array, M: Array, y: Array, mode: int
    ) -> tuple[Array | float, Array]:
        """Return ‖X − y‖² on the entries, and the gradient of half of it with respect to x.

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

    def sums(self, values: Array | None, mode: int, like: Array) -> Array:
        """Return the sums of values over every slice of a mode; counts if values is None."""
        return self.backend.sums(self.index[mode], values, self.shape[mode], like)

    def moments(self, values: Array, mode: int) -> tuple[Array, Array]:
        """Return means over every slice of a mode, and sums of squared distances to them."""
        rows, n = self.index[mode], self.shape[mode]
        counts = self.sums(None, mode, values)
        seen = array_namespace(values).where(counts > 0, counts, 1 + 0 * counts)
        means = self.sums(values, mode, values) / seen
        off = values - array_namespace(values).take(means, rows)
        return means, self.backend.sums(rows, off * off, n, values)

    def contract(self, weights: Array, modes: tuple[Array, ...], skip: int | None = None) -> Array:
        """Contract the array with `weights` on the pattern; see `Ambient.contract`."""
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

    def columnwise(self, weights: Array, modes: tuple[Array, ...], skip: int) -> Array:
        """Contract the array with `weights` on the pattern; see `Ambient.columnwise`."""
        xp = array_namespace(weights)
        columns = {j: compact(conj(M).T) for j, M in enumerate(modes) if j != skip}
        width = next(iter(columns.values())).shape[0]
        result: Any = 0
        for part in self.backend.chunks(weights, 2 * width, self.shape[skip]):
            product = weights[part][None, :]
            for j, M in columns.items():
                product = product * xp.take(M, self.index[j][part], axis=1)
            result = result + self.backend.scatter(
                self.index[skip][part], product, self.shape[skip]
            )
        return result

    def tucker_gradients(
        self, weights: Array, modes: tuple[Array, ...], core: Array
    ) -> tuple[Array, ...]:
        """Return the gradients of a Tucker decomposition, factors then core, in one pass.

        An entry costs about Π r_k / max r_k for each mode. The gradients of the factors that the
        core did not absorb come from its small tensors; those of the absorbed factor and of the
        core come from outer products of the other factors' rows.
        """
        xp = array_namespace(weights)
        small = Absorbed(modes, core)
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
        return self.sums(xp.astype(xp.abs(weights) ** 2, weights.dtype), mode, weights)

    def unfold(self, mode: int) -> Pattern:
        """Return the pattern of an unfolding, without empty columns if there are many."""
        xp = array_namespace(*self.index)
        n, columns = self.shape[mode], numbered(self.index, self.shape, skip=mode)
        width = math.prod(self.shape) // n
        if width <= 4 * columns.shape[0]:  # few are empty, and not worth searching for
            return self.backend.pattern((self.index[mode], columns), (n, max(n, width)))
        found, columns = xp.unique_inverse(columns)
        size = (n, max(n, int(found.shape[0])))
        return self.backend.pattern((self.index[mode], columns), size)
