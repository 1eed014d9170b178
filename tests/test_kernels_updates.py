"""Rows of uncertain factors, solved in one pass, are what NumPy says they are."""

from dataclasses import replace

import numpy as np
import pytest

import scaledgd as sg
from scaledgd.kernels import Rows, RowSystem, UnsureRows, cpp
from scaledgd.kernels.generic import Generic
from scaledgd.variational.posterior import HOLD

pytestmark = pytest.mark.skipif(not cpp.AVAILABLE, reason="built without a compiler")

C = cpp.C
SHAPE = (50, 41)


def case(dtype, q, known, beside, weighted, trimmed, seed=0, mode=0):
    """A pattern, the systems of its rows, and what else a kernel is given."""
    rng = np.random.default_rng(seed)
    flat = rng.permutation(np.prod(SHAPE))[:900]
    index = np.unravel_index(flat, SHAPE)
    n, others = SHAPE[mode], SHAPE[1 - mode]

    def draw(*shape):
        return rng.standard_normal(shape).astype(dtype)

    M, x, y = draw(others, q), draw(n, q), draw(900)
    variance, ridge = draw(others, known) ** 2 / 10, draw(q) ** 2
    own, given = (draw(n), np.abs(draw(others, 2))) if beside else (None, None)
    root = np.abs(draw(900)) if weighted else None
    kept = rng.random(900) < 0.8 if trimmed else None
    system = UnsureRows(M, variance, ridge, 0.3, mode, own, given)
    return cpp.Cpp().pattern(index, SHAPE), system, (x, y, root, kept)


def flat(found):
    return [*found[:4], *found.sums]


def by_hand(pattern, system, x, y, root, kept):
    """The same row by row, in double precision."""
    M, V, mode = np.float64(system.M), np.float64(system.variance), system.mode
    q, x, y = M.shape[1], np.float64(x), np.float64(y)
    root = np.ones(len(y)) if root is None else np.float64(root)
    kept = np.ones(len(y), dtype=bool) if kept is None else kept
    V = np.pad(V, ((0, 0), (0, q - V.shape[1])))
    none = np.zeros(len(x)), np.zeros((len(M), 2))
    own, given = none if system.own is None else map(np.float64, (system.own, system.given))
    solved, variance, total = np.zeros_like(x), np.zeros_like(x), np.zeros((q, q))
    before, after, seen, from_rows, from_others = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(x)):
        e = np.nonzero((pattern.index[mode] == i) & kept)[0]
        j, w = pattern.index[1 - mode][e], root[e]
        v, unsure = w[:, None] * M[j], np.sum(w[:, None] ** 2 * V[j], axis=0)
        left = y[e] - w * own[i] * given[j, 0]
        held = np.diag(np.float64(system.ridge) + unsure)
        G = v.T @ v
        solved[i] = moved = np.linalg.solve(G + held, v.T @ left)
        inverse = np.linalg.inv(G + held)
        variance[i], total = system.noise * np.diag(inverse), total + system.noise * inverse
        before += np.sum((v @ x[i] - left) ** 2)
        after += np.sum((v @ moved - left) ** 2)
        seen += np.sum(w**2)
        from_rows += np.sum((np.diag(G) + unsure) * np.diag(inverse))
        from_others += unsure @ moved**2 + np.sum(w**2 * given[j, 1]) * own[i] ** 2
    moments = np.sum(solved**2 + variance, axis=0)
    return solved, variance, total, moments, before, after, seen, from_rows, from_others


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("q", [1, 3, 8, 13, 32, 37])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_uncertain_rows(dtype, q, beside, weighted, trimmed, mode):
    pattern, system, given = case(dtype, q, max(1, q - 1), beside, weighted, trimmed, q, mode)
    found = pattern.update_rows(system, *given)
    expected = by_hand(pattern, system, *given)
    tol = 1e-6 if dtype == np.float64 else 3e-3
    names = *found._fields[:4], *found.sums._fields
    for name, a, b in zip(names, flat(found), expected, strict=True):
        size = np.abs(b).max() if np.ndim(b) else max(abs(b), 1e-2 * expected[4])
        assert np.abs(np.asarray(a) - b).max() <= tol * size, name


