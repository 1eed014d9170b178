"""How a matrix with gross errors is fitted when nothing is known about them.

What exceeds three times the robust scale of the residual has no say (`HardTrim`), and the
rest is solved exactly (`Alternating`). A rank is accepted where the spectrum of what is
left has a gap: independent errors have a flat edge, and what correlated errors leave (movers
in a video) decays slowly from far above it, so that an edge alone would never end the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .. import kernels
from ..factors import Bordered
from ..initialize import spectral, widened
from ..linalg import epsilon, truncated_svd
from ..losses import HardTrim, Kept, larger, median_threshold
from ..methods import Alternating
from ..problems import Observed
from ..solve import Record, State, Stop, StoppingRule
from .budget import Budget
from .cells import Cells, medians
from .matrix import (
    Choice,
    believed,
    bordered,
    empty,
    refine,
    singular,
    structured,
    with_part,
    without_weakest,
)
from .packing import packable
from .rules import difference

Array = Any

MULTIPLE = 3.0
"""Standard deviations that a clean residual may have."""

WITHIN = 0.97334
"""The variance of a standard normal number, given that it is within three."""


@packable
@dataclass(frozen=True)
class fraction_threshold:  # noqa: N801  (reads as an argument, like median_threshold)
    """ζ_t = max(the quantile of |r| that leaves out a fraction, ratio · ζ_{t−1})."""

    fraction: float
    ratio: float = 0.5

    def pick(self, t: int, residual: Array, last: Any) -> Any:
        n = math.prod(residual.shape)
        k = min(n, max(1, math.ceil(self.fraction * n) + 1))
        return larger(kernels.kth_magnitude(residual, k), self.ratio * (last or 0.0))


def rejecting(cells: Cells, outliers: Any, ratio: float = 0.3) -> HardTrim:
    """The loss for outliers="auto", or a fraction of them."""
    if outliers == "auto":
        # to begin with nothing but the grossest is rejected: a column that the start put far
        # from most of its cells must not lose them all
        return HardTrim(median_threshold(MULTIPLE, ratio, first=cells.typical(0.7)))
    return HardTrim(fraction_threshold(float(outliers), ratio))


def threshold(state: State) -> float:
    """Where a state's loss rejects."""
    fixed = state.problem.loss.schedule
    return fixed if isinstance(fixed, float) else float(state.memory["threshold"][2])


def scale_of(values: Array) -> float:
    """A robust standard deviation: of what is within three of it, found from the median."""
    if not math.prod(values.shape):
        return 0.0
    scale = 1.4826 * float(kernels.median_magnitude(values))
    for _ in range(20):
        _, count, squares, _ = kernels.within(values, MULTIPLE * scale)
        if not int(count) or scale == 0.0:
            break
        last, scale = scale, math.sqrt(float(squares) / int(count) / WITHIN)
        if abs(scale - last) < 1e-3 * last:
            break
    return scale


def _falling(least: float) -> list[StoppingRule]:
    """Stop when the threshold vanished, or fell by less than 2 % three times."""

    def gone(state: State, history: list[Record]) -> Stop | None:
        if threshold(state) <= least:
            return Stop("the residual vanished but for the outliers")
        return None

    def stalled(state: State, history: list[Record]) -> Stop | None:
        history[-1]["threshold"] = threshold(state)
        seen = [record["threshold"] for record in history]
        best = min(seen)
        if len(seen) > 4 and best > 0.98 * min(seen[:-3]):
            return Stop("the scale of the residual does not fall any more")
        return None

    return [gone, stalled]


def reject_rows(
    cells: Cells,
    operator: Any,
    F: Any,
    mode: int,
    floor: float,
    ridge: Array | None = None,
    rounds: int = 40,
) -> Any:
    """Solve for every row (or column) anew, each on its own, rejecting what does not fit.

    From zero, with a threshold of each row's own that falls to `floor`. What happens to a row
    does not depend on any other.
    """
    xp = array_namespace(cells.y)
    blocks = [0 * B if k == mode else B for k, B in enumerate(F.blocks)]
    F = F.with_blocks(tuple(blocks))
    y = cells.problem(operator=operator).y
    limit: Any = None
    kept: Any = None
    for _ in range(rounds):
        residual = operator.residual(F, y)
        size = xp.abs(residual)
        scale = MULTIPLE * 1.4826 * medians(cells, size, mode)
        # as fast as the scale of a row's residual falls, and never standing still: outliers
        # on one side can hold the scale of a row up
        fallen = scale if limit is None else xp.where(scale < 0.6 * limit, scale, 0.6 * limit)
        limit = xp.where(fallen > floor, fallen, floor + 0 * fallen)
        now = size <= cells.along(mode, limit)
        if kept is not None and bool(xp.all(limit <= floor)) and bool(xp.all(now == kept)):
            break
        kept = now
        step = operator.exact_step(F, mode, y, Kept(now), ridge, residual)
        F = F.moved(mode, -step)
    return F


