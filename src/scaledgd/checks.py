"""Checks of arguments. Errors name the argument and say what to do."""

from __future__ import annotations

import math
import operator
from typing import Any

import array_api_compat as compat
import numpy as np

from .namespaces import array_namespace

Array = Any


def namespace(**arrays: Array) -> Any:
    """Return the array namespace that the named arrays share; they must share a device too."""
    for name, x in arrays.items():
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError(
                f"{name} is a masked array, whose mask would be lost; observe the entries that "
                "are not masked with Entries(numpy.nonzero(~mask), shape)"
            )
        if not compat.is_array_api_obj(x):
            raise TypeError(
                f"{name} must be an array (NumPy, PyTorch, or another library of the array API "
                f"standard), not {type(x).__name__}; convert it first, e.g. with numpy.asarray"
            )
    try:
        xp = compat.array_namespace(*arrays.values())
    except TypeError:
        kinds = ", ".join(f"{k} ({type(x).__module__.split('.')[0]})" for k, x in arrays.items())
        raise TypeError(
            f"{kinds} come from different array libraries; convert them to one of them"
        ) from None
    devices = {name: compat.device(x) for name, x in arrays.items()}
    if len({str(d) for d in devices.values()}) > 1:
        placed = ", ".join(f"{k} on {d}" for k, d in devices.items())
        raise ValueError(f"arrays are on different devices ({placed}); move them to one device")
    return xp


def _usual(first: Array, *others: Array) -> bool:
    """Whether these are real arrays of NumPy in double precision, as in most iterations."""
    usual = type(first) is np.ndarray and first.dtype == np.float64
    return usual and all(type(x) is np.ndarray and x.dtype == np.float64 for x in others)


def floating(**arrays: Array) -> Any:
    """Return the namespace of arrays that must be floating point and of one dtype."""
    if _usual(*arrays.values()):
        return array_namespace(*arrays.values())
    xp = namespace(**arrays)
    for name, x in arrays.items():
        if x.dtype not in (xp.float32, xp.float64, xp.complex64, xp.complex128):
            raise TypeError(
                f"{name} must be real or complex floating point of single or double precision, "
                f"not {x.dtype}; convert it, e.g. to float64"
            )
    if len({str(x.dtype) for x in arrays.values()}) > 1:
        kinds = ", ".join(f"{k} is {x.dtype}" for k, x in arrays.items())
        raise TypeError(f"{kinds}; convert them to one dtype")
    return xp


def finite(name: str, x: Array) -> None:
    xp = compat.array_namespace(x)
    with np.errstate(over="ignore", invalid="ignore"):
        total = xp.sum(x)  # in one pass; the sum may overflow although all numbers are finite
    if not bool(xp.isfinite(total)) and not bool(xp.all(xp.isfinite(x))):
        raise ValueError(
            f"{name} holds NaN or infinite values; leave them out of the observed entries "
            "(Entries) or replace them"
        )


def _extremes(x: Array) -> tuple[int, int]:
    """The smallest and the largest number, in one pass if the library has one for both."""
    xp = compat.array_namespace(x)
    low, high = x.aminmax() if compat.is_torch_array(x) else (xp.min(x), xp.max(x))
    return int(low), int(high)


def index(value: Any, sizes: tuple[int, ...], name: str = "index") -> tuple[Array, ...]:
    """Return coordinates of entries: one array of integers per mode, of one length, in range."""
    if compat.is_array_api_obj(value) or not isinstance(value, (tuple, list)):
        raise TypeError(f"{name} must be a tuple of integer arrays, one per mode")
    if len(value) != len(sizes):
        raise ValueError(
            f"{name} has {len(value)} arrays but shape {sizes} has {len(sizes)} modes; "
            "give one array of coordinates per mode"
        )
    xp = namespace(**{f"{name}[{k}]": i for k, i in enumerate(value)})
    for k, i in enumerate(value):
        if not xp.isdtype(i.dtype, "integral"):
            raise TypeError(f"{name}[{k}] must hold integers, not {i.dtype}")
        if i.ndim != 1 or i.shape[0] != value[0].shape[0]:
            raise ValueError(
                f"the arrays of {name} must be one-dimensional and of one length; their "
                f"shapes are {[tuple(i.shape) for i in value]}"
            )
    checked = tuple(xp.astype(i, xp.int64, copy=False) for i in value)
    for k, (i, n) in enumerate(zip(checked, sizes, strict=True)):
        low, high = _extremes(i) if i.shape[0] else (0, 0)
        if low < 0 or high >= n:
            raise ValueError(
                f"{name}[{k}] runs from {low} to {high} but must lie in 0 .. {n - 1} "
                f"for shape {sizes}"
            )
    return checked


