"""Estimates of one row or column with their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from .drawing import (
    BLACK,
    BLUE,
    SKY,
    VERMILION,
    Display,
    legend_above,
    line_style,
    paper_style,
    time_axis,
    whole_numbers,
    with_unit,
)
from .fitted import host, times_of, training_cells

Array = Any


@dataclass(eq=False, repr=False)
class IntervalDisplay(Display):
    """Plot the estimates of one row or column with their intervals.

    Parameters
    ----------
    position : array of shape (m,)
        Positions in the row or column, or times as datetime64.
    estimate, lower, upper : arrays of shape (m,)
    observed : array of shape (m,), optional
        The observed values, NaN elsewhere.
    truth : array of shape (m,), optional
        The true values.
    level : float, optional
        Nominal coverage of the intervals, for the legend.
    label : str
        Label of the horizontal axis.
    unit : str
        Unit of the data.
    about : str
        What the intervals are for, as in "true value", for the legend.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        What was drawn on, after `plot`.
    line_, band_ : matplotlib objects
        The estimate and the intervals.
    points_ : matplotlib line or None
        The observed values.

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
        """Draw one row, or one column, of a table, over times if its labels are times.

        Parameters
        ----------
        estimator : fitted matrix estimator
        row, column : int
            Give one of them.
        level : float
            Nominal coverage.
        kind : str
            Passed to ``estimator.interval``; decides whether intervals are for true entries or for
            new observations.
        truth : array of shape (n2,) for a row, (n1,) for a column, optional
            The true values.
        unit : str
            Unit of the data.
        ax : matplotlib axes, optional
            By default those of a new figure.
        **kwargs : passed to ``ax.plot`` for the estimate

        Returns
        -------
        IntervalDisplay
        """
        if (row is None) == (column is None):
            raise ValueError("give either row or column")
        cells = training_cells(estimator, all_seen=True)
        if len(cells.shape) != 2:
            raise ValueError(f"only a row or column of a table can be shown, not of {cells.shape}")
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
        times = times_of(estimator, along)
        label = ("row", "column")[along] if times is None else "time"
        about = "true value" if kind == "model" else "new observation"
        at = position if times is None else times
        values = at, estimate, lower, upper, observed, truth
        return cls(*values, level, label, unit, about).plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the estimates and the intervals.

        Parameters
        ----------
        ax : matplotlib axes, optional
            By default those of a new figure.
        **kwargs : passed to ``ax.plot`` for the estimate

        Returns
        -------
        IntervalDisplay
            The display itself.
        """
        with paper_style(ax):
            ax = self._panels(ax, (7.0, 2.6))[0, 0]
            x = np.asarray(self.position)
            band = {"color": SKY, "alpha": 0.45, "linewidth": 0, "label": self._band_label()}
            self.band_ = ax.fill_between(x, host(self.lower), host(self.upper), **band)
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
            (time_axis if x.dtype.kind == "M" else whole_numbers)(ax.xaxis)
            ax.set_xlabel(self.label)
            ax.set_ylabel(with_unit("value", self.unit))
            legend_above(ax, ncols=4)
            self.ax_ = ax
        return self

    def _band_label(self) -> str:
        """Describe what the band is for: an observation outside it may just be noise."""
        share = "" if self.level is None else f"{100 * self.level:g} % "
        return f"{share}interval{f' of the {self.about}' if self.about else ''}"
