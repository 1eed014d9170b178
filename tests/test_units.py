"""Whether columns are so unlike that each needs its own unit."""

import numpy as np

from scaledgd.estimators.local_observations import LocalObservations
from scaledgd.estimators.units import unlike_columns


def observed(X):
    seen = np.isfinite(X)
    if seen.all():
        return LocalObservations(None, X, X.shape)
    return LocalObservations(np.nonzero(seen), X[seen], X.shape)


def low_rank(seed):
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((50, 1)) @ rng.standard_normal((1, 60))
    return truth + 0.01 * rng.standard_normal(truth.shape)


def test_columns_of_large_amounts_among_small_ones_are_unlike():
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((150, 3)) @ rng.standard_normal((3, 24))
    X = Z + 0.5 * rng.standard_normal(Z.shape)
    X[:, 2:8] = Z[:, 2:8] > 0
    X[:, 8:14] = np.rint(40 + 12 * X[:, 8:14])
    X[:, :2] = np.exp(2 * X[:, :2] + 9)
    assert unlike_columns(observed(X))


def test_large_rows_do_not_make_columns_unlike():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 20)) * np.exp(3 * rng.standard_normal((60, 1)))
    assert not unlike_columns(observed(X))


def test_few_entries_do_not_make_columns_unlike():
    rng = np.random.default_rng(0)
    X = np.where(rng.random((60, 80)) < 0.08, rng.standard_t(2, (60, 80)), np.nan)
    assert not unlike_columns(observed(X), robust=True)
    whole = rng.standard_t(2, (60, 80)) * 10 ** rng.uniform(-1.5, 1.5, 80)
    assert unlike_columns(observed(whole), robust=True)
    assert not unlike_columns(observed(whole.T.copy()), robust=True)
    for seed in range(20):
        assert not unlike_columns(observed(low_rank(seed)), robust=True)
