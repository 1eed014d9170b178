"""Whether candidates predict better than others, beyond chance."""

import numpy as np

from scaledgd.estimators.comparing import alike, better


def test_errors_are_compared_beyond_chance():
    rng = np.random.default_rng(0)
    least = rng.chisquare(1, 2000)
    assert better(0.8 * least, least)
    assert not better(least, 0.8 * least)
    assert not better(0.97 * least, least, gain=0.1)
    assert alike(1.0001 * least, least, gain=0.01)
    one = 0.8 * least
    one[3] = 1e9  # a single error that ruins the mean
    assert not better(one, least)
    one[3] = np.nan
    assert not better(one, least)
