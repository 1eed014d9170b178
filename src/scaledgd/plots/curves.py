"""Curves: convergence, spectra, held-out errors by rank, intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from ..estimators.packing import host
from .drawing import (
    BLACK,
    BLUE,
    LINES,
    SKY,
    VERMILION,
    Display,
    line_style,
    log_if_wide,
    paper_style,
    training_cells,
    whole_numbers,
    with_unit,
)

Array = Any


@dataclass(eq=False, repr=False)
class ConvergenceDisplay(Display):
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
        with paper_style(ax):
            ax = self._panels(ax, (3.5, 2.6))[0, 0]
            timed = self.against == "seconds"
            x = np.asarray(self.seconds) if timed else np.arange(len(self.losses))
            look = {**LINES[0], "marker": "o" if len(x) <= 40 else "", "markersize": 3}
            (self.line_,) = ax.plot(x, self.losses, **{**look, **line_style(**kwargs)})
            log_if_wide(ax, self.losses, 3.0)
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
                whole_numbers(ax.xaxis)
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
class SpectrumDisplay(Display):
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
            return [(host(s), int(r)) for s, r in zip(self.singular_values, self.rank, strict=True)]
        return [(host(self.singular_values), int(self.rank))]

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
        noise, cells = None, getattr(estimator._model, "observations", None)
        even = getattr(estimator, "scale_", "none") == "none"
        if cells is not None and len(cells.shape) == 2 and even:
            rejected = estimator.outliers_.nnz if hasattr(estimator, "outliers_") else 0
            p = (cells.size - rejected) / math.prod(cells.shape)
            edge = sum(map(math.sqrt, cells.shape))
            noise = math.sqrt(estimator.noise_variance_ / max(p, 1e-300)) * edge
        values = estimator.singular_values_
        values = tuple(map(host, values)) if isinstance(values, tuple) else host(values)
        return cls(values, estimator.rank_, noise, unit).plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw; keyword arguments are passed to ``ax.plot``."""
        with paper_style(ax):
            ax = self._panels(ax, (3.5, 2.6))[0, 0]
            several = len(self._modes) > 1
            self.lines_, longest = [], 1
            for k, (s, r) in enumerate(self._modes):
                longest = max(longest, len(s), r)
                look = {**LINES[k % len(LINES)], "linewidth": 1.0, **line_style(**kwargs)}
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
            log_if_wide(ax, shown, 1.0)
            # indices begin with 1, and so do the ticks
            ax.set_xlim(0.5 if longest < 15 else 0.1, longest + max(0.5, 0.03 * longest))
            if not min(ranks):
                ax.set_xlim(left=-0.2)
            whole_numbers(ax.xaxis)
            ax.set_xlabel("index")
            ax.set_ylabel(with_unit("singular value", self.unit))
            ax.legend()
            self.ax_ = ax
        return self


@dataclass(eq=False, repr=False)
class RankCurveDisplay(Display):
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
        size, label = getattr(estimator._model, "size", None), "held-out RMS error"
        if size is None:
            label += " / sd of y"
        errors = (size or 1.0) * np.sqrt(list(found.values()))
        return cls(list(found), errors, None, estimator.rank_, label, unit).plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw; keyword arguments are passed to ``ax.errorbar``."""
        with paper_style(ax):
            ax = self._panels(ax, (3.5, 2.6))[0, 0]
            named = any(isinstance(r, tuple) for r in self.ranks)
            x = list(range(len(self.ranks))) if named else list(self.ranks)
            look = {**LINES[0], "capsize": 2.5, "elinewidth": 1.0, **line_style(**kwargs)}
            bars = ax.errorbar(x, self.errors, self.spread, **look)
            self.line_, self.chosen_line_ = bars.lines[0], None
            if named:
                turned = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
                ax.set_xticks(x, map(_times, self.ranks), **(turned if len(x) > 4 else {}))
            else:
                whole_numbers(ax.xaxis)
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
                log_if_wide(ax, np.concatenate([lowest, 2 * self.errors - lowest]), 5.0)
            ax.set_xlabel("rank")
            ax.set_ylabel(with_unit(self.label, self.unit))
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
class IntervalDisplay(Display):
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
    about : str
        What the intervals are of, for the legend.

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
    about: str = ""

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
        cells = training_cells(estimator, all_seen=True)
        if len(cells.shape) != 2:
            raise ValueError(f"one row or column of a table can be shown, not of {cells.shape}")
        along = 1 if column is None else 0
        chosen = row if column is None else column
        n = cells.shape[along]
        position = np.arange(n)
        index = tuple([np.full(n, chosen), position][:: 1 if along else -1])
        estimate = host(estimator.predict_entries(index))
        lower, upper = (host(x) for x in estimator.interval(index, level, kind=kind))
        where = [host(i) for i in cells.coordinates]
        here = where[1 - along] == chosen
        observed = np.full(n, np.nan)
        observed[where[along][here]] = host(cells.flat)[here]
        label = ("row", "column")[along]
        about = "true value" if kind == "model" else "new observation"
        values = position, estimate, lower, upper, observed, truth
        return cls(*values, level, label, unit, about).plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw; keyword arguments are passed to ``ax.plot`` for the estimate."""
        with paper_style(ax):
            ax = self._panels(ax, (7.0, 2.6))[0, 0]
            x = np.asarray(self.position)
            self.band_ = ax.fill_between(
                x,
                host(self.lower),
                host(self.upper),
                color=SKY,
                alpha=0.45,
                linewidth=0,
                label=self._named(),
            )
            look = {"color": BLUE, "linestyle": "-", "label": "estimate", **line_style(**kwargs)}
            (self.line_,) = ax.plot(x, host(self.estimate), **look)
            if self.truth is not None:
                truth = host(self.truth)
                ax.plot(x, truth, color=VERMILION, linestyle="--", linewidth=1.1, label="truth")
            self.points_ = None
            if self.observed is not None:
                (self.points_,) = ax.plot(
                    x,
                    host(self.observed),
                    color=BLACK,
                    linestyle="",
                    marker="o",
                    markersize=3 if len(x) <= 150 else 2,
                    markerfacecolor="white",
                    markeredgewidth=0.8,
                    label="observed",
                )
            ax.margins(x=0.01)
            whole_numbers(ax.xaxis)
            ax.set_xlabel(self.label)
            ax.set_ylabel(with_unit("value", self.unit))
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

    def _named(self) -> str:
        """What the band is, in words: a dot outside may be noise."""
        share = "" if self.level is None else f"{100 * self.level:g} % "
        return f"{share}interval{f' of the {self.about}' if self.about else ''}"
