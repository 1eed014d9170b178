"""CP factors, and the variational model of tensors: the truths that they must keep."""

import numpy as np
import pytest
from conftest import draw, slopes

import scaledgd as sg
from scaledgd.ambient import Ambient, Dense
from scaledgd.variational import cp as variational
from scaledgd.variational.cp import PosteriorCP, VariationalCP, joint_start

SHAPES = {2: (7, 6), 3: (7, 6, 5), 4: (5, 4, 3, 4)}
DTYPES = (np.float64, np.complex128)


def random_cp(order, dtype, rng, rank=3):
    return sg.CP(tuple(draw(rng, n, rank, dtype=dtype) for n in SHAPES[order]))


def einsum(factors):
    letters = "abcd"[: len(factors)]
    return np.einsum(",".join(f"{x}r" for x in letters) + f"->{letters}", *factors)


def operators(order, dtype, rng):
    shape = SHAPES[order]
    flat = rng.permutation(int(np.prod(shape)))[: int(np.prod(shape)) // 2]
    return {
        "Full": sg.Full(shape),
        "Entries": sg.Entries(np.unravel_index(flat, shape), shape),
        "Sensing": sg.Sensing(draw(rng, 30, *shape, dtype=dtype)),
    }


# ---- factors


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", SHAPES)
def test_full_at_norm_and_distance_agree(order, dtype):
    rng = np.random.default_rng(0)
    F, G = random_cp(order, dtype, rng), random_cp(order, dtype, rng)
    X = einsum(F.factors)
    np.testing.assert_allclose(F.full(), X, atol=1e-12)
    index = np.unravel_index(rng.permutation(X.size), X.shape)
    np.testing.assert_allclose(F.at(index), X[index], atol=1e-12)
    assert F.at(tuple(i[:0] for i in index)).shape == (0,)
    assert float(F.norm()) == pytest.approx(np.linalg.norm(X))
    assert F.distance(G) == pytest.approx(np.linalg.norm(X - G.full()))
    few = sg.CP(tuple(U[:, :2] for U in G.factors))
    assert F.distance(few) == pytest.approx(np.linalg.norm(X - few.full()))
    near = F.moved(1, 1e-9 * G.factors[1])
    assert F.distance(near) == pytest.approx(
        1e-9 * np.linalg.norm(F.linear(1, G.factors[1]).full())
    )
    assert F.shape == SHAPES[order]
    assert F.rank == 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["Full", "Entries", "Sensing"])
@pytest.mark.parametrize("order", SHAPES)
def test_finite_differences(order, name, dtype):
    rng = np.random.default_rng(1)
    A, F = operators(order, dtype, rng)[name], random_cp(order, dtype, rng)
    problem = sg.Observed(A, draw(rng, *A.measured, dtype=dtype), scale=1.3)
    found, expected, scale = slopes(problem.linearize(F), F, rng, dtype)
    assert abs(found - expected) <= 1e-6 * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", SHAPES)
