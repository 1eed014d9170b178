"""Starts: the spectral start is the SVD, seeded and signed; small random starts are small."""

import numpy as np
import pytest
from conftest import draw
from hypothesis import given, settings
from hypothesis import strategies as st

import scaledgd as sg
from scaledgd.linalg import top_eigh, truncated_svd


def matrix(n1, n2, sigma, dtype, rng):
    r = len(sigma)
    U, V = (np.linalg.qr(draw(rng, n, r, dtype=dtype))[0] for n in (n1, n2))
    return U * sigma @ V.conj().T


def svd_of(M, rank, seed=0):
    return truncated_svd(
        lambda V: M @ V, lambda U: M.conj().T @ U, M.shape, rank, M, np.random.default_rng(seed)
    )


spectra = st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=60).map(
    lambda s: np.sort(np.asarray(s))[::-1]
)


@settings(max_examples=40, deadline=None)
@given(
    spectra,
    st.integers(60, 150),
    st.integers(60, 150),
    st.integers(1, 8),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_truncated_svd_finds_the_singular_values(sigma, n1, n2, rank, complex_, seed):
    """For any spectrum, clustered or flat: values to rounding, and the best approximation."""
    rng = np.random.default_rng(seed)
    M = matrix(n1, n2, sigma, np.complex128 if complex_ else np.float64, rng)
    U, s, V = svd_of(M, rank)
    expected = np.linalg.svd(M, compute_uv=False)
    np.testing.assert_allclose(s, expected[:rank], atol=1e-9 * expected[0])
    np.testing.assert_allclose(U.conj().T @ U, np.eye(rank), atol=1e-10)
    np.testing.assert_allclose(V.conj().T @ V, np.eye(rank), atol=1e-10)
    error = np.linalg.norm(M - U * s @ V.conj().T)
    best = np.sqrt(np.sum(expected[rank:] ** 2))
    assert error <= best * (1 + 1e-6) + 1e-9 * expected[0]


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(150, 90), (90, 150), (30, 200)])
def test_signs_are_deterministic(shape, dtype):
    rng = np.random.default_rng(0)
    M = matrix(*shape, np.linspace(3, 1, 12), dtype, rng)
    results = [svd_of(M, 4, seed) for seed in (0, 1, 2)]
    for U, s, V in results:
        largest = U[np.argmax(np.abs(U), axis=0), np.arange(4)]
        assert np.all(np.abs(largest.imag) < 1e-12)
        assert np.all(largest.real > 0)
        np.testing.assert_allclose(U, results[0][0], atol=1e-8)
        np.testing.assert_allclose(V, results[0][2], atol=1e-8)
        np.testing.assert_allclose(s, results[0][1], atol=1e-10)


def test_top_eigh_finds_the_algebraically_largest():
    rng = np.random.default_rng(0)
    n = 120
    U = np.linalg.qr(draw(rng, n, n))[0]
    values = np.concatenate([[5.0, 4.0, 3.0], np.linspace(1, -9, n - 3)])
    H = U * values @ U.T
    found, X = top_eigh(lambda V: H @ V, draw(rng, n, 7), 3, 1e-12)
    np.testing.assert_allclose(found, [5, 4, 3], atol=1e-10)
    np.testing.assert_allclose(H @ X, X * found, atol=1e-9)


def test_the_same_problem_gives_the_same_start_bit_for_bit():
    problem, _ = sg.datasets.matrix_completion(200, 150, 3, 5, 0.3, rng=0)
    first, second = sg.spectral(3)(problem), sg.spectral(3)(problem)
    np.testing.assert_array_equal(first.L, second.L)
    np.testing.assert_array_equal(first.R, second.R)


def test_the_spectral_start_of_completion_is_the_svd_of_the_rescaled_zero_filled_matrix():
    problem, _ = sg.datasets.matrix_completion(120, 90, 3, 5, 0.3, rng=0)
    Y = np.zeros((120, 90))
    Y[problem.operator.index] = problem.y / 0.3
    U, s, Vh = np.linalg.svd(Y)
    F = sg.spectral(4)(problem)
    np.testing.assert_allclose(F.full(), U[:, :4] * s[:4] @ Vh[:4], atol=1e-11)
    np.testing.assert_allclose(F.L.T @ F.L, F.R.T @ F.R, atol=1e-12)


def test_the_truncated_start_uses_the_smallest_measurements():
    problem, _ = sg.datasets.robust_sensing(20, 15, 2, 3, 400, 0.2, rng=0)
    y, A = problem.y, problem.operator.A
    kept = np.argsort(np.abs(y), kind="stable")[:321]  # ⌈0.801 · 400⌉
    M = np.tensordot(y[kept], A[kept], axes=1) / 321
    U, s, Vh = np.linalg.svd(M)
    F = sg.spectral(2, keep=0.801)(problem)
    np.testing.assert_allclose(F.full(), U[:, :2] * s[:2] @ Vh[:2], atol=1e-11)


