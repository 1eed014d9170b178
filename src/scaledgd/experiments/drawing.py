"""Draw charts and maps of a report as PNG files, with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..report import Chart, HeatMap

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#9D4F86", "#B8860B", "#3A3A3A", "#4AA3D8", "#7A5C3E")
MARKS = "os^Dv*Px"


def draw(block: Chart | HeatMap, path: Path) -> bool:
    """Draw a chart or a map into a file.

    Parameters
    ----------
    block : Chart or HeatMap
    path : path
        A PNG file.

    Returns
    -------
    bool
        False, without a file, if matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 9, "axes.titlesize": 9, "legend.fontsize": 7.5}):
        figure = Figure(figsize=(4.6, 3.3), dpi=200, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        if isinstance(block, Chart):
            _chart(axes, block)
        else:
            _map(axes, block)
        figure.savefig(path)
    return True


def _chart(axes: Any, chart: Chart) -> None:
    for k, curve in enumerate(chart.curves):
        colour = k if curve.colour is None else curve.colour
        style = {"color": COLOURS[colour % 8], "label": curve.name, "markersize": 4}
        if curve.points:
            axes.plot(curve.x, curve.y, MARKS[colour % 8], **style)
        else:
            few = max(1, len(curve.x) // 12)
            line = "--" if curve.dashed else "-"
            axes.plot(curve.x, curve.y, line, marker=MARKS[colour % 8], markevery=few, **style)
    for name, level in chart.levels:
        axes.axhline(level, color="0.4", linestyle=":", linewidth=1.2)
        axes.annotate(
            name, (1, level), xycoords=("axes fraction", "data"), xytext=(-4, -2),
            textcoords="offset points", ha="right", va="top", fontsize=7.5,
        )  # fmt: skip
    axes.set(xlabel=chart.xlabel, ylabel=chart.ylabel, title=chart.title)
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
    if len(chart.curves) > 1:
        axes.legend(handlelength=3.4)


def _map(axes: Any, block: HeatMap) -> None:
    values = np.asarray(block.values, dtype=float)
    image = axes.imshow(
        values, aspect="auto", interpolation="nearest", vmin=block.low, vmax=block.high,
        cmap="RdBu_r" if block.diverging else "viridis",
    )  # fmt: skip
    for axis, labels in ((axes.xaxis, block.x), (axes.yaxis, block.y)):
        if labels is not None:
            step = max(1, len(labels) // 8)
            text = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in labels]
            axis.set_ticks(range(0, len(labels), step), text[::step])
    axes.set(xlabel=block.xlabel, ylabel=block.ylabel, title=block.title)
    axes.figure.colorbar(image, label=block.unit)
