"""Times as integers, and the clock of a table."""

import numpy as np

from scaledgd.estimators.stamps import MISSING, Clock, of_seconds


def test_seconds_become_nanoseconds():
    stamps = of_seconds(np.array([0.0, 1.7e9 + 0.25, np.nan]))
    assert stamps.tolist() == [0, 1_700_000_000_250_000_000, MISSING]


def test_clocks_of_centuries():
    clock = Clock.of(np.array([-9_000, 0, 9_000], dtype=np.int64) * 10**15)
    assert clock.step == 9e9
    assert np.all(clock.times(np.array([-9_000, 9_000]) * 10**15, 2).steps == 2.0)
