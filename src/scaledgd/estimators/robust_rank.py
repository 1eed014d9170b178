"""The rank of a table with gross errors, from gaps in the spectrum.

A rank is accepted if the spectrum of the clean residual has a gap there. The spectrum of
independent errors has a flat edge. That of correlated errors, such as movers in a video, decays
slowly from far above the edge, so an edge alone would never end the search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..factors import Bordered
from ..linalg import epsilon, truncated_svd
from ..methods import Alternating
from ..state import State
from .journal import remembered
from .observations import MULTIPLE, Observations
from .robust import falling, rejecting, threshold
from .scaling import Choice, empty, singular, table_factors, truncated
from .session import Session

Array = Any
Trail = list[dict[str, Any]]

NOISE = "the residual looks like independent noise"
VANISHED = "the residual vanished except for the outliers"
NO_GAP = "the spectrum decays without a gap beyond it"


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The leading singular triplets of the clean residual.

    Attributes
    ----------
    U, V : arrays of shape (n1, k) and (n2, k)
    s : NumPy array of shape (k,)
    edge : float
        The largest singular value that independent noise of the same size would have.
    kept : float
        The share of the entries that was observed and not rejected.
    """

    U: Array
    s: np.ndarray[Any, Any]
    V: Array
    edge: float
    kept: float

    def gap(self, ratio: float = 2.0) -> int:
        """Return how many singular values are above a gap; 0 if there is none."""
        for j in range(1, len(self.s)):
            if self.s[j - 1] < 1.1 * self.edge:
                return 0
            if self.s[j - 1] >= ratio * self.s[j]:
                return j
        return 0

    @property
    def above(self) -> int:
        """The number of singular values above the edge."""
        return int(np.sum(self.s >= 1.1 * self.edge))

    def step(self, rank: int) -> dict[str, Any]:
        """Return an entry of the trail."""
        top = float(self.s[0] / self.edge) if self.edge else 0.0
        about = {"above_edge": self.above, "top_over_edge": top, "gap_after": self.gap()}
        return {"rank": rank, **about}

    def added_to(self, F: Bordered, columns: int) -> Bordered:
        """Return the factors with the leading triplets as more columns."""
        xp = array_namespace(self.U)
        s = self.s[:columns] / max(self.kept, 1e-12)
        root = xp.sqrt(xp.asarray(s, dtype=self.U.dtype, device=device(self.U)))[None, :]
        r = F.rank
        L = xp.concat([F.L[:, :r], -self.U[:, :columns] * root, F.L[:, r:]], axis=1)
        R = xp.concat([F.R[:, :r], self.V[:, :columns] * root, F.R[:, r:]], axis=1)
        return replace(F, L=L, R=R)


def spectrum_of(data: Observations, F: Bordered, most: int = 32) -> Spectrum:
    """Return the spectrum of the residual of a fit, without the rejected entries."""
    xp, (n1, n2) = array_namespace(data.example), data.shape
    Z, rms, kept = data.clean_residual(F)
    times, adjoint_times = Z.times, Z.adjoint_times
    left, right = F.modes
    if left.shape[1]:
        # fitting the factors disturbs the residual along them, so project them out
        P, Q = xp.linalg.qr(left)[0], xp.linalg.qr(right)[0]

        def times(V: Array) -> Array:
            x = Z.times(V - Q @ (Q.T @ V))
            return x - P @ (P.T @ x)

        def adjoint_times(U: Array) -> Array:
            x = Z.adjoint_times(U - P @ (P.T @ U))
            return x - Q @ (Q.T @ x)

    most = max(2, min(most, min(n1, n2) // 3, min(n1, n2) - 1))
    seeded = np.random.default_rng(0)
    U, s, V = truncated_svd(times, adjoint_times, (n1, n2), most, data.example, seeded, 1e-2)
    values = np.asarray([float(x) for x in s])
    return Spectrum(U, values, V, rms * (math.sqrt(n1) + math.sqrt(n2)), kept)


def robust_rank(session: Session, data: Observations, seed: int) -> tuple[int, str, Trail]:
    """Return the rank below the first gap, why, and the steps that led there.

    If a table is much longer than wide, a random part of the long side is used.
    """
    short, long = min(data.shape), max(data.shape)
    size = max(1000, 4 * short)
    if long <= size:
        return _rank_of(session, data)
    # the iterates of a part cannot become a model of the whole
    return _rank_of(session.with_reading(None), data.sampled(data.shape.index(long), size, seed))


@remembered("rank")
def _rank_of(session: Session, data: Observations) -> tuple[int, str, Trail]:
    problem = data.problem(rejecting(data, "auto", 0.6))
    typical, trail = data.typical(), []
    if typical == 0.0:
        return 0, "everything is zero", []
    exact = MULTIPLE * 1.4826 * max(1e-6, 30 * epsilon(data.example)) * typical
    most = max(1, min(data.shape) // 5)

    def fit(F: Bordered) -> State:
        return session.solve(problem, F, Alternating(), falling(exact), 60, stage="rank")

    F = empty(data, Choice())
    first = spectrum_of(data, F)
    seen, fallback, without_gap, why = first, None, 0, ""
    while not why:
        trail.append(seen.step(F.rank))
        if seen.above == 0 and F.rank:
            why = NOISE
            break
        jump = seen.gap()
        if jump == 0:
            without_gap += 1
            fallback = F.rank if fallback is None else fallback
            jump = int(np.sum(seen.s >= max(1.1 * seen.edge, seen.s[0] / 3)))
        jump = max(1, jump)
        if without_gap > 8 or F.rank + jump > most:
            why = NO_GAP
            break
        state = fit(seen.added_to(F, jump))
        F = table_factors(state)
        if threshold(state) <= exact:
            why = VANISHED
        else:
            seen = spectrum_of(data, F)
    if why != NO_GAP:
        F = _fewer(data, F, first, fit, exact, why)
    if why == NOISE:
        left = spectrum_of(data, F)
        # a continuum that was absorbed up to some large rank is not a rank
        if float(singular(F)[1][-1]) * left.kept < 1.4 * left.s[0] and fallback is not None:
            why = NO_GAP
    if why == NO_GAP:
        return max(1, fallback or 0), why, trail
    return F.rank, why, trail


def _fewer(
    data: Observations, F: Bordered, first: Spectrum, fit: Any, exact: float, why: str
) -> Bordered:
    """Drop columns that are not needed: by truncation, or from a fresh start."""
    while F.rank > 1:
        k = F.rank - 1
        tries = [truncated(F, k)]
        if k <= len(first.s):
            tries.append(first.added_to(empty(data, Choice()), k))
        for start in tries:
            state = fit(start)
            smaller = table_factors(state)
            if why == VANISHED:
                enough = threshold(state) <= exact
            else:
                enough = spectrum_of(data, smaller).above == 0
            if enough:
                F = smaller
                break
        else:
            return F
    return F
