"""File formats by suffix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .failures import Failure

TEXT = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": ",", ".dat": ",", ".data": ","}
"""Suffixes of delimited text, with their usual delimiters."""
KINDS = {
    **dict.fromkeys(TEXT, "text"),
    ".parquet": "parquet",
    ".pq": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
    ".npy": "npy",
    ".npz": "npz",
    ".mtx": "mtx",
    ".xlsx": "excel",
    **dict.fromkeys((".xls", ".xlsb", ".xlsm", ".ods"), "workbook"),
}
BOOKS = ("excel", "workbook")
"""Formats of spreadsheets; those other than .xlsx are read, but not written."""
ARRAYS = ("npy", "npz", "mtx")
"""Formats that hold numbers only, without column names."""


@dataclass(frozen=True)
class Format:
    """The format of a file, according to its name."""

    kind: str
    suffix: str
    zipped: bool = False

    @property
    def delimiter(self) -> str:
        """Usual delimiter of delimited text."""
        return TEXT.get(self.suffix, ",")


def format_of(path: Path) -> Format:
    """Return the format of a file, or fail if its suffix is unknown.

    Examples
    --------
    >>> from pathlib import Path
    >>> from scaledgd.cli.formats import format_of
    >>> format_of(Path("ratings.TSV.gz"))
    Format(kind='text', suffix='.tsv', zipped=True)
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    suffix = (suffixes[:-1] if zipped else suffixes)[-1:]
    kind = KINDS.get(suffix[0]) if suffix else None
    if suffix == [".numbers"]:
        raise Failure(f"{path} is another kind of spreadsheet; save it as .xlsx or .csv")
    if kind is None or (zipped and kind not in ("text", "mtx")):
        raise Failure(
            f"{path} has an unknown suffix; known suffixes are {', '.join(KINDS)}, and .gz after "
            "those of text and .mtx"
        )
    return Format(kind, suffix[0], zipped)
