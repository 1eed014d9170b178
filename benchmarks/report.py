"""Tables and a plot of the measurements."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def contests(records: list[Record]) -> str:
    """Return the comparisons as a table."""
    lines = [
        "| problem | scaledgd | other library | its time | times slower |",
        "|---|---|---|---|---|",
    ]
    for r in records:
        if r.get("reached"):
            ours, theirs = r["seconds"]["ours"], r["seconds"]["theirs"]
            lines.append(
                f"| {r['problem']} | {_time(ours)} | {r['peer']} | {_time(theirs)} | "
                f"**{r['ratio']:.1f}** |"
            )
        else:
            lines.append(
                f"| {r['problem']} | | {r['peer']} | {r['best']:.1g} after {r['effort']} steps | |"
            )
    return "\n".join(lines)


def successes(records: list[Record]) -> str:
    """Return the successes of P3 and their times as a table."""
    names = sorted({(r["peer"]) for r in records}, key=lambda n: (n != "scaledgd", n))
    kinds = sorted({(r["kappa"], r["ratio"]) for r in records})
    head = " | ".join(f"κ={k:g}, {ratio:g} ×" for k, ratio in kinds)
    lines = [f"| | {head} | median time |", "|---" * (len(kinds) + 2) + "|"]
    for name in names:
        found = []
        for kind in kinds:
            mine = [r for r in records if r["peer"] == name and (r["kappa"], r["ratio"]) == kind]
            found.append(f"{sum(r['success'] for r in mine)} of {len(mine)}")
        spent = sorted(r["seconds"] for r in records if r["peer"] == name)
        lines.append(f"| {name} | {' | '.join(found)} | {_time(spent[len(spent) // 2])} |")
    return "\n".join(lines)


def ratings(records: list[Record]) -> str:
    """Return the errors of predictions as a table."""
    lines = ["| | test RMSE | time |", "|---|---|---|"]
    for r in sorted(records, key=lambda r: r["error"]):
        lines.append(f"| {r['peer']} | {r['error']:.4f} | {_time(r['seconds'])} |")
    return "\n".join(lines)


def defaults(records: list[Record]) -> str:
    """Return the cost and quality of the defaults as a table."""
    lines = ["| | | | CPU seconds |", "|---|---|---|---|"]
    for r in records:
        shown = f"{r['measure']} {r['value']:.3g}"
        lines.append(f"| {r['case']} | {r['who']} | {shown} | {r.get('cpu', math.nan):.2f} |")
    return "\n".join(lines)


def kernels(records: list[Record]) -> str:
    """Return the speed of the kernels as a table."""
    lines = [
        "| kernel | precision | rank | ns per entry | floor | of peak flops | of bandwidth |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in records:
        lines.append(
            f"| {r['kernel']} | {r['dtype']} | {r['rank']} | {r['ns']:.1f} | {r['floor']:.1f} | "
            f"{100 * r['flops']:.0f} % | {100 * r['bandwidth']:.0f} % |"
        )
    return "\n".join(lines)


def growth(records: list[Record]) -> str:
    """Return the time of an iteration as a table."""
    lines = ["| entries | rank | threads | per iteration | ns per entry |", "|---|---|---|---|---|"]
    for r in records:
        each = 1e9 * r["seconds"] / r["entries"]
        what = f"{r['entries']:,} | {r['rank']} | {r['threads']}"
        lines.append(f"| {what} | {_time(r['seconds'])} | {each:.1f} |")
    return "\n".join(lines)


def _fastest(records: list[Record]) -> list[Record]:
    """The fastest of the other libraries on each problem that one of them solved."""
    best: dict[str, Record] = {}
    for r in records:
        known = best.get(r["problem"])
        if r.get("reached") and (known is None or r["ratio"] < known["ratio"]):
            best[r["problem"]] = r
    return list(best.values())


def plot(found: dict[str, list[Record]], path: Path) -> None:
    """Plot how much slower the fastest other library is, and how the time of a sweep grows.

    Parameters
    ----------
    found : dict of lists
        The records of the tables: of contests, and of growth.
    path : path
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    reached, grown = _fastest(found.get("contests", [])), found.get("growth", [])
    height = 0.6 + 0.2 * len(reached)
    figure = plt.figure(figsize=(7.5, height + 2.8), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[height, 2.6])
    bars = figure.add_subplot(grid[0, :])
    sizes, ranks = (figure.add_subplot(grid[1, k]) for k in (0, 1))
    names = [f"{r['problem'].replace('completion ', '')} – {r['peer']}" for r in reached]
    bars.barh(range(len(reached)), [r["ratio"] for r in reached], color="#1f6f8b")
    bars.set_yticks(range(len(reached)), names, fontsize=7)
    bars.axvline(1, color="black", linewidth=1)
    bars.set(xscale="log", xlabel="time / time of scaledgd, to the same accuracy")
    bars.invert_yaxis()
    for k, r in enumerate(reached):
        bars.annotate(f" {r['ratio']:.1f}", (r["ratio"], k), va="center", fontsize=7)
    for number, marker in ((1, "o"), (2, "s")):
        mine = [r for r in grown if r["kind"] == "entries" and r["threads"] == number]
        if mine:
            x, y = [r["entries"] for r in mine], [r["seconds"] for r in mine]
            sizes.loglog(x, y, marker=marker, label=f"{number} thread{'s' * (number > 1)}")
            line = [y[0], y[0] * x[-1] / x[0]]
            sizes.loglog([x[0], x[-1]], line, "k:", linewidth=1)
    sizes.set(xlabel="observed entries, rank 16", ylabel="seconds per sweep")
    mine = [r for r in grown if r["kind"] == "rank"]
    if mine:
        x, y = [r["rank"] for r in mine], [r["seconds"] for r in mine]
        ranks.loglog(x, y, marker="s")
        ranks.loglog(x, [y[0] * k / x[0] for k in x], "k:", linewidth=1, label="linear")
        ranks.set_xticks(x, [str(k) for k in x])
        ranks.minorticks_off()
        ranks.legend(fontsize=7)
        sizes.legend(fontsize=7)
    ranks.set(xlabel="rank, a million entries")
    for axes in (bars, sizes, ranks):
        axes.tick_params(labelsize=7)
        axes.xaxis.label.set_size(8)
        axes.yaxis.label.set_size(8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def slope(records: list[Record], key: str) -> float:
    """Return the slope of log seconds against log `key`, from the first to the last record."""
    a, b = records[0], records[-1]
    return math.log(b["seconds"] / a["seconds"]) / math.log(b[key] / a[key])
