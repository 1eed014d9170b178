"""
Which rank?
===========

Real tables have no exact rank, only decaying singular values. What counts is the prediction of
entries that were not seen. There are three ways to choose a rank that predicts well, and one way
to get it wrong.
"""

# %%
# In short
# --------

import numpy as np

import scaledgd as sg

rng = np.random.default_rng(0)
X = rng.standard_normal((200, 4)) @ rng.standard_normal((4, 50))
X += 0.1 * rng.standard_normal(X.shape)
X[rng.random(X.shape) < 0.3] = np.nan
print(sg.MatrixCompletion(random_state=0).fit(X).rank_)

# %%
# The data
# --------
# Chlorine in drinking water at 120 junctions of a network, every five minutes for 15 hours (a
# simulation that comes with the package). Two thirds are observed, with errors of 0.05 mg/L.

import warnings

import matplotlib.pyplot as plt

chlorine = sg.datasets.load_chlorine()
print(chlorine.source.split(":")[0])
truth = chlorine.X.T  # rows are times
rng = np.random.default_rng(0)
seen = rng.random(truth.shape) < 0.65
table = np.where(seen, truth + 0.05 * rng.standard_normal(truth.shape), np.nan)


def error(estimate):
    """Return the error of the entries that were not seen, in mg/L."""
    return np.sqrt(np.mean((estimate - truth)[~seen] ** 2))


# %%
# Choose it automatically
# -----------------------
# With ``rank="auto"``, the default, components that noise can explain are removed, and the offsets
# and scales are those that predict held-out entries best. ``rank_path_`` records the search.

model = sg.MatrixCompletion(random_state=0).fit(table)
print(f"rank {model.rank_}, offsets: {model.center_}, scales: {model.scale_}")
print(f"off by {error(model.reconstruct()):.4f} mg/L")

# %%
# Give a bound
# ------------
# A given rank is an upper bound. The ridge of every row is learnt from the noise, and components
# that the data do not support are removed. So a generous bound costs time, but not accuracy.
# Without the ridge, every surplus component fits noise, and the errors are large for rows with few
# entries:

ranks = [1, 2, 4, 7, 10, 12, 14, 16]
learnt, least_squares = [], []
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # fits without a ridge cause warnings
    for rank in ranks:
        bounded = sg.MatrixCompletion(rank, center=model.center_).fit(table)
        plain = sg.MatrixCompletion(rank, center=model.center_, ridge=1e-12).fit(table)
        learnt.append(error(bounded.reconstruct()))
        least_squares.append(error(plain.reconstruct()))
        print(
            f"rank {rank:2d}: {learnt[-1]:.4f} mg/L with rank {bounded.rank_} used, "
            f"{least_squares[-1]:.4f} mg/L without a ridge"
        )

# %%
# The dotted line is the error of the best approximation of the *truth*. It keeps falling, but says
# nothing about what can be learnt from part of a noisy table.

offsets = truth.mean(axis=0) + truth.mean(axis=1, keepdims=True) - truth.mean()
s = np.linalg.svd(truth - offsets, compute_uv=False)
best = [np.sqrt(np.sum(s[r:] ** 2) / truth.size) for r in ranks]
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.semilogy(np.arange(1, 31), s[:30], "o", color="0.35", markersize=4)
left.axvline(model.rank_, color="#D55E00", linewidth=1)
left.annotate(f"chosen: {model.rank_}", (model.rank_ + 0.5, s[1]), color="#D55E00")
left.set(xlabel="index", ylabel="singular value (mg/L)", title="Truth less offsets: no gap")

right.semilogy(ranks, least_squares, "s--", color="#0072B2", label="least squares, no ridge")
right.semilogy(ranks, learnt, "o-", color="#D55E00", label="ridge learnt (the default)")
right.semilogy(ranks, best, ":", color="0.5", label="best approximation of the truth")
right.axvline(model.rank_, color="#D55E00", linewidth=1)
right.set(xlabel="rank given", ylabel="error of unseen entries (mg/L)", title="A rank too large")
right.legend(frameon=False)
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)

# %%
# Look at held-out entries yourself
# ---------------------------------
# :api:`rank_curve` holds out a third of the entries at a time and shows the errors. It chooses the
# smallest rank whose error is within a standard error of the best. The errors include the noise of
# the held-out entries, which no model can predict. The best rank for two thirds of the entries is
# slightly too small for all of them.

curve = sg.rank_curve(
    sg.MatrixCompletion(center=model.center_, tol=1e-3), table, ranks=[2, 4, 7, 10, 12]
)
curve.ax_.set_ylabel("held-out RMS error (mg/L)")
curve.figure_.set_size_inches(5, 3.4)
print(f"chosen: {curve.chosen}")

# %%
# What to look out for
# --------------------
# - **Offsets and scales are chosen for every given rank.** To compare ranks alone, fix them:
#   ``center=model.center_, scale=model.scale_``.
# - **Hold out what will be missing.** Single held-out entries, as here, show how well single
#   missing values are filled in. For outages use :api:`BlockSplit`, for new rows :api:`RowSplit`.
# - **For large tables such as videos, robust PCA chooses the rank differently**: it looks for a gap
#   in the spectrum of the accepted entries.
#
# See also: :doc:`how sure is a filled cell? </gallery/trust/how_sure>`, :doc:`how ranks are chosen
# </estimators>`.