def _rejected(cells: Cells, state: State) -> tuple[float, list[Array]]:
    """The share of cells that are rejected, and of every row and every column."""
    xp = array_namespace(cells.y)
    r = state.problem.operator.residual(state.factors, state.problem.y)
    kept, count, *_ = kernels.within(r, threshold(state))
    kept = xp.reshape(xp.astype(kept, cells.y.dtype), (-1,))
    shares = []
    for mode in (0, 1):
        n = cells.counts(mode)
        shares.append(1 - cells.sums(mode, kept) / xp.where(n > 0, n, xp.ones_like(n)))
        shares[-1] = xp.where(n > 0, shares[-1], xp.zeros_like(n))
    return 1 - int(count) / cells.size, shares


def robust_least_squares(
    problem: Observed, cells: Cells, start: Bordered, rank: int, budget: Budget
) -> State:
    """Fit a rank, whatever the outliers; what went astray is begun anew."""
    return budget.step(
        "rejection",
        problem,
        lambda last, note: _robust_least_squares(problem, cells, start, rank, budget),
    )


def _robust_least_squares(
    problem: Observed, cells: Cells, start: Bordered, rank: int, budget: Budget
) -> State:
    typical = cells.typical()
    least, fine = _levels(cells, typical, budget)

    def run(F: Any, stage: str = "repair") -> State:
        return budget.run(problem, F, Alternating(), _falling(least), stage=stage).state

    first = spectral(rank, rounds=1)(problem)
    state = run(bordered(first, start), "rejection")
    for _ in range(4):
        share, shares = _rejected(cells, state)
        astray = [bool((x > 0.5).any()) for x in shares]
        exact = threshold(state) <= fine
        if budget.out_of_time or (not any(astray) and (exact or not structured(state, cells))):
            break
        tries = [_anew(cells, shares, exact)] if any(astray) else []
        if rank > 1 and _concentrated(state.factors):
            tries.append(_spread_out)
        if rank > 1:
            tries.append(lambda state: without_weakest(state, run))
        for repair in tries:
            again = run(repair(state))
            level, best = threshold(again), threshold(state)
            fewer = _rejected(cells, again)[0] < 0.98 * share
            both = max(level, best) <= fine
            if level < 0.9 * best or (fewer and (both or level <= 1.1 * best)):
                state = again
                break
        else:
            break
    own = max(float(x.max()) for x in _leverage(state.factors))
    if own > 0.9 and min(cells.shape) > 20 * rank > 20 and threshold(state) > fine:
        # nothing better was found for what explains the outliers of one row or column: nothing
        state = run(_without_own(state, 0.9).factors)
    return state


def _anew(cells: Cells, shares: list[Array], resume: bool) -> Callable[[State], Any]:
    """Rows and columns that were rejected for the most part, solved for on their own."""

    def repair(state: State) -> Any:
        F: Any = state.factors
        xp = array_namespace(F.L)
        for mode, share in enumerate(shares):
            if bool(xp.any(share > 0.5)):
                chosen = xp.nonzero(share > 0.5)[0]
                part = cells.slices(mode, chosen)
                only = _only(F, mode, chosen)
                other = reject_rows(part, part.operator(), only, mode, threshold(state))
                B = _put(F.blocks[mode], chosen, other.blocks[mode])
                F = F.with_blocks(tuple(B if k == mode else A for k, A in enumerate(F.blocks)))
        return _resumed(state, F) if resume and "threshold" in state.memory else F

    return repair


