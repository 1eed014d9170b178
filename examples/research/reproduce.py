"""
Reproduce the paper
===================

Every figure, table and theorem of the monograph is an item that you can run. An item measures,
states the claims of the monograph, and checks them. This page runs two items at reduced size.
"""

# %%
# The items
# ---------
# Each item is a module of ``scaledgd.experiments``. The command ``scaledgd reproduce`` runs all of
# them and writes one report. This is how to do it from Python:

import tempfile

import matplotlib.pyplot as plt
import numpy as np

from scaledgd.experiments import ITEMS, Setting, item, reproduce

for name in ITEMS[:6]:
    print(f"{name:18s} {item(name).source}: {item(name).title}")
print(f"... and {len(ITEMS) - 6} more")

# %%
# Run two of them
# ---------------
# Fig. 1 shows matrix completion for growing condition numbers, and Theorem 3 is the guarantee for
# it. ``quick=True`` reduces the size, to seconds instead of minutes. The folder keeps what was
# measured, also as CSV, and an interrupted run resumes.

folder = tempfile.mkdtemp()
figure, theorem = reproduce(folder, ["figure1", "theorem3"], Setting(quick=True), jobs=1)
for found in (figure, theorem):
    print(f"\n{found.item.source}: {found.item.title}")
    for claim in found.verdict.claims:
        print(f"  {'seen' if claim.holds else 'NOT SEEN'}: {claim.says}")
        print(f"      {claim.measured}")

# %%
# Fig. 1
# ------
# ScaledGD takes the same number of iterations for every condition number κ. For gradient descent
# the number grows in proportion to κ.

colours, marks = {2: "#0072B2", 10: "#D55E00", 50: "#009E73"}, {2: "o", 10: "s", 50: "^"}
fig, ax = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
for (method, kappa), rows in figure.rows.groups("method", "kappa"):
    curve = [row for row in rows if "t" in row]
    ax.semilogy(
        [row["t"] for row in curve],
        [row["error"] for row in curve],
        "-" if method == "ScaledGD" else "--",
        color=colours[kappa],
        marker=marks[kappa],
        markevery=(10 * [2, 10, 50].index(kappa), 60),
        label=f"{'ScaledGD' if method == 'ScaledGD' else 'gradient descent'}, κ = {kappa}",
    )
first = figure.rows[0]
ax.set(
    xlim=(0, 400),
    ylim=(1e-14, 2),
    xlabel="iteration",
    ylabel="relative error",
    title=f"{first['n']} × {first['n']}, rank {first['rank']}, {first['p']:.0%} of it seen",
)
ax.legend(frameon=False, ncols=2, loc="lower right")
ax.spines[["top", "right"]].set_visible(False)

# %%
# Theorem 3
# ---------
# The error is at most 0.03 σ_r (1 − 0.6 η)ᵗ if the conditions of the theorem hold, that is, if
# nearly all entries are observed. The right panel shows the factor by which an iteration shrinks
# the error if fewer are observed. The rate of the theorem holds down to one half, and the method
# converges far below.

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
bound = theorem.rows.where(part="bound")
paths = [[row for row in rows if "t" in row] for _, rows in bound.groups("label")]
for path, colour, mark in zip(paths, colours.values(), "os^", strict=True):
    t = [row["t"] for row in path]
    size = f"n = {path[0]['given']['n']}, r = {path[0]['given']['rank']}"
    seen = f"κ = {path[0]['given']['kappa']}, {path[0]['given']['p']:.0%} seen"
    errors = [row["error"] for row in path]
    left.semilogy(t, errors, mark + "-", color=colour, markevery=4, label=f"{size}, {seen}")
left.semilogy(t, [row["bound"] for row in path], color="black", linestyle=":", label="the bound")
left.set(
    xlabel="iteration",
    ylabel=r"error / $\sigma_r$",
    title="Error and bound, η = 0.5",
    ylim=(1e-12, 1),
)
left.legend(frameon=False, fontsize="small")

data = theorem.rows.where(part="data")
share, rate = data.column("p"), np.minimum(data.column("rate"), 1.2)
right.plot(share, rate, "o-", color="#D55E00", label="measured")
right.axhline(0.7, color="black", linestyle=":", label="1 − 0.6 η")
right.axhspan(1, 1.2, color="0.92", zorder=0)
right.annotate("does not converge", (0.6, 1.1), color="0.35", va="center")
right.set(xlabel="share of entries seen", ylabel="contraction", ylim=(0.4, 1.2), xlim=(0, 1))
right.set_title("n = 200, r = 3, κ = 2, η = 0.5")
right.legend(frameon=False, loc="lower left")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)

# %%
# What to look out for
# --------------------
# - **Full size takes longer**: ``scaledgd reproduce`` without ``--quick`` uses the sizes of the
#   monograph.
# - **The chlorine measurements** of the monograph may not be redistributed. Unless you have a
#   copy, a simulation replaces them, and the report says so.
# - **Misprints**: Algorithms 4 and 5 do not work as printed; see :doc:`the errata </mathematics>`.
#
# See also: :doc:`the theorems with their constants </mathematics>`, :doc:`write your own loss
# </gallery/research/own_loss>`, :doc:`the command line </command-line>`.
