"""Observed entries of PyTorch tensors, added up where the tensors are."""

from __future__ import annotations

from typing import Any

Array = Any


def scatter(rows: Array, values: Array, n: int) -> Array:
    """Add rows of values up by `index_add`, which torch can differentiate."""
    return values.new_zeros((n, values.shape[1])).index_add(0, rows, values)
