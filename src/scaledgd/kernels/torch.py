"""Observed entries of PyTorch tensors, added up where the tensors are."""

from __future__ import annotations

from typing import Any

Array = Any


def scatter(rows: Array, values: Array, n: int) -> Array:
    """Add columns of values up by `index_add`, which torch can differentiate."""
    return values.new_zeros((values.shape[0], n)).index_add(1, rows, values).T
