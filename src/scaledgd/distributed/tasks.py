"""What workers do with one shard. All functions are pure: a lost result is computed again.

The first argument is the shard, then what the shard alone is sent (its rows of a block), then
what all shards are sent (the other block).
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ..ambient import Sparse
from ..estimators import constants
from ..estimators.hashing import bounds_of, hashed
from ..estimators.observations import Measure, Summary
from ..estimators.uncertainty import Spread
from ..factors import Tucker
from ..kernels import RowSolution, RowUpdate, UnsureRows, backend
from ..linalg import square
from ..losses import Kept, Loss, Squared
from ..operators import BlockProblem
from .shards import Chain, Rows, Shard

Array = Any

GROUPS = 1 << 16
"""Into which values are put to find those that are common."""
_GOLDEN = 0x9E3779B97F4A7C15


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


def fingerprint(shard: Shard) -> int:
    """Return a number that depends on the entries, but neither on their order nor on shards."""
    xp = array_namespace(shard.y)
    bits = xp.astype(shard.y, xp.float64).view(xp.int64)
    with np.errstate(over="ignore"):
        return int(xp.sum(hashed((*shard.places_in_whole, bits), 0))) & (2**63 - 1)


# ---- parts of the entries


def reach(shard: Shard, places: tuple[Array, ...], length: int) -> Array:
    """Count entries by the largest of their places, where the slices of every mode are ordered."""
    reached = _reached(_placed(shard, places))
    return array_namespace(reached).bincount(reached, minlength=length)


def _reached(placed: tuple[Array, ...]) -> Array:
    return reduce(array_namespace(*placed).maximum, placed)


def _placed(shard: Shard, places: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(place[i] for place, i in zip(places, shard.places_in_whole, strict=True))


def nearest(shard: Shard, places: tuple[Array, ...], last: int, chain: Chain) -> tuple[Array, ...]:
    """Return the entries all of whose places are below `last`, renumbered, and their values."""
    placed = _placed(shard, places)
    chosen = _reached(placed) < last
    return *(i[chosen] for i in placed), shard.values(chain)[chosen]


def entries(shard: Shard, chosen: Array | None, chain: Chain) -> tuple[Array, ...]:
    """Return coordinates and values, of some slices of the shard's mode or of all."""
    found = *shard.places_in_whole, shard.values(chain)
    if chosen is None:
        return found
    own = found[shard.mode]
    inside = array_namespace(own).isin(own, chosen)
    return tuple(x[inside] for x in found)


def hidden(shard: Shard, fraction: float, size: int, seed: int, parts: int, part: int) -> Array:
    """Return which entries are held out, by a hash of their coordinates."""
    low, high = bounds_of(fraction, size, parts)[part : part + 2]
    x = hashed(shard.places_in_whole, seed)
    return (x >= low) & (x < high)


def held(shard: Shard, chain: Chain, *choice: Any) -> tuple[Array, ...]:
    """Return the entries that are held out."""
    chosen = hidden(shard, *choice)
    return tuple(x[chosen] for x in entries(shard, None, chain))


def kept(shard: Shard, *choice: Any) -> Shard:
    """Return the shard without the entries that are held out."""
    return shard.some(~hidden(shard, *choice))


# ---- what constants and graphs need


def equal(shard: Shard, chain: Chain) -> tuple[Array, Array]:
    """Return a value of every slice, and how often it occurs if the slice has no other."""
    return constants.equal(shard.local(chain), shard.mode)


def common(shard: Shard, values: Array, chain: Chain) -> Array:
    """Return how often values occur."""
    return constants.common(shard.local(chain), values)


def frequent(shard: Shard, share: float, chain: Chain) -> Array:
    """Return the values that make up at least a share of the shard."""
    y = shard.values(chain) + 0  # both zeros become one
    # values are counted together with others first: mostly no group is large enough
    group = _group(y)
    many = np.bincount(group, minlength=GROUPS) >= share * len(y)
    values, counts = np.unique(y[many[group]], return_counts=True)
    return values[counts >= share * shard.size]


def _group(y: Array) -> Array:
    """The number of a group that all equal values are in."""
    kind, factor = (np.uint32, 2654435769) if y.dtype.itemsize == 4 else (np.uint64, _GOLDEN)
    bits = 8 * y.dtype.itemsize - GROUPS.bit_length() + 1
    return ((y.view(kind) * kind(factor)) >> kind(bits)).astype(np.intp)


def parts(shard: Shard) -> tuple[Array, Array]:
    """Return the connected part of every slice, and that of every other one, within the shard.

    Slices of several other modes follow each other. −1 where there are no entries.
    """
    n, width = shard.slices, sum(shard.sizes)
    others = [i + first for i, first in zip(shard.beside, _firsts(shard.sizes), strict=True)]
    seen = np.zeros(width, dtype=bool)
    for i in others:
        seen[i] = True
    index = shard.index
    if backend(*index).parts(index, shard.shape) == 1:  # which is soon seen
        found = np.zeros(n + width, dtype=np.int32)
    else:
        own, ends = np.tile(shard.own, len(others)), np.concatenate(others)
        ones = np.ones(len(own), dtype=np.int8)
        edges = coo_array((ones, (own, n + ends)), shape=(n + width, n + width))
        found = connected_components(edges.tocsr(), directed=False)[1]
    own = np.where(np.diff(shard.starts) > 0, found[:n], -1)
    return own, np.where(seen, found[n:], -1)


def _firsts(sizes: tuple[int, ...]) -> list[int]:
    return [0, *np.cumsum(sizes[:-1]).tolist()]


def extremes(shard: Shard, chain: Chain) -> tuple[float, float]:
    """Return the smallest and the largest value."""
    y = shard.values(chain)
    return float(y.min()), float(y.max())


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


def add(a: Any, b: Any) -> Any:
    """Return a sum, for trees."""
    return a + b


def of_shape(shard: Shard) -> tuple[int, int, int]:
    """Return the first slice, the number of slices and of entries."""
    return shard.first, shard.slices, shard.size
