"""Blocks solved one at a time: each is the least-squares problem that it is."""

import itertools

import numpy as np
import pytest
from conftest import LIBRARIES, draw, first_below, library, trajectory
from scipy.sparse.linalg import LinearOperator

import scaledgd as sg
from scaledgd.growth import widened
from scaledgd.operators import BlockProblem

SHAPE = (23, 17)


def entries(rng, shape=SHAPE, p=0.6):
    index = np.nonzero(rng.random(shape) < p)
    order = rng.permutation(index[0].size)
    return sg.Entries(tuple(i[order] for i in index), shape)


def dense_solution(operator, F, k, gradient, ridge, weights):
    """The same by forming the matrix of the block's least-squares problem."""
    B = F.blocks[k]
    columns = []
    for e in range(B.size):
        D = np.zeros(B.size, dtype=B.dtype)
        D[e] = 1.0
        columns.append(np.ravel(operator.apply(F.linear(k, D.reshape(B.shape)))))
    M = np.stack(columns, axis=1)
    w = np.ones(M.shape[0]) if weights is None else np.ravel(weights)
    H = M.conj().T @ (w[:, None] * M)
    if np.iscomplexobj(H) and k == 1 and isinstance(F, sg.LowRank):
        H = H.conj()  # X is antilinear in R
    if ridge is not None:
        H = H + np.diag(np.ravel(np.broadcast_to(ridge, B.shape)))
    return np.linalg.solve(H, np.ravel(gradient)).reshape(B.shape)


def factorisations(rng, dtype=float):
    n1, n2 = SHAPE
    yield "LowRank", sg.LowRank(draw(rng, n1, 3, dtype=dtype), draw(rng, n2, 3, dtype=dtype))
    if dtype is float:
        u, v = rng.uniform(1, 2, n1), rng.uniform(1, 2, n2)
        yield "both", sg.Bordered(draw(rng, n1, 3), draw(rng, n2, 3), u, v)
        yield "rows", sg.Bordered(draw(rng, n1, 3), draw(rng, n2, 2), None, v)
        yield "columns", sg.Bordered(draw(rng, n1, 2), draw(rng, n2, 3), u, None)


def solved(A, F, k, gradient, weights=None, **given):
    y = np.zeros(A.measured, dtype=gradient.dtype)
    return A.solve_block(BlockProblem(F, k, y, sg.Squared(), **given), gradient, weights)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ridge", [None, "columns", "entries"])
@pytest.mark.parametrize("operator", ["full", "entries"])
def test_row_systems_are_the_least_squares_of_a_block(operator, ridge, weighted):
    rng = np.random.default_rng(0)
    A = sg.Full(SHAPE) if operator == "full" else entries(rng)
    for name, F in factorisations(rng):
        for k in (0, 1):
            gradient = draw(rng, *F.blocks[k].shape)
            held = {
                None: None,
                "columns": rng.uniform(0.1, 1, F.blocks[k].shape[1]),
                "entries": rng.uniform(0.1, 1, F.blocks[k].shape),
            }[ridge]
            w = rng.uniform(0.5, 2, A.measured) if weighted else None
            ours = solved(A, F, k, gradient, w, ridge=held).step
            theirs = dense_solution(A, F, k, gradient, held, w)
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8, err_msg=f"{name} {k}")


def test_row_systems_of_complex_factors_and_of_tensors():
    rng = np.random.default_rng(1)
    A = entries(rng)
    ((_, F),) = factorisations(rng, complex)
    for k in (0, 1):
        gradient = draw(rng, *F.blocks[k].shape, dtype=complex)
        step = solved(A, F, k, gradient).step
        # the gradient of ½‖A(X_D)‖² at the solution is the one given
        there = F.pullback_block(A.adjoint(A.apply(F.linear(k, step))), k)
        np.testing.assert_allclose(there, gradient, rtol=1e-6, atol=1e-7)
    shape = (9, 8, 7)
    T = sg.Tucker(tuple(draw(rng, n, 2) for n in shape), draw(rng, 2, 2, 2))
    for B in (entries(rng, shape), sg.Full(shape)):
        for k in range(4):
            gradient = draw(rng, *T.blocks[k].shape)
            step = solved(B, T, k, gradient, steps=60).step
            there = T.pullback_block(B.adjoint(B.apply(T.linear(k, step))), k)
            size = np.abs(gradient).max()
            assert np.abs(there - gradient).max() < (1e-6 if k < 3 else 0.05) * size


