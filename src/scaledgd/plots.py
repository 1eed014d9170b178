"""Pictures of fitted models, of what was missing, and of what is left; they need matplotlib.

Every class is a display in the sense of scikit-learn: it holds the numbers that are drawn, so that
it can be made by hand; ``from_estimator`` reads them from a fitted model and draws, ``plot``
draws. With ``ax`` it draws on your axes, in your style; without, on a new figure whose sizes are
those of a paper. Images are rasterised, all else stays vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

__all__ = [
    "ConvergenceDisplay",
    "IntervalDisplay",
    "MissingDisplay",
    "RankCurveDisplay",
    "ResidualDisplay",
    "SeparationDisplay",
    "SpectrumDisplay",
]

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


# ---- what the displays share


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "scaledgd[plot]"') from error
    return pyplot


@contextmanager
def _style(ax: Any) -> Iterator[None]:
    """The sizes of a paper on a figure of ours; a user's axes have the user's style."""
    with _pyplot().rc_context(PAPER if ax is None else {}):
        yield


class _Display:
    figure_: Any

    def _panels(self, ax: Any, size: tuple[float, float], rows: int = 1, columns: int = 1) -> Any:
        """Axes of shape (rows, columns): the user's, or those of a new figure."""
        if ax is None:
            self.figure_ = _pyplot().figure(figsize=size, layout="constrained")
            return self.figure_.subplots(rows, columns, squeeze=False)
        axes = np.atleast_1d(np.asarray(ax, dtype=object))
        if axes.size != rows * columns:
            raise ValueError(
                f"this takes {rows * columns} axes, {rows} × {columns}, not {axes.size}; leave ax "
                "out to have them made"
            )
        self.figure_ = axes.flat[0].figure
        return axes.reshape(rows, columns)


def _host(x: Any) -> Any:
    """A NumPy array, wherever x lives."""
    return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)


