"""
Write your own loss
===================

A loss is one class with one method: it takes the residual and returns a value and its gradient.
Everything else, such as starts, methods and operators, stays the same.
"""

# %%
# The task
# --------
# Some measurement errors have heavy tails: most are small, some are large, and there is no clear
# line between them. Least squares gives too much weight to the large ones, and trimming needs a
# threshold. The likelihood of Student's distribution has neither problem:
#
# .. math::
#
#    \ell(r) = \frac{\nu + 1}{2}\, s^2 \log\left(1 + \frac{r^2}{\nu s^2}\right),
#    \qquad
#    \ell'(r) = \frac{\nu + 1}{\nu + r^2 / s^2}\; r .

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np

import scaledgd as sg


@dataclass(frozen=True)
class Student(sg.Loss):
    """Negative log-likelihood of Student's distribution, with a curvature of about 1 at 0."""

    scale: float
    freedom: float = 3.0

    def __call__(self, residual, t=0):
        """Return the value and the weight, which is the gradient of the value."""
        value = np.log1p((residual / self.scale) ** 2 / self.freedom).sum()
        value = 0.5 * (self.freedom + 1) * self.scale**2 * value
        return value, self.curvature(residual) * residual

    def curvature(self, residual):
        """Return the weights of an equivalent least-squares loss, for methods that solve blocks."""
        return (self.freedom + 1) / (self.freedom + (residual / self.scale) ** 2)


# %%
# :api:`ScaledGD` needs only ``__call__``. With ``curvature``, :api:`Alternating` works too, by
# iteratively reweighted least squares.
#
# A common mistake is a weight that is not the gradient of the value. Check it by finite
# differences:

rng = np.random.default_rng(0)
loss, r, d = Student(scale=0.1), rng.standard_normal(50), 1e-6 * rng.standard_normal(50)
change = loss(r + d)[0] - loss(r - d)[0]
print(f"slope by differences over slope by weight: {change / (2 * d @ loss(r)[1]):.9f}")

# %%
# The problem
# -----------
# A matrix of rank 5 and condition number 20, 30 % of it observed. The errors have Student's
# distribution with 1.5 degrees of freedom, so their variance is infinite.

problem, truth = sg.datasets.matrix_completion(300, 250, rank=5, kappa=20, p=0.3, rng=0)
size = np.sqrt(np.mean(problem.y**2))
y = problem.y + 0.1 * size * rng.standard_t(1.5, problem.y.shape)
print(f"the largest error is {np.abs(y - problem.y).max() / size:.0f} times the data")

# %%
# Compare the new loss with the built-in ones. All runs have the same start, for which values
# larger than three times the typical size of the data are clipped.

start = sg.spectral(5)(
    sg.Observed(problem.operator, np.clip(y, -3 * size, 3 * size), scale=problem.scale)
)
losses = {
    "least squares": sg.Squared(),
    "absolute values": sg.Absolute(),
    "soft trimming": sg.SoftTrim(0.2 * size),
    "Student, written here": Student(scale=0.1 * size),
}
runs = {}
for name, loss in losses.items():
    runs[name] = sg.solve(
        sg.Observed(problem.operator, y, loss, scale=problem.scale),
        start,
        sg.ScaledGD(sg.line_search()),
        max_iter=150,
        metrics={"error": lambda factors: sg.metrics.relative_error(factors, truth)},
    )
runs["Student, alternating"] = sg.solve(
    sg.Observed(problem.operator, y, losses["Student, written here"], scale=problem.scale),
    start,
    sg.Alternating(),
    max_iter=150,
    metrics={"error": lambda factors: sg.metrics.relative_error(factors, truth)},
)
for name, run in runs.items():
    print(f"{name:22s} ends at a relative error of {run.history[-1]['error']:.3f}")

# %%

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
grid = np.linspace(-8, 8, 401)
looks = ("0.6", "--"), ("#0072B2", "-."), ("#009E73", ":"), ("#D55E00", "-")
shown = {"soft trimming": sg.SoftTrim(2.0), "Student, written here": Student(1.0)}
for (name, loss), (colour, line) in zip(losses.items(), looks, strict=True):
    left.plot(grid, shown.get(name, loss)(grid)[1], line, color=colour, label=name, linewidth=2)
left.set(ylim=(-4, 4), xlabel="residual (standard errors)", ylabel="weight", title="Weights")
left.legend(frameon=False)

looks = (*looks, ("black", (0, (1, 1))))
for (name, run), (colour, line) in zip(runs.items(), looks, strict=True):
    errors = [record["error"] for record in run.history]
    right.semilogy(errors, linestyle=line, color=colour, linewidth=2, label=name)
right.set(xlabel="iteration", ylabel="relative error", title="Convergence", xlim=(0, 100))
right.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.6))
for ax in (left, right):
    ax.spines[["top", "right"]].set_visible(False)

# %%
# What to look out for
# --------------------
# - **A loss depends on the residual** A(X) − y only, not on X and y separately.
# - **Rules that change between iterates** (falling thresholds, trimmed entries) go into
#   ``freeze``, so that a line search compares values of one function. See :api:`SoftTrim` for an
#   example.
# - **Set class attributes** if the loss is not smooth (``smooth = False``), or if values at
#   different iterates cannot be compared (``comparable = False``).
# - **Use the array API** (``xp = array_namespace(residual)``) instead of NumPy to support PyTorch
#   tensors.
#
# See also: :doc:`operators, factorisations and methods of your own </built>`, :api:`Loss`,
# :doc:`the mathematics </mathematics>`.
