"""What workers do with one shard. All functions are pure: a lost result is computed again.

The first argument is the shard, then what the shard alone is sent (its rows of a block), then
what all shards are sent (the other block).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from ..ambient import Sparse
from ..estimators.observations import Measure, Summary
from ..estimators.uncertainty import Spread
from ..factors import Tucker
from ..kernels import RowSolution, RowUpdate, UnsureRows, backend
from ..linalg import square
from ..losses import Kept, Loss, Squared
from ..operators import BlockProblem
from .shards import Chain, Rows, Shard

Array = Any


class Own(NamedTuple):
    """A shard's own part of the factors: its rows of a block, and of the vector beside offsets."""

    x: Array
    border: Array | None


class Other(NamedTuple):
    """The part of the factors that all shards get: the block of the other mode, and its vector.

    Of a tensor, the block is a tuple of all other blocks.
    """

    block: Any
    border: Array | None


def factors_of(shard: Shard, own: Own, other: Other) -> Rows:
    return shard.restricted(own.x, other.block, own.border, other.border)


# ---- entries that are rejected


class Trim(NamedTuple):
    """A rule by which only entries count whose residual, at some factors, is within a limit.

    Shards are sent their rows of these factors besides. What is None is that of the factors that
    a task is about.
    """

    limit: float
    other: Other | None


def residual_of(shard: Shard, own: Own | None, other: Other | None, chain: Chain) -> Array:
    """What factors leave of the values, X − y; the values without factors."""
    y = shard.values(chain)
    if own is None or other is None:
        return y
    return shard.operator.residual(factors_of(shard, own, other), y)


def _kept(
    shard: Shard,
    own: Own | None,
    was: Own | None,
    other: Other | None,
    chain: Chain,
    trim: Trim,
) -> Array:
    """Which entries count."""
    mine, others = own if was is None else was, other if trim.other is None else trim.other
    r = residual_of(shard, mine, others, chain)
    return backend(r).within(r, trim.limit)[0]


def _loss(
    shard: Shard, own: Own, was: Own | None, other: Other, chain: Chain, trim: Trim | None
) -> Loss:
    return Squared() if trim is None else Kept(_kept(shard, own, was, other, chain, trim))


# ---- solving for rows


def squares(
    shard: Shard, own: Own, was: Own | None, other: Other, chain: Chain, trim: Trim | None
) -> Any:
    """Return the sum of squared residuals, of the entries that are kept."""
    y, F = shard.values(chain), factors_of(shard, own, other)
    if trim is not None:
        r = shard.operator.residual(F, y)
        return backend(r).kept_squares(r, _kept(shard, own, was, other, chain, trim))
    if shard.operator.fuses(F, y):
        return shard.operator.squares_and_gradient(F, y, shard.mode)[0]
    return square(shard.operator.residual(F, y))


def gradient(shard: Shard, own: Own, other: Other, chain: Chain) -> Array:
    """Return the gradient of half of that, by the rows of the shard."""
    y, F = shard.values(chain), factors_of(shard, own, other)
    return shard.operator.squares_and_gradient(F, y, shard.mode)[1]


def step(
    shard: Shard,
    own: Own,
    was: Own | None,
    ridge: Array | None,
    other: Other,
    chain: Chain,
    trim: Trim | None,
    spread: bool,
) -> RowSolution:
    """Return what the rows of the shard are to be moved by, backwards."""
    F, y = factors_of(shard, own, other), shard.values(chain)
    loss = _loss(shard, own, was, other, chain, trim)
    problem = BlockProblem(F, shard.mode, y, loss, ridge, spread=spread)
    return shard.operator.step_block(problem)


class Unsure(NamedTuple):
    """What all shards are sent of `UnsureRows`, besides the other block."""

    variance: Array
    ridge: Array
    noise: float
    given: Array | None


def update(
    shard: Shard,
    own: Own,
    was: Own | None,
    other: Other,
    unsure: Unsure,
    chain: Chain,
    trim: Trim | None,
) -> RowUpdate | None:
    """Return the solved rows of the shard, with their variances."""
    mode, F, y = shard.mode, factors_of(shard, own, other), shard.values(chain)
    assert not isinstance(F, Tucker)
    variance, ridge, noise, given = unsure
    beside = None if given is None else own.border
    system = UnsureRows(F.partner(mode), variance, ridge, noise, mode, beside, given)
    loss = _loss(shard, own, was, other, chain, trim)
    return shard.operator.update_block(BlockProblem(F, mode, y, loss), system)