def test_preconditioners_are_the_inverse_diagonal_blocks_of_the_hessian(order, dtype):
    rng = np.random.default_rng(2)
    F = random_cp(order, dtype, rng)
    problem = sg.Observed(sg.Full(F.shape), draw(rng, *F.shape, dtype=dtype))
    before = problem.linearize(F).gradient
    for k, B in enumerate(F.blocks):
        E = draw(rng, *B.shape, dtype=dtype)
        change = problem.linearize(F.moved(k, E)).gradient[k] - before[k]
        np.testing.assert_allclose(F.preconditioner(k)(change), E, atol=1e-9)
        grads = tuple(change if j == k else 0 * G for j, G in enumerate(F.blocks))
        np.testing.assert_allclose(F.precondition(grads)[k], E, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", SHAPES)
def test_columnwise_contractions_agree(order, dtype, monkeypatch):
    monkeypatch.setattr("scaledgd.kernels.generic.CHUNK", 2000)  # several chunks even here
    monkeypatch.setattr("scaledgd.ambient.BLOCK", 20)
    rng = np.random.default_rng(3)
    F, A = random_cp(order, dtype, rng), operators(order, dtype, rng)["Entries"]
    Z = A.adjoint(draw(rng, *A.measured, dtype=dtype))
    M = Z.contract(tuple(np.eye(n) for n in Z.shape), skip=0)
    for k in range(order):
        expected = Ambient.columnwise(Dense(M), F.factors, k)
        assert expected.shape == F.factors[k].shape
        np.testing.assert_allclose(Z.columnwise(F.factors, k), expected, atol=1e-11)
        np.testing.assert_allclose(Dense(M).columnwise(F.factors, k), expected, atol=1e-11)


@pytest.mark.parametrize("name", ["Full", "Entries"])
@pytest.mark.parametrize("order", SHAPES)
def test_rows_are_solved_exactly(order, name):
    rng = np.random.default_rng(4)
    A, F = operators(order, np.float64, rng)[name], random_cp(order, np.float64, rng, rank=2)
    problem = sg.Observed(A, draw(rng, *A.measured))
    for k in range(order):
        moved = F.moved(k, -problem.block_step(F, k))
        gradient = problem.linearize(moved).gradient[k]
        assert np.linalg.norm(gradient) < 1e-6 * np.linalg.norm(problem.linearize(F).gradient[k])


@pytest.mark.parametrize("method", [sg.ScaledGD(0.4), sg.ScaledGD(0.4, damping=0.1)])
def test_an_order_two_cp_is_a_matrix(method):
    """ScaledGD takes L Rᵀ and CP((L, R)) through the same iterates."""
    problem, _ = sg.datasets.matrix_completion(30, 25, 2, 3, 0.6, rng=0)
    F = sg.spectral(2)(problem)
    both = (sg.solve(problem, G, method, max_iter=20).factors for G in (F, sg.CP((F.L, F.R))))
    a, b = both
    np.testing.assert_allclose(b.full(), a.full(), atol=1e-12)


def test_alternating_recovers_a_sum_of_outer_products():
    rng = np.random.default_rng(5)
    truth = sg.CP(tuple(draw(rng, n, 3) for n in (20, 18, 16)))
    index = np.nonzero(rng.random(truth.shape) < 0.4)
    problem = sg.Observed(sg.Entries(index, truth.shape), truth.at(index))
    start = truth.with_blocks(tuple(U + 0.3 * draw(rng, *U.shape) for U in truth.factors))
    F = sg.solve(problem, start, sg.Alternating(), max_iter=60).factors
    assert F.distance(truth) < 1e-8 * float(truth.norm())


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: sg.CP(np.ones((3, 2))), "tuple of arrays"),
        (lambda: sg.CP((np.ones((3, 2)),)), "at least 2"),
        (lambda: sg.CP((np.ones((3, 2)), np.ones((4, 3)))), "columns"),
        (lambda: sg.CP((np.ones(3), np.ones((4, 3)))), "factors"),
    ],
)
def test_wrong_factors_are_refused(made, words):
    with pytest.raises((TypeError, ValueError), match=words):
        made()


# ---- the variational model


def instance(rank=3, shape=(12, 10, 8), noise=0.1, p=0.6, seed=0):
    rng = np.random.default_rng(seed)
    truth = sg.CP(tuple(draw(rng, n, rank) for n in shape))
    index = np.nonzero(rng.random(shape) < p)
    y = truth.at(index) + noise * rng.standard_normal(len(index[0]))
    return sg.Observed(sg.Entries(index, shape), y), truth


def by_hand(problem, factors, sweeps, share):
    """The same model, one row after the other and one entry after the other."""
    index, y, d = problem.operator.index, problem.y, len(problem.shape)
    U = [B.copy() for B in factors.factors]
    r, mean = U[0].shape[1], np.mean(y**2)
    prior, noise = (
        np.prod([np.mean(B**2, axis=0) for B in U], axis=0) ** (1 / d),
        (1 - share) * mean,
    )
    C = [np.zeros((len(B), r, r)) for B in U]
    for _ in range(sweeps):
        for k in range(d):
            others = [j for j in range(d) if j != k]
            G, t = np.zeros((len(U[k]), r, r)), np.zeros_like(U[k])
            for e in range(len(y)):
                moment, v = np.ones((r, r)), np.ones(r)
                for j in others:
                    u = U[j][index[j][e]]
                    moment, v = moment * (np.outer(u, u) + C[j][index[j][e]]), v * u
                G[index[k][e]] += moment
                t[index[k][e]] += y[e] * v
            C[k] = np.linalg.inv(G / noise + np.diag(1 / prior))
            U[k] = np.einsum("nij,nj->ni", C[k], t) / noise
            second = U[k][:, :, None] * U[k][:, None, :] + C[k]
            left = np.sum(y**2) - 2 * np.sum(U[k] * t) + np.sum(G * second)
            own = np.mean(U[k] ** 2 + np.einsum("nii->ni", C[k]), axis=0)
            fresh = own ** (1 / d) * prior ** (1 - 1 / d)
            for j in range(d):
                s = np.sqrt(fresh / (own if j == k else prior))
                U[j], C[j] = U[j] * s, C[j] * np.outer(s, s)
            prior = fresh
        noise = left / len(y)
    return U, noise, prior


