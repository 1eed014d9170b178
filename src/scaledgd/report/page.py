"""Sections, and writing a page."""

from __future__ import annotations

import importlib.resources
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import replacing
from .blocks import Block, escaped


@dataclass(frozen=True, init=False)
class Section:
    """A heading with the blocks below it.

    Parameters
    ----------
    title : str
    *blocks : Block

    Examples
    --------
    >>> from scaledgd import report
    >>> report.Section("Fig. 1: completion", report.Text("Hello.")).anchor
    'fig-1-completion'
    """

    title: str
    blocks: tuple[Block, ...]

    def __init__(self, title: str, *blocks: Block) -> None:
        object.__setattr__(self, "title", title)
        object.__setattr__(self, "blocks", blocks)

    @property
    def anchor(self) -> str:
        """The name that links to the section use."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")

    def html(self) -> str:
        """Return the section as HTML.

        Returns
        -------
        str
        """
        body = "".join(block.html() for block in self.blocks)
        return f'<section id="{self.anchor}"><h2>{escaped(self.title)}</h2>{body}</section>'


def write(
    path: str | os.PathLike[str],
    title: str,
    sections: Sequence[Section],
    subtitle: str = "",
    footer: str = "",
) -> None:
    """Write a self-contained page. The file is replaced only when the page is complete.

    Parameters
    ----------
    path : path
    title : str
    sections : sequence of Section
    subtitle : str
        Text below the title.
    footer : str

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from scaledgd import report
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.html"
    >>> report.write(path, "A page", [report.Section("One", report.Text("Hello."))])
    >>> "Hello." in path.read_text()
    True
    """
    here = importlib.resources.files(__package__)
    links = "".join(f'<a href="#{s.anchor}">{escaped(s.title.split(":")[0])}</a>' for s in sections)
    parts = {
        "TITLE": escaped(title),
        "SUBTITLE": f"<p>{escaped(subtitle)}</p>" if subtitle else "",
        "STYLE": (here / "page.css").read_text(encoding="utf-8"),
        "SCRIPT": (here / "page.js").read_text(encoding="utf-8"),
        "LINKS": f"<nav>{links}</nav>" if len(sections) > 1 else "",
        "BODY": "".join(section.html() for section in sections),
        "FOOTER": escaped(footer),
    }
    page = (here / "page.html").read_text(encoding="utf-8")
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], page)
    with replacing(Path(path)) as file:
        file.write(page.encode())
