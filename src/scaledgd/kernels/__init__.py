"""The few hot loops over observed entries, one module per kind of array.

`gather` evaluates a factored object on entries, a `Pattern` contracts weights on entries
with mode matrices, and `kth_largest` finds the order statistics that trimming needs. All
of them go over the entries in chunks, so that temporaries stay far below the data in size.
This is the one place where the kind of array decides anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from array_api_compat import (
    array_namespace,
    device,
    is_numpy_namespace,
    is_torch_array,
    is_torch_namespace,
)

from ..linalg import (
    adjoint,
    conj,
    epsilon,
    gram,
    identity,
    magnitude2,
    mode_product,
    unfold,
    whitening,
)

Array = Any
Index = tuple[Array, ...]

CHUNK = 1 << 18
"""Numbers that a temporary may hold: about what stays in cache."""


def _chunks(like: Array, width: int, target: int = 0) -> Iterator[slice]:
    """Ranges of entries, as many as `like` has, with temporaries of `width` numbers for each.

    No shorter than the `target` rows that each is added up into, which would dominate; and
    as long as memory lets them be where the arithmetic is far away.
    """
    near = not is_torch_array(like) or like.device.type == "cpu"
    m = like.shape[0]
    step = max(256, target, (CHUNK if near else CHUNK << 8) // max(1, width))
    return (slice(s, min(s + step, m)) for s in range(0, m, step))


def numbered(index: Index, shape: tuple[int, ...], skip: int | None = None) -> Array:
    """The numbers of entries in C order, along all modes but `skip`."""
    flat = array_namespace(*index).zeros_like(index[0])
    for j, n in enumerate(shape):
        if j != skip:
            flat = flat * n + index[j]
    return flat


def gather(
    modes: tuple[Array, ...], index: Index, core: Array | None = None, y: Array | None = None
) -> Array:
    """The entries of core ×₁ modes[0] ×₂ modes[1] … at `index`, less y.

    Without a core (a matrix, L Rᴴ) they are Σ_k Π_j modes[j][index[j], k].
    """
    xp = array_namespace(modes[0])
    compiled = _fast(y, core, *modes)
    if compiled is not None:
        return compiled.values(modes, core, index, y)
    parts = []
    if core is None:
        A, B = modes[0], conj(modes[1])  # vecdot conjugates its first argument
        for part in _chunks(index[0], 2 * A.shape[1]):
            i, j = (x[part] for x in index)
            parts.append(xp.vecdot(xp.take(B, j, axis=0), xp.take(A, i, axis=0)))
    else:
        small = _Absorbed(modes, core)
        for part in _chunks(index[0], 2 * small.width):
            parts.append(small.contracted(small.at(index, part), small.rows(index, part)))
    if not parts:
        return xp.zeros_like(modes[0][:0, 0])
    found = parts[0] if len(parts) == 1 else xp.concat(parts)
    return found if y is None else found - y


class _Absorbed:
    """A Tucker decomposition whose core has absorbed the factor of largest rank.

    That leaves one small tensor, of Π r_k / max r_k numbers, for every index of that mode.
    Here and below entries come last, so that all arithmetic runs along them.
    """

    def __init__(self, modes: tuple[Array, ...], core: Array) -> None:
        xp = array_namespace(core)
        self.mode = max(range(core.ndim), key=lambda k: core.shape[k])
        self.rest = [k for k in range(core.ndim) if k != self.mode]
        product = mode_product(core, modes[self.mode], self.mode)
        self.tensors = _compact(xp.moveaxis(product, self.mode, -1))
        self.columns = {j: _compact(modes[j].T) for j in self.rest}
        self.width = math.prod(self.tensors.shape[:-1])

    def rows(self, index: Index, part: slice) -> dict[int, Array]:
        """The rows of the other factors at some entries, as columns."""
        xp = array_namespace(self.tensors)
        return {j: xp.take(M, index[j][part], axis=1) for j, M in self.columns.items()}

    def at(self, index: Index, part: slice) -> Array:
        """The small tensors of some entries."""
        return array_namespace(self.tensors).take(self.tensors, index[self.mode][part], axis=-1)

    def contracted(self, value: Array, rows: dict[int, Array], skip: int | None = None) -> Array:
        """Small tensors, contracted with the rows of every other mode but `skip`."""
        xp = array_namespace(value)
        for axis, j in reversed(list(enumerate(self.rest))):
            if j != skip:
                shape = [1] * value.ndim
                shape[axis], shape[-1] = rows[j].shape
                value = xp.sum(value * xp.reshape(rows[j], tuple(shape)), axis=axis)
        return value


def _compact(x: Array) -> Array:
    """A copy of x that is contiguous, for the libraries that know strides."""
    xp = array_namespace(x)
    return xp.reshape(xp.reshape(x, (-1,)), x.shape)


def _outer(rows: list[Array]) -> Array:
    """The Kronecker products of columns, of shape (product of the heights, entries), C order."""
    xp = array_namespace(*rows)
    result = rows[0]
    for M in rows[1:]:
        result = xp.reshape(result[:, None, :] * M[None, :, :], (-1, M.shape[1]))
    return result


class Design(Protocol):
    """Where a block has separate rows: X at an entry is the block's row times a vector v."""

    def columns(self, index: Index, part: Array | slice) -> Array:
        """V of some entries, of shape (q, entries)."""

    def everything(self) -> Array:
        """V of all entries of one row of X, in C order, as rows."""

    def gram(self) -> Array:
        """Σ v vᴴ over all entries of one row of X."""

    def transformed(self, T: Array) -> Design:
        """The same for vᵀ T."""

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All that it is made of."""


@dataclass(frozen=True, eq=False)
class Rows:
    """v is a row of the other matrix M of X = L Mᵀ, the one of mode `other`."""

    M: Array
    other: int

    def columns(self, index: Index, part: Array | slice) -> Array:
        return array_namespace(self.M).take(self.M, index[self.other][part], axis=0).T

    def everything(self) -> Array:
        return self.M

    def gram(self) -> Array:
        return self.M.T @ conj(self.M)

    def transformed(self, T: Array) -> Rows:
        return Rows(self.M @ T, self.other)

    @property
    def arrays(self) -> tuple[Array, ...]:
        return (self.M,)


@dataclass(frozen=True, eq=False)
class Contracted:
    """v is the core, unfolded along one mode, times the rows of all other mode matrices."""

    core: Array
    modes: tuple[Array, ...]
    others: tuple[int, ...]

    def columns(self, index: Index, part: Array | slice) -> Array:
        xp = array_namespace(self.core)
        rows = [
            xp.take(M, index[j][part], axis=0).T
            for M, j in zip(self.modes, self.others, strict=True)
        ]
        return self.core @ _outer(rows)

    def everything(self) -> Array:
        return self.core_of(self.modes).T

    def core_of(self, matrices: tuple[Array, ...]) -> Array:
        """The unfolded core times matrices in the other modes."""
        xp = array_namespace(self.core)
        tensor = xp.reshape(self.core, (-1, *(M.shape[1] for M in self.modes)))
        for axis, M in enumerate(matrices):
            tensor = mode_product(tensor, M, axis + 1)
        return unfold(tensor, 0)

    def gram(self) -> Array:
        return self.core_of(tuple(gram(M) for M in self.modes)) @ adjoint(self.core)

    def transformed(self, T: Array) -> Contracted:
        return Contracted(T.T @ self.core, self.modes, self.others)

    @property
    def arrays(self) -> tuple[Array, ...]:
        return (self.core, *self.modes)


def scatter(rows: Array, values: Array, n: int) -> Array:
    """Row i of the result, of shape (n, width), is the sum of values[:, e] over rows[e] == i."""
    xp = array_namespace(values)
    if is_numpy_namespace(xp):
        from .numpy import scatter as implementation
    elif is_torch_namespace(xp):
        from .torch import scatter as implementation
    else:
        from .generic import scatter as implementation
    return implementation(rows, values, n)


def sums(rows: Array, values: Array | None, n: int, like: Array) -> Array:
    """The sums of values over rows[e] == i for every i below n; of ones, where there are none."""
    xp = array_namespace(like)
    if is_numpy_namespace(xp):
        import numpy as np

        if values is None or values.dtype.kind == "f":
            return np.bincount(rows, values, n).astype(like.dtype, copy=False)
    if values is None:
        values = xp.ones(rows.shape[0], dtype=like.dtype, device=device(like))
    return scatter(rows, values[None, :], n)[:, 0]


class _RowSystems:
    """Where the rows of a mode matrix are separate least-squares problems."""

    shape: tuple[int, ...]

    def row_grams(self, design: Design, mode: int, first: int, last: int, weights: Any) -> Array:
        """Σ w_e v_e v_eᴴ over the entries e of each of the rows first .. last − 1 of a mode."""
        raise NotImplementedError

    def solve_rows(
        self,
        design: Design,
        mode: int,
        target: Array,
        ridge: Array | None = None,
        weights: Array | None = None,
        spread: bool = False,
    ) -> Any:
        """Solve a small system for every row: x (Σ w_e v_e v_eᴴ + ridge) = target.

        In coordinates in which the vectors v of all entries are orthonormal, as ScaledGD's
        preconditioner makes them. There a row with too few entries is told by its small
        eigenvalues, and is left alone along them.

        Parameters
        ----------
        design : Design
        mode : int
        target : array of shape (n, q), n the size of the mode
        ridge : array of shape (q,) or (n, q), optional
            Diagonals.
        weights : array like the measurements, optional
        spread : bool
            Also return the inverses of the systems: their diagonals, of shape (n, q), and
            their sum, of shape (q, q).
        """
        xp = array_namespace(target)
        T = whitening(design.gram())
        target, design = target @ T, design.transformed(conj(T))
        n, q = target.shape
        solved, diagonals = [], []
        total: Any = 0
        rows = max(1, CHUNK * 4 // q**2)
        for first in range(0, n, rows):
            last = min(first + rows, n)
            G = self.row_grams(design, mode, first, last, weights)
            if ridge is not None:
                G = (
                    G
                    + (adjoint(T) * (ridge if ridge.ndim == 1 else ridge[first:last, None, :])) @ T
                )
            size = xp.max(xp.real(xp.linalg.diagonal(G)), axis=1)
            size = xp.where(size > 0, size, xp.ones_like(size))
            little = xp.astype(jitter(G) * size, G.dtype)[:, None, None]
            # row by row x G = t, that is Gᵀ xᵀ = tᵀ
            G = xp.matrix_transpose(G + little * identity(q, like=G))
            solved.append(xp.linalg.solve(G, target[first:last, :, None])[:, :, 0])
            if spread:
                inverses = xp.linalg.inv(xp.matrix_transpose(G))
                diagonals.append(xp.real(xp.sum((T @ inverses) * conj(T), axis=2)))
                total = total + T @ xp.sum(inverses, axis=0) @ adjoint(T)
        x = xp.concat(solved) @ adjoint(T)
        return (x, xp.concat(diagonals), total) if spread else x

    def step_rows(
        self,
        design: Design,
        mode: int,
        x: Array,
        y: Array,
        ridge: Array | None = None,
        root: Array | None = None,
        kept: Array | None = None,
        spread: bool = False,
    ) -> Any:
        """What every row x of a mode matrix is off its least-squares problem by, in one go.

        That is `solve_rows` for the gradient at x of ½ Σ (root x · v − y)² over the entries that
        are kept, plus ½ ridge x². None where no kernel does it.
        """
        return None


JITTER = 1e-10
"""Of the largest weight of a row: below it a direction counts as not observed."""


def jitter(x: Array) -> float:
    """The same, but not below what the precision of x can tell from nothing."""
    return max(JITTER, 8 * epsilon(x))


class Grid(_RowSystems):
    """All entries of an object of some shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

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


