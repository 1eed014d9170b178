"""Observed entries in the memory of one machine or device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..ambient import Ambient
from ..factors import Bordered, Factors
from ..kernels import Cleaning, backend
from ..linalg import square
from ..losses import Kept, Loss, Squared
from ..operators import BlockProblem, Entries, Full, Operator, Weighted
from ..problems import Observed
from .holes import held_out, in_time
from .magnitudes import magnitude, scale_of, scaled_by, typical_of
from .observations import MULTIPLE, Measure, Model, Observations, Summary, position_of
from .ordering import ranks_by_value
from .packing import host, packable

Array = Any
Index = tuple[Array, ...]

PIECE = 500_000
"""Number of entries of the rows with outliers that are solved at a time."""

PIECE_ON_DEVICE = 2**28
"""The same on a device, which would mostly wait between small batches."""

FALL = 0.6
"""Largest share of a limit on residuals that remains after a round."""

STRETCH = 2**20
"""Number of entries that are processed at a time, if arrays of all would only take memory."""

MANY = 1_000_000
"""Entries from which on sweeps in single precision save more than casting them costs."""

ORDERED = 300_000
"""Entries above which rows and columns stay as they are; chance hardly matters with so many."""

_CACHES = ("_shared", "_counts", "_typical", "_scaled")


@packable
@dataclass(frozen=True, eq=False)
class LocalObservations(Observations):
    """Values at coordinates, in memory.

    Attributes
    ----------
    index : tuple of integer arrays of shape (m,), or None if every entry is observed
    y : array of shape (m,), or of the shape of the table if every entry is observed
    shape : tuple of int
    weight : array like y, optional
        Of mean 1.
    stamps : tuple of numpy arrays of shape (n_k,) or None, one per mode
        Times of the slices of a mode, in nanoseconds; empty if there are none.
    """

    index: Index | None
    y: Array
    shape: tuple[int, ...]
    weight: Array | None = None
    stamps: tuple[Any, ...] = ()

    @property
    def size(self) -> int:
        return math.prod(self.y.shape)

    @property
    def example(self) -> Array:
        return self.y

    @property
    def complete(self) -> bool:
        return self.index is None

    @property
    def identity(self) -> tuple[Any, ...]:
        """All arrays and numbers, for a fingerprint."""
        return self.shape, self.index, self.y, self.weight, self.stamps

    @property
    def coordinates(self) -> Index:
        """The coordinates of every observed entry, whether all are observed or not."""
        if self.index is not None:
            return self.index
        xp = array_namespace(self.y)
        flat = xp.arange(self.size, device=device(self.y))
        result = []
        for n in reversed(self.shape):
            result.append(flat % n)
            flat = flat // n
        return tuple(reversed(result))

    @property
    def flat(self) -> Array:
        """The values as a vector."""
        return array_namespace(self.y).reshape(self.y, (-1,))

    # ---- caches

    @cached_property
    def _shared(self) -> dict[str, Any]:
        """Caches that observations at the same coordinates share."""
        return {}

    @property
    def places(self) -> tuple[Any, ...]:
        if len(self.shape) != 2 or not 0 < self.size <= ORDERED:
            return ()
        if "places" not in self._shared:
            y = self.flat / self.magnitude()
            y = y / (math.sqrt(float(square(y)) / self.size) or 1.0)  # whatever the units
            self._shared["places"] = tuple(ranks_by_value(y, self.coordinates, self.shape))
        found: tuple[Any, ...] = self._shared["places"]
        return found

    @cached_property
    def _counts(self) -> dict[int, Array]:
        return {}

    @cached_property
    def _typical(self) -> dict[float, float]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in _CACHES}

    def forget(self) -> None:
        """Drop the caches."""
        for name in _CACHES:
            self.__dict__.pop(name, None)

    def owned(self) -> LocalObservations:
        if self.index is not None:
            return self  # entries are copied when they are read
        return self.with_values(array_namespace(self.y).asarray(self.y, copy=True))

    def rest(self) -> None:
        """Release what a fit needed and the rows of its model do not."""
        operator = self._shared.get("operator")
        if isinstance(operator, Entries):
            operator.pattern.rest()

    # ---- other values, and other entries

    def with_values(self, y: Array) -> LocalObservations:
        """Return other values at the same coordinates."""
        return self._sharing(replace(self, y=y))

    def _sharing(self, other: LocalObservations) -> LocalObservations:
        """Other values, or weights, at the same coordinates, which share the caches of these."""
        # the order is that of the values as they were given, in whatever units they are fitted
        _ = self.places
        other.__dict__.update(_shared=self._shared, _counts=self._counts)
        return other

    def listed(self) -> LocalObservations:
        """Return the entries of a complete table one by one, with their coordinates."""
        if self.index is not None or not isinstance(self.y, np.ndarray):
            return self
        weight = None if self.weight is None else np.reshape(self.weight, (-1,))
        return LocalObservations(self.coordinates, self.flat, self.shape, weight, self.stamps)

    def in_single(self) -> LocalObservations | None:
        double = isinstance(self.y, np.ndarray) and self.y.dtype == np.float64
        if not double or self.index is None or self.weight is not None or self.size < MANY:
            return None
        pattern = self.operator.pattern
        if not pattern.compiled:
            return None
        single = self.with_values(pattern.cast(self.y, np.float32))
        single.__dict__["_counts"] = {}
        return single

    def in_precision_of(self, like: Array) -> LocalObservations:
        """Return the values, and weights, in the precision of another array."""
        if self.y.dtype == like.dtype:
            return self
        xp = array_namespace(self.y)
        other = self.with_values(xp.astype(self.y, like.dtype))
        other.__dict__.pop("_counts", None)
        if self.weight is None:
            return other
        return replace(other, weight=xp.astype(self.weight, like.dtype))

    def on_host(self) -> LocalObservations:
        """Return the same in NumPy arrays, for small parts on which a device would mostly wait."""
        if isinstance(self.y, np.ndarray):
            return self
        index = None if self.index is None else tuple(map(host, self.index))
        weight = None if self.weight is None else host(self.weight)
        return LocalObservations(index, host(self.y), self.shape, weight, self.stamps)

    def scaled(self, size: float) -> LocalObservations:
        if self.__dict__.get("_scaled", (None,))[0] != size:
            self.__dict__["_scaled"] = size, self.with_values(scaled_by(self.y, size))
        found: LocalObservations = self.__dict__["_scaled"][1]
        return found

    def standardised(
        self, scales: tuple[Array | None, ...], mean: float = 0.0
    ) -> LocalObservations:
        y = self.y
        for mode, d in enumerate(scales):
            if d is not None:
                y = y / self.along(mode, d)
        return self.with_values(y - mean if mean else y)

    def shifted(self, offsets: tuple[Array | None, ...]) -> LocalObservations:
        y = self.y
        for mode, b in enumerate(offsets):
            if b is not None:
                y = y - self.along(mode, b)
        return self.with_values(y)

    def bounded(
        self, low: tuple[Array | None, ...], high: tuple[Array | None, ...]
    ) -> LocalObservations:
        """Return the values, cut at the bounds of their slices.

        Parameters
        ----------
        low, high : tuples of arrays or None, one per mode
        """
        xp, y = array_namespace(self.y), self.y
        for mode, (a, b) in enumerate(zip(low, high, strict=True)):
            if a is not None and b is not None:
                least, most = self.along(mode, a), self.along(mode, b)
                y = xp.where(y < least, least, xp.where(y > most, most, y))
        return self.with_values(y)

    def outside(self, low: tuple[Array | None, ...], high: tuple[Array | None, ...]) -> bool:
        """Return whether some value is outside of such bounds."""
        xp, y = array_namespace(self.y), self.y
        return any(
            not bool(xp.all((y >= self.along(k, a)) & (y <= self.along(k, b))))
            for k, (a, b) in enumerate(zip(low, high, strict=True))
            if a is not None and b is not None
        )

    def residual(self, factors: Model) -> LocalObservations:
        return self.with_values(self.y - self._values(factors))

    def some(self, chosen: Array) -> LocalObservations:
        """Return the entries at some positions of the flattened data."""
        xp = array_namespace(self.y)
        index = tuple(xp.take(i, chosen) for i in self.coordinates)
        weight = None
        if self.weight is not None:
            weight = xp.take(xp.reshape(self.weight, (-1,)), chosen)
        return LocalObservations(index, xp.take(self.flat, chosen), self.shape, weight, self.stamps)

    def without(self, places: Index) -> LocalObservations:
        """Return the entries without those at some coordinates; all, if none would be left."""
        flat = (
            np.ravel_multi_index(tuple(map(host, i)), self.shape)
            for i in (self.coordinates, places)
        )
        keep = np.flatnonzero(~np.isin(*flat))
        if not len(keep) or len(keep) == self.size:
            return self
        return self.some(array_namespace(self.y).asarray(keep, device=device(self.y)))

    def split(
        self, fraction: float, seed: int, parts: int = 1
    ) -> list[tuple[LocalObservations, LocalObservations]]:
        xp, pairs = array_namespace(self.y), []
        places = in_time(self.coordinates, self.stamps)
        for hidden in held_out(places, self.shape, fraction, seed, parts):
            fit, test = xp.nonzero(~hidden)[0], xp.nonzero(hidden)[0]
            if fit.shape[0] and test.shape[0]:
                pairs.append((self.some(fit), self.some(test)))
        return pairs

    def core(self, most: int, seed: int) -> LocalObservations:
        if self.size <= most:
            return self
        xp, places = array_namespace(self.y), self.by_counts(seed)

        def reaches() -> Iterator[tuple[int, Array]]:
            """Where pieces begin, and the largest position of their entries."""
            for part in self._stretches():
                pairs = zip(places, self.coordinates, strict=True)
                both = [xp.take(place, i[part]) for place, i in pairs]
                yield part.start, reduce(lambda a, b: xp.where(b > a, b, a), both)

        # number of entries within reach of every number
        counts = [backend(self.y).sums(r, None, max(self.shape), self.y) for _, r in reaches()]
        within = xp.cumulative_sum(xp.astype(sum(counts), xp.float64))
        last = max(2, int(xp.sum(xp.astype(within <= most, xp.int64))))
        chosen = xp.concat([begin + xp.nonzero(reach < last)[0] for begin, reach in reaches()])
        pairs = zip(places, self.coordinates, strict=True)
        index = tuple(xp.take(place, xp.take(i, chosen)) for place, i in pairs)
        shape = tuple(int(xp.max(i)) + 1 for i in index)
        return replace(self.some(chosen), index=index, shape=shape, stamps=())

    def sampled(self, mode: int, count: int, seed: int) -> LocalObservations:
        rng = np.random.default_rng(seed)
        chosen = np.sort(rng.choice(self.shape[mode], count, replace=False))
        return self.slices(mode, array_namespace(self.y).asarray(chosen, device=device(self.y)))

    def slices(self, mode: int, chosen: Array) -> LocalObservations:
        xp = array_namespace(self.y)
        shape = tuple(chosen.shape[0] if k == mode else n for k, n in enumerate(self.shape))
        stamps = tuple(
            known[host(chosen)] if k == mode and known is not None else known
            for k, known in enumerate(self.stamps)
        )
        if self.index is None:
            weight = None if self.weight is None else xp.take(self.weight, chosen, axis=mode)
            y = xp.take(self.y, chosen, axis=mode)
            return LocalObservations(None, y, shape, weight, stamps)
        place = np.full(self.shape[mode], -1)
        place[host(chosen)] = np.arange(chosen.shape[0])
        position = xp.take(xp.asarray(place, device=device(self.y)), self.index[mode])
        inside = xp.nonzero(position >= 0)[0]
        some = self.some(inside)
        index = tuple(
            xp.take(position, inside) if k == mode else i for k, i in enumerate(some.coordinates)
        )
        return LocalObservations(index, some.y, shape, some.weight, stamps)

    def stacked(self, other: LocalObservations) -> LocalObservations:
        xp, n = array_namespace(self.y), self.shape[0]
        shape = (n + other.shape[0], *self.shape[1:])
        weight = None
        if self.weight is not None:
            weight = xp.concat([xp.reshape(self.weight, (-1,)), xp.ones_like(other.flat)])
        stamps = self._stacked_stamps(other)
        if self.index is None and other.index is None and weight is None:
            return LocalObservations(None, xp.concat([self.y, other.y]), shape, None, stamps)
        index = tuple(
            xp.concat([a, b + (n if k == 0 else 0)])
            for k, (a, b) in enumerate(zip(self.coordinates, other.coordinates, strict=True))
        )
        return LocalObservations(index, xp.concat([self.flat, other.flat]), shape, weight, stamps)

    def _stacked_stamps(self, other: LocalObservations) -> tuple[Any, ...]:
        """The stamps of both, one below the other; none for mode 0 if one of them has none."""
        if not self.stamps:
            return ()
        first = None
        if other.stamps and self.stamps[0] is not None and other.stamps[0] is not None:
            first = np.concatenate([self.stamps[0], other.stamps[0]])
        return (first, *self.stamps[1:])

    # ---- reductions

    def counts(self, mode: int) -> Array:
        if mode not in self._counts:
            self._counts[mode] = self._sums(mode, None)
        return self._counts[mode]

    def total_weight(self, mode: int) -> Array:
        """Return the sum of the weights in every slice of a mode; counts if there are none."""
        if self.weight is None:
            return self.counts(mode)
        return self._sums(mode, array_namespace(self.y).reshape(self.weight, (-1,)))

    def means(self, mode: int, extra: float = 0.0) -> Array:
        xp, n = array_namespace(self.y), self.counts(mode)
        n = n + extra if extra else xp.where(n > 0, n, xp.ones_like(n))
        return self._sums(mode, self.flat) / n

    def medians(self, mode: int) -> Array:
        return self._medians(self.y, mode)

    def spreads(self, mode: int) -> tuple[Array, Array]:
        """Return the medians of all slices of a mode, and the median distances to them."""
        found: tuple[Array, Array] | None = self.operator.rows(self.y).spreads(self.y, mode)
        if found is not None:
            return found
        xp, middle = array_namespace(self.y), self.medians(mode)
        return middle, self._medians(xp.abs(self.y - self.along(mode, middle)), mode)

    def squares(self, mode: int, robust: bool = False) -> Array:
        xp = array_namespace(self.y)
        if robust and self.size:
            return self.counts(mode) * (1.4826 * self.spreads(mode)[1]) ** 2
        if self.index is not None and self.size and self.operator.pattern.compiled:
            return self.operator.pattern.moments(self.y, mode)[1]
        means = self.means(mode)
        squares = xp.zeros_like(means)
        if self.index is None or len(self._stretches()) < 2:
            off = self.y - self.along(mode, means)
            return self._sums(mode, xp.reshape(off * off, (-1,)))
        for rows, y in self.stretches(mode):
            off = y - xp.take(means, rows)
            squares = squares + backend(y).sums(rows, off * off, self.shape[mode], y)
        return squares

    def stretches(self, mode: int) -> Iterator[tuple[Array, Array]]:
        """Yield the coordinates of a mode and the values, in batches."""
        for part in self._stretches():
            yield self.coordinates[mode][part], self.flat[part]

    def _stretches(self) -> list[slice]:
        """The batches of entries; a single one on a device, which waits between batches."""
        each = STRETCH if isinstance(self.y, np.ndarray) else max(1, self.size)
        return [slice(begin, begin + each) for begin in range(0, self.size, each)]

    @property
    def constant(self) -> bool:
        return bool(array_namespace(self.y).all(self.flat == self.flat[0]))

    def mean(self) -> float:
        return float(array_namespace(self.y).mean(self.y))

    def mean_square(self) -> float:
        return float(array_namespace(self.y).mean(self.y * self.y))

    def magnitude(self) -> float:
        return magnitude(self.y)

    def typical(self, quantile: float = 0.5) -> float:
        if quantile not in self._typical:
            self._typical[quantile] = typical_of(self.y, quantile)
        return self._typical[quantile]

    def components(self) -> int:
        if self.index is None:
            return 1
        if "components" not in self._shared:
            self._shared["components"] = self.operator.pattern.parts()
        return int(self._shared["components"])

    def component_labels(self) -> list[Any]:
        index = self.coordinates
        return [host(labels) for labels in backend(*index).labels(index, self.shape)]

    # ---- problems

    @property
    def operator(self) -> Any:
        """The unweighted operator (`Full` or `Entries`) that observes these entries."""
        if "operator" not in self._shared:
            self._shared["operator"] = (
                Full(self.shape) if self.index is None else Entries(self.index, self.shape)
            )
        return self._shared["operator"]

    @property
    def weighted_operator(self) -> Operator:
        """The operator with the square roots of the weights, if there are any."""
        if self.weight is None:
            plain: Operator = self.operator
            return plain
        return Weighted(self.operator, array_namespace(self.y).sqrt(self.weight))

    def problem(self, loss: Loss | None = None) -> Observed:
        operator = self.weighted_operator
        y = self.y * operator.root if isinstance(operator, Weighted) else self.y
        return Observed(operator, y, Squared() if loss is None else loss)

    # ---- reductions of a residual

    def squared_errors(self, factors: Model, scales: Any = None) -> Array:
        index = self.coordinates
        estimate = factors.gather(index)
        off = (estimate if scales is None else scales.undo(estimate, index)) - self.flat
        if self.weight is None:
            return off * off
        return off * off * array_namespace(off).reshape(self.weight, (-1,))

    def residual_scale(self, factors: Model) -> float:
        return scale_of(self._weighted_residual(factors))

    def residual_quantile(self, factors: Model, fraction: float) -> float:
        r = self._weighted_residual(factors)
        return float(backend(r).kth_magnitude(r, position_of(fraction, self.size)))

    def within(self, factors: Model, limit: float) -> int:
        r = self._weighted_residual(factors)
        return int(backend(r).within(r, limit)[1])

    def rejected(self, factors: Model, limit: float) -> tuple[float, list[Array]]:
        xp, r = array_namespace(self.y), self._weighted_residual(factors)
        kept, count, *_ = backend(r).within(r, limit)
        shares = []
        for mode in range(len(self.shape)):
            n = self.counts(mode)
            share = 1 - self.number(mode, kept) / xp.where(n > 0, n, xp.ones_like(n))
            shares.append(xp.where(n > 0, share, xp.zeros_like(n)))
        return 1 - int(count) / self.size, shares

    def clean_residual(self, factors: Model) -> tuple[Ambient, float, float]:
        xp, whole = array_namespace(self.y), math.prod(self.shape)
        r = self._weighted_residual(factors)
        keep, kept, squares, _ = backend(r).within(r, MULTIPLE * scale_of(r))
        W = xp.where(keep, r, xp.zeros_like(r[:1, ...]))
        rms = math.sqrt(float(squares) / whole)
        return self.weighted_operator.adjoint(W), rms, int(kept) / whole

    def rows_without_outliers(
        self,
        factors: Model,
        mode: int,
        floor: float,
        ridge: Array | None = None,
        rounds: int = 40,
    ) -> Any:
        xp = array_namespace(self.y)
        multiple = MULTIPLE * 1.4826
        if self.index is None and self.weight is None and mode == 0 and factors.alone(0):
            system = BlockProblem(factors, 0, self.y, Squared(), ridge).row_system
            cleaning = Cleaning(multiple, FALL, float(floor), rounds)
            rows = self.operator.rows(self.y)
            found = None if system is None else rows.cleaned_rows(system, self.y, cleaning)
            if found is not None:
                return factors.with_blocks((found, *factors.blocks[1:]))
        large = self.index is None and self.size > self._piece and self.shape[0] > 1
        if mode == 0 and large and isinstance(factors, Bordered):
            return self._rows_in_pieces(factors, floor, ridge, rounds)
        F: Factors = factors.with_blocks(
            tuple(0 * B if k == mode else B for k, B in enumerate(factors.blocks))
        )
        problem = self.problem()
        operator, y = problem.operator, problem.y
        limit: Any = None
        kept: Any = None
        for _ in range(rounds):
            residual = operator.residual(F, y)
            size = xp.abs(residual)
            fallen = limit is not None and bool(xp.all(limit <= floor))
            if not fallen:
                scale = multiple * self._medians(size, mode)
                # the limit always falls, because outliers on one side can keep the scale of a row
                # large
                less = (
                    scale if limit is None else xp.where(scale < FALL * limit, scale, FALL * limit)
                )
                limit = xp.where(less > floor, less, floor + 0 * less)
            now = size <= self.along(mode, limit)
            if kept is not None and bool(xp.all(limit <= floor)) and bool(xp.all(now == kept)):
                break
            kept = now
            rows = BlockProblem(F, mode, y, Kept(now), ridge, residual=residual)
            F = F.moved(mode, -operator.exact_step(rows))
        return F

    @property
    def _piece(self) -> int:
        """Number of entries of a table that are processed at a time."""
        return PIECE if isinstance(self.y, np.ndarray) else PIECE_ON_DEVICE

    def _rows_in_pieces(
        self, F: Bordered, floor: float, ridge: Array | None, rounds: int
    ) -> Bordered:
        """Solve for some rows at a time: the residuals of all would take several times the data."""
        xp, n = array_namespace(self.y), self.shape[0]
        each, found = max(1, n * self._piece // self.size), []
        for a in range(0, n, each):
            here = slice(a, min(n, a + each))
            weight = None if self.weight is None else self.weight[here, ...]
            y = self.y[here, ...]
            part = LocalObservations(None, y, (y.shape[0], *self.shape[1:]), weight)
            rows = replace(F, L=F.L[here, :], u=None if F.u is None else F.u[here])
            own = ridge[here, :] if ridge is not None and ridge.shape == F.L.shape else ridge
            found.append(part.rows_without_outliers(rows, 0, floor, own, rounds).L)
        return replace(F, L=xp.concat(found, axis=0))

    # ---- per-entry arrays

    def _values(self, factors: Model) -> Array:
        """The values of a model at the entries, in the shape of y."""
        return factors.full() if self.index is None else factors.gather(self.index)

    def _weighted_residual(self, factors: Model) -> Array:
        problem = self.problem()
        return problem.operator.residual(factors, problem.y)

    def dense(self) -> tuple[Array, Array]:
        """Return values as a dense array in double precision, and the weight of each.

        Both are zero where nothing is observed.
        """
        xp, index = array_namespace(self.y), self.coordinates
        values = xp.zeros(self.shape, dtype=xp.float64, device=device(self.y))
        counts = xp.zeros_like(values)
        values[index] = xp.astype(self.flat, xp.float64)
        counts[index] = 1.0
        if self.weight is not None:
            counts[index] = xp.astype(xp.reshape(self.weight, (-1,)), xp.float64)
        return values, counts

    def _sums(self, mode: int, values: Array | None) -> Array:
        """Sums of values, one per entry, over every slice of a mode; of ones if None."""
        xp = array_namespace(self.y)
        if self.index is None:
            if values is None:
                one = xp.ones((self.shape[mode],), dtype=self.y.dtype, device=device(self.y))
                return one * float(self.size // self.shape[mode])
            others = tuple(k for k in range(len(self.shape)) if k != mode)
            return xp.sum(xp.reshape(values, self.shape), axis=others)
        if not self.size:  # an operator needs at least one entry
            return backend(self.y).sums(self.index[mode], values, self.shape[mode], self.y)
        return self.operator.pattern.sums(values, mode, self.y)

    def number(self, mode: int, chosen: Array) -> Array:
        """How many entries of every slice of a mode are chosen by a boolean array."""
        xp = array_namespace(self.y)
        if self.index is None:
            others = tuple(k for k in range(len(self.shape)) if k != mode)
            number = xp.sum(xp.reshape(chosen, self.shape), axis=others)
            return xp.astype(number, self.y.dtype)
        return self._sums(mode, xp.reshape(xp.astype(chosen, self.y.dtype), (-1,)))

    def along(self, mode: int, values: Array) -> Array:
        """One value per slice of a mode, repeated for every entry, in the shape of y."""
        xp = array_namespace(self.y)
        if self.index is None:
            return xp.reshape(values, [-1 if k == mode else 1 for k in range(len(self.shape))])
        return xp.take(values, self.index[mode])

    def _medians(self, values: Array, mode: int) -> Array:
        """Medians of values, in the shape of y, over every slice of a mode; 0 if empty."""
        return self.operator.rows(values).medians(values, mode)

    # ---- what remains after a fit

    def summary(self, estimate: Model, by: Measure) -> Summary:
        """Return the residual statistics and outliers of a fit."""
        xp, threshold = array_namespace(self.y), by.threshold
        r = self.operator.residual(estimate, self.y)  # the estimate minus the data
        for mode, b in enumerate(by.offsets):
            r = r if b is None else r + self.along(mode, b)
        r = xp.reshape(r, (-1,))
        unit: Any = by.size
        for mode, d in enumerate(by.scales):
            if d is not None:
                unit = unit * xp.reshape(self.along(mode, d) + 0 * self.y, (-1,))
        # a single unit divides sums; an array would be as large as the data
        plain = isinstance(unit, float) and 1e-100 < unit < 1e100
        scaled, whole = (r, unit) if plain else (r / unit, 1.0)
        if self.weight is not None:
            scaled = scaled * xp.sqrt(xp.reshape(self.weight, (-1,)))
        mean_unit = unit * unit if isinstance(unit, float) else float(xp.mean(unit * unit))
        if threshold is None:
            return Summary(float(r.shape[0]), float(square(scaled)) / whole**2, mean_unit)
        kept, inside, sums, _ = backend(scaled).within(scaled, threshold * whole)
        sums = float(sums) / whole**2
        if by.limits is not None:
            reach = xp.reshape(self.along(1, by.limits) + 0 * self.y, (-1,))
            kept = xp.abs(scaled) <= reach * whole
        found = -self.sparse(r, ~kept)
        scale = scale_of(scaled) / whole if by.robust_scale else None
        return Summary(float(inside), float(sums), mean_unit, found, scale)

    def sparse(self, values: Array, chosen: Array) -> Any:
        """Return the values of the chosen entries as a SciPy sparse array."""
        from scipy.sparse import coo_array

        where = array_namespace(chosen).nonzero(chosen)[0]
        values = host(array_namespace(values).take(values, where))
        if self.index is None:
            index: Any = np.unravel_index(host(where), self.shape)
        else:
            index = tuple(host(array_namespace(i).take(i, where)) for i in self.index)
        return coo_array((values, index), shape=self.shape)

    def without_outliers(self, factors: Model, threshold: float | None) -> LocalObservations:
        """Return the entries with weights, which are 0 for outliers."""
        xp = array_namespace(self.y)
        weight = xp.ones_like(self.y) if self.weight is None else self.weight
        if threshold is not None:
            off = xp.abs(self.operator.residual(factors, self.y)) * xp.sqrt(weight)
            weight = xp.where(off > threshold, xp.zeros_like(off), weight)
        return self._sharing(replace(self, weight=weight))
