"""Fit a table with a given rank: least squares, then a ridge that is learnt from the data.

Least squares is solved by `Alternating` if there are many entries, and by growing the rank if there
are few. If noise is left, `Variational` finds the ridge and cuts the columns that noise explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..ambient import Ambient
from ..factors import Bordered, Factors, LowRank
from ..growth import grown, widened
from ..initialize import spectral
from ..linalg import blank, epsilon, fix_signs, sketched_svd
from ..losses import Squared
from ..methods import Alternating, NonNegative, ScaledLBFGS
from ..problems import Observed
from ..solve import Result
from ..state import State
from ..stopping import Record, Stop, StoppingRule
from ..variational import Posterior, Variational, current, mean_square
from .journal import remembered
from .local_observations import LocalObservations
from .observations import Observations
from .packing import host
from .rules import beside_residual, change, settled, stalled, vanished
from .scaling import bordered, canonical, singular, table_factors, truncated, with_part
from .session import Session, light, revived

Array = Any

SWEEPING = 60_000_000
"""Entries times columns times sweeps after which nonnegative factors may converge less closely.
"""

AFAR = 20
"""Number of the largest connected parts of the data that are aligned if rows are on a cluster.
"""

ROUNDS = 0
"""Power iterations of the spectral start; more would fit sampling noise."""


def degrees(rank: int, shape: tuple[int, ...]) -> int:
    """Return the degrees of freedom of a matrix of some rank."""
    return rank * (sum(shape) - rank)


def has_posterior(state: State) -> bool:
    """Whether a state remembers a posterior."""
    return isinstance(state.memory.method, Posterior)


def edge(data: Observations, variance: float) -> float:
    """Return the largest singular value that noise of a variance has on the observed entries."""
    n1, n2 = data.shape
    return math.sqrt(variance * data.fraction) * (math.sqrt(n1) + math.sqrt(n2))


def mean_square_residual(state: State, data: Observations) -> float:
    """Return the mean square of the residual of a least-squares fit."""
    return 2 * float(state.value) / data.size


def structured(state: State, data: Observations) -> bool:
    """Whether the residual has a singular value that noise of its size would not have."""
    Z, seeded = _residual(state), np.random.default_rng(0)
    example = state.factors.blocks[0]
    _, s, _ = sketched_svd(Z.times, Z.adjoint_times, data.shape, 1, example, seeded, 1)
    return float(s[0]) > 1.1 * edge(data, mean_square_residual(state, data))


def _residual(state: State) -> Ambient:
    """Return the residual; it is not formed if one pass over the data gives its products."""
    problem, F = state.problem, state.factors
    if (
        isinstance(problem, Observed)
        and type(problem.loss) is Squared
        and problem.operator.fuses(F, problem.y)
    ):
        return _Unformed(problem, F)
    # a separate view, or the state would keep the residual
    return state.moved(F).view.ambient()


@dataclass(frozen=True, eq=False)
class _Unformed(Ambient):
    """The residual Z of a matrix. The gradient by [L, 0], with [R, V] as its partner, has Z V."""

    problem: Observed
    factors: Factors

    def times(self, V: Array) -> Array:
        return self._gradient(V, 0)

    def adjoint_times(self, U: Array) -> Array:
        return self._gradient(U, 1)

    def _gradient(self, V: Array, k: int) -> Array:
        xp, modes = array_namespace(V), self.factors.modes
        nothing = blank(modes[k], V.shape[1])
        wider = [xp.concat([modes[k], nothing], axis=1), xp.concat([modes[1 - k], V], axis=1)]
        F = LowRank(*(wider if k == 0 else wider[::-1]))
        gradient = self.problem.operator.squares_and_gradient(F, self.problem.y, k)[1]
        return gradient[:, modes[k].shape[1] :]


def fits(session: Session, state: State) -> bool:
    """Whether the data are reproduced, at least to the tolerance: there is no noise."""
    least = 1e-6 if epsilon(state.factors.blocks[0]) < 1e-10 else 1e-4
    least = max(least, 0.1 * session.tol)
    return float(state.value) <= least**2 * float(state.problem.value_at_zero)


# ---- least squares


def first_factors(problem: Observed, start: Bordered, rank: int) -> Bordered:
    """Return the spectral start with the offsets of `start`."""
    return bordered(spectral(rank, rounds=ROUNDS)(problem), start)


def alternate(
    session: Session, problem: Observed, F: Factors, stage: str = "repair", fall: float = 1e-2
) -> State:
    """Alternate until the data are reproduced, or the loss hardly falls any more."""
    tol = min(session.tol, 0.05)  # stopping earlier would look like a failed fit
    # if X moves so little, it is as close to the data as if the residual had vanished
    rules = [vanished(0.1 * session.tol), change(0.1 * tol), settled(max(fall, tol))]
    return session.solve(problem, F, Alternating(relax=True), rules, stage=stage)


def without_weakest(state: State, run: Callable[[Factors], State]) -> Factors:
    """Replace the weakest component by the top component of the residual of the others."""
    F = table_factors(state)
    return widened(run(truncated(F, F.rank - 1)), 1)


@remembered("least squares", light, revived)
def least_squares(
    session: Session, problem: Observed, data: Observations, start: Bordered, rank: int
) -> State:
    """Fit a rank without knowing the conditioning, the noise or the sampling.

    Parameters
    ----------
    session : Session
    problem : Observed
        That of `data`.
    data : Observations
    start : Bordered
        Says which offsets there are.
    rank : int
    """

    def refits(problem: Any, F: Any, method: Any, max_iter: int, stop: StoppingRule) -> Result:
        state = session.apart().solve(problem, F, method, [stop], max_iter, stage="growth")
        return Result(state, "", True, [])

    def amiss(state: State) -> bool:
        done = m < 3.5 * dof or fits(session, state) or session.out_of_time
        return not done and structured(state, data)

    m, dof = data.size, degrees(rank, data.shape)
    run = partial(alternate, session, problem)
    best: State | None = None
    if m >= 2 * dof:
        best = run(first_factors(problem, start, rank), "least squares")
        wrong = amiss(best)
        for _ in range(3 if rank > 1 else 0):
            if not wrong:
                break
            again = run(without_weakest(best, run))
            if float(again.value) > 0.9 * float(best.value):
                break
            best, wrong = again, amiss(again)
        if wrong and not session.out_of_time:
            # a spectrum over many decades is found from the top
            patient = grown(rank, Alternating(), start=start, tol=0.2, max_iter=8, run=refits)
            again = run(patient(problem), "grown")
            best = again if float(again.value) < float(best.value) else best
        if fits(session, best) or m >= 6 * dof or session.out_of_time:
            return best
    rules: list[StoppingRule] = [vanished(0.1 * session.tol), stalled(1e-4)]
    for first_of in (
        grown(rank, start=start, run=refits),
        lambda p: first_factors(p, start, rank),
    ):
        state = session.solve(problem, first_of(problem), ScaledLBFGS(), rules, stage="few cells")
        if best is None or float(state.value) < float(best.value):
            best = state
        if fits(session, best) or session.out_of_time:
            break
    assert best is not None
    return best


# ---- noise: the ridge, and the columns that the data support


def prune(state: State, data: Observations, share: float = 0.5) -> State:
    """Drop the columns that are small relative to the noise."""
    F, posterior = table_factors(state), current(state)
    xp, r = array_namespace(F.L), F.rank
    if not r:
        return state
    size = xp.sqrt(xp.sum(F.L[:, :r] ** 2, axis=0) * xp.sum(F.R[:, :r] ** 2, axis=0))
    least = share * math.sqrt(float(posterior.noise) * max(data.shape) / data.fraction)
    keep = host(size > least)
    if keep.all():
        return state
    kept = np.flatnonzero(keep).tolist()
    columns: Any = tuple(kept + list(range(r, B.shape[1])) for B in F.blocks)
    chosen = tuple(B[:, c] for B, c in zip(F.blocks, columns, strict=True))
    return state.moved(F.with_blocks(chosen)).remembering(posterior.kept(columns))


def _pruning(data: Observations) -> StoppingRule:
    def rule(state: State, history: list[Record]) -> Stop | None:
        if not has_posterior(state) or len(history) % 5:
            return None
        if table_factors(prune(state, data)).rank < table_factors(state).rank:
            return Stop("a column is explained by the noise")
        return None

    return rule


@remembered("ridge", light, revived)
def refine(
    session: Session,
    problem: Observed,
    state: State,
    data: Observations,
    max_iter: int | None = None,
    tol: float = 0.0,
) -> State:
    """Learn the ridge from the data, and drop the columns that they do not support."""
    if not has_posterior(state):
        state = state.moved(canonical(table_factors(state)))
    stage = "ridge"
    while sum(B.shape[1] for B in state.factors.blocks):
        rules = [beside_residual(1e-3), change(max(tol, session.tol)), _pruning(data)]
        found = session.solve(problem, state, Variational(), rules, max_iter, stage=stage)
        # noise alone makes singular values up to 1 in these units; a detectable signal begins at 2
        state = prune(found, data, 1.1)
        smaller = table_factors(state).rank < table_factors(found).rank
        if not smaller or session.out_of_time:
            break
        stage = "cut"
    return state


def fit_continued(session: Session, data: Observations, start: Bordered) -> State:
    """Continue a fit from factors that are close to it."""
    problem = data.problem()
    state = alternate(session, problem, start, "warm start")
    if fits(session, state):
        return believed(state, data)
    return refine(session, problem, state, data)


def believed(state: State, data: Observations) -> State:
    """Return a fit without noise, with the matching posterior."""
    F = canonical(table_factors(state))
    F = with_part(F, *singular(F))
    balanced = replace(state.moved(F), known=state.known)  # the same X
    # a singular value below this is rounding
    eps = epsilon(F.L)
    floor = max(1e-20, (0.5 * eps) ** 2) * mean_square(state.problem)
    noise = max(mean_square_residual(balanced, data), floor)
    posterior = Posterior.first(F, noise)
    return prune(balanced.remembering(posterior), data)


def with_noise(state: State, data: Observations) -> State:
    """Return a converged least-squares fit with the noise that its residual implies.

    Least squares follow the noise as far as their degrees of freedom allow. The covariance of a row
    of R is that of a Gram matrix of as many average rows of L as it has entries.
    """
    F, posterior = table_factors(state), current(state)
    xp = array_namespace(F.L)
    kept = 1 - degrees(F.rank, data.shape) / data.size
    noise = float(posterior.noise) / max(kept, 0.1)
    seen = xp.astype(data.counts(1), F.R.dtype)[:, None]
    grams = xp.where(seen > 1, seen, xp.ones_like(seen)) * xp.mean(F.L * F.L, axis=0)
    variance = posterior.variance[0], noise / grams
    return state.remembering(replace(posterior, noise=noise, variance=variance))


def aligned_components(state: State, data: LocalObservations) -> State:
    """Return the same fit, with comparable factors in all connected parts of the data.

    The data do not determine how the factors of different parts relate. They are chosen such
    that no entry between two parts is larger than those within them.
    """
    if data.components() == 1:
        return state
    F = table_factors(state)
    xp, r = array_namespace(F.L), F.rank
    labels = data.component_labels()
    seen = host(data.counts(0)) > 0
    if getattr(F.L, "far", False):
        fresh = state.moved(F.with_blocks(_aligned_afar(F, labels, seen)))
        return fresh.remembering(Posterior.first(table_factors(fresh), current(state).noise))
    L, R = (host(B).copy() for B in F.blocks)
    for part in np.unique(labels[0][seen]):
        rows, columns = labels[0] == part, labels[1] == part
        if min(rows.sum(), columns.sum()) >= r:
            U, s, V = singular(Bordered(L[rows, :r], R[columns, :r]))
            root = np.sqrt(s)[None, :] * fix_signs(V)[None, :]  # or chance would join the parts
            L[rows, :r], R[columns, :r] = U * root, V * root
    blocks = tuple(xp.asarray(B, device=device(F.L)) for B in (L, R))
    fresh = state.moved(F.with_blocks(blocks))
    noise = current(state).noise
    return fresh.remembering(Posterior.first(table_factors(fresh), noise))


def _aligned_afar(F: Bordered, labels: list[Any], seen: Any) -> tuple[Array, ...]:
    """The same if rows cannot be selected: others are zeroed, and only some parts are aligned."""
    xp, r, blocks = array_namespace(F.L), F.rank, list(F.blocks)
    parts, counts = np.unique(labels[0][seen], return_counts=True)
    for part in parts[np.argsort(-counts, kind="stable")][:AFAR]:
        inside = [(side == part)[:, None] for side in labels]
        if min(side.sum() for side in inside) < r:
            continue
        alone = (xp.where(m, B[:, :r], 0.0) for m, B in zip(inside, blocks, strict=True))
        U, s, V = singular(Bordered(*alone))
        root = xp.sqrt(s)[None, :] * fix_signs(V)[None, :]
        blocks = [
            xp.concat([xp.where(m, new * root, B[:, :r]), B[:, r:]], axis=1)
            for m, new, B in zip(inside, (U, V), blocks, strict=True)
        ]
    return tuple(blocks)


# ---- given ridges, and nonnegative factors


def fit_ridge(
    session: Session, data: Observations, start: Bordered, rank: int, ridge: float
) -> tuple[State, tuple[Array, Array]]:
    """Minimise least squares plus ½ λ (‖L‖² + ‖R‖²), that is λ times the nuclear norm of X.

    λ is `ridge` times the norm that noise as large as the data would have. So `ridge` is about
    the size of the noise relative to the data.

    Returns
    -------
    state : State
    ridges : pair of arrays
        λ for every column of both blocks.
    """
    xp = array_namespace(data.example)
    n1, n2 = data.shape
    level = ridge * edge(data, data.mean_square())
    first = start
    if rank and not start.rank:
        first = first_factors(data.problem(), start, min(rank, n1, n2))
    # the ridge of offsets has the weight of one extra noisy entry
    little = ridge**2
    ridges: Any = tuple(
        xp.concat(
            [xp.zeros_like(B[0, : first.rank]) + level, xp.zeros_like(B[0, first.rank :]) + little]
        )
        for B in first.blocks
    )
    problem = replace(data.problem(), ridge=ridges)
    if not sum(B.shape[1] for B in first.blocks):
        return problem.linearize(first), ridges
    rules = [change(session.tol), beside_residual(1e-4)]
    F = table_factors(session.solve(problem, first, Alternating(), rules, stage="ridge"))
    U, s, V = singular(F)
    least = max(1e-9, 10 * epsilon(F.L))
    keep = int((s > least * max(float(s[0]), 1e-300)).sum()) if F.rank else 0
    F = with_part(F, U[:, :keep], s[:keep], V[:, :keep])
    ridges = tuple(xp.concat([g[:keep], g[first.rank :]]) for g in ridges)
    return replace(problem, ridge=ridges).linearize(F), ridges


def fit_non_negative(
    session: Session, data: Observations, start: Bordered, rank: int
) -> tuple[State, tuple[Array, Array]]:
    """Fit nonnegative factors, from the magnitudes of a spectral start, with a learnt ridge.

    The ridge of a column is the noise divided by the mean square of its entries. Without one, rows
    with few entries may be much larger than the data; so only the noise is learnt from such a fit.

    Returns
    -------
    state : State
    ridges : pair of arrays
        Those of the columns of both blocks.
    """
    xp = array_namespace(data.example)
    problem = data.problem()
    first = start
    if not start.rank:
        first = first_factors(problem, start, min(max(rank, 1), *data.shape))
    first = _balanced(first.with_blocks(tuple(xp.abs(B) for B in first.blocks)))
    many = max(100, SWEEPING // max(1, data.size * first.rank))
    free = max(data.size - degrees(first.rank, data.shape), 0.1 * data.size)

    def solved(F: Bordered, ridges: tuple[Array, Array] | None) -> tuple[State, float]:
        rules = [vanished(0.1 * session.tol), change(max(session.tol, 1e-5)), settled(1e-4)]
        rules.append(settled(3e-3, many))
        held = replace(problem, ridge=ridges)
        state = session.solve(held, F, NonNegative(), rules, stage="non-negative")
        state = state.moved(_balanced(table_factors(state)))
        return state, 2 * float(problem.linearize(state.factors).value) / free

    state, noise = solved(first, None)
    # sums of nonnegative products of this size are as large as the data
    typical = (math.sqrt(data.mean_square()) or 1.0) / first.rank + 0 * first.R[0, :]
    ridges = noise / typical, noise / typical
    for _ in range(2):
        if noise * free <= session.tol**2 * 2 * float(problem.value_at_zero) or session.out_of_time:
            break
        state, noise = solved(first, ridges)
        first = table_factors(state)
        ridges = _learnt(first, noise)
    return state, ridges


def _learnt(F: Bordered, noise: float) -> tuple[Array, Array]:
    """The noise divided by the mean square of every column; for a vanishing one, the noise."""

    def one(B: Array) -> Array:
        xp = array_namespace(B)
        square = xp.mean(B * B, axis=0)
        return noise / xp.where(square > 1e-30, square, 1 + 0 * square)

    return one(F.L), one(F.R)


def _balanced(F: Bordered) -> Bordered:
    """The same factors with columns of equal size; otherwise squares of them may overflow."""
    xp = array_namespace(F.L)
    left, right = (xp.max(B, axis=0) for B in F.blocks)
    known, one = (left > 0) & (right > 0), xp.ones_like(left)
    turn = xp.where(known, xp.sqrt(right), one) / xp.where(known, xp.sqrt(left), one)
    return F.with_blocks((F.L * turn, F.R / turn))
