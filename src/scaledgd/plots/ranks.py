"""Singular values, and held-out errors over the rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from .drawing import (
    LINES,
    VERMILION,
    Display,
    line_style,
    log_if_wide,
    mark_rank,
    paper_style,
    whole_numbers,
    with_unit,
)
from .fitted import host, require_fit

Array = Any


@dataclass(eq=False, repr=False)
class SpectrumDisplay(Display):
    """Plot singular values, the rank in use, and the largest singular value of pure noise.

    Parameters
    ----------
    singular_values : array of shape (r,), or a sequence of arrays, one per mode of a tensor
    rank : int, or tuple of int, one per mode
        The rank in use, a vertical line.
    noise : float, optional
        Largest singular value of pure noise, a dashed line.
    unit : str
        Unit of the data.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        What was drawn on, after `plot`.
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
    def _modes(self) -> list[tuple[Array, int]]:
        """Singular values and rank of every mode."""
        if isinstance(self.rank, (tuple, list)):
            return [(host(s), int(r)) for s, r in zip(self.singular_values, self.rank, strict=True)]
        return [(host(self.singular_values), int(self.rank))]

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, unit: str = "", ax: Any = None, **kwargs: Any
    ) -> Self:
        """Draw the ``singular_values_`` of any estimator.

        The noise level is drawn for tables whose rows and columns were not scaled. Independent
        noise of variance ``noise_variance_``, seen in a fraction p of n1 × n2 cells, has singular
        values up to √(noise_variance_ / p) (√n1 + √n2).

        Parameters
        ----------
        estimator : fitted estimator
        unit : str
            Unit of the data.
        ax : matplotlib axes, optional
            By default those of a new figure.
        **kwargs : passed to ``ax.plot``

        Returns
        -------
        SpectrumDisplay
        """
        require_fit(estimator)
        values = estimator.singular_values_
        values = tuple(map(host, values)) if isinstance(values, tuple) else host(values)
        return cls(values, estimator.rank_, _noise_edge(estimator), unit).plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the singular values.

        Parameters
        ----------
        ax : matplotlib axes, optional
            By default those of a new figure.
        **kwargs : passed to ``ax.plot``

        Returns
        -------
        SpectrumDisplay
            The display itself.
        """
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
            self.rank_lines_ = [mark_rank(ax, r, None if several else f"rank {r}") for r in ranks]
            shown = np.concatenate([s for s, _ in self._modes])
            if self.noise is not None and self.noise > 1e-12 * max(shown, default=0.0):
                # noise below that is rounding, and would only stretch the axis
                ax.axhline(self.noise, color=VERMILION, linestyle="--", label="noise")
                shown = np.append(shown, self.noise)
            log_if_wide(ax, shown, 1.0)
            # indices begin at 1
            ax.set_xlim(0.5 if longest < 15 else 0.1, longest + max(0.5, 0.03 * longest))
            if not min(ranks):
                ax.set_xlim(left=-0.2)
            whole_numbers(ax.xaxis)
            ax.set_xlabel("index")
            ax.set_ylabel(with_unit("singular value", self.unit))
            ax.legend()
            self.ax_ = ax
        return self


def _noise_edge(estimator: Any) -> float | None:
    """Return the largest singular value of pure noise, for tables that were not scaled."""
    cells = getattr(estimator._model, "observations", None)
    even = getattr(estimator, "scale_", "none") == "none"
    if cells is None or len(cells.shape) != 2 or not even:
        return None
    rejected = estimator.outliers_.nnz if hasattr(estimator, "outliers_") else 0
    p = (cells.size - rejected) / math.prod(cells.shape)
    edge = sum(map(math.sqrt, cells.shape))
    return math.sqrt(estimator.noise_variance_ / max(p, 1e-300)) * edge


@dataclass(eq=False, repr=False)
class RankCurveDisplay(Display):
    """Plot held-out errors against the rank.

    Parameters
    ----------
    ranks : sequence of int, or of tuples of int
        Tuples are drawn at equal distances.
    errors : array of shape (m,)
    spread : array of shape (m,), optional
        Half lengths of error bars.
    chosen : int or tuple, optional
        Rank to mark by a vertical line. A tuple is marked at the smallest of `ranks` that is at
        least as large in every mode.
    label : str
        Label of the errors.
    unit : str
        Unit of the errors.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        What was drawn on, after `plot`.
    line_, chosen_line_ : matplotlib lines
        The curve, and the mark of the chosen rank (or None).

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
        """Draw the held-out errors of ``rank_path_``, for the offsets and scales in use.

        Errors are root mean squares in the units of the data; for regression, in standard
        deviations of y.

        Parameters
        ----------
        estimator : estimator fitted with ``rank="auto"`` and without outliers
        unit : str
            Unit of the errors.
        ax : matplotlib axes, optional
            By default those of a new figure.
        **kwargs : passed to ``ax.errorbar``

        Returns
        -------
        RankCurveDisplay
        """
        require_fit(estimator)
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
        """Draw the errors.

        Parameters
        ----------
        ax : matplotlib axes, optional
            By default those of a new figure.
        **kwargs : passed to ``ax.errorbar``

        Returns
        -------
        RankCurveDisplay
            The display itself.
        """
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
                self.chosen_line_ = mark_rank(ax, place, f"chosen: {_times(self.chosen)}")
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
        """Return the position of the smallest rank that is at least as large in every mode.

        Modes are cut after the search, so the chosen rank need not be among those tried.
        """
        if chosen is None:
            return None
        holds = [k for k, r in enumerate(self.ranks) if np.all(np.subtract(r, chosen) >= 0)]
        return min(holds, key=lambda k: math.prod(self.ranks[k]), default=None)


def _times(rank: Any) -> str:
    return " × ".join(map(str, np.atleast_1d(rank)))


def _held_out(estimator: Any) -> dict[Any, float]:
    """Return mean squared held-out errors by rank, for the offsets and scales in use."""
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
        if record.get("start") == "offsets" and isinstance(estimator.rank_, tuple):
            continue  # no ranks at all
        if isinstance(rank, int) and isinstance(estimator.rank_, tuple):
            continue  # a matrix model of an unfolding
        if isinstance(rank, tuple) and not isinstance(estimator.rank_, tuple):
            rank = rank[0]
        # a table repeats a rank with more sweeps, so the last record counts; a regression repeats
        # it with other cells held out, whose errors do not compare, so the first one counts
        if not (ridged and rank in found):
            found[rank] = float(record["held_out"])
    return dict(sorted(found.items()))