def _cells(estimator: Any) -> Any:
    """The cells that a model was fitted to."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(estimator)
    if not hasattr(estimator, "_cells"):
        raise TypeError(
            f"{type(estimator).__name__} was not fitted to the cells of a table or a tensor"
        )
    return estimator._cells


def _with_unit(label: str, unit: str) -> str:
    return f"{label} ({unit})" if unit else label


def _edges(n: int, most: int | None = None) -> Any:
    """Where the blocks begin that n rows are drawn in, and n."""
    return np.linspace(0, n, min(n, most or PIXELS) + 1).round().astype(np.int64)


def _binned(
    index: Sequence[Any], shape: Sequence[int], weights: Any = None, most: int | None = None
) -> Any:
    """The sums of weights (of ones) over blocks of two modes, from coordinates alone."""
    edges = [_edges(n, most) for n in shape]
    i, j = (np.searchsorted(e, k, side="right") - 1 for e, k in zip(edges, index, strict=True))
    blocks = tuple(len(e) - 1 for e in edges)
    flat = np.bincount(i * blocks[1] + j, weights, minlength=math.prod(blocks))
    return flat.reshape(blocks).astype(np.float64)


def _reduced(ufunc: Any, x: Any) -> Any:
    for axis in (0, 1):
        x = ufunc.reduceat(x, _edges(x.shape[axis])[:-1], axis=axis)
    return x


def _means(x: Any) -> Any:
    """The means of blocks, without what is NaN."""
    if max(x.shape) <= PIXELS:
        return x
    known = np.isfinite(x)
    counts = _reduced(np.add, known.astype(np.float64))
    sums = _reduced(np.add, np.where(known, x, 0.0))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _extremes(x: Any) -> Any:
    """The largest deviations from 0 of blocks: a mean would dilute single cells away."""
    if max(x.shape) <= PIXELS:
        return x
    high, low = _reduced(np.maximum, x), _reduced(np.minimum, x)
    return np.where(high >= -low, high, low)


def _image(ax: Any, values: Any, shape: Sequence[int], **kwargs: Any) -> Any:
    """An image in the coordinates of the table; what is NaN shows the hatched background."""
    n1, n2 = shape
    ax.patch.set(**MISSING)
    ax.spines[:].set_visible(True)
    chosen = {"interpolation": "nearest", "aspect": "auto", "rasterized": True, **kwargs}
    return ax.imshow(values, extent=(-0.5, n2 - 0.5, n1 - 0.5, -0.5), **chosen)


def _name_missing(ax: Any) -> None:
    from matplotlib.patches import Patch

    # beside the title, where nothing is drawn
    ax.legend(
        handles=[Patch(label="missing", **MISSING)],
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.2,
        frameon=False,
    )


def _whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _log_if_wide(ax: Any, values: Any, factor: float) -> None:
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


def _lines(**kwargs: Any) -> dict[str, Any]:
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    known: dict[str, Any] = normalize_kwargs(kwargs, Line2D)
    return known


def _extend(values: Any, low: float, high: float) -> str:
    """Which ends of a colour bar are exceeded."""
    under, over = bool(np.nanmin(values) < low), bool(np.nanmax(values) > high)
    return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[under, over]


# ---- how a fit went


@dataclass(eq=False, repr=False)
class ConvergenceDisplay(_Display):
    """The loss against iterations or time, with the stages of the fit.

    Losses are those of the data divided by their size, as in ``history_``. The scale is
    logarithmic where they differ by a factor of 3 or more; a loss of 0 is a triangle at the lower
    edge.

    Parameters
    ----------
    losses : array of shape (m,)
    seconds : array of shape (m,), optional
    stages : sequence of m str, optional
        Bands of alternating shade, where there is more than one.
    against : {"iteration", "seconds"}

    Attributes
    ----------
    ax_, figure_, line_ : what was drawn, after `plot`

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from scaledgd import MatrixCompletion
    >>> from scaledgd.plots import ConvergenceDisplay
    >>> model = MatrixCompletion(rank=1).fit(np.outer(np.arange(1, 9), np.arange(1, 7)))
    >>> display = ConvergenceDisplay.from_estimator(model, ax=Figure().subplots())
    >>> display.ax_.get_xlabel(), len(display.losses) == len(model.history_)
    ('iteration', True)
    """

    losses: Array
    seconds: Array | None = None
    stages: Sequence[str] | None = None
    against: str = "iteration"

    def __post_init__(self) -> None:
        self.losses = np.asarray(self.losses, dtype=np.float64)
        if self.against not in ("iteration", "seconds"):
            raise ValueError(f'against must be "iteration" or "seconds", not {self.against!r}')
        if self.against == "seconds" and self.seconds is None:
            raise ValueError('against="seconds" needs the seconds')

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, against: str = "iteration", ax: Any = None, **kwargs: Any
    ) -> Self:
        """Draw ``history_`` of any estimator.

        Parameters
        ----------
        estimator : fitted estimator
        against : {"iteration", "seconds"}
        ax : matplotlib axes, optional
        **kwargs : passed to ``ax.plot``

        Returns
        -------
        display
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(estimator)
        history = estimator.history_
        if not history:
            raise ValueError(f"there was no iteration: {estimator.status_}")
        display = cls(
            [float(record["value"]) for record in history],
            [float(record["seconds"]) for record in history],
            [record.get("stage", "") for record in history],
            against,
        )
        return display.plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw; keyword arguments are passed to ``ax.plot``."""
        with _style(ax):
            ax = self._panels(ax, (3.5, 2.6))[0, 0]
            timed = self.against == "seconds"
            x = np.asarray(self.seconds) if timed else np.arange(len(self.losses))
            look = {**LINES[0], "marker": "o" if len(x) <= 40 else "", "markersize": 3}
            (self.line_,) = ax.plot(x, self.losses, **{**look, **_lines(**kwargs)})
            _log_if_wide(ax, self.losses, 3.0)
            gone = self.losses <= 0
            if ax.get_yscale() == "log" and gone.any():
                ax.plot(
                    x[gone],
                    np.zeros(int(gone.sum())),
                    "v",
                    color=self.line_.get_color(),
                    transform=ax.get_xaxis_transform(),
                    clip_on=False,
                    label="loss 0",
                )
                ax.legend()
            ax.set_xlabel("time (s)" if timed else "iteration")
            ax.set_ylabel("loss")
            if not timed:
                _whole_numbers(ax.xaxis)
            self._shade(ax, x)
            self.ax_ = ax
        return self

    def _shade(self, ax: Any, x: Any) -> None:
        names = self.stages or []
        begins = [k for k in range(1, len(names)) if names[k] != names[k - 1]]
        if not begins:
            return
        # a record comes after its iteration, so a stage begins at the last record of the one before
        ends = [x[0], *(x[k - 1] for k in begins), x[-1]]
        titles = [names[k] for k in [0, *begins]]
        span = max(float(ends[-1] - ends[0]), 1e-300)
        shares = [float(b - a) / span for a, b in pairwise(ends)]
        width = 72 * ax.get_window_extent().width / ax.figure.dpi
        flat = all(
            share * width > 4.2 * len(t) + 6 for share, t in zip(shares, titles, strict=True)
        )
        last = -math.inf
        for k, title in enumerate(titles):
            a, b = ends[k], ends[k + 1]
            if k % 2:
                ax.axvspan(a, b, color="0.92", linewidth=0, zorder=0)
            middle = (a + b) / 2
            if (middle - last) / span * width < 11:
                continue  # no room for its name
            last = middle
            ax.annotate(
                title,
                (middle, 1.0),
                (0, 3),
                xycoords=ax.get_xaxis_transform(),
                textcoords="offset points",
                ha="center" if flat else "left",
                va="bottom",
                rotation=0 if flat else 40,
                rotation_mode="anchor",
                fontsize="small",
                color="0.25",
            )
        ax.set_xlim(ends[0] - 0.02 * span, ends[-1] + 0.02 * span)


# ---- ranks


@dataclass(eq=False, repr=False)
class SpectrumDisplay(_Display):
    """Singular values, the rank that is used, and the level that noise alone would reach.

    Parameters
    ----------
    singular_values : array of shape (r,), or a sequence of arrays, one per mode of a tensor
    rank : int, or tuple of int, one per mode
    noise : float, optional
        A dashed line.
    unit : str
        Of the data.

    Attributes
    ----------
    ax_, figure_ : what was drawn on, after `plot`
    lines_ : list of lines, one per mode
    rank_lines_ : list of lines, one per different rank

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from scaledgd.plots import SpectrumDisplay
    >>> display = SpectrumDisplay([9.0, 5.0, 0.3, 0.2], rank=2, noise=0.4)
    >>> display.plot(Figure().subplots()).ax_.get_yscale()
    'log'
    """

    singular_values: Any
    rank: Any
    noise: float | None = None
    unit: str = ""

    @property
    def _modes(self) -> list[tuple[Any, int]]:
        """Singular values and rank of every mode."""
        if isinstance(self.rank, (tuple, list)):
            return [
                (_host(s), int(r)) for s, r in zip(self.singular_values, self.rank, strict=True)
            ]
        return [(_host(self.singular_values), int(self.rank))]

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, unit: str = "", ax: Any = None, **kwargs: Any
    ) -> Self:
        """Draw ``singular_values_`` of any estimator.

        The level of the noise is drawn for tables whose rows and columns were not scaled: there
        independent noise of variance ``noise_variance_``, seen in a fraction p of n1 × n2 cells,
        has singular values up to √(noise_variance_ / p) (√n1 + √n2).

        Parameters
        ----------
        estimator : fitted estimator
        unit : str
        ax : matplotlib axes, optional
        **kwargs : passed to ``ax.plot``

        Returns
        -------
        display
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(estimator)
        noise, cells = None, getattr(estimator, "_cells", None)
        even = getattr(estimator, "scale_", "none") == "none"
        if cells is not None and len(cells.shape) == 2 and even:
            rejected = estimator.outliers_.nnz if hasattr(estimator, "outliers_") else 0
            p = (cells.size - rejected) / math.prod(cells.shape)
            edge = sum(map(math.sqrt, cells.shape))
            noise = math.sqrt(estimator.noise_variance_ / max(p, 1e-300)) * edge
        values = estimator.singular_values_
        values = tuple(map(_host, values)) if isinstance(values, tuple) else _host(values)
        return cls(values, estimator.rank_, noise, unit).plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw; keyword arguments are passed to ``ax.plot``."""
        with _style(ax):
            ax = self._panels(ax, (3.5, 2.6))[0, 0]
            several = len(self._modes) > 1
            self.lines_, longest = [], 1
            for k, (s, r) in enumerate(self._modes):
                longest = max(longest, len(s), r)
                look = {**LINES[k % len(LINES)], "linewidth": 1.0, **_lines(**kwargs)}
                label = f"mode {k}, rank {r}" if several else None
                self.lines_ += ax.plot(np.arange(1, len(s) + 1), s, **{"label": label, **look})
            ranks = sorted({r for _, r in self._modes})
            style = {"color": "0.45", "linestyle": ":", "linewidth": 1.0, "zorder": 0}
            self.rank_lines_ = [
                ax.axvline(r, label=None if several else f"rank {r}", **style) for r in ranks
            ]
            shown = np.concatenate([s for s, _ in self._modes])
            if self.noise is not None and self.noise > 1e-12 * max(shown, default=0.0):
                # below that it is rounding, and would only stretch the axis
                ax.axhline(self.noise, color=VERMILION, linestyle="--", label="noise")
                shown = np.append(shown, self.noise)
            _log_if_wide(ax, shown, 1.0)
            # indices begin with 1, and so do the ticks
            ax.set_xlim(0.5 if longest < 15 else 0.1, longest + max(0.5, 0.03 * longest))
            if not min(ranks):
                ax.set_xlim(left=-0.2)
            _whole_numbers(ax.xaxis)
            ax.set_xlabel("index")
            ax.set_ylabel(_with_unit("singular value", self.unit))
            ax.legend()
            self.ax_ = ax
        return self


@dataclass(eq=False, repr=False)
class RankCurveDisplay(_Display):
    """Held-out errors against the rank.

    Parameters
    ----------
    ranks : sequence of int, or of tuples of int
        Tuples are drawn at equal distances.
    errors : array of shape (m,)
    spread : array of shape (m,), optional
        Half the lengths of error bars.
    chosen : int or tuple, optional
        Marked by a vertical line; a tuple, at the smallest of `ranks` that holds it.
    label : str
        Of the errors.
    unit : str

    Attributes
    ----------
    ax_, figure_ : what was drawn on, after `plot`
    line_, chosen_line_ : the curve, and what marks the chosen rank (or None)

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from scaledgd.plots import RankCurveDisplay
    >>> display = RankCurveDisplay([1, 2, 3], [0.9, 0.2, 0.3], spread=[0.1, 0.1, 0.1], chosen=2)
    >>> display.plot(Figure().subplots()).ax_.get_xlabel()
    'rank'
    """

    ranks: Sequence[Any]
    errors: Array
    spread: Array | None = None
    chosen: Any = None
    label: str = "held-out error"
    unit: str = ""

    def __post_init__(self) -> None:
        self.ranks = [tuple(r) if isinstance(r, (tuple, list)) else int(r) for r in self.ranks]
        self.errors = np.asarray(self.errors, dtype=np.float64)
        if isinstance(self.chosen, list):
            self.chosen = tuple(self.chosen)

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, unit: str = "", ax: Any = None, **kwargs: Any
    ) -> Self:
        """Draw the held-out errors of ``rank_path_``, for the offsets and scales that were used.

        Errors are root mean squares, in the units of the data; for regression, in standard
        deviations of y.

        Parameters
        ----------
        estimator : estimator fitted with ``rank="auto"`` and without outliers
        unit : str
        ax : matplotlib axes, optional
        **kwargs : passed to ``ax.errorbar``

        Returns
        -------
        display
        """
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(estimator)
        found = _held_out(estimator)
        if not found:
            raise ValueError(
                'rank_path_ has no held-out errors; fit with rank="auto", or use '
                "scaledgd.rank_curve"
            )
        model = getattr(estimator, "_model", None)
        size, label = getattr(model, "size", 1.0), "held-out RMS error"
        if model is None:
            label += " / sd of y"
        errors = size * np.sqrt(list(found.values()))
        return cls(list(found), errors, None, estimator.rank_, label, unit).plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw; keyword arguments are passed to ``ax.errorbar``."""
        with _style(ax):
            ax = self._panels(ax, (3.5, 2.6))[0, 0]
            named = any(isinstance(r, tuple) for r in self.ranks)
            x = list(range(len(self.ranks))) if named else list(self.ranks)
            look = {**LINES[0], "capsize": 2.5, "elinewidth": 1.0, **_lines(**kwargs)}
            bars = ax.errorbar(x, self.errors, self.spread, **look)
            self.line_, self.chosen_line_ = bars.lines[0], None
            if named:
                turned = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
                ax.set_xticks(x, map(_times, self.ranks), **(turned if len(x) > 4 else {}))
            else:
                _whole_numbers(ax.xaxis)
            place = self._place(self.chosen) if named else self.chosen
            if place is not None:
                style = {"color": "0.45", "linestyle": ":", "linewidth": 1.0, "zorder": 0}
                name = f"chosen: {_times(self.chosen)}"
                self.chosen_line_ = ax.axvline(place, label=name, **style)
                ax.legend(handles=[self.chosen_line_])
                x = [*x, place]
            room = max(0.3, 0.04 * (max(x) - min(x)))
            ax.set_xlim(min(x) - room, max(x) + room)
            lowest = self.errors if self.spread is None else self.errors - np.asarray(self.spread)
            if np.all(lowest > 0):
                _log_if_wide(ax, np.concatenate([lowest, 2 * self.errors - lowest]), 5.0)
            ax.set_xlabel("rank")
            ax.set_ylabel(_with_unit(self.label, self.unit))
            self.ax_ = ax
        return self

    def _place(self, chosen: Any) -> int | None:
        """Where a tuple is marked: at the smallest of those tried that holds it.

        Modes are cut after the search, so it need not be among them.
        """
        if chosen is None:
            return None
        holds = [k for k, r in enumerate(self.ranks) if np.all(np.subtract(r, chosen) >= 0)]
        return min(holds, key=lambda k: math.prod(self.ranks[k]), default=None)


