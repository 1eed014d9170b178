"""How entries of a tensor are read."""

import numpy as np

from scaledgd.estimators.local_observations import LocalObservations
from scaledgd.estimators.tensor_model import units_of_slices


def test_slices_that_are_alike_have_no_units():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((8, 7, 5))
    assert units_of_slices(LocalObservations(None, X, X.shape)) == ()
    X[..., 2] *= 50
    *rest, units = units_of_slices(LocalObservations(None, X, X.shape))
    assert rest == [None, None]
    assert 20 < units[2] / units[0] < 100
