"""Step rules: numbers, schedules, Polyak, line search; one per block; the balancing term."""

import functools

import numpy as np
import pytest
from conftest import draw, error_to, trajectory

import scaledgd as sg


def with_loss(problem, loss, scale=1.0):
    return sg.Observed(problem.operator, problem.y, loss, scale=scale)


def instances(kappa):
    d = sg.datasets
    sensing, truth = d.matrix_sensing(40, 30, 3, kappa, 1200, rng=0)
    yield "sensing", sensing, truth, sg.spectral(3)
    raw = sg.Sensing(35 * sensing.operator.A)  # E A*A is far from the identity
    yield "sensing-unnormalised", sg.Observed(raw, 35 * sensing.y), truth, sg.spectral(3)
    completion, truth = d.matrix_completion(200, 150, 3, kappa, 0.3, rng=0)
    yield "completion", completion, truth, sg.spectral(3)
    yield "completion-unscaled", with_loss(completion, sg.Squared()), truth, sg.spectral(3)
    rpca, truth = d.robust_pca(200, 150, 3, kappa, 0.05, rng=0)
    yield "top-trim", rpca, truth, sg.spectral(3)
    yield "absolute", with_loss(rpca, sg.Absolute()), truth, sg.spectral(3, keep=0.9)
    sensing, truth = d.robust_sensing(40, 30, 3, kappa, 1200, 0.2, rng=0)
    yield "absolute-sensing", sensing, truth, sg.spectral(3, keep=0.8)
    quadratic, truth = d.quadratic_sampling(40, 3, kappa, 1200, 0.1, rng=0)
    yield "absolute-quadratic", quadratic, truth, sg.spectral(3, keep=0.9)


@functools.cache
def by_name(kappa):
    return {name: given for name, *given in instances(kappa)}


CASES = [(name, kappa) for kappa in (1, 20) for name in by_name(1)]


@pytest.mark.parametrize(("name", "kappa"), CASES)
def test_line_search_needs_no_step_size(name, kappa):
    problem, truth, start = by_name(kappa)[name]
    error = error_to(truth)
    result = sg.solve(
        problem,
        start,
        sg.ScaledGD(sg.line_search()),
        max_iter=300,
        callback=lambda state: error(state.factors) < 1e-10,
    )
    assert error(result.factors) < 1e-10, result.status


def test_line_search_with_a_soft_trim():
    problem, truth = sg.datasets.robust_pca(200, 150, 3, 1, 0.05, rng=0)
    soft = with_loss(problem, sg.SoftTrim(sg.median_threshold()))
    assert trajectory(soft, sg.spectral(3), sg.ScaledGD(sg.line_search()), truth, 150)[-1] < 1e-10


def test_line_search_reaches_half_precision_for_hankel():
    """The value is exact to the rounding of ‖X‖², so a search on it sees no further."""
    problem, x = sg.datasets.hankel_completion(100, 90, 3, 20, 0.4, rng=0)
    result = sg.solve(problem, sg.spectral(3), sg.ScaledGD(sg.line_search()), max_iter=200)
    signal = problem.signal(result.factors)
    assert np.linalg.norm(signal - x) < 1e-6 * np.linalg.norm(x)


@pytest.mark.parametrize("factor", [1e-8, 1.0, 1e8])
def test_line_search_is_scale_free(factor):
    problem, truth = sg.datasets.matrix_completion(100, 80, 3, 10, 0.5, rng=0)
    scaled = sg.Observed(problem.operator, factor * problem.y, scale=problem.scale)
    big = sg.LowRank(factor * truth.L, truth.R)
    method = sg.ScaledGD(sg.line_search())
    errors = trajectory(scaled, sg.spectral(3), method, big, 30)
    plain = trajectory(problem, sg.spectral(3), method, truth, 30)
    np.testing.assert_allclose(errors, plain, rtol=1e-6)


def test_line_search_never_raises_a_smooth_loss():
    problem, _ = sg.datasets.matrix_completion(100, 80, 3, 100, 0.3, rng=0)
    for method in (sg.ScaledGD(sg.line_search()), sg.GradientDescent(sg.line_search())):
        result = sg.solve(problem, sg.spectral(3), method, max_iter=60)
        values = np.asarray([record["value"] for record in result.history])
        assert np.all(np.diff(values) <= 0)


def test_polyak_without_an_oracle_keeps_up_with_the_oracle():
    problem, truth = sg.datasets.robust_sensing(40, 30, 3, 20, 1200, 0.2, rng=0)
    best = float(problem.linearize(truth).value)
    start = sg.spectral(3, keep=0.8)
    told = trajectory(problem, start, sg.ScaledGD(sg.polyak(best)), truth, 200)
    found = trajectory(problem, start, sg.ScaledGD(sg.polyak(best=None)), truth, 200)
    assert found[-1] < max(10 * told[-1], 1e-8)
    assert found[-1] < 1e-7


def test_polyak_stays_at_the_optimum():
    problem = sg.Observed(sg.Full((2, 2)), np.ones((2, 2)), sg.Absolute())
    exact = sg.LowRank(np.ones((2, 1)), np.ones((2, 1)))
    for step in (sg.polyak(), sg.polyak(best=None)):
        result = sg.solve(problem, exact, sg.ScaledGD(step), max_iter=3)
        np.testing.assert_array_equal(result.factors.full(), np.ones((2, 2)))


