"""What the displays share: axes, styles, and large tables in blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..estimators.local_observations import LocalObservations
from ..estimators.packing import host

Array = Any

# Okabe and Ito's colours; every line has a style and a marker of its own besides, for print in grey
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
PIXELS = 600
"""Rows and columns that an image has at most; larger tables are drawn in blocks."""


def pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "scaledgd[plot]"') from error
    return pyplot


@contextmanager
def paper_style(ax: Any) -> Iterator[None]:
    """The sizes of a paper on a figure of ours; a user's axes have the user's style."""
    with pyplot().rc_context(PAPER if ax is None else {}):
        yield


class Display:
    figure_: Any

    def _panels(self, ax: Any, size: tuple[float, float], rows: int = 1, columns: int = 1) -> Any:
        """Axes of shape (rows, columns): the user's, or those of a new figure."""
        if ax is None:
            self.figure_ = pyplot().figure(figsize=size, layout="constrained")
            return self.figure_.subplots(rows, columns, squeeze=False)
        axes = np.atleast_1d(np.asarray(ax, dtype=object))
        if axes.size != rows * columns:
            raise ValueError(
                f"this takes {rows * columns} axes, {rows} × {columns}, not {axes.size}; leave ax "
                "out to have them made"
            )
        self.figure_ = axes.flat[0].figure
        return axes.reshape(rows, columns)


def training_cells(estimator: Any, all_seen: bool = False) -> Any:
    """The cells that a model was fitted to, or all that were observed."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    model: Any = getattr(estimator, "_model", None)
    if not hasattr(model, "observations"):
        raise TypeError(
            f"{type(estimator).__name__} was not fitted to the cells of a table or a tensor"
        )
    cells, held = model.observations, model.held
    if held is None or not all_seen:
        return cells
    pairs = zip(cells.coordinates, held.coordinates, strict=True)
    index = tuple(np.concatenate([host(i), host(j)]) for i, j in pairs)
    return LocalObservations(
        index, np.concatenate([host(cells.flat), host(held.flat)]), cells.shape
    )


def with_unit(label: str, unit: str) -> str:
    return f"{label} ({unit})" if unit else label


def block_edges(n: int, most: int | None = None) -> Any:
    """Where the blocks begin that n rows are drawn in, and n."""
    return np.linspace(0, n, min(n, most or PIXELS) + 1).round().astype(np.int64)


def binned(
    index: Sequence[Any], shape: Sequence[int], weights: Any = None, most: int | None = None
) -> Any:
    """The sums of weights (of ones) over blocks of two modes, from coordinates alone."""
    edges = [block_edges(n, most) for n in shape]
    i, j = (np.searchsorted(e, k, side="right") - 1 for e, k in zip(edges, index, strict=True))
    blocks = tuple(len(e) - 1 for e in edges)
    flat = np.bincount(i * blocks[1] + j, weights, minlength=math.prod(blocks))
    return flat.reshape(blocks).astype(np.float64)


def reduced(ufunc: Any, x: Any) -> Any:
    for axis in (0, 1):
        x = ufunc.reduceat(x, block_edges(x.shape[axis])[:-1], axis=axis)
    return x


def block_means(x: Any) -> Any:
    """The means of blocks, without what is NaN."""
    if max(x.shape) <= PIXELS:
        return x
    known = np.isfinite(x)
    counts = reduced(np.add, known.astype(np.float64))
    sums = reduced(np.add, np.where(known, x, 0.0))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def block_extremes(x: Any) -> Any:
    """The largest deviations from 0 of blocks: a mean would dilute single cells away."""
    if max(x.shape) <= PIXELS:
        return x
    high, low = reduced(np.maximum, x), reduced(np.minimum, x)
    return np.where(high >= -low, high, low)


def draw_image(ax: Any, values: Any, shape: Sequence[int], **kwargs: Any) -> Any:
    """An image in the coordinates of the table; what is NaN shows the hatched background."""
    n1, n2 = shape
    ax.patch.set(**MISSING)
    ax.spines[:].set_visible(True)
    chosen = {"interpolation": "nearest", "aspect": "auto", "rasterized": True, **kwargs}
    whole_numbers(ax.xaxis)
    whole_numbers(ax.yaxis)
    return ax.imshow(values, extent=(-0.5, n2 - 0.5, n1 - 0.5, -0.5), **chosen)


def name_missing(ax: Any) -> None:
    from matplotlib.patches import Patch

    # beside the title, where nothing is drawn
    ax.legend(
        handles=[Patch(label="missing", **MISSING)],
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.2,
        frameon=False,
    )


def whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def log_if_wide(ax: Any, values: Any, factor: float) -> None:
    """A log scale, unless values are so close to each other that it would have no ticks."""
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
        # powers of ten alone would be too few, and are not needed
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())


def line_style(**kwargs: Any) -> dict[str, Any]:
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    known: dict[str, Any] = normalize_kwargs(kwargs, Line2D)
    return known


def extension(values: Any, low: float, high: float) -> str:
    """Which ends of a colour bar are exceeded."""
    under, over = bool(np.nanmin(values) < low), bool(np.nanmax(values) > high)
    return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[under, over]