def test_variances_may_be_of_any_size():
    """They are held in units of their own, so that none is lost."""
    pattern, system, given = case(np.float64, 5, 5, False, False, False)
    tiny = replace(system, variance=system.variance * 1e-60, ridge=system.ridge * 1e-60)
    found = pattern.update_rows(tiny, *given)
    assert found.sums.from_others == pytest.approx(by_hand(pattern, tiny, *given)[-1], rel=1e-6)
    certain = replace(system, variance=0 * system.variance)
    assert pattern.update_rows(certain, *given).sums.from_others == 0


def test_collinear_vectors_are_left_to_better_coordinates():
    pattern, system, given = case(np.float64, 4, 4, False, False, False)
    M = system.M.copy()
    M[:, 1] = M[:, 0] + 1e-4 * M[:, 1]
    assert pattern.update_rows(replace(system, M=M, ridge=1e-6 * system.ridge), *given) is None
    M[0, 0] = np.nan
    assert pattern.update_rows(replace(system, M=M), *given) is None


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_column_with_very_many_entries_is_formed_in_parts(dtype):
    rng = np.random.default_rng(0)
    n = 50_000
    i = np.concatenate([np.arange(n), rng.integers(0, n, 2000)])
    j = np.concatenate([np.full(n, 3), np.repeat([0, 1, 4, 5], 500)])
    shape, order = (n, 7), rng.permutation(len(i))
    index = i[order], j[order]
    L, x = rng.standard_normal((n, 5)).astype(dtype), rng.standard_normal((7, 5)).astype(dtype)
    y = rng.standard_normal(len(i)).astype(dtype)
    system = UnsureRows(L, (L * L)[:, :4].copy(), np.ones(5, dtype), 1.0, 1)
    before, found = C.get_num_threads(), []
    for number in (1, 2, 5):
        C.set_num_threads(number)
        pattern = cpp.Cpp().pattern(index, shape)
        plain = pattern.step_rows(RowSystem(Rows(L, 0), 1), x, y)
        found.append([*flat(pattern.update_rows(system, x, y)), plain.step])
    C.set_num_threads(before)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
    expected = by_hand(pattern, system, x, y, None, None)
    tol = 1e-6 if dtype == np.float64 else 3e-3
    for a, b in zip(found[0], expected, strict=False):
        assert np.abs(np.asarray(a) - b).max() <= tol * np.abs(b).max()


# ---- whole sweeps


def problems(dtype):
    """Plain, weighted, and with offsets of both sides, of one side, or of none."""
    rng = np.random.default_rng(0)
    shape = (80, 60)
    index = np.nonzero(rng.random(shape) < 0.4)
    X = rng.standard_normal((80, 3)) @ rng.standard_normal((3, 60)) + rng.standard_normal(60)
    y = X[index] + 0.1 * rng.standard_normal(len(index[0]))
    u, v = np.ones(80, dtype), np.linspace(0.5, 2, 60).astype(dtype)
    start = [rng.standard_normal((n, 6)).astype(dtype) for n in shape]
    A, y = sg.Entries(index, shape), y.astype(dtype)
    root = (0.5 + rng.random(len(y))).astype(dtype)
    heavy = sg.Observed(sg.Weighted(A, root), root * y)
    plain = sg.Observed(A, y)
    return [
        (plain, sg.LowRank(*start)),
        (heavy, sg.LowRank(*start)),
        (plain, sg.Bordered(*start, u, v)),
        (heavy, sg.Bordered(*start, u, v)),
        (plain, sg.Bordered(start[0][:, :5].copy(), start[1], u, None)),
        (plain, sg.Bordered(start[0], start[1][:, :5].copy(), None, v)),
        (plain, sg.Bordered(start[0][:, :0], start[1][:, :1].copy(), u, None)),
    ]