def test_the_inverses_of_row_systems():
    rng = np.random.default_rng(2)
    A = entries(rng)
    _, F = next(factorisations(rng))
    ridge = rng.uniform(0.1, 1, F.L.shape)
    _, diagonals, total, _ = solved(A, F, 0, F.L, ridge=ridge, spread=True)
    i, j = A.index
    expected = np.zeros((SHAPE[0], 3, 3))
    for row in range(SHAPE[0]):
        V = F.R[j[i == row]]
        expected[row] = np.linalg.inv(V.T @ V + np.diag(ridge[row]))
    np.testing.assert_allclose(diagonals, np.einsum("nii->ni", expected), rtol=1e-6)
    np.testing.assert_allclose(total, expected.sum(0), rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("observed", ["full", "entries"])
def test_small_cores_take_the_same_steps_by_their_normal_equations(observed, weighted, monkeypatch):
    rng, shape = np.random.default_rng(6), (9, 8, 7)
    T = sg.Tucker(tuple(draw(rng, n, 2) for n in shape), draw(rng, 2, 2, 2))
    A = sg.Full(shape) if observed == "full" else entries(rng, shape)
    w = 1.0 * (rng.random(A.measured) < 0.5) if weighted else None  # some are rejected
    gradient = draw(rng, 2, 2, 2)
    for ridge in (None, rng.uniform(0.1, 1, (2, 2, 2))):
        for steps in (1, 3, 60):
            formed = solved(A, T, 3, gradient, w, steps=steps, ridge=ridge).step
            with monkeypatch.context() as patch:
                patch.setattr(type(A), "block_matrix", lambda *_: None)
                applied = solved(A, T, 3, gradient, w, steps=steps, ridge=ridge).step
            np.testing.assert_allclose(formed, applied, rtol=1e-9)
        exact = dense_solution(A, T, 3, gradient, ridge, w)
        assert np.linalg.norm(formed - exact) < 0.02 * np.linalg.norm(exact)


def test_a_core_of_which_the_data_say_too_little():
    """The step reproduces the data, and of all that do it changes X least."""
    rng, shape = np.random.default_rng(7), (5, 4, 3)
    T = sg.Tucker(tuple(draw(rng, n, 2) for n in shape), draw(rng, 2, 2, 2))
    A = sg.Entries(tuple(np.arange(3) for _ in shape), shape)  # three numbers for eight
    gradient = T.pullback_block(A.adjoint(np.asarray([1.0, -2.0, 0.5])), 3)
    step = solved(A, T, 3, gradient, steps=30).step
    X = T.linear(3, step)
    np.testing.assert_allclose(A.apply(X), [1.0, -2.0, 0.5], rtol=0.05)
    J, whole = A.block_matrix(T, 3), sg.Full(shape).block_matrix(T, 3)
    root = np.linalg.qr(whole)[1]
    least = np.linalg.pinv(J @ np.linalg.inv(root)) @ [1.0, -2.0, 0.5]
    np.testing.assert_allclose(np.linalg.norm(X.full()), np.linalg.norm(least), rtol=0.05)


def test_a_core_of_which_accepted_entries_say_too_little():
    rng, shape = np.random.default_rng(8), (5, 4, 3)
    T = sg.Tucker(tuple(draw(rng, n, 2) for n in shape), draw(rng, 2, 2, 2))
    A, w = sg.Full(shape), np.zeros(shape)
    w[0, 0, :] = w[2, 1, :] = 1.0  # six numbers for eight
    gradient = T.pullback_block(A.adjoint(w * draw(rng, *shape)), 3)
    step = solved(A, T, 3, gradient, w, steps=30).step
    there = T.pullback_block(A.adjoint(w * A.apply(T.linear(3, step))), 3)
    assert np.abs(there - gradient).max() < 0.05 * np.abs(gradient).max()


@pytest.mark.parametrize("dense", [True, False])
def test_blocks_of_a_general_operator(dense):
    rng = np.random.default_rng(3)
    A = sg.Sensing(draw(rng, 300, 8, 6))
    if not dense:
        A = sg.Sensing(LinearOperator(A.matrix.shape, A.matrix.dot, A.matrix.T.dot), shape=(8, 6))
    F = sg.LowRank(draw(rng, 8, 2), draw(rng, 6, 2))
    gradient = draw(rng, 8, 2)
    step = solved(A, F, 0, gradient, steps=50).step
    theirs = dense_solution(A, F, 0, gradient, None, None)
    assert np.linalg.norm(step - theirs) < 0.02 * np.linalg.norm(theirs)


def test_rows_without_data_are_left_alone():
    index = (np.asarray([0, 0, 1]), np.asarray([0, 1, 0]))
    A = sg.Entries(index, (3, 2))
    F = sg.LowRank(np.ones((3, 2)), np.asarray([[1.0, 0.5], [0.0, 1.0]]))
    problem = sg.Observed(A, np.asarray([2.0, 3.0, 4.0]))
    moved, _ = sg.Alternating(update=(0,))(problem, problem.linearize(F))
    np.testing.assert_array_equal(moved.L[2], F.L[2])
    np.testing.assert_allclose(A.apply(moved), problem.y)


@pytest.mark.parametrize("kappa", [1, 1e3])
def test_alternating_takes_the_same_iterations_for_every_condition_number(kappa):
    problem, truth = sg.datasets.matrix_completion(300, 250, rank=5, kappa=kappa, p=0.3, rng=0)
    start = sg.small_random(5, 1.0, rng=0)
    errors = trajectory(problem, start, sg.Alternating(), truth, 16)
    assert 6 <= first_below(errors, 1e-8) <= 14
    # the negative control: gradient descent is nowhere near
    slow = trajectory(problem, sg.spectral(5), sg.GradientDescent(0.5), truth, 16)
    assert slow[-1] > 1e-4


def test_alternating_never_raises_the_loss():
    problem, _ = sg.datasets.matrix_completion(60, 50, rank=3, kappa=30, p=0.4, rng=1)
    noisy = sg.Observed(problem.operator, problem.y + 0.01 * np.sin(np.arange(problem.y.size)))
    result = sg.solve(noisy, sg.small_random(5, 1.0, rng=0), sg.Alternating(), max_iter=25)
    values = [record["value"] for record in result.history]
    assert all(b <= a * (1 + 1e-9) for a, b in itertools.pairwise(values))


@pytest.mark.parametrize("kappa", [1, 100])
def test_longer_steps_need_fewer_sweeps_and_never_raise_the_loss(kappa):
    problem, truth = sg.datasets.matrix_completion(300, 250, rank=5, kappa=kappa, p=0.12, rng=1)
    start, counts = sg.spectral(5), []
    for relax in (False, True):
        result = sg.solve(problem, start, sg.Alternating(relax=relax), max_iter=40)
        values = [record["value"] for record in result.history]
        least = 1e-18 * values[0]
        assert all(b <= a or b < least for a, b in itertools.pairwise(values))
        counts.append(next(t for t, value in enumerate(values) if value < least))
        assert sg.metrics.relative_error(result.factors, truth) < 1e-7
    assert counts[1] < 0.8 * counts[0]


def test_longer_steps_go_on_where_a_run_stopped():
    problem, _ = sg.datasets.matrix_completion(60, 50, rank=3, kappa=10, p=0.4, rng=0)
    method = sg.Alternating(relax=True)
    whole = sg.solve(problem, sg.spectral(3), method, max_iter=9)
    half = sg.solve(problem, sg.spectral(3), method, max_iter=4)
    rest = sg.solve(problem, half.state, method, max_iter=5)
    for A, B in zip(whole.factors.blocks, rest.factors.blocks, strict=True):
        np.testing.assert_array_equal(A, B)
    assert whole.state.memory.method.factor > 1


def test_alternating_is_scaled_gradient_descent_with_step_one_where_all_is_observed():
    rng = np.random.default_rng(4)
    Y = draw(rng, *SHAPE)
    problem = sg.Observed(sg.Full(SHAPE), Y)
    F = sg.LowRank(draw(rng, SHAPE[0], 3), draw(rng, SHAPE[1], 3))
    one, _ = sg.Alternating(update=(0,))(problem, problem.linearize(F))
    other, _ = sg.ScaledGD(1.0, update=(0,))(problem, problem.linearize(F))
    np.testing.assert_allclose(one.L, other.L, rtol=1e-7)


def test_alternating_refuses_what_is_not_linear_in_a_block():
    problem, _ = sg.datasets.quadratic_sampling(8, 2, 2, 60, 0.0, rng=0)
    with pytest.raises(TypeError, match="use ScaledGD"):
        sg.solve(problem, sg.spectral(2), sg.Alternating(), max_iter=1)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("method", [sg.Alternating(), sg.ScaledLBFGS(), sg.Variational()])
def test_libraries_walk_in_step(name, method):
    xp = library(name)
    problem, _ = sg.datasets.matrix_completion(40, 30, rank=3, kappa=5, p=0.6, rng=0)
    i, j = problem.operator.index
    noise = 1e-3 * np.random.default_rng(0).standard_normal(problem.y.size)
    F = sg.spectral(3)(problem)
    expected = sg.solve(
        sg.Observed(problem.operator, problem.y + noise), F, method, max_iter=6
    ).history
    there = sg.Observed(
        sg.Entries((xp.asarray(i), xp.asarray(j)), (40, 30)), xp.asarray(problem.y + noise)
    )
    start = sg.LowRank(xp.asarray(F.L), xp.asarray(F.R))
    ours = sg.solve(there, start, method, max_iter=6).history
    values, theirs = ([record["value"] for record in h] for h in (ours, expected))
    np.testing.assert_allclose(values, theirs, rtol=1e-6)


def test_few_observations_need_growing():
    rng = np.random.default_rng(5)
    n, r = 120, 4
    problem, truth = sg.datasets.matrix_completion(n, n, rank=r, kappa=1e4, p=0.2, rng=5)
    count = int(2.5 * r * (2 * n - r))
    chosen = rng.choice(problem.y.size, count, replace=False)
    index = tuple(i[chosen] for i in problem.operator.index)
    few = sg.Observed(sg.Entries(index, (n, n)), problem.y[chosen])
    grown = sg.solve(few, sg.grown(r), sg.ScaledLBFGS(), max_iter=300)
    assert sg.metrics.relative_error(grown.factors, truth) < 1e-7
    textbook = sg.solve(few, sg.spectral(r), sg.ScaledGD(sg.line_search()), max_iter=300)
    assert sg.metrics.relative_error(textbook.factors, truth) > 1e-2


def test_widening_lowers_the_loss_and_keeps_offsets():
    rng = np.random.default_rng(6)
    Y = draw(rng, *SHAPE)
    problem = sg.Observed(sg.Full(SHAPE), Y)
    F = sg.Bordered(draw(rng, SHAPE[0], 1), draw(rng, SHAPE[1], 1), np.ones(23), np.ones(17))
    state = problem.linearize(F)
    wider = widened(state, 2)
    assert wider.rank == 2
    np.testing.assert_array_equal(wider.L[:, -1], F.L[:, -1])
    assert float(problem.linearize(wider).value) < float(state.value)


def test_bordered_factors_are_what_they_say():
    rng = np.random.default_rng(7)
    n1, n2 = SHAPE
    u, v = rng.uniform(1, 2, n1), rng.uniform(1, 2, n2)
    F = sg.Bordered(draw(rng, n1, 3), draw(rng, n2, 3), u, v)
    X = F.L[:, :2] @ F.R[:, :2].T + np.outer(F.L[:, 2], v) + np.outer(u, F.R[:, 2])
    np.testing.assert_allclose(F.full(), X)
    np.testing.assert_allclose(F.norm(), np.linalg.norm(X))
    np.testing.assert_allclose(F.at((np.asarray([3]), np.asarray([5]))), X[3, 5])
    # gradients by finite differences
    problem = sg.Observed(sg.Full(SHAPE), draw(rng, n1, n2))
    state = problem.linearize(F)
    for k in (0, 1):
        D = draw(rng, *F.blocks[k].shape)
        h = 1e-6
        up, down = (float(state.objective(F.moved(k, s * h * D))) for s in (1, -1))
        slope = float(np.sum(state.gradient[k] * D))
        assert abs((up - down) / (2 * h) - slope) < 1e-6 * abs(slope)
    with pytest.raises(ValueError, match="one rank"):
        sg.Bordered(F.L, F.R, u, None)


def test_a_ridge_is_part_of_the_objective():
    rng = np.random.default_rng(8)
    F = sg.LowRank(draw(rng, 5, 2), draw(rng, 4, 2))
    plain = sg.Observed(sg.Full((5, 4)), draw(rng, 5, 4), scale=2.0)
    ridge = (np.asarray([0.5, 1.0]), rng.uniform(0, 1, (4, 2)))
    held = sg.Observed(plain.operator, plain.y, scale=2.0, ridge=ridge)
    extra = 0.5 * np.sum(ridge[0] * F.L**2) + 0.5 * np.sum(ridge[1] * F.R**2)
    a, b = plain.linearize(F), held.linearize(F)
    np.testing.assert_allclose(float(b.value) - float(a.value), extra)
    np.testing.assert_allclose(b.gradient[1] - a.gradient[1], ridge[1] * F.R)
    best = F.moved(0, -b.view.block_step(0))
    assert np.abs(held.linearize(best).gradient[0]).max() < 1e-8


def test_nonnegative_factors_minimise_the_penalised_loss():
    rng = np.random.default_rng(0)
    operator = entries(rng)
    truth = sg.LowRank(rng.random((SHAPE[0], 2)), rng.random((SHAPE[1], 2)))
    y = operator.apply(truth) + 0.1 * rng.standard_normal(operator.measured)
    ridge = (np.array([0.3, 0.1, 0.2]), np.array([0.2, 0.1, 0.4]))
    problem = sg.Observed(operator, y, ridge=ridge)
    start = sg.LowRank(rng.random((SHAPE[0], 3)), rng.random((SHAPE[1], 3)))
    found = sg.solve(problem, start, sg.NonNegative(), max_iter=3000, stop=[])
    values = [record["value"] for record in found.history]
    assert max(np.diff(values)) <= 1e-12 * values[0]  # no sweep increases the objective
    for B, g in zip(found.factors.blocks, problem.linearize(found.factors).gradient, strict=True):
        assert np.min(B) >= 0
        assert np.max(np.abs(g[B > 0])) < 1e-6  # a minimum where entries are free,
        assert np.min(g[B == 0], initial=0.0) > -1e-6  # and one that zero bounds elsewhere
        assert np.any(B == 0)


def test_weights_are_repetitions():
    rng = np.random.default_rng(9)
    Y = draw(rng, 6, 5)
    weights = rng.integers(1, 4, (6, 5)).astype(float)
    A = sg.Weighted(sg.Full((6, 5)), np.sqrt(weights))
    F = sg.LowRank(draw(rng, 6, 2), draw(rng, 5, 2))
    state = sg.Observed(A, np.sqrt(weights) * Y).linearize(F)
    np.testing.assert_allclose(float(state.value), 0.5 * np.sum(weights * (F.full() - Y) ** 2))
    w = draw(rng, 6, 5)
    left = np.sum(A.apply(F) * w)
    np.testing.assert_allclose(left, np.sum(F.L * F.pullback(A.adjoint(w))[0]))
    with pytest.raises(ValueError, match="shape of the measurements"):
        sg.Weighted(sg.Full((6, 5)), np.ones(30))


def test_rejection_recovers_what_soft_trimming_does_not():
    rng = np.random.default_rng(10)
    problem, truth = sg.datasets.matrix_completion(200, 150, rank=4, kappa=100, p=0.4, rng=0)
    size = np.sqrt(np.mean(problem.y**2))
    y = problem.y + (rng.random(problem.y.size) < 0.1) * size * rng.uniform(-10, 10, problem.y.size)
    hard = sg.Observed(problem.operator, y, sg.HardTrim())
    soft = sg.Observed(problem.operator, y, sg.SoftTrim(sg.median_threshold(ratio=0.5)))
    errors = trajectory(hard, sg.spectral(4), sg.Alternating(), truth, 20)
    assert errors[-1] < 1e-8
    assert trajectory(soft, sg.spectral(4), sg.Alternating(), truth, 20)[-1] > 1e-5


def test_variational_finds_noise_and_rank():
    rng = np.random.default_rng(11)
    problem, truth = sg.datasets.matrix_completion(200, 150, rank=3, kappa=3, p=0.5, rng=0)
    size = np.sqrt(np.mean(problem.y**2))
    noisy = sg.Observed(problem.operator, problem.y + 0.1 * size * draw(rng, problem.y.size))
    start = sg.solve(noisy, sg.spectral(6), sg.Alternating(), max_iter=8).factors
    result = sg.solve(noisy, start, sg.Variational(), max_iter=60)
    posterior = result.state.memory.method
    assert 0.9 < posterior.noise / (0.1 * size) ** 2 < 1.07
    s = np.linalg.svd(result.factors.full())[1]
    assert s[3] < 0.1 * s[2]
    least = sg.metrics.relative_error(start, truth)
    assert sg.metrics.relative_error(result.factors, truth) < 0.8 * least


def test_variational_does_not_depend_on_the_parameterisation():
    rng = np.random.default_rng(12)
    problem, _ = sg.datasets.matrix_completion(60, 50, rank=3, kappa=3, p=0.5, rng=0)
    noisy = sg.Observed(problem.operator, problem.y + 0.01 * draw(rng, problem.y.size))
    F = sg.spectral(3)(noisy)
    results = [
        sg.solve(noisy, G, sg.Variational(), max_iter=25).factors.full()
        for G in (F, sg.LowRank(F.L * 3.0, F.R / 3.0))
    ]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-6)