def weighted(
    shard: Shard,
    own: Own | None,
    was: Own | None,
    other: Other | None,
    chain: Chain,
    trim: Trim | None,
    ones: bool,
) -> Sparse:
    """Return numbers at the entries; 0 for entries that are not kept.

    They are the residuals of factors, the values without factors, or ones.
    """
    found = shard.pattern.ones(shard.y) if ones else residual_of(shard, own, other, chain)
    if trim is not None:
        found = found * _kept(shard, own, was, other, chain, trim)
    return Sparse(shard.pattern, found)


def product(
    shard: Shard, own: Own | None, was: Own | None, matrices: tuple[Array, ...], *about: Any
) -> Array:
    """Return sums over the entries of every slice, of `weighted` times rows of matrices.

    There is a matrix for every other mode.
    """
    mode = shard.mode
    modes = (*matrices[:mode], matrices[0], *matrices[mode:])
    sums = weighted(shard, own, was, *about).contract(modes, skip=mode)
    return array_namespace(sums).moveaxis(sums, mode, 0)


def core_sums(
    shard: Shard,
    own: Own,
    was: Own | None,
    ask: tuple[Array, bool],
    factors: tuple[Array, ...],
    chain: Chain,
    trim: Trim | None,
) -> Array:
    """Return the gradient of half the squares of the residual by a core; rows only.

    Parameters
    ----------
    ask : (core, residual)
        Values count as zero unless it is the residual.
    factors : tuple of arrays
        Those of all modes but the first.
    """
    core, residual = ask
    F, operator = Tucker((own.x, *factors), core), shard.operator
    found = operator.residual(F, shard.values(chain)) if residual else operator.apply(F)
    if trim is not None:
        found = found * _kept(shard, None, was, None, chain, trim)
    return Sparse(shard.pattern, found).contract(F.modes)


def slice_squares(shard: Shard, own: Own | None, was: Own | None, *about: Any) -> Array:
    """Return the sum of squares of `weighted`, of every slice."""
    return weighted(shard, own, was, *about).squares(shard.mode)


def gram_times(
    shard: Shard, own: Own | None, was: Own | None, ask: tuple[int, Array], *about: Any
) -> Array:
    """Return M Mᵀ V for the unfolding M of `weighted` along another mode.

    All entries of a fibre of that mode are in one shard, so the sum over shards is that of the
    whole.
    """
    mode, V = ask
    return weighted(shard, own, was, *about).unfold(mode).gram_times(V)


# ---- rows that stay where they are


def step_kept(
    shard: Shard, own: Own, ridge: Array | None, other: Other, chain: Chain, spread: bool
) -> Any:
    """Return the solved rows of the shard and the diagonals of the inverses; both stay there."""
    found = step(shard, own, None, ridge, other, chain, None, spread)
    solved = own.x - found.step
    return ((solved, found.diagonal), found.total) if spread else ((solved,), None)


def update_kept(shard: Shard, own: Own, other: Other, unsure: Unsure, chain: Chain) -> Any:
    """Return the same with the variances of the rows; only sums are sent."""
    found = update(shard, own, None, other, unsure, chain, None)
    if found is None:
        return (own.x, own.x), None
    return (found.solved, found.variance), (found.total, found.moments, found.sums)


def gradient_kept(shard: Shard, own: Own, other: Other, chain: Chain) -> Any:
    """Return `gradient`, which stays."""
    return (gradient(shard, own, other, chain),), None


def product_kept(
    shard: Shard, own: Own | None, M: Array, other: Other | None, chain: Chain | None
) -> Any:
    """Return `product`, which stays."""
    about = (None, Chain(), None, True) if chain is None else (other, chain, None, False)
    return (product(shard, own, None, (M,), *about),), None


# ---- columns of which every shard of rows has some entries


class Ask(NamedTuple):
    """A range of columns, with their rows of the column factor."""

    first: int
    last: int
    x: Array | None = None
    border: Array | None = None


def _residual(shard: Shard, own: Own, ask: Ask, chain: Chain) -> tuple[Any, Array, Array]:
    """The entries of some columns, what factors leave of them, and the vectors of the rows."""
    found = shard.columns(ask.first, ask.last)
    y = shard.values(chain)[found.at].astype(np.float64)
    M, x = vectors(own, ask), np.asarray(ask.x, dtype=np.float64)
    left, right = [M], [x]
    if ask.border is not None:  # what rows have beside
        left.append(np.asarray(own.x[:, -1:], dtype=np.float64))
        right.append(np.asarray(ask.border[:, None], dtype=np.float64))
    modes = np.concatenate(left, axis=1), np.concatenate(right, axis=1)
    if not len(y):
        return found.shard.pattern, y, M
    return found.shard.pattern, found.shard.pattern.residual(modes, y), M


