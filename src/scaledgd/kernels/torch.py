"""Observed entries of a PyTorch matrix: gathered, multiplied and added up where the tensors are."""

from __future__ import annotations

from typing import Any

from ..linalg import adjoint, conj
from . import CHUNK

Array = Any


class ScatterPattern:
    """Entries in the caller's order, accumulated by `index_add`, which torch can differentiate."""

    def __init__(self, index: tuple[Array, ...], shape: tuple[int, ...]) -> None:
        self.index, self.shape = index, shape

    def contract(self, weights: Array, modes: tuple[Array, ...], skip: int | None) -> Array:
        if skip == 1:
            return self._add(weights, conj(modes[0]), to=1).T
        ZM = self._add(weights, conj(modes[1]), to=0)
        return ZM if skip == 0 else adjoint(modes[0]) @ ZM

    def _add(self, weights: Array, M: Array, to: int) -> Array:
        """Row i of the result is Σ w M[j] over the entries (i, j), i along axis `to`."""
        rows, columns = self.index[to], self.index[1 - to]
        total = M.new_zeros((self.shape[to], M.shape[1]))
        chunk = CHUNK if M.device.type == "cpu" else max(1, weights.shape[0])
        for s in range(0, weights.shape[0], chunk):
            part = weights[s : s + chunk, None] * M[columns[s : s + chunk]]
            total = total.index_add(0, rows[s : s + chunk], part)
        return total
