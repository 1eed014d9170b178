"""How a tensor is fitted when nothing is known about it but its cells."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from .. import kernels
from ..factors import Tucker
from ..initialize import diagonal_deleted, hosvd, small_random
from ..linalg import epsilon, mode_products, unfold
from ..losses import HardTrim, Loss
from ..methods import Alternating
from ..problems import Observed
from ..solve import State, StoppingRule
from .budget import Budget
from .cells import Cells, held_out
from .packing import packable
from .robust import MULTIPLE, WITHIN, _falling, rejecting, scale_of, threshold
from .rules import beside_residual, change, settled, vanished

Array = Any
Ranks = tuple[int, ...]


def possible(ranks: Any, shape: tuple[int, ...]) -> Ranks:
    """The largest multilinear ranks below the given ones that a tensor can have."""
    r = [min(int(a), n) for a, n in zip(ranks, shape, strict=True)]
    for _ in range(len(r)):
        r = [min(a, math.prod(r) // a) for a in r]
    return tuple(r)


def degrees(ranks: Ranks, shape: tuple[int, ...]) -> int:
    factors = sum(r * (n - r) for r, n in zip(ranks, shape, strict=True))
    return math.prod(ranks) + factors


def orthonormal(F: Tucker) -> Tucker:
    """The same tensor, its factors with orthonormal columns."""
    xp = array_namespace(F.core)
    pairs = [xp.linalg.qr(U) for U in F.factors]
    return Tucker(tuple(Q for Q, _ in pairs), mode_products(F.core, [A for _, A in pairs]))


def spectra(F: Tucker) -> tuple[Tucker, tuple[Array, ...]]:
    """The higher-order SVD: factors in order of importance, and singular values per mode."""
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
    """The leading part of a higher-order SVD."""
    core = F.core[tuple(slice(r) for r in ranks)]
    return Tucker(tuple(U[:, :r] for U, r in zip(F.factors, ranks, strict=True)), core)


@packable
@dataclass(frozen=True, eq=False)
class TensorFit:
    """Factors, the variance of the noise, and where outliers begin."""

    factors: Tucker
    noise: float
    threshold: float | None = None
    ridge_noise: float | None = None
    """What the ridge was made for, where that is not the noise that was found."""


def ridges(F: Tucker, noise: float) -> tuple[Array | None, ...]:
    """The noise over the variance of every column: what holds rows with few cells."""
    xp = array_namespace(F.core)
    tiny = 1e-30

    def one(U: Array) -> Array:
        square = xp.mean(U * U, axis=0)
        return noise / xp.where(square > tiny, square, tiny + 0 * square)

    return (*(one(U) for U in F.factors), None)


def fit_ranks(
    cells: Cells,
    ranks: Ranks,
    budget: Budget,
    outliers: Any = None,
    start: Tucker | None = None,
    ridge: float | None = None,
) -> TensorFit:
    """Fit multilinear ranks, which are an upper bound: what noise explains is cut.

    A ridge that was given is the size of the noise relative to the data.
    """
    fit: TensorFit = budget.remember(
        "ranks", lambda last, note: _fit_ranks(cells, ranks, budget, outliers, start, ridge)
    )
    return fit


def _fit_ranks(
    cells: Cells,
    ranks: Ranks,
    budget: Budget,
    outliers: Any,
    start: Tucker | None,
    ridge: float | None,
) -> TensorFit:
    ranks = possible(ranks, cells.shape)
    if outliers is not None:
        return _robust(cells, ranks, budget, outliers, start)
    problem = cells.problem()
    state = _least_squares(problem, cells, ranks, budget, start)
    zero = 2 * float(problem.value_at_zero)
    if ridge is not None:
        noise = ridge**2 * zero / cells.size
        F, _ = spectra(state.factors)  # type: ignore[arg-type]
        held = replace(problem, ridge=ridges(F, noise))
        rules = [change(budget.tol), beside_residual(1e-4)]
        state = budget.run(held, F, Alternating(), rules, stage="ridge").state
        F = spectra(state.factors)[0]  # type: ignore[arg-type]
        seen = _noise(problem.linearize(F), cells, F.ranks)
        return TensorFit(F, seen, ridge_noise=noise)
    if 2 * float(state.value) <= 1e-12 * zero:
        F, values = spectra(state.factors)  # type: ignore[arg-type]
        kept = possible([max(1, int((s > 1e-9 * s[0]).sum())) for s in values], cells.shape)
        if kept != ranks:
            state = budget.run(
                problem, cut(F, kept), Alternating(), _rules(budget), stage="cut"
            ).state
            F = spectra(state.factors)[0]  # type: ignore[arg-type]
        free = max(cells.size - degrees(kept, cells.shape), 1)
        return TensorFit(F, 2 * float(state.value) / free)
    return _noisy(problem, state, cells, budget)


def _rules(budget: Budget) -> list[StoppingRule]:
    return [vanished(0.1 * budget.tol), change(0.1 * budget.tol)]


def _beginning(problem: Observed, cells: Cells, ranks: Ranks) -> Any:
    if cells.index is None:
        return hosvd(ranks, tol=1e-3)(problem)
    return diagonal_deleted(ranks, tol=3e-2)(problem)


def _least_squares(
    problem: Observed, cells: Cells, ranks: Ranks, budget: Budget, start: Tucker | None
) -> State:
    """From the start of the theory; where that stalls, from random ones, and the best."""
    first = _beginning(problem, cells, ranks) if start is None else start
    rules = [*_rules(budget), settled(1e-2)]
    best = budget.run(problem, first, Alternating(), rules, stage="least squares").state
    if cells.size < 2 * degrees(ranks, cells.shape) or start is not None:
        return best
    for seed in range(2):
        if float(best.value) <= 1e-4 * float(problem.value_at_zero) or budget.out_of_time:
            break
        rules = [*_rules(budget), settled(1e-2)]
        other = small_random(ranks, 1.0, rng=seed)(problem)
        again = budget.run(problem, other, Alternating(), rules, 30, stage="random start").state
        if float(again.value) < 0.9 * float(best.value):
            best = again
        else:
            break
    return best


def _noisy(problem: Observed, state: State, cells: Cells, budget: Budget) -> TensorFit:
    """A ridge from the noise, and ranks that the noise does not explain."""
    F, values = spectra(state.factors)  # type: ignore[arg-type]
    noise = _noise(state, cells, F.ranks)
    share, rounds = (1e-3, 10) if budget.tol < QUICK else (1e-2, 2)
    for _ in range(rounds):
        kept = _supported(values, F.ranks, cells, noise)
        smaller = kept != F.ranks
        F = cut(F, kept)
        held = replace(problem, ridge=ridges(F, noise))
        rules = [beside_residual(share), change(budget.tol)]
        state = budget.run(held, F, Alternating(), rules, 100, stage="ridge").state
        plain = problem.linearize(state.factors)
        F, values = spectra(state.factors)  # type: ignore[arg-type]
        last, noise = noise, _noise(plain, cells, F.ranks)
        if budget.out_of_time or (not smaller and abs(noise - last) <= 1e-3 * last):
            break
    return TensorFit(F, noise)


def _noise(state: State, cells: Cells, ranks: Ranks) -> float:
    free = cells.size - degrees(ranks, cells.shape)
    return 2 * float(state.value) / max(free, 0.1 * cells.size, 1)


def _supported(values: Any, ranks: Ranks, cells: Cells, noise: float) -> Ranks:
    """How many singular values of every mode exceed what noise leaves in a fit."""
    kept = []
    for k, s in enumerate(values):
        others = math.prod(ranks) // ranks[k]
        edge = math.sqrt(noise / cells.p) * (math.sqrt(cells.shape[k]) + math.sqrt(others))
        # a fit to part of the cells makes more of the noise than there is
        kept.append(max(1, int((s > 1.4 * edge).sum())))
    return possible(kept, cells.shape)


def _robust(
    cells: Cells, ranks: Ranks, budget: Budget, outliers: Any, start: Tucker | None
) -> TensorFit:
    """Rejection, then a threshold of three standard deviations of what is left."""
    loss: Loss = rejecting(cells, outliers)
    problem = cells.problem(loss)
    typical = cells.typical()
    least = max(0.1 * budget.tol, 10 * epsilon(cells.y)) * typical
    first = _beginning(problem, cells, ranks) if start is None else start
    state = budget.run(problem, first, Alternating(), _falling(least), stage="rejection").state
    floor = math.sqrt(epsilon(cells.y)) * typical
    F, values = spectra(state.factors)  # type: ignore[arg-type]
    if threshold(state) <= 1e-5 * typical:
        kept = possible([max(1, int((s > 1e-9 * s[0]).sum())) for s in values], cells.shape)
        if kept != ranks:
            state = budget.run(
                problem, cut(F, kept), Alternating(), _falling(least), stage="cut"
            ).state
            F = spectra(state.factors)[0]  # type: ignore[arg-type]
        noise = scale_of(problem.operator.apply(F) - problem.y) ** 2
        return TensorFit(F, noise, floor)
    limit = threshold(state)
    noise = 0.0
    for _ in range(3):
        r = problem.operator.apply(F) - problem.y
        if outliers == "auto":
            limit = max(MULTIPLE * scale_of(r), floor)
        fixed = Observed(problem.operator, problem.y, HardTrim(limit))
        fit = _noisy(fixed, fixed.linearize(F), cells, budget)
        F, noise = fit.factors, fit.noise / WITHIN
        if outliers != "auto":
            # a fraction may reject far more than outliers
            free = max(cells.size - degrees(F.ranks, cells.shape), 0.1 * cells.size, 1)
            off = problem.operator.apply(F) - problem.y
            noise = scale_of(off) ** 2 * cells.size / free
    return TensorFit(F, noise, limit)


# ---- ranks that the data choose

QUICK = 1e-6
"""A tolerance from which on a fit is one to judge ranks by, and need not be finished."""

LADDER = (1, 2, 3, 4, 6, 8, 11, 15, 20, 27, 36, 48, 64)


def choose_ranks(
    cells: Cells, rng: np.random.Generator, budget: Budget, outliers: Any
) -> tuple[Ranks, list[dict[str, Any]], Tucker | None]:
    """Equal ranks of growing size, judged on held-out cells; which to cut is seen later.

    Also returns the factors that were best, to begin with.
    """
    trail: list[dict[str, Any]] = []
    best: tuple[float, Ranks] = math.inf, possible((1,) * len(cells.shape), cells.shape)
    worse, factors = 0, None
    for fit, test in held_out(cells, 0.1, rng, 1):
        last: Ranks = ()
        for size in LADDER:
            ranks = possible((size,) * len(cells.shape), cells.shape)
            if ranks == last or degrees(ranks, cells.shape) > 0.7 * fit.size:
                break
            last = ranks
            quick = budget.apart(QUICK, 40)
            found = fit_ranks(fit, ranks, quick, outliers)
            off = found.factors.gather(test.coordinates) - test.flat
            error = _judged(off, outliers)
            trail.append({"rank": ranks, "kept": found.factors.ranks, "held_out": error})
            if error < 0.99 * best[0]:
                best, worse, factors = (error, ranks), 0, found.factors
            else:
                worse += 1
            exact = error <= 1e-10 * _judged(test.flat, outliers)
            if worse == 2 or exact or budget.out_of_time:
                break
    whole = factors is not None and factors.ranks == best[1] and outliers is None
    return best[1], trail, factors if whole else None


def _judged(off: Array, outliers: Any) -> float:
    """Mean squares; where some cells are wrong, of the scale that most have."""
    if outliers is not None:
        # a good half may be fitted exactly by much too small a rank: look beyond it
        return float(kernels.kth_magnitude(off, max(1, int(0.35 * off.shape[0])))) ** 2
    return float(array_namespace(off).mean(off * off))
