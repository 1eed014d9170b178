"""Arrays with a row for every row of a table, whose rows stay with the shards of rows.

The factor of a side may be larger than one machine. `Tall` looks like a NumPy array to the fitting
code, through the protocols that NumPy has for arrays of others: what is done to every row is noted
and done on the workers when it is needed, and sums over the rows come back as NumPy arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import array_api_compat.numpy as xnp
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

if TYPE_CHECKING:
    from .workers import Workers

Array = Any
Tree = Any
Limits = list[tuple[int, int]]

LONGEST = 40
"""Operations that are noted before they are done."""
MOST = 4
"""Arrays on the workers that notes may refer to before they are done: all of them are kept."""

_serial = itertools.count()


class Kept:
    """What tasks left where the shards are: for every shard a tuple of arrays.

    Attributes
    ----------
    parts : list
        As the workers know them: futures, or folders.
    places : list
        Which worker was to make each of them.
    recipe : tuple, optional
        How they are made again: work, shards, what each of these has, and what all share.
    number : int
        Later ones may be made of earlier ones.
    """

    def __init__(self, parts: list[Any], places: list[Any], recipe: Any = None) -> None:
        self.parts, self.places, self.recipe = parts, places, recipe
        self.number = next(_serial)


# ---- notes of what is to be done


class Leaf(NamedTuple):
    """One of the arrays that tasks left."""

    kept: Kept
    at: int


class Slot(NamedTuple):
    """The same for one shard: an array of one of the tuples that a task is given."""

    number: int
    at: int


class Zeros(NamedTuple):
    """Zeros, with a row per row."""

    width: tuple[int, ...]
    dtype: Any


class Cut(NamedTuple):
    """An array of NumPy that is here; every shard gets its rows."""

    array: Array


@dataclass(frozen=True, eq=False)
class Call:
    """A function of arrays that treats every row by itself."""

    function: Callable[..., Array]
    arguments: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)


def _nodes(tree: Tree) -> Iterator[Any]:
    """All notes within notes, each once."""
    seen: set[int] = set()
    open_ = [tree]
    while open_:
        node = open_.pop()
        if isinstance(node, Call | Leaf | Cut):
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield node
        if isinstance(node, Call):
            open_ += node.arguments
        elif isinstance(node, list):
            open_ += node


class Later:
    """What a shard is to compute before its task begins, without what is on the workers."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    @property
    def nbytes(self) -> int:
        # what is not small are the rows of arrays that were here
        return sum(
            x.nbytes
            for node in _nodes(self.tree)
            if isinstance(node, Call)
            for x in node.arguments
            if isinstance(x, np.ndarray)
        )

    def value(self, given: Sequence[tuple[Array, ...]]) -> Array:
        """Return the array.

        Parameters
        ----------
        given : list of tuples of arrays
            What tasks left.
        """
        known: dict[int, Array] = {}

        def found(node: Tree) -> Any:
            if isinstance(node, Slot):
                return given[node.number][node.at]
            if isinstance(node, list):
                return [found(x) for x in node]
            if not isinstance(node, Call):
                return node
            if id(node) not in known:
                known[id(node)] = node.function(*map(found, node.arguments), **node.named)
            return known[id(node)]

        with np.errstate(all="ignore"):
            return found(self.tree)


class Part(NamedTuple):
    """The rows of a tall array that a shard has, on their way to a task."""

    of: Tall
    shard: int

    @property
    def blank(self) -> Part:
        """Zeros of the same shape."""
        x = self.of
        return Part(x.rows.zeros(x.shape[1:], x.dtype), self.shard)


def detached(own: Any, parts: list[Any]) -> Any:
    """Return what a shard has with `Later` for parts of tall arrays.

    Parameters
    ----------
    own : nested tuples
    parts : list
        What tasks left, and is needed, is appended to it.
    """
    if isinstance(own, Part):
        return Later(_of_shard(own, parts))
    if isinstance(own, tuple) and any(isinstance(x, tuple) for x in own):
        made = [detached(x, parts) for x in own]
        return type(own)(*made) if hasattr(own, "_fields") else tuple(made)
    return own


