"""Checks of models that were read from untrusted files."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ..files import FileError
from ..kernels import backend
from .labels import Labels
from .local_observations import LocalObservations

Array = Any


def must(so: bool, what: str) -> None:
    """Raise a FileError unless a condition holds."""
    if not so:
        raise FileError(f"{what} is wrong")


def number(x: Any, least: float = -math.inf) -> float:
    """Require a finite number, and return it."""
    must(isinstance(x, (int, float)) and math.isfinite(x) and x >= least, "a number")
    return float(x)


def shaped(
    x: Any, shape: tuple[Any, ...], optional: bool = False, least: float = -math.inf
) -> None:
    """Require an array of finite floating-point numbers of a shape."""
    if optional and x is None:
        return
    must(hasattr(x, "shape") and tuple(x.shape) == tuple(shape), f"an array of shape {shape}")
    xp = array_namespace(x)
    must(x.dtype in (xp.float64, xp.float32), "an array of numbers")
    must(bool(xp.all(xp.isfinite(x))), "an array that holds NaN or infinity")
    must(bool(xp.all(x >= least)), "an array with values that are too small")


def levels(x: Any, n: int) -> None:
    """Require the constants of n slices, NaN for those that have none, or None."""
    if x is not None:
        must(hasattr(x, "shape") and tuple(x.shape) == (n,), "the levels")
        some = x[~array_namespace(x).isnan(x)]
        shaped(some, tuple(some.shape))


def factors(F: Any, kind: type[Any], shape: tuple[int, ...]) -> None:
    """Require factors of a kind and a shape."""
    must(isinstance(F, kind) and tuple(F.shape) == tuple(shape), f"factors of shape {shape}")
    for B in F.blocks:
        shaped(B, B.shape)


def observations(data: Any, dimensions: int | None = None) -> None:
    """Require observations with distinct coordinates inside their shape."""
    if type(data).__name__ == "RememberedObservations":
        must(len(data.shape) > 1 and all(isinstance(n, int) and n > 0 for n in data.shape), "data")
        must(dimensions is None or len(data.shape) == dimensions, "the shape of the data")
        data.validate()
        return
    must(isinstance(data, LocalObservations) and isinstance(data.shape, tuple), "the data")
    must(dimensions is None or len(data.shape) == dimensions, "the shape of the data")
    must(all(isinstance(n, int) and n > 0 for n in data.shape), "the shape of the data")
    if data.index is None:
        shaped(data.y, data.shape)
    else:
        xp = array_namespace(data.y)
        must(len(data.index) == len(data.shape), "an index")
        must(len(data.y.shape) == 1, "the data")
        shaped(data.y, (data.size,))
        for i, n in zip(data.index, data.shape, strict=True):
            must(tuple(i.shape) == (data.size,), "an index")
            must(i.dtype == xp.int64, "an index")
            must(not data.size or (int(xp.min(i)) >= 0 and int(xp.max(i)) < n), "an index")
        must(
            backend(*data.index).distinct(data.index, data.shape),
            "an index that names an entry twice",
        )
    shaped(data.weight, tuple(data.y.shape), optional=True, least=0)
    must(isinstance(data.stamps, tuple), "the times")
    must(len(data.stamps) in (0, len(data.shape)), "the times")
    for stamps, n in zip(data.stamps, data.shape, strict=False):
        known = isinstance(stamps, np.ndarray) and stamps.dtype == np.int64
        must(stamps is None or (known and stamps.shape == (n,)), "the times")


def trail(steps: Any) -> None:
    """Require a list of records."""
    must(isinstance(steps, list) and all(isinstance(s, dict) for s in steps), "the rank path")


def labels(found: Any, shape: tuple[int, ...]) -> None:
    """Require labels that fit a table of a shape."""
    must(isinstance(found, Labels), "the labels")
    must(found.kind in ("pandas", "polars", "xarray"), "the kind of labels")
    must(isinstance(found.names, tuple) and isinstance(found.dtypes, tuple), "the labels")
    frame = found.kind != "xarray"
    must(len(found.names) == (shape[1] if frame else len(shape)), "the labels")
    must(len(found.dtypes) == (shape[1] if frame else 1), "the labels")
    must(all(isinstance(d, str) for d in found.dtypes), "the labels")
    must(all(isinstance(n, (str, int, type(None))) for n in found.names), "the labels")
    must(isinstance(found.coords, dict) and isinstance(found.attrs, dict), "the labels")
    for dims, values in found.coords.values():
        must(isinstance(dims, tuple) and isinstance(values, np.ndarray), "the labels")
        must(values.ndim == len(dims), "the labels")
        must(frame or set(dims) <= set(found.names), "the labels")
