"""
Fill the holes in a table
=========================

A table of measurements has missing values: single ones, and gaps of many hours. One call fills them
in, with nothing to tune.
"""

# %%
# In short
# --------

import numpy as np

import scaledgd as sg

rng = np.random.default_rng(0)
X = 5 + rng.standard_normal((100, 2)) @ rng.standard_normal((2, 12))
X[rng.random(X.shape) < 0.2] = np.nan
filled = sg.MatrixCompletion(random_state=0).fit_transform(X)
print(np.isnan(X).sum(), np.isnan(filled).sum())

# %%
# The data
# --------
# Eighty electricity meters are read every hour for ten days. The numbers are simulated, but behave
# like real ones: a few patterns (offices, evenings, heating at night, weekends) explain every
# meter, the meters differ by two orders of magnitude, and every reading has a small error.

import matplotlib.pyplot as plt
import pandas as pd

rng = np.random.default_rng(0)
hours = pd.date_range("2024-03-04", periods=240, freq="h")
clock, working = hours.hour.to_numpy(), hours.day_of_week.to_numpy() < 5


def around(hour, width):
    return np.exp(-0.5 * (((clock - hour + 12) % 24 - 12) / width) ** 2)


habits = np.stack(
    [
        np.ones(240),
        working * (around(11, 3) + around(15, 3)),
        around(7.5, 1) + 1.5 * around(19.5, 2),
        around(2, 2.5) * (1 + 0.5 * np.sin(np.arange(240) / 34)),
        ~working * around(13, 4),
    ]
)
shares = rng.dirichlet([1.5, 1, 1, 0.6, 0.4], size=80)
shares = shares[np.lexsort((shares.max(axis=1), shares.argmax(axis=1)))]
size = np.exp(rng.normal(1.5, 1.2, 80))
names = [f"meter {k:02d}" for k in range(80)]
truth = pd.DataFrame(habits.T @ shares.T * size, index=hours, columns=names)
readings = truth + 0.15 * truth.std().to_numpy() * rng.standard_normal(truth.shape)

# %%
# The missing values
# ------------------
# A quarter of the readings is lost, and every meter fails once or twice for up to a day.

missing = rng.random(truth.shape) < 0.25
for meter in range(80):
    for _ in range(rng.integers(1, 3)):
        begin = rng.integers(0, 220)
        missing[begin : begin + rng.integers(8, 25), meter] = True
table = readings.mask(missing)
print(f"{missing.mean():.0%} of the table is missing")

# %%
# One call
# --------
# NaN means missing. The result is a data frame like the input. Held-out entries decide whether rows
# or columns are centred and scaled, and which rank the table has.

model = sg.MatrixCompletion(random_state=0).fit(table)
filled = model.transform(table)
print(f"rank {model.rank_}, centred: {model.center_}, scaled: {model.scale_}")
print(model.status_)

# %%
# Was it right?
# -------------
# Here the truth is known. These are the errors of the filled cells, in per cent of the mean of
# their meter, for scaledgd and for simpler methods:

unit = ((table - table.mean()) / table.std()).fillna(0)
U, s, Vh = np.linalg.svd(unit, full_matrices=False)
plain = pd.DataFrame((U[:, :5] * s[:5]) @ Vh[:5], index=hours, columns=names)
others = {
    "means of the meters": table.fillna(table.mean()),
    "interpolation in time": table.interpolate(limit_direction="both"),
    "means of hours of the day": table.fillna(table.groupby(hours.hour).transform("mean")),
    "SVD of rank 5, gaps at the mean": plain * table.std() + table.mean(),
    "scaledgd": filled,
}
errors = {}
for name, estimate in others.items():
    off = ((estimate - truth) / truth.mean()).to_numpy()[missing]
    errors[name] = 100 * np.sqrt(np.mean(off**2))
    print(f"{name:35s} {errors[name]:5.1f} %")

# %%
# The table before and after, and five days of one meter:

shown = names.index("meter 54")
fig, axes = plt.subplot_mosaic(
    "ab\ncc", figsize=(9, 6), layout="constrained", height_ratios=[1.25, 1]
)
look = {"aspect": "auto", "cmap": "cividis", "vmin": 0, "vmax": 2.2, "extent": (0, 10, 79.5, -0.5)}
for key, values, title in (("a", table, "with gaps"), ("b", filled, "filled")):
    image = axes[key].imshow((values / table.mean()).T, interpolation="none", **look)
    axes[key].set(title=title, xlabel="day", xticks=range(0, 11, 2))
    axes[key].axhline(shown, color="#D55E00", linewidth=1)
axes["a"].set_ylabel("meter")
fig.colorbar(image, ax=[axes["a"], axes["b"]], label="load / mean load", extend="max")

days = np.arange(240) / 24
gaps = filled[names[shown]].where(missing[:, shown])
axes["c"].plot(days, truth[names[shown]], color="0.7", linewidth=4, label="truth")
axes["c"].plot(days, table[names[shown]], ".", color="black", markersize=5, label="readings")
axes["c"].plot(days, gaps, "o", color="#D55E00", markersize=5, mfc="none", label="filled")
axes["c"].axhline(
    table[names[shown]].mean(), color="#0072B2", linestyle="--", label="mean of the meter"
)
axes["c"].set(xlim=(0, 5), xlabel="day", ylabel="load (kW)", title=names[shown], ylim=(0, None))
axes["c"].legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.28), frameon=False)

# %%
# New rows
# --------
# The model has learnt how the meters are related. An hour that was not in the training data can be
# filled in from the meters that did report, here every fourth:

truth_then = 1.1 * truth.iloc[[34]].set_axis([pd.Timestamp("2024-03-20 10:00")])
reported = truth_then.where([np.arange(80) % 4 == 0])
both = {"truth": truth_then.iloc[0], "filled": model.transform(reported).iloc[0]}
print(pd.DataFrame(both).iloc[[21, 22, 23, 25, 26, 27]].round(2))

# %%
# What to look out for
# --------------------
# - **A given rank is an upper bound**, and offsets and scales are still chosen on held-out entries.
#   Set ``center="none", scale="none"`` for a low-rank table and nothing else.
# - **Text and date columns are refused**, with an error that names them. Put them into the index,
#   or leave them out.
# - **A column with very few observations** is filled with its mean. ``model.diagnostics_`` lists
#   what the data do not determine.
#
# See also: :doc:`how sure is a filled cell? </gallery/trust/how_sure>`, :doc:`what the
# estimators choose, and how </estimators>`, and :doc:`the command line </command-line>`.
