"""ScaledGD against gradient descent over κ: Fig. 1 of the monograph, at half its size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import scaledgd as sg

KAPPAS = (2, 10, 50)
TARGET = 1e-6
SHAPE, RANK, P = (500, 500), 5, 0.2


def curves(kappas: Sequence[float] = KAPPAS, max_iter: int = 600) -> dict[tuple[str, float], Any]:
    """Relative errors over the iterations, by method and κ."""
    found: dict[tuple[str, float], Any] = {}
    for kappa in kappas:
        problem, truth = sg.datasets.matrix_completion(*SHAPE, RANK, kappa, P, rng=1)
        start = sg.spectral(RANK)(problem)
        for name, method in (
            ("ScaledGD", sg.ScaledGD(0.5)),
            ("gradient descent", sg.GradientDescent(0.5)),
        ):
            errors: list[float] = []

            def watch(state: sg.State, errors: list[float] = errors, truth: Any = truth) -> bool:
                errors.append(float(sg.metrics.relative_error(state.factors, truth)))
                return errors[-1] < 1e-14

            sg.solve(problem, start, method, max_iter=max_iter, callback=watch)
            found[name, kappa] = np.asarray(errors)
    return found


def count(errors: Any) -> str:
    """The iterations to the target, as text."""
    below = np.flatnonzero(errors <= TARGET)
    return f"{below[0]}" if below.size else f"more than {len(errors) - 1}"


def draw(found: dict[tuple[str, float], Any], path: str) -> None:
    """The curves as a picture: one colour per κ, full lines for ScaledGD."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    colours = ("#0072B2", "#D55E00", "#009E73")  # told apart by colour-blind readers
    marks = ("o", "s", "^")
    n1, n2 = SHAPE
    figure, axes = plt.subplots(figsize=(7, 4), dpi=150, layout="constrained")
    for colour, mark, kappa in zip(colours, marks, KAPPAS, strict=True):
        for name, line in (("ScaledGD", "-"), ("gradient descent", "--")):
            errors = found[name, kappa]
            axes.semilogy(
                errors, line, color=colour, marker=mark, markevery=40, label=f"{name}, κ = {kappa}"
            )
    axes.set(
        xlabel="iteration",
        ylabel=r"relative error $\|X_t - X_\star\|_F / \|X_\star\|_F$",
        title=f"Completing a {n1} × {n2} matrix of rank {RANK} from {P:.0%} of its entries",
        ylim=(1e-14, 2),
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path)


def main(plot: str | None = None) -> int:
    """Print the comparison; draw it where a file is named."""
    n1, n2 = SHAPE
    print(f"Completing {n1} × {n2} matrices of rank {RANK} from {P:.0%} of their entries.")
    print(f"Iterations to a relative error of {TARGET:g}, by condition number κ:\n")
    found = curves()
    print(f"{'κ':>5}  {'ScaledGD':>10}  {'gradient descent':>16}")
    for kappa in KAPPAS:
        both = (count(found[name, kappa]) for name in ("ScaledGD", "gradient descent"))
        print(f"{kappa:>5}  {next(both):>10}  {next(both):>16}")
    final = max(float(found["ScaledGD", kappa][-1]) for kappa in KAPPAS)
    print(f"\nScaledGD ends at a relative error of {final:.1e} or better for every κ.")
    if plot:
        draw(found, plot)
        print(f"Curves drawn in {plot}.")
    return 0
