"""
Complete a tensor
=================

Measurements with more than two indices, such as latitude, longitude and time, form a tensor. A
model of the tensor needs far fewer measurements than a model of the same data unfolded into a
table.
"""

# %%
# In short
# --------

import numpy as np

import scaledgd as sg

truth = sg.datasets.low_rank_tensor((20, 15, 10), 2, kappa=3, rng=0).full()
holes = np.random.default_rng(0).random(truth.shape) < 0.5
model = sg.TensorCompletion(rank=2, random_state=0)
filled = model.fit_transform(np.where(holes, np.nan, truth))
print(f"largest error {np.abs(filled - truth).max():.1e}")

# %%
# The data
# --------
# Simulated sea temperatures on a grid of 32 × 48 points, on 60 days: warmer towards the south, a
# season that comes later in the north, upwelling along the coast, and travelling waves. The field
# is smooth, but only approximately of low rank.

import warnings

import matplotlib.pyplot as plt
import xarray as xr

rng = np.random.default_rng(0)
latitude, longitude, day = np.linspace(-1, 1, 32), np.linspace(-1.5, 1.5, 48), np.arange(60)
lat, lon, t = np.meshgrid(latitude, longitude, day, indexing="ij")
field = (
    18
    - 6 * lat
    + 3 * np.sin(2 * np.pi * (t / 60 - 0.15 * lat))
    - 5 * np.exp(-((lon - 1.2 + 0.3 * lat) ** 2) / 0.05) * (1 + np.sin(t / 7)) / 2
    + 1.5 * np.sin(5 * lon - t / 6) * np.cos(1.5 * lat)
)
dims = {"latitude": 30 + 8 * latitude, "longitude": -20 + 8 * longitude, "day": day}
truth = xr.DataArray(field, dims, name="temperature (°C)")

# %%
# The missing values
# ------------------
# A satellite sees one in eight of the points between drifting clouds, with an error of half a
# degree.

phases = rng.uniform(0, 2 * np.pi, 12)
waves = rng.normal(0, 3.5, (12, 2))
cover = sum(
    np.cos(a * lon + b * lat - 0.3 * t + c) for (a, b), c in zip(waves, phases, strict=True)
)
seen = (cover < 1) & (rng.random(field.shape) < 0.125)
data = truth.where(seen) + 0.5 * rng.standard_normal(field.shape)
print(f"{seen.mean():.1%} of the points were seen")

# %%
# One call
# --------
# Input and output are labelled arrays. The multilinear rank, one number per mode, is chosen on
# held-out points.

model = sg.TensorCompletion(random_state=0).fit(data)
filled = model.transform(data)
print(f"multilinear rank {model.rank_}; noise {np.sqrt(model.noise_variance_):.2f} °C")

# %%
# Was it right?
# -------------
# For comparison: the mean of every place over time, and completion of the table place × day, which
# ignores that the places form a grid (and warns about places with few observations).

warnings.simplefilter("ignore", sg.DataWarning)
table = data.to_numpy().reshape(-1, 60)
unfolded = sg.MatrixCompletion(random_state=0).fit(table)
mean = data.mean("day").fillna(float(data.mean()))
estimates = {
    "mean of the place": np.broadcast_to(mean.to_numpy()[:, :, None], field.shape),
    "as a table": unfolded.reconstruct().reshape(field.shape),
    "as a tensor": model.reconstruct().to_numpy(),
}
for name, estimate in estimates.items():
    off = np.sqrt(np.mean((estimate - field)[~seen] ** 2))
    print(f"{name:18s} off by {off:.2f} °C where nothing was seen")

# %%

days = [8, 27, 50]
columns = {"truth": field, "seen": data.to_numpy(), **dict(list(estimates.items())[1:])}
fig, axes = plt.subplots(3, 4, figsize=(9.5, 6.2), sharex=True, sharey=True, layout="constrained")
west, east, south, north = -32, -8, 22, 38
for row, d in zip(axes, days, strict=True):
    for ax, (name, values) in zip(row, columns.items(), strict=True):
        image = ax.imshow(
            values[:, :, d],
            cmap="viridis",
            vmin=6,
            vmax=28,
            origin="lower",
            extent=(west, east, south, north),
            aspect="auto",
            interpolation="none",
        )
        if d == days[0]:
            ax.set_title(name)
        if d == days[-1]:
            ax.set_xlabel("longitude (°)")
    row[0].set_ylabel(f"day {d}\nlatitude (°)")
fig.colorbar(image, ax=axes, label="temperature (°C)", shrink=0.6, extend="both")

# %%
# What to look out for
# --------------------
# - **Every mode has its rank.** ``rank=5`` means (5, 5, 5). A mode whose rank is its size is not
#   compressed, which suits short modes such as three colours.
# - **The order of the modes matters only for** ``transform``: it fills in new slices of mode 0, as
#   it fills in new rows of tables.
# - **Give ranks to** :api:`TensorRobustPCA`: choosing them in the presence of gross errors is not
#   reliable.
#
# See also: :doc:`how sure is a filled cell? </gallery/trust/how_sure>` (it works for tensors,
# too), and :doc:`the mathematics </mathematics>` of Tucker factors.
