"""Tensors: the same words, the same truths, for every order."""

import tracemalloc

import numpy as np
import pytest
from conftest import draw, first_below, full_iterates, invertible, slopes, trajectory

import scaledgd as sg
from scaledgd.kernels import Pattern
from scaledgd.linalg import unfold

SHAPES = {2: (7, 6), 3: (7, 6, 5), 4: (5, 4, 3, 4), 5: (4, 3, 3, 2, 3)}
RANKS = {2: (2, 2), 3: (3, 2, 2), 4: (2, 3, 2, 2), 5: (2, 2, 1, 2, 2)}
DTYPES = (np.float64, np.complex128)


def random_tucker(order, dtype, rng):
    shape, ranks = SHAPES[order], RANKS[order]
    factors = tuple(draw(rng, n, r, dtype=dtype) for n, r in zip(shape, ranks, strict=True))
    return sg.Tucker(factors, draw(rng, *ranks, dtype=dtype))


def operators(order, dtype, rng):
    shape = SHAPES[order]
    N = int(np.prod(shape))
    flat = rng.permutation(N)[: N // 2]
    return {
        "Full": sg.Full(shape),
        "Entries": sg.Entries(np.unravel_index(flat, shape), shape),
        "Sensing": sg.Sensing(draw(rng, 30, *shape, dtype=dtype)),
    }


def dense(Z):
    """An ambient object as an array, by contracting with identities."""
    return Z.contract(tuple(np.eye(n) for n in Z.shape), skip=0)


def einsum(core, factors):
    letters = "abcde"[: core.ndim]
    rows = ",".join(f"{x.upper()}{x}" for x in letters)
    return np.einsum(f"{letters},{rows}->{letters.upper()}", core, *factors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", SHAPES)
def test_full_at_and_norm_agree(order, dtype):
    rng = np.random.default_rng(0)
    F = random_tucker(order, dtype, rng)
    X = einsum(F.core, F.factors)
    np.testing.assert_allclose(F.full(), X, atol=1e-12)
    index = np.unravel_index(rng.permutation(X.size), X.shape)
    np.testing.assert_allclose(F.at(index), X[index], atol=1e-12)
    assert float(F.norm()) == pytest.approx(np.linalg.norm(X))
    assert F.shape == SHAPES[order]
    assert F.at(tuple(i[:0] for i in index)).shape == (0,)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["Full", "Entries", "Sensing"])
@pytest.mark.parametrize("order", SHAPES)
def test_dot(order, name, dtype):
    rng = np.random.default_rng(1)
    A = operators(order, dtype, rng)[name]
    F = random_tucker(order, dtype, rng)
    w = draw(rng, *A.measured, dtype=dtype)
    Ax, Z = A.apply(F), dense(A.adjoint(w))
    assert Z.shape == SHAPES[order]
    assert abs(np.vdot(w, Ax) - np.vdot(Z, F.full())) <= 1e-10 * np.linalg.norm(w)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["Full", "Entries"])
@pytest.mark.parametrize("order", SHAPES)
def test_contractions_unfoldings_and_squares(order, name, dtype, monkeypatch):
    monkeypatch.setattr("scaledgd.kernels.generic.CHUNK", 2000)  # several chunks even here
    rng = np.random.default_rng(2)
    A = operators(order, dtype, rng)[name]
    Z = A.adjoint(draw(rng, *A.measured, dtype=dtype))
    M = dense(Z)
    F = random_tucker(order, dtype, rng)
    for skip in (None, *range(order)):
        expected = M
        for j, U in enumerate(F.factors):
            if j != skip:
                expected = np.moveaxis(np.tensordot(expected, U.conj(), axes=(j, 0)), -1, j)
        np.testing.assert_allclose(Z.contract(F.factors, skip), expected, atol=1e-10)
    for k in range(order):
        rows = unfold(M, k)
        flat = Z.unfold(k)
        V = draw(rng, rows.shape[0], 2, dtype=dtype)
        partial = flat.contract((V, V), skip=1)  # Vᴴ M_k, columns in some order
        np.testing.assert_allclose(
            partial @ partial.conj().T, V.conj().T @ rows @ rows.conj().T @ V, atol=1e-9
        )
        np.testing.assert_allclose(Z.squares(k), np.sum(np.abs(rows) ** 2, axis=1), atol=1e-10)