def test_geometric_steps_for_the_l1_problem():
    problem, truth = sg.datasets.robust_sensing(40, 30, 3, 20, 1200, 0.2, rng=0)
    step = sg.geometric(0.5 / 1200, 0.93)
    errors = trajectory(problem, sg.spectral(3, keep=0.8), sg.ScaledGD(step), truth, 200)
    assert errors[-1] < 1e-5
    fixed = trajectory(problem, sg.spectral(3, keep=0.8), sg.ScaledGD(0.5 / 1200), truth, 200)
    assert fixed[-1] > 1e-3  # a subgradient method must shorten its steps


def test_a_schedule_is_a_function_of_t():
    problem, _ = sg.datasets.matrix_completion(60, 50, 3, 3, 0.6, rng=0)
    F = sg.spectral(3)(problem)
    result = sg.solve(problem, F, sg.ScaledGD(lambda t: 0.1 * (t + 1)), max_iter=2)
    G = F
    for step in (0.1, 0.2):
        G, _ = sg.ScaledGD(step)(problem, problem.linearize(G))
    np.testing.assert_array_equal(result.factors.L, G.L)


@pytest.mark.parametrize("make", [sg.ScaledGD, sg.GradientDescent])
def test_one_step_per_block(make):
    problem, _ = sg.datasets.matrix_completion(60, 50, 3, 3, 0.6, rng=0)
    F = sg.spectral(3)(problem)
    state = problem.linearize(F)
    both, _ = make(0.3)(problem, state)
    same, _ = make((0.3, 0.3))(problem, state)
    split, _ = make((0.1, 0.2))(problem, state)
    np.testing.assert_array_equal(both.L, same.L)
    np.testing.assert_array_equal(both.R, same.R)
    np.testing.assert_allclose(split.L - F.L, (both.L - F.L) / 3, atol=1e-15)
    np.testing.assert_allclose(split.R - F.R, (both.R - F.R) * 2 / 3, atol=1e-15)
    frozen, _ = make((0.3, 0.0))(problem, state)
    np.testing.assert_array_equal(frozen.R, F.R)


def test_rules_can_differ_between_blocks():
    problem, truth = sg.datasets.matrix_completion(100, 80, 3, 5, 0.5, rng=0)
    method = sg.ScaledGD((sg.line_search(), 0.5))
    assert trajectory(problem, sg.spectral(3), method, truth, 100)[-1] < 1e-8
    searches = sg.ScaledGD((sg.line_search(), sg.line_search()))
    assert trajectory(problem, sg.spectral(3), searches, truth, 150)[-1] < 1e-8
    tensor, cube = sg.datasets.tensor_completion((20, 15, 12), (2, 3, 2), 5, 0.5, rng=0)
    each = sg.ScaledGD((sg.line_search(),) * 4)
    assert trajectory(tensor, sg.diagonal_deleted((2, 3, 2)), each, cube, 150)[-1] < 1e-6
    with pytest.raises(ValueError, match="one per block"):
        sg.solve(problem, sg.spectral(3), sg.ScaledGD((0.1, 0.1, 0.1)))


def test_the_balancing_term_has_the_right_gradient():
    rng = np.random.default_rng(0)
    F = sg.LowRank(draw(rng, 9, 2, dtype=complex), draw(rng, 7, 2, dtype=complex))
    value, grads = F.imbalance()
    LL, RR = F.L.conj().T @ F.L, F.R.conj().T @ F.R
    assert float(value) == pytest.approx(0.5 * np.linalg.norm(LL - RR) ** 2)
    d = draw(rng, 9, 2, dtype=complex), draw(rng, 7, 2, dtype=complex)
    h = 1e-6
    moved = [
        float(sg.LowRank(F.L + s * h * d[0], F.R + s * h * d[1]).imbalance()[0]) for s in (1, -1)
    ]
    slope = sum(np.real(np.vdot(g, e)) for g, e in zip(grads, d, strict=True))
    assert (moved[0] - moved[1]) / (2 * h) == pytest.approx(slope, rel=1e-7)


def test_balanced_gradient_descent_balances():
    """From unbalanced factors plain GD keeps the imbalance; the regulariser removes it."""
    problem, truth = sg.datasets.matrix_sensing(20, 16, 2, 1, 700, rng=0)
    F = sg.spectral(2)(problem)
    skew = sg.LowRank(2 * F.L, F.R / 2)
    uneven = {}
    for balance in (0.0, 0.25):
        method = sg.GradientDescent(0.1, balance=balance)
        result = sg.solve(problem, skew, method, max_iter=900, metrics={"error": error_to(truth)})
        assert result.history[-1]["error"] < 1e-5
        uneven[balance] = float(result.factors.imbalance()[0])
    assert uneven[0.25] < 1e-8
    assert uneven[0.0] > 1e-2
    # the line search sees the regulariser too
    searched = sg.GradientDescent(sg.line_search(), balance=0.25)
    result = sg.solve(problem, skew, searched, max_iter=300)
    assert float(result.factors.imbalance()[0]) < 1e-8
