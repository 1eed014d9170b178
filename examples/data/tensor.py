"""
Complete a tensor
=================

Measurements with more than two indices, such as latitude, longitude and time, are a tensor. A
model that knows all of its modes needs far fewer measurements than one that unfolds it to a table.
"""

# %%
# The data
# --------
# Made-up temperatures of the sea on a grid of 32 × 48 points, on 60 days: warm towards the south,
# a season that comes later in the north, an upwelling along the coast that comes and goes, waves
# that travel. It is a smooth field that is *not* of low rank, only close to it.

import warnings

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

import scaledgd as sg

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
# The holes
# ---------
# Clouds that drift. A satellite sees what is between them, and of that one point in eight, with an
# error of half a degree.

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
# A labelled array goes in, a labelled array comes out. The multilinear rank, one number for each
# mode, is found on points that are held out.

model = sg.TensorCompletion(random_state=0).fit(data)
filled = model.transform(data)
print(f"multilinear rank {model.rank_}; noise {np.sqrt(model.noise_variance_):.2f} °C")

# %%
# Was it right?
# -------------
# Beside it: the mean of every place over time, and completion of the table place × day, which does
# not know what is next to what (and warns of places that were hardly seen).

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
# - **A rank for every mode.** ``rank=5`` means (5, 5, 5); a mode whose rank is its size is not
#   compressed, which suits modes such as three colours.
# - **Which mode is the first matters** for ``transform`` of new data only: new slices of mode 0
#   are filled, as new rows are for tables.
# - **Give ranks to** :api:`TensorRobustPCA`: finding them beneath gross errors is not reliable.
#
# Where next: :doc:`how sure is a filled cell? </gallery/trust/how_sure>` works for tensors too;
# :doc:`the mathematics </mathematics>` of Tucker factors.
