"""What decides whether a fit is given, doubted, or replaced."""

import numpy as np
import pytest

from scaledgd.estimators.local_observations import LocalObservations
from scaledgd.estimators.vouching import (
    DOUBT,
    UNPROVEN,
    determinable,
    middles,
    objection,
    own_units,
)


def observed(X):
    return LocalObservations(None, X, X.shape)


def test_middles_of_columns_without_entries_are_those_of_all():
    y = np.array([1.0, 3.0, 8.0])
    data = LocalObservations((np.array([0, 1, 2]), np.array([0, 0, 2])), y, (3, 3))
    assert middles(data).tolist() == [2, 4, 8]
    assert middles(data, robust=True).tolist() == [1, 3, 8]


def test_units_of_constant_columns_are_typical():
    X = np.stack([np.arange(5.0), np.full(5, 3.0), 100 * np.arange(5.0)], axis=1)
    units = own_units(observed(X))
    assert np.allclose(units[[0, 2]], [np.sqrt(2), 100 * np.sqrt(2)])
    assert np.all(units > 0)
    assert np.allclose(own_units(observed(1e-160 * X)), 1e-160 * units, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("shape", "share"), [((40, 30), 0.5), ((40, 30), 0.8), ((9, 200), 0.8)])
def test_the_largest_rank_that_does_not_reproduce_anything(shape, share):
    rank = determinable(observed(np.zeros(shape)), share)
    room = share * np.prod(shape)
    assert rank * (sum(shape) - rank) <= room < (rank + 1) * (sum(shape) - rank - 1)
    assert determinable(observed(np.zeros((2, 2))), 0.1) == 1


def test_a_fit_needs_evidence_that_it_is_better_than_means():
    rng = np.random.default_rng(0)
    means = rng.chisquare(1, 60)
    assert objection(0.3 * means, means) == ""
    assert objection(0.3 * means, means, unit=rng.uniform(0.1, 2, 60)) == ""
    assert objection(rng.chisquare(1, 60), means) == UNPROVEN
    assert objection(3 * means, means) == DOUBT
    # a few entries are enough if there is no error, and one large error is not a reason to doubt
    assert objection(0 * means[:4], means[:4]) == ""
    assert objection(np.where(np.arange(60) == 7, 1e3, 0.3 * means), means) == ""
    # large columns well, small ones badly
    large = np.arange(60) < 30
    errors, unit = np.where(large, 0.01, 0.5), np.where(large, 1.0, 0.01)
    assert objection(errors, np.where(large, 1.0, 0.05), unit) == DOUBT
