"""Data, their low-rank part and the outliers, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from .blocks import block_extremes, block_means
from .drawing import (
    DIVERGING,
    SEQUENTIAL,
    Display,
    draw_colorbar,
    draw_image,
    name_missing,
    paper_style,
    with_unit,
)
from .fitted import host, training_cells

Array = Any
Line = tuple[Array, Array, Array]
"""Data, low-rank part and outliers of one line of images."""


@dataclass(eq=False, repr=False)
class SeparationDisplay(Display):
    """Plot data, their low-rank part and the outliers, side by side.

    Data and low-rank part share a colour scale, which ignores the largest outliers. The scale of
    the outliers is symmetric about 0. With `frames` and `image_shape`, rows or columns of the
    table are shown as images; slices of a tensor of three modes are always shown as images.

    Parameters
    ----------
    data : array of shape (n1, n2), or (frames, height, width)
        NaN is missing.
    low_rank, outliers : arrays of the shape of data
        Outliers are 0 where there is none.
    frames : sequence of int, optional
        Frames to show, one line of images each.
    image_shape : (height, width), optional
        Shape of a frame; required for frames of a table.
    order : {"C", "F"}
        Order of the pixels of a frame: row by row, or column by column.
    rows_are : {"frames", "pixels"}
        What the rows of a table are.
    unit : str
        Unit of the data.

    Attributes
    ----------
    axes_ : array of axes of shape (1, 3), or (len(frames), 3)
    figure_ : matplotlib figure
        What was drawn on.
    images_ : array of images, of the shape of axes_

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
            np.asarray(host(x), dtype=np.float64) for x in (self.data, self.low_rank, self.outliers)
        )
        if self.order not in ("C", "F"):
            raise ValueError(f'order must be "C" or "F", not {self.order!r}')
        if self.rows_are not in ("frames", "pixels"):
            raise ValueError(f'rows_are must be "frames" or "pixels", not {self.rows_are!r}')
        d = self.data.ndim
        if d not in (2, 3):
            raise ValueError(f"tables and tensors of three modes can be shown, not of {d}")
        if d == 3 and self.frames is None:
            raise ValueError("choose the slices of mode 0 to show, for example frames=[0, 10]")
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
        """Draw what an estimator has separated.

        Parameters
        ----------
        estimator : fitted estimator that has ``outliers_``
            A robust PCA, or a completion with outliers.
        frames, image_shape, order, rows_are, unit : as of the class
        ax : three matplotlib axes, or len(frames) × 3, optional
            By default those of a new figure.
        **kwargs : passed to ``ax.imshow`` for data and low-rank part

        Returns
        -------
        SeparationDisplay
        """
        cells = training_cells(estimator)
        if not hasattr(estimator, "outliers_"):
            raise ValueError('nothing was separated: fit RobustPCA, or with outliers="auto"')
        low_rank = host(estimator.reconstruct())  # raises if it is too large
        data, outliers = np.full(cells.shape, np.nan), np.zeros(cells.shape)
        data[tuple(host(i) for i in cells.coordinates)] = host(cells.flat)
        outliers[estimator.outliers_.coords] = estimator.outliers_.data
        display = cls(data, low_rank, outliers, frames, image_shape, order, rows_are, unit)
        return display.plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the images.

        Parameters
        ----------
        ax : three matplotlib axes, or len(frames) × 3, optional
            By default those of a new figure.
        **kwargs : passed to ``ax.imshow`` for data and low-rank part

        Returns
        -------
        SeparationDisplay
            The display itself.
        """
        lines, moving = self._lines(), self.frames is not None
        height, width = lines[0][0].shape
        tall = 2.2 * height / width if moving else 2.1
        with paper_style(ax):
            axes = self._panels(ax, (7.0, tall * len(lines) + 0.75), len(lines), 3)
            seen = np.concatenate([x[np.isfinite(x)] for x, _, _ in lines] or [np.zeros(1)])
            kept = np.concatenate([x.ravel() for _, x, _ in lines])
            wrong = np.concatenate([x.ravel() for _, _, x in lines])
            low, high = _colour_range(seen, kept)
            wild = np.abs(wrong[wrong != 0])
            most = float(np.percentile(wild, 99)) if len(wild) else 1.0
            scale = {"vmin": low, "vmax": high, "cmap": "gray" if moving else SEQUENTIAL, **kwargs}
            other = {"vmin": -most, "vmax": most, "cmap": DIVERGING}
            if moving:
                scale, other = ({"aspect": "equal", **look} for look in (scale, other))
            self._draw_lines(axes, lines, scale, other)
            self._draw_colorbars(axes, np.concatenate([seen, kept]), wrong)
            self.axes_ = axes
        return self

    def _lines(self) -> list[Line]:
        """Return what every line of images shows."""
        parts = self.data, self.low_rank, self.outliers
        if self.frames is None:
            return [parts]
        if self.data.ndim == 3:
            return [(parts[0][k], parts[1][k], parts[2][k]) for k in self.frames]
        if self.rows_are == "pixels":
            parts = parts[0].T, parts[1].T, parts[2].T

        def image(x: Array, k: int) -> Array:
            return x[k].reshape(self.image_shape, order=self.order)

        return [(image(parts[0], k), image(parts[1], k), image(parts[2], k)) for k in self.frames]

    def _draw_lines(
        self, axes: Any, lines: list[Line], scale: dict[str, Any], other: dict[str, Any]
    ) -> None:
        self.images_ = np.empty(axes.shape, dtype=object)
        for k, (data, low_rank, outliers) in enumerate(lines):
            pictures = (block_means(data), block_means(low_rank), block_extremes(outliers))
            for j, picture in enumerate(pictures):
                look = other if j == 2 else scale
                self.images_[k, j] = draw_image(axes[k, j], picture, data.shape, **look)
                self._label(axes[k, j], k, j)
        if any(bool(np.isnan(data).any()) for data, _, _ in lines):
            name_missing(axes[0, 0])

    def _draw_colorbars(self, axes: Any, values: Array, wrong: Array) -> None:
        for columns, image, shown, label in (
            (slice(2), self.images_[0, 0], values, "value"),
            (slice(2, 3), self.images_[0, 2], wrong, "outlier"),
        ):
            draw_colorbar(
                self.figure_,
                image,
                shown,
                ax=list(axes[:, columns].flat),
                location="bottom",
                aspect=40 if columns.stop == 2 else 20,
                shrink=0.7,
                pad=0.03,
                label=with_unit(label, self.unit),
            )

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


def _colour_range(seen: Array, kept: Array) -> tuple[float, float]:
    """Return a range for data and low-rank part, without the outliers unless they are close."""
    ends = [np.percentile(x, (0.5, 99.5)) for x in (seen, kept) if len(x)]
    inner = np.percentile(seen, (5, 95)) if len(seen) else ends[-1]
    return min(float(ends[-1][0]), float(inner[0])), max(float(ends[-1][1]), float(inner[1]))
