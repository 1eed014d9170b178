"""The few hot loops over observed entries, with one module per kind of array.

A backend evaluates factored objects on entries (`gather`), sums per-entry values (`scatter`),
finds order statistics, and prepares observed entries (`pattern`, `grid`) for products and row
systems. `backend` picks one for given arrays; nothing else depends on the kind of array.

`generic` is the reference, in array-API calls; `scipy` and `torch` use those libraries; `cpp` has
compiled loops for real NumPy arrays, and `gpu` loops in Triton for CUDA tensors. A new backend is
one subclass of `Generic` and one line below.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from array_api_compat import is_torch_array

from .design import (
    Cleaning,
    Conditionals,
    Contracted,
    Design,
    Index,
    Products,
    Rows,
    RowSolution,
    RowSystem,
    RowUpdate,
    Sums,
    UnsureRows,
    WholeRows,
    WholeUpdate,
)
from .entries import JITTER, Grid, Pattern, RowSystems, numbered

Array = Any

__all__ = [
    "JITTER",
    "Backend",
    "Cleaning",
    "Conditionals",
    "Contracted",
    "Design",
    "Grid",
    "Index",
    "Pattern",
    "Products",
    "RowSolution",
    "RowSystem",
    "RowSystems",
    "RowUpdate",
    "Rows",
    "Sums",
    "UnsureRows",
    "WholeRows",
    "WholeUpdate",
    "backend",
    "numbered",
]


class Backend(Protocol):
    """The interface of a backend; `Generic` documents its methods."""

    name: str

    def pattern(self, index: Index, shape: tuple[int, ...]) -> Pattern: ...
    def grid(self, shape: tuple[int, ...]) -> Grid: ...
    def chunks(self, like: Array, width: int, target: int = 0) -> Iterator[slice]: ...
    def gather(
        self,
        modes: tuple[Array, ...],
        index: Index,
        core: Array | None = None,
        y: Array | None = None,
    ) -> Array: ...
    def dense_residual(self, L: Array, R: Array, Y: Array) -> Array: ...
    def turned(self, C: Array, M: Array) -> Array: ...
    def conditionals(
        self,
        Z: Array,
        covariance: Array,
        precision: Array,
        *,
        total: bool = False,
        variances: bool = False,
        others: bool = False,
    ) -> Conditionals: ...
    def scatter(self, rows: Array, values: Array, n: int) -> Array: ...
    def sums(self, rows: Array, values: Array | None, n: int, like: Array) -> Array: ...
    def kth_largest(self, x: Array, k: int, axis: int) -> Array: ...
    def kth_magnitude(self, x: Array, k: int) -> Array: ...
    def median_magnitude(self, x: Array) -> Array: ...
    def within(self, x: Array, threshold: Any) -> tuple[Array, Array, Array, Array]: ...
    def kept_squares(self, x: Array, kept: Array) -> Array: ...
    def distinct(self, index: Index, shape: tuple[int, ...]) -> bool: ...
    def labels(self, index: Index, shape: tuple[int, ...]) -> list[Array]: ...
    def parts(self, index: Index, shape: tuple[int, ...]) -> int: ...
    def present(self, x: Array, observed: Array | None) -> tuple[Any, Any, bool]: ...


BACKENDS = {
    "generic": ("generic", "Generic"),
    "scipy": ("scipy", "SciPy"),
    "torch": ("torch", "Torch"),
    "cpp": ("cpp", "Cpp"),
    "gpu": ("gpu.backend", "Gpu"),
}
"""Modules and classes by name; a module is imported when it is first needed."""


@functools.cache
def _loaded(name: str) -> Backend:
    module, kind = BACKENDS[name]
    made: Backend = getattr(importlib.import_module(f".{module}", __name__), kind)()
    return made


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def on_gpu(x: Array) -> bool:
    """Return whether a tensor is on a GPU; tests in Triton's interpreter treat all as such.

    Parameters
    ----------
    x : torch tensor

    Returns
    -------
    bool
    """
    return bool(x.is_cuda)


def backend(*arrays: Array | None) -> Backend:
    """Pick the backend for arrays of one library; None is ignored.

    Parameters
    ----------
    *arrays : array or None
        All arguments of a kernel: values, factors, or integer coordinates.

    Returns
    -------
    Backend

    Examples
    --------
    >>> import numpy as np
    >>> from scaledgd.kernels import backend
    >>> float(backend(np.ones(3)).kth_magnitude(np.asarray([1.0, -3.0, 2.0]), 1))
    3.0
    """
    given = [x for x in arrays if x is not None]
    if all(isinstance(x, np.ndarray) for x in given):
        from . import cpp

        return _loaded("cpp" if cpp.suits(*given) else "scipy")
    if not is_torch_array(given[0]):
        # numbers that are elsewhere bring their own
        own: Backend | None = getattr(given[0], "backend", None)
        return _loaded("generic") if own is None else own
    return _loaded("gpu" if on_gpu(given[0]) and _has_triton() else "torch")