def swept(problem, F, sweeps=4, method=None):
    return sg.solve(problem, F, method or sg.Variational(), max_iter=sweeps).state


@pytest.mark.parametrize("which", range(7))
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sweeps_are_those_of_the_array_api(dtype, which, monkeypatch):
    problem, F = problems(dtype)[which]
    ours = swept(problem, F)
    monkeypatch.setattr(cpp.CppPattern, "update_rows", Generic().pattern((), ()).update_rows)
    theirs = swept(problem, F)
    tol = 1e-6 if dtype == np.float64 else 2e-2
    X, Y = ours.factors.full(), theirs.factors.full()
    assert np.abs(X - Y).max() <= tol * np.abs(Y).max()
    P, Q = ours.memory.method, theirs.memory.method
    assert float(P.noise) == pytest.approx(float(Q.noise), rel=tol)
    assert isinstance(P.noise, float)
    for a, b in zip((*P.prior, *P.variance), (*Q.prior, *Q.variance), strict=True):
        assert a.dtype == b.dtype == np.dtype(dtype)
        if dtype == np.float32:
            continue  # where a column vanishes, whitening in single precision drops its variance
        assert np.abs(a - b).max(initial=0) <= 10 * tol * np.abs(b).max(initial=0)


WHOLE = [
    sg.Variational(full=True),
    sg.Variational(full=True, columns=True),
    sg.Variational(full=True, columns=True, freedom=4.0),
]


@pytest.mark.parametrize("method", WHOLE, ids=["plain", "columns", "heavy tails"])
@pytest.mark.parametrize("which", range(7))
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sweeps_with_whole_covariances_are_those_of_the_array_api(
    dtype, which, method, monkeypatch
):
    problem, F = problems(dtype)[which]
    ours = swept(problem, F, 4, method)
    monkeypatch.setattr(cpp.CppPattern, "compiled", False)
    theirs = swept(problem, F, 4, method)
    tol = 1e-9 if dtype == np.float64 else 1e-2
    X, Y = ours.factors.full(), theirs.factors.full()
    assert np.abs(X - Y).max() <= tol * np.abs(Y).max()
    P, Q = ours.memory.method, theirs.memory.method
    assert float(P.noise) == pytest.approx(float(Q.noise), rel=10 * tol)
    for a, b in zip((*P.prior, *P.total), (*Q.prior, *Q.total), strict=True):
        assert a.dtype == b.dtype == np.dtype(dtype)
        assert np.abs(a - b).max(initial=0) <= 100 * tol * np.abs(b).max(initial=0)
    for C, D in zip(P.covariance, Q.covariance, strict=True):
        assert C.shape == D.shape
        assert np.abs(C - D).max(initial=0) <= 100 * tol * np.abs(D).max(initial=0)


@pytest.mark.parametrize("q", [0, 1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 24, 33])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_covariances_are_turned_on_both_sides(dtype, q):
    rng = np.random.default_rng(q)
    for n in (0, 1, 37):
        whole = rng.standard_normal((n, q, q)).astype(dtype)
        whole, M = whole + whole.transpose(0, 2, 1), rng.standard_normal((q, q)).astype(dtype)
        found, expected = C.turned(whole, M), np.float64(M).T @ np.float64(whole) @ np.float64(M)
        assert found.dtype == np.dtype(dtype)
        assert found.shape == whole.shape
        error = np.abs(found - expected).max(initial=0)
        assert error <= 100 * np.finfo(dtype).eps * np.abs(expected).max(initial=0)
    if q:
        with pytest.raises(ValueError, match="does not fit"):
            C.turned(whole, M[:, 1:].copy())


def test_exact_data_leave_no_noise():
    """What is left is a difference of sums, and must not end where rounding begins."""
    problem, truth = sg.datasets.matrix_completion(90, 80, rank=3, kappa=10, p=0.5, rng=0)
    for full in (False, True):
        state = swept(problem, sg.spectral(3), 60, sg.Variational(full=full))
        assert sg.metrics.relative_error(state.factors, truth) < 1e-11
        assert state.memory.method.noise < 1e-22 * float(np.mean(problem.y**2))


