"""Residuals: a map and a histogram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from .blocks import cell_means
from .drawing import (
    BLACK,
    DIVERGING,
    SEQUENTIAL,
    SKY,
    Display,
    draw_colorbar,
    draw_image,
    mode_labels,
    name_missing,
    paper_style,
    two_modes,
    with_unit,
)
from .fitted import host, training_cells

Array = Any


@dataclass(eq=False, repr=False)
class ResidualDisplay(Display):
    """Plot observed minus estimate: a map, and a histogram beside the normal density.

    Large tables are drawn as means over blocks. Noise averages out in them, and structure that the
    model misses remains.

    Parameters
    ----------
    residual : array of shape (b1, b2)
        Residuals of cells or blocks; NaN where nothing is observed.
    standardised : array of shape (m,)
        Residuals divided by the standard deviation of the noise.
    shape : (n1, n2), optional
        Shape of the table, if `residual` is of blocks.
    label : str
        Label of the map.
    labels : pair of str
        Labels of the vertical and the horizontal axis.
    unit : str
        Unit of the data.

    Attributes
    ----------
    axes_ : array of axes of shape (1, 2), or (1, 1) without the histogram
    figure_ : matplotlib figure
        What was drawn on.
    image_ : matplotlib image
        The map.

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
        """Draw the residuals of the cells that an estimator was fitted to.

        Standardised residuals are residuals divided by √noise_variance_ and, if there are weights,
        multiplied by their square roots. If rows or columns were scaled, each is divided by its
        own root mean square instead. Outliers are on the map, but not in the histogram.

        Parameters
        ----------
        estimator : fitted completion or robust PCA
        modes : pair of int
            Modes of a tensor for the vertical and the horizontal axis.
        at : sequence of int, optional
            For a tensor: the slice that the map shows, one index for each of the other modes, in
            order. By default the map shows the mean absolute residual over the other modes. The
            histogram has all residuals.
        unit : str
            Unit of the data.
        ax : matplotlib axes, optional
            Two of them, or one for the map alone; by default two of a new figure.
        **kwargs : passed to ``ax.imshow``

        Returns
        -------
        ResidualDisplay
        """
        cells = training_cells(estimator)
        d = len(cells.shape)
        modes = two_modes(modes, d)
        index = [host(i) for i in cells.coordinates]
        r = host(cells.flat) - host(estimator.predict_entries(cells.coordinates))
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
        residual = cell_means([index[k][shown] for k in modes], shape, r[shown])
        labels = mode_labels(modes, d)
        return cls(residual, standard, shape, label, labels, unit).plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw the map and the histogram.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Two of them, or one for the map alone; by default two of a new figure.
        **kwargs : passed to ``ax.imshow``

        Returns
        -------
        ResidualDisplay
            The display itself.
        """
        residual = np.asarray(self.residual, dtype=np.float64)
        seen = residual[np.isfinite(residual)]
        with paper_style(ax):
            alone = ax is not None and np.size(np.asarray(ax, dtype=object)) == 1
            axes = self._panels(ax, (7.0, 2.8), 1, 1 if alone else 2)
            first = axes[0, 0]
            shape = residual.shape if self.shape is None else self.shape
            self.image_ = draw_image(first, residual, shape, **_colours(seen, kwargs))
            first.set_ylabel(self.labels[0])
            first.set_xlabel(self.labels[1])
            if len(seen) < residual.size:
                name_missing(first)
            label = with_unit(self.label, self.unit)
            draw_colorbar(self.figure_, self.image_, seen, ax=first, label=label)
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
        # leave room for the legend above the highest bar
        ax.set_ylim(0, 1.3 * max(ax.get_ylim()[1], 0.4))
        ax.legend(loc="upper center")


def _colours(seen: Array, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Choose the colours of the map; gross errors and a few noisy rows do not stretch the scale."""
    signed, most = bool(np.any(seen < 0)), 1.0
    if len(seen):
        middle, far = np.percentile(np.abs(seen), (50, 99.5))
        most = float(min(6 * middle, far) or far) or 1.0
    look = {"vmin": -most if signed else 0.0, "vmax": most, **kwargs}
    look.setdefault("cmap", DIVERGING if signed else SEQUENTIAL)
    return look


def _standardised(estimator: Any, cells: Any, index: list[Array], r: Array) -> Array:
    """Return residuals over the standard deviation of their noise, without outliers."""
    weighted = r if cells.weight is None else r * np.sqrt(host(cells.weight).reshape(-1))
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
