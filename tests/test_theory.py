"""The monograph's theorems and stated properties, as assertions."""

import numpy as np
import pytest
from conftest import draw, first_below, full_iterates, invertible, trajectory
from scipy.optimize import minimize

import scaledgd as sg


def isometry(n1, n2, delta, rng):
    """Return an operator with the RIP constant δ at every rank: A*A = Q diag(1 ± δ) Qᵀ."""
    N = n1 * n2
    Q = np.linalg.qr(draw(rng, N, N))[0]
    signs = rng.integers(0, 2, N) * 2.0 - 1
    return sg.Sensing((np.sqrt(1 + delta * signs)[:, None] * Q.T).reshape(N, n1, n2))


def within(errors, bound, rate, floor):
    """Tell whether errors[t] ≤ bound · rateᵗ, down to rounding."""
    return np.all(errors <= bound * rate ** np.arange(len(errors)) + floor)


@pytest.mark.parametrize("eta", [0.1, 0.5, 2 / 3])
@pytest.mark.parametrize("kappa", [1, 10, 100])
def test_theorem_1_matrix_sensing(kappa, eta):
    rng = np.random.default_rng(0)
    r = 3
    truth = sg.datasets.low_rank(20, 16, r, kappa, rng)
    A = isometry(20, 16, 0.02 / (np.sqrt(r) * kappa), rng)
    problem = sg.Observed(A, A.apply(truth))
    norm, sigma_r = float(truth.norm()), 1 / kappa
    errors = norm * trajectory(problem, sg.spectral(r), sg.ScaledGD(eta), truth, 60)
    assert within(errors, 0.15 * sigma_r, 1 - 0.6 * eta, 1e-13)
    assert errors[-1] > 0  # the floor is rounding, not an identity
    if eta == 0.1:  # the rate is close to the bound: a third of it is not reached
        assert not within(errors, 0.15 * sigma_r, (1 - 0.6 * eta) ** 3, 1e-13)


@pytest.mark.parametrize(("rank", "fraction"), [(2, 0.004), (5, 0.002)])
def test_theorem_2_robust_pca(rank, fraction):
    problem, truth = sg.datasets.robust_pca(500, 500, rank, 1, fraction, rng=1)
    norm = float(truth.norm())
    errors = norm * trajectory(problem, sg.spectral(rank), sg.ScaledGD(0.5), truth, 25)
    assert within(errors, 0.03, 1 - 0.6 * 0.5, 1e-13)


@pytest.mark.parametrize(
    ("n", "rank", "kappa", "p"), [(1000, 1, 1, 0.9), (1000, 2, 1, 0.97), (500, 2, 2, 0.99)]
)
def test_theorem_3_completion(n, rank, kappa, p):
    problem, truth = sg.datasets.matrix_completion(n, n, rank, kappa, p, rng=1)
    mu = float(sg.metrics.incoherence(truth))
    project = sg.incoherence(1.02 * np.sqrt(mu * rank))
    method = sg.ScaledGD(0.5, project=project)
    norm = float(truth.norm())
    errors = norm * trajectory(problem, sg.spectral(rank, project), method, truth, 25)
    assert within(errors, 0.03 / kappa, 1 - 0.6 * 0.5, 1e-13)


def problems():
    rng = np.random.default_rng(3)
    yield "sensing", *sg.datasets.matrix_sensing(30, 24, 3, 10, 900, rng=rng)
    yield "completion", *sg.datasets.matrix_completion(80, 60, 3, 10, 0.6, rng=rng)
    yield "robust-pca", *sg.datasets.robust_pca(80, 60, 3, 10, 0.05, rng=rng)
    problem, truth = sg.datasets.robust_pca(80, 60, 3, 10, 0.05, rng=rng)
    loss = sg.SoftTrim(sg.geometric(0.1, 0.9))
    yield "soft-trim", sg.Observed(problem.operator, problem.y, loss), truth
    problem, x = sg.datasets.hankel_completion(40, 30, 3, 10, 0.7, rng=rng)
    yield "hankel", problem, x