def _of_shard(part: Part, parts: list[Any]) -> Tree:
    first, last = part.of.rows.limits[part.shard]
    known: dict[int, Tree] = {}

    def made(node: Tree) -> Tree:
        if isinstance(node, list):
            return [made(x) for x in node]
        if isinstance(node, Zeros):
            return Call(np.zeros, ((last - first, *node.width), node.dtype))
        if isinstance(node, Cut):
            return node.array[first:last]
        if isinstance(node, Leaf):
            there = node.kept.parts[part.shard]
            number = next((k for k, x in enumerate(parts) if x is there), len(parts))
            if number == len(parts):
                parts.append(there)
            return Slot(number, node.at)
        if not isinstance(node, Call):
            return node
        if id(node) not in known:
            known[id(node)] = Call(node.function, tuple(map(made, node.arguments)), node.named)
        return known[id(node)]

    return made(part.of.tree)


def attached(own: Any, given: Sequence[Any]) -> Any:
    """Return what a shard has, with what was to be computed later; on the worker."""
    if isinstance(own, Later):
        return own.value(given)
    if isinstance(own, tuple):
        made = [attached(x, given) for x in own]
        return type(own)(*made) if hasattr(own, "_fields") else tuple(made)
    return own


# ---- work of shards on such arrays; a shard says where that is done


def _value(shard: Any, x: Array) -> Array:
    return x


def _kept_value(shard: Any, x: Array) -> tuple[tuple[Array, ...], None]:
    return (np.ascontiguousarray(x),), None


def _reduced(shard: Any, x: Array, function: Any, named: dict[str, Any]) -> Array:
    return function(x, **named)


def _sum(shard: Any, x: Array, axis: int | None) -> Array:
    return np.sum(x, axis=axis)


def _product(shard: Any, x: Array, y: Array, axis: int) -> Array:
    return x.T @ y


def _as_it_is(total: Array, axis: int | None) -> Array:
    return total


def _largest(shard: Any, x: Array) -> tuple[Array, Array]:
    at = np.argmax(x, axis=0)
    return at, np.take_along_axis(x, at[None], axis=0)[0]


def _triangle(shard: Any, x: Array) -> tuple[tuple[Array, ...], Array]:
    Q, A = np.linalg.qr(x)
    return (Q,), A


def _times_own(shard: Any, x: Array, A: Array) -> tuple[tuple[Array, ...], None]:
    return (x @ A,), None


def _taken(shard: Any, x: Array, chosen: Array) -> Array:
    return x[chosen]


# ---- the array


@dataclass(frozen=True, eq=False)
class RowsOfTable:
    """Where the rows of a table are.

    Attributes
    ----------
    workers : Workers
    shards : list
        Those of rows.
    limits : list of (first, last)
    """

    workers: Workers
    shards: list[Any]
    limits: Limits

    @property
    def count(self) -> int:
        return self.limits[-1][1]

    def zeros(self, width: tuple[int, ...], dtype: Any) -> Tall:
        """Return an array of zeros with a row per row."""
        return Tall(self, Zeros(width, dtype), np.zeros((1, *width), dtype=dtype))

    def kept(self, work: Any, own: Sequence[tuple[Any, ...]], *shared: Any, **how: Any) -> Any:
        """Do some work that leaves arrays on the workers; return these, and what comes back."""
        return self.workers.keep(work, self.shards, own, *shared, **how)

    def added(self, work: Any, own: Sequence[tuple[Any, ...]], axis: int | None) -> Array:
        """Return a sum over all rows, which the workers add up."""
        return self.workers.added(work, self.shards, own, [(axis,)], _as_it_is)[0]

    def leaf(self, kept: Kept, at: int, width: tuple[int, ...], dtype: Any) -> Tall:
        """Return one of the arrays that work has left."""
        return Tall(self, Leaf(kept, at), np.ones((1, *width), dtype=dtype))


