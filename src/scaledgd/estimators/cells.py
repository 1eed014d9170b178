"""Observed cells of a matrix or a tensor, and what they say before anything is fitted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from .. import kernels
from ..linalg import square, unfold
from ..losses import Loss, Squared
from ..operators import Entries, Full, Operator, Weighted
from ..problems import Observed
from .packing import host, packable

Array = Any
Index = tuple[Array, ...]

_KEPT = ("_known", "_counts", "_typical", "_scaled")


@packable
@dataclass(frozen=True, eq=False)
class Cells:
    """Values at coordinates.

    Attributes
    ----------
    index : tuple of integer arrays of shape (m,), or None where every cell is observed
    y : array of shape (m,), or of the shape of the table where every cell is observed
    shape : tuple of int
    weight : array like y, optional
        Of mean 1.
    """

    index: Index | None
    y: Array
    shape: tuple[int, ...]
    weight: Array | None = None

    @property
    def size(self) -> int:
        return math.prod(self.y.shape)

    @property
    def parts(self) -> tuple[Any, ...]:
        """All that there is, to tell one from another."""
        return self.shape, self.index, self.y, self.weight

    @property
    def p(self) -> float:
        """The fraction observed."""
        return self.size / math.prod(self.shape)

    @property
    def coordinates(self) -> Index:
        """The coordinates of every observed cell, whether all are or not."""
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
        return array_namespace(self.y).reshape(self.y, (-1,))

    @cached_property
    def _known(self) -> dict[str, Any]:
        """What cells at the same places share."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in _KEPT}

    @property
    def places(self) -> Any:
        """The operator that sees these cells, each as much as any other."""
        if "places" not in self._known:
            whole = self.index is None
            self._known["places"] = Full(self.shape) if whole else Entries(self.index, self.shape)  # type: ignore[arg-type]
        return self._known["places"]

    def operator(self) -> Operator:
        if self.weight is None:
            return self.places  # type: ignore[no-any-return]
        return Weighted(self.places, array_namespace(self.y).sqrt(self.weight))

    def problem(self, loss: Loss | None = None, operator: Operator | None = None) -> Observed:
        """Recovery from these cells; rows of equal worth unless they are weighted."""
        operator = self.operator() if operator is None else operator
        y = self.y
        if isinstance(operator, Weighted):
            y = y * operator.root
        return Observed(operator, y, Squared() if loss is None else loss)

    def with_values(self, y: Array) -> Cells:
        """Other values at the same places."""
        other = replace(self, y=y)
        other.__dict__.update(_known=self._known, _counts=self._counts)
        return other

    def scaled(self, size: float) -> Cells:
        """The values divided by a power of two; kept for the next time, while a fit goes on."""
        if self.__dict__.get("_scaled", (None,))[0] != size:
            self.__dict__["_scaled"] = size, self.with_values(scaled_by(self.y, size))
        return self.__dict__["_scaled"][1]  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Let go of what was kept to save work."""
        for name in _KEPT:
            self.__dict__.pop(name, None)

    def some(self, chosen: Array) -> Cells:
        """The cells at some positions of the flattened data."""
        xp = array_namespace(self.y)
        index = tuple(xp.take(i, chosen) for i in self.coordinates)
        weight = None
        if self.weight is not None:
            weight = xp.take(xp.reshape(self.weight, (-1,)), chosen)
        return Cells(index, xp.take(self.flat, chosen), self.shape, weight)

    def stacked(self, other: Cells) -> Cells:
        """These cells and, below them along mode 0, those of another table."""
        xp, n = array_namespace(self.y), self.shape[0]
        shape = (n + other.shape[0], *self.shape[1:])
        weight = None
        if self.weight is not None:
            weight = xp.concat([xp.reshape(self.weight, (-1,)), xp.ones_like(other.flat)])
        if self.index is None and other.index is None and weight is None:
            return Cells(None, xp.concat([self.y, other.y]), shape)
        index = tuple(
            xp.concat([a, b + (n if k == 0 else 0)])
            for k, (a, b) in enumerate(zip(self.coordinates, other.coordinates, strict=True))
        )
        return Cells(index, xp.concat([self.flat, other.flat]), shape, weight)

    def slices(self, mode: int, chosen: Array) -> Cells:
        """The cells of some slices of a mode, which are numbered anew."""
        xp = array_namespace(self.y)
        shape = tuple(chosen.shape[0] if k == mode else n for k, n in enumerate(self.shape))
        if self.index is None:
            weight = None if self.weight is None else xp.take(self.weight, chosen, axis=mode)
            return Cells(None, xp.take(self.y, chosen, axis=mode), shape, weight)
        place = np.full(self.shape[mode], -1)
        place[host(chosen)] = np.arange(chosen.shape[0])
        position = xp.take(xp.asarray(place, device=device(self.y)), self.index[mode])
        inside = xp.nonzero(position >= 0)[0]
        some = self.some(inside)
        index = tuple(
            xp.take(position, inside) if k == mode else i for k, i in enumerate(some.coordinates)
        )
        return Cells(index, some.y, shape, some.weight)

    @cached_property
    def _counts(self) -> dict[int, Array]:
        return {}

    @cached_property
    def _typical(self) -> dict[float, float]:
        return {}

    def typical(self, quantile: float = 0.5) -> float:
        """The median of the magnitudes that are not zero, or another quantile."""
        if quantile not in self._typical:
            zeros = int(kernels.within(self.y, 0.0)[1])
            below = zeros + int(quantile * (self.size - zeros - 1))
            self._typical[quantile] = (
                float(kernels.kth_magnitude(self.y, self.size - below))
                if zeros < self.size
                else 0.0
            )
        return self._typical[quantile]

    def counts(self, mode: int) -> Array:
        """How many cells every slice of a mode has, as floats."""
        if mode not in self._counts:
            self._counts[mode] = self.sums(mode, None)
        return self._counts[mode]

    def sums(self, mode: int, values: Array | None) -> Array:
        """The sums of values, one per cell, over every slice of a mode; of ones without."""
        xp = array_namespace(self.y)
        if self.index is None:
            whole = xp.reshape(xp.ones_like(self.y) if values is None else values, self.shape)
            return xp.sum(whole, axis=tuple(k for k in range(len(self.shape)) if k != mode))
        return kernels.sums(self.index[mode], values, self.shape[mode], self.y)

    def along(self, mode: int, values: Array) -> Array:
        """One value per slice of a mode, for every cell, in the shape of y."""
        xp = array_namespace(self.y)
        if self.index is None:
            return xp.reshape(values, [-1 if k == mode else 1 for k in range(len(self.shape))])
        return xp.take(values, self.index[mode])


def medians(cells: Cells, size: Array, mode: int) -> Array:
    """The median of values over the cells of every slice of a mode; 0 where there are none."""
    xp = array_namespace(size)
    if cells.index is None and len(cells.shape) == 2:
        n = cells.shape[1 - mode]
        middle = kernels.kth_largest(size, n - (n - 1) // 2, 1 - mode)
        return xp.reshape(middle, (-1,))
    if cells.index is None:
        rows = unfold(size, mode)
        n = rows.shape[1]
        return kernels.kth_largest(rows, n - (n - 1) // 2, 1)[:, 0]
    return cells.places.pattern.medians(size, mode)


def magnitude(cells: Cells) -> float:
    """A power of two near the root mean square: dividing by it rounds nothing."""
    xp = array_namespace(cells.y)
    largest = float(xp.max(xp.abs(cells.y))) if cells.size else 0.0
    if largest == 0.0:
        return 1.0
    exponent = math.frexp(largest)[1]
    small = cells.y
    if abs(exponent) > 100:  # squares of these may not be numbers
        small = small * 2.0 ** (-exponent // 2) * 2.0 ** (-exponent - (-exponent // 2))
    rms = math.sqrt(float(square(small)) / cells.size)
    exponent = exponent if abs(exponent) > 100 else 0
    return math.ldexp(1.0, min(1023, max(-1021, exponent + math.frexp(rms)[1])))


def same_library(a: Cells, b: Cells) -> bool:
    return array_namespace(a.y) is array_namespace(b.y)


def scaled_by(y: Array, size: float) -> Array:
    """Divide y by a power of two that may be as large or small as numbers are."""
    if size == 1.0:
        return y
    if 1e-100 < size < 1e100:
        return y * (1 / size)
    half = 2.0 ** (math.frexp(size)[1] // 2)
    return y / half / (size / half)


def held_out(cells: Cells, fraction: float, rng: np.random.Generator, parts: int) -> list[Any]:
    """Pairs of cells to fit and cells to predict, the latter disjoint."""
    xp = array_namespace(cells.y)
    u = rng.random(cells.size)
    pairs = []
    for k in range(parts):
        hidden = (u >= fraction * k) & (u < fraction * (k + 1))
        fit, test = np.nonzero(~hidden)[0], np.nonzero(hidden)[0]
        if not len(fit) or not len(test):
            continue
        there = device(cells.y)
        pairs.append(
            (
                cells.some(xp.asarray(fit, device=there)),
                cells.some(xp.asarray(test, device=there)),
            )
        )
    return pairs


def split_cells(
    cells: Cells, fraction: float | None, rng: np.random.Generator, again: bool
) -> tuple[Cells, Cells | None]:
    """Cells to fit, and cells to calibrate with; of a few that are added there may be none."""
    if not fraction:
        return cells, None
    pairs = held_out(cells, fraction, rng, 1)
    if not pairs and again:
        return cells, None
    if not pairs:
        raise ValueError(
            f"calibrate={fraction:g} of {cells.size} observed entries leaves none to fit or none "
            "to calibrate with; observe more, or set calibrate=None"
        )
    return pairs[0]  # type: ignore[no-any-return]


def components(cells: Cells) -> int:
    """Connected parts of the graph that joins the slices that share a cell; empty ones left out."""
    if cells.index is None:
        return 1
    if "parts" not in cells._known:
        index = tuple(host(i) for i in cells.index)
        cells._known["parts"] = kernels.parts(index, cells.shape)
    return int(cells._known["parts"])
