"""
Predict ratings
===============

People rate only a few of many items. How would they rate the others? Much of a rating depends on
the user or the item alone. The rest is taste, which has low rank.
"""

# %%
# In short
# --------

import numpy as np

import scaledgd as sg

rng = np.random.default_rng(0)
user, film = np.nonzero(rng.random((60, 40)) < 0.3)
rating = np.clip(np.rint(3 + np.outer(rng.normal(size=60), rng.normal(size=40))), 1, 5)[user, film]
model = sg.MatrixCompletion(clip=(1, 5), random_state=0)
model.fit_entries((user, film), rating, shape=(60, 40))
print(model.predict_entries(([7, 7], [0, 1])).round(1))  # two films, and user 7

# %%
# The data
# --------
# Simulated ratings of 300 films by 800 users. Some users are kinder, some films are better, and
# taste has four dimensions. Ratings are integers from 1 to 5, and most users give only a few.

import warnings
from itertools import pairwise

import matplotlib.pyplot as plt

rng = np.random.default_rng(0)
users, films = 800, 300
kindness, quality = 0.4 * rng.standard_normal(users), 0.5 * rng.standard_normal(films)
taste = 0.55 * rng.standard_normal((users, 4)) @ (0.8 * rng.standard_normal((4, films)))
opinion = 3.4 + kindness[:, None] + quality + taste + 0.6 * rng.standard_normal((users, films))

popular = np.exp(0.8 * rng.standard_normal(films))
eager = np.exp(1.0 * rng.standard_normal(users))
chance = np.clip(0.1 * np.outer(eager / eager.mean(), popular / popular.mean()), 0, 0.9)
user, film = np.nonzero(rng.random((users, films)) < chance)
rating = np.clip(np.round(opinion[user, film]), 1, 5)
half = np.median(np.bincount(user, minlength=users))
print(f"{len(rating)} ratings, {len(rating) / opinion.size:.1%} of the table;")
print(f"half of the users have given {half:.0f} or fewer")

test = rng.random(len(rating)) < 0.1
train = ~test

# %%
# One call
# --------
# ``fit_entries`` takes triplets and never forms the table of all pairs. ``clip`` keeps estimates
# between one and five stars. If the data do not determine everything, there is a warning, and
# ``diagnostics_`` has the details.

warnings.simplefilter("ignore", sg.DataWarning)
model = sg.MatrixCompletion(clip=(1, 5), random_state=0)
model.fit_entries((user[train], film[train]), rating[train], (users, films))
print(f"offsets: {model.center_}, rank {model.rank_}")
print(f"noise: {np.sqrt(model.noise_variance_):.2f} stars")
print(*model.diagnostics_, sep="\n")

# %%
# Was it right?
# -------------
# Root-mean-square errors, in stars, of held-out ratings.


def rmse(estimate):
    return np.sqrt(np.mean((np.clip(estimate, 1, 5) - rating[test]) ** 2))


def offsets(which, n, left):
    """Return means by user or by film, shrunk towards zero if there are few ratings."""
    return np.bincount(which[train], left, n) / (np.bincount(which[train], minlength=n) + 3)


mean = rating[train].mean()
by_user, by_film = np.zeros(users), np.zeros(films)
for _ in range(20):
    by_film = offsets(film, films, rating[train] - mean - by_user[user[train]])
    by_user = offsets(user, users, rating[train] - mean - by_film[film[train]])

zeros = np.zeros((users, films))
zeros[user[train], film[train]] = rating[train] - mean
U, s, Vh = np.linalg.svd(zeros, full_matrices=False)
plain = mean + (U[:, :4] * s[:4]) @ Vh[:4]

here = user[test], film[test]
estimates = {
    "the mean of all": np.full(test.sum(), mean),
    "the mean of the film": mean + offsets(film, films, rating[train] - mean)[film[test]],
    "SVD of rank 4, gaps at the mean": plain[here],
    "offsets of user and film": mean + by_user[user[test]] + by_film[film[test]],
    "offsets and taste, scaledgd": model.predict_entries(here),
}
errors = {name: rmse(estimate) for name, estimate in estimates.items()}
for name, error in errors.items():
    print(f"{name:33s} {error:.3f}")

# %%
# For users with few ratings the model relies on the offsets. How much it does so is learnt from the
# data.

seen = np.bincount(user[train], minlength=users)
edges = [0, 8, 16, 32, 64, 400]
groups = [(a <= seen[user[test]]) & (seen[user[test]] < b) for a, b in pairwise(edges)]
names = ["0–7", "8–15", "16–31", "32–63", "64 +"]

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
colours = ["0.75", "0.75", "0.75", "#0072B2", "#D55E00"]
bars = left.barh(list(errors), list(errors.values()), color=colours)
left.bar_label(bars, fmt="%.2f", padding=3)
left.invert_yaxis()
left.set(xlim=(0, 1.3), xlabel="RMSE of held-out ratings (stars)")
left.spines[["top", "right"]].set_visible(False)

for (name, estimate), colour, mark in zip(
    list(estimates.items())[3:], colours[3:], "so", strict=True
):
    squares = (np.clip(estimate, 1, 5) - rating[test]) ** 2
    means = [np.sqrt(squares[group].mean()) for group in groups]
    right.plot(names, means, mark + "-", color=colour, label=name)
right.axhline(0.67, color="0.5", linestyle=":", label="noise and rounding")
right.set(xlabel="ratings that the user has given", ylabel="RMSE (stars)", ylim=(0.55, 1.3))
right.legend(frameon=False, loc="upper right")
right.spines[["top", "right"]].set_visible(False)

# %%
# Recommendations are the unrated films with the highest predictions. The standard error shows how
# certain a prediction is.

someone = int(np.argmax(seen))
unseen = np.setdiff1d(np.arange(films), film[user == someone])
pairs = np.full(len(unseen), someone), unseen
value, error = model.predict_entries(pairs, return_std=True)
for k in np.argsort(-(value - error))[:5]:
    print(f"film {unseen[k]:3d}: {value[k]:.2f} ± {error[k]:.2f}")

# %%
# What to look out for
# --------------------
# - **People choose what they rate.** The errors above are for films that users chose to rate. The
#   data do not tell how large the errors are for other films.
# - **A given rank is an upper bound.** Offsets of users and items are chosen on held-out ratings.
# - **Predictions are means**, because the model minimises squared errors. They are not whole stars.
#
# See also: :doc:`how to score a model on your own ratings </reliability>` (:api:`EntrySplit`,
# :api:`scorer`), and :doc:`performance </performance>` for millions of ratings.
