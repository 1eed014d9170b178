"""Adjoints are adjoints, and structure changes nothing but the cost."""

import numpy as np
import pytest
from conftest import draw
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import scaledgd as sg
from scaledgd.ambient import Dense, Hankel, Ones

DTYPES = (np.float64, np.complex128)
SHAPE = (7, 7)


def operators(dtype, rng):
    m, (n1, n2) = 30, SHAPE
    flat = rng.permutation(n1 * n2)[:20]
    A = draw(rng, m, n1, n2, dtype=dtype)
    return {
        "Full": sg.Full(SHAPE),
        "Entries": sg.Entries(np.unravel_index(flat, SHAPE), SHAPE),
        "Sensing": sg.Sensing(A),
        "Sensing-matrix": sg.Sensing(A.reshape(m, -1), shape=SHAPE),
        "Sensing-operator": sg.Sensing(aslinearoperator(A.reshape(m, -1)), shape=SHAPE),
        "RankOne": sg.RankOne(draw(rng, m, n1, dtype=dtype)),
    }


NAMES = tuple(operators(np.float64, np.random.default_rng(0)))


@pytest.mark.parametrize("k", range(4))
@pytest.mark.parametrize("kind", ["sensing", "entries", "full"])
def test_a_block_of_tucker_factors_is_measured_by_its_matrix(kind, k):
    rng, sizes = np.random.default_rng(0), (3, 5, 4)
    operator = {
        "sensing": sg.Sensing(draw(rng, 30, *sizes)),
        "entries": sg.Entries(np.nonzero(rng.random(sizes) < 0.5), sizes),
        "full": sg.Full(sizes),
    }[kind]
    shapes = zip(sizes, (2, 3, 2), strict=True)
    F = sg.Tucker(tuple(draw(rng, *shape) for shape in shapes), draw(rng, 2, 3, 2))
    D = draw(rng, *F.blocks[k].shape)
    J = operator.block_matrix(F, k)
    if J is None:
        assert kind != "sensing"
        assert k < 3  # rows are separate systems
    else:
        assert np.allclose(J @ D.reshape(-1), np.ravel(operator.apply(F.linear(k, D))))


