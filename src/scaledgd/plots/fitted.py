"""Read the numbers that displays draw from data and fitted estimators, as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..estimators.local_observations import LocalObservations
from ..estimators.packing import host

__all__ = ["data_cells", "host", "require_fit", "times_of", "training_cells"]


def require_fit(estimator: Any) -> None:
    """Raise NotFittedError if the estimator is not fitted.

    Parameters
    ----------
    estimator : estimator
    """
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)


def training_cells(estimator: Any, all_seen: bool = False) -> Any:
    """Return the cells to which an estimator was fitted.

    Parameters
    ----------
    estimator : fitted estimator
    all_seen : bool
        Add the cells that were held out for calibration.

    Returns
    -------
    LocalObservations
    """
    require_fit(estimator)
    model: Any = getattr(estimator, "_model", None)
    if not hasattr(model, "observations"):
        raise TypeError(
            f"{type(estimator).__name__} was not fitted to the cells of a table or a tensor"
        )
    cells, held = model.observations, model.held
    if held is None or not all_seen:
        return cells
    pairs = zip(cells.coordinates, held.coordinates, strict=True)
    index = tuple(np.concatenate([host(i), host(j)]) for i, j in pairs)
    values = np.concatenate([host(cells.flat), host(held.flat)])
    return LocalObservations(index, values, cells.shape)


def times_of(estimator: Any, mode: int) -> Any:
    """Return the times that label the rows or columns of a table, or None.

    Parameters
    ----------
    estimator : fitted estimator
    mode : int

    Returns
    -------
    datetime64 array of shape (n,), or None
        In local time, if they have a time zone.
    """
    labels = getattr(getattr(estimator, "_kind", None), "labels", None)
    if labels is None:
        return None
    if labels.kind == "xarray":
        dims, found = labels.coords.get(labels.names[mode], ((), None))
        found = found if dims == (labels.names[mode],) else None
    else:
        found = (labels.exact or (None, None))[mode]
        if found is None and mode == 0:
            found = labels.coords.get("index", (None, None))[1]
    if getattr(found, "tz", None) is not None:
        found = found.tz_localize(None)
    values = np.asarray(found)
    known = values.dtype.kind == "M" and values.shape == (estimator.factors_.shape[mode],)
    return values if known else None


def data_cells(X: Any, observed: Any = None) -> Any:
    """Return the observed cells of data.

    Parameters
    ----------
    X : array, masked array, frame, torch tensor or sparse matrix
        NaN is missing; of a sparse matrix, the stored entries are observed.
    observed : boolean array of the shape of X, optional

    Returns
    -------
    LocalObservations
    """
    from scipy import sparse

    from ..estimators.reading import read_tensor

    return _stored(X) if sparse.issparse(X) else read_tensor(X, observed)[0]


def _stored(X: Any) -> Any:
    """Return the cells that a sparse matrix stores."""
    entries = X.tocoo()
    return LocalObservations((entries.row, entries.col), entries.data, tuple(X.shape))
