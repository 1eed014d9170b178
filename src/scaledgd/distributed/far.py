"""Models whose row factor stays distributed, in parts on workers or in files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from .. import files, folders
from ..estimators import validation
from ..estimators.constants import levelled
from ..estimators.matrix_model import MatrixModel
from ..estimators.packing import packable
from ..estimators.uncertainty import Spread
from ..factors import LowRank
from ..files import FileError
from .remembered import RememberedObservations
from .tall import is_tall
from .workers import Folder, Workers

Array = Any

REFUSED = (
    "the row factor ({:,} rows) is distributed, and {} would need all of it on this machine; ask "
    "for entries with predict_entries, or compute the parts of factors_.L that you need"
)


@dataclass(frozen=True, eq=False)
class FarLowRank(LowRank):
    """A matrix X = L Rᵀ whose L is a lazy Dask array, in chunks of rows."""

    def __post_init__(self) -> None:
        """Skip the checks: the arrays belong to different libraries."""

    def full(self) -> NoReturn:
        """Refuse: L is never on this machine as a whole."""
        raise MemoryError(REFUSED.format(self.shape[0], "the whole estimate"))

    def gather(self, index: tuple[Array, ...], y: Array | None = None) -> Array:
        some, place = np.unique(np.asarray(index[0]), return_inverse=True)
        near = LowRank(rows_of(self.L, some), self.R)
        return near.gather((place, index[1]), y)


def rows_of(table: Any, some: Array) -> Array:
    """Return some rows of a Dask array; only the chunks that hold them are computed.

    Parameters
    ----------
    table : dask array of shape (n, k), in chunks of rows
    some : integer array of shape (m,), rising
    """
    import dask

    ends = np.cumsum(table.chunks[0])
    wanted = np.split(some, np.searchsorted(some, ends[:-1]))
    blocks = table.to_delayed().ravel()
    asked = [
        dask.delayed(np.take)(block, rows - (end - height), axis=0)
        for block, rows, end, height in zip(blocks, wanted, ends, table.chunks[0], strict=True)
        if len(rows)
    ]
    none = np.zeros((0, table.shape[1]), dtype=table.dtype)
    return np.concatenate([none, *dask.compute(*asked)])


@packable
@dataclass(frozen=True, eq=False, kw_only=True)
class FarModel(MatrixModel):
    """A model whose row factor is elsewhere.

    Attributes
    ----------
    found : dict
        The fitted attributes but the factors.
    right : array of shape (n2, r)
        The factor of the columns, in units of the data.
    row_level : array of shape (n1,), optional
        The constants of rows that are constant, NaN elsewhere.
    rows : dask array of shape (n1, r + 2)
        For every row: the factor in units of the data, the offset, and the constant.
    """

    found: dict[str, Any] = field(default_factory=dict)
    right: Array
    row_level: Array | None = None
    rows: Any = None

    @cached_property
    def attributes(self) -> dict[str, Any]:
        left = self.rows[:, : self.right.shape[1]]
        return {**self.found, "factors_": FarLowRank(left, self.right)}

    @cached_property
    def _row_levels(self) -> Array | None:
        return self.row_level

    def full(self) -> NoReturn:
        """Refuse: the estimate is never on this machine as a whole."""
        raise MemoryError(REFUSED.format(self.observations.shape[0], "the whole estimate"))

    def spread(self) -> Spread:
        n = self.observations.shape[0]
        raise NotImplementedError(REFUSED.format(n, "standard errors and intervals"))

    def near(self) -> MatrixModel:
        """Return a model with one blank row, which is all that it takes to solve for new rows."""
        known: Any = self.observations
        none, zero = np.zeros(0, dtype=np.int64), np.zeros(1)
        known = replace(
            known.without_source(),
            **{"row_counts": zero, "places": none, "times": none},
            constants=none.astype(known.kind.dtype),
        )
        names = [name for name in MatrixModel.__dataclass_fields__ if name != "observations"]
        return MatrixModel(observations=known, **{name: getattr(self, name) for name in names})

    def validate(self) -> None:
        must, shaped = validation.must, validation.shaped
        validation.observations(self.observations)
        n1, n2 = self.observations.shape
        inside = self.near()
        one: Any = replace(inside.observations, shape=(1, n2))
        replace(inside, observations=one).validate()
        rank: Any = self.found.get("rank_")
        must(isinstance(rank, int) and rank >= 0, "the rank")
        shaped(self.right, (n2, max(1, rank)))
        shaped(self.found["row_offset_"], (n1,))
        shaped(self.found["column_offset_"], (n2,))
        shaped(self.found["singular_values_"], (rank,), least=0)
        shaped(self.found["components_"], (rank, n2))
        must(self.row_level is None or self.row_level.shape == (n1,), "the levels")


# ---- from a fit


def distributed(model: Any, known: RememberedObservations, workers: Workers, data: Any) -> FarModel:
    """Return a model of which only the row factor stays on the workers.

    Parameters
    ----------
    model : MatrixModel
        Of a fit whose rows are on the workers.
    known : RememberedObservations
    workers : Workers
    data : ShardedObservations
    """
    found = dict(model.attributes)
    factors, levels = found.pop("factors_"), model._row_levels
    found["row_offset_"] = np.asarray(found["row_offset_"])
    n, dtype = data.shape[0], np.dtype(data.dtype)
    level = np.full(n, np.nan, dtype=dtype) if levels is None else np.asarray(levels, dtype=dtype)
    columns = [data.blank(0, 0), factors.L, found["row_offset_"][:, None], level[:, None]]
    table: Any = np.concatenate(columns, axis=1)
    kept_rows = table.arrived().tree.kept
    F, posterior, scales = model.factors, model.posterior, model.scales
    blank, one = np.zeros((1, F.L.shape[1]), dtype=dtype), np.ones(1, dtype=dtype)
    bare = replace(F, L=blank, u=None if F.u is None else one)
    if posterior is not None:
        posterior = replace(posterior, variance=(blank, posterior.variance[1]))
    scales = replace(scales, rows=None if scales.rows is None else one)
    names = [name for name in MatrixModel.__dataclass_fields__ if hasattr(model, name)]
    kept = {name: getattr(model, name) for name in names}
    kept |= {"factors": bare, "posterior": posterior, "scales": scales, "observations": known}
    rows = workers.released(kept_rows, [last - first for first, last in data.limits[0]])
    return FarModel(**kept, found=found, right=np.asarray(factors.R), row_level=levels, rows=rows)


def array_of(blocks: Sequence[Any], heights: list[int], width: int, dtype: Any) -> Any:
    """Return a Dask array of delayed blocks of rows."""
    import dask.array as da

    parts = [
        da.from_delayed(block, (height, width), dtype=dtype)
        for block, height in zip(blocks, heights, strict=True)
    ]
    return da.concatenate(parts) if len(parts) > 1 else parts[0]


# ---- estimates, where the rows are


@dataclass(frozen=True, eq=False)
class Near:
    """What every part needs besides its rows to estimate entries.

    Attributes
    ----------
    right : array of shape (n2, r)
    offset, level : arrays of shape (n2,)
        Of columns; the second may be None.
    clip : pair of float, optional
    dtype : dtype
    """

    right: Array
    offset: Array
    level: Array | None
    clip: tuple[float, float] | None
    dtype: Any

    @classmethod
    def of(cls, estimator: Any) -> Near:
        model = estimator._model
        clip = None if estimator.clip is None else estimator._clip()
        offset = model.found["column_offset_"]
        return cls(model.right, offset, model.levels, clip, np.dtype(estimator._kind.dtype))


def sorted_out(i: Array, j: Array, ends: Array, height: int) -> list[tuple[Array, Array, Array]]:
    """Return where the entries of every part of the rows are, and their coordinates in it."""
    i, j = np.asarray(i), np.asarray(j)
    if len(i) and not (i.min() >= 0 and i.max() < height):
        raise IndexError(f"rows run from {i.min()} to {i.max()}, but the model has {height:,}")
    part: Array = np.searchsorted(ends, i, side="right")
    order = np.argsort(part, kind="stable")
    places = np.split(order, np.searchsorted(part[order], np.arange(1, len(ends))))
    firsts = np.concatenate([[0], ends[:-1]])
    return [(at, i[at] - first, j[at]) for at, first in zip(places, firsts, strict=True)]


def estimated(rows: Array, piece: tuple[Array, Array, Array], near: Near) -> Array:
    """Return the estimates of the entries of one part of the rows."""
    _, i, j = piece
    if not len(i):
        return np.zeros(0, dtype=near.dtype)
    r = near.right.shape[1]
    mine = rows[i]
    values: Array = np.einsum("ek,ek->e", mine[:, :r], near.right[j])
    values = values + (mine[:, r] + near.offset[j])
    every = np.arange(len(i))
    values = levelled(values, (mine[:, r + 1], near.level), (every, j))
    if near.clip is not None:
        values = np.clip(values, *near.clip)
    return values.astype(near.dtype)


def joined(pieces: list[tuple[Array, Array, Array]], dtype: Any, *values: Array) -> Array:
    """Return estimates in the order in which they were asked for."""
    found = np.empty(sum(map(len, values)), dtype=dtype)
    for (at, _, _), some in zip(pieces, values, strict=True):
        found[at] = some
    return found


def by_parts(table: Any, near: Near, coordinates: list[Any]) -> list[Any]:
    """Return delayed estimates for each of several delayed pairs of coordinates.

    Every part of the rows estimates what concerns it, where it is.

    Parameters
    ----------
    table : dask array of shape (n1, r + 2)
        As in `FarModel`.
    near : Near
    coordinates : list of pairs of delayed integer arrays
    """
    from dask import delayed

    ends: Array = np.cumsum(table.chunks[0])
    blocks = table.to_delayed().ravel()
    known = delayed(near, traverse=False)
    found = []
    for pair in coordinates:
        pieces = delayed(sorted_out)(*pair, ends, int(ends[-1]))
        values = [delayed(estimated)(rows, pieces[k], known) for k, rows in enumerate(blocks)]
        found.append(delayed(joined)(pieces, near.dtype, *values))
    return found


def with_typical(estimator: Any) -> tuple[Any, Near]:
    """Return the rows of a model, and what goes with them, with a typical row and column appended.

    Parameters
    ----------
    estimator : fitted estimator with a distributed factor
    """
    import dask
    import dask.array as da

    table, near = estimator._model.rows, Near.of(estimator)
    # rows without a value are not typical
    seen = np.split(estimator._model.observations.counts(0) > 0, np.cumsum(table.chunks[0])[:-1])
    blocks = table.to_delayed().ravel()
    sums = [dask.delayed(_sum_of)(rows, some) for rows, some in zip(blocks, seen, strict=True)]
    typical = sum(dask.compute(*sums)) / max(1, sum(int(some.sum()) for some in seen))
    typical[-1] = np.nan
    one = da.from_array(typical[None, :].astype(table.dtype), chunks=-1)
    level = near.level
    near = replace(
        near,
        right=np.concatenate([near.right, near.right.mean(axis=0)[None, :]]),
        offset=np.append(near.offset, near.offset.mean()),
        level=None if level is None else np.append(level, np.nan),
    )
    return da.concatenate([table, one]), near


def _sum_of(rows: Array, some: Array) -> Array:
    return rows[some].sum(axis=0)


# ---- in a folder


def save(path: str | os.PathLike[str], tree: Any, model: FarModel, version: str) -> None:
    """Write a model into a folder: the rows in parts, one after the other, and the rest.

    Parameters
    ----------
    path : str or path
        A folder that does not exist, or that was written like this and holds nothing else.
    tree : dict
        The estimator, as `files.write` takes it.
    model : FarModel
    version : str
    """
    import dask

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with folders.replacing(path, "model", version) as folder:
        for k, block in enumerate(model.rows.to_delayed().ravel()):
            (rows,) = dask.compute(block)
            files.write(folder / f"rows-{k:05}.npz", {"rows": np.asarray(rows)}, "rows", version)
        heights = np.asarray(model.rows.chunks[0], dtype=np.int64)
        files.write(folder / "model.npz", {**tree, "heights": heights}, "model", version)


def loaded_rows(folder: Path, heights: Array, width: int, dtype: Any) -> Any:
    """Return the rows of a saved model, lazily."""
    from dask import delayed

    names = [folder / f"rows-{k:05}.npz" for k in range(len(heights))]
    for name in names:
        if not name.is_file():
            raise FileError(f"{name} is missing: copy the whole folder")
    blocks = [
        delayed(_read)(str(name), int(height), width)
        for name, height in zip(names, heights, strict=True)
    ]
    return array_of(blocks, [int(height) for height in heights], width, dtype)


def _read(name: str, height: int, width: int) -> Array:
    rows = files.read(name, "rows")["rows"]
    if rows.shape != (height, width):
        raise FileError(f"{name} holds rows of shape {rows.shape}, not {(height, width)}")
    return rows


def in_files(kept: Any, heights: list[int], width: int, dtype: Any) -> Any:
    """Return rows that this process keeps in files as a Dask array; the files go with the array."""
    from dask import delayed

    blocks = []
    for part in kept.parts:
        path = Path(tempfile.mkdtemp(prefix="scaledgd-rows-"))
        shutil.move(part.path / "0.npy", path / "0.npy")
        blocks.append(delayed(_first)(delayed(Folder(path, 1), traverse=False)))
    return array_of(blocks, heights, width, dtype)


def _first(folder: Folder) -> Array:
    return folder.arrays()[0]


def is_far(estimator: Any) -> bool:
    """Whether the row factor of a fitted estimator is distributed."""
    return isinstance(getattr(estimator, "_model", None), FarModel)


def stays(model: Any) -> bool:
    """Whether a fit has left its rows on the workers."""
    return is_tall(model.factors.L)
