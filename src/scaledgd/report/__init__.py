"""One self-contained HTML page: text, tables, interactive curves and maps, no network.

A page is a list of sections, a section a list of blocks. Curves can be hovered over, zoomed
into and switched off; they are drawn by ``page.js`` from the numbers in the page.
"""

from .blocks import Beside, Block, Chart, Curve, Facts, File, HeatMap, Link, Table, Text, shrunk
from .page import Section, write

__all__ = [
    "Beside",
    "Block",
    "Chart",
    "Curve",
    "Facts",
    "File",
    "HeatMap",
    "Link",
    "Section",
    "Table",
    "Text",
    "shrunk",
    "write",
]
