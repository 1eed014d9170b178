"""Figures of a page: charts and maps, which ``page.js`` draws from the numbers in the page."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .blocks import escaped

MOST_POINTS = 600
"""Largest number of points of a curve on a page; a screen cannot show more."""


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
