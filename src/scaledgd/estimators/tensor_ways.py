"""Variational models of a tensor, and their conversion to Tucker models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from array_api_compat import array_namespace

from ..factors import CP, Tucker
from ..kernels.entries import compact
from ..linalg import mode_product
from ..state import State
from ..variational.cp import PosteriorCP, VariationalCP, joint_start, mean_uncertainty
from .compression import as_tucker, compressed, folded, mean_of, unfolded
from .local_observations import LocalObservations
from .rules import stalled
from .session import Session
from .slices import SlicePrior
from .tensor_model import TensorReading, centred, slice_sizes
from .tucker import TensorFit

Array = Any

GAIN = 0.03
"""Share by which a more complex model must predict better."""


@dataclass(frozen=True)
class Way:
    """A way to model a tensor.

    Attributes
    ----------
    start : str
        "cp", "mode k" for the unfolding along mode k, or "tucker".
    rank : int
        Components to begin with.
    center, scale : str
    share : float
        The share of the data that the initial factors should explain.
    uneven : bool
        Whether each slice has its own noise level.
    starts : int
        The number of random starts whose mean is taken.
    """

    start: str
    rank: int
    center: str = "none"
    scale: str = "none"
    share: float = 0.99
    uneven: bool = True
    starts: int = 1

    @property
    def fold(self) -> int | None:
        """The mode along which the tensor is unfolded."""
        return int(self.start.split()[1]) if self.start.startswith("mode") else None


def read(reading: TensorReading, data: LocalObservations, way: Way) -> TensorReading:
    """Return how a candidate reads the data: its offsets and scales."""
    reading = replace(reading, center=way.center, fold=way.fold, uneven=way.uneven)
    reading = replace(reading, offsets=centred(data, way.center))
    if way.scale == "none":
        return reading
    left = data.shifted(reading.offsets)
    level = left.mean_square()
    return replace(reading, level=level, slice_scale=slice_sizes(left, level))


def run(
    session: Session,
    data: LocalObservations,
    reading: TensorReading,
    way: Way,
    seed: int,
    sweeps: int,
    start: State | None = None,
) -> State:
    """Fit a variational model.

    Parameters
    ----------
    session : Session
    data : LocalObservations
    reading : TensorReading
    way : Way
    seed : int
    sweeps : int
    start : State, optional
        The result of an earlier fit to other entries.
    """
    here = session.with_reading(reading) if session.reading is not None else session
    table = reading.applied(data)
    table = table if way.fold is None else unfolded(table, way.fold)
    problem = table.problem()
    every = (0,) if way.fold is not None else tuple(range(len(table.shape)))
    method = VariationalCP(way.share, every if way.uneven else ())
    first: Any
    if start is None:
        first = joint_start(problem, way.rank, way.share, seed)
    else:
        first = problem.linearize(start.factors, start.t, start.memory)
    return here.solve(problem, first, method, [stalled(1e-3, 5)], sweeps, stage=way.start)


def tensor_of(state: State, reading: TensorReading, shape: tuple[int, ...]) -> tuple[Tucker, float]:
    """Return the Tucker factors of an iterate, compressed, and its noise.

    What is cut off is small compared with the noise. The first factor is unchanged if it has a row
    per slice and a column per component.
    """
    F = state.factors
    if isinstance(F, Tucker):
        return F, 2 * float(state.value) / max(1, state.problem.size)
    assert isinstance(F, CP)
    fold, known = reading.fold, state.memory.method
    noise = known.noise if isinstance(known, PosteriorCP) else 0.0
    small = as_tucker(F) if fold is None else folded(F, fold, shape)
    lost = 1e-3 * noise * math.prod(shape) + 1e-28 * float(F.norm()) ** 2
    return compressed(small, lost, first=fold not in (None, 0)), noise


def slice_prior(state: State, reading: TensorReading, F: Tucker) -> tuple[Tucker, SlicePrior]:
    """Return the prior of slices of mode 0 from a posterior, in coordinates that diagonalise it."""
    G, fold = state.factors, reading.fold
    assert isinstance(G, CP)
    known = VariationalCP().current(state)
    xp, U, d = array_namespace(F.core), F.factors[0], len(F.shape)
    if fold not in (None, 0):
        scales = tuple(known.scales[0] if k == fold else None for k in range(1, d))
        return F, SlicePrior(xp.mean(U * U, axis=0), 0 * U[0, :], scales, known.noise, False)
    unsure = mean_uncertainty(G, known)
    root = xp.sqrt(known.prior)
    values, turn = xp.linalg.eigh(root[:, None] * unsure * root[None, :])
    values = xp.where(values > 0, values, xp.zeros_like(values))
    core = mode_product(F.core, (root[:, None] * turn).T, 0)
    F = Tucker(((U / root) @ turn, *F.factors[1:]), core)
    scales = known.scales[1:] if fold is None and reading.uneven else (None,) * (d - 1)
    return F, SlicePrior(xp.ones_like(values), values, scales, known.noise, reading.uneven)


def ended(states: tuple[State, ...], reading: TensorReading, data: LocalObservations) -> TensorFit:
    """Return the mean of iterates of variational models as a Tucker fit."""
    parts, slices, learnt = [], [], 0.0
    for state in states:
        F, known = slice_prior(state, reading, tensor_of(state, reading, data.shape)[0])
        parts.append(F)
        slices.append(known)
        learnt += _learnt(state) / len(states)
    table, F = reading.applied(data), mean_of(parts)
    F = Tucker(tuple(compact(U) for U in F.factors), compact(F.core))  # as files hold them
    residual = table.squared_errors(F)
    xp = array_namespace(residual)
    free = max(table.size - learnt, 0.1 * table.size)
    noise = float(xp.sum(residual)) / free
    return TensorFit(F, noise, slices=tuple(slices), free=free)


def in_turn(
    data: LocalObservations,
    reading: TensorReading,
    rounds: int,
    fit: Callable[[TensorReading, TensorFit | None], TensorFit],
) -> tuple[TensorFit, TensorReading]:
    """Fit factors, then offsets and factors in turn.

    Parameters
    ----------
    data : LocalObservations
    reading : TensorReading
        Has the first offsets.
    rounds : int
        Number of rounds; without offsets there is one fit.
    fit : callable
        Fits the factors given the offsets and the previous fit, or None.
    """
    found = fit(reading, None)
    for _ in range(0 if reading.center == "none" else rounds):
        offsets = centred(data.residual(found.factors), reading.center)
        reading = replace(reading, offsets=offsets)
        found = fit(reading, found)
    return found, reading


def _learnt(state: State) -> float:
    """Effective number of parameters of the rows: one each, minus the prior's remaining share."""
    known, F = state.memory.method, state.factors
    if not isinstance(known, PosteriorCP) or not isinstance(F, CP):
        return 0.0
    xp = array_namespace(F.factors[0])
    return sum(float(xp.sum(1 - known.variance(k) / known.prior)) for k in range(len(F.factors)))
