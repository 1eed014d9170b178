"""How far intervals must widen to hold entries that a fit did not see."""

from __future__ import annotations

import math
from collections.abc import Iterable

from array_api_compat import array_namespace

from ..variational.posterior import positive
from .local_observations import LocalObservations
from .matrix_model import MatrixModel, TableFit
from .timed_model import TimedModel

NINE_IN_TEN = 2.706
"""The 90 % quantile of the square of a standard normal number."""

LEAST = 0.1
"""Lower bound on squared errors over expected ones: a few held-out errors may be small."""


def model_of(fit: TableFit, data: LocalObservations) -> MatrixModel:
    """Return the model of a fit of a table, in time or not."""
    return (MatrixModel.of if fit.timed is None else TimedModel.timed)(fit, data, {})


def caution(models: Iterable[tuple[MatrixModel, LocalObservations]]) -> float:
    """Return the factor by which variances of new observations must grow.

    Nine in ten of the errors at entries that models did not see are then within what the models
    expect. These are models like that of the final fit, so whatever its variances take into
    account, or leave out, counts only once.

    Parameters
    ----------
    models : iterable of (MatrixModel, LocalObservations)
        Models, and entries that each did not see.
    """
    found = []
    for model, test in models:
        index, spread = test.coordinates, model.spread()
        off = (test.flat - model.values(spread.factors, index)) / model.unit(index)
        found.append(off * off / positive(spread.variance(index) + spread.noise))
    if not found:
        return 1.0
    xp = array_namespace(*found)
    beyond = xp.sort(xp.concat(found))
    place = min(beyond.shape[0] - 1, math.ceil(0.9 * beyond.shape[0]))
    return max(LEAST, float(beyond[place]) / NINE_IN_TEN)
