"""Read the input of users: arrays with NaN, masked arrays, frames, sparse matrices, tensors."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array
from scipy import sparse
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    check_array,
    validate_data,
)

from .. import checks
from ..kernels import backend
from .labels import Labels, dressed, features, stripped
from .local_observations import LocalObservations
from .magnitudes import largest_size
from .packing import packable
from .stamps import stamps_of

Array = Any

DENSE_LIMIT = 50_000_000
"""Largest number of cells of a sparse table that is returned as a dense one."""
ROOM = 1e-6
"""Largest number that is accepted, as a share of the largest number of its precision."""
LINE = 400
"""Fewest bytes that a fit takes for a row or column."""
CUDA = (2, 13)
"""DLPack numbers of the device types that are NVIDIA GPUs."""
COPIES = 3
"""Copies of a dense result that exist while it is computed."""


@packable
@dataclass(frozen=True, eq=False)
class Kind:
    """The form of the data, in which results are returned.

    Attributes
    ----------
    how : {"numpy", "sparse", "torch"}
    dtype : dtype of the library
    labels : Labels, optional
    dense : bool
        Whether the data were a dense array, so that a dense result is expected.
    """

    how: str
    dtype: Any
    labels: Labels | None = None
    dense: bool = True

    def given_back(self, values: Array) -> Array:
        """Return values in the dtype of the data."""
        if values.dtype == self.dtype:
            return values
        return array_namespace(values).astype(values, self.dtype, copy=False)

    def table_back(self, values: Array) -> Any:
        """Return a table in the dtype of the data, with their labels."""
        return dressed(self.given_back(values), self.labels)


def taken_in(x: Any) -> Any:
    """Return a GPU array of another library as a torch tensor, and everything else unchanged.

    It goes through DLPack, so nothing is copied.
    """
    if isinstance(x, np.ndarray) or is_torch_array(x) or not hasattr(x, "__dlpack_device__"):
        return x
    if int(x.__dlpack_device__()[0]) not in CUDA:
        return x
    try:
        import torch.utils.dlpack
    except ImportError:
        raise ImportError(
            f"{type(x).__module__} arrays on a GPU are fitted by PyTorch: pip install torch, or "
            "copy them to the host"
        ) from None
    return torch.utils.dlpack.from_dlpack(x)


def read_matrix(
    estimator: Any, X: Any, observed: Any, reset: bool
) -> tuple[LocalObservations, Kind]:
    """Return the observed entries of a table, and the kind of the table.

    Parameters
    ----------
    estimator : estimator
        Its number and names of features are checked, or set if `reset`.
    X : table
    observed : boolean array of the shape of X, optional
    reset : bool
    """
    if isinstance(X, str | os.PathLike):
        raise TypeError(
            f"X must be a table, not the name of a file; read {str(X)!r} first, for example with "
            "pandas.read_csv"
        )
    X, observed = taken_in(X), taken_in(observed)
    if is_torch_array(X):
        X = X.detach()
        _features(estimator, X, reset)
        return _torch_entries(X, observed, 2), Kind("torch", _floating(X))
    if sparse.issparse(X):
        return _sparse(estimator, X, observed, reset)
    given = X
    X, observed = _unmasked(X, observed)
    with converting("X"):
        X, labels = stripped(X)
    refuse_dates("X", X)
    if isinstance(X, np.ndarray) and X.dtype.kind == "f" and X.dtype.itemsize == 4:
        X = X.astype(np.float32, copy=False)  # single precision in another byte order, too
    rules: dict[str, Any] = {
        "dtype": [np.float64, np.float32],
        "ensure_all_finite": "allow-nan" if observed is None else False,
        "accept_sparse": False,
    }
    with converting("X"):
        if labels is not None and labels.kind != "xarray":
            _features(estimator, features(given, labels), reset)
            values = check_array(X, **rules)
        else:
            values = validate_data(estimator, X, reset=reset, **rules)
    data = replace(_dense(values, observed), stamps=stamps_of(labels, values.shape))
    return data, Kind("numpy", values.dtype, labels)


def read_tensor(X: Any, observed: Any) -> tuple[LocalObservations, Kind]:
    """Return the observed entries of a tensor of any order, and its kind."""
    if sparse.issparse(X):
        raise TypeError(
            "a sparse matrix is not a tensor; give its entries with fit_entries(index, values, "
            "shape)"
        )
    X, observed = taken_in(X), taken_in(observed)
    if is_torch_array(X):
        X = X.detach()
        return _torch_entries(X, observed, None), Kind("torch", _floating(X))
    X, observed = _unmasked(X, observed)
    with converting("X"):
        X, labels = stripped(X)
    values = numeric("X", X)
    if values.ndim < 2:
        raise ValueError(f"X must have 2 dimensions or more, not shape {values.shape}")
    if 0 in values.shape:
        raise ValueError(f"X of shape {values.shape} is empty; every size must be at least 1")
    data = replace(_dense(values, observed), stamps=stamps_of(labels, values.shape))
    return data, Kind("numpy", values.dtype, labels)


def _floating(X: Any) -> Any:
    """The dtype of results: single precision stays, anything else becomes double."""
    xp = array_namespace(X)
    return X.dtype if X.dtype == xp.float32 else xp.float64


class TooLargeError(ValueError):
    """A number is too large to compute with."""


@contextlib.contextmanager
def converting(name: str) -> Iterator[None]:
    """Raise an error that says what to do about an integer that is too large."""
    try:
        yield
    except OverflowError:
        raise TooLargeError(
            f"{name} holds an integer that is too large for double precision; divide "
            f"{name} by a constant, or mark the entry as missing"
        ) from None


def refuse_dates(name: str, X: Any) -> None:
    """Refuse dates and durations, which are numbers only once a unit is chosen."""
    kind = getattr(getattr(X, "dtype", None), "kind", None)
    if kind is not None and kind in "Mm":
        what, unit = ("dates", f"({name} - origin)") if kind == "M" else ("durations", name)
        raise TypeError(
            f"{name} holds {what} ({X.dtype}), not numbers; convert them, e.g. to days with "
            f'{unit} / numpy.timedelta64(1, "D")'
        )


def sized(name: str, y: Array) -> Array:
    """Refuse finite numbers that are too large to compute with; return the others."""
    xp = array_namespace(y)
    most = float(xp.finfo(y.dtype).max) * ROOM
    if largest_size(y) > most:
        raise TooLargeError(
            f"{name} holds numbers beyond {most:.3g}, whose sums are not finite in {y.dtype}; "
            f"divide {name} by a constant"
        )
    return y


def numeric(name: str, X: Any) -> Any:
    """Return an array of double or single precision."""
    if isinstance(X, np.ma.MaskedArray):
        raise ValueError(
            f"{name} is a masked array, whose mask would be lost; leave out the masked entries"
        )
    try:
        values = np.asarray(X)
    except ValueError as error:
        raise ValueError(f"{name} is ragged: {error}; make all rows the same length") from None
    if values.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} must be real")
    refuse_dates(name, values)
    if values.dtype.kind not in "fiub":
        try:
            with converting(name):
                values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            why = f"must be numbers, not {values.dtype}; convert or drop what is not"
            raise ValueError(
                str(error) if isinstance(error, TooLargeError) else f"{name} {why}"
            ) from None
    single = values.dtype.kind == "f" and values.dtype.itemsize == 4
    return np.ascontiguousarray(values, dtype=np.float32 if single else np.float64)


def _unmasked(X: Any, observed: Any) -> tuple[Any, Any]:
    """Split a masked array into an array and a mask of the observed entries."""
    if not isinstance(X, np.ma.MaskedArray):
        return X, observed
    if observed is not None:
        raise ValueError("X is a masked array, which says what is observed; leave observed out")
    return X.data, ~np.ma.getmaskarray(X)


def _observed(observed: Any, shape: tuple[int, ...]) -> Any:
    observed = np.asarray(observed)
    if observed.dtype.kind != "b":
        raise TypeError(
            f"observed must be boolean, True where a cell is observed, not {observed.dtype}"
        )
    if observed.shape != shape:
        raise ValueError(f"observed must have the shape of X, {shape}, not {observed.shape}")
    return observed


def _dense(values: Any, observed: Any) -> LocalObservations:
    if observed is not None:
        observed = _observed(observed, values.shape)
    index, found, strange = backend(values).present(values, observed)
    if strange and observed is not None:
        raise ValueError(
            "X holds NaN or infinity where observed is True; set observed to False there"
        )
    if strange:
        raise ValueError("X contains infinity; replace it, or mark it as missing with NaN")
    if index is None:
        return LocalObservations(None, sized("X", np.ascontiguousarray(values)), values.shape)
    return LocalObservations(index, sized("X", found), values.shape)


def sparse_entries(X: Any, observed: Any) -> tuple[LocalObservations, Kind]:
    """Return the stored entries of a sparse matrix, and its kind."""
    if observed is not None:
        raise ValueError(
            "X is sparse, and its stored entries are the observed ones; leave observed out"
        )
    coordinates = sparse.coo_array(X)
    i, j = (c.astype(np.int64) for c in coordinates.coords)
    values = coordinates.data
    if not backend(i, j).distinct((i, j), tuple(X.shape)):
        raise ValueError(
            "X stores some entry more than once; call X.sum_duplicates(), or average them"
        )
    keep = np.float32 if values.dtype == np.float32 else np.float64
    data = LocalObservations((i, j), values.astype(keep), tuple(X.shape))
    return data, Kind("sparse", np.dtype(keep), None, False)


def _sparse(estimator: Any, X: Any, observed: Any, reset: bool) -> tuple[LocalObservations, Kind]:
    data, kind = sparse_entries(X, observed)
    validate_data(
        estimator,
        sparse.csr_array(X),
        reset=reset,
        accept_sparse=True,
        dtype=[np.float64, np.float32],
    )
    sized("X", data.y)
    return data, kind


def _torch_entries(X: Any, observed: Any, ndim: int | None) -> LocalObservations:
    xp = array_namespace(X)
    if ndim is not None and X.ndim != ndim:
        raise ValueError(f"Expected 2D array, got {X.ndim}D tensor instead; X must be a table")
    if X.ndim < 2 or 0 in X.shape:
        raise ValueError(f"X of shape {tuple(X.shape)} must have 2 dimensions or more, none empty")
    if xp.isdtype(X.dtype, "complex floating"):
        raise ValueError("Complex data not supported: X must be real")
    X = xp.astype(X, _floating(X))
    seen = ~xp.isnan(X)
    if observed is not None:
        seen = xp.asarray(observed, device=device(X))
        if not xp.isdtype(seen.dtype, "bool") or tuple(seen.shape) != tuple(X.shape):
            raise ValueError(f"observed must be boolean and have the shape of X, {tuple(X.shape)}")
    if bool(xp.any(seen & ~xp.isfinite(X))):
        raise ValueError("X holds infinity, or NaN where observed is True; mark it as missing")
    if bool(xp.all(seen)):
        return LocalObservations(None, sized("X", X), tuple(X.shape))
    return LocalObservations(tuple(xp.nonzero(seen)), sized("X", X[seen]), tuple(X.shape))


def _features(estimator: Any, X: Any, reset: bool) -> None:
    _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, X, reset=reset)


def read_entries(index: Any, values: Any, shape: Any) -> tuple[LocalObservations, Kind]:
    """Return entries given as coordinates and values, and their kind."""
    shape, values = checks.shape("shape", shape), taken_in(values)
    if isinstance(index, (tuple, list)):
        index = tuple(map(taken_in, index))
    if is_torch_array(values):
        values = values.detach()
        xp = array_namespace(values)
        kind = Kind("torch", _floating(values), None, False)
        if values.is_pinned():  # which asks for a fit on a GPU
            y = xp.empty(values.shape, dtype=kind.dtype, pin_memory=True)
            y.copy_(values)
        else:
            y = xp.astype(values, kind.dtype)
    else:
        given = numeric("values", values)
        kind, y = Kind("sparse", given.dtype, None, False), given.copy()
        if isinstance(index, (tuple, list)):
            # every pass over columns of one array would copy them
            index = tuple(np.ascontiguousarray(i) if np.ndim(i) == 1 else i for i in index)
    index = checks.index(index, shape)
    if y.ndim != 1 or y.shape[0] != index[0].shape[0]:
        raise ValueError(
            f"values must be one-dimensional with {index[0].shape[0]} entries, as many as index "
            f"has, not of shape {tuple(y.shape)}"
        )
    checks.finite("values", y)
    sized("values", y)
    check_factors(shape, y.shape[0])
    return LocalObservations(index, y, shape), kind


def weighted(data: LocalObservations, entry: Any, sample: Any, dense: bool) -> LocalObservations:
    """Return entries with weights: one per entry, one per slice of mode 0, or their product."""
    if entry is None and sample is None:
        return data
    xp = array_namespace(data.y)
    weight = xp.ones_like(data.y)
    if entry is not None:
        weight = weight * _entry_weight(data, entry, dense)
    if sample is not None:
        sample = _weights("sample_weight", sample, data)
        if tuple(sample.shape) != data.shape[:1]:
            raise ValueError(
                f"sample_weight.shape == {tuple(sample.shape)}, expected {data.shape[:1]}: one "
                "weight per row"
            )
        weight = weight * data.along(0, sample)
    whole = LocalObservations(data.index, data.y, data.shape, weight, data.stamps)
    if bool(xp.any(weight == 0)):
        # entries of weight 0 count as missing
        whole = whole.some(xp.nonzero(xp.reshape(weight, (-1,)) > 0)[0])
    if not whole.size:
        raise ValueError("all weights are zero: nothing can be fitted")
    kept: Any = whole.weight
    if bool(xp.all(kept == xp.reshape(kept, (-1,))[0])):
        return replace(whole, weight=None)
    return replace(whole, weight=kept / float(xp.mean(kept)))


def _entry_weight(data: LocalObservations, entry: Any, dense: bool) -> Any:
    if sparse.issparse(entry):
        given: Any = entry
        rows: Any = given.tocsr()
        entry = rows.toarray() if data.index is None else np.asarray(rows[data.index]).ravel()
    entry = _weights("entry_weight", entry, data, allow_nan=dense)
    if tuple(entry.shape) == tuple(data.y.shape):
        weight = entry
    elif tuple(entry.shape) == data.shape and data.index is not None:
        weight = entry[data.index]
    else:
        raise ValueError(
            f"entry_weight must have the shape of X, {data.shape}, not {tuple(entry.shape)}"
        )
    if bool((weight != weight).any()):
        raise ValueError("entry_weight is NaN at an observed entry")
    return weight


def _weights(name: str, w: Any, data: LocalObservations, allow_nan: bool = False) -> Any:
    xp = array_namespace(data.y)
    if is_torch_array(data.y):
        w = xp.asarray(w, dtype=data.y.dtype, device=device(data.y))
    else:
        w = numeric(name, w).astype(data.y.dtype)
    bad = ~xp.isfinite(w)
    if allow_nan:
        bad = xp.isinf(w)
    if bool(xp.any(bad)):
        raise ValueError(f"{name} must be finite; it holds NaN or infinity")
    if bool(xp.any(w < 0)):
        raise ValueError(f"{name} must not be negative")
    return w


def check_memory(shape: tuple[int, ...], what: str, dense: bool) -> None:
    """Refuse a result that would not fit into memory, or is large although the data were sparse."""
    cells, left = math.prod(shape), available_memory()
    if (cells > DENSE_LIMIT and not dense) or 8 * COPIES * cells > left:
        raise MemoryError(
            f"{what} of shape {shape} would be {cells * 8 / 2**30:.3g} GiB dense, and making it "
            f"takes {COPIES} times that (there are {left / 2**30:.3g} GiB); use "
            "predict_entries(index) for the entries you need"
        )


def check_factors(shape: tuple[int, ...], entries: int) -> None:
    """Refuse a shape whose factors would not fit into memory, however few entries it has."""
    lines, left = sum(shape), available_memory()
    if LINE * lines > left:
        raise MemoryError(
            f"shape {shape} has {lines:,} rows, columns or slices, and {entries:,} entries; a fit "
            f"takes about {LINE * lines / 2**30:.3g} GiB for them (there are "
            f"{left / 2**30:.3g} GiB); number only those that have an entry, e.g. with "
            "numpy.unique(index[0], return_inverse=True)"
        )


def available_memory() -> float:
    """Return the free memory in bytes; infinity if the system does not say."""
    if sys.platform == "win32":
        return math.inf
    try:
        with open("/proc/meminfo") as f:
            for line in f:
                if line.startswith("MemAvailable"):
                    return 1024.0 * int(line.split()[1])
    except OSError:
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf
