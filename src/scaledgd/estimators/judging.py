"""Judge candidates by entries that they have forgotten: in units of noise, and with weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .limits import BOUND, LEAST, OWN

Array = Any


@dataclass(frozen=True, eq=False)
class Held:
    """Held-out entries of all folds, and what candidates say about them.

    Attributes
    ----------
    values : array of shape (m,)
    index : pair of integer arrays of shape (m,)
    baseline : array of shape (m,)
        Column means without the fold.
    estimates : array of shape (k, m)
    deviations : array of shape (n2,)
        Those of the columns.
    weight : array of shape (m,), optional
        How much each entry counts.
    """

    values: Any
    index: tuple[Any, Any]
    baseline: Any
    estimates: Any
    deviations: Any
    weight: Any = None

    def units(self) -> Any:
        """Return the unit of every error: the noise of its column.

        Noise is alike in all columns, or in proportion to their deviations, whichever makes the
        errors of the best candidate likelier; the errors of a column with many count for itself.
        """
        j, sd, everyone = self.index[1], self.deviations, np.vstack([self.baseline, self.estimates])
        unit, count = sd, np.bincount(j, minlength=len(sd))
        for _ in range(2):
            errors = _bounded((everyone - self.values) / unit[j]).mean(axis=1)
            best = everyone[int(np.argmin(errors))]
            off = np.clip(best - self.values, -5 * sd[j], 5 * sd[j])
            alike = [(np.mean(off * off / p[j]) * p) for p in (0 * sd + np.mean(sd**2), sd**2)]
            likely = [float(np.mean(np.log(np.maximum(v[j], 1e-300)))) for v in alike]
            prior = alike[int(np.argmin(likely))]
            own = np.bincount(j, off * off, len(sd))
            unit = np.sqrt((own + OWN * prior) / (count + OWN))
            unit = np.maximum(unit, LEAST * sd)
        return unit[j]

    def chance(self, more: Any) -> float:
        """Return the standard error of the mean of numbers, one for each entry.

        Entries of a row, or of a column, may err together, and then count less than as many others.
        """
        off = more - np.mean(more)
        alone = float(np.sqrt(np.sum(off * off)))
        grouped = (float(np.linalg.norm(np.bincount(k, off))) for k in self.index)
        return max(alone, *grouped) / len(off)

    def squares(self) -> Any:
        """Return the bounded squared errors of the baseline, and those of the candidates."""
        everyone = np.vstack([self.baseline, self.estimates])
        found = _bounded((everyone - self.values) / self.units())
        return found if self.weight is None else found * self.weight


def _bounded(errors: Any) -> Any:
    """Squares of errors, which are not larger than the bound."""
    squares = np.minimum(errors * errors, BOUND * BOUND)
    return np.where(np.isfinite(squares), squares, BOUND * BOUND)
