"""What a page is made of. Every block writes its own HTML."""

from __future__ import annotations

import base64
import html
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

MOST_POINTS = 600
"""Points of a curve that are put on a page: more than a screen has columns to spare."""


class Block(Protocol):
    """Something that can stand on a page."""

    def html(self) -> str: ...


def escaped(text: object) -> str:
    return html.escape(str(text))


@dataclass(frozen=True, init=False)
class Text:
    """Paragraphs of plain text.

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
        return "".join(f"<p>{escaped(p)}</p>" for p in self.paragraphs)


@dataclass(frozen=True)
class Facts:
    """A few labels with their values."""

    facts: Mapping[str, object]

    def html(self) -> str:
        pairs = (
            f"<div><dt>{escaped(k)}</dt><dd>{cell(v)}</dd></div>" for k, v in self.facts.items()
        )
        return f'<dl class="facts">{"".join(pairs)}</dl>'


@dataclass(frozen=True)
class Table:
    """Rows of text, numbers, links, and truths, which are shown as ticks and crosses."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""

    def html(self) -> str:
        kinds = ({_kind(row[k]) for row in self.rows} for k in range(len(self.columns)))
        head = "".join(
            f"<th scope=col{kind.pop() if len(kind) == 1 else ''}>{escaped(name)}</th>"
            for name, kind in zip(self.columns, kinds, strict=True)
        )
        body = "".join(
            "<tr>" + "".join(f"<td{_kind(v)}>{cell(v)}</td>" for v in row) + "</tr>"
            for row in self.rows
        )
        caption = f"<caption>{escaped(self.caption)}</caption>" if self.caption else ""
        table = f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f'<div class="wide">{table}</div>'


@dataclass(frozen=True)
class Link:
    """A cell that leads to a section."""

    text: str
    anchor: str

    def html(self) -> str:
        return f'<a href="#{escaped(self.anchor)}">{escaped(self.text)}</a>'


@dataclass(frozen=True)
class File:
    """A file that comes with the page: a link that saves it."""

    name: str
    content: str
    label: str = ""

    def html(self) -> str:
        data = base64.b64encode(self.content.encode()).decode()
        where = f'href="data:text/csv;charset=utf-8;base64,{data}"'
        name, label = escaped(self.name), escaped(self.label or self.name)
        return f'<p><a class="file" download="{name}" {where}>{label}</a></p>'


@dataclass(frozen=True)
class Curve:
    """A line through points (x, y), or with ``points`` the points alone; NaN leaves a gap."""

    name: str
    x: Sequence[float] | Any
    y: Sequence[float] | Any
    dashed: bool = False
    points: bool = False
    colour: int | None = None
    """Curves of one colour belong together; None takes the next."""

    def thinned(self) -> tuple[list[float | None], list[float | None]]:
        """At most so many points, evenly spaced, the last among them."""
        x, y = np.asarray(self.x, dtype=float), np.asarray(self.y, dtype=float)
        if x.shape != y.shape or x.ndim != 1:
            raise ValueError(f"curve {self.name!r}: x and y must be of one length")
        chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).astype(int))
        return numbers(x[chosen]), numbers(y[chosen])


@dataclass(frozen=True)
class Chart:
    """Curves over common axes, with horizontal lines at the levels.

    Examples
    --------
    >>> from scaledgd import report
    >>> curve = report.Curve("2⁻ᵗ", [0, 1, 2], [1, 0.5, 0.25])
    >>> chart = report.Chart("Halving", "t", "error", [curve], log_y=True)
    >>> "Halving" in chart.html()
    True
    """

    title: str
    xlabel: str
    ylabel: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    levels: Sequence[tuple[str, float]] = ()
    caption: str = ""

    def html(self) -> str:
        next_colour = itertools.count()
        curves = []
        for curve in self.curves:
            x, y = curve.thinned()
            colour = next(next_colour) if curve.colour is None else curve.colour
            given = {"name": curve.name, "x": x, "y": y, "colour": colour}
            curves.append(given | {"dashed": curve.dashed, "points": curve.points})
        levels = [{"name": name, "y": float(y)} for name, y in self.levels]
        data: dict[str, Any] = {"xlabel": self.xlabel, "ylabel": self.ylabel}
        data |= {
            "curves": curves,
            "levels": levels,
            "logx": self.log_x,
            "logy": self.log_y,
            "title": self.title,
        }
        return _figure("chart", self.title, self.caption, data)


