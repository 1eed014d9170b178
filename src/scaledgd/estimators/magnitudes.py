"""Robust scales of arrays, and powers of two that bring them to a size of about 1."""

from __future__ import annotations

import math
from typing import Any

from array_api_compat import array_namespace

from ..kernels import backend
from ..linalg import epsilon, square
from .observations import MULTIPLE, WITHIN

Array = Any


def scale_of(values: Array) -> float:
    """Return a robust standard deviation: that of the values within three of it."""
    if not math.prod(values.shape):
        return 0.0
    scale = 1.4826 * float(backend(values).median_magnitude(values))
    for _ in range(20):
        _, count, squares, _ = backend(values).within(values, MULTIPLE * scale)
        if not int(count) or scale == 0.0:
            break
        last, scale = scale, math.sqrt(float(squares) / int(count) / WITHIN)
        if abs(scale - last) < 1e-3 * last:
            break
    return scale


def typical_of(values: Array, quantile: float) -> float:
    """Return a quantile of the magnitudes that are not zero; 0 if all are."""
    size = math.prod(values.shape)
    zeros = int(backend(values).within(values, 0.0)[1])
    if zeros == size:
        return 0.0
    below = zeros + int(quantile * (size - zeros - 1))
    return float(backend(values).kth_magnitude(values, size - below))


def largest_size(y: Array) -> float:
    """Return the largest absolute value of an array, 0 if empty, without a temporary array."""
    xp = array_namespace(y)
    return max(float(xp.max(y)), -float(xp.min(y))) if math.prod(y.shape) else 0.0


def magnitude(y: Array) -> float:
    """Return a power of two near the root mean square of an array; 1 if it is zero or empty."""
    largest, size = largest_size(y), math.prod(y.shape)
    if largest == 0.0:
        return 1.0
    exponent, safe = math.frexp(largest)[1], 100 if epsilon(y) < 1e-10 else 12
    small = y
    if abs(exponent) > safe:  # their squares may not be finite
        small = small * 2.0 ** (-exponent // 2) * 2.0 ** (-exponent - (-exponent // 2))
    rms = math.sqrt(float(square(small)) / size)
    exponent = exponent if abs(exponent) > safe else 0
    return math.ldexp(1.0, min(1023, max(-1021, exponent + math.frexp(rms)[1])))


def scaled_by(y: Array, size: float) -> Array:
    """Divide y by a power of two of any size."""
    if size == 1.0:
        return y
    safe = 1e100 if epsilon(y) < 1e-10 else 1e30
    if 1 / safe < size < safe:
        return y * (1 / size)
    half = 2.0 ** (math.frexp(size)[1] // 2)
    return y / half / (size / half)
