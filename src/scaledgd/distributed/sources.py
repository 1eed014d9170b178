"""What users pass: Dask arrays and frames, as blocks of entries that workers read.

A source is surveyed first: every block is checked, labels are numbered, and entries are counted by
row and by column. Nothing large is moved before that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import checks
from ..estimators.dask import is_array, is_series
from ..estimators.reading import check_factors, refuse_dates, sized
from ..kernels import backend
from ..kernels.entries import numbered
from . import labelling
from .labelling import Names
from .shards import Piece, spread_out
from .workers import Workers

Array = Any


@dataclass(frozen=True, eq=False)
class Source:
    """Entries in blocks.

    Attributes
    ----------
    blocks : list of delayed (rows, columns, values)
        Numbered in the whole table. Of a tensor, columns are cells of all modes but the first.
    shape : (n1, n2), or that of a tensor
    dtype : dtype
    counts : tuple of integer arrays, one per mode
        Entries in every row and in every column.
    names : pair of Names, optional
        Labels of rows and columns.
    table : dask array, optional
        The whole table, if it came as one.
    """

    blocks: list[Any]
    shape: tuple[int, ...]
    dtype: Any
    counts: tuple[Array, ...]
    names: tuple[Names, Names] | None = None
    table: Any = None

    @property
    def size(self) -> int:
        return int(self.counts[0].sum())

    def gathered(self, workers: Workers) -> Piece:
        """Return all entries, here."""
        return joined(workers.compute(self.blocks), self.dtype)

    def some(
        self, workers: Workers, mode: int, chosen: Array, unseen: Callable[..., Array] | None
    ) -> Piece:
        """Return the entries of some slices, without those that `unseen` says were held out."""
        from dask import delayed

        wanted = delayed(chosen)
        sizes = self.shape[1:]
        filtered = [delayed(_some)(block, sizes, mode, wanted, unseen) for block in self.blocks]
        return joined(workers.compute(filtered), self.dtype)


def joined(parts: Sequence[Piece], dtype: Any) -> Piece:
    """Return blocks of entries as one."""
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        return none, none, np.zeros(0, dtype=dtype)
    i, j, y = (np.concatenate([part[k] for part in parts]) for k in range(3))
    return i.astype(np.int64, copy=False), j.astype(np.int64, copy=False), y


def _some(
    block: Piece,
    sizes: tuple[int, ...],
    mode: int,
    chosen: Array,
    unseen: Callable[..., Array] | None,
) -> Piece:
    i, j, y = block
    inside = np.isin((i, *spread_out(j, sizes))[mode], chosen)
    i, j, y = i[inside], j[inside], y[inside]
    if unseen is not None:
        keep = ~unseen((i.astype(np.int64), *spread_out(j.astype(np.int64), sizes)))
        i, j, y = i[keep], j[keep], y[keep]
    return i, j, y


# ---- trees


def tree(parts: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Return the sum of delayed parts, added in pairs where they are."""
    from dask import delayed

    level = list(parts)
    while len(level) > 1:
        pairs = [level[k : k + 2] for k in range(0, len(level), 2)]
        level = [delayed(add)(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


@dataclass(frozen=True)
class Count:
    """How many entries there are, of every slice of every mode."""

    sides: tuple[Array, ...]

    @classmethod
    def of(cls, block: Piece, shape: tuple[int, ...]) -> Count:
        i, j, _ = block
        index = i, *spread_out(j, shape[1:])
        pairs = zip(index, shape, strict=True)
        return cls(tuple(np.bincount(k, minlength=n) for k, n in pairs))

    def __add__(self, other: Count) -> Count:
        return Count(tuple(a + b for a, b in zip(self.sides, other.sides, strict=True)))


def _sum(a: Any, b: Any) -> Any:
    return a + b


def _counted(workers: Workers, blocks: list[Any], shape: tuple[int, ...]) -> tuple[Array, ...]:
    from dask import delayed

    parts = [delayed(Count.of)(block, shape) for block in blocks]
    found: tuple[Array, ...] = workers.compute([tree(parts, _sum)])[0].sides
    return found


# ---- coordinates and values


def of_entries(
    workers: Workers, index: Any, values: Any, shape: Any, modes: int | None = 2
) -> Source:
    """Survey coordinates and values in Dask arrays, of a matrix or of any number of modes."""
    from dask import delayed

    shape = checks.shape("shape", shape)
    d = len(shape) if modes is None else modes
    if d < 2 or len(shape) != d or not isinstance(index, tuple | list) or len(index) != d:
        what = "a pair of arrays, and shape (n1, n2): only matrices are fitted by this estimator"
        if modes is None:
            what = f"a tuple of {len(shape)} arrays, one per mode of the shape {shape}"
        raise ValueError(f"index must be {what}")
    columns = aligned((*index, values))
    for name, x in zip((*(f"index[{k}]" for k in range(d)), "values"), columns, strict=True):
        if x.ndim != 1:
            raise ValueError(f"{name} must be one-dimensional, not of {x.ndim} dimensions")
        _numeric(name, x.dtype, "iu" if name != "values" else "fiub")
    dtype = np.dtype(np.float32 if values.dtype == np.float32 else np.float64)
    check_factors(shape, 0)
    parts = zip(*(x.to_delayed().ravel() for x in columns), strict=True)
    blocks = [delayed(_entries)(number, *block, shape, dtype) for number, block in enumerate(parts)]
    return Source(blocks, shape, dtype, _counted(workers, blocks, shape))


def aligned(columns: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return Dask arrays cut at the same places."""
    import dask.array as da

    found = [x.to_dask_array() if is_series(x) else x for x in columns]
    first = next(x for x in found if is_array(x))
    known = not np.isnan(first.chunks[0]).any()
    for k, x in enumerate(found):
        if not is_array(x):
            if not known:
                raise ValueError(
                    "index and values mix Dask arrays of unknown chunk sizes with other arrays; "
                    "make all of them Dask arrays, or call compute_chunk_sizes()"
                )
            found[k] = da.from_array(np.asarray(x), chunks=first.chunks)
    lengths = {x.shape[0] for x in found if not np.isnan(x.shape[0])}
    if len(lengths) > 1:
        raise ValueError(f"index and values must be of one length, not {sorted(lengths)}")
    if all(not np.isnan(x.chunks[0]).any() for x in found):
        return tuple(x.rechunk(first.chunks) for x in found)
    if len({x.numblocks for x in found}) > 1:
        raise ValueError(
            "index and values have different numbers of chunks, and some of unknown size; call "
            "compute_chunk_sizes() on them"
        )
    return tuple(found)


def _numeric(name: str, dtype: Any, kinds: str) -> None:
    if dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} must be real")
    refuse_dates(name, np.empty(0, dtype=dtype) if dtype.kind in "Mm" else None)
    if dtype.kind not in kinds:
        what = "integers" if "f" not in kinds else "numbers"
        raise TypeError(f"{name} must hold {what}, not {dtype}")


def _entries(number: int, *given: Any) -> Piece:
    """Check a block of coordinates and values, which the shape and the dtype follow."""
    *index, y, shape, dtype = given
    where, lengths = f"chunk {number} of ", [len(x) for x in (*index, y)]
    if len(set(lengths)) > 1:
        some = ", ".join(map(str, lengths[:-1]))
        raise ValueError(
            f"{where}index and values: they have {some} and {lengths[-1]} entries, but must be cut "
            "at the same places"
        )
    places = checks.index(tuple(map(np.asarray, index)), shape, f"{where}index")
    y = np.asarray(y).astype(dtype)
    checks.finite(f"{where}values", y)
    return places[0], numbered(places, shape, 0), sized(f"{where}values", y)


# ---- tables with holes


def of_table(workers: Workers, X: Any, observed: Any, modes: int | None = 2) -> Source:
    """Survey the blocks of a Dask array, NaN where nothing is observed."""
    import dask.array as da
    from dask import delayed

    if modes == 2 and X.ndim != 2:
        raise ValueError(f"Expected 2D array, got {X.ndim}D array instead; X must be a table")
    if X.ndim < 2:
        raise ValueError(f"X must have 2 dimensions or more, not shape {X.shape}")
    _numeric("X", X.dtype, "fiub")
    if observed is not None:
        observed = observed if is_array(observed) else da.asarray(observed)
        if observed.dtype.kind != "b":
            raise TypeError(
                f"observed must be boolean, True where a cell is observed, not {observed.dtype}"
            )
        unknown = np.isnan(X.shape).any()
        if not unknown and observed.shape != X.shape:
            raise ValueError(f"observed must have the shape of X, {X.shape}, not {observed.shape}")
        observed = observed if unknown else observed.rechunk(X.chunks)
    dtype = np.dtype(np.float32 if X.dtype == np.float32 else np.float64)
    grid = X.to_delayed()
    masks = np.full(grid.shape, None) if observed is None else observed.to_delayed()
    sizes = workers.compute([delayed(_shape)(block) for block in grid.ravel()])
    shapes = np.asarray(sizes).reshape(*grid.shape, X.ndim)
    # the sizes of chunks along each mode, which those beside each other must share
    lengths = [shapes[(*(0,) * k, slice(None), *(0,) * (X.ndim - k - 1), k)] for k in range(X.ndim)]
    if any(
        (shapes[at] != [one[n] for one, n in zip(lengths, at, strict=True)]).any()
        for at in np.ndindex(grid.shape)
    ):
        raise ValueError("the chunks of X do not form a table: chunks beside each other differ")
    shape = tuple(int(one.sum()) for one in lengths)
    if 0 in shape:
        raise ValueError(f"X of shape {shape} is empty; every size must be at least 1")
    firsts = [np.cumsum(one) - one for one in lengths]
    blocks = []
    for at in np.ndindex(grid.shape):
        corner = [int(first[n]) for first, n in zip(firsts, at, strict=True)]
        blocks.append(delayed(_present)(grid[at], masks[at], corner, shape, dtype))
    return Source(blocks, shape, dtype, _counted(workers, blocks, shape), table=X)


def _shape(block: Array) -> tuple[int, ...]:
    return np.shape(block)


def _present(
    block: Array, observed: Array | None, corner: list[int], shape: tuple[int, ...], dtype: Any
) -> Piece:
    """Return what is observed of a block of a table, whose first cell is at a corner."""
    values = np.ascontiguousarray(block, dtype=dtype)
    if not values.size:
        none = np.zeros(0, dtype=np.int64)
        return none, none, values.ravel()
    index, found, strange = backend(values).present(values, observed)
    if strange and observed is not None:
        raise ValueError(
            "X holds NaN or infinity where observed is True; set observed to False there"
        )
    if strange:
        raise ValueError("X contains infinity; replace it, or mark it as missing with NaN")
    if index is None:
        index = np.unravel_index(np.arange(values.size), values.shape)
        found = values.ravel()
    index = tuple(i + first for i, first in zip(index, corner, strict=True))
    return index[0], numbered(index, shape, 0), sized("X", found)


# ---- frames of labels and values

READING = (KeyError, ValueError, TypeError, AttributeError, FileNotFoundError, PermissionError)
"""What goes wrong when files are read, rather than with the cluster."""


def _name_part(workers: Workers, parts: list[Any], error: Exception) -> None:
    """Say which part of a frame cannot be read, if one of them cannot."""
    from dask import delayed

    for number, part in enumerate(parts):
        try:
            workers.compute([delayed(len)(part)])
        except type(error) as why:
            raise ValueError(
                f"part {number} of the frame cannot be read ({type(why).__name__}: "
                f"{' '.join(str(why).split())}); check that all files are there and have the "
                "same columns"
            ) from why


def of_frame(workers: Workers, frame: Any) -> Source:
    """Survey a Dask frame with columns row, column and value."""
    from dask import delayed

    names = [str(c) for c in frame.columns]
    if not names:
        raise ValueError("the frame has no columns: no file was found where it is read from")
    if len(names) != 3:
        raise ValueError(
            "a Dask frame is read as entries, with three columns: row, column and value; this one "
            f"has {len(names)}. Pick them with X[[row, column, value]]; a table of features is "
            "given as X.to_dask_array()"
        )
    parts = frame.to_delayed()
    value = frame.dtypes.iloc[2]
    single = getattr(value, "name", "") == "float32"
    dtype = np.dtype(np.float32 if single else np.float64)
    read = [delayed(labelling.read)(k, part, names, dtype) for k, part in enumerate(parts)]
    surveys = [delayed(labelling.survey)(k, part, names) for k, part in enumerate(read)]
    try:
        found = workers.compute([tree(surveys, partial(labelling.merged, names=names))])[0]
    except (labelling.BadPartError, labelling.BadTypeError):
        raise
    except READING as error:
        _name_part(workers, parts, error)
        raise
    sides = tuple(labelling.ordered(side) for side in found)
    if not all(len(side[1]) for side in sides):
        raise ValueError(f"the frame has no entry with a value in {names[2]!r}")
    known = Names(names[0], sides[0][0]), Names(names[1], sides[1][0])
    lookup = delayed(known, traverse=False)
    blocks = [delayed(labelling.numbered)(part, lookup) for part in read]
    counts = sides[0][1], sides[1][1]
    shape = len(counts[0]), len(counts[1])
    check_factors(shape, int(counts[0].sum()))
    return Source(blocks, shape, dtype, counts, known)
