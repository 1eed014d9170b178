"""Matrices and tensors without column names: NPY, NPZ and Matrix Market."""

from __future__ import annotations

import math
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ...estimators.reading import DENSE_LIMIT
from ..failures import Failure, cause, listed, shown
from . import batches
from .batches import Progress, RowBatch, nullable
from .dialect import Dialect
from .files import reading

Array = Any


class ArrayTable:
    """A matrix or a tensor in an NPY, NPZ or Matrix Market file.

    Parameters
    ----------
    path : path
    kind : {"npy", "npz", "mtx"}
    dialect : Dialect
        Only its numbers for missing cells are used.
    name : str, optional
        Which array of an NPZ file.
    """

    text_columns: set[int] = frozenset()  # type: ignore[assignment]
    missing_hint = "NaN marks missing cells; if a number does, name it with --missing NUMBER"
    assumed: list[str] = []  # noqa: RUF012  (never changed)
    mixed: list[str] = []  # noqa: RUF012

    def __init__(self, path: Path, kind: str, dialect: Dialect, name: str | None) -> None:
        self.path, self.dialect = path, dialect
        load = {"npy": _load_npy, "npz": _load_npz, "mtx": _load_matrix_market}[kind]
        with reading(path):
            self.array, self.name = load(path, name)
        if self.array.dtype.kind not in "fiub":
            raise Failure(
                f"{path} is an array of {self.array.dtype}, not of real numbers; convert it"
            )
        if self.array.ndim < 2 or 0 in self.array.shape:
            raise Failure(f"{path} is an array of shape {self.array.shape}, which is not a table")
        self.order = self.array.ndim
        columns = self.array.shape[1] if self.order == 2 else 0
        self.names = [str(k) for k in range(columns)]

    def hint(self) -> str:
        return ""

    def batches(self, progress: Progress) -> Iterator[RowBatch]:
        rows = self.array.shape[0]
        most = max(1, batches.BATCH_CELLS // math.prod(self.array.shape[1:]))
        for first in range(0, rows, most):
            values = self.array[first : first + most].astype(np.float64)
            values = self.dialect.without_missing(values)
            progress(min(1.0, (first + most) / rows))
            if np.isinf(values).any():
                raise Failure(f"{self.path} contains infinity; replace it by NaN to have it filled")
            yield RowBatch(first=first, values=values)

    def cells_of(self, batch: RowBatch, j: int) -> pa.Array:
        return pa.nulls(len(batch.values), pa.string())

    def arrow_schema(self, floating: set[int], integer: set[int]) -> pa.Schema:
        return pa.schema([(name, pa.float64()) for name in self.names])

    def arrow_batch(
        self, batch: RowBatch, new: dict[int, Array], schema: pa.Schema
    ) -> pa.RecordBatch:
        arrays = [nullable(new.get(j, batch.values[:, j])) for j in range(len(schema))]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _load_npy(path: Path, name: str | None) -> tuple[Array, str | None]:
    # on Windows a file that is mapped cannot be replaced
    mode: Literal["r"] | None = None if sys.platform == "win32" else "r"
    try:
        return np.load(path, mmap_mode=mode, allow_pickle=False), None
    except ValueError as error:
        raise Failure(
            f"{path} is not an NPY file of numbers, or is truncated ({cause(error)})"
        ) from None


def _load_npz(path: Path, name: str | None) -> tuple[Array, str | None]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            if not hasattr(arrays, "files"):
                raise Failure(f"{path} is not an NPZ file; give it the suffix .npy")
            found = list(arrays.files)
            if name is None and len(found) > 1:
                raise Failure(f"{path} contains {listed(found)}; choose one with --array NAME")
            name = found[0] if name is None and found else name
            if name not in found:
                raise Failure(f"{path} has no array {shown(name)}; it has {listed(found)}")
            return arrays[name], name
    except (ValueError, zipfile.BadZipFile) as error:
        raise Failure(
            f"{path} is not an NPZ file of numbers, or is truncated ({cause(error)})"
        ) from None


def _load_matrix_market(path: Path, name: str | None) -> tuple[Array, str | None]:
    matrix = read_matrix_market(path)
    if isinstance(matrix, np.ndarray):
        return matrix, None
    if math.prod(matrix.shape) > DENSE_LIMIT:
        rows, columns = matrix.shape
        raise Failure(
            f"{path} is {rows} x {columns}, which is too large to be filled; ask for the cells "
            "you need with --predict PAIRS"
        )
    dense = np.full(matrix.shape, np.nan)
    dense[matrix.coords] = matrix.data
    return dense, None


def read_matrix_market(path: Path) -> Any:
    """Read a Matrix Market file as a dense array, or a sparse one of its stored entries."""
    from scipy.io import mminfo, mmread
    from scipy.sparse import coo_array

    try:
        field = mminfo(path)[4]
        if field in ("pattern", "complex"):
            kind = "no values" if field == "pattern" else "complex values"
            raise Failure(f"{path} has {kind}; give a matrix of real values")
        matrix: Any = mmread(path)
    except (ValueError, OverflowError) as error:
        raise Failure(
            f"{path} is not a Matrix Market file, or is damaged or truncated ({cause(error)})"
        ) from None
    return matrix if isinstance(matrix, np.ndarray) else coo_array(matrix)
