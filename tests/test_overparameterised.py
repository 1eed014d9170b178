"""ScaledGD(λ): more columns than the truth has, from a small random start."""

import numpy as np
import pytest
from conftest import first_below, trajectory

import scaledgd as sg
from scaledgd.experiments import overparameterised
from scaledgd.growth import smallest_square

N, R = 40, 2


def symmetric_sensing(kappa, **given):
    return overparameterised.symmetric_sensing(N, R, kappa, **given)


def start(rank, scale, seed=1):
    return sg.small_random(rank, scale, rng=seed, symmetric=True)


@pytest.mark.parametrize("rank", [R + 1, N])
def test_the_error_falls_with_the_scale_of_the_start(rank):
    """Best error far below α^{1/3}, and its log-log slope in α at least 1/3; r' up to n."""
    kappa = 10
    problem, truth = symmetric_sensing(kappa)
    scales = np.asarray([1e-3, 1e-5, 1e-7])
    method = sg.ScaledGD(0.3, damping=1 / kappa)
    best = [trajectory(problem, start(rank, alpha), method, truth, 250).min() for alpha in scales]
    assert np.all(best < 0.2 * scales ** (1 / 3))
    slope = np.polyfit(np.log(scales), np.log(best), 1)[0]
    assert slope >= 1 / 3
    tiny = trajectory(problem, start(rank, 1e-12), method, truth, 400)
    assert tiny.min() < 1e-7


def test_the_time_hardly_depends_on_kappa_while_gradient_descent_fails():
    counts = {}
    for kappa in (1, 5, 20):
        problem, truth = symmetric_sensing(kappa)
        method = sg.ScaledGD(0.3, damping=1 / kappa)
        errors = trajectory(problem, start(2 * R, 1e-10), method, truth, 300)
        counts[kappa] = first_below(errors, 1e-3)
        plain = trajectory(problem, start(2 * R, 1e-10), sg.GradientDescent(0.3), truth, 300)
        assert (plain.min() > 1e-3) == (kappa >= 5)
    assert counts[20] <= 2 * counts[1]


def test_too_little_damping_misses_the_level():
    """From the same start, λ = 0.1 σ_r ends at a larger error than λ = σ_r."""
    kappa = 10
    problem, truth = symmetric_sensing(kappa)
    reached = {
        factor: trajectory(
            problem, start(N, 1e-8), sg.ScaledGD(0.3, damping=factor / kappa), truth, 250
        ).min()
        for factor in (1.0, 0.1)
    }
    assert reached[0.1] > 3 * reached[1.0]


@pytest.mark.parametrize("kappa", [1, 10])
def test_noise_at_the_minimax_level(kappa):
    sigma = 1e-3
    problem, truth = symmetric_sensing(kappa, noise=sigma)
    method = sg.ScaledGD(0.3, damping=1 / kappa)
    errors = float(truth.norm()) * trajectory(problem, start(2 * R, 1e-8), method, truth, 200)
    level = sigma * np.sqrt(N * R)
    assert 0.3 * level < errors.min() < 3 * level
    assert first_below(errors, 3 * level) < 120


def test_approximately_low_rank():
    """A tail of small singular values costs an error of its own size, not a failure."""
    problem, truth = symmetric_sensing(5, tail=1e-3)
    tail = 1e-3 * np.sqrt(N - R)
    errors = float(truth.norm()) * trajectory(
        problem, start(2 * R, 1e-6), sg.ScaledGD(0.3, damping=0.2), truth, 150
    )
    assert errors.min() < 3 * tail


@pytest.mark.filterwarnings("ignore::scaledgd.DivergenceWarning")
def test_control_without_damping_a_small_random_start_fails_at_once():
    problem, truth = symmetric_sensing(2)
    errors = trajectory(problem, start(2 * R, 1e-8), sg.ScaledGD(0.3), truth, 1)
    assert not errors[1] < 1e3
    damped = trajectory(problem, start(2 * R, 1e-8), sg.ScaledGD(0.3, damping=0.5), truth, 1)
    assert damped[1] < 1.01


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_control_plain_scaled_gd_is_unstable_with_extra_columns(seed):
    """Columns that fit only sampling noise make the Gram matrices nearly singular."""
    problem, truth = sg.datasets.matrix_completion(200, 200, 3, 3, 0.2, rng=seed)
    exact = trajectory(problem, sg.spectral(3), sg.ScaledGD(0.5), truth, 100)
    assert exact[-1] < 1e-6
    with pytest.warns(sg.DivergenceWarning):
        sg.solve(problem, sg.spectral(9), sg.ScaledGD(0.5), max_iter=150)
    small = sg.small_random(9, 1e-6, rng=seed)
    damped = trajectory(problem, small, sg.ScaledGD(0.5, damping=0.1), truth, 100)
    assert damped.min() < 1e-2


def test_mixed_start_hands_over_well_conditioned_factors():
    problem, truth = sg.datasets.matrix_completion(120, 90, 4, 5, 0.6, rng=0)
    factors = sg.mixed(4, damping=0.1, scale=1e-6, rng=0)(problem)
    assert smallest_square(factors) >= 0.1
    result = sg.solve(problem, factors, sg.ScaledGD(), max_iter=80)
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-8


def test_mixed_start_lowers_lambda_where_it_exceeds_the_spectrum():
    """κ = 50: σ_r = 0.02 is below λ = 0.1, so the textbook switch would never fire."""
    problem, truth = sg.datasets.matrix_completion(200, 160, 4, 50, 0.6, rng=0)
    factors = sg.mixed(4, damping=0.1, scale=1e-8, rng=0)(problem)
    assert smallest_square(factors) < 0.1
    result = sg.solve(problem, factors, sg.ScaledGD(), max_iter=100)
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-8


def test_mixed_start_that_never_switches_returns_the_best_it_has():
    """With twice the rank, σ_min stays near zero, which must not be an error."""
    problem, truth = sg.datasets.matrix_completion(120, 90, 2, 2, 0.8, rng=0)
    factors = sg.mixed(4, damping=0.1, scale=1e-8, rng=0, max_iter=60)(problem)
    assert smallest_square(factors) < 1e-3
    assert float(sg.metrics.relative_error(factors, truth)) < 1e-2
