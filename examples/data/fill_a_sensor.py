"""
Fill the gaps of sensors
========================

Sensors lose single readings, fail for hours, and sometimes fail all at once. If the rows of a table
have times, one call fills all of these gaps and says how sure it is.
"""

# %%
# In short
# --------

import numpy as np

import scaledgd as sg

readings = sg.datasets.load_water().frame()  # the index is times
gaps = np.random.default_rng(0).random(readings.shape) < 0.2
filled = sg.MatrixCompletion(random_state=0).fit_transform(readings.mask(gaps))
print(filled.iloc[:3, :4])

# %%
# The data
# --------
# Sixty sensors in a water network report the concentration of chlorine every hour, for two weeks.
# The readings come from a complete simulation, so hidden readings can be compared with the truth.
# The last two days are kept for later.

import warnings

import matplotlib.pyplot as plt
import pandas as pd

everything = sg.datasets.load_water().frame()
truth, later = everything.iloc[:-48], everything.iloc[-48:]
print(truth.iloc[:3, :4])

# %%
# The gaps
# --------
# A tenth of the readings is lost, every sensor fails once for 6 to 36 hours, and for eight hours no
# sensor reports.

rng = np.random.default_rng(0)
missing = rng.random(truth.shape) < 0.1
for sensor in range(60):
    length = rng.integers(6, 37)
    begin = rng.integers(0, len(truth) - length)
    missing[begin : begin + length, sensor] = True
missing[150:158] = True
table = truth.mask(missing)
print(f"{missing.mean():.0%} of the readings are missing")

# %%
# One call
# --------
# The index of the table holds times, so ``smooth="auto"``, the default, also tries models of time.
# Cells that are held out in the shape of the gaps decide. ``rank_path_`` lists the candidates:
# ``smooth`` is a low-rank table whose rows follow each other in time, ``series`` interpolates every
# sensor separately, and the others ignore time.

warnings.filterwarnings("ignore", category=sg.DataWarning)  # of rows without any value
model = sg.MatrixCompletion(random_state=0).fit(table)
filled = model.transform(table)
for candidate in model.rank_path_:
    print(
        f"{candidate['start']:8s} rank {candidate['rank']:2d}, held out {candidate['held_out']:.3f}"
    )

# %%
# Was it right?
# -------------
# Errors of the filled cells, in mg/L, compared with other methods:

from sklearn.impute import KNNImputer

without_time = sg.MatrixCompletion(smooth="none", random_state=0).fit_transform(table)
neighbours = pd.DataFrame(KNNImputer().fit_transform(table), truth.index, truth.columns)
others = {
    "means of the sensors": table.fillna(table.mean()),
    "linear interpolation": table.interpolate("time", limit_direction="both"),
    "nearest neighbours": neighbours,
    "scaledgd without time": without_time,
    "scaledgd": filled,
}
for name, estimate in others.items():
    off = (estimate - truth).to_numpy()
    print(
        f"{name:22s} all gaps {np.sqrt(np.mean(off[missing] ** 2)):.3f}, "
        f"the blackout {np.sqrt(np.mean(off[150:158] ** 2)):.3f}"
    )

# %%
# How sure is it?
# ---------------
# ``interval`` bounds cells. ``kind="prediction"`` bounds what a sensor would have read, noise
# included, and can be checked against the hidden readings; ``kind="model"`` bounds the
# concentration itself. Bands are narrow where other sensors or nearby readings help, and wide in
# the middle of long outages.

gaps = np.nonzero(missing)
lower, upper = model.interval(gaps, 0.9, kind="prediction")
hidden = truth.to_numpy()[gaps]
print(f"{np.mean((lower <= hidden) & (hidden <= upper)):.0%} of them are within 90 % intervals")

fig, axes = plt.subplots(3, figsize=(9, 7), layout="constrained", sharex=True)
for ax, sensor in zip(axes, ["J-447", "J-627", "J-811"], strict=True):
    k = truth.columns.get_loc(sensor)
    shape = {"column": k, "level": 0.9, "kind": "prediction", "unit": "mg/L"}
    sg.IntervalDisplay.from_estimator(model, ax=ax, **shape)
    ax.plot(truth[sensor].where(missing[:, k]), ".", color="#D55E00", ms=4, label="hidden")
    ax.set_title(sensor, loc="right")
    ax.get_legend().remove()
    ax.set_xlabel("")
axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False)

# %%
# The next rows
# -------------
# ``transform`` fills later rows with the help of the rows before them. Here half of the sensors
# report on the next day, and none on the day after. During that final blackout, the estimates move
# from the last readings to what the sensors usually show at these hours.

partly = later.copy()
partly.iloc[:24, ::2] = np.nan
partly.iloc[24:] = np.nan
following = model.transform(partly)
off = (following - later).to_numpy()
unknown = partly.isna().to_numpy()
print(f"every other sensor known: {np.sqrt(np.mean(off[:24][unknown[:24]] ** 2)):.3f} mg/L")
print(f"nothing known:            {np.sqrt(np.mean(off[24:] ** 2)):.3f} mg/L")
means = (table.mean() - later).to_numpy()[24:]
print(f"means of the sensors:     {np.sqrt(np.mean(means**2)):.3f} mg/L")

# %%
# Intervals are for cells of the fit. To get intervals for future rows, pass these rows to ``fit``
# without values. The intervals widen with the time since the last reading:

ahead = sg.MatrixCompletion(random_state=0).fit(pd.concat([table, partly]))
rows = np.repeat(np.arange(len(table), len(table) + 48), 60)
columns = np.tile(np.arange(60), 48)
lower, upper = (x.reshape(48, 60) for x in ahead.interval((rows, columns), 0.9, kind="prediction"))
inside = (lower <= later.to_numpy()) & (later.to_numpy() <= upper)
print(f"within 90 % intervals: {inside[:24][unknown[:24]].mean():.0%}, {inside[24:].mean():.0%}")

k = truth.columns.get_loc("J-627")
fig, ax = plt.subplots(figsize=(9, 2.8), layout="constrained")
sg.IntervalDisplay.from_estimator(ahead, column=k, level=0.9, kind="prediction", unit="mg/L", ax=ax)
ax.plot(later["J-627"], ".", color="#D55E00", ms=4, label="what came")
ax.set_xlim(later.index[0] - pd.Timedelta(days=3), later.index[-1])
ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False)

# %%
# What to look out for
# --------------------
# - **Times must differ from each other.** They may be irregular, and rows may be in any order.
#   Repeated times are an error that names them: average them, or set ``smooth="none"``.
# - **The last rows are the hardest.** Nothing comes after them, so look at the intervals there.
# - **Where sharp fronts pass one sensor after another**, no pattern repeats, and interpolation
#   can be better (:doc:`an example </estimators>`). Compare them if you can.
# - **An array has no times.** Rows are then taken as equally spaced, if neighbours are alike.
#
# See also: :doc:`fill the holes in a table </gallery/data/fill_a_table>`, :doc:`how sure is a
# filled cell? </gallery/trust/how_sure>`, and :doc:`the command line </command-line>`, which
# detects a column of times.
