"""The blocks of a page: text, tables, links and files."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Block(Protocol):
    """Protocol of everything that can be put on a page."""

    def html(self) -> str:
        """Return the block as HTML.

        Returns
        -------
        str
        """
        ...


def escaped(text: object) -> str:
    """Return text with the special characters of HTML escaped.

    Parameters
    ----------
    text : object

    Returns
    -------
    str
    """
    return html.escape(str(text))


@dataclass(frozen=True, init=False)
class Text:
    """Paragraphs of plain text.

    Parameters
    ----------
    *paragraphs : str

    Examples
    --------
    >>> from scaledgd import report
    >>> report.Text("κ < 10 & so on").html()
    '<p>κ &lt; 10 &amp; so on</p>'
    """

    paragraphs: tuple[str, ...]

    def __init__(self, *paragraphs: str) -> None:
        object.__setattr__(self, "paragraphs", paragraphs)

    def html(self) -> str:
        """Return the block as HTML.

        Returns
        -------
        str
        """
        return "".join(f"<p>{escaped(p)}</p>" for p in self.paragraphs)


@dataclass(frozen=True)
class Facts:
    """A few labels with their values.

    Parameters
    ----------
    facts : dict
        Values by label.

    Examples
    --------
    >>> from scaledgd import report
    >>> "<dd>120</dd>" in report.Facts({"rows": 120}).html()
    True
    """

    facts: Mapping[str, object]

    def html(self) -> str:
        """Return the block as HTML.

        Returns
        -------
        str
        """
        pairs = (
            f"<div><dt>{escaped(k)}</dt><dd>{cell(v)}</dd></div>" for k, v in self.facts.items()
        )
        return f'<dl class="facts">{"".join(pairs)}</dl>'


@dataclass(frozen=True)
class Table:
    """A table of text, numbers, links, and booleans, which are shown as ticks and crosses.

    Parameters
    ----------
    columns : sequence of str
    rows : sequence of sequences
        One value per column.
    caption : str
    formats : sequence of str or callable
        How the numbers of each column are written, such as ".2f", or a function that writes them;
        empty for four digits.
    marked : sequence of int
        Rows that stand out, such as the best one.

    Examples
    --------
    >>> from scaledgd import report
    >>> '<td class="number">0.25</td>' in report.Table(["share"], [[0.25]]).html()
    True
    >>> "<td>0.250</td>" in report.Table(["share"], [[0.25]], formats=[".3f"]).html()
    False
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""
    formats: Sequence[str | Callable[[Any], str]] = ()
    marked: Sequence[int] = ()

    def html(self) -> str:
        """Return the block as HTML.

        Returns
        -------
        str
        """
        kinds = ({_kind(row[k]) for row in self.rows} for k in range(len(self.columns)))
        head = "".join(
            f"<th scope=col{kind.pop() if len(kind) == 1 else ''}>{escaped(name)}</th>"
            for name, kind in zip(self.columns, kinds, strict=True)
        )
        formats = [*self.formats, *[""] * (len(self.columns) - len(self.formats))]
        body = "".join(
            f"<tr{' class=best' if k in self.marked else ''}>"
            + "".join(
                f"<td{_kind(v)}>{cell(v, how)}</td>" for v, how in zip(row, formats, strict=True)
            )
            + "</tr>"
            for k, row in enumerate(self.rows)
        )
        caption = f"<caption>{escaped(self.caption)}</caption>" if self.caption else ""
        table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f'<div class="wide">{table}</div>'


@dataclass(frozen=True)
class Link:
    """A cell of a table that links to a section.

    Parameters
    ----------
    text : str
    anchor : str
        The section's `anchor`.

    Examples
    --------
    >>> from scaledgd import report
    >>> report.Link("Fig. 1", "figure-1").html()
    '<a href="#figure-1">Fig. 1</a>'
    """

    text: str
    anchor: str

    def html(self) -> str:
        """Return the block as HTML.

        Returns
        -------
        str
        """
        return f'<a href="#{escaped(self.anchor)}">{escaped(self.text)}</a>'


@dataclass(frozen=True)
class File:
    """A link that saves a file embedded in the page.

    Parameters
    ----------
    name : str
        Name of the file.
    content : str
    label : str
        Text of the link, by default the name.

    Examples
    --------
    >>> from scaledgd import report
    >>> 'download="data.csv"' in report.File("data.csv", "a,b").html()
    True
    """

    name: str
    content: str
    label: str = ""

    def html(self) -> str:
        """Return the block as HTML.

        Returns
        -------
        str
        """
        data = base64.b64encode(self.content.encode()).decode()
        where = f'href="data:text/csv;charset=utf-8;base64,{data}"'
        name, label = escaped(self.name), escaped(self.label or self.name)
        return f'<p><a class="file" download="{name}" {where}>{label}</a></p>'


@dataclass(frozen=True, init=False)
class Beside:
    """Blocks side by side if the screen is wide enough.

    Parameters
    ----------
    *blocks : Block

    Examples
    --------
    >>> from scaledgd import report
    >>> report.Beside(report.Text("a"), report.Text("b")).html()
    '<div class="beside"><p>a</p><p>b</p></div>'
    """

    blocks: tuple[Block, ...]

    def __init__(self, *blocks: Block) -> None:
        object.__setattr__(self, "blocks", blocks)

    def html(self) -> str:
        """Return the block as HTML.

        Returns
        -------
        str
        """
        return f'<div class="beside">{"".join(block.html() for block in self.blocks)}</div>'


def cell(value: object, how: str | Callable[[Any], str] = "") -> str:
    """Return a cell of a table as HTML.

    Parameters
    ----------
    value : object
    how : str or callable
        How a number is written, such as ".2f", or a function that writes it; by default with
        four digits.

    Returns
    -------
    str
    """
    if isinstance(value, bool | np.bool_):
        mark, word = ("✓", "yes") if value else ("✗", "no")
        return f'<span class="{word}" title="{word}" aria-label="{word}">{mark}</span>'
    if isinstance(value, Link):
        return value.html()
    if value is None:
        return "–"
    if isinstance(value, float | np.floating) and math.isnan(value):
        return "–"
    if callable(how) and isinstance(value, int | float | np.number):
        return escaped(how(value))
    assert isinstance(how, str)
    if isinstance(value, float | np.floating):
        return format(float(value), how or ".4g")
    if how and isinstance(value, int | np.integer):
        return format(value, how)
    return escaped(value)


def _kind(value: object) -> str:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return ' class="number"' if number else ""
