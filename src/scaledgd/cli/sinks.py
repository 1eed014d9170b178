"""Writing tables and tensors, some rows at a time, in the format that a name asks for."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrays import ArrayTable
from .failures import Failure, shown, writing
from .formats import Format, format_of
from .frames import TextTable
from .jobs import Job
from .parts import Part, Source
from .tables import Contents

Array = Any


class Sink(Protocol):
    """Where rows go."""

    def write(self, part: Part, new: Array, changed: Array) -> None:
        """Write rows as they came, but with new numbers where they changed.

        Parameters
        ----------
        part : Part
        new : array of shape (rows, used columns), or slices of a tensor
        changed : boolean array of the same shape
        """
        ...


@dataclass(frozen=True, eq=False)
class Patches:
    """Text, with other cells where they changed."""

    file: IO[bytes]
    source: TextTable
    used: Array
    whole: Array
    """Columns whose every cell is written anew: truths among which there are estimates now."""

    def write(self, part: Part, new: Array, changed: Array) -> None:
        changed = changed | self.whole[None, :]
        records, k = np.nonzero(changed)
        cells = self.source.dialect.written(new[changed])
        self.file.write(part.raw.patched(records, self.used[k], cells))


@dataclass(frozen=True, eq=False)
class Batches:
    """Columns with types."""

    writer: Any
    source: Source
    used: Array
    floating: set[int]
    schema: pa.Schema

    def write(self, part: Part, new: Array, changed: Array) -> None:
        columns = {int(j): new[:, k] for k, j in enumerate(self.used) if int(j) in self.floating}
        self.writer.write_batch(self.source.batch(part, columns, self.schema))


@dataclass(frozen=True, eq=False)
class Numbers:
    """An array and nothing else, as NPY; also within an NPZ."""

    file: IO[bytes]
    dtype: Any
    shape: tuple[int, ...]
    where: list[int]
    """Where the used columns are among those of the array."""

    def begin(self) -> None:
        about = {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(self.file, about)

    def write(self, part: Part, new: Array, changed: Array) -> None:
        whole = np.full((len(new), *self.shape[1:]), np.nan, dtype=self.dtype)
        whole[:, self.where if self.where else slice(None)] = new
        self.file.write(whole.tobytes())


@contextlib.contextmanager
def sink(
    file: IO[bytes], path: Path, source: Source, found: Contents, floating: set[int]
) -> Iterator[Sink]:
    """Where the rows of a table go.

    Parameters
    ----------
    file : binary file
    path : path
        Its name in the end, which says the format.
    source : Source
    found : Contents
    floating : set of int
        Columns that are estimates now, at least in some cells.
    """
    form, used = format_of(path), np.asarray(found.used, dtype=int)
    if form.kind in ("npy", "npz", "mtx"):
        with _numbers(file, form, source, found) as numbers:
            yield numbers
        return
    if form.kind == "text" and isinstance(source, TextTable) and alike(form, source):
        whole = np.asarray([j in source.truths and j in floating for j in found.used])
        yield Patches(file, source, used, whole)
    else:
        schema = source.schema(floating, found.whole)
        header = not isinstance(source, ArrayTable)
        with contextlib.closing(writer(file, form, schema, header)) as out:
            yield Batches(out, source, used, floating, schema)


def alike(form: Format, source: Any) -> bool:
    """Whether text is cut at the same places as before."""
    same = format_of(source.path).suffix == form.suffix
    return same or form.delimiter == source.dialect.delimiter


def check_sink(path: Path, source: Source) -> None:
    """Refuse a format that cannot hold what is to be written."""
    form = format_of(path)
    if source.order > 2 and form.kind not in ("npy", "npz"):
        raise Failure(f"a tensor of order {source.order} can be written as .npy or .npz only")


def left_out(path: Path, source: Source, found: Contents) -> list[str]:
    """Columns that the format cannot hold."""
    if format_of(path).kind not in ("npy", "npz", "mtx"):
        return []
    return [source.names[j] for j in found.passed]


def writer(file: Any, form: Format, schema: pa.Schema, header: bool = True) -> Any:
    """Something that takes batches."""
    if form.kind == "parquet":
        import pyarrow.parquet as pq

        return pq.ParquetWriter(file, schema)
    if form.kind == "feather":
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        return pa.ipc.new_file(file, schema, options=options)
    return Rows(file, form.delimiter, schema.names if header else [])


class Rows:
    """Delimited text from batches, with quotation marks where they are needed."""

    def __init__(self, file: IO[bytes], delimiter: str, names: list[str]) -> None:
        self.file, self.delimiter = file, delimiter
        if names:
            line = io.StringIO()
            csv.writer(line, delimiter=delimiter, lineterminator="\n").writerow(names)
            file.write(line.getvalue().encode())

    def write_batch(self, batch: pa.RecordBatch) -> None:
        cells = [self._cells(name, batch.column(k)) for k, name in enumerate(batch.schema.names)]
        rows = pc.binary_join_element_wise(*cells, self.delimiter)
        text = pc.binary_join(pa.LargeListArray.from_arrays([0, len(rows)], rows), "\n")
        if len(rows):
            self.file.write(text[0].as_buffer())
            self.file.write(b"\n")

    def _cells(self, name: str, column: pa.Array) -> pa.Array:
        try:
            cells = pc.fill_null(column.cast(pa.string()), "")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise Failure(
                f"column {shown(name)} of {column.type} cannot be written as text; write .parquet "
                "or .feather"
            ) from None
        if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
            return cells
        special = pc.match_substring_regex(cells, pattern=f'["\\n\\r{re.escape(self.delimiter)}]')
        inner = pc.replace_substring(cells, pattern='"', replacement='""')
        quoted = pc.binary_join_element_wise('"', inner, '"', "")
        return pc.if_else(special, quoted, cells)

    def close(self) -> None:
        pass


@contextlib.contextmanager
def _numbers(file: IO[bytes], form: Format, source: Source, found: Contents) -> Iterator[Sink]:
    shape, where = found.shape, []
    if source.order == 2:
        columns = sorted(found.used + found.empty)
        shape, where = (found.rows, len(columns)), [columns.index(j) for j in found.used]
    # text has all digits, or what is read again is not what was written
    single = isinstance(source, ArrayTable) and source.array.dtype == np.float32
    single = single and form.kind != "mtx"
    dtype = np.dtype(np.float32 if single else np.float64)
    if form.kind == "npy":
        numbers = Numbers(file, dtype, shape, where)
        numbers.begin()
        yield numbers
    elif form.kind == "npz":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as z:
            name = _others(z, source)
            with z.open(f"{name}.npy", "w", force_zip64=True) as member:
                numbers = Numbers(member, dtype, shape, where)
                numbers.begin()
                yield numbers
    else:
        from scipy.io import mmwrite

        memory = io.BytesIO()
        yield Numbers(memory, dtype, shape, where)
        mmwrite(file, np.frombuffer(memory.getvalue(), dtype=dtype).reshape(shape))


def _others(z: zipfile.ZipFile, source: Source) -> str:
    """Copy the other arrays of an NPZ; the name of the one that is written."""
    if not isinstance(source, ArrayTable) or source.name is None:
        return "array"
    with zipfile.ZipFile(source.path) as old:
        for member in old.namelist():
            if member != f"{source.name}.npy":
                with old.open(member) as a, z.open(member, "w", force_zip64=True) as b:
                    while chunk := a.read(1 << 20):
                        b.write(chunk)
    return str(source.name)


def outputs(job: Job, stack: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes] | None]:
    """The files of a job, for what it makes and for outliers where they are asked for.

    Opened before the work: a place that cannot be written to is found out at once.
    """
    file = stack.enter_context(writing("-o", job.out))
    if job.outliers is None:
        return file, None
    check_long("--outliers", job.outliers)
    return file, stack.enter_context(writing("--outliers", job.outliers))


def check_long(option: str, path: Path) -> None:
    """Refuse a format that has no columns."""
    if format_of(path).kind in ("npy", "npz", "mtx"):
        raise Failure(
            f"{option} {path} would hold rows, columns and values; write .csv, .tsv, .parquet or "
            ".feather"
        )