def _only(F: Bordered, mode: int, chosen: Array) -> Bordered:
    """Factors of some rows (or columns) of X."""
    xp = array_namespace(F.L)
    if mode == 0:
        u = None if F.u is None else xp.take(F.u, chosen)
        return replace(F, L=xp.take(F.L, chosen, axis=0), u=u)
    v = None if F.v is None else xp.take(F.v, chosen)
    return replace(F, R=xp.take(F.R, chosen, axis=0), v=v)


def _put(B: Array, chosen: Array, rows: Array) -> Array:
    """B with other rows at some places."""
    xp = array_namespace(B)
    place = np.full(B.shape[0], -1)
    place[np.asarray(chosen.tolist() if hasattr(chosen, "tolist") else chosen)] = np.arange(
        rows.shape[0]
    )
    where = xp.asarray(place, device=device(B))
    other = xp.take(rows, xp.where(where >= 0, where, xp.zeros_like(where)), axis=0)
    return xp.where((where >= 0)[:, None], other, B)


def settle(cells: Cells, state: State, outliers: Any, budget: Budget) -> tuple[State, float]:
    """The noise among what was not rejected: a ridge, and the final threshold."""
    problem, typical = state.problem, cells.typical()
    least = max(math.sqrt(epsilon(cells.y)), 0.1 * budget.tol) * typical
    limit = least
    for _ in range(2):
        F: Any = state.factors
        r = problem.operator.residual(F, problem.y)
        limit = MULTIPLE * scale_of(r) if outliers == "auto" else threshold_of(outliers, r)
        if limit <= least:
            break
        fixed = Observed(problem.operator, problem.y, HardTrim(limit))
        kept = int(kernels.within(r, limit)[1])
        last, state = state, refine(fixed, fixed.linearize(F), cells, budget, None, 1e-4 * limit)
        left = problem.operator.residual(state.factors, problem.y)
        if int(kernels.within(left, limit)[1]) < 0.9 * kept:
            # what few cells say made a ridge that lost the others: the fit is better without
            state = believed(fixed.linearize(last.factors), cells)
            break
        if difference(last.factors, state.factors) <= 1e-3 * limit * math.sqrt(cells.size):
            break
    if limit <= least:
        state = believed(state, cells)
    return state, max(limit, least)


def threshold_of(outliers: float, r: Array) -> float:
    return float(fraction_threshold(float(outliers)).pick(1, r, None))


def fit_robust(
    cells: Cells, start: Bordered, rank: int, outliers: Any, budget: Budget
) -> tuple[State, float]:
    """A given rank, and a threshold that outliers exceed."""
    problem = cells.problem(rejecting(cells, outliers))
    state = robust_least_squares(problem, cells, start, min(rank, *cells.shape), budget)
    return settle(cells, _no_more(cells, state, budget), outliers, budget)


def _no_more(cells: Cells, state: State, budget: Budget) -> State:
    """Without components that are not needed to fit what is not rejected exactly.

    A rank that is too large has a component left over to explain outliers with.
    """
    return budget.step("fewer", state.problem, lambda last, note: _needed(cells, state, budget))


def _needed(cells: Cells, state: State, budget: Budget) -> State:
    least, fine = _levels(cells, cells.typical(), budget)
    level = threshold(state)
    if level > fine or not _concentrated(state.factors):
        return state
    history = (list(budget.history), budget.converged, budget.status)
    while state.factors.rank > 1:  # type: ignore[attr-defined]
        F: Any = state.factors
        U, s, V = singular(F)
        fewer = with_part(F, U[:, :-1], s[:-1], V[:, :-1])
        again = budget.run(
            state.problem, fewer, Alternating(), _falling(least), 40, stage="fewer"
        ).state
        if threshold(again) > 10 * max(level, least):
            # it was needed: as if nothing had been tried
            budget.history, budget.converged, budget.status = history
            break
        state = again
        history = (list(budget.history), budget.converged, budget.status)
    return state


def _leverage(F: Any) -> list[Array]:
    """Of every row, and every column: how much of a direction it has to itself, from 0 to 1."""
    xp = array_namespace(F.L)
    spans = (xp.linalg.qr(B[:, : F.rank])[0] for B in F.blocks)
    return [xp.sum(Q * Q, axis=1) for Q in spans]


