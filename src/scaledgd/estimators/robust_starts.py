"""New starts for a heavy-tailed fit that failed, and the likelihood of fits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from array_api_compat import array_namespace

from ..factors import Bordered
from ..kernels import backend
from ..linalg import smallest
from ..problems import Observed
from ..state import State
from ..variational import Posterior, current
from .fitting import degrees
from .joint import Joint, fit_joint, robust_variance
from .local_observations import LocalObservations
from .matrix_model import TableFit
from .plans import Reading
from .robust import OWN, concentrated, without_own
from .scaling import table_factors, truncated
from .session import Session
from .timed import FREEDOM

Array = Any

TINY = 1e-100
"""The least residual that counts, in units of the columns."""

FAR = 10.0
"""Deviations from the offsets at which entries have half of their weight in the first sweep."""

LITTLE = 0.1
"""Noise, as a share of the data, below which parameters have a higher price."""


def without_errors_of_one(
    session: Session, problem: Observed, data: LocalObservations, state: State, how: Joint
) -> State:
    """Return a fit without directions that explain the gross errors of a single row or column.

    A direction that only one row has says nothing about other rows. It is needed if the row differs
    from all others, but not if a few of its entries are wrong: then the fit is about as likely
    without it.

    Parameters
    ----------
    session : Session
    problem : Observed
        That of `data`.
    data : LocalObservations
    state : State
        Of the fit.
    how : Joint
        How it was made.
    """
    F = table_factors(state)
    if F.rank < 2 or not concentrated(F, OWN):
        return state
    outcome, known = session.outcome.copy(), current(state)
    fewer = table_factors(without_own(state, OWN))
    first = Posterior.first(fewer, float(known.noise))
    first = replace(first, columns=known.columns, weight=known.weight)
    begun = problem.linearize(fewer).remembering(first)
    again = fit_joint(session, problem, data, begun, replace(how, rank=fewer.rank))
    unit = float(data.residual(truncated(F, 0)).typical())
    if _evidence(data, again, unit) >= _evidence(data, state, unit):
        return again
    session.outcome.become(outcome)
    return state


def _evidence(data: LocalObservations, state: State, unit: float) -> float:
    """The evidence for a state, in which columns may have their own noise."""
    F, columns = table_factors(state), current(state).columns
    left, free = data.residual(F), degrees(F.rank, data.shape)
    if columns is None:
        return evidence(left.flat, free, unit)
    xp = array_namespace(columns)
    deviation = xp.sqrt(xp.take(columns, left.coordinates[1]))
    lost = float(xp.sum(xp.log(deviation)))
    return evidence(left.flat / deviation, free, unit / float(xp.mean(deviation))) - lost


def evidence(residual: Array, free: int, unit: float = 1.0) -> float:
    """Return the log-likelihood of residuals, less what the parameters cost, up to a constant.

    With much noise, a parameter costs 1, so that the best fit is the one that predicts best. With
    little noise, it must be known to that precision, so it costs more: its price rises with the
    logarithm of the precision, as that of a gross error does. Otherwise a gross error would be
    worth more parameters the smaller the noise.

    Parameters
    ----------
    residual : array of shape (m,)
    free : int
        The number of parameters.
    unit : float
        The size of the data, without gross errors.
    """
    likelihood, scale = cauchy(residual)
    return likelihood - free * (1 + max(0.0, math.log(LITTLE * max(unit, TINY) / scale)))


def cauchy(residual: Array) -> tuple[float, float]:
    """Return the log-likelihood of residuals, up to a constant, and their scale.

    The distribution is Cauchy's, whose tails are heavy enough for gross errors.

    Parameters
    ----------
    residual : array of shape (m,)
    """
    xp = array_namespace(residual)
    sizes, count = xp.astype(xp.abs(residual), xp.float64), int(residual.shape[0])
    scale = max(float(backend(sizes).kth_magnitude(sizes, count - count // 2)), TINY)
    return -float(xp.sum(xp.log1p((sizes / scale) ** 2))) - count * math.log(scale), scale


def carried(found: TableFit, reading: Reading, start: Bordered) -> Bordered:
    """Return the factors of a fit in the units of another reading, with offsets of columns.

    Parameters
    ----------
    found : TableFit
        Of a table of the same shape, without scales of rows.
    reading : Reading
    start : Bordered
        With the offsets that the factors should have.
    """
    F, xp = table_factors(found.state), array_namespace(start.R)
    assert start.u is not None
    (a, b), (c, d) = (_line(r, start.R[:, 0]) for r in (found.reading, reading))
    own = 0 * a if F.u is None else F.R[:, F.rank] * F.u[0]
    R = F.R[:, : F.rank] * (a / c)[:, None]
    offset = (a * own + b - d) / (c * start.u[0])
    return replace(start, L=F.L[:, : F.rank], R=xp.concat([R, offset[:, None]], axis=1))


def _line(reading: Reading, like: Array) -> tuple[Array, Array]:
    """Scale and offset that convert columns of a fit to those of the data."""
    if reading.units is None:
        return reading.size + 0 * like, 0 * like
    return reading.size * reading.units.scale, reading.units.offset


def weighted(data: LocalObservations, begun: State) -> State:
    """Return the start of a heavy-tailed fit with weights of the entries.

    Without weights, the first sweep would fit the largest errors, however large they are. Entries
    that are right may lie several deviations from the offsets, and keep most of their weight.

    Parameters
    ----------
    data : LocalObservations
    begun : State
    """
    F, posterior = table_factors(begun), current(begun)
    left = data.residual(F)
    variance = max(FAR**2 * robust_variance(data, F), smallest(left.y))
    return begun.remembering(replace(posterior, weight=variance / (variance + left.y**2)))


def continued(data: LocalObservations, problem: Observed, F: Bordered, first: State) -> State:
    """Return a state with the factors of another fit, and the weights of entries under them.

    Parameters
    ----------
    data : LocalObservations
    problem : Observed
        That of `data`.
    F : Bordered
    first : State
        The start of a fit that has no other to continue from.
    """
    left = data.residual(F)
    noise = max(data.residual_scale(F) ** 2, smallest(left.y))
    weight = (FREEDOM + 1) * noise / (FREEDOM * noise + left.y**2)
    known = replace(Posterior.first(F, noise), columns=current(first).columns, weight=weight)
    return problem.linearize(F).remembering(known)
