"""
How sure is a filled cell?
==========================

Every filled cell has a standard error and an interval. One kind of interval relies on the model,
the other on held-out entries. This page compares both on data whose truth is known.
"""

# %%
# In short
# --------

import numpy as np

import scaledgd as sg

rng = np.random.default_rng(0)
X = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 30))
X += 0.1 * rng.standard_normal(X.shape)
X[rng.random(X.shape) < 0.2] = np.nan
model = sg.MatrixCompletion(random_state=0).fit(X)
lower, upper = model.interval(np.nonzero(np.isnan(X)), 0.9)
print(f"half of the intervals are narrower than {np.median(upper - lower):.3f}")

# %%
# The data
# --------
# Chlorine in drinking water at 120 junctions, every five minutes for 15 hours (a simulation that
# comes with the package). Sensors have errors of 0.05 mg/L, and half of the readings are missing.

import matplotlib.pyplot as plt

chlorine = sg.datasets.load_chlorine()
truth = chlorine.X.T  # rows are times
rng = np.random.default_rng(1)
readings = truth + 0.05 * rng.standard_normal(truth.shape)
seen = rng.random(truth.shape) < 0.5
table = np.where(seen, readings, np.nan)

# %%
# One call
# --------
# ``calibrate`` holds out a tenth of the entries to measure the errors of predictions.

model = sg.MatrixCompletion(calibrate=0.1, random_state=0).fit(table)
holes = np.nonzero(~seen)
value, std = model.predict_entries(holes, return_std=True)
lower, upper = model.interval(holes, 0.9)  # for the true entry, if the model is right
low, high = model.interval(holes, 0.9, kind="conformal")  # for a new reading


def share(a, b, values):
    return np.mean((a <= values) & (values <= b))


print(f"true entries in 90 % intervals of the model: {share(lower, upper, truth[holes]):.1%}")
print(f"new readings in 90 % conformal intervals:    {share(low, high, readings[holes]):.1%}")

# %%
# The intervals of the model are too narrow here. They are right for a table of low rank plus
# independent noise, and this table is only close to that: the fronts that travel through the pipes
# are neither. The conformal intervals have the right coverage, because they are calibrated on
# held-out entries. On a table that *is* of low rank plus noise, the intervals of the model are
# nearly right, too:

exact = rng.standard_normal((180, 3)) @ rng.standard_normal((3, 120))
noisy = exact + 0.3 * rng.standard_normal(exact.shape)
exact_model = sg.MatrixCompletion(calibrate=0.1, random_state=0).fit(np.where(seen, noisy, np.nan))
inside = share(*exact_model.interval(holes, 0.9), exact[holes])
print(f"low rank and noise: true entries in 90 % intervals of the model: {inside:.1%}")

# %%
# Coverage at every level, and one junction over time:

levels = np.linspace(0.1, 0.98, 12)
curves = {
    "conformal, new readings": [
        share(*model.interval(holes, level, kind="conformal"), readings[holes]) for level in levels
    ],
    "model, true entries": [share(*model.interval(holes, level), truth[holes]) for level in levels],
    "model, on a table of low rank": [
        share(*exact_model.interval(holes, level), exact[holes]) for level in levels
    ],
}

junction, hours = 61, np.arange(180) / 12
everywhere = (np.arange(180), np.full(180, junction))
middle = model.predict_entries(everywhere)
below, above = model.interval(everywhere, 0.9, kind="conformal")
hidden = ~seen[:, junction]

fig, (left, right) = plt.subplots(
    1, 2, figsize=(10.5, 4), width_ratios=[1.7, 1], layout="constrained"
)
left.fill_between(
    hours, below, above, color="#56B4E9", alpha=0.35, linewidth=0, label="90 %, conformal"
)
left.plot(hours, middle, color="#0072B2", label="estimate")
left.plot(hours, readings[:, junction], ".", color="0.6", markersize=4, label="not seen")
left.plot(hours[~hidden], readings[~hidden, junction], ".", color="black", ms=5, label="seen")
left.set(
    xlabel="time (h)",
    ylabel="chlorine (mg/L)",
    title=f"junction {chlorine.junctions[junction]}",
    xlim=(0, 15),
)
left.legend(frameon=False, ncols=2)

right.plot([0, 1], [0, 1], color="0.8", linewidth=3, zorder=0)
for (name, shares), mark, colour in zip(
    curves.items(), ("o-", "s--", "^:"), ("#0072B2", "#D55E00", "#009E73"), strict=True
):
    right.plot(levels, shares, mark, color=colour, label=name, markersize=5)
right.set(xlabel="nominal level", ylabel="share inside", aspect="equal", xlim=(0, 1), ylim=(0, 1))
right.legend(frameon=False, fontsize="small", loc="lower right")
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)

# %%
# Standard errors show where to be careful. Here cells are sorted by standard error into ten
# groups; the actual errors grow with the standard errors.

order = np.array_split(np.argsort(std), 10)
print("standard error actual error (mg/L)")
for group in order[::3]:
    real = np.sqrt(np.mean((value - truth[holes])[group] ** 2))
    print(f"{std[group].mean():12.3f} {real:14.3f}")

# %%
# Several completed tables
# ------------------------
# Quantities computed from a filled table inherit the uncertainty of the filled cells. Draws show
# how much (multiple imputation), here for the mean of every junction.

draws = model.sample(20, random_state=0).mean(axis=1)
print(f"mean of {chlorine.junctions[junction]}: {draws[:, junction].mean():.4f} mg/L, ", end="")
print(f"with a standard error of {draws[:, junction].std():.4f} mg/L")

# %%
# What to look out for
# --------------------
# - **Conformal intervals are valid for cells like the observed ones.** If sensors fail for hours,
#   the cells in these gaps are different.
# - **An empty row is different from a row with half of its entries missing.** It is filled with
#   offsets, and its uncertainty is unknown.
# - **An interval for the true entry is not one for a new reading**, which also has noise.
#
# See also: :doc:`how standard errors are computed, and what was measured </reliability>`;
# :api:`IntervalDisplay` draws the intervals of a row.
