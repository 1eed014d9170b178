"""Units of columns in which the noise of all columns is alike."""

from __future__ import annotations

from dataclasses import replace

from array_api_compat import array_namespace

from ..state import State
from ..variational import current
from .local_observations import LocalObservations
from .plans import Reading
from .scaling import table_factors
from .units import Units


def in_units_of_noise(
    reading: Reading, state: State, scaled: LocalObservations
) -> tuple[Reading, State]:
    """Return the fit in units of columns in which the noise of all columns is alike.

    Parameters
    ----------
    reading : Reading
    state : State
    scaled : LocalObservations
        The data as they were fitted.
    """
    posterior, F, units = current(state), table_factors(state), reading.units
    of_column = posterior.columns
    if of_column is None:
        return reading, state
    if units is None:
        units = Units(0 * of_column, 1 + 0 * of_column, False)
    xp = array_namespace(of_column)
    root = xp.sqrt(of_column)
    F = replace(F, R=F.R / root[:, None])
    variance = posterior.variance[1] / of_column[:, None]
    covariance = posterior.covariance
    if covariance is not None:
        covariance = (covariance[0], covariance[1] / of_column[:, None, None])
    posterior = replace(
        posterior,
        prior=(posterior.prior[0], xp.mean(F.R * F.R + variance, axis=0)),
        variance=(posterior.variance[0], variance),
        covariance=covariance,
        columns=None,
        weight=None,
    )
    units = replace(units, scale=units.scale * root)
    problem = scaled.standardised((None, root)).problem()
    return replace(reading, units=units), problem.linearize(F).remembering(posterior)
