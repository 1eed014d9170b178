"""Fig. 3: the spectrum of the chlorine concentrations."""

from __future__ import annotations

from typing import Any

import numpy as np

import scaledgd as sg

from ..report import Beside, Chart, Curve
from .item import Case, Claim, Item, Row, Rows, Setting, Verdict


def cases(setting: Setting) -> list[Case]:
    """Return the one case: the data."""
    return [{"path": None if setting.chlorine is None else str(setting.chlorine)}]


def best_errors(X: Any) -> Any:
    """Return the relative errors of the best approximations of rank 0, 1, 2, ….

    Parameters
    ----------
    X : array of shape (n1, n2)

    Returns
    -------
    array of shape (min(n1, n2) + 1,)
    """
    s = np.linalg.svd(X, compute_uv=False)
    left = np.append(np.cumsum(s[::-1] ** 2)[::-1], 0.0)
    return np.sqrt(left / left[0])


def measure(path: str | None) -> list[Row]:
    """Return the spectrum of the data."""
    data = sg.datasets.load_chlorine(path)
    s, errors = np.linalg.svd(data.X, compute_uv=False), best_errors(data.X)
    return [
        {
            "source": data.source,
            "k": k + 1,
            "sigma": float(s[k] / s[0]),
            "error": float(errors[k + 1]),
        }
        for k in range(len(s))
    ]


def judge(rows: Rows) -> Verdict:
    """Judge the decay of the spectrum."""
    at = {row["k"]: row for row in rows}
    claims = [
        Claim(
            "the singular values decay rapidly",
            ", ".join(f"σ_{k}/σ₁ = {at[k]['sigma']:.2g}" for k in (5, 10, 20)),
            at[10]["sigma"] < 0.1 and at[20]["sigma"] < 0.03,
        ),
        Claim(
            "a larger r means a lower approximation error, and a higher κ",
            f"from r = 5 to 20 the best error falls from {at[5]['error']:.2g} to "
            f"{at[20]['error']:.2g}, and κ grows from {1 / at[5]['sigma']:.3g} to "
            f"{1 / at[20]['sigma']:.3g}",
            at[20]["error"] < 0.5 * at[5]["error"] and at[20]["sigma"] < 0.5 * at[5]["sigma"],
        ),
    ]
    k = rows.column("k")
    charts = Beside(
        Chart(
            "Spectrum",
            "k",
            "σ_k / σ₁",
            [Curve("singular values", k, rows.column("sigma"))],
            log_y=True,
        ),
        Chart(
            "Best approximation",
            "rank",
            "relative error",
            [Curve("error", k, rows.column("error"))],
            log_y=True,
        ),
    )
    return Verdict(claims, [charts], [f"The data: {rows[0]['source']}."])


ITEM = Item(
    "figure3",
    "Fig. 3",
    "The spectrum of the chlorine data",
    "Concentrations at 120 junctions of a water network over 15 hours, every 5 minutes. It is "
    "not known which junctions and hours the authors used.",
    cases,
    measure,
    judge,
)
