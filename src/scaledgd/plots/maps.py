"""Maps of tables: what was missing, what was separated, what is left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..estimators.packing import host
from .drawing import (
    BLACK,
    DIVERGING,
    PARTS,
    PIXELS,
    SEQUENTIAL,
    SKY,
    Display,
    binned,
    block_edges,
    block_extremes,
    block_means,
    draw_image,
    extension,
    name_missing,
    paper_style,
    training_cells,
    with_unit,
)

Array = Any


@dataclass(eq=False, repr=False)
class MissingDisplay(Display):
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

        from ..estimators.reading import read_tensor

        cells = _stored(X) if sparse.issparse(X) else read_tensor(X, observed)[0]
        return cls._of(cells, modes).plot(ax, **kwargs)

    @classmethod
    def _of(cls, cells: Any, modes: tuple[int, int]) -> Self:
        modes = _two_modes(modes, len(cells.shape))
        index = [host(cells.coordinates[k]) for k in modes]
        shape = [cells.shape[k] for k in modes]
        total = math.prod(cells.shape)
        others = total // math.prod(shape)
        most = None
        if max(shape) > PIXELS:
            # a fraction of a block says something only where a few of its cells are observed
            most = max(min(PIXELS, 50), min(PIXELS, math.isqrt(len(index[0]) // 4)))
        sizes = np.outer(*(np.diff(block_edges(n, most)) for n in shape))
        fraction = binned(index, shape, most=most) / (sizes * others)
        rows, columns = (
            np.bincount(i, minlength=n) * (n / total) for i, n in zip(index, shape, strict=True)
        )
        return cls(fraction, rows, columns, _mode_labels(modes, len(cells.shape)))

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw; keyword arguments are passed to ``ax.imshow``."""
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
            self.row_ax_ = _attached(ax, "right", (5, 33), sharey=ax)
            self.column_ax_ = _attached(ax, "top", (9, 37), sharex=ax)
            self._side(self.row_ax_, sides[0], binary, "horizontal")
            self._side(self.column_ax_, sides[1], binary, "vertical")
            self.row_ax_.set_xlabel("fraction", fontsize="small")
            self.column_ax_.set_ylabel("fraction", fontsize="small")
            bar = self.figure_.colorbar(
                self.image_,
                cax=_attached(ax, "right", (43, 50)),
                extend=extension(fraction, *self.image_.get_clim()),
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
        edges = block_edges(len(values))
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
    from ..estimators.local_observations import LocalObservations

    entries = X.tocoo()
    return LocalObservations((entries.row, entries.col), entries.data, tuple(X.shape))


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
class SeparationDisplay(Display):
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
        cells = training_cells(estimator)
        if not hasattr(estimator, "outliers_"):
            raise ValueError('nothing was separated: fit RobustPCA, or with outliers="auto"')
        low_rank = host(estimator.reconstruct())  # says so where it is too large
        data, outliers = np.full(cells.shape, np.nan), np.zeros(cells.shape)
        data[tuple(host(i) for i in cells.coordinates)] = host(cells.flat)
        outliers[estimator.outliers_.coords] = estimator.outliers_.data
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
        with paper_style(ax):
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
                pictures = (block_means(data), block_means(low_rank), block_extremes(outliers))
                for j, picture in enumerate(pictures):
                    look = other if j == 2 else scale
                    self.images_[k, j] = draw_image(axes[k, j], picture, data.shape, **look)
                    self._label(axes[k, j], k, j)
            holes = any(bool(np.isnan(data).any()) for data, _, _ in lines)
            if holes:
                name_missing(axes[0, 0])
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
                    extend=extension(values, *image.get_clim()),
                    label=with_unit(label, self.unit),
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
class ResidualDisplay(Display):
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
        cells = training_cells(estimator)
        d = len(cells.shape)
        modes = _two_modes(modes, d)
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
        where = [index[k][shown] for k in modes]
        counts, sums = binned(where, shape), binned(where, shape, r[shown])
        residual = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        labels = _mode_labels(modes, d)
        return cls(residual, standard, shape, label, labels, unit).plot(ax, **kwargs)

    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw; keyword arguments are passed to ``ax.imshow``."""
        residual = np.asarray(self.residual, dtype=np.float64)
        shape = residual.shape if self.shape is None else self.shape
        seen = residual[np.isfinite(residual)]
        signed = bool(np.nanmin(self.residual, initial=0.0) < 0)
        most = 1.0
        if len(seen):
            # gross errors, or a few loud rows, do not take the colours from all others
            middle, far = np.percentile(np.abs(seen), (50, 99.5))
            most = float(min(6 * middle, far) or far) or 1.0
        look: dict[str, Any] = {"vmin": -most if signed else 0.0, "vmax": most, **kwargs}
        look.setdefault("cmap", DIVERGING if signed else SEQUENTIAL)
        with paper_style(ax):
            alone = ax is not None and np.size(np.asarray(ax, dtype=object)) == 1
            axes = self._panels(ax, (7.0, 2.8), 1, 1 if alone else 2)
            first = axes[0, 0]
            self.image_ = draw_image(first, residual, shape, **look)
            first.set_ylabel(self.labels[0])
            first.set_xlabel(self.labels[1])
            if len(seen) < residual.size:
                name_missing(first)
            bar = self.figure_.colorbar(
                self.image_,
                ax=first,
                extend=extension(seen, *self.image_.get_clim()) if len(seen) else "neither",
                label=with_unit(self.label, self.unit),
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
