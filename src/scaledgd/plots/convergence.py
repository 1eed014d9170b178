"""The loss over iterations or time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from .drawing import LINES, Display, line_style, log_if_wide, paper_style, whole_numbers
from .fitted import require_fit

Array = Any


@dataclass(eq=False, repr=False)
class ConvergenceDisplay(Display):
    """Plot the loss against iterations or time, with the stages of the fit.

    The losses are those of ``history_``, relative to the size of the data. The scale is
    logarithmic if they differ by a factor of 3 or more; a loss of 0 is then a triangle at the
    lower edge.

    Parameters
    ----------
    losses : array of shape (m,)
    seconds : array of shape (m,), optional
        Times of the losses.
    stages : sequence of m str, optional
        Stages of the fit, drawn as bands of alternating shade if there is more than one.
    against : {"iteration", "seconds"}
        The horizontal axis.

    Attributes
    ----------
    ax_, figure_, line_ : matplotlib objects
        What was drawn, after `plot`.

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
        """Draw the ``history_`` of any estimator.

        Parameters
        ----------
        estimator : fitted estimator
        against : {"iteration", "seconds"}
            The horizontal axis.
        ax : matplotlib axes, optional
            By default those of a new figure.
        **kwargs : passed to ``ax.plot``

        Returns
        -------
        ConvergenceDisplay
        """
        require_fit(estimator)
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
        """Draw the losses.

        Parameters
        ----------
        ax : matplotlib axes, optional
            By default those of a new figure.
        **kwargs : passed to ``ax.plot``

        Returns
        -------
        ConvergenceDisplay
            The display itself.
        """
        with paper_style(ax):
            ax = self._panels(ax, (3.5, 2.6))[0, 0]
            timed = self.against == "seconds"
            x = np.asarray(self.seconds) if timed else np.arange(len(self.losses))
            look = {**LINES[0], "marker": "o" if len(x) <= 40 else "", "markersize": 3}
            (self.line_,) = ax.plot(x, self.losses, **{**look, **line_style(**kwargs)})
            log_if_wide(ax, self.losses, 3.0)
            if ax.get_yscale() == "log":
                self._mark_zeros(ax, x)
            ax.set_xlabel("time (s)" if timed else "iteration")
            ax.set_ylabel("loss")
            if not timed:
                whole_numbers(ax.xaxis)
            self._shade(ax, x)
            self.ax_ = ax
        return self

    def _mark_zeros(self, ax: Any, x: Array) -> None:
        """Draw losses of 0 as triangles at the lower edge."""
        zero = self.losses <= 0
        if zero.any():
            ax.plot(
                x[zero],
                np.zeros(int(zero.sum())),
                "v",
                color=self.line_.get_color(),
                transform=ax.get_xaxis_transform(),
                clip_on=False,
                label="loss 0",
            )
            ax.legend()

    def _shade(self, ax: Any, x: Array) -> None:
        """Shade every other stage, and write the names of the stages above."""
        names = self.stages or []
        begins = [k for k in range(1, len(names)) if names[k] != names[k - 1]]
        if not begins:
            return
        # a record follows its iteration, so a stage begins at the last record of the previous one
        ends = [x[0], *(x[k - 1] for k in begins), x[-1]]
        titles = [names[k] for k in [0, *begins]]
        span = max(float(ends[-1] - ends[0]), 1e-300)
        for a, b in list(pairwise(ends))[1::2]:
            ax.axvspan(a, b, color="0.92", linewidth=0, zorder=0)
        self._name_stages(ax, titles, ends, span)
        ax.set_xlim(ends[0] - 0.02 * span, ends[-1] + 0.02 * span)

    def _name_stages(self, ax: Any, titles: list[str], ends: list[Any], span: float) -> None:
        """Write the names, slanted if they are too long, as far as there is room."""
        width = 72 * ax.get_window_extent().width / ax.figure.dpi
        shares = [float(b - a) / span for a, b in pairwise(ends)]
        flat = all(
            share * width > 4.2 * len(t) + 6 for share, t in zip(shares, titles, strict=True)
        )
        last = -math.inf
        for title, (a, b) in zip(titles, pairwise(ends), strict=True):
            middle = (a + b) / 2
            if (middle - last) / span * width < 11:
                continue  # no room for this name
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