class Tall(NDArrayOperatorsMixin):
    """An array whose rows are where the shards of rows are.

    Parameters
    ----------
    rows : RowsOfTable
    tree : notes
        How every shard makes its rows.
    one : array of shape (1, ...)
        What one row looks like.
    """

    __array_priority__ = 1000.0
    device = "cpu"
    far = True

    def __init__(self, rows: RowsOfTable, tree: Tree, one: Array) -> None:
        self.rows, self.tree, self.one = rows, tree, one
        self._step: tuple[Tall, Tall, bool] | None = None

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return xnp

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows.count, *self.one.shape[1:])

    @property
    def ndim(self) -> int:
        return int(self.one.ndim)

    @property
    def dtype(self) -> Any:
        return self.one.dtype

    @property
    def size(self) -> int:
        return self.rows.count * int(self.one.size)

    @property
    def nbytes(self) -> int:
        return self.rows.count * int(self.one.nbytes)

    def __len__(self) -> int:
        return self.rows.count

    def __repr__(self) -> str:
        return f"Tall(shape={self.shape}, dtype={self.dtype}, parts={len(self.rows.limits)})"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        if self.ndim != 1:
            raise MemoryError(
                f"the factor of {self.shape[0]:,} rows stays on the cluster: it is larger than "
                "this machine may hold, so what needs all of it here is refused"
            )
        found = np.concatenate(self._each(_value))
        return found if dtype is None else found.astype(dtype)

    def parts(self) -> list[Part]:
        """Return what every shard has of it."""
        return [Part(self, k) for k in range(len(self.rows.limits))]

    def arrived(self) -> Tall:
        """Return the array as it is on the workers, with nothing left to do."""
        kept, _ = self.rows.kept(_kept_value, [(x,) for x in self.parts()])
        return self.rows.leaf(kept, 0, self.shape[1:], self.dtype)

    def leading_to(self, target: Tall) -> Tall:
        """Return the step from another array, this one, that leads to it: `self` − `target`."""
        step: Tall = self - target
        step._step = (self, target, False)
        return step

    def _each(self, work: Any, *shared: Any) -> list[Any]:
        rows = self.rows
        return rows.workers.each(work, rows.shards, [(x,) for x in self.parts()], *shared)

    # ---- row by row

    def _call(self, function: Any, *arguments: Any, **named: Any) -> Tall:
        n = self.rows.count
        flat = [x for a in arguments for x in (a if isinstance(a, list) else [a])]
        dims = max(np.ndim(x.one if isinstance(x, Tall) else x) for x in flat)

        def aligned(x: Any) -> bool:
            return isinstance(x, np.ndarray) and x.ndim == dims and x.shape[0] == n > 1

        def note(x: Any) -> Tree:
            if isinstance(x, list):
                return [note(y) for y in x]
            if isinstance(x, Tall):
                return x.tree
            return Cut(x) if aligned(x) else x

        def example(x: Any) -> Any:
            if isinstance(x, list):
                return [example(y) for y in x]
            if isinstance(x, Tall):
                return x.one
            return x[:1] if aligned(x) else x

        with np.errstate(all="ignore"):
            one = function(*map(example, arguments), **named)
        made = Tall(self.rows, Call(function, tuple(map(note, arguments)), named), one)
        nodes = list(_nodes(made.tree))
        leaves = {(id(x.kept), x.at) for x in nodes if isinstance(x, Leaf)}
        return made.arrived() if len(nodes) > LONGEST or len(leaves) > MOST else made

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        if method != "__call__" or "out" in named:
            return NotImplemented
        if ufunc is np.matmul:
            return self._matmul(*inputs)
        if ufunc is np.negative and self._step is not None:
            made = self._call(ufunc, self)
            made._step = (*self._step[:2], not self._step[2])
            return made
        if ufunc is np.add and len(inputs) == 2:
            for x, step in (inputs, inputs[::-1]):
                known = getattr(step, "_step", None)
                if known is not None and known[2] and known[0] is x:
                    return known[1]  # where the step leads, without rounding
        return self._call(ufunc, *inputs, **named)

    def _matmul(self, a: Any, b: Any) -> Any:
        if isinstance(a, Tall):
            if isinstance(b, Tall | TallTransposed):
                return NotImplemented
            return self._call(np.matmul, a, b)
        if isinstance(a, np.ndarray) and a.shape[-1] == self.rows.count:
            return TallTransposed(self._call(np.add, np.ascontiguousarray(a.T), 0.0)) @ b
        return NotImplemented

    @property
    def T(self) -> TallTransposed:
        return TallTransposed(self)

    def astype(self, dtype: Any, copy: bool = True) -> Tall:
        return self if self.dtype == dtype else self._call(_as_type, self, dtype=np.dtype(dtype))

    def __getitem__(self, key: Any) -> Any:
        key = key if isinstance(key, tuple) else (key,)
        first = key[0]
        if isinstance(first, slice) and first == slice(None):
            return self._call(_item, self, key=key)
        if isinstance(first, Tall):
            first = np.asarray(first)
        if self.ndim == 1 and len(key) == 1:
            return np.asarray(self)[first]
        if isinstance(first, int | np.integer):
            return self.take(np.asarray([first]))[(0, *key[1:])]
        if isinstance(first, np.ndarray) and first.dtype.kind in "iu":
            return self.take(first)[(slice(None), *key[1:])]
        self._refuse(f"rows {first!r} alone")

    def take(self, chosen: Array) -> Array:
        """Return some rows, here, in the order that they are asked for."""
        some, place = np.unique(np.asarray(chosen), return_inverse=True)
        ends = np.searchsorted(some, [first for first, _ in self.rows.limits[1:]])
        wanted = np.split(some, ends)
        own = [
            (part, rows - first)
            for part, rows, (first, _) in zip(self.parts(), wanted, self.rows.limits, strict=True)
        ]
        asked = [k for k, rows in enumerate(wanted) if len(rows)] or [0]
        shards = [self.rows.shards[k] for k in asked]
        found = self.rows.workers.each(_taken, shards, [own[k] for k in asked])
        return np.concatenate(found)[place]

    # ---- functions of NumPy

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in _ROWWISE:
            return self._rowwise(function, args, kwargs)
        if function in _FUNCTIONS:
            return _FUNCTIONS[function](*args, **kwargs)
        self._refuse(f"numpy.{function.__name__}")

    def _rowwise(self, function: Any, args: Any, kwargs: Any) -> Tall:
        return self._call(function, *args, **kwargs)

    def _over_rows(self, function: Any, join: Any, axis: Any, named: dict[str, Any]) -> Array:
        found = self._each(_reduced, function, {"axis": axis, **named})
        return join(np.stack(found), axis=0)

    def _refuse(self, what: str) -> NoReturn:
        raise NotImplementedError(
            f"{what} of a factor that stays on the cluster ({self.shape[0]:,} rows) is not "
            "supported; fit on machines with more memory, or fewer rows"
        )