def _times(rank: Any) -> str:
    return " × ".join(map(str, np.atleast_1d(rank)))


def _held_out(estimator: Any) -> dict[Any, float]:
    """Mean squared held-out errors by rank, of the offsets and scales that were used."""
    records = [r for r in estimator.rank_path_ if "held_out" in r]
    used = {"center": estimator.center_, "scale": estimator.scale_}
    records = [r for r in records if all(r.get(k, v) == v for k, v in used.items())]
    ridged = any("ridge" in r for r in records)
    if ridged:
        if len(records) > 1 and len({r["rank"] for r in records}) == 1:
            return {}  # the rank was given, and only ridges were tried
        records = [r for r in records if r["ridge"] == records[0]["ridge"]]
    found: dict[Any, float] = {}
    for record in records:
        rank = record["rank"]
        if isinstance(rank, tuple) and not isinstance(estimator.rank_, tuple):
            rank = rank[0]
        # a table comes to the same rank again with more sweeps; a regression, with other cells
        # held out, which do not compare
        if not (ridged and rank in found):
            found[rank] = float(record["held_out"])
    return dict(sorted(found.items()))


# ---- what was seen


@dataclass(eq=False, repr=False)
class MissingDisplay(_Display):
    """Which cells were observed, and the fractions observed of every row and column.

    A table that fits on pixels is drawn cell by cell; of larger ones, and of tensors, the fractions
    observed of blocks are drawn.

    Parameters
    ----------
    fraction : array of shape (b1, b2)
        The fraction observed of every block; 0 and 1 where blocks are cells.
    row_fraction, column_fraction : arrays of shape (n1,) and (n2,)
    labels : pair of str
        Of the vertical axis and the horizontal one.

    Attributes
    ----------
    ax_, figure_ : what was drawn on, after `plot`
    row_ax_, column_ax_ : the slim panels at the right and at the top
    image_ : the image

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from scaledgd.plots import MissingDisplay
    >>> X = np.array([[1.0, np.nan, 2.0], [3.0, 4.0, np.nan]])
    >>> display = MissingDisplay.from_data(X, ax=Figure().subplots())
    >>> display.fraction
    array([[1., 0., 1.],
           [1., 1., 0.]])
    """

    fraction: Array
    row_fraction: Array
    column_fraction: Array
    labels: tuple[str, str] = ("row", "column")

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, modes: tuple[int, int] = (0, 1), ax: Any = None, **kwargs: Any
    ) -> Self:
        """Draw what a model was fitted to.

        Parameters
        ----------
        estimator : fitted completion or robust PCA
        modes : pair of int
            Of a tensor: the vertical and the horizontal axis; fractions are over the others.
        ax : matplotlib axes, optional
            The slim panels are placed around it.
        **kwargs : passed to ``ax.imshow``

        Returns
        -------
        display
        """
        return cls._of(_cells(estimator), modes).plot(ax, **kwargs)

    @classmethod
    def from_data(
        cls,
        X: Any,
        observed: Any = None,
        *,
        modes: tuple[int, int] = (0, 1),
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw what is missing of data.

        Parameters
        ----------
        X : array, masked array, frame, torch tensor or sparse matrix
            NaN is missing; of a sparse matrix, what is not stored.
        observed : boolean array of the shape of X, optional
        modes, ax, **kwargs : as in `from_estimator`

        Returns
        -------
        display
        """
        from scipy import sparse

        from .estimators.tables import read_tensor

        cells = _stored(X) if sparse.issparse(X) else read_tensor(X, observed)[0]
        return cls._of(cells, modes).plot(ax, **kwargs)

    @classmethod
    def _of(cls, cells: Any, modes: tuple[int, int]) -> Self:
        modes = _two_modes(modes, len(cells.shape))
        index = [_host(cells.coordinates[k]) for k in modes]
        shape = [cells.shape[k] for k in modes]
        total = math.prod(cells.shape)
        others = total // math.prod(shape)
        most = None
        if max(shape) > PIXELS:
            # a fraction of a block says something only where a few of its cells are observed
            most = max(min(PIXELS, 50), min(PIXELS, math.isqrt(len(index[0]) // 4)))
        sizes = np.outer(*(np.diff(_edges(n, most)) for n in shape))
        fraction = _binned(index, shape, most=most) / (sizes * others)
        rows, columns = (
            np.bincount(i, minlength=n) * (n / total) for i, n in zip(index, shape, strict=True)
        )
        return cls(fraction, rows, columns, _mode_labels(modes, len(cells.shape)))

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw; keyword arguments are passed to ``ax.imshow``."""
        with _style(ax):
            from matplotlib import colormaps
            from matplotlib.colors import ListedColormap

            ax = self._panels(ax, (3.5, 3.0))[0, 0]
            fraction = np.asarray(self.fraction, dtype=np.float64)
            sides = np.asarray(self.row_fraction), np.asarray(self.column_fraction)
            binary = bool(np.isin(fraction, (0.0, 1.0)).all())
            cmap, top = colormaps[PARTS], 1.0
            if binary:
                cmap = ListedColormap([cmap(0.0), cmap(0.95)])
            else:
                top = float(np.percentile(fraction, 99.9)) or float(fraction.max())
            look = {"cmap": cmap, "vmin": 0.0, "vmax": top, **kwargs}
            self.image_ = _image(ax, fraction, [len(side) for side in sides], **look)
            ax.set_ylabel(self.labels[0])
            ax.set_xlabel(self.labels[1])
            self.row_ax_ = _attached(ax, "right", (5, 33), sharey=ax)
            self.column_ax_ = _attached(ax, "top", (9, 37), sharex=ax)
            self._side(self.row_ax_, sides[0], binary, "horizontal")
            self._side(self.column_ax_, sides[1], binary, "vertical")
            self.row_ax_.set_xlabel("fraction", fontsize="small")
            self.column_ax_.set_ylabel("fraction", fontsize="small")
            bar = self.figure_.colorbar(
                self.image_,
                cax=_attached(ax, "right", (43, 50)),
                extend=_extend(fraction, *self.image_.get_clim()),
            )
            bar.outline.set_linewidth(0.5)
            if binary:
                turned = {"rotation": 90, "va": "center"}
                bar.set_ticks([0.25, 0.75], labels=["missing", "observed"], **turned)
                bar.ax.tick_params(length=0)
            else:
                bar.set_label("fraction observed")
            self.ax_ = ax
        return self

    def _side(self, ax: Any, values: Any, binary: bool, orientation: str) -> None:
        edges = _edges(len(values))
        means = np.add.reduceat(values, edges[:-1]) / np.diff(edges)
        ax.stairs(means, edges - 0.5, orientation=orientation, fill=True, color="0.45")
        ax.spines[["top", "right"]].set_visible(False)
        end = 1.0 if binary else _round_up(float(means.max()))
        # a slim panel has room for its two ends only
        if orientation == "vertical":
            ax.set_ylim(0.0, end)
            ax.set_yticks([0.0, end], ["0", f"{end:g}"])
            ax.tick_params(labelbottom=False)
        else:
            ax.set_xlim(0.0, end)
            ax.set_xticks([0.0, end], ["0", f"{end:g}"])
            ax.tick_params(labelleft=False)


def _attached(ax: Any, side: str, points: tuple[float, float], **kwargs: Any) -> Any:
    """Axes along an edge of another, from so many points off it to so many.

    They are children of the other, which they follow through every layout. A width in points,
    not relative to the other, is what lets constrained layouts settle.
    """
    from matplotlib.transforms import Bbox

    def locate(_axes: Any, _renderer: Any) -> Any:
        near, far = (p * ax.figure.dpi / 72 for p in points)
        x0, y0, x1, y1 = ax.bbox.extents
        box = (x1 + near, y0, x1 + far, y1) if side == "right" else (x0, y1 + near, x1, y1 + far)
        return Bbox.from_extents(*box).transformed(ax.figure.transSubfigure.inverted())

    child = ax.inset_axes((0.0, 0.0, 1.0, 1.0), **kwargs)
    child.set_axes_locator(locate)
    return child


def _stored(X: Any) -> Any:
    """The cells that a sparse matrix stores."""
    from .estimators.cells import Cells

    entries = X.tocoo()
    return Cells((entries.row, entries.col), entries.data, tuple(X.shape))


def _round_up(x: float) -> float:
    """The next number with one digit, at most 1."""
    if not 0 < x < 1:
        return 1.0
    digit = 10.0 ** math.floor(math.log10(x))
    return min(1.0, float(f"{math.ceil(x / digit - 1e-9) * digit:.1g}"))


def _two_modes(modes: Any, d: int) -> tuple[int, int]:
    first, second = (int(k) for k in modes)
    if first == second or not (0 <= first < d and 0 <= second < d):
        raise ValueError(f"modes must be two different ones of 0 .. {d - 1}, not {modes!r}")
    return first, second


def _mode_labels(modes: tuple[int, int], d: int) -> tuple[str, str]:
    if d == 2:
        names = ("row", "column")
        return names[modes[0]], names[modes[1]]
    return f"mode {modes[0]}", f"mode {modes[1]}"


# ---- what was found


@dataclass(eq=False, repr=False)
class SeparationDisplay(_Display):
    """Data, their low-rank part and the outliers, side by side.

    Data and low-rank part share a colour scale, which single wild cells do not stretch; the
    scale of the outliers is symmetric about 0. With `frames` and `image_shape` rows (or columns)
    of the table are shown as images, and so are slices of a tensor of three modes.

    Parameters
    ----------
    data : array of shape (n1, n2), or (frames, height, width)
        NaN is missing.
    low_rank, outliers : arrays of the shape of data
        Outliers are 0 where there is none.
    frames : sequence of int, optional
        Which to show, one line of pictures each.
    image_shape : (height, width), optional
        Of a frame; needed for frames of a table.
    order : {"C", "F"}
        How the pixels of a frame are arranged: row by row, or column by column.
    rows_are : {"frames", "pixels"}
    unit : str

    Attributes
    ----------
    axes_ : array of axes of shape (1, 3), or (len(frames), 3)
    figure_ : what was drawn on
    images_ : array of images, like axes_

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from scaledgd import RobustPCA
    >>> from scaledgd.plots import SeparationDisplay
    >>> X = np.outer(np.arange(1.0, 21), np.arange(1.0, 16))
    >>> X[3, 4] = -90.0
    >>> model = RobustPCA(rank=1).fit(X)
    >>> display = SeparationDisplay.from_estimator(model, ax=Figure().subplots(1, 3))
    >>> [ax.get_title(loc="left") for ax in display.axes_[0]]
    ['data', 'low-rank', 'outliers']
    """

    data: Array
    low_rank: Array
    outliers: Array
    frames: Sequence[int] | None = None
    image_shape: tuple[int, int] | None = None
    order: str = "C"
    rows_are: str = "frames"
    unit: str = ""

    def __post_init__(self) -> None:
        self.data, self.low_rank, self.outliers = (
            np.asarray(_host(x), dtype=np.float64)
            for x in (self.data, self.low_rank, self.outliers)
        )
        if self.order not in ("C", "F"):
            raise ValueError(f'order must be "C" or "F", not {self.order!r}')
        if self.rows_are not in ("frames", "pixels"):
            raise ValueError(f'rows_are must be "frames" or "pixels", not {self.rows_are!r}')
        d = self.data.ndim
        if d not in (2, 3):
            raise ValueError(f"tables and tensors of three modes can be shown, not of {d}")
        if d == 3 and self.frames is None:
            raise ValueError("say which slices of mode 0 to show: frames=[0, 10]")
        if d == 2 and (self.frames is None) != (self.image_shape is None):
            raise ValueError("frames of a table need both frames and image_shape")
        if d == 2 and self.image_shape is not None:
            pixels = self.data.shape[1 if self.rows_are == "frames" else 0]
            if math.prod(self.image_shape) != pixels:
                raise ValueError(
                    f"image_shape {self.image_shape} has {math.prod(self.image_shape)} pixels, "
                    f"but a frame has {pixels}; are rows {self.rows_are}?"
                )

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        frames: Sequence[int] | None = None,
        image_shape: tuple[int, int] | None = None,
        order: str = "C",
        rows_are: str = "frames",
        unit: str = "",
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw what a model has separated.

        Parameters
        ----------
        estimator : fitted estimator that has ``outliers_``
            A robust PCA, or a completion with outliers.
        frames, image_shape, order, rows_are, unit : as of the class
        ax : three matplotlib axes, or len(frames) × 3, optional
        **kwargs : passed to ``ax.imshow`` for data and low-rank part

        Returns
        -------
        display
        """
        cells = _cells(estimator)
        if not hasattr(estimator, "outliers_"):
            raise ValueError('nothing was separated: fit RobustPCA, or with outliers="auto"')
        data, outliers = np.full(cells.shape, np.nan), np.zeros(cells.shape)
        data[tuple(_host(i) for i in cells.coordinates)] = _host(cells.flat)
        outliers[estimator.outliers_.coords] = estimator.outliers_.data
        low_rank = _host(estimator.reconstruct())
        display = cls(data, low_rank, outliers, frames, image_shape, order, rows_are, unit)
        return display.plot(ax, **kwargs)

    def _pictures(self) -> list[Any]:
        """Data, low-rank part and outliers of every line."""
        parts = self.data, self.low_rank, self.outliers
        if self.frames is None:
            return [parts]
        if self.data.ndim == 3:
            return [(parts[0][k], parts[1][k], parts[2][k]) for k in self.frames]
        if self.rows_are == "pixels":
            parts = parts[0].T, parts[1].T, parts[2].T
        size, order = self.image_shape, self.order
        return [tuple(x[k].reshape(size, order=order) for x in parts) for k in self.frames]

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw; keyword arguments are passed to ``ax.imshow`` for data and low-rank part."""
        lines, moving = self._pictures(), self.frames is not None
        height, width = lines[0][0].shape
        tall = 2.2 * height / width if moving else 2.1
        with _style(ax):
            axes = self._panels(ax, (7.0, tall * len(lines) + 0.75), len(lines), 3)
            seen = np.concatenate([x[np.isfinite(x)] for x, _, _ in lines] or [np.zeros(1)])
            kept = np.concatenate([x.ravel() for _, x, _ in lines])
            wrong = np.concatenate([x.ravel() for _, _, x in lines])
            wild = np.abs(wrong[wrong != 0])
            # what is rejected does not belong to the scale of what is kept, unless it is close
            ends = [np.percentile(x, (0.5, 99.5)) for x in (seen, kept) if len(x)]
            inner = np.percentile(seen, (5, 95)) if len(seen) else ends[-1]
            low = min(float(ends[-1][0]), float(inner[0]))
            high = max(float(ends[-1][1]), float(inner[1]))
            most = float(np.percentile(wild, 99)) if len(wild) else 1.0
            scale = {"vmin": low, "vmax": high, "cmap": "gray" if moving else SEQUENTIAL, **kwargs}
            other = {"vmin": -most, "vmax": most, "cmap": DIVERGING}
            if moving:
                scale, other = ({"aspect": "equal", **look} for look in (scale, other))
            self.images_ = np.empty(axes.shape, dtype=object)
            for k, (data, low_rank, outliers) in enumerate(lines):
                pictures = (_means(data), _means(low_rank), _extremes(outliers))
                for j, picture in enumerate(pictures):
                    look = other if j == 2 else scale
                    self.images_[k, j] = _image(axes[k, j], picture, data.shape, **look)
                    self._label(axes[k, j], k, j)
            holes = any(bool(np.isnan(data).any()) for data, _, _ in lines)
            if holes:
                _name_missing(axes[0, 0])
            for columns, image, values, label in (
                (slice(2), self.images_[0, 0], np.concatenate([seen, kept]), "value"),
                (slice(2, 3), self.images_[0, 2], wrong, "outlier"),
            ):
                bar = self.figure_.colorbar(
                    image,
                    ax=list(axes[:, columns].flat),
                    location="bottom",
                    aspect=40 if columns.stop == 2 else 20,
                    shrink=0.7,
                    pad=0.03,
                    extend=_extend(values, *image.get_clim()),
                    label=_with_unit(label, self.unit),
                )
                bar.outline.set_linewidth(0.5)
            self.axes_ = axes
        return self

    def _label(self, ax: Any, k: int, j: int) -> None:
        if k == 0:
            ax.set_title(("data", "low-rank", "outliers")[j], loc="left")
        if self.frames is not None:
            ax.set_xticks([])
            ax.set_yticks([])
            if j == 0:
                ax.set_ylabel(f"frame {self.frames[k]}")
            return
        ax.set_xlabel("column")
        if j == 0:
            ax.set_ylabel("row")
        else:
            ax.tick_params(labelleft=False)


@dataclass(eq=False, repr=False)
class ResidualDisplay(_Display):
    """Observed minus estimate: where it is large, and whether it looks like noise.

    A map beside a histogram of standardised residuals with the normal density. Tables that do
    not fit on pixels are drawn as means over blocks: noise averages out, and what was not
    modelled remains.

    Parameters
    ----------
    residual : array of shape (b1, b2)
        Of cells or blocks; NaN where nothing is observed.
    standardised : array of shape (m,)
        Residuals divided by the standard deviation of the noise.
    shape : (n1, n2), optional
        Of the table, where residuals are those of blocks.
    label : str
        Of the map. Where it says |...|, the map is one of sizes, and has no sign.
    labels : pair of str
        Of the vertical axis and the horizontal one.
    unit : str

    Attributes
    ----------
    axes_ : array of axes of shape (1, 2), or (1, 1) without the histogram
    figure_ : what was drawn on
    image_ : the map

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from scaledgd import MatrixCompletion
    >>> from scaledgd.plots import ResidualDisplay
    >>> rng = np.random.default_rng(0)
    >>> X = np.outer(np.arange(1, 31), np.arange(1, 21)) + rng.standard_normal((30, 20))
    >>> model = MatrixCompletion(rank=1).fit(X)
    >>> display = ResidualDisplay.from_estimator(model, ax=Figure().subplots(1, 2))
    >>> bool(np.allclose(display.residual, X - model.reconstruct()))
    True
    """

    residual: Array
    standardised: Array
    shape: tuple[int, int] | None = None
    label: str = "observed − estimate"
    labels: tuple[str, str] = ("row", "column")
    unit: str = ""

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        modes: tuple[int, int] = (0, 1),
        at: Sequence[int] | None = None,
        unit: str = "",
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw what a model leaves of the cells that it was fitted to.

        Residuals are divided by √noise_variance_, and multiplied by the root of the weight where
        there are weights. Where rows or columns were scaled, noise is taken to be as large as each
        of them is off on average. What was rejected as an outlier is on the map, but not in the
        histogram.

        Parameters
        ----------
        estimator : fitted completion or robust PCA
        modes : pair of int
            Of a tensor: the vertical and the horizontal axis.
        at : sequence of int, optional
            Of a tensor: the indices of the other modes, in their order, whose slice the map shows.
            Without it, the map shows the mean absolute residual over the other modes. The
            histogram has all residuals.
        unit : str
        ax : matplotlib axes, optional
            Two of them, or one for the map alone.
        **kwargs : passed to ``ax.imshow``

        Returns
        -------
        display
        """
        cells = _cells(estimator)
        d = len(cells.shape)
        modes = _two_modes(modes, d)
        index = [_host(i) for i in cells.coordinates]
        r = _host(cells.flat) - _host(estimator.predict_entries(cells.coordinates))
        standard = _standardised(estimator, cells, index, r)
        shown, label = np.ones(len(r), dtype=bool), "observed − estimate"
        if at is not None:
            others = [k for k in range(d) if k not in modes]
            if len(at) != len(others):
                raise ValueError(f"at must have one index for each of the modes {others}, not {at}")
            for k, i in zip(others, at, strict=True):
                shown &= index[k] == i
        elif d > 2:
            r, label = np.abs(r), "mean |observed − estimate|"
        shape = (cells.shape[modes[0]], cells.shape[modes[1]])
        where = [index[k][shown] for k in modes]
        counts, sums = _binned(where, shape), _binned(where, shape, r[shown])
        residual = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        labels = _mode_labels(modes, d)
        return cls(residual, standard, shape, label, labels, unit).plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw; keyword arguments are passed to ``ax.imshow``."""
        residual = np.asarray(self.residual, dtype=np.float64)
        shape = residual.shape if self.shape is None else self.shape
        seen = residual[np.isfinite(residual)]
        signed = "|" not in self.label
        most = 1.0
        if len(seen):
            # gross errors, or a few loud rows, do not take the colours from all others
            middle, far = np.percentile(np.abs(seen), (50, 99.5))
            most = float(min(6 * middle, far) or far) or 1.0
        look: dict[str, Any] = {"vmin": -most if signed else 0.0, "vmax": most, **kwargs}
        look.setdefault("cmap", DIVERGING if signed else SEQUENTIAL)
        with _style(ax):
            alone = ax is not None and np.size(np.asarray(ax, dtype=object)) == 1
            axes = self._panels(ax, (7.0, 2.8), 1, 1 if alone else 2)
            first = axes[0, 0]
            self.image_ = _image(first, residual, shape, **look)
            first.set_ylabel(self.labels[0])
            first.set_xlabel(self.labels[1])
            if len(seen) < residual.size:
                _name_missing(first)
            bar = self.figure_.colorbar(
                self.image_,
                ax=first,
                extend=_extend(seen, *self.image_.get_clim()) if len(seen) else "neither",
                label=_with_unit(self.label, self.unit),
            )
            bar.outline.set_linewidth(0.5)
            if not alone:
                self._histogram(axes[0, 1])
            self.axes_ = axes
        return self

    def _histogram(self, ax: Any) -> None:
        z = np.asarray(self.standardised, dtype=np.float64)
        far = float(np.percentile(np.abs(z), 99.9)) if len(z) else 0.0
        end = min(max(4.0, far), 6.0)
        bins = int(np.clip(2 * len(z) ** (1 / 3), 10, 80))
        counts, edges = np.histogram(z, bins, (-end, end))
        beyond = 1.0 - counts.sum() / max(len(z), 1)
        label = "residuals" + (f", {beyond:.1%} beyond ±{end:.2g}" if beyond >= 5e-4 else "")
        ax.stairs(counts / max(len(z), 1) / np.diff(edges), edges, fill=True, color=SKY)
        ax.patches[-1].set_label(label)
        x = np.linspace(-end, end, 241)
        ax.plot(x, np.exp(-x * x / 2) / math.sqrt(2 * math.pi), color=BLACK, label="normal density")
        ax.set_xlabel("standardised residual")
        ax.set_ylabel("density")
        # room for the names above the highest bar
        ax.set_ylim(0, 1.3 * max(ax.get_ylim()[1], 0.4))
        ax.legend(loc="upper center")


def _standardised(estimator: Any, cells: Any, index: Any, r: Any) -> Any:
    """Residuals over the standard deviation of their noise, outliers left out."""
    weighted = r if cells.weight is None else r * np.sqrt(_host(cells.weight).reshape(-1))
    kept = np.ones(len(r), dtype=bool)
    if hasattr(estimator, "outliers_") and estimator.outliers_.nnz:
        flat, out = (
            np.ravel_multi_index(tuple(i), cells.shape) for i in (index, estimator.outliers_.coords)
        )
        kept = ~np.isin(flat, out)
    scale = estimator.scale_
    z = weighted[kept]
    for mode, names in enumerate((("rows", "both"), ("columns", "both"))):
        if scale in names:
            i, n = index[mode][kept], cells.shape[mode]
            square = np.bincount(i, z * z, n) / np.maximum(np.bincount(i, minlength=n), 1)
            root = np.sqrt(square)[i]
            z = np.divide(z, root, out=np.zeros_like(z), where=root > 0)
    if scale != "none":
        return z
    return z / (math.sqrt(estimator.noise_variance_) or math.sqrt(float(np.mean(z * z))) or 1.0)


# ---- what may be relied on


@dataclass(eq=False, repr=False)
class IntervalDisplay(_Display):
    """Estimates of one row or column with their intervals.

    Parameters
    ----------
    position : array of shape (m,)
    estimate, lower, upper : arrays of shape (m,)
    observed : array of shape (m,), optional
        What was observed, NaN elsewhere.
    truth : array of shape (m,), optional
    level : float, optional
        The probability that an interval is said to hold, for the legend.
    label : str
        Of the horizontal axis.
    unit : str

    Attributes
    ----------
    ax_, figure_ : what was drawn on, after `plot`
    line_, band_ : the estimate and the intervals
    points_ : what was observed, or None

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from scaledgd.plots import IntervalDisplay
    >>> display = IntervalDisplay([0, 1, 2], [1, 2, 3], [0, 1, 2], [2, 3, 4], level=0.9)
    >>> display = display.plot(Figure().subplots())
    >>> [text.get_text() for text in display.ax_.get_legend().get_texts()]
    ['90 % interval', 'estimate']
    """

    position: Array
    estimate: Array
    lower: Array
    upper: Array
    observed: Array | None = None
    truth: Array | None = None
    level: float | None = None
    label: str = "column"
    unit: str = ""

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        row: int | None = None,
        column: int | None = None,
        level: float = 0.9,
        kind: str = "model",
        truth: Any = None,
        unit: str = "",
        ax: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Draw one row, or one column, of a table.

        Parameters
        ----------
        estimator : fitted matrix estimator
        row, column : int
            One of them.
        level, kind : passed to ``estimator.interval``
            Which of true entries and new observations the intervals are about depends on `kind`.
        truth : array of shape (n2,) for a row, (n1,) for a column, optional
        unit : str
        ax : matplotlib axes, optional
        **kwargs : passed to ``ax.plot`` for the estimate

        Returns
        -------
        display
        """
        if (row is None) == (column is None):
            raise ValueError("give either row or column")
        cells = _cells(estimator)
        if len(cells.shape) != 2:
            raise ValueError(f"one row or column of a table can be shown, not of {cells.shape}")
        along = 1 if column is None else 0
        chosen = row if column is None else column
        n = cells.shape[along]
        position = np.arange(n)
        index = _like(cells.y, [np.full(n, chosen), position][:: 1 if along else -1])
        estimate = _host(estimator.predict_entries(index))
        lower, upper = (_host(x) for x in estimator.interval(index, level, kind=kind))
        where = [_host(i) for i in cells.coordinates]
        here = where[1 - along] == chosen
        observed = np.full(n, np.nan)
        observed[where[along][here]] = _host(cells.flat)[here]
        label = ("row", "column")[along]
        display = cls(position, estimate, lower, upper, observed, truth, level, label, unit)
        return display.plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw; keyword arguments are passed to ``ax.plot`` for the estimate."""
        with _style(ax):
            ax = self._panels(ax, (7.0, 2.6))[0, 0]
            x = np.asarray(self.position)
            self.band_ = ax.fill_between(
                x,
                _host(self.lower),
                _host(self.upper),
                color=SKY,
                alpha=0.45,
                linewidth=0,
                label="interval" if self.level is None else f"{100 * self.level:g} % interval",
            )
            look = {"color": BLUE, "linestyle": "-", "label": "estimate", **_lines(**kwargs)}
            (self.line_,) = ax.plot(x, _host(self.estimate), **look)
            if self.truth is not None:
                truth = _host(self.truth)
                ax.plot(x, truth, color=VERMILION, linestyle="--", linewidth=1.1, label="truth")
            self.points_ = None
            if self.observed is not None:
                (self.points_,) = ax.plot(
                    x,
                    _host(self.observed),
                    color=BLACK,
                    linestyle="",
                    marker="o",
                    markersize=3 if len(x) <= 150 else 2,
                    markerfacecolor="white",
                    markeredgewidth=0.8,
                    label="observed",
                )
            ax.margins(x=0.01)
            ax.set_xlabel(self.label)
            ax.set_ylabel(_with_unit("value", self.unit))
            # above the axes: a band leaves no corner free for sure
            ax.legend(
                loc="lower left",
                bbox_to_anchor=(0.0, 1.0),
                ncols=4,
                borderaxespad=0.2,
                frameon=False,
            )
            self.ax_ = ax
        return self


def _like(y: Any, index: Sequence[Any]) -> tuple[Any, ...]:
    """Coordinates in the library of y, where it lives."""
    from array_api_compat import array_namespace, device

    xp = array_namespace(y)
    return tuple(xp.asarray(i, device=device(y)) for i in index)