PROBLEMS = {name: (problem, truth) for name, problem, truth in problems()}


def reparameterised(F, Q):
    return sg.LowRank(F.L @ Q, F.R @ np.linalg.inv(Q).conj().T)


def largest_gap(xs, ys):
    return max(np.linalg.norm(x - y) / np.linalg.norm(x) for x, y in zip(xs, ys, strict=True))


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_trajectory_does_not_depend_on_the_parameterisation(name):
    problem, _ = PROBLEMS[name]
    F = sg.spectral(3)(problem)
    Q = invertible(3, 10, np.random.default_rng(0), F.L.dtype)
    unitary = np.linalg.qr(Q)[0]
    sigma = float(np.linalg.norm(F.full(), 2))

    def gap(method, Q, n=25):
        paths = (full_iterates(problem, X, method, n) for X in (F, reparameterised(F, Q)))
        return largest_gap(*paths)

    assert gap(sg.ScaledGD(0.5), Q) < 1e-9
    assert gap(sg.ScaledGD(0.5, project=sg.incoherence(2 * sigma)), Q) < 1e-9
    assert gap(sg.GradientDescent(0.1 / sigma), Q) > 1e-3
    damped = sg.ScaledGD(0.5, damping=0.1 * sigma)
    assert gap(damped, unitary) < 1e-9
    assert gap(damped, Q) > 1e-3


def test_the_trajectory_of_symmetric_factors_too():
    """Only unitary transforms of L keep L Lᴴ, and ScaledGD is invariant under them."""
    problem, _ = sg.datasets.quadratic_sampling(30, 2, 5, 600, 0.0, rng=0)
    F = sg.spectral(2)(problem)
    Q = np.linalg.qr(draw(np.random.default_rng(0), 2, 2))[0]
    paths = (
        full_iterates(problem, X, sg.ScaledGD(sg.polyak()), 20) for X in (F, sg.Symmetric(F.L @ Q))
    )
    assert largest_gap(*paths) < 1e-9


@pytest.mark.parametrize("name", ["sensing", "completion", "robust-pca"])
def test_factors_stay_balanced_without_a_regulariser(name):
    problem, truth = PROBLEMS[name]
    if name == "sensing":  # the bound needs a start that is close enough
        problem, truth = sg.datasets.matrix_sensing(30, 24, 3, 10, 4000, rng=3)
    uneven = []

    def watch(state):
        L, R = state.factors.blocks
        uneven.append(np.linalg.norm(L.T @ L - R.T @ R))

    sg.solve(problem, sg.spectral(3), sg.ScaledGD(0.5), max_iter=80, callback=watch)
    assert max(uneven) < 0.05 * float(truth.norm())
    assert max(uneven) > 0  # they are not tied together


def test_robust_pca_stays_incoherent_without_projection():
    problem, truth = sg.datasets.robust_pca(300, 200, 4, 10, 0.05, rng=0)
    mu = float(sg.metrics.incoherence(truth))
    seen = []
    sg.solve(
        problem,
        sg.spectral(4),
        sg.ScaledGD(0.5),
        max_iter=60,
        callback=lambda s: seen.append(float(sg.metrics.incoherence(s.factors))),
    )
    assert max(seen) < 2 * mu
    assert seen[-1] == pytest.approx(mu, rel=1e-3)
    raw = sg.Observed(problem.operator, problem.y)  # control: no trimming
    assert float(sg.metrics.incoherence(sg.spectral(4)(raw))) > 2 * mu