def _item(x: Array, key: Any) -> Array:
    return x[key]


def _as_type(x: Array, dtype: Any) -> Array:
    return x.astype(dtype)


class TallTransposed:
    """Aᵀ of a tall A; it can be multiplied by what has as many rows."""

    __array_ufunc__ = None

    def __init__(self, of: Tall) -> None:
        self.of = of

    @property
    def T(self) -> Tall:
        return self.of

    @property
    def shape(self) -> tuple[int, ...]:
        return self.of.shape[::-1]

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return xnp

    def __matmul__(self, other: Any) -> Array:
        rows = self.of.rows
        if isinstance(other, np.ndarray):
            parts: list[Any] = [other[first:last] for first, last in rows.limits]
        else:
            parts = other.parts()
        own = list(zip(self.of.parts(), parts, strict=True))
        return rows.added(_product, own, 0)


# ---- what NumPy's functions do for these arrays


def _of_axis(axis: Any, ndim: int) -> bool:
    """Whether an axis is one that rows are not summed along."""
    return axis is not None and axis % ndim != 0


def _reduction(function: Any, join: Any) -> Callable[..., Any]:
    def work(x: Tall, axis: Any = None, **named: Any) -> Any:
        named = {k: v for k, v in named.items() if v is not None and v is not np._NoValue}
        if _of_axis(axis, x.ndim):
            return x._call(function, x, axis=axis, **named)
        return x._over_rows(function, join, axis, named)

    return work


