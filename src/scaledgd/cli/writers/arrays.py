"""Write matrices and tensors as NPY, NPZ or Matrix Market."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from ..readers.arrays import ArrayTable
from ..readers.batches import TableReader
from ..readers.survey import Survey

Array = Any


@dataclass(frozen=True, eq=False)
class ArrayWriter:
    """Write the bytes of an array, row by row.

    Attributes
    ----------
    file : binary file
    dtype : numpy.dtype
    shape : tuple of int
    places : list of int
        Positions of the used columns in the array; empty for a tensor.
    """

    file: IO[bytes]
    dtype: Any
    shape: tuple[int, ...]
    places: list[int]

    def write_header(self) -> None:
        """Write the header of an NPY file."""
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(self.file, header)

    def write(self, batch: Any, new: Array, changed: Array) -> None:
        rows = np.full((len(new), *self.shape[1:]), np.nan, dtype=self.dtype)
        rows[:, self.places if self.places else slice(None)] = new
        self.file.write(rows.tobytes())


@contextlib.contextmanager
def open_array_writer(
    file: IO[bytes], kind: str, table: TableReader, found: Survey
) -> Iterator[ArrayWriter]:
    """Open a writer of the numeric columns of a table, or of a tensor.

    Parameters
    ----------
    file : binary file
    kind : {"npy", "npz", "mtx"}
    table : TableReader
    found : Survey
    """
    shape, places = found.shape, []
    if table.order == 2:
        columns = sorted(found.used + found.empty)
        shape, places = (found.rows, len(columns)), [columns.index(j) for j in found.used]
    single = isinstance(table, ArrayTable) and table.array.dtype == np.float32
    # Matrix Market is text: all digits are needed to read the same numbers again
    dtype = np.dtype(np.float32 if single and kind != "mtx" else np.float64)
    if kind == "npy":
        writer = ArrayWriter(file, dtype, shape, places)
        writer.write_header()
        yield writer
    elif kind == "npz":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            name = _copy_other_arrays(archive, table)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                writer = ArrayWriter(member, dtype, shape, places)
                writer.write_header()
                yield writer
    else:
        from scipy.io import mmwrite

        memory = io.BytesIO()
        yield ArrayWriter(memory, dtype, shape, places)
        mmwrite(file, np.frombuffer(memory.getvalue(), dtype=dtype).reshape(shape))


def _copy_other_arrays(archive: zipfile.ZipFile, table: TableReader) -> str:
    """Copy the other arrays of an NPZ input; return the name of the array to write."""
    if not isinstance(table, ArrayTable) or table.name is None:
        return "array"
    with zipfile.ZipFile(table.path) as old:
        for member in old.namelist():
            if member != f"{table.name}.npy":
                with old.open(member) as a, archive.open(member, "w", force_zip64=True) as b:
                    while chunk := a.read(1 << 20):
                        b.write(chunk)
    return str(table.name)