def test_a_sweep_writes_nothing_of_the_size_of_the_data():
    problem, F = problems(np.float64)[2]
    state = swept(problem, F, 1)
    asked = []

    class Counted(type(problem.operator)):
        fused = True

        def residual(self, *given):
            asked.append("residual")
            return super().residual(*given)

        def coverage(self, *given):
            asked.append("coverage")
            return super().coverage(*given)

    operator = Counted(problem.operator.index, problem.operator.shape)
    sg.solve(sg.Observed(operator, problem.y), state.factors, sg.Variational(), max_iter=3)
    assert not asked


@pytest.mark.parametrize("full", [False, True])
def test_sweeps_are_the_same_to_the_bit_for_every_number_of_threads(full):
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, 2000, 200_000), rng.integers(0, 1500, 200_000) ** 2 // 1500
    flat = np.unique(i * 1500 + j)
    index, y = (flat // 1500, flat % 1500), rng.standard_normal(len(flat))
    F = sg.LowRank(rng.standard_normal((2000, 12)), rng.standard_normal((1500, 12)))
    before, found = C.get_num_threads(), []
    for number in (1, 2, 3, 7):
        C.set_num_threads(number)
        problem = sg.Observed(sg.Entries(index, (2000, 1500)), y)
        state = swept(problem, F, 3, sg.Variational(full=full))
        posterior = state.memory.method
        found.append([*state.factors.blocks, *posterior.variance, np.asarray(posterior.noise)])
    C.set_num_threads(before)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_factors_whose_squares_vanish_beside_each_other_have_sizes():
    tiny = 1e-100 * np.eye(5, 2)
    found = cpp.sizes_of(tiny.T @ tiny, np.zeros(2))
    assert np.allclose(found, 1e-200, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("each", [False, True])
def test_a_column_that_its_ridge_holds_at_zero_does_not_hold_the_others(dtype, parallel, each):
    """In coordinates that mix columns, rounding times a huge ridge would."""
    rng = np.random.default_rng(4)
    index = np.nonzero(rng.random(SHAPE) < 0.5)
    y = rng.standard_normal(len(index[0]))
    M = rng.standard_normal((SHAPE[1], 3))
    M[:, 2] *= 1e-14
    if parallel:
        M[:, 1] = M[:, 0] * (1 + 1e-6 * M[:, 1])
    x = np.concatenate([rng.standard_normal((SHAPE[0], 2)), np.zeros((SHAPE[0], 1))], axis=1)
    expected = np.zeros_like(x)
    for i in range(SHAPE[0]):
        V = M[index[1][index[0] == i], :2]
        expected[i, :2] = np.linalg.solve(V.T @ V + 0.5 * np.eye(2), V.T @ y[index[0] == i])
    ridge = np.array([0.5, 0.5, HOLD]) * np.ones((SHAPE[0], 1) if each else 1)
    x, y, ridge, vectors = (z.astype(dtype) for z in (x, y, ridge, M))
    system = RowSystem(Rows(vectors, 1), 0, ridge)
    tolerance = 1e-8 if dtype is np.float64 else 1e-4
    for backend in (cpp.Cpp(), Generic()):
        pattern = backend.pattern(index, SHAPE)
        residual = pattern.residual((x, vectors)) - y
        gradient = pattern.contract(residual, (x, vectors), 0) + ridge * x
        steps = [pattern.solve_rows(system, gradient, None)[0]]
        if pattern.steps(system, None, x, y):
            steps.append(pattern.step_rows(system, x, y)[0])
        assert len(steps) == 1 + isinstance(backend, cpp.Cpp)
        for step in steps:
            off = (np.float64(x - step) - expected) @ M.T
            assert np.abs(off).max() < tolerance * np.abs(expected @ M.T).max()
