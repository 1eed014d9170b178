"""What a model remembers of the data once the cluster has released them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
from scipy.sparse import coo_array

from ..estimators import validation
from ..estimators.constants import equal
from ..estimators.hashing import bounds_of, hashed
from ..estimators.local_observations import LocalObservations
from ..estimators.observations import Summary
from ..estimators.packing import packable
from ..estimators.plans import Reading
from ..estimators.robust_judging import only_slices
from ..estimators.uncertainty import Spread
from ..factors import Bordered, Tucker
from .shards import spread_out
from .sources import Source
from .workers import opened

Array = Any

SHARE = 1e-4
"""Share of the entries from which on it is remembered how often a value occurs.

A row of four equal values is a constant unless the value is so common that some row may have four
of it by chance; values below this share never are, for any number of rows below 10¹⁴."""

MOST = 20_000_000
"""Entries that may be fetched for intervals."""


@packable
@dataclass(frozen=True, eq=False)
class RememberedObservations:
    """Sizes and counts of entries that are elsewhere.

    Attributes
    ----------
    shape : (n1, n2)
    size : int
    kind : array of shape (0,)
        Of the dtype of the values.
    row_counts, column_counts : arrays of shapes (n1,) and (n2,)
    level : float
        The magnitude of the values.
    values, occurrences : arrays
        Values that are common, and how often they occur.
    places, constants, times : arrays
        Rows that have one value only: which, the value, and how often it occurs.
    parts : int
        Connected parts of the graph that joins rows and columns.
    left : tuple of float, optional
        What the fit leaves of the entries: the fields of a `Summary`.
    source : Source, optional
        Where the entries can be read again.
    held : tuple, optional
        Which of them were held out.
    more_counts : tuple of arrays
        Entries in every slice of the other modes of a tensor.
    wrong : tuple of arrays
        Coordinates of outliers, by mode, and by how much they are off; empty if none were looked
        for.
    """

    shape: tuple[int, ...]
    size: int
    kind: Array
    row_counts: Array
    column_counts: Array
    level: float
    values: Array
    occurrences: Array
    places: Array
    constants: Array
    times: Array
    parts: int
    left: tuple[float, ...] | None = None
    source: Source | None = None
    held: tuple[Any, ...] | None = None
    more_counts: tuple[Array, ...] = ()
    wrong: tuple[Array, ...] = ()

    index = None
    weight = None
    stamps = ()

    @classmethod
    def of(cls, data: Any, left: Summary, source: Source) -> RememberedObservations:
        """Return what is to be remembered of observations.

        Parameters
        ----------
        data : ShardedObservations
        left : Summary
            What the fit leaves of them.
        source : Source
        """
        value, count = data.equal(0)
        places = np.flatnonzero(count)
        values, occurrences = data.frequent(SHARE)
        return cls(
            data.shape,
            data.size,
            np.empty(0, dtype=data.dtype),
            data.counts(0),
            data.counts(1),
            data.magnitude(),
            values,
            occurrences,
            places,
            value[places],
            count[places],
            data.components(),
            (left.count, left.squares, left.mean_unit),
            source,
            data.choice,
            wrong=_entries_of(left),
        )

    @classmethod
    def of_tensor(cls, data: Any, left: Summary | None, source: Source) -> RememberedObservations:
        """Return what is to be remembered of the entries of a tensor."""
        first, second, *more = (data.counts(k) for k in range(len(data.shape)))
        none, numbers = np.empty(0, dtype=data.dtype), np.empty(0, dtype=np.int64)
        return cls(
            *(data.shape, data.size, none, first, second, data.magnitude()),
            *(none, numbers, numbers, none, numbers, data.components()),
            left=None if left is None else (left.count, left.squares, left.mean_unit),
            source=source,
            held=data.choice,
            more_counts=tuple(more),
            wrong=_entries_of(left),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "source": None}

    def without_source(self) -> RememberedObservations:
        """Return the same for a worker, which is not asked for entries."""
        return replace(self, source=None)

    @property
    def y(self) -> Array:
        return self.kind

    @property
    def example(self) -> Array:
        return self.kind

    @property
    def fraction(self) -> float:
        return self.size / math.prod(self.shape)

    def counts(self, mode: int) -> Array:
        """Return the number of entries in every slice of a mode."""
        return (self.row_counts, self.column_counts, *self.more_counts)[mode]

    def magnitude(self) -> float:
        """Return a power of two near the root mean square."""
        return self.level

    def components(self) -> int:
        """Return the number of connected parts."""
        return self.parts

    def equal(self, mode: int) -> tuple[Array, Array]:
        """Return the value of rows that have one only, and how often it occurs."""
        assert mode == 0
        value = np.zeros(self.shape[0], dtype=self.kind.dtype)
        count = np.zeros(self.shape[0], dtype=np.int64)
        value[self.places], count[self.places] = self.constants, self.times
        return value, count

    def common(self, values: Array) -> Array:
        """Return how often values occur; 0 if they are rare."""
        if not len(self.values):
            return np.zeros(len(values), dtype=np.int64)
        at = np.minimum(np.searchsorted(self.values, values), len(self.values) - 1)
        return np.where(self.values[at] == values, self.occurrences[at], 0)

    def forget(self) -> None:
        """Drop the caches: there are none."""

    def summary(self, *_: Any) -> Summary:
        """Return what the fit left of the entries."""
        assert self.left is not None
        if not self.wrong:
            return Summary(*self.left)
        *index, off = self.wrong
        outliers = coo_array((off, tuple(index)), shape=self.shape)
        return replace(Summary(*self.left), outliers=outliers)

    def validate(self) -> None:
        """Raise a FileError if it does not make sense."""
        n1, n2, *more = self.shape
        must, shaped = validation.must, validation.shaped
        must(isinstance(self.size, int) and self.size > 0, "the size of the data")
        must(self.kind.dtype in (np.float64, np.float32), "the type of the data")
        shaped(self.row_counts, (n1,), least=0)
        shaped(self.column_counts, (n2,), least=0)
        must(len(self.more_counts) == len(more), "counts")
        for counts, n in zip(self.more_counts, more, strict=True):
            shaped(counts, (n,), least=0)
        validation.number(self.level, least=0)
        for values, counts in ((self.values, self.occurrences), (self.constants, self.times)):
            shaped(values, (len(counts),))
            must(counts.dtype == np.int64 and bool(np.all(counts >= 0)), "counts")
        inside = self.places.dtype == np.int64 and self.places.shape == self.times.shape
        must(bool(inside and np.all((self.places >= 0) & (self.places < n1))), "places")
        given = isinstance(self.left, tuple) and len(self.left) == 3
        must(given or bool(more), "what a fit leaves")
        for x in self.left or ():
            validation.number(x, least=0)
        must(len(self.wrong) in (0, len(self.shape) + 1), "outliers")
        for i, n in zip(self.wrong, self.shape, strict=False):
            places = i.dtype.kind == "i" and i.shape == self.wrong[-1].shape
            must(bool(places and np.all((i >= 0) & (i < n))), "outliers")
        if self.wrong:
            shaped(self.wrong[-1], self.wrong[-1].shape[:1])
        must(self.source is None, "a source")

    def spread_of(self, model: Any) -> Spread:
        """Return how sure a model is; that reads entries again."""
        self._check_source()
        if model.posterior is None:
            raise NotImplementedError(
                'intervals of a fit on a cluster need the ridge that is learnt; set ridge="auto"'
            )
        data: Any = self
        reading = Reading(model.size, model.choice, model.scales, units=model.units)
        return _RememberedSpread(
            *(model.factors, data, (), model.noise, ()),
            posterior=model.posterior,
            reading=reading,
            threshold=model.threshold,
        )

    def _check_source(self) -> None:
        if self.source is None:
            raise ValueError(
                "intervals need the data of the fit, which a model that was fitted on a cluster "
                "does not hold and a saved or pickled one cannot find; ask before saving"
            )

    def total_weight(self, mode: int) -> Array:
        """Return the sums of the weights, which are ones."""
        return self.counts(mode)

    def shares_of_variance(
        self, F: Tucker, ridge: Array, noise: float, mode: int, index: tuple[Array, ...]
    ) -> Array:
        """Return what the rows of a mode of a tensor add to the variance of entries, over the
        noise; that reads entries again.
        """
        self._check_source()
        wanted, place = np.unique(index[mode], return_inverse=True)
        blocks, at = list(F.blocks), list(index)
        blocks[mode], at[mode] = blocks[mode][wanted], place
        local, ridges = self.slices(mode, wanted), (ridge,) * len(self.shape)
        return Spread(F.with_blocks(tuple(blocks)), local, ridges, noise).share(mode, tuple(at))

    def slices(self, mode: int, chosen: Array) -> LocalObservations:
        """Read the entries of some slices of a mode again, and renumber them."""
        counted = int(self.counts(mode)[chosen].sum())
        if counted > MOST:
            raise MemoryError(
                f"intervals at these coordinates need {counted:,} entries of the fit on this "
                "machine; ask for fewer rows and columns at a time"
            )
        assert self.source is not None
        with opened(None) as workers:
            i, j, y = self.source.some(workers, mode, chosen, unseen(self.held))
        index = i, *spread_out(j, self.shape[1:])
        return LocalObservations(index, y, self.shape).slices(mode, chosen)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotImplementedError(
            "this needs the data of the fit on this machine, but the model was fitted on a "
            "cluster, which has released them; fit what one machine can hold"
        )


def _entries_of(left: Summary | None) -> tuple[Array, ...]:
    """The outliers of a fit as arrays."""
    if left is None or left.outliers is None:
        return ()
    return *left.outliers.coords, left.outliers.data


def remembered_here(data: LocalObservations) -> RememberedObservations:
    """Return what is to be remembered of entries that are on this machine."""
    value, count = equal(data, 0)
    places = np.flatnonzero(count)
    values, counts = np.unique(data.flat, return_counts=True)
    many = counts >= SHARE * data.size
    return RememberedObservations(
        data.shape,
        data.size,
        np.empty(0, dtype=data.y.dtype),
        data.counts(0),
        data.counts(1),
        data.magnitude(),
        values[many],
        counts[many],
        places,
        value[places],
        count[places],
        data.components(),
    )


def unseen(held: tuple[Any, ...] | None) -> Callable[[tuple[Array, ...]], Array] | None:
    """Return a function that says which entries were held out of the fit."""
    return None if held is None else partial(_held, *held)


def _held(fraction: float, size: int, seed: int, index: tuple[Array, ...]) -> Array:
    low, high = bounds_of(fraction, size, 1)
    x = hashed(index, seed)
    return (x >= low) & (x < high)


@dataclass(frozen=True, eq=False)
class _RememberedSpread(Spread):
    """How sure a model is, from the entries of the rows and columns that are asked about.

    Attributes
    ----------
    posterior : Posterior
    reading : Reading
        How the entries were read.
    threshold : float, optional
        What is farther off is an outlier, and does not count.
    """

    posterior: Any = None
    reading: Any = None
    threshold: float | None = None

    def share(self, mode: int, index: tuple[Array, ...]) -> Array:
        F, data = self.factors, self.data
        if not self._width(mode):
            return 1 / (1 + data.counts(mode)[index[mode]])
        wanted, place = np.unique(index[mode], return_inverse=True)
        blocks, sides = list(F.blocks), [F.u, F.v]
        blocks[mode] = blocks[mode][wanted]
        sides[mode] = None if sides[mode] is None else sides[mode][wanted]
        some = Bordered(*blocks, *sides)
        if not data.counts(mode)[wanted].any():
            raise ValueError("none of these rows or columns has an entry to judge by")
        local = data.slices(mode, wanted)
        if self.threshold is not None:
            normal = only_slices(self.reading, mode, wanted).apply(local)
            local = normal.without_outliers(some, self.threshold)
        coverage = local.operator.coverage(local.weight, local.y)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ridge = self.posterior.ridge(some, mode, coverage)
        at = list(index)
        at[mode] = place
        return Spread(some, local, (ridge, ridge), self.noise).share(mode, tuple(at))

    def drawn(self, rng: Any) -> NoReturn:
        raise NotImplementedError(
            "sample needs the data of the fit on this machine; fit what one machine can hold"
        )
