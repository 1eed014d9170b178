"""Times of rows and columns: read from labels, checked, and turned into steps and waves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..temporal.prior import Times
from .labels import Labels
from .packing import packable

Stamps = tuple[Any, ...]

DAY = 86400.0
NANO = 1_000_000_000
"""Nanoseconds in a second. Times are integers, because seconds since 1970 round to a quarter of
a microsecond."""

CENTURIES = 291
"""Number of years before and after 1970 that 64 bits of nanoseconds cover."""

MISSING = np.iinfo(np.int64).min
"""An unknown time, as in NumPy."""

PERIODS = (DAY, 7 * DAY, 365.2425 * DAY)
"""A day, a week and a year, in seconds."""

WAVES = 4
"""Waves per period: the period itself and its fractions."""

REPEATED = 2.5
"""Number of repetitions that a period needs."""


def stamps_of(labels: Labels | None, shape: tuple[int, ...]) -> Stamps:
    """Return the times that label the slices of every mode, in nanoseconds; empty if none do.

    Parameters
    ----------
    labels : Labels, optional
    shape : tuple of int
    """
    if labels is None:
        return ()
    if labels.kind == "xarray":
        coords = (labels.coords.get(name, ((), None)) for name in labels.names)
        found = [
            _nanoseconds(values) if dims == (name,) else None
            for name, (dims, values) in zip(labels.names, coords, strict=True)
        ]
    else:
        rows, columns = labels.exact if labels.exact is not None else (None, None)
        if rows is None and "index" in labels.coords:
            rows = labels.coords["index"][1]
        found = [_nanoseconds(rows), _nanoseconds(columns)]
    fitting = [
        s if s is not None and s.shape == (n,) else None for s, n in zip(found, shape, strict=True)
    ]
    return tuple(fitting) if any(s is not None for s in fitting) else ()


def _nanoseconds(values: Any) -> Any:
    """Times as integers, `MISSING` where there is none; None if the values are not times."""
    if values is None:
        return None
    if hasattr(values, "to_timestamp") and not hasattr(values, "tz"):
        values = values.to_timestamp()  # periods of pandas
    if getattr(values, "tz", None) is not None:
        values = values.tz_convert("UTC").tz_localize(None)
    values = np.asarray(values)
    if values.dtype.kind not in "mM" or values.ndim != 1:
        return None
    years = values[~np.isnat(values)].astype(f"{values.dtype.kind}8[Y]").astype(np.int64)
    if years.size and np.abs(years).max() > CENTURIES:
        return None  # beyond the range of nanoseconds
    whole = values.astype(f"{'datetime64' if values.dtype.kind == 'M' else 'timedelta64'}[ns]")
    return whole.astype(np.int64)


def _distances(stamps: Any) -> Any:
    """Distances between sorted times; centuries exceed a signed integer."""
    return np.diff(stamps).view(np.uint64)


def of_seconds(seconds: Any) -> Any:
    """Return times from seconds, where NaN means none."""
    known = np.isfinite(seconds)
    # whole seconds separately, because floating-point numbers would round the rest
    whole = np.where(known, np.floor(seconds), 0.0)
    rest = np.where(known, seconds, 0.0) - whole
    found = whole.astype(np.int64) * NANO + np.rint(rest * NANO).astype(np.int64)
    return np.where(known, found, MISSING)


def check_stamps(stamps: Any, mode: int = 0) -> None:
    """Require times that are not missing and differ from each other.

    Parameters
    ----------
    stamps : integer array of shape (T,)
    mode : int
        What they label: rows or columns.
    """
    side = ("row", "column")[mode]
    missing = np.flatnonzero(stamps == MISSING)
    if len(missing):
        raise ValueError(
            f"the time of {side} {missing[0]} is missing ({len(missing)} in all); give it one, "
            f'drop the {side}, or set smooth="none"'
        )
    order = np.argsort(stamps, kind="stable")
    same = np.flatnonzero(np.diff(stamps[order]) == 0)
    if len(same):
        k = int(same[0])
        when = np.datetime64(int(stamps[order[k]]), "ns")
        when = when.astype("datetime64[ms]") if int(stamps[order[k]]) % 1_000_000 == 0 else when
        raise ValueError(
            f"the time {when} labels more than one {side}, {order[k]} and {order[k + 1]} "
            f"({len(same)} repeated in all); drop or average repeated ones, or set "
            'smooth="none"'
        )


@packable
@dataclass(frozen=True)
class Clock:
    """How times are measured.

    Attributes
    ----------
    step : float
        The typical distance between neighbours, in seconds; 0 if rows have no times and are equally
        spaced.
    periods : tuple of float
        Periods that may repeat, in seconds.
    """

    step: float = 0.0
    periods: tuple[float, ...] = ()

    @classmethod
    def of(cls, stamps: Any) -> Clock:
        """Return the clock of times, or of rows without any."""
        if stamps is None or len(stamps) < 2:
            return cls()
        order = np.sort(stamps)
        step = float(np.median(_distances(order))) / NANO
        span = (float(order[-1]) - float(order[0])) / NANO
        periods = (p for p in PERIODS if 4 * step <= p and REPEATED * p <= span)
        return cls(step, tuple(periods))

    def order(self, stamps: Any, rows: int) -> Any:
        """Return the rows in the order of time."""
        return np.argsort(stamps, kind="stable") if self.step else np.arange(rows)

    def times(self, stamps: Any, rows: int) -> Times:
        """Return the distances between neighbours.

        Parameters
        ----------
        stamps : numpy array of shape (T,), in order
        rows : int
        """
        if not self.step:
            return Times(np.ones(max(0, rows - 1)))
        return Times(_distances(stamps) / NANO / self.step)

    def waves(self, stamps: Any, rows: int) -> Any:
        """Return the periodic terms: a constant, and waves of the periods.

        Parameters
        ----------
        stamps : numpy array of shape (T,), in order
        rows : int

        Returns
        -------
        array of shape (T, h)
        """
        found = [np.ones(rows)]
        for period in self.periods:
            for k in range(1, WAVES + 1):
                if 2 * k * self.step > period:
                    break
                angle = 2 * math.pi * k * (stamps / NANO / period % 1)
                found += [np.cos(angle), np.sin(angle)]
        return np.stack(found, axis=1)
