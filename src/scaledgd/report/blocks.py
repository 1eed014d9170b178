"""The blocks of a page: text, tables, charts, maps and files."""

from __future__ import annotations

import base64
import html
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

MOST_POINTS = 600
"""Largest number of points of a curve on a page; a screen cannot show more."""


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


@dataclass(frozen=True)
class Curve:
    """A curve of a chart.

    Parameters
    ----------
    name : str
    x, y : sequences of float
        Values that are not finite leave a gap. `x` may be times, as datetime64.
    dashed : bool
    points : bool
        Draw the points without a line.
    colour : int, optional
        Number of the colour, for curves that belong together; by default the next one.
    upper : sequence of float, optional
        Fill the band from `y` to here, instead of a line.

    Examples
    --------
    >>> from scaledgd import report
    >>> report.Curve("squares", [1, 2, 3], [1, 4, 9]).thinned()
    ([1.0, 2.0, 3.0], [1.0, 4.0, 9.0])
    """

    name: str
    x: Sequence[float] | Any
    y: Sequence[float] | Any
    dashed: bool = False
    points: bool = False
    colour: int | None = None
    upper: Sequence[float] | Any | None = None

    def thinned(self) -> tuple[list[float | None], list[float | None]]:
        """Return the coordinates of at most MOST_POINTS points, evenly spaced, with both ends.

        Returns
        -------
        x, y : lists of float or None
            None if not finite. Times are in seconds since 1970.
        """
        x, y, _ = self._points()
        return x, y

    def _points(self) -> tuple[list[float | None], list[float | None], list[float | None] | None]:
        """The coordinates, and the upper end of a band."""
        x, y = _axis(self.x), np.asarray(self.y, dtype=float)
        upper = y if self.upper is None else np.asarray(self.upper, dtype=float)
        if x.shape != y.shape or x.ndim != 1 or upper.shape != y.shape:
            raise ValueError(f"curve {self.name!r}: x and y must be of one length")
        chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).astype(int))
        # six digits are not enough for the seconds of a time
        at = x[chosen].tolist() if _are_times(self.x) else numbers(x[chosen])
        return at, numbers(y[chosen]), None if self.upper is None else numbers(upper[chosen])


@dataclass(frozen=True)
class Chart:
    """Curves over common axes.

    Parameters
    ----------
    title, xlabel, ylabel : str
    curves : sequence of Curve
        If they are over times, the axis has days and times of day.
    log_x, log_y : bool
        Use logarithmic scales.
    levels : sequence of (str, float)
        Names and heights of horizontal lines.
    caption : str

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
        """Return the block as HTML.

        Returns
        -------
        str
        """
        next_colour = itertools.count()
        curves = []
        for curve in self.curves:
            x, y, upper = curve._points()
            colour = next(next_colour) if curve.colour is None else curve.colour
            given = {"name": curve.name, "x": x, "y": y, "colour": colour, "upper": upper}
            curves.append(given | {"dashed": curve.dashed, "points": curve.points})
        levels = [{"name": name, "y": float(y)} for name, y in self.levels]
        data: dict[str, Any] = {"xlabel": self.xlabel, "ylabel": self.ylabel}
        data |= {
            "curves": curves,
            "levels": levels,
            "logx": self.log_x,
            "logy": self.log_y,
            "times": any(_are_times(curve.x) for curve in self.curves),
            "title": self.title,
        }
        return _figure("chart", self.title, self.caption, data)


@dataclass(frozen=True)
class HeatMap:
    """A matrix drawn as an image, rows from top to bottom.

    Parameters
    ----------
    title : str
    values : array of shape (n1, n2)
        NaN is drawn as missing.
    xlabel, ylabel : str
    x, y : sequences of length n2 and n1, optional
        Labels of columns and rows; they may be times, as datetime64.
    unit : str
        Label of the colours.
    low, high : float, optional
        Ends of the colour scale, by default those of the values.
    diverging : bool
        Use a colour scale that is symmetric about 0.
    caption : str

    Examples
    --------
    >>> import numpy as np
    >>> from scaledgd import report
    >>> "Map" in report.HeatMap("Map", np.eye(3), unit="mg/L").html()
    True
    """

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
        """Return the block as HTML.

        Returns
        -------
        str
        """
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
        data |= {"diverging": self.diverging, "atx": _places(self.x), "aty": _places(self.y)}
        data |= {"times": [v is not None and _are_times(v) for v in (self.x, self.y)]}
        return _figure("map", self.title, self.caption, data)


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


def numbers(values: Any) -> list[float | None]:
    """Round numbers to six digits for JSON.

    Parameters
    ----------
    values : iterable of float

    Returns
    -------
    list of float or None
        None if not finite.
    """
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values]


def _are_times(values: Any) -> bool:
    return bool(np.asarray(values).dtype.kind == "M")


def _axis(values: Any) -> Any:
    """Coordinates as floats; times are in seconds since 1970."""
    if _are_times(values):
        return np.asarray(values).astype("datetime64[ms]").astype(float) / 1000
    return np.asarray(values, dtype=float)


def _labels(values: Sequence[object] | None) -> list[str] | None:
    if values is None:
        return None
    if _are_times(values):
        moments = np.asarray(values).astype("datetime64[s]").tolist()
        return [f"{t.day} {t:%b %H:%M}" for t in moments]
    return [f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]


def _places(values: Sequence[object] | None) -> list[float] | None:
    """Positions of rows or columns on an axis of numbers or times; None if they have names."""
    if values is None or not len(values):
        return None
    array = np.asarray(values)
    ordered = array.dtype.kind in "iufM" and bool(np.all(np.diff(_axis(array)) > 0))
    return _axis(array).tolist() if ordered and len(array) > 1 else None


IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
"""Escapes for JSON in a script element, where some characters would end the script."""


def _figure(kind: str, title: str, caption: str, data: dict[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).translate(IN_SCRIPT)
    below = f"<figcaption>{escaped(caption)}</figcaption>" if caption else ""
    return (
        f'<figure class="{kind}"><h3>{escaped(title)}</h3><div class="drawing"></div>'
        f'<script type="application/json">{text}</script>{below}</figure>'
    )