class Pattern(_RowSystems):
    """A fixed set of observed entries of an object of some shape."""

    def __init__(self, index: Index, shape: tuple[int, ...]) -> None:
        self.index, self.shape = index, shape

    def residual(self, modes: tuple[Array, ...], y: Array | None = None) -> Array | None:
        """L Rᵀ (less y) on the entries of a matrix; None where no kernel does it."""
        return None

    def squares_and_gradient(
        self, x: Array, M: Array, y: Array, mode: int
    ) -> tuple[float, Array] | None:
        """‖X − y‖² of X = x Mᵀ (or its transpose) on the entries, and the gradient of ½ that.

        By x, in one pass over them; None where no kernel does it.
        """
        return None

    @cached_property
    def _ones(self) -> dict[Any, Array]:
        return {}

    def ones(self, like: Array) -> Array:
        """A one for every entry."""
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
        columns = {j: _compact(conj(M).T) for j, M in enumerate(modes) if j != skip}
        widths = [modes[j].shape[1] for j in others]
        result: Any = 0
        for part in _chunks(weights, math.prod(widths), self.shape[keep]):
            rows = [xp.take(columns[j], self.index[j][part], axis=1) for j in others]
            products = _outer([weights[part][None, :] * rows[0], *rows[1:]])
            i = self.index[keep][part]
            if skip is None:
                result = result + xp.take(columns[keep], i, axis=1) @ products.T
            else:
                result = result + scatter(i, products, self.shape[keep])
        return xp.moveaxis(xp.reshape(result, (-1, *widths)), 0, keep)

    def tucker_gradients(
        self, weights: Array, modes: tuple[Array, ...], core: Array
    ) -> tuple[Array, ...]:
        """The gradients of a Tucker decomposition, factors then core, in one pass.

        An entry costs about Π r_k / max r_k for each mode: the gradients of the factors that
        the core did not absorb come from its small tensors, that of the one it did, and
        the core's, from the outer products of the others' rows.
        """
        xp = array_namespace(weights)
        small = _Absorbed(modes, core)
        grads: dict[int, Any] = dict.fromkeys(range(core.ndim), 0)
        outer: Any = 0
        for part in _chunks(weights, 2 * small.width, max(self.shape)):
            w, i = weights[part][None, :], self.index[small.mode][part]
            tensors, rows = small.at(self.index, part), small.rows(self.index, part)
            for k in small.rest:
                value = w * conj(small.contracted(tensors, rows, skip=k))
                grads[k] = grads[k] + scatter(self.index[k][part], value, self.shape[k])
            products = w * conj(_outer([rows[j] for j in small.rest]))
            outer = outer + scatter(i, products, self.shape[small.mode])
        grads[small.mode] = outer @ adjoint(unfold(core, small.mode))
        flat = adjoint(modes[small.mode]) @ outer
        grad_core = xp.reshape(flat, (-1, *(core.shape[j] for j in small.rest)))
        return (*(grads[k] for k in range(core.ndim)), xp.moveaxis(grad_core, 0, small.mode))

    @cached_property
    def _sorted(self) -> dict[int, tuple[Array, Array]]:
        return {}

    def sorted(self, mode: int) -> tuple[Array, Array]:
        """The entries in the order of their row in a mode, and where each row starts."""
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
        begin, end = int(starts[first]), int(starts[last])
        q = design.gram().shape[0]
        total: Any = 0
        span = max(256, last - first, CHUNK // q**2)
        for s in range(begin, max(end, begin + 1), span):
            part = order[s : min(s + span, end)]
            v = design.columns(self.index, part)
            left = v if weights is None else v * xp.take(weights, part)[None, :]
            products = xp.reshape(left[:, None, :] * conj(v)[None, :, :], (q * q, -1))
            total = total + scatter(xp.take(self.index[mode], part) - first, products, last - first)
        return xp.reshape(total, (last - first, q, q))

    def medians(self, values: Array, mode: int) -> Array:
        """The lower median of the values of every slice of a mode; 0 where there are none."""
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
        """Σ |w|² over the entries of every slice of a mode."""
        xp = array_namespace(weights)
        square = xp.astype(xp.abs(weights) ** 2, weights.dtype)
        return scatter(self.index[mode], square[None, :], self.shape[mode])[:, 0]

    def unfold(self, mode: int) -> Pattern:
        """The pattern of an unfolding, empty columns left out while there are as many as rows."""
        xp = array_namespace(*self.index)
        n, columns = self.shape[mode], numbered(self.index, self.shape, skip=mode)
        width = math.prod(self.shape) // n
        if width <= 4 * columns.shape[0]:  # few are empty: not worth looking for
            return pattern((self.index[mode], columns), (n, max(n, width)))
        found, columns = xp.unique_inverse(columns)
        return pattern((self.index[mode], columns), (n, max(n, int(found.shape[0]))))


def _fast(*arrays: Array) -> Any:
    """The compiled kernels, where they can work on such arrays; None elsewhere."""
    from . import compiled

    return compiled if compiled.suits(*arrays) else None


def _fast_at(index: Index, shape: tuple[int, ...]) -> Any:
    """The compiled kernels, where they can work on such entries; None elsewhere."""
    from . import compiled

    numpy = is_numpy_namespace(array_namespace(*index))
    small = max(shape) < 2**31 - 1 and len(shape) < 16
    return compiled if compiled.AVAILABLE and numpy and small else None


def pattern(index: Index, shape: tuple[int, ...]) -> Pattern:
    """The entries at `index`, prepared for products."""
    compiled = _fast_at(index, shape)
    if compiled is not None:
        return compiled.CompiledPattern(index, shape)  # type: ignore[no-any-return]
    if len(shape) == 2 and is_numpy_namespace(array_namespace(*index)):
        from .numpy import CSRPattern

        return CSRPattern(index, shape)
    return Pattern(index, shape)


def grid(shape: tuple[int, ...]) -> Grid:
    """All entries of an object of some shape, whatever the arrays it is held in."""
    from .compiled import CompiledGrid

    return CompiledGrid(shape)


def distinct(index: Index, shape: tuple[int, ...]) -> bool:
    """Whether no entry is named twice."""
    compiled = _fast_at(index, shape)
    if compiled is not None:
        return compiled.distinct(index, shape)  # type: ignore[no-any-return]
    xp = array_namespace(*index)
    flat = xp.sort(numbered(index, shape))
    return not bool(xp.any(flat[1:] == flat[:-1]))


def parts(index: Index, shape: tuple[int, ...]) -> int:
    """Connected parts of the graph that joins the slices that share an entry, of NumPy indices."""
    compiled = _fast_at(index, shape)
    if compiled is not None:
        return compiled.parts(index, shape)  # type: ignore[no-any-return]
    from .numpy import parts as implementation

    return implementation(index, shape)


def present(x: Any, observed: Any) -> tuple[Any, Any, bool]:
    """Where a NumPy array is not NaN, or is said to be observed, and the values there, in double.

    None twice where that is everywhere; and whether any of them is not finite.
    """
    import numpy as np

    compiled = _fast(x)
    if compiled is not None:
        return compiled.present(x, observed)  # type: ignore[no-any-return]
    seen = ~np.isnan(x) if observed is None else observed
    strange = bool(np.any(seen & ~np.isfinite(x)))
    if seen.all():
        return None, None, strange
    return tuple(np.nonzero(seen)), x[seen].astype(np.float64), strange


def dense_residual(L: Array, R: Array, Y: Array) -> Array:
    """L Rᵀ − Y."""
    compiled = _fast(L, R, Y)
    return L @ R.T - Y if compiled is None else compiled.dense_residual(L, R, Y)


def kth_magnitude(x: Array, k: int) -> Array:
    """The k-th largest magnitude (k ≥ 1) in an array of any shape, a 0-d array."""
    xp, n = array_namespace(x), math.prod(x.shape)
    compiled = _fast(x)
    if compiled is not None:
        return compiled.kth_magnitude(x, n - k)
    return kth_largest(xp.reshape(xp.abs(x), (-1,)), k, 0)[0]


def median_magnitude(x: Array) -> Array:
    """The lower median of the magnitudes in an array of any shape, a 0-d array."""
    n = math.prod(x.shape)
    return kth_magnitude(x, n - (n - 1) // 2)


def within(x: Array, threshold: Any) -> tuple[Array, Array, Array, Array]:
    """Where |x| does not exceed a threshold; how often, Σ |x|² there, and the largest |x|."""
    xp = array_namespace(x)
    compiled = _fast(x)
    if compiled is not None:
        return compiled.within(x, float(threshold))  # type: ignore[no-any-return]
    size = xp.abs(x)
    kept = size <= threshold
    inside = xp.where(kept, size, xp.zeros_like(size))
    return kept, xp.count_nonzero(kept), xp.sum(inside * inside), xp.max(inside)


def kept_squares(x: Array, kept: Array) -> Array:
    """Σ |x|² over what is kept, a 0-d array."""
    xp = array_namespace(x)
    compiled = _fast(x)
    if compiled is not None:
        return compiled.kept_squares(x, kept)
    return xp.sum(magnitude2(x * xp.astype(kept, x.dtype)))


def kth_largest(x: Array, k: int, axis: int) -> Array:
    """The k-th largest value along an axis (k ≥ 1), kept as an axis of size 1."""
    xp = array_namespace(x)
    n = x.shape[axis]
    if is_numpy_namespace(xp):
        import numpy as np

        compiled = _fast(x)
        if compiled is not None:
            return compiled.kth_of_fibres(x, n - k, axis)
        return np.take(np.partition(x, n - k, axis=axis), [n - k], axis=axis)
    if is_torch_namespace(xp):
        return x.kthvalue(n - k + 1, dim=axis, keepdim=True).values
    return xp.take(xp.sort(x, axis=axis), xp.asarray([n - k]), axis=axis)