def test_the_update_minimises_the_scaled_quadratic_model():
    problem, _ = PROBLEMS["completion"]
    F, eta = sg.spectral(3)(problem), 0.37
    state = problem.linearize(F)
    gL, gR = state.gradient
    new, _ = sg.ScaledGD(eta)(problem, state)

    def model(L, R):
        dL, dR = L - F.L, R - F.R
        return (
            np.sum(gL * dL)
            + np.sum(gR * dR)
            + np.trace(dL @ (F.R.T @ F.R) @ dL.T) / (2 * eta)
            + np.trace(dR @ (F.L.T @ F.L) @ dR.T) / (2 * eta)
        )

    # the model is a quadratic: its exact minimiser solves its normal equations
    L = F.L - eta * np.linalg.solve(F.R.T @ F.R, gL.T).T
    R = F.R - eta * np.linalg.solve(F.L.T @ F.L, gR.T).T
    np.testing.assert_allclose(new.L, L, atol=1e-13)
    np.testing.assert_allclose(new.R, R, atol=1e-13)
    rng = np.random.default_rng(0)
    for size in (1e-1, 1e-3):
        nearby = model(new.L + size * draw(rng, *L.shape), new.R + size * draw(rng, *R.shape))
        assert nearby > model(new.L, new.R)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_preconditioners_are_the_inverse_diagonal_blocks_of_the_hessian(dtype):
    """Of ½‖L Rᴴ − X‖²: it is quadratic in each block, so differences of gradients are exact."""
    rng = np.random.default_rng(0)
    X = draw(rng, 9, 7, dtype=dtype)
    problem = sg.Observed(sg.Full((9, 7)), X)
    F = sg.LowRank(draw(rng, 9, 3, dtype=dtype), draw(rng, 7, 3, dtype=dtype))
    E, D = draw(rng, 9, 3, dtype=dtype), draw(rng, 7, 3, dtype=dtype)
    gL, gR = problem.linearize(F).gradient
    HE = problem.linearize(sg.LowRank(F.L + E, F.R)).gradient[0] - gL
    HD = problem.linearize(sg.LowRank(F.L, F.R + D)).gradient[1] - gR
    back = F.precondition((HE, HD))
    np.testing.assert_allclose(back[0], E, atol=1e-12)
    np.testing.assert_allclose(back[1], D, atol=1e-12)


