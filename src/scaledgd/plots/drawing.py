"""Axes, styles, images and colour bars that the displays share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

# the colours of Okabe and Ito; lines also differ in style and marker, for print in grey
BLACK, BLUE, VERMILION, GREEN, SKY = "#000000", "#0072B2", "#D55E00", "#009E73", "#56B4E9"
LINES = (
    {"color": BLUE, "linestyle": "-", "marker": "o"},
    {"color": VERMILION, "linestyle": "--", "marker": "s"},
    {"color": GREEN, "linestyle": "-.", "marker": "^"},
    {"color": BLACK, "linestyle": ":", "marker": "D"},
    {"color": "#CC79A7", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
)
SEQUENTIAL, DIVERGING, PARTS = "cividis", "PuOr_r", "Blues"
MISSING: dict[str, Any] = {"facecolor": "0.84", "edgecolor": "0.7", "hatch": "//////"}
PAPER = {
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "figure.dpi": 150,
    "font.size": 9,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def pyplot() -> Any:
    """Import and return ``matplotlib.pyplot``.

    Returns
    -------
    module
    """
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "scaledgd[plot]"') from error
    return pyplot


@contextmanager
def paper_style(ax: Any) -> Iterator[None]:
    """Use sizes that suit a paper on a new figure; the user's axes keep the user's style.

    Parameters
    ----------
    ax : matplotlib axes or None
    """
    with pyplot().rc_context(PAPER if ax is None else {}):
        yield


class Display:
    """Base class of the displays; `figure_` is the figure that was drawn on."""

    figure_: Any

    def _panels(self, ax: Any, size: tuple[float, float], rows: int = 1, columns: int = 1) -> Any:
        """Return axes of shape (rows, columns): the user's, or those of a new figure."""
        if ax is None:
            self.figure_ = pyplot().figure(figsize=size, layout="constrained")
            return self.figure_.subplots(rows, columns, squeeze=False)
        axes = np.atleast_1d(np.asarray(ax, dtype=object))
        if axes.size != rows * columns:
            raise ValueError(
                f"this takes {rows * columns} axes, {rows} × {columns}, not {axes.size}; leave out "
                "ax to create them"
            )
        self.figure_ = axes.flat[0].figure
        return axes.reshape(rows, columns)


# ---- lines and axes


def line_style(**kwargs: Any) -> dict[str, Any]:
    """Return keyword arguments of a line under their full names.

    Parameters
    ----------
    **kwargs : object
        Properties of a line, possibly abbreviated as in ``lw=2``.

    Returns
    -------
    dict
    """
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    known: dict[str, Any] = normalize_kwargs(kwargs, Line2D)
    return known


def mark_rank(ax: Any, x: float, label: str | None) -> Any:
    """Draw a dotted vertical line behind the curves.

    Parameters
    ----------
    ax : matplotlib axes
    x : float
    label : str or None

    Returns
    -------
    line
    """
    return ax.axvline(x, label=label, color="0.45", linestyle=":", linewidth=1.0, zorder=0)


def with_unit(label: str, unit: str) -> str:
    """Return a label followed by its unit, if there is one.

    Parameters
    ----------
    label, unit : str

    Returns
    -------
    str
    """
    return f"{label} ({unit})" if unit else label


def whole_numbers(axis: Any) -> None:
    """Put ticks at integers only.

    Parameters
    ----------
    axis : matplotlib axis
    """
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def time_axis(axis: Any) -> None:
    """Put ticks at days and times of day, with the shortest possible labels.

    Parameters
    ----------
    axis : matplotlib axis
    """
    from matplotlib import dates

    known: Any = dates  # it has no types
    locator = known.AutoDateLocator(minticks=3, maxticks=9)
    axis.set_major_locator(locator)
    axis.set_major_formatter(known.ConciseDateFormatter(locator))


