"""Matrices and tensors without names: NPY, NPZ and Matrix Market."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..estimators.reading import DENSE_LIMIT
from . import parts
from .failures import Failure, listed, reading, shown
from .formats import Show
from .parts import Part, nullable
from .text import Dialect

Array = Any


class ArrayTable:
    """A matrix or a tensor in an NPY, NPZ or Matrix Market file."""

    text: set[int] = frozenset()  # type: ignore[assignment]
    marks = "NaN marks missing cells, and a number can be made to with --missing NUMBER"

    def __init__(self, path: Path, kind: str, dialect: Dialect, name: str | None) -> None:
        self.path, self.dialect = path, dialect
        with reading(path):
            self.array, self.name = READERS[kind](path, name)
        if self.array.dtype.kind not in "fiub":
            raise Failure(
                f"{path} is an array of {self.array.dtype}, not of real numbers; convert it"
            )
        if self.array.ndim < 2 or 0 in self.array.shape:
            raise Failure(f"{path} is an array of shape {self.array.shape}, which is no table")
        self.order = self.array.ndim
        columns = self.array.shape[1] if self.order == 2 else 0
        self.names = [str(k) for k in range(columns)]

    def advice(self) -> str:
        return ""

    def parts(self, show: Show) -> Iterator[Part]:
        rows = self.array.shape[0]
        most = max(1, parts.CELLS // math.prod(self.array.shape[1:]))
        for first in range(0, rows, most):
            values = self.dialect.known(self.array[first : first + most].astype(np.float64))
            show(min(1.0, (first + most) / rows))
            if np.isinf(values).any():
                raise Failure(f"{self.path} holds infinity; replace it with NaN to have it filled")
            yield Part(first, values)

    def schema(self, floating: set[int], whole: set[int]) -> pa.Schema:
        return pa.schema([(name, pa.float64()) for name in self.names])

    def batch(self, part: Part, columns: dict[int, Array], schema: pa.Schema) -> pa.RecordBatch:
        arrays = [nullable(columns.get(j, part.values[:, j])) for j in range(len(schema))]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _npy(path: Path, name: str | None) -> tuple[Array, str | None]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False), None
    except ValueError as error:
        why = " ".join(str(error).split())[:80]
        raise Failure(f"{path} is no NPY file of numbers, or is cut off ({why})") from None


def _npz(path: Path, name: str | None) -> tuple[Array, str | None]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            if not hasattr(arrays, "files"):
                raise Failure(f"{path} is no NPZ file; give it the suffix .npy")
            found = list(arrays.files)
            if name is None and len(found) > 1:
                raise Failure(f"{path} holds {listed(found)}; say which with --array NAME")
            name = found[0] if name is None and found else name
            if name not in found:
                raise Failure(f"{path} has no array {shown(name)}; it has {listed(found)}")
            return arrays[name], name
    except (ValueError, zipfile.BadZipFile) as error:
        why = " ".join(str(error).split())[:80]
        raise Failure(f"{path} is no NPZ file of numbers, or is cut off ({why})") from None


def _mtx(path: Path, name: str | None) -> tuple[Array, str | None]:
    matrix = read_mtx(path)
    if isinstance(matrix, np.ndarray):
        return matrix, None
    if math.prod(matrix.shape) > DENSE_LIMIT:
        rows, columns = matrix.shape
        raise Failure(
            f"{path} is {rows} x {columns}, and filled it would be dense; ask for the cells you "
            "need with --predict PAIRS"
        )
    dense = np.full(matrix.shape, np.nan)
    dense[matrix.coords] = matrix.data
    return dense, None


def read_mtx(path: Path) -> Any:
    """A matrix of the Matrix Market: dense, or sparse with what is stored."""
    from scipy.io import mminfo, mmread
    from scipy.sparse import coo_array

    try:
        field = mminfo(path)[4]
        if field in ("pattern", "complex"):
            kind = "no values" if field == "pattern" else "complex values"
            raise Failure(f"{path} has {kind}; write one with real values")
        matrix: Any = mmread(path)
    except (ValueError, OverflowError) as error:
        why = " ".join(str(error).split())[:80]
        raise Failure(
            f"{path} is no Matrix Market file, or is damaged or cut off ({why})"
        ) from None
    return matrix if isinstance(matrix, np.ndarray) else coo_array(matrix)


READERS: dict[str, Any] = {"npy": _npy, "npz": _npz, "mtx": _mtx}
