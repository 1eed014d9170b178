"""Offsets and scales of the rows and columns of a table, and factors that have offsets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ..factors import Bordered, Factors, LowRank
from ..linalg import like, to_host
from ..state import State
from .local_observations import LocalObservations
from .observations import Observations
from .packing import packable

Array = Any


@packable
@dataclass(frozen=True)
class Choice:
    """Which offsets are estimated, and whether rows and columns are divided by their deviations.

    Attributes
    ----------
    center, scale : {"none", "rows", "columns", "both"}
    robust : bool
        Whether deviations are computed from medians.
    """

    center: str = "none"
    scale: str = "none"
    robust: bool = False

    @property
    def rows(self) -> bool:
        """Whether rows have offsets."""
        return self.center in ("rows", "both")

    @property
    def columns(self) -> bool:
        """Whether columns have offsets."""
        return self.center in ("columns", "both")


def deviations(
    data: Observations, mode: int, typical: float | None = None, robust: bool = False
) -> tuple[Array, float]:
    """Return the standard deviation of every slice of a mode, and a typical variance.

    Variances are shrunk towards the typical one with the weight of one extra observation.
    """
    xp, n = array_namespace(data.example), data.counts(mode)
    safe = xp.where(n > 0, n, xp.ones_like(n))
    squares = data.squares(mode, robust)
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
    """The scales by which data are divided, and the mean that is then subtracted.

    Attributes
    ----------
    rows, columns : array of shape (n1,) or (n2,), optional
    mean : float
    typical : float, optional
        The variance of a typical row.
    unit : float
        Factor of the row scales that makes the mean square of 1/rows one.
    robust : bool
    """

    rows: Array | None
    columns: Array | None
    mean: float = 0.0
    typical: float | None = None
    unit: float = 1.0
    robust: bool = False

    def apply(self, data: LocalObservations) -> LocalObservations:
        """Return the data in these units."""
        return data.standardised((self.rows, self.columns), self.mean)

    def undo(self, values: Array, index: tuple[Array, ...]) -> Array:
        """Return values at coordinates in the units of the data."""
        xp = array_namespace(values)
        values = values + self.mean
        for i, d in zip(index, (self.rows, self.columns), strict=True):
            if d is not None:
                values = values * xp.take(d, i)
        return values

    def for_rows(self, data: Observations) -> Scales:
        """Return the scales of other rows, each from its own entries."""
        if self.rows is None:
            return self
        return replace(self, rows=self.unit * deviations(data, 0, self.typical, self.robust)[0])


def _harmonic(d: Array) -> float:
    """The factor that makes the mean square of 1/d one, so that offsets do not depend on units."""
    return math.sqrt(float(array_namespace(d).mean(1 / (d * d))))


def scales(data: Observations, choice: Choice) -> Scales:
    """Return the scales and the mean of a choice."""
    rows = typical = columns = None
    unit = 1.0
    if choice.scale in ("rows", "both"):
        rows, typical = deviations(data, 0, None, choice.robust)
        unit = _harmonic(rows)
        rows = unit * rows
    if choice.scale in ("columns", "both"):
        columns = deviations(data.standardised((rows, None)), 1, None, choice.robust)[0]
        columns = _harmonic(columns) * columns
    plain = Scales(rows, columns, 0.0, typical, unit, choice.robust)
    # the mean is an offset of rows, or of columns, unless the other side is scaled
    if (choice.rows and columns is None) or (choice.columns and rows is None):
        return replace(plain, mean=data.standardised((rows, columns)).mean())
    return plain


# ---- factors with offsets


def table_factors(state: State) -> Bordered:
    """Return the factors of a state of a table."""
    return _checked(state.factors)


def _checked(F: Factors) -> Bordered:
    if not isinstance(F, Bordered):
        raise TypeError(f"factors of a table must be Bordered, not {type(F).__name__}")
    return F


def empty(data: Observations, choice: Choice, known: Scales | None = None) -> Bordered:
    """Return factors of rank 0, with offsets of zero.

    Offsets are additive in the units of the data. If the data are divided by scales, the
    vectors that multiply the offsets are divided by them too.
    """
    zeros = [data.blank(k, 1) for k in (0, 1)]
    scale = (None, None) if known is None else (known.rows, known.columns)
    ones = (z[:, 0] + (1 if d is None else 1 / d) for z, d in zip(zeros, scale, strict=True))
    u, v = ones
    return Bordered(
        zeros[0][:, : int(choice.rows)],
        zeros[1][:, : int(choice.columns)],
        u if choice.columns else None,
        v if choice.rows else None,
    )


def bordered(F: Factors, like: Bordered) -> Bordered:
    """Return low-rank factors with the offsets of `like`; factors with offsets as they are."""
    if isinstance(F, Bordered):
        return F
    if not isinstance(F, LowRank):
        raise TypeError(f"factors of a table must be LowRank, not {type(F).__name__}")
    xp = array_namespace(F.L)
    return replace(
        like,
        L=xp.concat([F.L, like.L[:, like.rank :]], axis=1),
        R=xp.concat([F.R, like.R[:, like.rank :]], axis=1),
    )


def singular(F: Bordered | LowRank) -> tuple[Array, Array, Array]:
    """Return U, σ, V of the low-rank part L Rᵀ."""
    xp, r = array_namespace(F.L), F.rank
    if not r:
        return F.L[:, :0], xp.sum(F.R[:, :0], axis=0), F.R[:, :0]
    Q, A = xp.linalg.qr(F.L[:, :r])
    P, B = xp.linalg.qr(F.R[:, :r])
    # a decomposition of a small matrix takes a device much longer than the host
    U, s, Vh = (like(x, F.L) for x in np.linalg.svd(to_host(A @ B.T), full_matrices=False))
    return Q @ U, s, P @ Vh.T


def with_part(F: Bordered, U: Array, s: Array, V: Array) -> Bordered:
    """Return the same offsets with another low-rank part."""
    xp, r = array_namespace(F.L), F.rank
    root = xp.sqrt(s)[None, :]
    return replace(
        F,
        L=xp.concat([U * root, F.L[:, r:]], axis=1),
        R=xp.concat([V * root, F.R[:, r:]], axis=1),
    )


def truncated(F: Bordered, rank: int) -> Bordered:
    """Return the leading components only; offsets stay."""
    U, s, V = singular(F)
    return with_part(F, U[:, :rank], s[:rank], V[:, :rank])


def canonical(F: Bordered) -> Bordered:
    """Return the same X with as much of it as possible in the offsets.

    Least squares does not determine the split between offsets and factors, but the priors
    depend on it.
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