def _summed(x: Tall, axis: Any = None, **named: Any) -> Any:
    if _of_axis(axis, x.ndim):
        return x._call(np.sum, x, axis=axis)
    return x.rows.added(_sum, [(part,) for part in x.parts()], axis)


def _mean(x: Tall, axis: Any = None, **named: Any) -> Any:
    if _of_axis(axis, x.ndim):
        return x._call(np.mean, x, axis=axis)
    total = np.sum(x, axis=axis)
    return total / np.asarray(x.size if axis is None else x.shape[0], dtype=x.dtype)


def _concatenated(arrays: Sequence[Any], axis: int = 0, **named: Any) -> Tall:
    first = next(x for x in arrays if isinstance(x, Tall))
    if axis % first.ndim == 0:
        first._refuse("more rows")
    return first._call(np.concatenate, list(arrays), axis=axis)


def _filled(value: float) -> Callable[..., Tall]:
    def work(x: Tall, dtype: Any = None, **named: Any) -> Tall:
        zeros = x.rows.zeros(x.shape[1:], x.dtype if dtype is None else np.dtype(dtype))
        filled: Tall = zeros + zeros.dtype.type(value) if value else zeros
        return filled

    return work


def _full_like(x: Tall, fill_value: Any, dtype: Any = None, **named: Any) -> Tall:
    filled: Tall = _filled(0.0)(x, dtype) + fill_value
    return filled


def _argmax(x: Tall, axis: Any = None, **named: Any) -> Array:
    if axis != 0:
        x._refuse("argmax along other axes")
    found = x._each(_largest)
    best = np.argmax(np.stack([values for _, values in found]), axis=0)
    at = np.stack([at + first for (at, _), (first, _) in zip(found, x.rows.limits, strict=True)])
    return np.take_along_axis(at, best[None], axis=0)[0]


def _take(x: Tall, indices: Any, axis: int | None = None, **named: Any) -> Any:
    if x.ndim == 1 or axis == 0:
        return x.take(indices)
    return x._call(np.take, x, axis=axis, indices=np.asarray(indices))


def _qr(x: Tall, mode: str = "reduced") -> tuple[Tall, Array]:
    """Decompose the rows of every shard, and then the triangles of all."""
    kept, triangles = x.rows.kept(_triangle, [(part,) for part in x.parts()])
    heights = np.cumsum([A.shape[0] for A in triangles])[:-1]
    Q, A = np.linalg.qr(np.concatenate(triangles))
    narrow = min(triangles[0].shape[0], x.shape[1])
    own = x.rows.leaf(kept, 0, (narrow,), x.dtype).parts()
    turned, _ = x.rows.kept(_times_own, list(zip(own, np.split(Q, heights), strict=True)))
    return x.rows.leaf(turned, 0, (A.shape[0],), x.dtype), A


_ROWWISE = {np.where, np.clip, np.nan_to_num, np.real, np.imag, np.linalg.diagonal}
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.sum: _summed,
    np.max: _reduction(np.max, np.max),
    np.min: _reduction(np.min, np.min),
    np.any: _reduction(np.any, np.any),
    np.all: _reduction(np.all, np.all),
    np.mean: _mean,
    np.concatenate: _concatenated,
    np.zeros_like: _filled(0.0),
    np.ones_like: _filled(1.0),
    np.full_like: _full_like,
    np.argmax: _argmax,
    np.take: _take,
    np.linalg.qr: _qr,
}


def is_tall(x: Any) -> bool:
    """Whether the rows of an array are on the workers."""
    return isinstance(x, Tall)
