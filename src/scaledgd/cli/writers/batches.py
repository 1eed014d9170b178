"""Write Arrow batches as Parquet, Feather or delimited text."""

from __future__ import annotations

import csv
import io
import re
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from ..failures import Failure, shown
from ..formats import Format


def open_batch_writer(file: Any, form: Format, schema: pa.Schema, header: bool = True) -> Any:
    """Return an object with the methods ``write_batch`` and ``close``.

    Parameters
    ----------
    file : binary file
    form : Format
    schema : pyarrow.Schema
    header : bool
        Whether delimited text gets a line of names.
    """
    if form.kind == "parquet":
        import pyarrow.parquet as pq

        return pq.ParquetWriter(file, schema)
    if form.kind == "feather":
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        return pa.ipc.new_file(file, schema, options=options)
    if form.kind == "excel":
        from .excel import SheetWriter

        return SheetWriter(file, schema.names if header else [])
    return DelimitedWriter(file, form.delimiter, schema.names if header else [])


class DelimitedWriter:
    """Write Arrow batches as delimited text, with quotation marks only where they are needed."""

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
        """Do nothing: the owner of the file closes it."""