def dense(Z):
    """An ambient object as an array, by contracting with identities."""
    n1, n2 = Z.shape
    return Z.contract((np.eye(n1), np.eye(n2)), skip=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_dot(name, dtype, symmetric):
    rng = np.random.default_rng(1)
    A = operators(dtype, rng)[name]
    L = draw(rng, 7, 2, dtype=dtype)
    X = sg.Symmetric(L) if symmetric else sg.LowRank(L, draw(rng, 7, 2, dtype=dtype))
    w = draw(rng, *A.measured, dtype=dtype)
    Ax, Z = A.apply(X), dense(A.adjoint(w))
    assert Ax.shape == A.measured
    assert Z.shape == SHAPE
    assert abs(np.vdot(w, Ax) - np.vdot(Z, X.full())) <= 1e-12 * np.linalg.norm(w) * 100


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_contractions_agree_with_the_dense_gradient(name, dtype):
    rng = np.random.default_rng(2)
    A = operators(dtype, rng)[name]
    Z = A.adjoint(draw(rng, *A.measured, dtype=dtype))
    U, V = draw(rng, 7, 2, dtype=dtype), draw(rng, 7, 3, dtype=dtype)
    M = dense(Z)
    np.testing.assert_allclose(Z.contract((U, V), skip=0), M @ V.conj(), atol=1e-12)
    np.testing.assert_allclose(Z.contract((U, V), skip=1), U.conj().T @ M, atol=1e-12)
    both = Z.contract((U, V))
    np.testing.assert_allclose(both, U.conj().T @ M @ V.conj(), atol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hankel_is_never_formed_and_always_right(dtype):
    rng = np.random.default_rng(3)
    n1, n2, r = 9, 5, 2
    z = draw(rng, n1 + n2 - 1, dtype=dtype)
    A, B = draw(rng, n1, r, dtype=dtype), draw(rng, n2, r, dtype=dtype)
    H = z[np.add.outer(np.arange(n1), np.arange(n2))]
    U, V = draw(rng, n1, 3, dtype=dtype), draw(rng, n2, 3, dtype=dtype)
    for Z, M in ((Hankel(z, n1), H), (Hankel(z, n1, (A, B)), H + A @ B.conj().T)):
        assert Z.shape == M.shape
        np.testing.assert_allclose(Z.contract((U, V), skip=0), M @ V.conj(), atol=1e-12)
        np.testing.assert_allclose(Z.contract((U, V), skip=1), U.conj().T @ M, atol=1e-12)
        both = U.conj().T @ M @ V.conj()
        np.testing.assert_allclose(Z.contract((U, V)), both, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_hankel_value_and_signal(dtype):
    rng = np.random.default_rng(4)
    n1, n2 = 6, 8
    observed = rng.random(n1 + n2 - 1) < 0.6
    y = draw(rng, n1 + n2 - 1, dtype=dtype) * observed
    F = sg.LowRank(draw(rng, n1, 2, dtype=dtype), draw(rng, n2, 2, dtype=dtype))
    problem = sg.HankelCompletion(y, observed, n1, p=0.6)
    X, ij = F.full(), np.add.outer(np.arange(n1), np.arange(n2))
    x = np.asarray([X[ij == k].mean() for k in range(n1 + n2 - 1)])
    np.testing.assert_allclose(problem.signal(F), x, atol=1e-13)
    np.testing.assert_array_equal(problem.lengths, np.bincount(ij.ravel()))
    misfit = (observed * (x - y))[ij]
    expected = 0.5 * np.linalg.norm(X - x[ij]) ** 2 + 0.5 / 0.6 * np.linalg.norm(misfit) ** 2
    assert float(problem.linearize(F).value) == pytest.approx(expected, rel=1e-12)
    assert sg.HankelCompletion(y, observed, n1).p == pytest.approx(observed.mean())


def test_a_linear_operator_is_never_made_dense():
    rng = np.random.default_rng(5)
    A = draw(rng, 30, 49)
    calls = []

    def counted(name, matrix):
        def product(x):
            assert x.ndim == 1
            calls.append(name)
            return matrix @ x

        return product

    watched = LinearOperator(
        A.shape, matvec=counted("A", A), rmatvec=counted("A*", A.T), dtype=np.float64
    )
    F = sg.LowRank(draw(rng, 7, 2), draw(rng, 7, 2))
    y = draw(rng, 30)
    stack = sg.Observed(sg.Sensing(A.reshape(30, 7, 7)), y).linearize(F)
    free = sg.Observed(sg.Sensing(watched, shape=(7, 7)), y).linearize(F)
    assert float(free.value) == pytest.approx(float(stack.value), rel=1e-14)
    for g, h in zip(free.gradient, stack.gradient, strict=True):
        np.testing.assert_allclose(g, h, atol=1e-12)
    assert calls == ["A", "A*"]


def test_pylops_operators_work():
    pylops = pytest.importorskip("pylops", reason="PyLops is not installed")
    rng = np.random.default_rng(6)
    truth = sg.datasets.low_rank(40, 30, rank=3, kappa=5, rng=rng)
    keep = np.sort(rng.permutation(1200)[:900])
    operator = sg.Sensing(pylops.Restriction(1200, keep), shape=(40, 30))
    problem = sg.Observed(operator, truth.full().ravel()[keep], scale=1200 / 900)
    result = sg.solve(problem, sg.spectral(3), sg.ScaledGD(), max_iter=80)
    assert float(sg.metrics.relative_error(result.factors, truth)) < 1e-8


def test_the_order_of_the_entries_does_not_matter():
    rng = np.random.default_rng(7)
    flat = np.sort(rng.permutation(63)[:40])
    shuffled = rng.permutation(40)
    y = draw(rng, 40)
    F = sg.LowRank(draw(rng, 9, 2), draw(rng, 7, 2))
    gradients = []
    for order in (np.arange(40), shuffled):
        index = np.unravel_index(flat[order], (9, 7))
        problem = sg.Observed(sg.Entries(index, (9, 7)), y[order])
        gradients.append(problem.linearize(F).gradient)
    for g, h in zip(*gradients, strict=True):
        np.testing.assert_allclose(g, h, atol=1e-13)


def test_rows_and_columns_without_entries_have_no_gradient():
    rng = np.random.default_rng(8)
    index = (np.asarray([1, 1, 3]), np.asarray([0, 2, 2]))
    F = sg.LowRank(draw(rng, 5, 2), draw(rng, 4, 2))
    gL, gR = sg.Observed(sg.Entries(index, (5, 4)), np.ones(3)).linearize(F).gradient
    assert np.flatnonzero(np.abs(gL).sum(axis=1)).tolist() == [1, 3]
    assert np.flatnonzero(np.abs(gR).sum(axis=1)).tolist() == [0, 2]


def test_many_entries_are_gathered_in_chunks(monkeypatch):
    rng = np.random.default_rng(9)
    F = sg.LowRank(draw(rng, 9, 2), draw(rng, 7, 2))
    index = np.unravel_index(np.arange(63), (9, 7))
    whole = F.at(index)
    monkeypatch.setattr("scaledgd.kernels.generic.CHUNK", 10)
    np.testing.assert_array_equal(F.at(index), whole)
    np.testing.assert_allclose(whole, F.full().ravel(), atol=1e-14)


def test_a_linear_operator_keeps_the_precision_of_the_data():
    rng = np.random.default_rng(10)
    A = aslinearoperator(draw(rng, 60, 49))  # double precision
    y = draw(rng, 60).astype(np.float32)
    problem = sg.Observed(sg.Sensing(A, shape=(7, 7)), y)
    for start in (sg.spectral(2), sg.small_random(2, 1.0, rng=0)):
        result = sg.solve(problem, start, sg.ScaledGD(sg.line_search()), max_iter=3)
        assert all(B.dtype == np.float32 for B in result.factors.blocks)
        assert result.state.value.dtype == np.float32


def test_a_stack_is_not_copied_at_every_product():
    import tracemalloc

    rng = np.random.default_rng(11)
    for A in (draw(rng, 400, 30, 30), draw(rng, 400, 30, 30, dtype=complex)):
        stack = sg.Sensing(np.asfortranarray(A))
        F = sg.LowRank(draw(rng, 30, 2, dtype=A.dtype), draw(rng, 30, 2, dtype=A.dtype))
        problem = sg.Observed(stack, stack.apply(F))
        tracemalloc.start()
        problem.linearize(F).gradient  # noqa: B018
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 0.2 * A.nbytes


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5)])
def test_ones_are_never_formed_and_always_right(shape):
    rng = np.random.default_rng(0)
    modes = tuple(rng.standard_normal((n, 2)) for n in shape)
    ones, dense = Ones(shape, np.zeros(1)), Dense(np.ones(shape))
    for skip in (None, *range(len(shape))):
        np.testing.assert_allclose(ones.contract(modes, skip), dense.contract(modes, skip))
    for k in range(len(shape)):
        np.testing.assert_allclose(ones.columnwise(modes, k), dense.columnwise(modes, k))
        np.testing.assert_allclose(ones.squares(k), dense.squares(k))
        assert ones.unfold(k).shape == dense.unfold(k).shape
    if len(shape) == 2:
        np.testing.assert_allclose(ones.times(modes[1]), dense.times(modes[1]))
        np.testing.assert_allclose(ones.adjoint_times(modes[0]), dense.adjoint_times(modes[0]))


def test_values_that_are_not_finite_give_no_warnings():
    """NumPy gives such warnings by chance, too; the loop says that an iterate is not finite."""
    rng = np.random.default_rng(0)
    operator = sg.Sensing(rng.standard_normal((9, 4, 3)).astype(np.float32))
    L, R = (rng.standard_normal((n, 2)).astype(np.float32) for n in (4, 3))
    L[0, 0], R[:, 0] = np.inf, 0
    with np.errstate(invalid="raise"):
        assert np.isnan(operator.apply(sg.LowRank(L, R))).any()
