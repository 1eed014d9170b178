"""Reports as one self-contained HTML page with text, tables, interactive charts and maps.

A page is a list of sections, and a section is a list of blocks. Charts show values under the
pointer, zoom, and hide curves; ``page.js`` draws them from the numbers in the page. Nothing is
loaded from the network.
"""

from .blocks import Beside, Block, Facts, File, Link, Table, Text
from .figures import Chart, Curve, HeatMap
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
    "write",
]