def log_if_wide(ax: Any, values: Any, factor: float) -> None:
    """Use a logarithmic vertical scale if the values differ by a factor or more.

    Parameters
    ----------
    ax : matplotlib axes
    values : array
        Values that are not finite and positive are ignored.
    factor : float
    """
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    positive = values[np.isfinite(values) & (values > 0)]
    if not len(positive) or np.max(positive) < factor * np.min(positive):
        ax.ticklabel_format(axis="y", useOffset=False)
        return
    ax.set_yscale("log", nonpositive="mask")
    low, high = math.log10(np.min(positive)), math.log10(np.max(positive))
    room = 0.06 * (high - low) + 0.05
    ax.set_ylim(10 ** (low - room), 10 ** (high + room))
    if high - low < 2 and low >= -3 and high <= 5:
        # powers of ten alone would give too few ticks
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())


def legend_above(ax: Any, loc: str = "lower left", **kwargs: Any) -> None:
    """Put the legend above the axes, where nothing is drawn.

    Parameters
    ----------
    ax : matplotlib axes
    loc : {"lower left", "lower right"}
        The corner of the axes.
    **kwargs : passed to ``ax.legend``
    """
    anchor = (0.0 if loc == "lower left" else 1.0, 1.0)
    ax.legend(loc=loc, bbox_to_anchor=anchor, borderaxespad=0.2, frameon=False, **kwargs)


# ---- images


def two_modes(modes: Any, d: int) -> tuple[int, int]:
    """Check a choice of two modes.

    Parameters
    ----------
    modes : pair of int
    d : int
        The number of modes there are.

    Returns
    -------
    pair of int
    """
    first, second = (int(k) for k in modes)
    if first == second or not (0 <= first < d and 0 <= second < d):
        raise ValueError(f"modes must be two different ones of 0 .. {d - 1}, not {modes!r}")
    return first, second


def mode_labels(modes: tuple[int, int], d: int) -> tuple[str, str]:
    """Return the labels of the vertical and the horizontal axis.

    Parameters
    ----------
    modes : pair of int
    d : int
        The number of modes there are.

    Returns
    -------
    pair of str
    """
    if d == 2:
        names = ("row", "column")
        return names[modes[0]], names[modes[1]]
    return f"mode {modes[0]}", f"mode {modes[1]}"


def draw_image(ax: Any, values: Any, shape: Sequence[int], **kwargs: Any) -> Any:
    """Draw an image in the coordinates of the table; NaN shows the hatched background.

    Parameters
    ----------
    ax : matplotlib axes
    values : array of shape (b1, b2)
    shape : (n1, n2)
        Of the table.
    **kwargs : passed to ``ax.imshow``

    Returns
    -------
    image
    """
    n1, n2 = shape
    ax.patch.set(**MISSING)
    ax.spines[:].set_visible(True)
    chosen = {"interpolation": "nearest", "aspect": "auto", "rasterized": True, **kwargs}
    whole_numbers(ax.xaxis)
    whole_numbers(ax.yaxis)
    return ax.imshow(values, extent=(-0.5, n2 - 0.5, n1 - 0.5, -0.5), **chosen)


def draw_colorbar(figure: Any, image: Any, values: Any, **kwargs: Any) -> Any:
    """Draw a colour bar whose ends show whether values exceed it.

    Parameters
    ----------
    figure : matplotlib figure
    image : image
    values : array
        All values that the colours represent.
    **kwargs : passed to ``figure.colorbar``

    Returns
    -------
    colour bar
    """
    low, high = image.get_clim()
    values = np.asarray(values)
    under, over = bool(np.any(values < low)), bool(np.any(values > high))
    ends = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[under, over]
    bar = figure.colorbar(image, extend=ends, **kwargs)
    bar.outline.set_linewidth(0.5)
    return bar


def name_missing(ax: Any) -> None:
    """Explain the hatched background in a legend above the axes.

    Parameters
    ----------
    ax : matplotlib axes
    """
    from matplotlib.patches import Patch

    legend_above(ax, "lower right", handles=[Patch(label="missing", **MISSING)])
