"""Fits of Dask collections: read, counted, brought into shards, fitted, and released."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from ..estimators.base import all_or_nothing
from ..estimators.local_observations import LocalObservations
from ..estimators.plans import LARGEST_RANK
from ..estimators.reading import Kind, available_memory
from ..kernels.cpp import DENSE
from .far import distributed
from .observations import ShardedObservations
from .remembered import RememberedObservations
from .shards import (
    DuplicateError,
    Piece,
    Shard,
    boundaries,
    integers,
    others_of,
    pieces,
    spread_out,
)
from .sources import Source
from .workers import Workers, opened

Array = Any

GATHER = 8_000_000
"""Entries up to which data are fitted on this machine: there the fit may keep whole covariances."""
CELLS = 20_000_000
"""Cells of a table up to which it is too: the shape of its holes, and time, are looked at."""
PART = 2_000_000
"""Entries of a shard, about."""
PASSES = 4
"""How often rows are gone through to make columns of them, if memory is short."""
ROOM = 100
"""Bytes for an entry from which on it is not: twice what is there at a time, at most."""
LIMIT = "SCALEDGD_FACTOR_MEMORY"
"""The environment variable that says how many bytes the factor of one side may take."""
SHARE = 1 / 8
"""Share of the memory of a machine that it may take otherwise: about four copies with variances."""
COPIES = 5
"""Copies of the entries that a fit on one machine makes, about."""


def fit(estimator: Any, read: Callable[[Workers], Source], client: Any, X: Any = None) -> None:
    """Fit an estimator of a table to a source.

    Parameters
    ----------
    estimator : estimator
    read : callable
        Surveys the data.
    client : distributed.Client, optional
    X : object
        What the user passed, for callbacks.
    """
    with open_fit(estimator, read, client, X):
        pass


@contextmanager
def open_fit(
    estimator: Any, read: Callable[[Workers], Source], client: Any, X: Any = None
) -> Iterator[tuple[Any, Any]]:
    """Fit an estimator, and keep the entries where they are until the block ends.

    Takes what `fit` takes. Gives the fitted estimator, and the model as it is while the entries
    are there, which can say how sure it is of any estimate.
    """
    estimator._check_params()
    with all_or_nothing(estimator) as work, opened(client) as workers:
        source = read(workers)
        far = too_long(workers, source, work._rank())
        if far:
            _check_far(work)
        data = observations(workers, source, far)
        work.n_features_in_ = source.shape[1]
        work.__dict__.pop("feature_names_in_", None)
        if source.names is not None:
            work.feature_names_in_ = np.asarray(source.names[1].labels.astype(str), dtype=object)
        work._names = source.names
        dense = source.table is not None
        kind = Kind("numpy" if dense else "sparse", source.dtype, None, dense)
        yield work, _fitted(work, data, kind, X, source)


def fit_tensor(
    estimator: Any, read: Callable[[Workers], Source], client: Any, X: Any = None
) -> None:
    """Fit an estimator of a tensor to a source: in shards if it can, and there are many entries.

    Takes what `fit` takes.
    """
    estimator._check_params()
    with all_or_nothing(estimator) as work, opened(client) as workers:
        source = read(workers)
        why = work._undistributed(source)
        data = observations(workers, source, gather=why)
        _fitted(work, data, Kind("numpy", source.dtype), X, source)


def _fitted(work: Any, data: Any, kind: Kind, X: Any, source: Source) -> Any:
    """Fit an estimator; return the model as it is while the entries are there."""
    sharded = isinstance(data, ShardedObservations)
    try:
        work._fit(data, kind, X=X)
    except KeyboardInterrupt as error:
        if getattr(error, "salvaged", False) and sharded:
            _forget(work, source)  # what it ended with is kept
        raise
    known = work._model
    if sharded:
        _forget(work, source)
    return known


def _forget(work: Any, source: Source) -> None:
    """Keep what a model needs of the data, which the cluster is about to release."""
    model = work._model
    if len(source.shape) > 2:
        left = None if model.threshold is None else model._summary
        known = RememberedObservations.of_tensor(model.observations, left, source)
        work._model = model.with_same_fit(observations=known)
        return
    model._row_levels  # noqa: B018, found while the data are there
    data = model.observations
    known = RememberedObservations.of(data, model._summary, source)
    if data.far:
        work._publish(distributed(model, known, data.workers, data))
        return
    work._model = model.with_same_fit(observations=known)
    work._model.__dict__["_row_levels"] = model._row_levels


def too_long(workers: Workers, source: Source, rank: int | None) -> bool:
    """Whether the row factor is to stay on the workers.

    It does if it takes more than the limit that the environment names, or than a share of the
    memory of this machine, or of the worker that has least.

    Parameters
    ----------
    workers : Workers
    source : Source
    rank : int, optional
        The largest one is assumed if it is to be found.
    """
    given = os.environ.get(LIMIT)
    room = SHARE * min(workers.least, available_memory()) if given is None else float(given)
    rows, columns = source.shape
    width = min(LARGEST_RANK if rank is None else rank, rows, columns) + 2
    each = np.dtype(source.dtype).itemsize * width
    if source.size <= GATHER or rows * columns <= CELLS or rows * each <= room >= columns * each:
        return False
    if columns * each > room:
        raise MemoryError(
            f"the column factor ({columns:,} columns) takes {columns * each / 2**30:.3g} GiB, more "
            f"than the {room / 2**30:.3g} GiB that it may take ({LIMIT}); only the row factor can "
            "stay distributed: swap rows and columns if there are more columns than rows"
        )
    return True


def _check_far(work: Any) -> None:
    """Refuse what needs the row factor in one place, before the work begins."""
    if work.checkpoint is not None:
        raise ValueError(
            "a checkpoint would hold the row factor, which is too large and stays distributed; "
            f"leave checkpoint out, or raise {LIMIT} if there is memory for the factor"
        )
    if work._outliers() is not None:
        raise NotImplementedError(
            "outliers cannot be found while the row factor, which is too large, stays "
            f"distributed; raise {LIMIT} if there is memory for the factor, or leave outliers out"
        )


def observations(workers: Workers, source: Source, far: bool = False, gather: str = "") -> Any:
    """Return the entries of a source: on this machine if they are few, otherwise in shards.

    Parameters
    ----------
    workers : Workers
    source : Source
    far : bool
        Whether the row factor is to stay on the workers.
    gather : str
        Why all of them must be on this machine, if they must.
    """
    if not source.size:
        raise ValueError(
            "X has no observed entry: nothing can be learnt from it; check how missing "
            "values are marked (NaN)"
        )
    small = source.size <= GATHER or math.prod(source.shape) <= CELLS
    try:
        if small or gather:
            check_gathering(source.size, source.dtype, len(source.shape), gather)
            return gathered(workers, source)
        return sharded(workers, source, far)
    except DuplicateError as error:
        raise ValueError(_repeated(error, source)) from None


def room_here(entries: int, dtype: Any, modes: int = 2) -> tuple[float, float]:
    """Return the bytes that a fit of entries would take on this machine, and those it has."""
    return COPIES * entries * (8 * modes + np.dtype(dtype).itemsize), available_memory()


def check_gathering(entries: int, dtype: Any, modes: int = 2, why: str = "") -> None:
    """Refuse to gather more than this machine has memory for."""
    needed, left = room_here(entries, dtype, modes)
    if needed > left:
        raise MemoryError(
            f"this fit is not distributed{why and f' ({why})'}, and {entries:,} entries would take "
            f"about {needed / 2**30:.3g} GiB on this machine, which has {left / 2**30:.3g} GiB "
            "left; fit a part of the data"
        )


def _repeated(error: DuplicateError, source: Source) -> str:
    pair = error.place
    if source.names is not None:
        sides = zip(source.names, error.pair, strict=True)
        pair = [f"{side.column} {side.labels[k : k + 1].tolist()[0]!r}" for side, k in sides]
    more = f" ({error.count:,} such lines in this part of the data)" if error.count > 1 else ""
    return f"{', '.join(pair)} is given more than once{more}; average repeated observations first"


# ---- on this machine


def gathered(workers: Workers, source: Source) -> LocalObservations:
    """Return all entries on this machine, in order."""
    i, j, y = source.gathered(workers)
    shape = source.shape
    order = np.argsort(i * math.prod(shape[1:]) + j, kind="stable")
    i, j, y = i[order], j[order], y[order]
    same = np.flatnonzero((i[1:] == i[:-1]) & (j[1:] == j[:-1]))
    if len(same):
        again = same[0]
        where = int(i[again]), *spread_out(int(j[again]), shape[1:])
        raise DuplicateError(len(same), where)
    if len(y) == math.prod(shape) and source.table is not None:
        return LocalObservations(None, y.reshape(shape), shape)
    return LocalObservations((i, *spread_out(j, shape[1:])), y, shape)


# ---- in shards


def sharded(workers: Workers, source: Source, far: bool = False) -> ShardedObservations:
    """Return all entries in shards, each once for every mode: by row and by column."""
    # as many for every worker: all wait for the one that has most
    parts = workers.threads * math.ceil(source.size / (PART * workers.threads))
    shape = source.shape
    limits = tuple(boundaries(counts, parts) for counts in source.counts)
    dense = source.size >= DENSE * math.prod(shape)
    shards: list[list[Any]] = []
    for mode, bounds in enumerate(limits):
        narrow = integers(shape[mode]), integers(math.prod(others_of(shape, mode)))
        shards.append(
            workers.shuffle(
                shards[0] if mode else source.blocks,
                partial(_by_mode, mode=mode, narrow=narrow),
                bounds,
                partial(_assembled, mode, shape, dense),
                PASSES if mode and workers.memory <= ROOM * source.size else 1,
            )
        )
    return ShardedObservations(
        *(workers, tuple(shards), limits, shape, source.size, source.dtype, dense), far=far
    )


def _by_mode(block: Piece | Shard, bounds: Any, mode: int, narrow: Any) -> list[Piece]:
    entries = block.piece(mode) if isinstance(block, Shard) else block
    return pieces(entries, bounds, narrow)


def _assembled(
    mode: int, shape: tuple[int, ...], dense: bool, limits: tuple[int, int], *parts: Piece
) -> Shard:
    return Shard.assembled(mode, limits, shape, dense, *parts)
