"""Draw the picture of the README: a table with holes, and the same table filled."""

import sys

import matplotlib.pyplot as plt
import numpy as np

import scaledgd as sg

SKY, BLUE, GREY = "#d6e9f5", "#0067a8", "#e9ecef"
ROWS, COLUMNS = slice(230, 238), slice(3, 9)


def main(path: str) -> None:
    """Fit the sensors of the demonstration with a fifth of the readings hidden, and draw a part."""
    truth = sg.datasets.load_water().frame()
    rng = np.random.default_rng(0)
    holes = rng.random(truth.shape) < 0.15
    for k in range(truth.shape[1]):
        begin = rng.integers(0, 312)
        holes[begin : begin + 24, k] = True
    table = truth.mask(holes)
    model = sg.MatrixCompletion(random_state=0).fit(table)
    filled = model.transform(table)
    index = np.nonzero(holes)
    lower, upper = model.interval(index, 0.9, kind="prediction")
    half = np.full(truth.shape, np.nan)
    half[index] = (upper - lower) / 2

    figure, axes = plt.subplots(1, 2, figsize=(12, 3.1), layout="constrained")
    hours = [f"{t:%d %b %H:%M}" for t in truth.index[ROWS]]
    for ax, title, values in zip(axes, ("given", "filled"), (table, filled), strict=True):
        part, missing = values.iloc[ROWS, COLUMNS].to_numpy(), holes[ROWS, COLUMNS]
        text = [["" if np.isnan(v) else f"{v:.2f}" for v in row] for row in part]
        if title == "filled":
            for i, j in zip(*np.nonzero(missing), strict=True):
                text[i][j] += f" ± {half[ROWS, COLUMNS][i, j]:.2f}"
        shades = np.where(missing, GREY if title == "given" else SKY, "white")
        names = list(truth.columns[COLUMNS])
        drawn = ax.table(
            text, shades, rowLabels=hours, colLabels=names, cellLoc="center", bbox=(0, 0, 1, 1)
        )
        drawn.auto_set_font_size(False)
        drawn.set_fontsize(8)
        for (i, j), cell in drawn.get_celld().items():
            cell.set_edgecolor("#c3c9cf")
            if i > 0 and j >= 0 and missing[i - 1, j]:
                cell.get_text().set_color(BLUE)
        ax.set_title(title, loc="left", fontsize=11)
        ax.axis("off")
    off = (filled - truth).to_numpy()[holes]
    print(f"error of {holes.sum()} hidden readings: {np.sqrt(np.mean(off**2)):.4f} mg/L")
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/filled.png")