def _concentrated(F: Any) -> bool:
    """Whether some row or column has a direction nearly to itself, as one of outliers would."""
    return any(float(x.max()) > 0.25 for x in _leverage(F))


def _without_own(state: State, most: float) -> State:
    """Without the directions that a row or column has to itself.

    They explain the outliers of that row or column, and not the table.
    """
    F: Any = state.factors
    xp, r = array_namespace(F.L), F.rank
    blocks = []
    for B, x in zip(F.blocks, _leverage(F), strict=True):
        inside = xp.where((x > most)[:, None], xp.zeros_like(B[:, :r]), B[:, :r])
        blocks.append(xp.concat([inside, B[:, r:]], axis=1))
    U, s, V = singular(F.with_blocks(tuple(blocks)))
    kept = max(1, min(r - 1, int((s > 1e-6 * s[0]).sum())))
    return state.again(with_part(F, U[:, :kept], s[:kept], V[:, :kept]))  # type: ignore[misc]


def _spread_out(state: State) -> State:
    """Such directions give way to what the residual shows most."""
    fewer = _without_own(state, 0.25)
    lost = state.factors.rank - fewer.factors.rank  # type: ignore[attr-defined]
    wider = state.again(widened(fewer, lost))  # type: ignore[misc]
    return replace(wider, t=state.t, memory=state.memory)  # its threshold goes on falling


def _resumed(state: State, F: Any) -> State:
    """Other factors in the place of a state's, its threshold a little above where it stood."""
    rule, at, last = state.memory["threshold"]
    memory = {**state.memory, "threshold": (rule, at, 10 * last)}
    return replace(state.again(F), t=state.t + 1, memory=memory)  # type: ignore[misc]


# ---- the rank, from gaps


def _levels(cells: Cells, typical: float, budget: Budget) -> tuple[float, float]:
    """The threshold to end at, and the one from which on the rest counts as reproduced."""
    least = max(0.1 * budget.tol, 10 * epsilon(cells.y)) * typical
    return least, max(least, 1e-5 * typical)


@dataclass(frozen=True, eq=False)
class Look:
    """The spectrum of what is left unexplained and was not rejected."""

    U: Array
    s: np.ndarray[Any, Any]
    V: Array
    edge: float
    kept: float

    def gap(self, ratio: float = 2.0) -> int:
        """How many singular values stand above a gap; 0 where there is none."""
        for j in range(1, len(self.s)):
            if self.s[j - 1] < 1.1 * self.edge:
                return 0
            if self.s[j - 1] >= ratio * self.s[j]:
                return j
        return 0

    @property
    def above(self) -> int:
        return int(np.sum(self.s >= 1.1 * self.edge))


