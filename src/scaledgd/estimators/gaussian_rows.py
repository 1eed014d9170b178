"""The Gaussian with shrunk correlations as a candidate: a low-rank table of full rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import gaussian
from ..factors import Bordered
from ..state import State
from ..variational import Posterior, solved
from .candidates import Fitted
from .limits import AFFORDABLE, GROUPS
from .local_observations import LocalObservations
from .matrix_model import TableFit
from .plans import Plan, Reading, Trail
from .scaling import Choice, Scales
from .session import Session
from .units import Units, column_units

Array = Any


def affordable(data: LocalObservations) -> bool:
    """Whether a Gaussian of the rows is possible, and quick enough to be a candidate."""
    n, d = data.shape
    if data.weight is not None or not isinstance(data.y, np.ndarray) or not 1 < d <= 1.5 * n:
        return False
    # of all rows, as if each had the mean number of entries
    k = d * (1 - data.fraction)
    return n * min(k, d - k) ** 3 / 2 + n * d * d * 2.0 <= AFFORDABLE


@dataclass(frozen=True, eq=False)
class GaussianRows(Fitted):
    """A Gaussian fitted to all rows.

    Attributes
    ----------
    plan : Plan
    data : LocalObservations
    found : Gaussian
    reading : Reading
        In units in which the deviations of the Gaussian are one.
    state : State
    """

    plan: Plan
    data: LocalObservations
    found: gaussian.Gaussian
    reading: Reading
    state: State

    @classmethod
    def of(cls, session: Session, data: LocalObservations, plan: Plan) -> GaussianRows:
        """Fit a Gaussian, with the shrinkage that rows choose that are left out."""
        units = column_units(data)
        Z = _table(data, units)
        shrink = gaussian.choose_shrinkage(Z, groups=_groups(data))
        *_, found = gaussian.fit_path(Z, gaussian.shrinks_down_to(shrink))
        return cls(plan, data, found, *_published(data, units, found, list(plan.trail)))

    def without(self, session: Session, fit: LocalObservations) -> TableFit:
        # iterations that begin with the moments of all entries hardly forget any, so these are new
        units = column_units(fit)
        shrinks = gaussian.shrinks_down_to(self.found.shrink)
        *_, found = gaussian.fit_path(_table(fit, units), shrinks)
        return TableFit(*_published(fit, units, found, []))

    def finished(self, session: Session) -> TableFit:
        session.outcome.status = "the Gaussian of the rows has converged"
        return TableFit(self.reading, self.state)


def _published(
    data: LocalObservations, units: Units, found: gaussian.Gaussian, trail: Trail
) -> tuple[Reading, State]:
    """The Gaussian as factors: rows with a normal prior, and a noise that the shrinkage says."""
    R, noise = gaussian.as_factors(found)
    offset, scale = units.offset + units.scale * found.mean, units.scale * found.scale
    offset, scale, R = (x.astype(data.y.dtype) for x in (offset, scale, R))
    known = Units(offset, scale)
    F = Bordered(np.zeros((data.shape[0], R.shape[1]), data.y.dtype), R)
    known_for_certain = [np.zeros((len(B), *2 * B.shape[1:]), B.dtype) for B in F.blocks]
    posterior = replace(
        Posterior.first(F, noise),
        prior=(np.ones_like(R[0]), np.mean(R * R, axis=0)),
        covariance=(known_for_certain[0], known_for_certain[1]),
    )
    start = known.apply(data).problem().linearize(F)
    F, rows = solved(start.view, F, posterior, 0)
    state = start.moved(F)
    # rows are solved as if the covariance were known; how sure it is counts for the noise
    _, columns = solved(state.view, F, rows, 1)
    posterior = replace(posterior, variance=(rows.variance[0], columns.variance[1]))
    state = state.remembering(posterior)
    return Reading(1.0, Choice(), Scales(None, None), trail, known), state


def _table(data: LocalObservations, units: Units) -> Any:
    """The data in units of columns, NaN where they are missing."""
    Z = np.full(data.shape, np.nan)
    i, j = data.coordinates
    Z[i, j] = (data.flat - units.offset[j]) / units.scale[j]
    return Z


def _groups(data: LocalObservations) -> Any:
    """The group of every row; groups are alike in an order of their values."""
    places = data.places[0] if data.places else np.arange(data.shape[0])
    return places % GROUPS
