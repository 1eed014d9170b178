"""Which cells of a table were observed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from . import blocks
from .drawing import (
    PARTS,
    Display,
    draw_colorbar,
    draw_image,
    mode_labels,
    paper_style,
    two_modes,
)
from .fitted import data_cells, host, training_cells

Array = Any


@dataclass(eq=False, repr=False)
class MissingDisplay(Display):
    """Plot which cells were observed, and the observed fraction of every row and column.

    A small table is drawn cell by cell. For larger tables and for tensors, the observed fractions
    of blocks are drawn.

    Parameters
    ----------
    fraction : array of shape (b1, b2)
        The observed fraction of every block; 0 or 1 if blocks are cells.
    row_fraction, column_fraction : arrays of shape (n1,) and (n2,)
        The observed fractions of rows and columns.
    labels : pair of str
        Labels of the vertical and the horizontal axis.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        What was drawn on, after `plot`.
    row_ax_, column_ax_ : matplotlib axes
        The narrow panels at the right and at the top.
    image_ : matplotlib image

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
        """Draw which cells an estimator was fitted to.

        Parameters
        ----------
        estimator : fitted completion or robust PCA
        modes : pair of int
            Modes of a tensor for the vertical and the horizontal axis; fractions are over the
            other modes.
        ax : matplotlib axes, optional
            By default those of a new figure. The narrow panels are placed around them.
        **kwargs : passed to ``ax.imshow``

        Returns
        -------
        MissingDisplay
        """
        return cls._of(training_cells(estimator, all_seen=True), modes).plot(ax, **kwargs)

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
        """Draw which cells of data are missing.

        Parameters
        ----------
        X : array, masked array, frame, torch tensor or sparse matrix
            NaN is missing; of a sparse matrix, the stored entries are observed.
        observed : boolean array of the shape of X, optional
            True where X was observed.
        modes, ax, **kwargs : as of `from_estimator`

        Returns
        -------
        MissingDisplay
        """
        return cls._of(data_cells(X, observed), modes).plot(ax, **kwargs)

    @classmethod
    def _of(cls, cells: Any, modes: tuple[int, int]) -> Self:
        """Compute the fractions from the observed cells."""
        modes = two_modes(modes, len(cells.shape))
        index = [host(cells.coordinates[k]) for k in modes]
        shape = [cells.shape[k] for k in modes]
        total = math.prod(cells.shape)
        others = total // math.prod(shape)
        most, pixels = None, blocks.PIXELS
        if max(shape) > pixels:
            # the fraction of a block means little unless a few of its cells are observed
            most = max(min(pixels, 50), min(pixels, math.isqrt(len(index[0]) // 4)))
        sizes = np.outer(*(np.diff(blocks.block_edges(n, most)) for n in shape))
        fraction = blocks.cell_sums(index, shape, most=most) / (sizes * others)
        rows, columns = (
            np.bincount(i, minlength=n) * (n / total) for i, n in zip(index, shape, strict=True)
        )
        return cls(fraction, rows, columns, mode_labels(modes, len(cells.shape)))

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the fractions.

        Parameters
        ----------
        ax : matplotlib axes, optional
            By default those of a new figure.
        **kwargs : passed to ``ax.imshow``

        Returns
        -------
        MissingDisplay
            The display itself.
        """
        with paper_style(ax):
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
            self.image_ = draw_image(ax, fraction, [len(side) for side in sides], **look)
            ax.set_ylabel(self.labels[0])
            ax.set_xlabel(self.labels[1])
            self._sides(ax, sides, binary)
            self._colorbar(ax, fraction, binary)
            self.ax_ = ax
        return self

    def _sides(self, ax: Any, sides: tuple[Array, Array], binary: bool) -> None:
        self.row_ax_ = _attached(ax, "right", (5, 33), sharey=ax)
        self.column_ax_ = _attached(ax, "top", (9, 37), sharex=ax)
        _draw_side(self.row_ax_, sides[0], binary, "horizontal")
        _draw_side(self.column_ax_, sides[1], binary, "vertical")
        self.row_ax_.set_xlabel("fraction", fontsize="small")
        self.column_ax_.set_ylabel("fraction", fontsize="small")

    def _colorbar(self, ax: Any, fraction: Array, binary: bool) -> None:
        place = _attached(ax, "right", (43, 50))
        bar = draw_colorbar(self.figure_, self.image_, fraction, cax=place)
        if binary:
            turned = {"rotation": 90, "va": "center"}
            bar.set_ticks([0.25, 0.75], labels=["missing", "observed"], **turned)
            bar.ax.tick_params(length=0)
        else:
            bar.set_label("fraction observed")


def _draw_side(ax: Any, values: Array, binary: bool, orientation: str) -> None:
    """Draw the fractions of rows or columns in a narrow panel."""
    means, edges = blocks.block_means(values), blocks.block_edges(len(values))
    ax.stairs(means, edges - 0.5, orientation=orientation, fill=True, color="0.45")
    ax.spines[["top", "right"]].set_visible(False)
    end = 1.0 if binary else _round_up(float(means.max()))
    # there is room for two ticks only
    if orientation == "vertical":
        ax.set_ylim(0.0, end)
        ax.set_yticks([0.0, end], ["0", f"{end:g}"])
        ax.tick_params(labelbottom=False)
    else:
        ax.set_xlim(0.0, end)
        ax.set_xticks([0.0, end], ["0", f"{end:g}"])
        ax.tick_params(labelleft=False)


def _attached(ax: Any, side: str, points: tuple[float, float], **kwargs: Any) -> Any:
    """Return axes along an edge of others, between two distances from it in points.

    They are children of the other axes and follow them through every layout. The width is in
    points, not relative to the other axes, so that constrained layouts converge.
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


def _round_up(x: float) -> float:
    """Return the next number with one digit, at most 1."""
    if not 0 < x < 1:
        return 1.0
    digit = 10.0 ** math.floor(math.log10(x))
    return min(1.0, float(f"{math.ceil(x / digit - 1e-9) * digit:.1g}"))
