"""How a matrix is fitted when nothing is known about it but its cells.

A fit with a given rank: least squares, by `Alternating` where cells are plenty and by
growing the rank where they are few; then, where noise is left, `Variational`, which
finds the ridge and cuts the columns that noise explains. A fit that chooses: candidates
for offsets and scales grow on most of the cells and are judged on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..factors import Bordered
from ..initialize import grown, spectral, widened
from ..kernels.numpy import part_of
from ..linalg import epsilon, sketched_svd
from ..methods import Alternating, ScaledLBFGS
from ..problems import Observed
from ..solve import Record, Result, State, Stop, StoppingRule
from ..variational import Posterior, Variational, current, mean_square
from .budget import Budget, light, log, revived
from .cells import Cells, components, held_out, medians
from .packing import host, packable
from .rules import beside_residual, change, settled, stalled, vanished

Array = Any


ROUNDS = 0
"""Of a start: more would turn what sampling noise hides into the shape of that noise."""

ENOUGH = 200_000
"""Held-out cells that say all there is to say about whether a fit is to be believed."""


@packable
@dataclass(frozen=True)
class Choice:
    """Which offsets are estimated, and what rows and columns are divided by."""

    center: str = "none"
    scale: str = "none"
    robust: bool = False

    @property
    def rows(self) -> bool:
        return self.center in ("rows", "both")

    @property
    def columns(self) -> bool:
        return self.center in ("columns", "both")


def spread(
    cells: Cells, mode: int, typical: float | None = None, robust: bool = False
) -> tuple[Array, float]:
    """The standard deviation of every slice of a mode, and a typical variance.

    The deviation is drawn to the typical one as if by one more cell.
    """
    xp = array_namespace(cells.y)
    n = cells.counts(mode)
    safe = xp.where(n > 0, n, xp.ones_like(n))
    if robust:
        off = cells.y - cells.along(mode, medians(cells, cells.y, mode))
        squares = n * (1.4826 * medians(cells, xp.abs(off), mode)) ** 2
    else:
        off = cells.y - cells.along(mode, cells.sums(mode, cells.flat) / safe)
        squares = cells.sums(mode, xp.reshape(off * off, (-1,)))
    if typical is None:
        several = n > 1
        typical = _median((squares / safe)[several]) if bool(xp.any(several)) else 0.0
        typical = typical or float(xp.sum(squares) / max(1.0, float(xp.sum(n)))) or 1.0
    return xp.sqrt((squares + typical) / (n + 1)), typical


def _median(x: Array) -> float:
    return float(array_namespace(x).sort(x)[x.shape[0] // 2]) if x.shape[0] else 0.0


@packable
@dataclass(frozen=True, eq=False)
class Scales:
    """What the data are divided by, and the mean that is taken off what is left."""

    rows: Array | None
    columns: Array | None
    mean: float = 0.0
    typical: float | None = None
    """The variance of a typical row."""
    unit: float = 1.0
    """Of the scales of rows, such that what offsets stand beside is about 1."""
    robust: bool = False

    def apply(self, cells: Cells) -> Cells:
        y = cells.y
        for mode, d in enumerate((self.rows, self.columns)):
            if d is not None:
                y = y / cells.along(mode, d)
        return cells.with_values(y - self.mean if self.mean else y)

    def undo(self, values: Array, index: tuple[Array, ...]) -> Array:
        xp = array_namespace(values)
        values = values + self.mean
        for i, d in zip(index, (self.rows, self.columns), strict=True):
            if d is not None:
                values = values * xp.take(d, i)
        return values

    def for_rows(self, cells: Cells) -> Scales:
        """The same for other rows, each by what it says itself."""
        if self.rows is None:
            return self
        return replace(self, rows=self.unit * spread(cells, 0, self.typical, self.robust)[0])


def _harmonic(d: Array) -> float:
    """What makes the mean square of 1/d one: offsets must not depend on units."""
    xp = array_namespace(d)
    return math.sqrt(float(xp.mean(1 / (d * d))))


def scales(cells: Cells, choice: Choice) -> Scales:
    rows = typical = columns = None
    unit = 1.0
    if choice.scale in ("rows", "both"):
        rows, typical = spread(cells, 0, None, choice.robust)
        unit = _harmonic(rows)
        rows = unit * rows
    if choice.scale in ("columns", "both"):
        between = cells if rows is None else cells.with_values(cells.y / cells.along(0, rows))
        columns = spread(between, 1, None, choice.robust)[0]
        columns = _harmonic(columns) * columns
    plain = Scales(rows, columns, 0.0, typical, unit, choice.robust)
    # a mean is an offset of rows, or of columns, unless the other side is scaled
    if (choice.rows and columns is None) or (choice.columns and rows is None):
        y = plain.apply(cells).y
        return replace(plain, mean=float(array_namespace(y).mean(y)))
    return plain


def empty(cells: Cells, choice: Choice, known: Scales | None = None) -> Bordered:
    """Nothing but offsets, which are zero: factors of rank 0.

    Offsets add to the data in their own units: beside data that were divided by scales
    they stand divided by them too.
    """
    xp = array_namespace(cells.y)
    zeros = [xp.zeros_like(cells.counts(k)) for k in (0, 1)]
    scale = (None, None) if known is None else (known.rows, known.columns)
    u, v = (z + 1 if d is None else 1 / d for z, d in zip(zeros, scale, strict=True))
    return Bordered(
        zeros[0][:, None][:, : int(choice.rows)],
        zeros[1][:, None][:, : int(choice.columns)],
        u if choice.columns else None,
        v if choice.rows else None,
    )


def bordered(F: Any, like: Bordered) -> Bordered:
    """Factors of a low-rank X with the offsets of another."""
    if isinstance(F, Bordered):
        return F
    xp = array_namespace(F.L)
    return replace(
        like,
        L=xp.concat([F.L, like.L[:, like.rank :]], axis=1),
        R=xp.concat([F.R, like.R[:, like.rank :]], axis=1),
    )


def singular(F: Bordered) -> tuple[Array, Array, Array]:
    """U, σ, V of the part L Rᵀ."""
    xp, r = array_namespace(F.L), F.rank
    if not r:
        return F.L[:, :0], xp.sum(F.R[:, :0], axis=0), F.R[:, :0]
    Q, A = xp.linalg.qr(F.L[:, :r])
    P, B = xp.linalg.qr(F.R[:, :r])
    U, s, Vh = xp.linalg.svd(A @ B.T)
    return Q @ U, s, P @ Vh.T


def with_part(F: Bordered, U: Array, s: Array, V: Array) -> Bordered:
    """The same offsets beside another low-rank part."""
    xp, r = array_namespace(F.L), F.rank
    root = xp.sqrt(s)[None, :]
    return replace(
        F,
        L=xp.concat([U * root, F.L[:, r:]], axis=1),
        R=xp.concat([V * root, F.R[:, r:]], axis=1),
    )


def canonical(F: Bordered) -> Bordered:
    """The same X, as much of it in the offsets as can be.

    Offsets and factors share what the factors have along u and v, which least squares divides
    as chance will have it; priors are not indifferent to that.
    """
    xp, r = array_namespace(F.L), F.rank
    L, b, R, c = F.L[:, :r], F.L[:, r:], F.R[:, :r], F.R[:, r:]
    if F.v is not None:
        v = F.v[:, None]
        share = (v.T @ R) / xp.sum(v * v)
        b, R = b + L @ share.T, R - v @ share
    if F.u is not None:
        u = F.u[:, None]
        share = (u.T @ L) / xp.sum(u * u)
        c, L = c + R @ share.T, L - u @ share
    if F.u is not None and F.v is not None:
        share = (v.T @ c) / xp.sum(v * v)
        b, c = b + u @ share, c - v @ share
    return replace(F, L=xp.concat([L, b], axis=1), R=xp.concat([R, c], axis=1))


def settled_parts(state: State, cells: Cells) -> State:
    """The same fit, where the observations fall into parts that share neither row nor column.

    How the factors of one part lie to those of another the data do not say; here so that no
    entry between two parts is larger than those within them.
    """
    if components(cells) == 1:
        return state
    F: Any = state.factors
    xp, r = array_namespace(F.L), F.rank
    labels = part_of(tuple(host(i) for i in cells.index or ()), cells.shape)
    L, R = (host(B).copy() for B in F.blocks)
    for part in np.unique(labels[0][host(cells.coordinates[0])]):
        rows, columns = labels[0] == part, labels[1] == part
        A = Bordered(L[rows, :r], R[columns, :r])
        if min(rows.sum(), columns.sum()) >= r:
            U, s, V = singular(A)
            root = np.sqrt(s)[None, :]
            L[rows, :r], R[columns, :r] = U * root, V * root
    there = device(F.L)
    blocks = tuple(xp.asarray(B, device=there) for B in (L, R))
    fresh = state.again(F.with_blocks(blocks))  # type: ignore[misc]
    posterior = Posterior.first(fresh.factors, current(state).noise)
    return replace(fresh, memory={**state.memory, "posterior": posterior})


def edge(cells: Cells, variance: float) -> float:
    """The largest singular value that noise of a variance has on the observed cells."""
    n1, n2 = cells.shape
    return math.sqrt(variance * cells.p) * (math.sqrt(n1) + math.sqrt(n2))


def degrees(rank: int, shape: tuple[int, ...]) -> int:
    return rank * (sum(shape) - rank)


def mean_square_residual(state: State, cells: Cells) -> float:
    return 2 * float(state.value) / cells.size


def structured(state: State, cells: Cells) -> bool:
    """Whether the residual has a singular value that noise of its size would not have."""
    F: Any = state.factors
    Z = state.ambient()  # type: ignore[misc]
    seeded = np.random.default_rng(0)
    _, s, _ = sketched_svd(Z.times, Z.adjoint_times, F.shape, 1, F.blocks[0], seeded, 1)
    return float(s[0]) > 1.1 * edge(cells, mean_square_residual(state, cells))


# ---- a given rank, least squares


def alternate(problem: Observed, F: Any, budget: Budget, stage: str) -> State:
    """Alternate until the data are reproduced, or the loss does not fall any more."""
    tol = min(budget.tol, 0.05)  # stopped earlier, a fit looks as if something were amiss
    rules = [vanished(0.1 * budget.tol), change(tol), settled(max(1e-2, tol))]
    return budget.run(problem, F, Alternating(), rules, stage=stage).state


def least_squares(
    problem: Observed, cells: Cells, start: Bordered, rank: int, budget: Budget
) -> State:
    """Fit a rank: told nothing about κ, the noise, or how hard the sampling is."""
    return budget.step(
        "least squares",
        problem,
        lambda last, note: _least_squares(problem, cells, start, rank, budget),
    )


def _least_squares(
    problem: Observed, cells: Cells, start: Bordered, rank: int, budget: Budget
) -> State:
    def refits(problem: Any, F: Any, method: Any, max_iter: int, stop: StoppingRule) -> Result:
        return budget.apart().run(problem, F, method, [stop], max_iter, stage="growth")

    m, dof = cells.size, degrees(rank, cells.shape)
    best: State | None = None
    if m >= 2 * dof:

        def run(F: Any, stage: str = "repair") -> State:
            return alternate(problem, F, budget, stage)

        best = run(_beginning(problem, start, rank), "least squares")

        def amiss(state: State) -> bool:
            done = m < 3.5 * dof or _fits(state, budget) or budget.out_of_time
            return not done and structured(state, cells)

        wrong = amiss(best)
        for _ in range(3 if rank > 1 else 0):
            if not wrong:
                break
            again = run(without_weakest(best, run))
            if float(again.value) > 0.9 * float(best.value):
                break
            best, wrong = again, amiss(again)
        if wrong and not budget.out_of_time:
            # a spectrum over many decades is found from its top
            patient = grown(rank, Alternating(), start=start, tol=0.2, max_iter=8, run=refits)
            again = run(patient(problem), "grown")
            best = again if float(again.value) < float(best.value) else best
        if _fits(best, budget) or m >= 6 * dof or budget.out_of_time:
            return best
    few: list[StoppingRule] = [vanished(0.1 * budget.tol), stalled(1e-4)]
    for first_of in (grown(rank, start=start, run=refits), lambda p: _beginning(p, start, rank)):
        result = budget.run(problem, first_of(problem), ScaledLBFGS(), few, stage="few cells")
        if best is None or float(result.state.value) < float(best.value):
            best = result.state
        if _fits(best, budget) or budget.out_of_time:
            break
    assert best is not None
    return best


def _fits(state: State, budget: Budget) -> bool:
    """Whether the data are reproduced, or as well as was asked: there is no noise to speak of."""
    least = 1e-6 if epsilon(state.factors.blocks[0]) < 1e-10 else 1e-4
    least = max(least, 0.1 * budget.tol)
    return float(state.value) <= least**2 * float(state.problem.value_at_zero)


def _beginning(problem: Observed, start: Bordered, rank: int) -> Bordered:
    return bordered(spectral(rank, rounds=ROUNDS)(problem), start)


def without_weakest(state: State, run: Callable[[Any], State]) -> Any:
    """The weakest component gives way to what the residual of the others shows most."""
    F: Any = state.factors
    U, s, V = singular(F)
    return widened(run(with_part(F, U[:, :-1], s[:-1], V[:, :-1])), 1)


# ---- noise: the ridge, and the columns that the data support


def prune(state: State, cells: Cells, share: float = 0.5) -> State:
    """Without the columns that are small beside the noise."""
    F: Any = state.factors
    posterior = current(state)
    xp, r = array_namespace(F.L), F.rank
    if not r:
        return state
    size = xp.sqrt(xp.sum(F.L[:, :r] ** 2, axis=0) * xp.sum(F.R[:, :r] ** 2, axis=0))
    least = share * math.sqrt(posterior.noise * max(cells.shape) / cells.p)
    keep = np.asarray([float(x) > least for x in size])
    if keep.all():
        return state
    kept = [k for k in range(r) if keep[k]]
    columns: Any = tuple(kept + list(range(r, B.shape[1])) for B in F.blocks)
    chosen = tuple(B[:, c] for B, c in zip(F.blocks, columns, strict=True))
    smaller = F.with_blocks(chosen)
    memory = {**state.memory, "posterior": posterior.kept(columns)}
    fresh = state.again(smaller)  # type: ignore[misc]
    return replace(fresh, memory=memory)


def refine(
    problem: Observed,
    state: State,
    cells: Cells,
    budget: Budget,
    max_iter: int | None = None,
    tol: float = 0.0,
) -> State:
    """Let the data choose the ridge; cut what they do not support."""
    if "posterior" not in state.memory:
        state = state.again(canonical(state.factors))  # type: ignore

    def work(last: State | None, note: Callable[[State], None]) -> State:
        now = state if last is None else last
        while sum(B.shape[1] for B in now.factors.blocks):
            rules = [beside_residual(1e-3), change(max(tol, budget.tol)), _pruning(cells)]
            stage = "ridge" if now is state else "cut"
            result = budget.run(problem, now, Variational(), rules, max_iter, stage=stage)
            # noise alone makes singular values up to 1 of these units here, a signal that can
            # be seen at all begins at 2
            now = prune(result.state, cells, 1.1)
            smaller = now.factors.rank < result.factors.rank  # type: ignore[attr-defined]
            if not smaller or budget.out_of_time:
                break
            note(now)
        return now

    return budget.step("ridge", problem, work)


def _pruning(cells: Cells) -> StoppingRule:
    def rule(state: State, history: list[Record]) -> Stop | None:
        if "posterior" in state.memory and len(history) % 5 == 0:
            F: Any = state.factors
            if prune(state, cells).factors.rank < F.rank:  # type: ignore[attr-defined]
                return Stop("a column is explained by the noise")
        return None

    return rule


# ---- a rank that the data choose


@dataclass(frozen=True, eq=False)
class Path:
    """A fit that grew: where it stands, and how it did on held-out cells at every rank."""

    state: State
    problem: Observed
    cells: Cells
    ended: str = ""
    steps: tuple[tuple[int, float], ...] = ()
    best_rank: int = 0
    best_errors: Array = None

    @property
    def rank(self) -> int:
        return int(self.state.factors.rank)  # type: ignore[attr-defined]

    @property
    def best(self) -> float:
        return float(array_namespace(self.best_errors).mean(self.best_errors))


Judge = Callable[[Any], Array]


def begin(cells: Cells, start: Bordered, judge: Judge | None, budget: Budget) -> Path:
    """Offsets alone."""
    problem = cells.problem()
    state = problem.linearize(start)
    if start.L.shape[1] + start.R.shape[1]:
        rules = [change(1e-3)]
        state = budget.run(problem, state, Variational(), rules, 30, "offsets").state
    return _judged(Path(state, problem, cells), judge)


def _judged(path: Path, judge: Judge | None) -> Path:
    if judge is None:
        return path
    errors = judge(path.state.factors)
    mean = float(array_namespace(errors).mean(errors))
    steps = (*path.steps, (path.rank, mean))
    if path.best_errors is None or mean < path.best:
        return replace(path, steps=steps, best_rank=path.rank, best_errors=errors)
    return replace(path, steps=steps)


def grow(path: Path, cap: int, judge: Judge | None, budget: Budget, patience: int = 10) -> Path:
    """Add columns until noise explains what was added, or held-out cells get worse."""

    def shrink(path: Path) -> Any:
        errors = path.best_errors
        steps = tuple((rank, float(error)) for rank, error in path.steps)
        seen = {"steps": steps, "best_rank": path.best_rank, "best_errors": errors}
        return {"state": light(path.state), "ended": path.ended, **seen}

    def restore(kept: Any) -> Path:
        return replace(path, **{**kept, "state": revived(kept["state"], path.problem)})

    def work(last: Path | None, note: Callable[[Path], None]) -> Path:
        return _grow(path if last is None else last, cap, judge, budget, patience, note)

    grew: Path = budget.remember("growth", work, shrink, restore)
    return grew


def _grow(
    path: Path,
    cap: int,
    judge: Judge | None,
    budget: Budget,
    patience: int,
    note: Callable[[Path], None],
) -> Path:
    zero = 2 * float(path.problem.value_at_zero) / path.cells.size
    exact = 1e-14 if epsilon(path.state.factors.blocks[0]) < 1e-10 else 1e-8
    while path.rank < cap and not path.ended and not budget.out_of_time:
        before = path.rank
        state = widen(path.state, min(max(1, before // 10), cap - before))
        state = _few_sweeps(path.problem, state, budget)
        state = prune(state, path.cells)
        ended = ""
        if state.factors.rank <= before:  # type: ignore[attr-defined]
            state = _few_sweeps(path.problem, state, budget)
            ended = "what was added is explained by noise"
        elif current(state).noise < exact * zero:
            ended = "the residual vanished"
        path = _judged(replace(path, state=state, ended=ended), judge)
        recent = [error for _, error in path.steps[-patience:]]
        if len(path.steps) > patience and min(recent) > path.best and not path.ended:
            path = replace(path, ended="held-out cells got worse")
        note(path)
    return path


def _few_sweeps(problem: Observed, state: State, budget: Budget) -> State:
    F: Any = state.factors
    if not F.L.shape[1] + F.R.shape[1]:
        return state
    rules = [beside_residual(1e-2)]
    return budget.run(problem, state, Variational(), rules, 5, "growth").state


def widen(state: State, columns: int) -> State:
    """A state with more columns, from what the residual shows; beliefs about the others kept."""
    old: Any = state.factors
    posterior = current(state)
    F: Any = widened(state, columns)
    xp, r = array_namespace(F.L), old.rank
    first = Posterior.first(F, posterior.noise)

    def inserted(known: Array, new: Array, axis: int) -> Array:
        cut = [known[:r], new[r : r + columns], known[r:]]
        if axis:
            cut = [known[:, :r], new[:, r : r + columns], known[:, r:]]
        return xp.concat(cut, axis=axis)

    prior = tuple(inserted(a, b, 0) for a, b in zip(posterior.prior, first.prior, strict=True))
    variance = tuple(
        inserted(a, b, 1) for a, b in zip(posterior.variance, first.variance, strict=True)
    )
    wider = Posterior(posterior.noise, prior, variance, first.total)
    fresh = state.again(F)  # type: ignore[misc]
    return replace(fresh, memory={**state.memory, "posterior": wider})


CHOICES = (
    Choice(),
    Choice("both"),
    Choice("rows", "rows"),
    Choice("columns", "columns"),
)


def choose(
    cells: Cells,
    choices: tuple[Choice, ...],
    max_rank: int,
    rng: np.random.Generator,
    budget: Budget,
    quick: int = 10,
) -> tuple[Choice, int, list[dict[str, Any]]]:
    """Offsets, scales and the largest rank, on held-out cells.

    A tenth of the cells is held out, twice. Every choice grows to a rank of at most `quick`
    on the others; it is taken over an earlier, simpler one where its held-out errors are
    smaller by more than chance and by 3 %. The winner grows on, to see where it ends.
    """
    xp = array_namespace(cells.y)
    n1, n2 = cells.shape
    most = max(0, min(max_rank, min(n1, n2) - 1, cells.size // (n1 + n2)))
    pairs = held_out(cells, 0.1, rng, 2)
    trail: list[dict[str, Any]] = []
    if not pairs:
        return choices[0], most, trail
    best: Any = None
    budget.desk.about["trail"] = trail
    aside = budget.apart()
    for choice in choices:
        if best is not None and budget.out_of_time:
            break
        paths = []
        for fit, test in pairs:
            known = scales(fit, choice)
            judge = _judge(known, test)
            budget.desk.turn(choice=choice, scales=known)
            path = begin(known.apply(fit), empty(fit, choice, known), judge, aside)
            paths.append((grow(path, min(most, quick), judge, aside), judge, known))
        errors = xp.concat([path.best_errors for path, *_ in paths])
        trail += [
            {"center": choice.center, "scale": choice.scale, "rank": rank, "held_out": error}
            for rank, error in paths[0][0].steps
        ]
        mean = float(xp.mean(errors))
        log.info("center=%s, scale=%s: held-out %.3g", choice.center, choice.scale, mean)
        if best is not None:
            gain = best[1] - errors
            mean = float(xp.mean(gain))
            chance = 0.5 * float(xp.std(gain)) / math.sqrt(errors.shape[0])
            if mean <= max(chance, 0.03 * float(xp.mean(best[1]))):
                continue
        best = choice, errors, paths[0]
        budget.desk.best = paths[0][0].state, {"choice": choice, "scales": paths[0][2]}
    choice, _, (path, judge, known) = best
    budget.desk.turn(choice=choice, scales=known)
    seen = len(path.steps)
    path = grow(path, most, judge, aside)
    budget.desk.best = path.state, {"choice": choice, "scales": known}
    trail += [
        {"center": choice.center, "scale": choice.scale, "rank": rank, "held_out": error}
        for rank, error in path.steps[seen:]
    ]
    # held-out cells overrule what the fit itself says only where it ends clearly worse
    cap = path.best_rank if path.steps[-1][1] > 1.2 * path.best else most
    return choice, cap, trail


def _judge(known: Scales, test: Cells) -> Judge:
    """Squared errors on held-out cells, in the units of the data."""

    def judge(F: Any) -> Array:
        index = test.coordinates
        off = known.undo(F.gather(index), index) - test.flat
        return off * off if test.weight is None else off * off * test.weight

    return judge


# ---- a given rank


def fit_given(
    cells: Cells, start: Bordered, rank: int, budget: Budget, rng: np.random.Generator
) -> State:
    """A rank that was given, as an upper bound. The cells are scaled already.

    A start of that rank is gone on from; of rank 0, it says which offsets there are.
    """
    problem = cells.problem()
    rank = min(rank, *cells.shape)
    if start.rank:
        state = alternate(problem, start, budget, "warm start")
    elif cells.size < 1.3 * degrees(rank, cells.shape):
        return fit_few(cells, start, rank, budget, rng)
    else:
        state = least_squares(problem, cells, start, rank, budget)
    return believed(state, cells) if _fits(state, budget) else refine(problem, state, cells, budget)


def believed(state: State, cells: Cells) -> State:
    """A fit without noise: nothing to learn but that."""
    F = canonical(state.factors)  # type: ignore[arg-type]
    balanced = state.again(with_part(F, *singular(F)))  # type: ignore[misc]
    # below this a singular value is rounding
    noise = max(mean_square_residual(balanced, cells), 1e-20 * mean_square(state.problem))
    posterior = Posterior.first(balanced.factors, noise)
    return prune(replace(balanced, memory={"posterior": posterior}), cells)


def fit_few(
    cells: Cells, start: Bordered, cap: int, budget: Budget, rng: np.random.Generator
) -> State:
    """Fewer cells than a rank has degrees of freedom: held-out cells say how far to go."""
    fewer = [r for r in range(1, cap + 1) if cells.size >= 1.3 * degrees(r, cells.shape)]
    for rank in sorted({*fewer[:1], *fewer[-1:]}):
        # an exact fit of a smaller rank needs no held-out cells to speak for it
        state = least_squares(cells.problem(), cells, start, rank, budget)
        if _fits(state, budget):
            return believed(state, cells)
    for fit, test in held_out(cells, 0.1, rng, 1):
        judge = _judge(Scales(None, None), test)
        aside = budget.apart()
        cap = grow(begin(fit, start, judge, aside), cap, judge, aside).best_rank
    return fit_grown(cells, start, cap, budget)


def fit_grown(cells: Cells, start: Bordered, cap: int, budget: Budget) -> State:
    path = grow(begin(cells, start, None, budget), cap, None, budget)
    budget.converged, budget.status = True, path.ended or f"grown to rank {path.rank}"
    if not path.rank and cap and cells.size >= 1.3 * degrees(1, cells.shape):
        # from nothing, few cells look like noise: begin with a fit of rank 1
        state = least_squares(path.problem, cells, path.state.factors, 1, budget)  # type: ignore
        if _fits(state, budget):
            return believed(state, cells)
    return refine(path.problem, path.state, cells, budget)


# ---- whether to believe it


def doubtful(state: State, cells: Cells, budget: Budget) -> bool:
    """Whether a fit could be nothing but noise, or data that many models fit."""
    F: Any = state.factors
    if not F.rank:
        return False
    dof = degrees(F.rank, cells.shape)
    if cells.size < 1.3 * dof:
        return True
    if _fits(state, budget):
        return False
    return cells.size < 2 * dof or current(state).noise > 0.3 * mean_square(state.problem)


def _gain(
    fit: Cells, test: Cells, start: Bordered, cap: int, budget: Budget, last: Any, note: Any
) -> Array:
    """How much better than by offsets alone held-out cells are predicted."""
    judge, aside = _judge(Scales(None, None), test), budget.apart()
    path = begin(fit, start, None, aside)
    without = judge(path.state.factors)
    return without - judge(grow(path, cap, None, aside).state.factors)


def trusted(
    cells: Cells, start: Bordered, cap: int, rng: np.random.Generator, budget: Budget
) -> bool:
    """Whether held-out cells are predicted better than by offsets alone, by more than chance."""
    xp = array_namespace(cells.y)
    gains = []
    folds = max(1, min(5, math.ceil(ENOUGH / (0.1 * cells.size))))
    for fit, test in held_out(cells, 0.1, rng, folds):
        gains.append(budget.remember("gain", partial(_gain, fit, test, start, cap, budget)))
        if budget.out_of_time:
            break
    if not gains:
        return False
    gain = xp.concat(gains)
    if gain.shape[0] < 5:
        return False
    chance = 2 * float(xp.std(gain)) / math.sqrt(gain.shape[0])
    return float(xp.mean(gain)) > chance


def checked(
    state: State, cells: Cells, start: Bordered, rng: np.random.Generator, budget: Budget
) -> State:
    """The fit, or offsets alone where held-out cells do not speak for more."""
    F: Any = state.factors
    blank = with_part(start, *(x[..., :0] for x in singular(F)))
    if doubtful(state, cells, budget) and not trusted(cells, blank, F.rank, rng, budget):
        return begin(cells, blank, None, budget.apart()).state
    return state