def dimensions(name: str, x: Array, ndim: int) -> None:
    if x.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, not shape {tuple(x.shape)}")
    if 0 in x.shape:
        raise ValueError(
            f"{name} of shape {tuple(x.shape)} is empty; every size must be at least 1"
        )


def shape(name: str, value: Any) -> tuple[int, ...]:
    """Return a tuple of positive integers."""
    try:
        sizes = tuple(operator.index(n) for n in value)
    except TypeError:
        raise TypeError(f"{name} must be a tuple of integers, not {value!r}") from None
    if any(n < 1 for n in sizes):
        raise ValueError(f"{name} must be a tuple of positive integers, not {value!r}")
    if len(sizes) < 2:
        raise ValueError(f"{name} must have 2 modes or more, not {value!r}")
    return sizes


def rank(value: Any, sizes: tuple[int, ...]) -> int:
    """Return a rank that a matrix of this shape can have."""
    if isinstance(value, bool):
        raise TypeError("rank must be an integer, not a bool")
    try:
        r = operator.index(value)
    except TypeError:
        raise TypeError(f"rank must be an integer, not {value!r}") from None
    if not 1 <= r <= min(sizes):
        raise ValueError(
            f"rank must be between 1 and {min(sizes)} for a matrix of shape {sizes}, not {r}"
        )
    return r


def ranks(value: Any, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return multilinear ranks that a tensor can have; an integer stands for all modes."""
    if isinstance(value, bool):
        raise TypeError("ranks must be an integer or a tuple of integers, not a bool")
    try:
        given = (operator.index(value),) * len(sizes)
    except TypeError:
        try:
            given = tuple(operator.index(r) for r in value)
        except TypeError:
            raise TypeError(
                f"ranks must be an integer or a tuple of integers, not {value!r}"
            ) from None
    if len(given) != len(sizes):
        raise ValueError(
            f"ranks {given} has {len(given)} entries, but a tensor of shape {sizes} has "
            f"{len(sizes)} modes; give one rank per mode"
        )
    for k, (r, n) in enumerate(zip(given, sizes, strict=True)):
        if not 1 <= r <= n:
            raise ValueError(f"ranks[{k}] must be between 1 and {n}, the size of the mode, not {r}")
    for k, r in enumerate(given):
        others = math.prod(given) // r
        if r > others:
            raise ValueError(
                f"ranks[{k}] is {r}, more than the product {others} of the other ranks: no "
                f"tensor has ranks {given}; lower it"
            )
    return given


def number(
    name: str, value: Any, *, least: float = -math.inf, most: float = math.inf, open_: bool = False
) -> float:
    """Return a finite number in [least, most], or in (least, most] if `open_`."""
    try:
        if isinstance(value, (str, bytes, bool)):
            raise TypeError
        x = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, not {value!r}") from None
    except OverflowError:
        raise ValueError(f"{name} is too large for double precision") from None
    if not math.isfinite(x) or x > most or x < least or (open_ and x == least):
        low = "" if math.isinf(least) else f" {'above' if open_ else 'at least'} {least:g}"
        high = "" if math.isinf(most) else f" at most {most:g}"
        raise ValueError(
            f"{name} must be a finite number{low}{' and' if low and high else ''}{high}, "
            f"not {value!r}"
        )
    return x


def count(name: str, value: Any, least: int = 0) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        n = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    if n < least:
        raise ValueError(f"{name} must be at least {least}, not {n}")
    return n
