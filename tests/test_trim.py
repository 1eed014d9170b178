"""Trimming: which entries go, what the loss then is, and that it is free of special cases."""

import math

import numpy as np
import pytest
from conftest import draw
from hypothesis import given, settings
from hypothesis import strategies as st

import scaledgd as sg


def brute_force(A, fraction):
    """T_fraction[A], entry by entry, ties broken by position."""
    kept = np.ones(A.shape, dtype=bool)
    for axis in (0, 1):
        n = A.shape[axis]
        k = math.floor(fraction * n + 1e-9)
        order = np.argsort(-np.abs(A), axis=axis, kind="stable")
        ranks = np.argsort(order, axis=axis, kind="stable")
        kept &= ranks < k
    return np.where(kept, A, 0)


shapes = st.tuples(st.integers(1, 12), st.integers(1, 12))


@settings(max_examples=60, deadline=None)
@given(shapes, st.floats(0, 1), st.integers(0, 2**32 - 1), st.booleans())
def test_top_trim_keeps_exactly_the_quota(shape, fraction, seed, ties):
    rng = np.random.default_rng(seed)
    A = rng.integers(-2, 3, shape).astype(float) if ties else draw(rng, *shape)
    trim = sg.TopTrim(fraction).bind(sg.Full(shape))
    np.testing.assert_array_equal(A - trim.clean(A), brute_force(A, fraction))
    value, weight = trim(A)
    np.testing.assert_array_equal(A - weight, brute_force(A, min(2 * fraction, 1)))
    assert float(value) == pytest.approx(0.5 * np.sum(weight**2))


@settings(max_examples=60, deadline=None)
@given(shapes, st.floats(0, 1), st.integers(0, 2**32 - 1), st.booleans())
def test_top_trim_of_all_entries_is_top_trim_of_the_full_matrix(shape, fraction, seed, ties):
    rng = np.random.default_rng(seed)
    A = rng.integers(-2, 3, shape).astype(float) if ties else draw(rng, *shape)
    index = np.unravel_index(np.arange(A.size), shape)
    full = sg.TopTrim(fraction).bind(sg.Full(shape)).clean(A)
    entries = sg.TopTrim(fraction).bind(sg.Entries(index, shape)).clean(A.ravel())
    np.testing.assert_array_equal(entries, full.ravel())


def test_top_trim_counts_the_observed_entries_only():
    # a row with 4 observed entries and one with 2; every column quota is generous
    index = (np.asarray([0, 0, 0, 0, 1, 1]), np.asarray([0, 1, 2, 3, 4, 5]))
    trim = sg.TopTrim(0.5).bind(sg.Entries(index, (2, 6)))
    y = np.asarray([5.0, 1.0, 4.0, 2.0, 3.0, 7.0])
    # columns hold one entry each: ⌊0.5⌋ = 0 of it may go, so nothing is trimmed at the start
    np.testing.assert_array_equal(trim.clean(y), y)
    # in the loop T_1 trims everything
    np.testing.assert_array_equal(trim(y)[1], 0 * y)
    # with three rows of data in each column the rows decide
    index = np.unravel_index(np.arange(12), (2, 6))
    trim = sg.TopTrim(0.5).bind(sg.Entries(index, (2, 6)))
    y = np.asarray([9.0, 8, 7, 1, 1, 1, 0, 0, 0, 5, 6, 4])
    np.testing.assert_array_equal(trim.clean(y) == 0, np.asarray([1] * 3 + [0] * 3 + [1] * 6) == 1)


def test_quota_forgives_rounding():
    assert 0.1 * 30 != 3 or math.floor(0.29 * 100) == 28  # the danger is real
    A = np.arange(1.0, 101.0)[:, None] * np.ones((1, 100))
    trim = sg.TopTrim(0.29).bind(sg.Full((100, 100)))
    removed = A - trim.clean(A)
    assert np.count_nonzero(removed.any(axis=1)) == 29


def test_soft_trim_is_the_huber_function():
    rng = np.random.default_rng(0)
    r, zeta = 3 * draw(rng, 50), 1.3
    value, weight = sg.SoftTrim(zeta)(r)
    np.testing.assert_allclose(weight, np.clip(r, -zeta, zeta), atol=1e-15)
    # min over S of ½‖r + S‖² + ζ‖S‖₁ is attained by soft thresholding
    S = -np.sign(r) * np.maximum(np.abs(r) - zeta, 0)
    assert float(value) == pytest.approx(0.5 * np.sum((r + S) ** 2) + zeta * np.sum(np.abs(S)))
    for _ in range(20):
        T = S + 0.1 * draw(rng, 50)
        assert 0.5 * np.sum((r + T) ** 2) + zeta * np.sum(np.abs(T)) > float(value)


def test_soft_trim_of_complex_numbers_keeps_phases():
    r = np.asarray([3 + 4j, 0.1j, 0])
    weight = sg.SoftTrim(1.0)(r)[1]
    np.testing.assert_allclose(weight, [0.6 + 0.8j, 0.1j, 0], atol=1e-15)


def test_schedule_is_read_at_zero_for_the_start_and_one_later_in_the_loop():
    asked = []

    def schedule(t):
        asked.append(t)
        return 1.0

    problem = sg.Observed(sg.Full((4, 3)), np.ones((4, 3)), sg.SoftTrim(schedule))
    sg.solve(problem, sg.spectral(1), sg.ScaledGD(), max_iter=2)
    assert asked == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("loss", "kappa"),
    [(sg.TopTrim(0.08), 1), (sg.TopTrim(0.08), 10), (sg.SoftTrim(sg.geometric(0.05, 0.85)), 1)],
)
def test_missing_and_corrupted_at_once(loss, kappa):
    """`Entries` with a trim is robust completion."""
    rng = np.random.default_rng(1)
    shape = (300, 250)
    truth = sg.datasets.low_rank(*shape, rank=3, kappa=kappa, rng=rng)
    index = np.nonzero(rng.random(shape) < 0.5)
    corrupted = rng.random(index[0].size) < 0.02
    y = truth.at(index) + corrupted * rng.standard_normal(index[0].size)
    operator = sg.Entries(index, shape)

    def recovered(loss):
        problem = sg.Observed(operator, y, loss, scale=2.0)
        result = sg.solve(problem, sg.spectral(3), sg.ScaledGD(), max_iter=150)
        return float(sg.metrics.relative_error(result.factors, truth))

    assert recovered(loss) < 1e-6
    assert recovered(sg.Squared()) > 1e-1
