"""Opinions of held-out entries about a fit of a tensor."""

import numpy as np

from scaledgd.estimators.local_observations import LocalObservations
from scaledgd.estimators.tensor_vouching import opinion


def observed(X):
    return LocalObservations(None, X, X.shape)


def test_a_fit_that_misses_what_medians_predict_is_wrong_there():
    """Errors count no more than gross ones only where medians are far off, too."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 10))
    test = LocalObservations(np.unravel_index(np.arange(0, 400, 2), X.shape), X.flat[::2], X.shape)
    pairs = [(observed(X), test)]
    missed = np.where(np.arange(200) < 8, 100.0, 0.5)
    assert opinion(missed, pairs, "none", robust=True)
    assert not opinion(np.full(200, 0.5), pairs, "none", robust=True)