@dataclass(frozen=True)
class HeatMap:
    """A matrix as a picture, rows from the top; NaN is drawn as missing."""

    title: str
    values: Any
    xlabel: str = ""
    ylabel: str = ""
    x: Sequence[object] | None = None
    y: Sequence[object] | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    diverging: bool = False
    caption: str = ""

    def html(self) -> str:
        values = np.asarray(self.values, dtype=float)
        if values.ndim != 2 or not values.size:
            raise ValueError(f"map {self.title!r}: values must be a matrix with entries")
        seen = values[np.isfinite(values)]
        low, high = (float(np.min(seen)), float(np.max(seen))) if seen.size else (0.0, 1.0)
        low = low if self.low is None else self.low
        high = high if self.high is None else self.high
        if self.diverging:
            high = max(abs(low), abs(high))
            low = -high
        data = {"values": [numbers(row) for row in values], "low": low, "high": high}
        data |= {"xlabel": self.xlabel, "ylabel": self.ylabel, "title": self.title}
        data |= {"x": _labels(self.x), "y": _labels(self.y), "unit": self.unit}
        data |= {"diverging": self.diverging}
        return _figure("map", self.title, self.caption, data)


@dataclass(frozen=True, init=False)
class Beside:
    """Blocks beside each other where the screen is wide enough."""

    blocks: tuple[Block, ...]

    def __init__(self, *blocks: Block) -> None:
        object.__setattr__(self, "blocks", blocks)

    def html(self) -> str:
        return f'<div class="beside">{"".join(block.html() for block in self.blocks)}</div>'


def shrunk(values: Any, most: int = 160) -> Any:
    """Block means of a matrix, at most so many a side; of nothing but NaN, NaN.

    Parameters
    ----------
    values : array of shape (n1, n2)
        What is to be looked at.
    most : int
        The largest side of the result.

    Examples
    --------
    >>> import numpy as np
    >>> from scaledgd import report
    >>> report.shrunk(np.asarray([[1.0, 3.0], [np.nan, np.nan]]), most=1)
    array([[2.]])
    """
    values = np.asarray(values, dtype=float)
    seen = np.isfinite(values)
    total, count = np.where(seen, values, 0.0), seen.astype(float)
    for axis, n in enumerate(values.shape):
        edges = np.unique(np.linspace(0, n, min(n, most), endpoint=False).astype(int))
        total, count = (np.add.reduceat(a, edges, axis=axis) for a in (total, count))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def cell(value: object) -> str:
    """A cell of a table as HTML."""
    if isinstance(value, bool | np.bool_):
        mark, word = ("✓", "yes") if value else ("✗", "no")
        return f'<span class="{word}" title="{word}" aria-label="{word}">{mark}</span>'
    if isinstance(value, Link):
        return value.html()
    if value is None:
        return "–"
    if isinstance(value, float | np.floating):
        return "–" if math.isnan(value) else f"{value:.4g}"
    return escaped(value)


def _kind(value: object) -> str:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return ' class="number"' if number else ""


def numbers(values: Any) -> list[float | None]:
    """For JSON: six digits, and null for what is not finite."""
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values]


def _labels(values: Sequence[object] | None) -> list[str] | None:
    if values is None:
        return None
    return [f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]


def _figure(kind: str, title: str, caption: str, data: dict[str, Any]) -> str:
    # "</script>" in a label must not end the script
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
    below = f"<figcaption>{escaped(caption)}</figcaption>" if caption else ""
    return (
        f'<figure class="{kind}"><h3>{escaped(title)}</h3><div class="drawing"></div>'
        f'<script type="application/json">{text}</script>{below}</figure>'
    )