def test_a_full_step_on_one_block_solves_it():
    """Step 1 on L alone is the least-squares solution, as a Newton step must be."""
    rng = np.random.default_rng(0)
    X = draw(rng, 9, 7)
    problem = sg.Observed(sg.Full((9, 7)), X)
    F = sg.LowRank(draw(rng, 9, 3), draw(rng, 7, 3))
    new, _ = sg.ScaledGD((1.0, 0.0))(problem, problem.linearize(F))
    np.testing.assert_array_equal(new.R, F.R)
    np.testing.assert_allclose(new.L, np.linalg.lstsq(F.R, X.T, rcond=None)[0].T, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_projection_satisfies_its_bound_and_is_equivariant(dtype):
    rng = np.random.default_rng(0)
    F = sg.LowRank(draw(rng, 30, 3, dtype=dtype), draw(rng, 20, 3, dtype=dtype))
    X = F.full()
    radius = 0.7 * np.sqrt(30) * np.max(np.linalg.norm(X, axis=1))
    P = sg.incoherence(radius)(F)
    rows = np.sqrt(30) * np.linalg.norm(P.L @ F.R.conj().T, axis=1)
    columns = np.sqrt(20) * np.linalg.norm(P.R @ F.L.conj().T, axis=1)
    assert max(rows.max(), columns.max()) <= radius * (1 + 1e-12)
    assert np.any(np.isclose(rows, radius))
    assert np.any(rows < 0.9 * radius)
    untouched = rows < 0.9 * radius
    np.testing.assert_array_equal(P.L[untouched], F.L[untouched])

    Q = invertible(3, 10, rng, dtype)
    both = sg.incoherence(radius)(reparameterised(F, Q)).full()
    np.testing.assert_allclose(both, P.full(), atol=1e-11)

    def standard(G, size):  # the usual projection: rows of L and R onto a ball
        def clip(M):
            norms = np.linalg.norm(M, axis=1, keepdims=True)
            return M * np.minimum(1, size / norms)

        return sg.LowRank(clip(G.L), clip(G.R))

    size = 0.7 * np.max(np.linalg.norm(F.L, axis=1))
    gap = standard(F, size).full() - standard(reparameterised(F, Q), size).full()
    assert np.linalg.norm(gap) > 1e-2 * np.linalg.norm(X)


def test_projection_leaves_zero_rows_alone():
    F = sg.LowRank(np.asarray([[0.0, 0.0], [9.0, 0.0]]), np.eye(2))
    P = sg.incoherence(1.0)(F)
    np.testing.assert_array_equal(P.L[0], [0.0, 0.0])
    assert np.linalg.norm(P.L[1]) == pytest.approx(1 / np.sqrt(2))


def test_projection_is_the_minimiser_of_its_constrained_problem():
    rng = np.random.default_rng(2)
    n1, n2, r = 4, 3, 2
    F = sg.LowRank(draw(rng, n1, r), draw(rng, n2, r))
    radius = 0.8 * np.sqrt(n1) * np.max(np.linalg.norm(F.full(), axis=1))
    GR, GL = F.R.T @ F.R, F.L.T @ F.L

    def split(x):
        return x[: n1 * r].reshape(n1, r), x[n1 * r :].reshape(n2, r)

    def objective(x):
        L, R = split(x)
        return np.trace((L - F.L) @ GR @ (L - F.L).T) + np.trace((R - F.R) @ GL @ (R - F.R).T)

    def slack(x):
        L, R = split(x)
        rows = n1 * np.einsum("ij,jk,ik->i", L, GR, L)
        columns = n2 * np.einsum("ij,jk,ik->i", R, GL, R)
        return radius**2 - np.concatenate([rows, columns])

    start = 0.1 * np.concatenate([F.L.ravel(), F.R.ravel()])
    found = minimize(
        objective,
        start,
        method="SLSQP",
        constraints={"type": "ineq", "fun": slack},
        options={"maxiter": 1000, "ftol": 1e-14},
    )
    assert found.success
    L, R = split(found.x)
    P = sg.incoherence(radius)(F)
    np.testing.assert_allclose(P.L, L, atol=1e-5)
    np.testing.assert_allclose(P.R, R, atol=1e-5)


def test_symmetric_steps_mean_what_asymmetric_steps_mean():
    """On a symmetric problem with L = R the two factorisations take the same path."""
    rng = np.random.default_rng(0)
    B = draw(rng, 400, 12, 12) / 20
    A = sg.Sensing((B + B.transpose(0, 2, 1)) / 2)
    truth = sg.Symmetric(draw(rng, 12, 2))
    problem = sg.Observed(A, A.apply(truth))
    L = truth.L + 0.1 * draw(rng, 12, 2)
    for method in (sg.ScaledGD(0.4), sg.ScaledGD(0.4, damping=0.3), sg.GradientDescent(0.01)):
        one = full_iterates(problem, sg.Symmetric(L), method, 10)
        two = full_iterates(problem, sg.LowRank(L, L), method, 10)
        assert largest_gap(one, two) < 1e-10


@pytest.mark.parametrize("make", ["completion", "sensing", "robust-pca"])
def test_scaled_gd_is_kappa_free_and_gradient_descent_is_not(make):
    sizes = {
        "completion": lambda k: sg.datasets.matrix_completion(200, 200, 4, k, 0.5, rng=0),
        "sensing": lambda k: sg.datasets.matrix_sensing(30, 30, 3, k, 1000, rng=0),
        "robust-pca": lambda k: sg.datasets.robust_pca(200, 200, 4, k, 0.05, rng=0),
    }
    counts = {"scaled": [], "plain": []}
    for kappa in (1, 5, 20):
        problem, truth = sizes[make](kappa)
        rank = truth.rank
        for name, method in (("scaled", sg.ScaledGD(0.5)), ("plain", sg.GradientDescent(0.5))):
            errors = trajectory(problem, sg.spectral(rank), method, truth, 150)
            counts[name].append(first_below(errors, 1e-6))
    assert max(counts["scaled"]) <= 1.1 * min(counts["scaled"]) + 2
    assert counts["plain"][1] >= 2 * counts["plain"][0]
    assert counts["plain"][2] == np.inf