def vectors(own: Own, ask: Ask) -> Array:
    """Return what columns are multiplied by: rows of the factor, and of the vector beside."""
    M = own.x if ask.border is None else own.x[:, :-1]
    if own.border is not None:
        M = np.concatenate([M, own.border[:, None]], axis=1)
    return np.asarray(M, dtype=np.float64)


def _summed(pattern: Any, weights: Array, M: Array) -> Array:
    """Sums over the entries of columns, of weights times rows of M."""
    if not len(weights):
        return np.zeros((pattern.shape[1], M.shape[1]))
    return Sparse(pattern, weights).contract((M, M), skip=1).T


def column_products(
    shard: Shard, own: Own | None, M: Array, ask: Ask, chain: Chain | None
) -> Array:
    """Return `product` of some columns, as far as the shard knows."""
    if chain is None:
        pattern = shard.columns(ask.first, ask.last).shard.pattern
        size = shard.columns(ask.first, ask.last).shard.size
        return _summed(pattern, np.ones(size), np.asarray(M, dtype=np.float64))
    if own is None:
        found = shard.columns(ask.first, ask.last)
        y = shard.values(chain)[found.at].astype(np.float64)
        return _summed(found.shard.pattern, y, np.asarray(M, dtype=np.float64))
    pattern, left, _ = _residual(shard, own, ask, chain)
    return _summed(pattern, left, np.asarray(M, dtype=np.float64))


def column_gradient(shard: Shard, own: Own, ask: Ask, chain: Chain) -> Array:
    """Return `gradient` by some columns, as far as the shard knows."""
    pattern, left, M = _residual(shard, own, ask, chain)
    return _summed(pattern, left, M)


def column_systems(shard: Shard, own: Own, doubt: Array | None, ask: Ask, chain: Chain) -> Array:
    """Return the systems of some columns, as far as the shard knows; see `Systems`.

    Parameters
    ----------
    doubt : array of shape (slices, d), optional
        More numbers of every row, to be summed over the entries of each column.
    """
    pattern, left, M = _residual(shard, own, ask, chain)
    a, b = np.triu_indices(M.shape[1])
    table = [M[:, a] * M[:, b], np.ones((len(M), 1))]
    if doubt is not None:
        table.append(np.asarray(doubt, dtype=np.float64))
    ones = np.ones(len(left))
    sums = _summed(pattern, ones, np.concatenate(table, axis=1))
    squares = _summed(pattern, left * left, np.ones((len(M), 1)))
    return np.concatenate([sums, squares, _summed(pattern, left, M)], axis=1)


# ---- reductions


def along(shard: Shard, chain: Chain, name: str, arguments: tuple[Any, ...]) -> Array:
    """Return a number for every slice: a method of `Observations` that takes a mode."""
    return getattr(shard.local(chain), name)(shard.mode, *arguments)


def moments(shard: Shard, chain: Chain) -> tuple[int, float, float, float]:
    """Return the count, the sum and the sum of squares of the values, and the largest one."""
    y = shard.values(chain)
    xp = array_namespace(y)
    return len(y), float(xp.sum(y)), float(square(y)), float(xp.max(xp.abs(y)))


def summary(
    shard: Shard,
    own: Own,
    offset: Array | None,
    scale: Array | None,
    other: Other,
    sides: tuple[Any, Any],
    size: float,
    threshold: float | None,
    outliers: bool,
) -> Summary:
    """Return what a fit leaves of the entries; rows only.

    Parameters
    ----------
    sides : pair of tuples
        Offsets and scales of all other modes.
    """
    F = factors_of(shard, own, other)
    by = Measure((offset, *sides[0]), size, (scale, *sides[1]), threshold)
    found = shard.local(Chain()).summary(F, by)
    return found if outliers else replace(found, outliers=None)


def share_of_variance(
    shard: Shard,
    own: Own,
    ridge: Array,
    index: tuple[Array, Array],
    other: Other,
    chain: Chain,
    noise: float,
    limit: float | None,
) -> Array:
    """Return what the rows of the shard add to the variance of entries, over the noise."""
    F, mode = factors_of(shard, own, other), shard.mode
    if not len(index[0]):
        return shard.y[:0]
    data = shard.local(chain)
    data = data if limit is None else data.without_outliers(F, limit)
    return Spread(F, data, (ridge,) * len(shard.whole), noise).share(mode, index)
