"""
Separate background and movers
==============================

A fixed camera sees a background that hardly changes, and objects that cross it. The background has
low rank, and the moving objects are gross errors. Robust PCA separates them, without being told
how many pixels move.
"""

# %%
# In short
# --------

import numpy as np

import scaledgd as sg

rng = np.random.default_rng(0)
still = np.outer(2 + np.sin(np.arange(40)), rng.random(200))  # 40 images of 200 pixels
moved = rng.random(still.shape) < 0.05
model = sg.RobustPCA(random_state=0).fit(still + 0.01 * rng.standard_normal(still.shape) + moved)
print(moved.sum(), model.outliers_.nnz)

# %%
# The data
# --------
# A simulated video of 100 images of 60 × 80 pixels: a brick wall, a shadow that comes and goes, a
# flickering lamp, three discs that cross the image, and a little noise.

import matplotlib.pyplot as plt

rng = np.random.default_rng(0)
frames, height, width = 100, 60, 80
y, x = np.mgrid[:height, :width]
time = np.arange(frames)

bricks = 110 + 25 * rng.random((10, 12))[(y // 6) % 10, ((x + 4 * ((y // 6) % 2)) // 8) % 12]
bricks = np.where((y % 6 == 0) | ((x + 4 * ((y // 6) % 2)) % 8 == 0), 80.0, bricks)
lamp = np.exp(-((x - 60) ** 2 + (y - 10) ** 2) / 500)
shade = 1 / (1 + np.exp((x - y - 5) / 4))
flicker = 25 + 12 * np.sin(time / 2.3) + 5 * rng.standard_normal(frames)
shadow = 35 * np.sin(np.pi * time / frames) ** 2
background = (
    bricks
    + flicker[:, None, None] * lamp
    - shadow[:, None, None] * shade * (bricks / bricks.mean())
)

video = background + 2 * rng.standard_normal(background.shape)
moving = np.zeros(video.shape, dtype=bool)
discs = [(5, -8, 1.3, 16, 0.05, 235), (6, 92, -1.2, 44, -0.05, 5), (4, 28, 0.5, 66, -0.75, 235)]
for radius, left, right, top, down, brightness in discs:
    for t in time:
        inside = (x - left - right * t) ** 2 + (y - top - down * t) ** 2 <= radius**2
        video[t][inside] = brightness + 4 * rng.standard_normal(inside.sum())
        moving[t] |= inside
print(
    f"{moving.mean():.1%} of the pixels move, at most {moving.mean(axis=0).max():.0%} of the time"
)

# %%
# One call
# --------
# Every image is a row of the table.

table = video.reshape(frames, -1)
model = sg.RobustPCA(random_state=0).fit(table)
print(f"rank {model.rank_}: the wall, the lamp, the shadow")

display = sg.SeparationDisplay.from_estimator(
    model, frames=[25, 50, 80], image_shape=(height, width), unit="grey level"
)
display.figure_.set_size_inches(8, 7)

# %%
# Was it right?
# -------------
# A pixel counts as moving if the video differs from the background by more than ten grey levels.
# For comparison: the mean image, the median image, and the SVD, which the moving objects distort.

U, s, Vh = np.linalg.svd(table, full_matrices=False)
r = model.rank_
backgrounds = {
    "mean image": np.broadcast_to(table.mean(axis=0), table.shape),
    "median image": np.broadcast_to(np.median(table, axis=0), table.shape),
    f"SVD of rank {r}": (U[:, :r] * s[:r]) @ Vh[:r],
    "robust PCA": model.reconstruct(),
}
truth = moving.reshape(frames, -1)
print("                background off by   movers found   false alarms")
for name, estimate in backgrounds.items():
    off = np.sqrt(np.mean((estimate - background.reshape(frames, -1)) ** 2))
    found = np.abs(table - estimate) > 10
    hits, false = (found & truth).sum() / truth.sum(), (found & ~truth).sum() / found.sum()
    print(f"{name:15s} {off:11.1f} levels {hits:14.0%} {false:14.0%}")

# %%
# One image, four backgrounds, and the pixels that each takes as moving:

shown = 50
fig, axes = plt.subplots(2, 4, figsize=(10, 4.2), layout="constrained")
for (name, estimate), (above, below) in zip(backgrounds.items(), axes.T, strict=True):
    above.imshow(estimate[shown].reshape(height, width), cmap="gray", vmin=20, vmax=200)
    found = np.abs(table - estimate)[shown].reshape(height, width) > 10
    below.imshow(found, cmap="gray_r", vmin=0, vmax=1.4)
    below.contour(moving[shown], [0.5], colors="#D55E00", linewidths=1.2)
    above.set(title=name, xticks=[], yticks=[])
    below.set(xticks=[], yticks=[])
axes[0, 0].set_ylabel("background")
axes[1, 0].set_ylabel("found to move\n(line: truth)")

# %%
# What to look out for
# --------------------
# - **A pixel must show the background most of the time.** Otherwise the object in front of it is
#   taken as the background.
# - **Missing values are allowed**: NaN means missing, and gross errors are found among the rest.
# - **The threshold is part of the model.** ``model.transform(new_images)`` cleans later images,
#   each on its own.
# - **The rank is chosen at a gap in the spectrum of the accepted entries.** Moving objects that
#   hardly differ from the background fill this gap. With discs of the grey levels 225, 30 and 190
#   instead of 235, 5 and 235 the chosen rank was 5. If you know the rank, give it:
#   ``RobustPCA(rank=3)``.
#
# See also: :api:`TensorRobustPCA` for colour images or several cameras, :doc:`how gross errors are
# found </estimators>`, and :api:`SoftTrim` and :api:`HardTrim` for your own thresholds.
