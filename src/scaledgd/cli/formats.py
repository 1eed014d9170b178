"""Which formats there are, by the ends of names; and columns by what they are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .failures import Failure, listed, shown

Show = Callable[[float], None]

TEXT = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": ","}
KINDS = {
    **dict.fromkeys(TEXT, "text"),
    ".parquet": "parquet",
    ".pq": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
    ".npy": "npy",
    ".npz": "npz",
    ".mtx": "mtx",
}


@dataclass(frozen=True)
class Format:
    """What a file holds, as its name says."""

    kind: str
    suffix: str
    zipped: bool = False

    @property
    def delimiter(self) -> str:
        """Between the cells of text."""
        return TEXT[self.suffix]


def format_of(path: Path) -> Format:
    """The format of a file.

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
    if kind is None or (zipped and kind not in ("text", "mtx")):
        raise Failure(
            f"{path} has a suffix that says nothing about its format; known are "
            f"{', '.join(KINDS)}, and .gz after those of text"
        )
    return Format(kind, suffix[0], zipped)


def column_of(
    wanted: str, names: list[str], path: Path, advice: Callable[[], str] = lambda: ""
) -> int:
    """Where a column is that is given by its name, or its position from 1.

    Examples
    --------
    >>> from pathlib import Path
    >>> from scaledgd.cli.formats import column_of
    >>> [column_of(name, ["user", "item"], Path("x.csv")) for name in ("item", "1")]
    [1, 0]
    """
    if wanted in names:
        return names.index(wanted)
    if wanted.isdecimal() and 1 <= int(wanted) <= len(names):
        return int(wanted) - 1
    raise Failure(
        f"{path} has no column {shown(wanted)}; " + (advice() or f"it has {listed(names, 8)}")
    )