def look(cells: Cells, operator: Any, F: Any, most: int = 32) -> Look:
    xp = array_namespace(cells.y)
    n1, n2 = cells.shape
    r = operator.apply(F) - cells.y
    limit = MULTIPLE * scale_of(r)
    keep = xp.abs(r) <= limit
    W = xp.where(keep, r, xp.zeros_like(r))
    Z = operator.adjoint(W)
    left, right = F.modes
    if left.shape[1]:
        # what fitting the factors disturbs is not noise: look off their spans
        P, Q = xp.linalg.qr(left)[0], xp.linalg.qr(right)[0]

        def times(V: Array) -> Array:
            x = Z.times(V - Q @ (Q.T @ V))
            return x - P @ (P.T @ x)

        def adjoint_times(U: Array) -> Array:
            x = Z.adjoint_times(U - P @ (P.T @ U))
            return x - Q @ (Q.T @ x)
    else:
        times, adjoint_times = Z.times, Z.adjoint_times
    most = max(2, min(most, min(n1, n2) // 3, min(n1, n2) - 1))
    seeded = np.random.default_rng(0)
    U, s, V = truncated_svd(times, adjoint_times, (n1, n2), most, cells.y, seeded, 1e-2)
    rms = math.sqrt(float(xp.sum(W * W)) / (n1 * n2))
    kept = float(xp.sum(xp.astype(keep, W.dtype))) / (n1 * n2)
    values = np.asarray([float(x) for x in s])
    return Look(U, values, V, rms * (math.sqrt(n1) + math.sqrt(n2)), kept)


def robust_rank(
    cells: Cells, rng: np.random.Generator, budget: Budget
) -> tuple[int, str, list[dict[str, Any]]]:
    """The rank below the first gap, or below everything where all decays without one."""
    part = _part(cells, rng)
    found: Any = budget.remember("rank", lambda last, note: _robust_rank(part, budget))
    return found  # type: ignore[no-any-return]


def _robust_rank(cells: Cells, budget: Budget) -> tuple[int, str, list[dict[str, Any]]]:
    n1, n2 = cells.shape
    operator = cells.operator()
    problem = cells.problem(rejecting(cells, "auto", 0.6), operator)
    typical = cells.typical()
    if typical == 0.0:
        return 0, "everything is zero", []
    exact = MULTIPLE * 1.4826 * 1e-6 * typical
    most = max(1, min(n1, n2) // 5)
    trail: list[dict[str, Any]] = []

    def fit(F: Any) -> State:
        rules = _falling(exact)
        return budget.run(problem, F, Alternating(), rules, 60, stage="rank").state

    F: Any = empty(cells, Choice())
    fallback, jumps, first, why = None, 0, None, ""
    while not why:
        seen = look(cells, operator, F)
        first = seen if first is None else first
        trail.append(
            {
                "rank": F.rank,
                "above_edge": seen.above,
                "top_over_edge": float(seen.s[0] / seen.edge) if seen.edge else 0.0,
                "gap_after": seen.gap(),
            }
        )
        if seen.above == 0 and F.rank:
            why = "what is left looks like independent noise"
            break
        jump = seen.gap()
        if jump == 0:
            jumps += 1
            fallback = F.rank if fallback is None else fallback
            jump = int(np.sum(seen.s >= max(1.1 * seen.edge, seen.s[0] / 3)))
        jump = max(1, jump)
        if jumps > 8 or F.rank + jump > most:
            why = "fall"
            break
        state = fit(_with(F, seen, jump))
        F = state.factors
        if threshold(state) <= exact:
            why = "the residual vanished but for the outliers"
    if why != "fall":
        F = _fewer(F, first, cells, operator, fit, exact, why)
        if why.startswith("what"):
            left = look(cells, operator, F)
            # a continuum that was absorbed up to some large rank is not a rank
            if float(singular(F)[1][-1]) * left.kept < 1.4 * left.s[0] and fallback is not None:
                why = "fall"
    if why == "fall":
        rank = max(1, fallback or 0)
        return rank, "the spectrum decays without a gap beyond it", trail
    return int(F.rank), why, trail


def _fewer(
    F: Any, first: Any, cells: Cells, operator: Any, fit: Any, exact: float, why: str
) -> Any:
    """Without columns that are not needed: truncated, or from a fresh start."""
    while F.rank > 1:
        k = F.rank - 1
        U, s, V = singular(F)
        tries = [with_part(F, U[:, :k], s[:k], V[:, :k])]
        if k <= len(first.s):
            tries.append(_with(empty(cells, Choice()), first, k))
        for start in tries:
            state = fit(start)
            if why.startswith("the residual"):
                fine = threshold(state) <= exact
            else:
                fine = look(cells, operator, state.factors).above == 0
            if fine:
                F = state.factors
                break
        else:
            return F
    return F


def _with(F: Any, seen: Look, columns: int) -> Any:
    """More columns, from the spectrum of what is left."""
    xp = array_namespace(seen.U)
    s = seen.s[:columns] / max(seen.kept, 1e-12)
    s = xp.asarray(s, dtype=seen.U.dtype, device=device(seen.U))
    root = xp.sqrt(s)[None, :]
    r = F.rank
    L = xp.concat([F.L[:, :r], -seen.U[:, :columns] * root, F.L[:, r:]], axis=1)
    R = xp.concat([F.R[:, :r], seen.V[:, :columns] * root, F.R[:, r:]], axis=1)
    return replace(F, L=L, R=R)


def _part(cells: Cells, rng: np.random.Generator) -> Cells:
    """A random part of the long side, where it is much longer than the other."""
    short, long = min(cells.shape), max(cells.shape)
    size = max(1000, 4 * short)
    if long <= size:
        return cells
    mode = cells.shape.index(long)
    chosen = np.sort(rng.choice(long, size, replace=False))
    return cells.slices(mode, array_namespace(cells.y).asarray(chosen, device=device(cells.y)))
