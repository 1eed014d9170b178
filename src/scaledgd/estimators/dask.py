"""Checks for Dask collections that do not import Dask."""

from __future__ import annotations

import sys
from typing import Any


def is_array(x: Any) -> bool:
    """Whether x is a Dask array."""
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(x, module.Array)


def is_frame(x: Any) -> bool:
    """Whether x is a Dask frame."""
    module = sys.modules.get("dask.dataframe")
    return module is not None and isinstance(x, module.DataFrame)


def is_series(x: Any) -> bool:
    """Whether x is a column of a Dask frame."""
    module = sys.modules.get("dask.dataframe")
    return module is not None and isinstance(x, module.Series)


def any_dask(*values: Any) -> bool:
    """Whether one of some values, or of tuples of them, is a Dask collection."""
    if "dask" not in sys.modules:
        return False
    parts = [p for x in values for p in (x if isinstance(x, tuple | list) else (x,))]
    return any(is_array(p) or is_frame(p) or is_series(p) for p in parts)


def as_array(x: Any) -> Any:
    """Return a table as a Dask array."""
    if is_array(x):
        return x
    import dask.array as da

    return da.asarray(x)


def refuse_weights(*weights: Any) -> None:
    """Refuse weights of entries that are in Dask collections."""
    if any(w is not None for w in weights):
        raise NotImplementedError(
            "weights of entries are not supported for Dask collections yet; leave them out, or "
            "give X.compute()"
        )
