"""What a workbook has besides cells, which copies by openpyxl keep only in part."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from pathlib import Path
from typing import IO

from ..failures import Failure

PARTS = {
    "charts": r"xl/charts/chart[^/]*\.xml",
    "styles of charts": r"xl/charts/(style|colors)[^/]*\.xml",
    "pictures": r"xl/media/.+",
    "pivot tables": r"xl/pivotTables/[^/]+\.xml",
    "slicers": r"xl/(slicers|timelines)/[^/]+\.xml",
    "controls": r"xl/(ctrlProps|activeX)/[^/]+\.xml",
    "embedded objects": r"xl/embeddings/.+",
    "threads of comments": r"xl/threadedComments/[^/]+\.xml",
    "queries": r"xl/(connections\.xml|queryTables/[^/]+\.xml)",
    "data models": r"xl/model/.+",
}
"""Kinds of parts, and the names of their files in the archive."""
DRAWING = re.compile(r"xl/drawings/drawing[^/]*\.xml")
SHAPE = re.compile(rb"<(\w+:)?(sp|cxnSp)[\s>]")
EXTENSION = re.compile(r"(.+) extension is not supported and will be removed")
"""What openpyxl says of extensions of a sheet, such as sparklines."""


def parts_of(file: Path | IO[bytes]) -> Counter[str]:
    """Count the parts of every kind; of a damaged file there are none."""
    found: Counter[str] = Counter()
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                found.update(kind for kind, names in PARTS.items() if re.fullmatch(names, name))
                if DRAWING.fullmatch(name):
                    found["shapes"] += len(SHAPE.findall(archive.read(name)))
    except (OSError, zipfile.BadZipFile):
        pass  # whoever reads it says so
    return +found


def extensions(warnings: list[str]) -> list[str]:
    """Return the extensions of sheets that openpyxl warned it would leave out."""
    found = [match[1].lower() for text in warnings if (match := EXTENSION.fullmatch(text))]
    return [f"extensions of sheets ({name})" for name in dict.fromkeys(found)]


def counted(parts: Counter[str]) -> list[str]:
    """Return the kinds of parts with their numbers, for messages."""
    return [f"{kind} ({n})" for kind, n in parts.items()]


def check_not_itself(path: Path, out: Path) -> None:
    """Fail if a workbook would be replaced by a copy that may lack something."""
    parts = counted(parts_of(path))
    if parts:
        raise Failure(
            f"-o {out} is the input itself, and the copy may lack its {', '.join(parts)}; give "
            "another name, or --force to replace it"
        )