LOSSES = {
    "Squared": sg.Squared(),
    "Absolute": sg.Absolute(),
    "TopTrim": sg.TopTrim(0.2),
    "SoftTrim": sg.SoftTrim(lambda t: 2.0),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["Full", "Entries", "Sensing"])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_finite_differences(order, name, loss, dtype):
    if name == "Sensing" and loss == "TopTrim":
        pytest.skip("measurements have no fibres")
    rng = np.random.default_rng(3)
    A = operators(order, dtype, rng)[name]
    problem = sg.Observed(A, draw(rng, *A.measured, dtype=dtype), LOSSES[loss], scale=1.3)
    F = random_tucker(order, dtype, rng)
    found, expected, scale = slopes(problem.linearize(F), F, rng, dtype)
    assert abs(found - expected) <= 1e-6 * scale


@pytest.mark.parametrize("order", [3, 4])
def test_single_precision_agrees_and_stays_single(order):
    rng = np.random.default_rng(4)
    F = random_tucker(order, np.float64, rng)
    narrow = F.with_blocks(tuple(B.astype(np.float32) for B in F.blocks))
    for name, A in operators(order, np.float64, rng).items():
        y = draw(rng, *A.measured)
        B = sg.Sensing(A.A.astype(np.float32)) if name == "Sensing" else A
        g = sg.Observed(A, y).linearize(F).gradient
        s = sg.Observed(B, y.astype(np.float32)).linearize(narrow)
        for a, b in zip(s.gradient, g, strict=True):
            assert a.dtype == np.float32
            assert np.linalg.norm(a - b) <= 1e-4 * np.linalg.norm(b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_order_two_tucker_is_a_matrix(dtype):
    """L Rᴴ is (L, conj R) with the identity as core: gradients and preconditioners agree."""
    rng = np.random.default_rng(5)
    F = sg.LowRank(draw(rng, 9, 2, dtype=dtype), draw(rng, 8, 2, dtype=dtype))
    G = sg.Tucker((F.L, F.R.conj()), np.eye(2, dtype=dtype))
    index = np.nonzero(rng.random((9, 8)) < 0.6)
    operator = sg.Entries(index, (9, 8))
    problem = sg.Observed(operator, draw(rng, *operator.measured, dtype=dtype))
    a, b = problem.linearize(F), problem.linearize(G)
    np.testing.assert_allclose(a.value, b.value)
    np.testing.assert_allclose(b.gradient[0], a.gradient[0], atol=1e-12)
    np.testing.assert_allclose(b.gradient[1], a.gradient[1].conj(), atol=1e-12)
    p, q = F.precondition(a.gradient), G.precondition(b.gradient)
    np.testing.assert_allclose(q[0], p[0], atol=1e-10)
    np.testing.assert_allclose(q[1], p[1].conj(), atol=1e-10)
    np.testing.assert_allclose(
        sg.incoherence(5.0)(G).full(), sg.incoherence(5.0)(F).full(), atol=1e-12
    )


def test_an_order_two_tucker_recovers_what_low_rank_recovers():
    problem, truth = sg.datasets.matrix_completion(100, 80, 3, 5, 0.5, rng=0)
    for start in (sg.spectral(3), sg.hosvd((3, 3)), sg.diagonal_deleted((3, 3))):
        result = sg.solve(problem, start, sg.ScaledGD(), max_iter=150)
        assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-8


@pytest.mark.parametrize(
    ("shape", "ranks", "p"),
    [((30, 25, 20, 15), (3, 3, 2, 2), 0.1), ((12, 11, 10, 9, 8), (2, 2, 2, 2, 2), 0.2)],
)
@pytest.mark.parametrize("kappa", [1, 5])
def test_orders_four_and_five(shape, ranks, p, kappa):
    problem, truth = sg.datasets.tensor_completion(shape, ranks, kappa, p, rng=1)
    result = sg.solve(problem, sg.diagonal_deleted(ranks), sg.ScaledGD(), max_iter=100)
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-8


def reparameterised(F, rng):
    """U_k Q_k with cond(Q_k) about 10, and the core transformed back."""
    factors, core = [], F.core
    for k, U in enumerate(F.factors):
        Q = invertible(U.shape[1], 10, rng, U.dtype)
        factors.append(U @ Q)
        core = np.moveaxis(np.tensordot(core, np.linalg.inv(Q), axes=(k, 1)), -1, k)
    return sg.Tucker(tuple(factors), core)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_trajectory_does_not_depend_on_the_parameterisation(dtype):
    rng = np.random.default_rng(6)
    shape, ranks = (12, 10, 8), (3, 2, 2)
    bases = (
        np.linalg.qr(draw(rng, n, r, dtype=dtype))[0] for n, r in zip(shape, ranks, strict=True)
    )
    X = sg.Tucker(tuple(bases), draw(rng, *ranks, dtype=dtype)).full()
    index = np.nonzero(rng.random(shape) < 0.6)
    problem = sg.Observed(sg.Entries(index, shape), X[index], scale=1 / 0.6)
    F = sg.hosvd(ranks)(problem)
    G = reparameterised(F, rng)
    np.testing.assert_allclose(G.full(), F.full(), atol=1e-12)
    projected = sg.ScaledGD(0.3, project=sg.incoherence(5.0))

    def gap(method):
        paths = (full_iterates(problem, S, method, 20) for S in (F, G))
        return max(np.linalg.norm(a - b) / np.linalg.norm(a) for a, b in zip(*paths, strict=True))

    assert gap(sg.ScaledGD(0.3)) < 1e-9
    assert gap(projected) < 1e-9
    assert not np.allclose(projected.project(F).full(), F.full())  # the projection is active
    assert gap(sg.GradientDescent(1e-3)) > 1e-3
    assert gap(sg.ScaledGD(0.3, damping=0.5)) > 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
def test_preconditioners_are_the_inverse_diagonal_blocks_of_the_hessian(dtype):
    """X is linear in each block: differences of gradients of the full loss are exact."""
    rng = np.random.default_rng(7)
    F = random_tucker(3, dtype, rng)
    problem = sg.Observed(sg.Full(F.shape), draw(rng, *F.shape, dtype=dtype))
    before = problem.linearize(F).gradient
    for k, B in enumerate(F.blocks):
        E = draw(rng, *B.shape, dtype=dtype)
        moved = list(F.blocks)
        moved[k] = B + E
        change = problem.linearize(F.with_blocks(tuple(moved))).gradient[k] - before[k]
        grads = [np.zeros_like(G) for G in F.blocks]
        grads[k] = change
        np.testing.assert_allclose(F.precondition(tuple(grads))[k], E, atol=1e-9)


def test_projection_bounds_every_unfolding():
    rng = np.random.default_rng(8)
    F = random_tucker(3, np.float64, rng)
    X = F.full()
    radius = 0.7 * np.sqrt(7) * np.max(np.linalg.norm(unfold(X, 0), axis=1))
    P = sg.incoherence(radius)(F)
    active = 0
    for k, n in enumerate(F.shape):
        mixed = list(F.factors)
        mixed[k] = P.factors[k]  # the norms are taken with the unprojected partners
        rows = np.sqrt(n) * np.linalg.norm(
            unfold(sg.Tucker(tuple(mixed), F.core).full(), k), axis=1
        )
        assert rows.max() <= radius * (1 + 1e-12)
        active += np.count_nonzero(np.isclose(rows, radius))
    assert active > 0
    np.testing.assert_array_equal(P.core, F.core)


def test_hosvd_is_the_truncated_svd_of_every_unfolding():
    rng = np.random.default_rng(9)
    Y = draw(rng, 15, 12, 10)
    F = sg.hosvd((4, 3, 5))(sg.Observed(sg.Full(Y.shape), Y))
    for k, U in enumerate(F.factors):
        W = np.linalg.svd(unfold(Y, k), full_matrices=False)[0][:, : U.shape[1]]
        np.testing.assert_allclose(U @ U.T, W @ W.T, atol=1e-9)
    np.testing.assert_allclose(F.core, einsum(Y, [U.T for U in F.factors]), atol=1e-12)


def test_sequential_truncation_is_as_good_up_to_a_factor():
    rng = np.random.default_rng(10)
    Y = sg.datasets.low_rank_tensor((15, 12, 10), (3, 3, 3), 2, rng).full()
    Y = Y + 0.1 * Y.std() * draw(rng, *Y.shape)
    problem = sg.Observed(sg.Full(Y.shape), Y)
    errors = [
        np.linalg.norm(Y - sg.hosvd((3, 3, 3), sequential=s)(problem).full()) for s in (False, True)
    ]
    assert errors[1] <= np.sqrt(3) * errors[0]
    assert errors[1] != errors[0]


def test_the_two_variants_of_the_diagonal():
    problem, _ = sg.datasets.tensor_completion((30, 25, 20), (3, 2, 2), 3, 0.2, rng=0)
    Y = np.zeros(problem.shape)
    Y[problem.operator.index] = problem.y
    for variant, keep in (("text", 0.0), ("unbiased", 0.2)):
        F = sg.diagonal_deleted((3, 2, 2), variant=variant)(problem)
        for k, U in enumerate(F.factors):
            G = unfold(Y, k) @ unfold(Y, k).T
            G = G - (1 - keep) * np.diag(np.diag(G))
            W = np.linalg.eigh(G)[1][:, ::-1][:, : U.shape[1]]  # largest algebraic
            np.testing.assert_allclose(U @ U.T, W @ W.T, atol=1e-8)


def test_a_mode_that_is_not_compressed_keeps_the_identity():
    problem, truth = sg.datasets.tensor_completion((30, 25, 3), (3, 3, 3), 3, 0.5, rng=0)
    start = sg.diagonal_deleted((3, 3, 3))(problem)
    np.testing.assert_array_equal(start.factors[2], np.eye(3))
    assert start.free == (0, 1, 3)
    result = sg.solve(problem, start, sg.ScaledGD(), max_iter=150)
    np.testing.assert_array_equal(result.factors.factors[2], np.eye(3))
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-8
    asked = sg.solve(problem, start, sg.ScaledGD(update=(0, 1, 2, 3)), max_iter=150)
    assert np.linalg.norm(asked.factors.factors[2] - np.eye(3)) > 1e-3
    assert float(sg.metrics.relative_error(asked.factors, truth)) < 1e-8
    searched = sg.solve(problem, start, sg.ScaledGD(sg.line_search()), max_iter=5)
    np.testing.assert_array_equal(searched.factors.factors[2], np.eye(3))


def test_a_method_updates_the_blocks_it_is_told_to():
    problem, _ = sg.datasets.tensor_completion((12, 10, 8), (2, 2, 2), 3, 0.5, rng=0)
    F = sg.hosvd((2, 2, 2))(problem)
    for method in (
        sg.ScaledGD(update=(1, 3)),
        sg.ScaledGD(sg.line_search(), update=(1, 3)),
        sg.GradientDescent((0.1, 0.1, 0.1, 0.1), update=(1, 3)),
    ):
        G = sg.solve(problem, F, method, max_iter=2).factors
        changed = [not np.array_equal(A, B) for A, B in zip(F.blocks, G.blocks, strict=True)]
        assert changed == [False, True, False, True]


def test_the_balancing_term_of_tensors_has_the_right_gradient():
    rng = np.random.default_rng(11)
    F = random_tucker(3, np.complex128, rng)
    value, grads = F.imbalance(level=0.7)
    parts = [np.linalg.norm(U.conj().T @ U - 0.49 * np.eye(U.shape[1])) ** 2 for U in F.factors]
    assert float(value) == pytest.approx(0.5 * sum(parts))
    d = tuple(draw(rng, *B.shape, dtype=complex) for B in F.blocks)
    h = 1e-6
    ends = [
        float(
            F.with_blocks(tuple(B + s * h * D for B, D in zip(F.blocks, d, strict=True))).imbalance(
                0.7
            )[0]
        )
        for s in (1, -1)
    ]
    slope = sum(np.real(np.vdot(g, D)) for g, D in zip(grads, d, strict=True))
    assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(slope, rel=1e-6)
    assert not np.any(grads[-1])


@pytest.mark.parametrize("ranks", [(2, 2, 2), (4, 4, 4), (4, 3, 5)])
def test_damping_holds_over_specified_ranks(ranks):
    """Twice the rank: with λ of about σ_min the truth is found, without it the fit stalls."""
    problem, truth = sg.datasets.tensor_completion((40, 35, 30), (2, 2, 2), 3, 0.2, rng=0)
    start = sg.diagonal_deleted(ranks)
    damped = trajectory(problem, start, sg.ScaledGD(damping=0.1), truth, 120)
    assert damped[-1] < 1e-9
    plain = trajectory(problem, start, sg.ScaledGD(), truth, 120)
    assert (plain[-1] < 1e-9) == (ranks == (2, 2, 2))


def test_damping_is_in_the_units_of_sigma():
    """X · c with λ · c takes the same path."""
    problem, _ = sg.datasets.tensor_completion((12, 10, 8), (2, 2, 2), 3, 0.5, rng=0)
    big = sg.Observed(problem.operator, 1e3 * problem.y, scale=problem.scale)
    small = full_iterates(problem, sg.hosvd(2)(problem), sg.ScaledGD(damping=0.1), 10)
    large = full_iterates(big, sg.hosvd(2)(big), sg.ScaledGD(damping=100.0), 10)
    for a, b in zip(small, large, strict=True):
        np.testing.assert_allclose(b, 1e3 * a, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kappa", [1, 10])
def test_random_starts(kappa):
    problem, truth = sg.datasets.tensor_completion((60, 60, 60), (4, 4, 4), kappa, 0.2, rng=0)
    for scale in (1.0, 1e-3):
        start = sg.small_random((4, 4, 4), scale, rng=1)
        errors = trajectory(problem, start, sg.ScaledGD(0.3), truth, 150)
        assert errors[-1] < 1e-9
    F = sg.small_random((3, 3, 3), 1e-3, rng=1)(problem)
    assert np.std(F.factors[0]) == pytest.approx(1 / np.sqrt(60), rel=0.2)
    assert np.linalg.norm(F.core) == pytest.approx(1e-3, rel=0.5)


def test_top_trim_along_fibres():
    rng = np.random.default_rng(12)
    A = rng.integers(-3, 4, (6, 5, 4)).astype(float)
    kept = np.ones(A.shape, dtype=bool)
    for axis, n in enumerate(A.shape):
        order = np.argsort(-np.abs(A), axis=axis, kind="stable")
        kept &= np.argsort(order, axis=axis, kind="stable") < int(0.5 * n + 1e-9)
    full = sg.TopTrim(0.5).bind(sg.Full(A.shape)).clean(A)
    np.testing.assert_array_equal(full, np.where(kept, 0, A))
    index = np.unravel_index(np.arange(A.size), A.shape)
    entries = sg.TopTrim(0.5).bind(sg.Entries(index, A.shape)).clean(A.ravel())
    np.testing.assert_array_equal(entries, full.ravel())


@pytest.mark.parametrize("loss", ["theory", "median", "top", "absolute"])
def test_tensor_robust_pca(loss):
    problem, truth = sg.datasets.tensor_robust_pca((40, 35, 30), (3, 3, 3), 5, 0.05, rng=0)
    largest, eta = float(np.max(np.abs(truth.full()))), 0.3
    losses = {
        "theory": sg.SoftTrim(lambda t: largest * (1 - 0.45 * eta) ** max(t - 1, 0)),
        "median": sg.SoftTrim(sg.median_threshold()),
        "top": sg.TopTrim(0.15),
        "absolute": sg.Absolute(),
    }
    robust = sg.Observed(problem.operator, problem.y, losses[loss])
    step = sg.line_search() if loss == "absolute" else eta
    start = sg.hosvd(3)(sg.Observed(problem.operator, problem.y, losses["median"]))
    errors = trajectory(robust, start, sg.ScaledGD(step), truth, 200)
    assert errors[-1] < 1e-8
    plain = sg.Observed(problem.operator, problem.y)
    assert trajectory(plain, sg.hosvd(3), sg.ScaledGD(eta), truth, 50)[-1] > 1e-2


def test_missing_and_corrupted_at_once():
    rng = np.random.default_rng(13)
    truth = sg.datasets.low_rank_tensor((40, 35, 30), (3, 3, 3), 2, rng)
    index = np.nonzero(rng.random(truth.shape) < 0.4)
    y = truth.at(index)
    y = y + (rng.random(y.size) < 0.05) * rng.uniform(-3, 3, y.size) * np.max(np.abs(y))
    operator = sg.Entries(index, truth.shape)
    problem = sg.Observed(operator, y, sg.SoftTrim(sg.median_threshold()), scale=2.5)
    result = sg.solve(problem, sg.diagonal_deleted(3), sg.ScaledGD(0.3), max_iter=150)
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-8


# ---- the theorems, where they can hold


@pytest.mark.parametrize("eta", [0.2, 0.4])
@pytest.mark.parametrize("kappa", [1, 5])
def test_sensing_contracts_at_the_theorems_rate(kappa, eta):
    """At generous sampling: m close to n³ makes A nearly an isometry."""
    problem, truth = sg.datasets.tensor_sensing((10, 9, 8), (2, 2, 2), kappa, 6000, rng=0)
    errors = trajectory(problem, sg.hosvd(2), sg.ScaledGD(eta), truth, 40)
    rates = errors[1:] / errors[:-1]
    assert np.all(rates[errors[1:] > 1e-12] <= 1 - 0.6 * eta)


@pytest.mark.parametrize("eta", [0.2, 0.4])
@pytest.mark.parametrize("kappa", [1, 5])
def test_completion_contracts_at_the_theorems_rate(kappa, eta):
    problem, truth = sg.datasets.tensor_completion((60, 50, 40), (3, 3, 3), kappa, 0.6, rng=0)
    mu = float(sg.metrics.incoherence(truth))
    project = sg.incoherence(1.1 * np.sqrt(mu * 3))
    start, method = sg.diagonal_deleted(3, project), sg.ScaledGD(eta, project=project)
    errors = trajectory(problem, start, method, truth, 40)
    rates = errors[1:] / errors[:-1]
    assert np.all(rates[errors[1:] > 1e-12] <= 1 - 0.6 * eta)


def test_robust_pca_keeps_its_entrywise_bound():
    """n = 100, 1 % corrupted: ‖X_t − X⋆‖_∞ ≤ 8 ρᵗ √(μ³r³/n³) σ_min, and errors spread evenly."""
    n, r, eta = 100, 5, 0.25
    problem, truth = sg.datasets.tensor_robust_pca((n,) * 3, r, 2, 0.01, rng=0)
    X, rho = truth.full(), 1 - 0.45 * eta
    mu = float(sg.metrics.incoherence(truth))
    smallest = min(float(s[-1]) for _, s in sg.metrics._mode_svds(truth))
    first = 8 * np.sqrt(mu**3 * r**3 / n**3) * smallest
    largest = np.max(np.abs(X))
    loss = sg.SoftTrim(lambda t: first * rho ** (t - 1) if t else largest)
    soft = sg.Observed(problem.operator, problem.y, loss)
    worst, spread = [], []

    def watch(state):
        gap = state.factors.full() - X
        worst.append(np.max(np.abs(gap)))
        spread.append(worst[-1] / np.sqrt(np.mean(gap**2)))

    sg.solve(soft, sg.hosvd(r), sg.ScaledGD(eta), max_iter=60, callback=watch)
    bound = first * rho ** np.arange(61)
    assert np.all(np.asarray(worst) <= bound)
    assert worst[60] <= worst[40] * rho**18  # it does fall at that rate
    assert np.max(spread) < 30  # of the possible √(n³) = 1000


@pytest.mark.parametrize("decibel", [40, 80])
def test_noise_floors(decibel):
    """The floor of gradient descent, in a time that does not depend on κ."""
    reached = {}
    for kappa in (1, 3):
        rng = np.random.default_rng(0)
        truth = sg.datasets.low_rank_tensor((30, 30, 30), (3, 3, 3), kappa, rng)
        sigma = float(truth.norm()) / np.sqrt(30**3) / 10 ** (decibel / 20)
        index = np.nonzero(rng.random(truth.shape) < 0.3)
        y = truth.at(index) + sigma * draw(rng, index[0].size)
        problem = sg.Observed(sg.Entries(index, truth.shape), y, scale=1 / 0.3)
        start = sg.diagonal_deleted(3)(problem)
        scaled = trajectory(problem, start, sg.ScaledGD(0.3), truth, 80)
        plain = trajectory(problem, start, sg.GradientDescent(0.3), truth, 80 * kappa**2)
        assert scaled[-1] == pytest.approx(plain[-1], rel=0.1)
        reached[kappa] = first_below(scaled, 1.1 * scaled[-1])
    assert max(reached.values()) <= 1.1 * min(reached.values()) + 3


def test_completion_is_kappa_free_and_gradient_descent_is_not():
    counts = {"scaled": [], "plain": []}
    for kappa in (1, 5, 20):
        problem, truth = sg.datasets.tensor_completion((50, 45, 40), (3, 3, 3), kappa, 0.2, rng=0)
        start = sg.diagonal_deleted(3)(problem)
        for name, method in (("scaled", sg.ScaledGD(0.3)), ("plain", sg.GradientDescent(0.3))):
            errors = trajectory(problem, start, method, truth, 120)
            counts[name].append(first_below(errors, 1e-6))
    assert max(counts["scaled"]) <= 1.1 * min(counts["scaled"]) + 2
    assert counts["plain"][0] < np.inf
    assert counts["plain"][1] == counts["plain"][2] == np.inf


# ---- cost


def test_nothing_of_the_size_of_the_tensor_is_made():
    shape, m = (2000, 1500, 1000), 100_000
    rng = np.random.default_rng(14)
    index = np.unravel_index(np.unique(rng.integers(0, np.prod(shape), m)), shape)
    truth = sg.Tucker(tuple(draw(rng, n, 3) / n**0.5 for n in shape), draw(rng, 3, 3, 3))
    y = truth.at(index)
    tracemalloc.start()
    problem = sg.Observed(sg.Entries(index, shape), y)
    for start in (sg.diagonal_deleted(3, tol=1e-1), sg.small_random((3, 3, 3), 1.0, rng=0)):
        sg.solve(problem, start, sg.ScaledGD(1e-3, damping=1.0), max_iter=2)
    soft = sg.Observed(problem.operator, y, sg.SoftTrim(sg.median_threshold()))
    sg.solve(soft, sg.small_random((3, 3, 3), 1.0, rng=0), sg.ScaledGD(1e-3), max_iter=2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 100 * (m + sum(shape) * 9)
    assert 8 * 100 * (m + sum(shape) * 9) < 0.1 * np.prod(shape)


@pytest.mark.parametrize("ranks", [(2, 3, 8), (8, 3, 2), (3, 8, 2)])
def test_unequal_ranks_cost_the_product_over_the_largest(ranks, monkeypatch):
    """No temporary has more than about Π r_k / max r_k numbers per entry."""
    from scaledgd.kernels.scipy import SciPy

    rng = np.random.default_rng(15)
    shape = (20, 20, 20)
    index = np.unravel_index(rng.permutation(8000)[:4000], shape)
    F = sg.Tucker(tuple(draw(rng, 20, r) for r in ranks), draw(rng, *ranks))
    operator = sg.Entries(index, shape)
    reference = SciPy()
    object.__setattr__(operator, "pattern", Pattern(index, shape, reference))
    problem = sg.Observed(operator, draw(rng, 4000))
    widths = []
    original = reference.scatter
    monkeypatch.setattr(
        reference, "scatter", lambda i, v, n: widths.append(v.shape[0]) or original(i, v, n)
    )
    grads = problem.linearize(F).gradient
    product = int(np.prod(ranks))
    assert max(widths) <= product // max(ranks)
    Z = np.zeros(shape)
    Z[index] = F.at(index) - problem.y
    expected = sg.Observed(sg.Full(shape), F.full() - Z).linearize(F).gradient
    for g, h in zip(grads, expected, strict=True):
        np.testing.assert_allclose(g, h, atol=1e-9)


# ---- corners


def test_projection_leaves_an_uncompressed_mode_alone():
    rng = np.random.default_rng(16)
    bases = (np.linalg.qr(draw(rng, n, 3))[0] for n in (20, 15))
    F = sg.Tucker((*bases, np.eye(3)), draw(rng, 3, 3, 3) * np.asarray([1, 0.1, 0.1]))
    P = sg.incoherence(0.3 * float(F.norm()))(F)
    np.testing.assert_array_equal(P.factors[2], np.eye(3))
    assert not np.allclose(P.factors[0], F.factors[0])


def test_a_long_mode_does_not_slow_the_gradient():
    """Chunks are no shorter than what they are added up into: one of each here."""
    from scaledgd.kernels.scipy import SciPy

    rng = np.random.default_rng(17)
    shape, m = (200_000, 30, 20), 50_000
    index = tuple(rng.integers(0, n, m) for n in shape)
    modes = tuple(draw(rng, n, 3) for n in shape)
    calls = []

    class Counted(SciPy):
        def scatter(self, *args):
            calls.append(1)
            return super().scatter(*args)

    pattern = Pattern(index, shape, Counted())
    pattern.tucker_gradients(draw(rng, m), modes, draw(rng, 3, 3, 3))
    assert len(calls) == 3


@pytest.mark.parametrize("kappa", [5, 20])
def test_robust_pca_of_data_that_are_half_zero(kappa):
    """Singular vectors of two ±1 columns are half zeros, and so is most of X."""
    problem, truth = sg.datasets.tensor_robust_pca((30, 25, 20), 2, kappa, 0.01, rng=0)
    assert np.mean(np.abs(truth.full()) < 1e-12) > 0.4
    result = sg.solve(problem, sg.hosvd(2), sg.ScaledGD(), max_iter=150)
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-9


def test_hosvd_keeps_the_digits_that_grams_lose():
    for dtype, kappa, bound in ((np.float64, 1e7, 1e-11), (np.float32, 1e3, 1e-5)):
        truth = sg.datasets.low_rank_tensor((60, 50, 45), (3, 3, 3), kappa, rng=0)
        Y = truth.full().astype(dtype)
        F = sg.hosvd(3)(sg.Observed(sg.Full(Y.shape), Y))
        assert np.linalg.norm(F.full() - Y) < bound * np.linalg.norm(Y)


def test_the_starts_of_tensors_are_scale_free():
    Y = sg.datasets.low_rank_tensor((30, 25, 20), (2, 2, 2), 3, rng=0).full()
    for factor in (1e-100, 1e100):
        F = sg.hosvd(2)(sg.Observed(sg.Full(Y.shape), factor * Y))
        np.testing.assert_allclose(F.full() / factor, Y, atol=1e-12)


def test_the_spectrum_of_the_instances_is_what_they_say():
    for ranks in (3, (3, 2, 2), (2, 3, 3)):
        X = sg.datasets.low_rank_tensor((20, 18, 16), ranks, 10, rng=0)
        s = np.linalg.svd(unfold(X.full(), 0), compute_uv=False)[: X.ranks[0]]
        np.testing.assert_allclose(s, np.linspace(1, 0.1, X.ranks[0]), atol=1e-12)


@pytest.mark.parametrize("start", [sg.hosvd((3, 3, 3)), sg.diagonal_deleted((3, 3, 3))])
def test_starts_have_the_ranks_asked_for_even_from_two_entries(start):
    index = tuple(np.asarray([0, 1]) for _ in range(3))
    problem = sg.Observed(sg.Entries(index, (60, 50, 45)), np.ones(2))
    F = start(problem)
    assert F.ranks == (3, 3, 3)
    assert np.all(np.isfinite(F.full()))


@pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")
@pytest.mark.parametrize("level", [10, 100])
@pytest.mark.parametrize("given", [{}, {"rank": 3}])
@pytest.mark.parametrize("name", ["TensorCompletion", "TensorRobustPCA"])
def test_a_slice_without_entries_is_like_a_typical_one_and_spoils_no_other(name, given, level):
    """It was a direction of the start, and zero when candidates were compared: offsets won."""
    rng = np.random.default_rng(1)
    X = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((n, 2)) for n in (20, 15, 10)))
    X = X + level
    Y = np.where(rng.random(X.shape) < 0.2, np.nan, X)
    Y[3] = np.nan
    model = getattr(sg, name)(random_state=0, **given).fit(Y)
    found = model.reconstruct()
    np.testing.assert_allclose(np.delete(found, 3, 0), np.delete(X, 3, 0), atol=1e-4)
    typical = np.delete(X, 3, 0).mean(axis=0)
    assert np.abs(found[3] - typical).max() < 0.1 * np.abs(typical).max()
    new = model.transform(np.where(np.arange(2)[:, None, None] == 0, np.nan, X[:2]))
    np.testing.assert_allclose(new[0], found[3], atol=1e-6)


def test_an_empty_slice_is_no_direction_of_the_start():
    rng = np.random.default_rng(0)
    X = 10 + np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((n, 1)) for n in (12, 9, 8)))
    seen = rng.random(X.shape) < 0.7
    seen[4] = False
    problem = sg.Observed(sg.Entries(np.nonzero(seen), X.shape), X[seen], scale=1 / 0.7)
    start = sg.diagonal_deleted((3, 2, 2))(problem)
    assert np.abs(start.factors[0][4]).max() < 0.5  # it was 1