@pytest.mark.parametrize("empty", [12, 0])
def test_the_sweep_is_the_one_written_by_hand(empty, monkeypatch):
    """Over all cells, or over observed entries alone; whole or in parts."""
    monkeypatch.setattr(variational, "EMPTY", empty)
    monkeypatch.setattr(variational, "WIDTH", 4)
    monkeypatch.setattr(variational, "SYSTEMS", 30)
    problem, _ = instance(shape=(6, 5, 4), p=0.8)
    start = joint_start(problem, 3, 0.9, 0)
    result = sg.solve(problem, start, VariationalCP(0.9), max_iter=3)
    U, noise, prior = by_hand(problem, start, 3, 0.9)
    for A, B in zip(result.factors.factors, U, strict=True):
        np.testing.assert_allclose(A, B, rtol=1e-8, atol=1e-10)
    known = result.state.memory.method
    assert isinstance(known, PosteriorCP)
    assert known.noise == pytest.approx(noise)
    np.testing.assert_allclose(known.prior, prior, rtol=1e-8)


def test_noise_and_number_of_components_are_learnt():
    problem, truth = instance(shape=(40, 30, 20), noise=0.1)
    result = sg.solve(problem, joint_start(problem, 8, 0.99, 0), VariationalCP(), max_iter=60)
    assert result.factors.distance(truth) < 0.04 * float(truth.norm())
    assert result.state.memory.method.noise == pytest.approx(0.01, rel=0.1)


def test_each_slice_has_a_noise_of_its_own():
    rng = np.random.default_rng(0)
    truth = sg.CP(tuple(draw(rng, n, 2) for n in (20, 30, 25)))
    size = np.where(np.arange(20) < 10, 0.05, 0.5)
    Y = truth.full() + size[:, None, None] * rng.standard_normal(truth.shape)
    problem = sg.Observed(sg.Full(Y.shape), Y)
    result = sg.solve(
        problem, joint_start(problem, 4, 0.99, 0), VariationalCP(0.99, (0, 1, 2)), max_iter=40
    )
    known = result.state.memory.method
    np.testing.assert_allclose(np.sqrt(known.noise * known.scales[0]), size, rtol=0.15)
    np.testing.assert_allclose(known.scales[1], 1, atol=0.3)
    even = sg.solve(problem, joint_start(problem, 4, 0.99, 0), VariationalCP(), max_iter=40)
    assert result.factors.distance(truth) < 0.9 * even.factors.distance(truth)


def test_weights_count_as_repetitions():
    """An entry of weight 2 is one that was seen twice: here, in a slice and its copy."""
    problem, _ = instance(shape=(6, 5, 4), p=1.0)
    root = np.full(problem.y.shape, np.sqrt(2.0))
    weighted = sg.Observed(sg.Weighted(problem.operator, root), root * problem.y)
    start = joint_start(problem, 2, 0.9, 0)
    first = PosteriorCP.first(start, 0.3)
    half = PosteriorCP.first(start, 0.15)
    # noise of half the variance instead: the first mode is solved alike
    a = VariationalCP()(weighted, weighted.linearize(start).remembering(first))[0]
    b = VariationalCP()(problem, problem.linearize(start).remembering(half))[0]
    np.testing.assert_allclose(a.full(), b.full(), rtol=1e-9)


def test_the_model_does_not_depend_on_units_or_order():
    problem, _ = instance()
    start = joint_start(problem, 4, 0.9, 0)
    plain = sg.solve(problem, start, VariationalCP(0.9, (0,)), max_iter=8).factors.full()
    large = sg.Observed(problem.operator, 1024 * problem.y)
    scaled = sg.solve(large, joint_start(large, 4, 0.9, 0), VariationalCP(0.9, (0,)), max_iter=8)
    np.testing.assert_allclose(scaled.factors.full(), 1024 * plain, rtol=1e-7, atol=1e-7)
    order = np.random.default_rng(1).permutation(12)
    index = (np.argsort(order)[problem.operator.index[0]], *problem.operator.index[1:])
    turned = sg.Observed(sg.Entries(index, problem.shape), problem.y)
    moved = sg.CP((start.factors[0][order], *start.factors[1:]))
    other = sg.solve(turned, moved, VariationalCP(0.9, (0,)), max_iter=8).factors.full()
    np.testing.assert_allclose(other, plain[order], rtol=1e-7, atol=1e-8)


def test_single_precision_stays_single():
    problem, _ = instance()
    narrow = sg.Observed(problem.operator, problem.y.astype(np.float32))
    F, G = (
        sg.solve(P, joint_start(P, 4, 0.9, 0), VariationalCP(0.9, (0,)), max_iter=5).factors
        for P in (narrow, problem)
    )
    assert all(U.dtype == np.float32 for U in F.factors)
    assert np.linalg.norm(F.full() - G.full()) < 1e-4 * float(G.norm())
