"""How fast a fit converges, and when it will end."""

import numpy as np
import pytest

from scaledgd.estimators.progress import iterations_left, rate, seconds_left
from scaledgd.estimators.session import Session


def test_the_time_left_is_about_right():
    history = [{"value": 0.25**t, "seconds": 0.1 * t} for t in range(6)]
    plan = Session(tol=1e-5)
    assert rate(history) == pytest.approx(0.5)
    assert iterations_left(history, 1.0, plan) == pytest.approx(np.log2(1e6) - 5)
    assert seconds_left(history, 1.0, plan) == pytest.approx(0.1 * (np.log2(1e6) - 5))


def test_a_loss_that_vanished_and_came_back_has_no_rate():
    history = [{"value": value} for value in (1.0, 0.0, 1e-20)]
    assert np.isnan(rate(history, over=1))
    assert rate(history[:1] * 2, over=1) == 1.0