@pytest.mark.parametrize("operator", ["Full", "Entries"])
def test_the_truncated_start_of_entries_stands_for_all(operator):
    """Kept entries estimate the whole: their sum is divided by the share kept."""
    rng = np.random.default_rng(0)
    Y = draw(rng, 30, 20)
    A = sg.Full((30, 20))
    y = Y
    if operator == "Entries":
        index = np.unravel_index(np.arange(600), (30, 20))
        A, y = sg.Entries(index, (30, 20)), Y.ravel()
    F = sg.spectral(20, keep=0.9)(sg.Observed(A, y, sg.Absolute()))
    level = np.sort(np.abs(Y).ravel())[539]
    np.testing.assert_allclose(F.full(), np.where(np.abs(Y) <= level, Y, 0) / 0.9, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_the_quadratic_start_estimates_x(dtype):
    """E y a aᴴ = c X + tr(X) I: with many samples the start is close, real or complex."""
    rng = np.random.default_rng(0)
    truth = sg.Symmetric(draw(rng, 8, 2, dtype=dtype))
    a = draw(rng, 200_000, 8, dtype=dtype)
    if dtype == np.complex128:
        a = a / np.sqrt(2)
    A = sg.RankOne(a)
    F = sg.spectral(2)(sg.Observed(A, A.apply(truth).real))
    assert isinstance(F, sg.Symmetric)
    assert float(sg.metrics.relative_error(F, truth)) < 0.05


def test_a_symmetric_start_takes_no_negative_eigenvalues():
    Y = np.diag([3.0, -5.0, 1.0])
    F = sg.spectral(3, symmetric=True)(sg.Observed(sg.Full((3, 3)), Y))
    np.testing.assert_allclose(F.full(), np.diag([3.0, 0.0, 1.0]), atol=1e-12)


def test_small_random_has_the_theorems_law():
    problem = sg.Observed(sg.Full((2000, 500)), np.zeros((2000, 500)))
    F = sg.small_random(4, 1e-3, rng=0)(problem)
    assert np.std(F.L) == pytest.approx(1e-3 / np.sqrt(2000), rel=0.05)
    assert np.std(F.R) == pytest.approx(1e-3 / np.sqrt(500), rel=0.05)
    assert abs(np.corrcoef(F.L[:500].ravel(), F.R.ravel())[0, 1]) < 0.1
    again = sg.small_random(4, 1e-3, rng=0)(problem)
    np.testing.assert_array_equal(F.L, again.L)
    z = sg.Observed(sg.Full((2000, 500)), np.zeros((2000, 500), dtype=complex))
    G = sg.small_random(4, 1.0, rng=0)(z)
    assert np.mean(np.abs(G.L) ** 2) == pytest.approx(1 / 2000, rel=0.05)


def test_more_columns_than_the_data_have_rank():
    """A backprojection of rank 1 has a start of rank 3: the rest is zero, not noise."""
    Y = np.outer(np.arange(1.0, 91.0), np.arange(1.0, 71.0))
    F = sg.spectral(3)(sg.Observed(sg.Full((90, 70)), Y))
    np.testing.assert_allclose(F.full(), Y, rtol=1e-10)


@pytest.mark.parametrize("factor", [1e-140, 1e-100, 1e-15, 1e15, 1e100, 1e140])
@pytest.mark.parametrize("n", [30, 120])
def test_the_spectral_start_is_scale_free(n, factor):
    Y = sg.datasets.low_rank(n, n - 3, 3, 5, rng=0).full()
    dtypes = (np.float64, np.float32) if 1e-20 < factor < 1e20 else (np.float64,)
    for dtype in dtypes:
        y = (factor * Y).astype(dtype)
        F = sg.spectral(3)(sg.Observed(sg.Full(Y.shape), y))
        X = F.full() / np.asarray(factor, dtype)
        assert np.linalg.norm(X - Y) < 1e3 * np.finfo(dtype).eps * np.linalg.norm(Y)


@pytest.mark.parametrize("n", [30, 120])
@pytest.mark.parametrize(("dtype", "kappa"), [(np.float64, 1e10), (np.float32, 1e4)])
def test_small_singular_values_survive_the_squaring(n, dtype, kappa):
    """MᴴM has the condition number κ²; the start must not lose what is below √eps of σ₁."""
    truth = sg.datasets.low_rank(n, n - 3, 3, kappa, rng=0)
    Y = truth.full().astype(dtype)
    F = sg.spectral(3)(sg.Observed(sg.Full(Y.shape), Y))
    s = np.linalg.svd(F.L.astype(float), compute_uv=False) ** 2
    assert s[-1] == pytest.approx(1 / kappa, rel=0.05)


def test_mixed_does_not_lower_lambda_for_ever():
    problem, truth = sg.datasets.matrix_completion(60, 50, 3, 5, 0.7, rng=0)
    factors = sg.mixed(20, damping=0.05, scale=1e-8, rng=0, max_iter=300)(problem)
    assert float(sg.metrics.relative_error(factors, truth)) < 1e-2
