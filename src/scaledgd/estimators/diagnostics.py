"""Warnings: what the data cannot determine, raised at the line of the user's call."""

from __future__ import annotations

import sys
import warnings

from .fitting import degrees
from .observations import Observations


class DataWarning(UserWarning):
    """The data do not determine everything the model was asked to estimate."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line that called the library."""
    level, frame = 1, sys._getframe(1)
    inside = ("scaledgd.", "sklearn.", "contextlib", "functools")
    while str(frame.f_globals.get("__name__")).startswith(inside) and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def undetermined(
    data: Observations, ranks: tuple[int, ...], learnt: bool, in_time: int | None = None
) -> list[str]:
    """Return what the data cannot determine, as sentences.

    Parameters
    ----------
    data : Observations
    ranks : tuple of int, one per mode
    learnt : bool
        Whether the fit knows how sure it is of every row: then few entries are no surprise.
    in_time : int, optional
        The mode whose slices follow each other: neighbours tell about those without entries.
    """
    found = []
    for mode, r in enumerate(ranks):
        counts = data.counts(mode)
        name = f"slices of mode {mode}" if len(data.shape) > 2 else ("rows", "columns")[mode]
        none, few = int((counts == 0).sum()), int(((counts > 0) & (counts < r)).sum())
        if none and mode != in_time:
            found.append(f"{none} {name} have no observation and are filled with offsets only")
        if few and not learnt:
            found.append(
                f"{few} {name} have fewer observations than the rank {r}; they are held by "
                "the ridge"
            )
    parts = data.components()
    if parts > 1 and in_time is None:
        found.append(
            f"the observations fall into {parts} parts that share neither row nor column; "
            "how the parts relate to each other cannot be known"
        )
    if len(data.shape) == 2 and data.size < degrees(ranks[0], data.shape) and not learnt:
        found.append(
            f"there are {data.size} observations but rank {ranks[0]} has "
            f"{degrees(ranks[0], data.shape)} degrees of freedom; lower the rank or "
            "observe more"
        )
    return found
