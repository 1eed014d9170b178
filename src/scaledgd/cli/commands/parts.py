"""What workers do with the parts of long files: look at them, and fill them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...estimators.plausible import ColumnValues, Plausible
from ..fitted import Fitted
from ..writers.pictures import Picture

Array = Any
Names = tuple[str, str, str]
"""The columns of rows, columns and values."""

TOGETHER = 1_000_000
"""Cells, about, whose intervals are found at a time: their places are brought to one machine."""


# ---- looking


def surveyed(frame: Any, names: Names) -> tuple[list[int], int, Any]:
    """Return the lines of every part without a value, those with one, and means of columns."""
    import dask
    import pandas as pd

    found = dask.compute(*(dask.delayed(_counted)(part, names) for part in frame.to_delayed()))
    holes, entries = [one[0] for one in found], sum(one[1] for one in found)
    sums = [one[2] for one in found if one[2] is not None]
    if not sums:
        return holes, entries, None
    total = pd.concat(sums).groupby(level=0).sum()
    return holes, entries, total["sum"] / total["count"]


def _counted(part: Any, names: Names) -> tuple[int, int, Any]:
    """Count the lines of a part, and sum the values of every column."""
    import pandas as pd

    value = part[names[2]]
    sums = None
    if len(part) and pd.api.types.is_numeric_dtype(value):  # the fit says what else is wrong
        sums = value.groupby(part[names[1]].to_numpy()).agg(["sum", "count"])
    holes = int(value.isna().sum())
    return holes, len(part) - holes, sums


def looked_at(
    frame: Any, names: Names, model: Any, values: bool, picture: bool
) -> tuple[Plausible | None, Picture | None]:
    """Return what values the files hold, and a picture of them; None for what is not wanted."""
    import dask

    if not values and not picture:
        return None, None
    labels = dask.delayed(model._names, traverse=False)
    drawn = tuple(model._model.observations.shape) if picture else None
    seen, whole = ColumnValues(1), None if drawn is None else Picture(*drawn)
    for some, image in dask.compute(
        *(dask.delayed(_looked)(part, names, labels, drawn) for part in frame.to_delayed())
    ):
        seen.add(some)
        if whole is not None:
            whole.add(image)
    return seen.found() if values else None, whole


def _looked(
    part: Any, names: Names, labels: Any, shape: tuple[int, ...] | None
) -> tuple[ColumnValues, Picture | None]:
    values, seen = _numbers(part, names), ColumnValues(1)
    seen.add_rows(values[:, None])
    if shape is None:
        return seen, None
    picture, there = Picture(*shape), ~np.isnan(values)
    index = _places(part[there], names, labels)
    picture.add_cells(index, values[there])
    return seen, picture


def _numbers(part: Any, names: Names) -> Array:
    return part[names[2]].to_numpy(dtype=np.float64, na_value=np.nan)


def _places(part: Any, names: Names, labels: Any) -> tuple[Array, Array]:
    """The rows and columns of lines; −1 for those that are not known."""
    i, j = (side.numbers(part[name]) for side, name in zip(labels, names[:2], strict=True))
    return i, j


# ---- filling


@dataclass(frozen=True)
class Beside:
    """What is written beside estimates.

    Attributes
    ----------
    level : float, optional
        Of intervals.
    std : bool
    """

    level: float | None = None
    std: bool = False

    @property
    def titles(self) -> list[str]:
        bounds = [] if self.level is None else ["lower", "upper"]
        return [*bounds, *(["std"] if self.std else [])]


@dataclass(frozen=True, eq=False)
class Filling:
    """How a part is filled and where it is written.

    Attributes
    ----------
    names : tuple of str
    plausible : Plausible, optional
        What values there may be.
    rounded : bool
        Whether estimates get the digits of the values.
    clip : pair of numbers or None, optional
    folder : path
    """

    names: Names
    plausible: Plausible | None
    rounded: bool
    clip: tuple[float | None, float | None] | None
    folder: Path

    def values(self, new: Array) -> Array:
        """Return estimates as they are written."""
        if self.plausible is not None:
            new = self.plausible.values(new, 0, rounded=self.rounded)
        return new if self.clip is None else np.clip(new, *self.clip)

    def write(
        self, number: int, part: Any, index: tuple[Array, Array], new: Array, sides: Any
    ) -> tuple[set[Any], set[Any]]:
        """Write a part with its holes filled; return the labels that are not known."""
        value = self.names[2]
        at = np.flatnonzero(part[value].isna().to_numpy())
        wanted, sides = part.iloc[at], {} if sides is None else sides
        known = zip(self.names[:2], index, strict=True)
        unknown = [set(wanted[name][i < 0]) for name, i in known]
        columns = {}
        if len(at):
            columns[value] = _numbers(part, self.names).copy()
            columns[value][at] = self.values(new)
        for title, found in sides.items():
            columns[title] = np.full(len(part), np.nan)
            columns[title][at] = found
        path = self.folder / f"part-{number:05d}.parquet"
        part.assign(**columns).to_parquet(path, index=False)
        return unknown[0], unknown[1]


def write(
    frame: Any, holes: list[int], filling: Filling, fitted: Fitted, sure: Fitted, beside: Beside
) -> tuple[int, ...]:
    """Fill the lines without a value, and write all parts.

    Parameters
    ----------
    frame : dask frame
    holes : list of int
        The lines of every part without a value.
    filling : Filling
    fitted : Fitted
    sure : Fitted
        The same with the entries of the fit, for intervals.
    beside : Beside

    Returns
    -------
    unknown : pair of int
        Rows, and columns, that were never seen with a value.
    """
    from dask import compute, delayed

    from ...distributed.far import by_parts, is_far, with_typical
    from ...distributed.lazy import light

    parts, model = frame.to_delayed(), fitted.model
    labels, near = delayed(model._names, traverse=False), None
    if is_far(model):
        far = with_typical(model)
    else:
        near = delayed(Fitted(light(model), None, 0.0, (), None, False), traverse=False)
    plan = delayed(filling, traverse=False)
    unknown: tuple[set[Any], set[Any]] = set(), set()
    for first, last in _groups(holes) if beside.titles else [(0, len(parts))]:
        some = parts[first:last]
        asked = [delayed(_asked, nout=2)(part, filling.names, labels) for part in some]
        sides: list[Any] = [None] * len(some)
        if beside.titles:
            sides = _sides(compute(*asked), sure, filling.plausible, beside)
        if near is None:
            ends = model.factors_.shape
            pairs = [delayed(_or_typical, nout=2)(index, ends) for index in asked]
            values = by_parts(*far, [(pair[0], pair[1]) for pair in pairs])
        else:
            values = [delayed(_estimated)(near, index) for index in asked]
        lines = zip(range(first, last), some, asked, values, sides, strict=True)
        for rows, columns in compute(*(delayed(_written)(plan, *line) for line in lines)):
            unknown[0].update(rows)
            unknown[1].update(columns)
    return len(unknown[0]), len(unknown[1])


def _groups(holes: list[int]) -> Iterator[tuple[int, int]]:
    """Consecutive parts that lack few values together, or one part that lacks many."""
    first = total = 0
    for k, count in enumerate(holes):
        if k > first and total + count > TOGETHER:
            yield first, k
            first, total = k, 0
        total += count
    yield first, len(holes)


def _sides(
    asked: Any, sure: Fitted, plausible: Plausible | None, beside: Beside
) -> list[dict[str, Array]]:
    """What is written beside the estimates of some parts."""
    i, j = (np.concatenate([index[k] for index in asked]) for k in (0, 1))
    found = sure.sides((i, j), beside.level, beside.std, plausible)
    ends = np.cumsum([len(index[0]) for index in asked])[:-1]
    pieces = {title: np.split(x, ends) for title, x in found.items()}
    return [{title: x[k] for title, x in pieces.items()} for k in range(len(asked))]


def _asked(part: Any, names: Names, labels: Any) -> tuple[Array, Array]:
    """The rows and columns of what a part of the frame lacks."""
    return _places(part[part[names[2]].isna().to_numpy()], names, labels)


def _or_typical(index: tuple[Array, Array], ends: tuple[int, int]) -> tuple[Array, Array]:
    i, j = (np.where(x < 0, end, x) for x, end in zip(index, ends, strict=True))
    return i, j


def _estimated(fitted: Fitted, index: tuple[Array, Array]) -> Array:
    return fitted.at(*index) if len(index[0]) else np.zeros(0)


def _written(filling: Filling, *line: Any) -> tuple[set[Any], set[Any]]:
    return filling.write(*line)
