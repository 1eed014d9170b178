"""Fit a Tucker model: with given ranks, with ranks chosen from the data, with gross errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from array_api_compat import array_namespace

from ..factors import Tucker
from ..initialize import diagonal_deleted, hosvd, small_random
from ..kernels import backend
from ..linalg import epsilon, mode_products, unfold
from ..losses import HardTrim
from ..methods import Alternating
from ..problems import Observed
from ..state import State
from ..stopping import StoppingRule
from .journal import remembered
from .magnitudes import largest_size
from .observations import MOST, MULTIPLE, WITHIN, Observations
from .packing import packable
from .robust import OWN, Outliers, falling, levels, rejecting, row_shares, threshold
from .rules import beside_residual, change, settled, vanished
from .session import Session
from .slices import SlicePrior
from .typical import with_typical

Array = Any
Ranks = tuple[int, ...]


def possible(ranks: Any, shape: tuple[int, ...]) -> Ranks:
    """Return the largest multilinear ranks within the given ones that a tensor can have."""
    r = [min(int(a), n) for a, n in zip(ranks, shape, strict=True)]
    for _ in range(len(r)):
        r = [min(a, math.prod(r) // a) for a in r]
    return tuple(r)


def degrees(ranks: Ranks, shape: tuple[int, ...]) -> int:
    """Return the degrees of freedom of a tensor of some multilinear ranks."""
    factors = sum(r * (n - r) for r, n in zip(ranks, shape, strict=True))
    return math.prod(ranks) + factors


def orthonormal(F: Tucker) -> Tucker:
    """Return the same tensor with factors that have orthonormal columns."""
    xp = array_namespace(F.core)
    pairs = [xp.linalg.qr(U) for U in F.factors]
    return Tucker(tuple(Q for Q, _ in pairs), mode_products(F.core, [A for _, A in pairs]))


def spectra(F: Tucker) -> tuple[Tucker, tuple[Array, ...]]:
    """Return the higher-order SVD: ordered factors, and the singular values of every mode."""
    xp = array_namespace(F.core)
    F = orthonormal(F)
    turns, values = [], []
    for k in range(F.core.ndim):
        U, s, _ = xp.linalg.svd(unfold(F.core, k), full_matrices=False)
        turns.append(U)
        values.append(s)
    factors = tuple(U @ Q for U, Q in zip(F.factors, turns, strict=True))
    return Tucker(factors, mode_products(F.core, [Q.T for Q in turns])), tuple(values)


def cut(F: Tucker, ranks: Ranks) -> Tucker:
    """Return the leading part of a higher-order SVD."""
    core = F.core[tuple(slice(r) for r in ranks)]
    return Tucker(tuple(U[:, :r] for U, r in zip(F.factors, ranks, strict=True)), core)


@packable
@dataclass(frozen=True, eq=False)
class TensorFit:
    """A fitted Tucker model.

    Attributes
    ----------
    factors : Tucker
    noise : float
        The variance of the noise.
    threshold : float, optional
        The residual that outliers exceed.
    ridge_noise : float, optional
        The noise that the ridge assumes, if it is not `noise`.
    slices : tuple of SlicePrior
        Priors of a slice of mode 0, one for each of the variational models whose mean the factors
        are.
    free : float, optional
        The degrees of freedom of the residual, if they do not follow from the factors.
    """

    factors: Tucker
    noise: float
    threshold: float | None = None
    ridge_noise: float | None = None
    slices: tuple[SlicePrior, ...] = ()
    free: float | None = None


def ridges(F: Tucker, noise: float) -> tuple[Array | None, ...]:
    """Return the ridge of every block: the noise divided by the variance of every column."""
    xp = array_namespace(F.core)
    tiny = 1e-30

    def one(U: Array) -> Array:
        square = xp.mean(U * U, axis=0)
        return noise / xp.where(square > tiny, square, tiny + 0 * square)

    return (*(one(U) for U in F.factors), None)


def tucker_factors(state: State) -> Tucker:
    """Return the factors of a state of a tensor."""
    F = state.factors
    if not isinstance(F, Tucker):
        raise TypeError(f"factors of a tensor must be Tucker, not {type(F).__name__}")
    return F


@remembered("ranks")
def fit_ranks(
    session: Session,
    data: Observations,
    ranks: Ranks,
    outliers: Outliers | None = None,
    start: Tucker | None = None,
    ridge: float | None = None,
) -> TensorFit:
    """Fit multilinear ranks, which are upper bounds: components that noise explains are cut.

    Parameters
    ----------
    session : Session
    data : Observations
    ranks : tuple of int
    outliers : None, "auto" or a fraction
    start : Tucker, optional
        Factors to continue from.
    ridge : float, optional
        The size of the noise relative to the data; by default it is estimated.
    """
    fit = _fit_of_ranks(session, data, ranks, outliers, start, ridge)
    return replace(fit, factors=with_typical(fit.factors, data))


def _fit_of_ranks(
    session: Session,
    data: Observations,
    ranks: Ranks,
    outliers: Outliers | None,
    start: Tucker | None,
    ridge: float | None,
) -> TensorFit:
    """The same, but slices of mode 0 without any entry are zero."""
    ranks = possible(ranks, data.shape)
    if start is not None and largest_size(start.core) <= epsilon(start.core):
        start = None  # it has vanished, and its systems would be singular
    if outliers is not None:
        return _robust(session, data, ranks, outliers, start)
    problem = data.problem()
    state = _least_squares(session, problem, data, ranks, start)
    zero = 2 * float(problem.value_at_zero)
    if ridge is not None:
        noise = ridge**2 * zero / data.size
        F, _ = spectra(tucker_factors(state))
        held = replace(problem, ridge=ridges(F, noise))
        rules = [change(session.tol), beside_residual(1e-4)]
        state = session.solve(held, F, Alternating(), rules, stage="ridge")
        F = spectra(tucker_factors(state))[0]
        return TensorFit(F, _noise(problem.linearize(F), data, F.ranks), ridge_noise=noise)
    if 2 * float(state.value) <= _rounding(data) * zero:
        state = _simplest(session, problem, data, state)
        F, values = spectra(tucker_factors(state))
        kept = _exact_ranks(values, data)
        if kept != F.ranks:
            cut_down = cut(F, kept)
            state = session.solve(problem, cut_down, Alternating(), _rules(session), stage="cut")
            F = spectra(tucker_factors(state))[0]
        free = max(data.size - degrees(kept, data.shape), 1)
        return TensorFit(F, 2 * float(state.value) / free)
    return _noisy(session, problem, state, data)


def _simplest(session: Session, problem: Observed, data: Observations, state: State) -> State:
    """The fit of least ranks that reproduces the data, unless they determine one of larger ranks.

    If there are few entries, ranks that are too large reproduce them in many ways. If there are
    many, a superfluous component may still be anything at missing entries of a single slice.
    """
    ranks = tucker_factors(state).ranks
    many = data.size >= PLENTY * degrees(ranks, data.shape)
    quick = math.prod(ranks) * data.size <= WORK
    if data.complete or (many and not (quick and _of_one(tucker_factors(state)))):
        return state
    zero, last, outcome = 2 * float(problem.value_at_zero), ranks, session.outcome.copy()
    for size in range(1, max(ranks)):
        fewer = possible(tuple(min(size, r) for r in ranks), data.shape)
        if fewer == last or session.out_of_time:
            continue
        last = fewer
        simple = _least_squares(session, problem, data, fewer, None)
        if 2 * float(simple.value) <= _rounding(data) * zero:
            return simple
        session.outcome.become(outcome)
    return state


def _of_one(F: Tucker) -> bool:
    """Whether a component of a mode with many slices belongs to one of them alone."""
    xp = array_namespace(F.core)
    return any(
        U.shape[0] >= SLICES * U.shape[1] and float(xp.max(row_shares(U))) > OWN for U in F.factors
    )


def _rounding(data: Observations) -> float:
    """The share of the squares of the data below which a residual is rounding."""
    return max(1e-12, (30 * epsilon(data.example)) ** 2)


def _exact_ranks(values: Any, data: Observations) -> Ranks:
    """The ranks of a fit without noise: singular values beyond rounding."""
    least = max(1e-9, 30 * epsilon(data.example))
    return possible([max(1, int((s > least * s[0]).sum())) for s in values], data.shape)


def _rules(session: Session) -> list[StoppingRule]:
    return [vanished(0.1 * session.tol), change(0.1 * session.tol)]


def _first_factors(problem: Observed, data: Observations, ranks: Ranks) -> Any:
    if data.complete:
        return hosvd(ranks, tol=1e-3)(problem)
    return diagonal_deleted(ranks, tol=3e-2)(problem)


def _least_squares(
    session: Session, problem: Observed, data: Observations, ranks: Ranks, start: Tucker | None
) -> State:
    """Fit from the start of the theory; if that stalls, also from random ones; return the best."""
    first = _first_factors(problem, data, ranks) if start is None else start
    rules = [*_rules(session), settled(1e-2)]
    best = session.solve(problem, first, Alternating(), rules, stage="least squares")
    if data.size < 2 * degrees(ranks, data.shape) or start is not None:
        return best
    # a constant explains most of tensors that are far from zero
    varying = float(problem.value_at_zero) - 0.5 * data.size * data.mean() ** 2
    for seed in range(2):
        if float(best.value) <= 1e-4 * varying or session.out_of_time:
            break
        rules = [*_rules(session), settled(1e-2)]
        other = small_random(ranks, 1.0, rng=seed)(problem)
        again = session.solve(problem, other, Alternating(), rules, 30, stage="random start")
        if float(again.value) < 0.9 * float(best.value):
            best = again
        else:
            break
    return best


def _noisy(
    session: Session,
    problem: Observed,
    state: State,
    data: Observations,
    most: int = 10,
    updates: int = 300,
) -> TensorFit:
    """Estimate a ridge from the noise, and the ranks that the noise does not explain."""
    F, values = spectra(tucker_factors(state))
    noise = _noise(state, data, F.ranks)
    share, rounds, sweeps = (1e-3, most, 100) if session.tol < QUICK else (1e-2, 2, 30)
    for _ in range(rounds):
        kept = supported(values, F.ranks, data, noise)
        smaller = kept != F.ranks
        F = cut(F, kept)
        held = replace(problem, ridge=ridges(F, noise))
        rules = [beside_residual(share), change(session.tol)]
        before = len(session.outcome.history)
        state = session.solve(held, F, Alternating(), rules, min(sweeps, updates), stage="ridge")
        updates -= max(1, len(session.outcome.history) - before)
        plain = problem.linearize(state.factors)
        F, values = spectra(tucker_factors(state))
        last, noise = noise, _noise(plain, data, F.ranks)
        same = not smaller and abs(noise - last) <= 1e-3 * last
        if same or updates <= 0 or session.out_of_time:
            break
    return TensorFit(F, noise)


def _noise(state: Any, data: Observations, ranks: Ranks) -> float:
    free = data.size - degrees(ranks, data.shape)
    return 2 * float(state.value) / max(free, 0.1 * data.size, 1)


def supported(values: Any, ranks: Ranks, data: Observations, noise: float) -> Ranks:
    """How many singular values of every mode exceed those of noise in a fit."""
    kept = []
    for k, s in enumerate(values):
        others = math.prod(ranks) // ranks[k]
        edge = math.sqrt(noise / data.fraction) * (math.sqrt(data.shape[k]) + math.sqrt(others))
        # a fit to part of the entries amplifies the noise
        kept.append(max(1, int((s > 1.4 * edge).sum())))
    return possible(kept, data.shape)


SLOWLY = 0.8
"""Ratio of a threshold to the one before if it must not fall fast."""


def _finite(F: Tucker) -> bool:
    xp = array_namespace(F.core)
    return all(bool(xp.all(xp.isfinite(B))) for B in F.blocks)


def _rejected(data: Observations, state: State) -> float:
    """The share of the entries that a state rejects."""
    return data.rejected(tucker_factors(state), threshold(state))[0]


def _robust(
    session: Session, data: Observations, ranks: Ranks, outliers: Outliers, start: Tucker | None
) -> TensorFit:
    """Reject outliers, then set the threshold at three standard deviations of the rest."""
    problem = data.problem(rejecting(data, outliers))
    (least, fine), typical = levels(session, data), data.typical()
    first = _first_factors(problem, data, ranks) if start is None else start
    state = session.solve(problem, first, Alternating(), falling(least), stage="rejection")
    share = _rejected(data, state)
    if outliers == "auto" and share > MOST and not session.out_of_time:
        # a threshold that falls fast may reject entries that are right
        slow = data.problem(rejecting(data, outliers, SLOWLY))
        again = session.solve(slow, first, Alternating(), falling(least), stage="rejection")
        if _rejected(data, again) < share:
            problem, state = slow, again
    floor = math.sqrt(epsilon(data.example)) * typical
    if not _finite(tucker_factors(state)):
        # few entries, and the fit rejects those that it has lost: nothing is known about them
        F = _nothing(data)
        scale = data.residual_scale(F)
        return TensorFit(F, scale**2, max(MULTIPLE * scale, floor))
    F, values = spectra(tucker_factors(state))
    limit = threshold(state)
    if limit <= fine:
        kept = _exact_ranks(values, data)
        if kept != ranks:
            cut_down = cut(F, kept)
            state = session.solve(problem, cut_down, Alternating(), falling(least), stage="cut")
            F = spectra(tucker_factors(state))[0]
        return TensorFit(F, data.residual_scale(F) ** 2, floor)
    noise = 0.0
    # a fraction makes one of the residuals the limit; rounding must not decide whether it counts
    limit *= 1 + max(1e-9, 30 * epsilon(data.example))
    for _ in range(3 if session.tol < QUICK else 2):
        if outliers == "auto":
            last, limit = limit, max(MULTIPLE * data.residual_scale(F), floor)
            if noise and abs(limit - last) <= 1e-3 * last:
                break
        fixed = data.problem(HardTrim(limit))
        # the rejected set changes between turns, so none of them need converge
        fit = _noisy(session, fixed, fixed.linearize(F), data, 3, 150)
        F, noise = fit.factors, fit.noise / WITHIN
        if outliers != "auto":
            # a fraction may reject far more than outliers
            free = max(data.size - degrees(F.ranks, data.shape), 0.1 * data.size, 1)
            noise = data.residual_scale(F) ** 2 * data.size / free
    return TensorFit(F, noise, limit)


# ---- ranks chosen from the data

PLENTY = 3
"""Entries per degree of freedom above which a fit that reproduces them is unique."""

QUICK = 1e-6
"""Tolerance above which a fit only serves to compare ranks, and need not converge."""

SLICES = 4
"""Slices per component from which on a component hardly belongs to one slice by chance."""

WORK = 1e9
"""Number of entries times size of the core above which trying smaller ranks takes too long."""

VISIBLE = 1e-6
"""Squared error, as a share of that of the values, below which no error is gross."""

LADDER = (1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64)


def rungs(
    session: Session, data: Observations, outliers: Outliers | None = None, work: float = math.inf
) -> Iterator[tuple[Ranks, TensorFit]]:
    """Yield fits of growing equal ranks, each from its own start; the fits may cut the ranks.

    Parameters
    ----------
    session : Session
    data : Observations
    outliers : None, "auto" or a fraction
    work : float
        The largest product of the number of entries and the size of the core.
    """
    last: Ranks = ()
    for size in LADDER:
        ranks = possible((size,) * len(data.shape), data.shape)
        free = degrees(ranks, data.shape)
        if ranks == last or free > 0.7 * data.size or math.prod(ranks) * data.size > work:
            return
        last = ranks
        yield ranks, fit_ranks(session, data, ranks, outliers)


@dataclass(frozen=True, eq=False)
class Chosen:
    """Ranks that predict held-out entries best.

    Attributes
    ----------
    ranks : tuple of int
    trail : list of dict
    factors : Tucker, optional
        Those of the best candidate, if it has these ranks: a start may fail with all entries
        although it did not with most of them.
    errors : array, optional
        The squared errors of the best candidate at the held-out entries.
    """

    ranks: Ranks
    trail: list[dict[str, Any]]
    factors: Tucker | None = None
    errors: Array | None = None


def choose_ranks(
    session: Session, data: Observations, outliers: Outliers | None, seed: int
) -> Chosen:
    """Try equal ranks of growing size on held-out entries, some of which are grossly wrong."""
    best = Chosen(possible((1,) * len(data.shape), data.shape), [])
    worse = 0
    for fit, test in data.split(0.1, seed):
        zero = judged(test.squared_errors(_nothing(test)))
        for ranks, found in rungs(session.apart(QUICK, 40), fit, outliers):
            errors = test.squared_errors(found.factors)
            error = judged(errors)
            best.trail.append({"rank": ranks, "kept": found.factors.ranks, "held_out": error})
            worse += 1
            if best.errors is None or smaller(errors, best.errors, zero):
                F, worse = found.factors, 0
                best = Chosen(ranks, best.trail, F if F.ranks == ranks else None, errors)
            if worse == 2 or error <= 1e-10 * zero or session.out_of_time:
                break
    return best


def smaller(errors: Array, least: Array, typical: float = 0.0) -> bool:
    """Return whether squared errors are smaller than others, some of which are gross.

    Gross ones count no more than large ones. Large ones do count: a fit may predict most entries
    well, and reject all others.

    Parameters
    ----------
    errors, least : arrays of shape (m,)
        At the same entries.
    typical : float
        The typical square of the values. If most of them are predicted exactly, a gross error is
        not one beyond rounding, but one that can be seen beside the values.
    """
    xp = array_namespace(errors)
    most = max(9 * max(judged(errors), judged(least)), VISIBLE * typical)
    now, before = (float(xp.mean(xp.where(x < most, x, most + 0 * x))) for x in (errors, least))
    return now < 0.99 * before


def _nothing(data: Observations) -> Tucker:
    """The tensor that is zero."""
    xp = array_namespace(data.example)
    columns = tuple(0 * data.counts(k)[:, None] for k in range(len(data.shape)))
    return Tucker(columns, xp.zeros_like(xp.reshape(columns[0][:1], (1,) * len(data.shape))))


def judged(squares: Array) -> float:
    """Return a quantile of squared errors, because some entries are wrong."""
    # a rank that is much too small may fit a good half exactly: look beyond it
    return float(backend(squares).kth_magnitude(squares, max(1, int(0.35 * squares.shape[0]))))
