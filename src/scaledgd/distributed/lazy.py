"""Answers about Dask collections, computed lazily, where the collections are."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from ..estimators.dask import is_array, is_frame
from ..estimators.local_observations import LocalObservations
from ..estimators.matrix_model import MatrixModel
from ..factors import LowRank
from .far import FarModel, Near, by_parts, is_far
from .labelling import Names
from .remembered import RememberedObservations, remembered_here

Array = Any


def light(estimator: Any) -> Any:
    """Return a copy of a fitted estimator without the data of the fit, to be sent to workers."""
    known = estimator._model
    if isinstance(known, FarModel):
        other = copy.copy(estimator)
        other._model, other.n_jobs = known.near(), 1
        other.factors_ = LowRank(np.zeros((1, 1)), known.right[:, :1])  # it is fitted
        for name in ("feature_names_in_", "_names", "row_offset_"):
            other.__dict__.pop(name, None)
        return other
    if type(known) is not MatrixModel:
        return estimator  # what is estimated depends on the data of the fit
    data: Any = known.observations
    if isinstance(data, LocalObservations):
        known._row_levels  # noqa: B018, found while the data are there
        data = remembered_here(data)
    elif isinstance(data, RememberedObservations):
        data = data.without_source()
    other = copy.copy(estimator)
    other._model = known.with_same_fit(observations=data, held=None)
    if "_row_levels" in known.__dict__:
        other._model.__dict__["_row_levels"] = known.__dict__["_row_levels"]
    other.n_jobs = 1
    other.__dict__.pop("feature_names_in_", None)  # chunks have no names
    return other


def transformed(estimator: Any, X: Any, observed: Any) -> Any:
    """Return ``transform`` of a Dask array, lazily, in its chunks.

    Parameters
    ----------
    estimator : fitted estimator
    X : dask array of shape (n, n2)
    observed : boolean dask array of shape (n, n2), optional
    """
    import dask.array as da
    from dask import delayed

    if is_frame(X):
        raise TypeError(
            "transform fills a table, X.to_dask_array(); for a frame of entries use "
            "predict_entries(X[[row, column]])"
        )
    shape = estimator.factors_.shape
    if X.ndim != len(shape) or tuple(X.shape[1:]) != tuple(shape[1:]):
        raise ValueError(f"X has shape {X.shape}, but the model was fitted to {tuple(shape)}")
    if estimator._model.in_time == 0 and X.numblocks[0] > 1:
        raise NotImplementedError(
            "the model relates rows to those before and after, so chunks of rows cannot be "
            'transformed one by one; fit with smooth="none", or transform X.compute()'
        )
    single = X.dtype == np.float32
    dtype = np.dtype(np.float32 if single else np.float64)
    model = delayed(light(estimator), traverse=False)
    others = range(1, X.ndim)
    whole = X.rechunk(dict.fromkeys(others, -1))  # a row is solved as a whole
    arrays = [whole]
    if observed is not None:
        arrays.append(da.asarray(observed).rechunk(whole.chunks))
    meta = np.empty((0,) * X.ndim, dtype=dtype)
    filled = da.map_blocks(_transform, *arrays, model=model, dtype=dtype, meta=meta)
    return filled.rechunk({k: X.chunks[k] for k in others})


def _transform(X: Array, observed: Array | None = None, *, model: Any) -> Array:
    if not len(X):
        return np.asarray(X)
    return np.asarray(model.transform(np.asarray(X), observed=observed))


def predicted(estimator: Any, index: Any, return_std: bool) -> Any:
    """Return ``predict_entries`` of Dask collections, lazily, in their chunks.

    Parameters
    ----------
    estimator : fitted estimator
    index : tuple of dask arrays, or a Dask frame with the labels of rows and columns
    return_std : bool
    """
    import dask.array as da
    from dask import delayed

    if return_std:
        raise NotImplementedError(
            "standard errors cannot be computed lazily yet; give NumPy coordinates, a part at a "
            "time"
        )
    dtype = np.dtype(estimator._kind.dtype)
    if is_far(estimator):
        return _by_parts(estimator, index, dtype)
    if is_frame(index):
        names = names_of(estimator)
        _columns(index, names)
        model = delayed(light(estimator), traverse=False)
        return index.map_partitions(_predict_labels, model, meta=(None, dtype))
    if not all(map(is_array, index)):
        from .sources import aligned

        index = aligned(tuple(index))
    model = delayed(light(estimator), traverse=False)
    meta = np.empty(0, dtype=dtype)
    return da.map_blocks(_predict, *index, model=model, dtype=dtype, meta=meta)


def _by_parts(estimator: Any, index: Any, dtype: Any) -> Any:
    """`predicted` for a distributed row factor: every part estimates its own entries."""
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd
    from dask import delayed

    table, near = estimator._model.rows, Near.of(estimator)
    if is_frame(index):
        names = names_of(estimator)
        columns = _columns(index, names)
        parts = index[columns].to_delayed()
        lookup = delayed(names, traverse=False)
        pairs = [delayed(_known, nout=2)(part, lookup, columns) for part in parts]
        values = by_parts(table, near, [(pair[0], pair[1]) for pair in pairs])
        series = [delayed(_series)(v, part) for v, part in zip(values, parts, strict=True)]
        meta = pd.Series(np.empty(0, dtype=dtype))
        return dd.from_delayed(series, meta=meta, divisions=index.divisions, verify_meta=False)
    if not all(map(is_array, index)):
        from .sources import aligned

        index = aligned(tuple(index))
    first, second = index
    if first.chunks != second.chunks and not np.isnan([*first.shape, *second.shape]).any():
        second = second.rechunk(first.chunks)
    pairs = list(zip(*(x.to_delayed().ravel() for x in (first, second)), strict=True))
    values = by_parts(table, near, pairs)
    made = [
        da.from_delayed(v, (n,), dtype=dtype) for v, n in zip(values, first.chunks[0], strict=True)
    ]
    return da.concatenate(made, allow_unknown_chunksizes=True)


def _known(frame: Any, names: tuple[Names, Names], columns: list[Any]) -> tuple[Array, Array]:
    i, j = (name.known(frame[c]) for name, c in zip(names, columns, strict=True))
    return i, j


def _series(values: Array, frame: Any) -> Any:
    import pandas as pd

    return pd.Series(values, index=frame.index)


def _predict(*index: Array, model: Any) -> Array:
    if not len(index[0]):
        return np.zeros(0, dtype=model._kind.dtype)
    return np.asarray(model.predict_entries(tuple(index)))


def _predict_labels(frame: Any, model: Any) -> Any:
    import pandas as pd

    index = numbers(model, frame)
    values = _predict(*index, model=model)
    return pd.Series(values, index=frame.index)


def numbers(estimator: Any, frame: Any) -> tuple[Array, Array]:
    """Return the coordinates of the labels in a pandas frame."""
    names = names_of(estimator)
    columns = _columns(frame, names)
    return tuple(name.known(frame[c]) for name, c in zip(names, columns, strict=True))


def names_of(estimator: Any) -> tuple[Names, Names]:
    """Return the labels of rows and columns that a model was fitted with."""
    names = getattr(estimator, "_names", None)
    if names is None:
        raise TypeError(
            "index is a frame of labels, but the model was not fitted to one; give a tuple of "
            "integer arrays"
        )
    found: tuple[Names, Names] = names
    return found


def _columns(frame: Any, names: tuple[Names, Names]) -> list[Any]:
    """The columns with the labels of rows and columns: named as in the fit, or the first two."""
    there = {str(c): c for c in frame.columns}
    wanted = [name.column for name in names]
    if all(name in there for name in wanted):
        return [there[name] for name in wanted]
    if len(there) < 2:
        raise ValueError(f"index must have the columns {wanted[0]!r} and {wanted[1]!r}")
    return list(frame.columns[:2])
