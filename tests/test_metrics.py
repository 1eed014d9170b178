"""Errors, condition numbers, incoherence, and the monograph's distance."""

import numpy as np
import pytest
from conftest import draw, invertible
from hypothesis import given, settings
from hypothesis import strategies as st

import scaledgd as sg
from scaledgd.metrics import condition_number, dist, incoherence, relative_error


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_relative_error_of_factors_keeps_full_precision(dtype):
    rng = np.random.default_rng(0)
    F = sg.LowRank(draw(rng, 50, 3, dtype=dtype), draw(rng, 40, 3, dtype=dtype))
    D = draw(rng, 50, 3, dtype=dtype)
    for size in (1e-1, 1e-6, 1e-12):
        G = sg.LowRank(F.L + size * D, F.R)
        expected = size * np.linalg.norm(D @ F.R.conj().T) / np.linalg.norm(F.full())
        # to three digits, although a difference of Grams would round to zero
        assert float(relative_error(G, F)) == pytest.approx(expected, rel=1e-3)
    assert float(relative_error(G.full(), F)) == pytest.approx(expected, rel=1e-2)


def test_condition_number_and_incoherence():
    F = sg.datasets.low_rank(60, 50, 4, 25, rng=0)
    assert float(condition_number(F)) == pytest.approx(25)
    assert float(condition_number(F.full())) == pytest.approx(25)
    U, _, Vh = np.linalg.svd(F.full())
    mu = max(
        60 / 4 * np.max(np.sum(U[:, :4] ** 2, axis=1)),
        50 / 4 * np.max(np.sum(Vh[:4].T ** 2, axis=1)),
    )
    assert float(incoherence(F)) == pytest.approx(mu)
    assert float(incoherence(F.full(), rank=4)) == pytest.approx(mu)
    spike = np.zeros((60, 50))
    spike[3, 4] = 1.0
    assert float(incoherence(spike)) == pytest.approx(60)
    assert float(condition_number(np.diag([8.0, 4.0, 1.0]), rank=2)) == pytest.approx(2)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(0.05, 1.0), min_size=1, max_size=4),
    st.floats(1e-8, 0.05),
    st.floats(1, 30),
    st.integers(0, 2**32 - 1),
)
def test_dist_is_invariant_under_reparameterisation(sigma, size, cond, seed):
    rng = np.random.default_rng(seed)
    r = len(sigma)
    root = np.sqrt(np.sort(sigma)[::-1])
    U, V = (np.linalg.qr(draw(rng, n, r))[0] for n in (20, 15))
    truth = sg.LowRank(U * root, V * root)
    noise = size * min(sigma) * 0.1
    F = sg.LowRank(truth.L + noise * draw(rng, 20, r), truth.R + noise * draw(rng, 15, r))
    d = dist(F, truth)
    assert d.attained
    Q = invertible(r, cond, rng)
    e = dist(sg.LowRank(F.L @ Q, F.R @ np.linalg.inv(Q).T), truth)
    g = dist(F, sg.LowRank(truth.L @ Q, truth.R @ np.linalg.inv(Q).T))
    assert float(e) == pytest.approx(float(d), rel=1e-6)
    assert float(g) == pytest.approx(float(d), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_dist_is_a_minimum_over_q(dtype):
    rng = np.random.default_rng(0)
    root = np.sqrt(np.asarray([3.0, 2.0, 0.5]))
    truth = sg.LowRank(
        np.linalg.qr(draw(rng, 20, 3, dtype=dtype))[0] * root,
        np.linalg.qr(draw(rng, 15, 3, dtype=dtype))[0] * root,
    )
    F = sg.LowRank(
        truth.L + 0.02 * draw(rng, 20, 3, dtype=dtype),
        truth.R + 0.02 * draw(rng, 15, 3, dtype=dtype),
    )
    d, Q, attained = dist(F, truth)
    assert attained

    def value(Q):  # Q takes F to the factors of the truth as they were given
        a = (F.L @ Q - truth.L) * root
        b = (F.R @ np.linalg.inv(Q).conj().T - truth.R) * root
        return np.sqrt(np.linalg.norm(a) ** 2 + np.linalg.norm(b) ** 2)

    assert value(Q) == pytest.approx(d, rel=1e-10)
    for size in (1e-1, 1e-3):
        for _ in range(10):
            assert value(Q + size * draw(rng, 3, 3, dtype=dtype)) > d
    assert d < value(np.linalg.lstsq(F.L, truth.L, rcond=None)[0])
    assert np.linalg.norm(Q - np.eye(3)) < 0.2


def test_dist_bounds_the_error_from_above_and_below():
    """The monograph's lemma: dist ≤ (√2 + 1)^½ ‖X − X⋆‖, and ‖X − X⋆‖ ≲ 1.5 dist nearby."""
    rng = np.random.default_rng(0)
    truth = sg.datasets.low_rank(40, 30, 3, 5, rng)
    for _ in range(5):
        F = sg.LowRank(truth.L + 5e-3 * draw(rng, 40, 3), truth.R + 5e-3 * draw(rng, 30, 3))
        error = np.linalg.norm(F.full() - truth.full())
        d = float(dist(F, truth))
        assert d <= np.sqrt(np.sqrt(2) + 1) * error
        assert error <= 1.5 * d


def test_dist_says_when_the_infimum_is_not_attained():
    """R orthogonal to R⋆ is best sent to zero by Q → ∞, and L = 0 does not hold Q back."""
    rng = np.random.default_rng(0)
    truth = sg.datasets.low_rank(10, 8, 2, 2, rng)
    P = np.linalg.svd(truth.R)[0]
    F = sg.LowRank(np.zeros((10, 2)), P[:, 4:6].copy())
    d = dist(F, truth)
    assert not d.attained


def test_dist_refuses_a_truth_of_smaller_rank():
    G = sg.LowRank(np.ones((5, 2)), np.ones((4, 2)))
    with pytest.raises(ValueError, match="smaller rank"):
        dist(G, G)


def test_dist_refuses_other_ranks():
    F = sg.datasets.low_rank(10, 8, 2, 2, rng=0)
    G = sg.datasets.low_rank(10, 8, 3, 2, rng=0)
    with pytest.raises(ValueError, match="rank must agree"):
        dist(F, G)


def test_scaled_gd_contracts_the_distance():
    problem, truth = sg.datasets.matrix_sensing(20, 16, 2, 10, 4000, rng=0)
    distances = []
    sg.solve(
        problem,
        sg.spectral(2),
        sg.ScaledGD(0.5),
        max_iter=20,
        callback=lambda s: distances.append(float(dist(s.factors, truth))),
    )
    ratios = np.asarray(distances[1:]) / np.asarray(distances[:-1])
    assert np.all(ratios < 0.85)


def test_dist_is_proportional_to_the_scale():
    truth = sg.datasets.low_rank(20, 15, 2, 5, rng=0)
    F = sg.LowRank(truth.L + 0.01, truth.R - 0.01)
    d = float(dist(F, truth))
    for factor in (1e-100, 1e100):
        big = dist(sg.LowRank(factor * F.L, F.R), sg.LowRank(factor * truth.L, truth.R))
        assert float(big) / factor == pytest.approx(d, rel=1e-9)
        assert big.attained
