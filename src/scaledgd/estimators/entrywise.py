"""Estimators of tables and tensors: how sure they are of an entry, and how good."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .. import checks
from .base import LowRankEstimator
from .cells import Cells
from .tables import check_memory, given_back
from .uncertainty import conformal_quantile, normal_quantile, xp_normal

Array = Any


class EntrywiseEstimator(LowRankEstimator):
    """What is estimated are entries, and entries were observed.

    A kind of estimator says how sure its factors are (`_spread`), what their values are in the
    units of the data (`_values`), and how large those units are (`_unit`).
    """

    def interval(
        self, index: tuple[Array, ...], level: float = 0.95, kind: str = "model"
    ) -> tuple[Array, Array]:
        """Bounds of entries.

        Parameters
        ----------
        index : tuple of integer arrays, one per mode, each of shape (m,)
        level : float in (0, 1)
            The share of the intervals that hold what they are about.
        kind : {"model", "conformal"}
            "model": for the true entry, from its standard error; right where the model is. A
            ridge that was given biases the estimate, and the interval is centred on one
            that is not. "conformal": for a new observation, from how far off the fit was at
            entries that it did not see; right whatever the noise is like, and however wrong
            the model, as long as those entries are like the new ones. It needs ``calibrate``.

        Returns
        -------
        lower, upper : arrays of shape (m,)
        """
        index = self._coordinates(index)
        level = checks.number("level", level, least=0, most=1, open_=True)
        with self._threads():
            if kind == "model":
                spread = self._spread()
                std = array_namespace(self._at(index)).sqrt(spread.variance(index))
                middle = self._values(spread.factors, index)
                half = normal_quantile(level) * std * self._unit(index)
            elif kind == "conformal":
                middle = self._clipped(self._at(index))
                half = conformal_quantile(self._scores(), level) * self._tolerance(index)
            else:
                raise ValueError(f'kind must be "model" or "conformal", not {kind!r}')
        return given_back(middle - half, self._kind), given_back(middle + half, self._kind)

    def sample(self, n: int = 1, index: Any = None, *, random_state: Any = None) -> Array:
        """Draw completed data sets: multiple imputation.

        What was observed is as it was. The rest are draws of what could have been
        observed: the estimate, with its own uncertainty (which the entries of a row share), and
        with the noise. To use them, do with each what you would do with the data, and
        look at how much the results differ.

        Parameters
        ----------
        n : int
            How many.
        index : tuple of integer arrays, one per mode, each of shape (m,), optional
            Draw these entries only, whether they were observed or not.
        random_state : int, RandomState or None

        Returns
        -------
        draws : array of shape (n, n1, ..., nd), or (n, m)
        """
        check_is_fitted(self)
        n = checks.count("n", n, least=1)
        index = None if index is None else self._coordinates(index)
        shape = self.factors_.shape
        if index is None:
            check_memory((n, *shape), "the draws", self._came_dense)
        rng = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
        draws = []
        with self._threads():
            spread = self._spread()
            for _ in range(n):
                F = spread.drawn(rng)
                X = self._values(F, index)
                noise = xp_normal(rng, X) * math.sqrt(spread.noise)
                X = self._clipped(X + noise * self._unit(index))
                for cells in () if index is not None else (self._cells, self._held):
                    if cells is not None:
                        X[cells.coordinates] = cells.flat
                draws.append(given_back(X, self._kind))
        return array_namespace(*draws).stack(draws)

    def _variance(self, index: tuple[Array, ...]) -> Array:
        """The square of the standard error, in the units of the data."""
        return self._spread().variance(index) * self._unit(index) ** 2

    def _tolerance(self, index: tuple[Array, ...], weight: Any = None) -> Array:
        """How far off a new observation is expected to be: what conformal scores are in."""
        spread, unit = self._spread(), self._unit(index)
        noise = spread.noise if weight is None else spread.noise / weight
        tiny = 1e-12 * math.sqrt(float((self._cells.y**2).mean()))
        return array_namespace(*index).sqrt((spread.variance(index) + noise) * unit**2) + tiny

    def _calibrated(self, held: Cells | None) -> Array | None:
        """How far off the fit is at entries that it did not see, in order."""
        if held is None:
            return None
        index, xp = held.coordinates, array_namespace(held.y)
        off = xp.abs(held.flat - self._clipped(self._at(index)))
        return xp.sort(off / self._tolerance(index, held.weight))
