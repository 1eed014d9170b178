"""The compiled kernels do what the array-API kernels do, on any number of threads."""

import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import scaledgd as sg
from scaledgd.estimators.local_observations import LocalObservations
from scaledgd.kernels import Rows, RowSystem, backend, cpp
from scaledgd.kernels.generic import Generic
from scaledgd.kernels.scipy import SciPy, SciPyPattern
from scaledgd.linalg import whitening

pytestmark = pytest.mark.skipif(not cpp.AVAILABLE, reason="built without a compiler")

C = cpp.C
DTYPES = [np.float64, np.float32]


def close(a, b, dtype, scale=1.0):
    tol = 1e-11 if dtype == np.float64 else 2e-4
    size = max(1e-30, float(np.abs(b).max(initial=0.0)))
    assert a.dtype == b.dtype == np.dtype(dtype)
    assert a.shape == b.shape
    assert np.abs(a - b).max(initial=0.0) <= scale * tol * size


def places(rng, shape, m, ordered):
    flat = rng.choice(int(np.prod(shape)), m, replace=False)
    flat = np.sort(flat) if ordered else flat
    return tuple(i.astype(np.int64) for i in np.unravel_index(flat, shape))


def both(rng, shape, m, ordered):
    """The compiled pattern, and the reference; some rows and columns have no entry."""
    index = places(rng, shape, m, ordered)
    return cpp.Cpp().pattern(index, shape), Generic().pattern(index, shape)


def draw(rng, dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


@pytest.fixture(params=[1, 2, 3, 7])
def threads(request):
    before = C.get_num_threads()
    C.set_num_threads(request.param)
    yield request.param
    C.set_num_threads(before)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("r", [1, 2, 5, 8, 16, 23, 32, 40, 70])
@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_products_and_residuals(dtype, r, ordered):
    rng = np.random.default_rng(r)
    ours, theirs = both(rng, (60, 45), 700, ordered)
    L, R, y = draw(rng, dtype, 60, r), draw(rng, dtype, 45, r), draw(rng, dtype, 700)
    for skip in (0, 1, None):
        close(ours.contract(y, (L, R), skip), theirs.contract(y, (L, R), skip), dtype, 10)
    expected = np.sum(L[theirs.index[0]] * R[theirs.index[1]], axis=1)
    close(ours.residual((L, R)), expected, dtype)
    close(ours.residual((L, R), y), expected - y, dtype)
    close(backend(L).gather((L, R), theirs.index), expected, dtype)
    for mode, x, M in ((0, L, R), (1, R, L)):
        squares, gradient = ours.squares_and_gradient(x, M, y, mode)
        modes = (L, R)
        wanted = theirs.contract(expected - y, modes, mode)
        close(gradient, wanted if mode == 0 else wanted.T, dtype, 10)
        assert squares == pytest.approx(float(np.sum((expected - y) ** 2)), rel=1e-4)
    ones = ours.ones(y)
    close(ours.contract(ones, (L, R), 1), theirs.contract(ones, (L, R), 1), dtype, 10)


@pytest.mark.parametrize("r", [1, 3, 10, 16, 33])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ridge", [None, "row", "all"])
def test_row_systems(dtype, r, ridge):
    rng = np.random.default_rng(r)
    ours, theirs = both(rng, (50, 90), 3600, False)
    L, R = draw(rng, dtype, 50, r), draw(rng, dtype, 90, r) * np.logspace(0, -2, r).astype(dtype)
    y = draw(rng, dtype, 3600)
    weights = np.abs(draw(rng, dtype, 3600)) + dtype(0.1)
    for mode, x, M in ((0, L, R), (1, R, L)):
        held = {"row": np.abs(draw(rng, dtype, r)), "all": np.abs(draw(rng, dtype, *x.shape))}
        given = held.get(ridge)
        design = Rows(M, 1 - mode)
        target = draw(rng, dtype, *x.shape)
        for spread in (False, True):
            system = RowSystem(design, mode, given, spread)
            a = ours.solve_rows(system, target, weights)
            b = theirs.solve_rows(system, target, weights)
            exact = spread or r <= cpp.EXACT
            for s, t in zip(a[: 3 if spread else 1], b[: 3 if spread else 1], strict=True):
                if exact:
                    close(s, t, dtype, 1e3)
        if r > cpp.EXACT:
            continue
        # the step from where the row stands is that for the gradient there
        kept = rng.random(3600) < 0.9
        root = np.sqrt(weights)
        off = (root * np.sum(L[theirs.index[0]] * R[theirs.index[1]], axis=1) - y) * kept
        gradient = theirs.contract(root * off, (L, R), mode)
        gradient = (gradient if mode == 0 else gradient.T) + (0 if given is None else given * x)
        system = RowSystem(design, mode, given)
        assert ours.steps(system, root, x, y)
        assert not theirs.steps(system, root, x, y)
        expected = theirs.solve_rows(system, gradient, (weights * kept).astype(dtype)).step
        close(ours.step_rows(system, x, y, root, kept).step, expected, dtype, 1e3)


@pytest.mark.parametrize("r", [1, 4, 7, 10, 16, 30])
@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_know_the_squares_before_and_after(dtype, r):
    rng = np.random.default_rng(r)
    ours, theirs = both(rng, (50, 90), 3000, False)
    L, R, y = draw(rng, dtype, 50, r), draw(rng, dtype, 90, r), draw(rng, dtype, 3000)
    for mode, x, M in ((0, L, R), (1, R, L)):
        found = ours.step_rows(RowSystem(Rows(M, 1 - mode), mode, None, False), x, y)
        moved = (x - found.step, M) if mode == 0 else (M, x - found.step)
        squares = [float(np.sum(theirs.residual(F, y) ** 2)) for F in ((L, R), moved)]
        tol = 1e-7 if dtype == np.float64 else 1e-2  # a little is added to the systems
        np.testing.assert_allclose(found.squares, squares, rtol=tol)
        held = RowSystem(Rows(M, 1 - mode), mode, np.ones(r, dtype=dtype), False)
        assert ours.step_rows(held, x, y).squares is None  # the ridge is part of the loss


@pytest.mark.parametrize("ridge", [None, "all"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_with_gross_errors(dtype, ridge):
    """One kernel does what rounds of medians and of least squares over all rows do."""
    rng = np.random.default_rng(0)
    L, R = draw(rng, dtype, 41, 5), draw(rng, dtype, 77, 5)
    errors = (10 * draw(rng, dtype, 41, 77)) * (rng.random((41, 77)) < 0.1)
    y = L @ R.T + errors + dtype(0.01) * draw(rng, dtype, 41, 77)
    given = None if ridge is None else dtype(0.1) * np.abs(draw(rng, dtype, 41, 5))
    data, start = LocalObservations(None, y, y.shape), sg.Bordered(0 * L, R)
    found = data.rows_without_outliers(start, 0, 0.05, given).L
    every = LocalObservations(np.nonzero(np.ones(y.shape)), y.ravel(), y.shape)
    expected = every.rows_without_outliers(start, 0, 0.05, given).L
    close(found, expected, dtype, 1e3)
    if ridge is None:
        assert np.abs(found - L).max() < 0.02
    alone = LocalObservations(None, y[3:4], (1, 77))
    held = None if given is None else given[3:4]
    one = alone.rows_without_outliers(sg.Bordered(0 * L[3:4], R), 0, 0.05, held).L
    close(one[0], found[3], dtype, 0.1)


@pytest.mark.parametrize("share", [0.7, 0.85, 0.99])
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_entries_are_gone_through_whole(dtype, share):
    """Where most of a matrix is seen another path is taken, to the same end."""
    rng = np.random.default_rng(0)
    m = int(share * 50 * 90)
    ours, theirs = both(rng, (50, 90), m, False)
    assert ours.dense == (share >= cpp.DENSE)
    L, R, y = draw(rng, dtype, 50, 6), draw(rng, dtype, 90, 6), draw(rng, dtype, m)
    kept = rng.random(m) < 0.9
    off = (np.sum(L[theirs.index[0]] * R[theirs.index[1]], axis=1) - y).astype(dtype)
    for mode, x, M in ((0, L, R), (1, R, L)):
        design = Rows(M, 1 - mode)
        for mask in (None, kept):
            weights = None if mask is None else mask.astype(dtype)
            gradient = theirs.contract(off if mask is None else off * weights, (L, R), mode)
            gradient = gradient if mode == 0 else gradient.T
            system = RowSystem(design, mode, spread=True)
            expected = theirs.solve_rows(system, gradient, weights)
            found = ours.step_rows(system, x, y, None, mask)
            for a, b in zip(found[:3], expected[:3], strict=True):
                close(a, b, dtype, 1e3)


@pytest.mark.parametrize("r", [33, 48, 70, 130])
@pytest.mark.parametrize("dtype", DTYPES)
def test_conjugate_gradients_solve_large_systems_too(dtype, r):
    rng = np.random.default_rng(0)
    ours, theirs = both(rng, (8, 800), 3200, True)
    M = draw(rng, dtype, 800, r) * np.logspace(0, -3, r).astype(dtype)
    target = draw(rng, dtype, 8, r) * np.logspace(0, -3, r).astype(dtype)
    design = Rows(M, 1)
    found, exact = (p.solve_rows(RowSystem(design, 0), target).step for p in (ours, theirs))
    assert np.linalg.norm((found - exact) @ M.T) < 3e-2 * np.linalg.norm(exact @ M.T)
    assert np.linalg.norm((found - exact) @ M.T) > 1e-9 * np.linalg.norm(exact @ M.T)
    # from where the rows stand, the same to rounding: the gradient there is as precise as the data
    x, y = draw(rng, dtype, 8, r), draw(rng, dtype, 3200)
    gradient = theirs.contract(theirs.residual((x, M), y), (x, M), 0)
    one = ours.step_rows(RowSystem(design, 0), x, y).step
    other = ours.solve_rows(RowSystem(design, 0), gradient).step
    tol = 1e-4 if dtype == np.float64 else 1e-2
    assert np.linalg.norm((one - other) @ M.T) < tol * np.linalg.norm(other @ M.T)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_with_too_few_entries_is_left_alone_where_nothing_was_seen(dtype):
    """Row 0 has one entry, row 1 none: along what was not seen there is no step."""
    rng = np.random.default_rng(0)
    index = np.r_[0, np.full(30, 2)].astype(np.int64), np.r_[3, np.arange(30)].astype(np.int64)
    M, target = draw(rng, dtype, 30, 4), np.zeros((3, 4), dtype)
    target[0] = M[3]
    step = cpp.Cpp().pattern(index, (3, 30)).solve_rows(RowSystem(Rows(M, 1), 0), target).step
    assert np.isfinite(step).all()
    assert np.abs(step[1]).max() == 0
    assert float(step[0] @ M[3]) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("shape", [(9, 8, 7), (6, 5, 4, 3), (5, 4, 3, 3, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tucker_contractions(dtype, shape):
    rng = np.random.default_rng(len(shape))
    m = int(np.prod(shape)) // 2
    ours, theirs = both(rng, shape, m, False)
    ranks = tuple(min(n, 4 - k % 3) for k, n in enumerate(shape))
    modes = tuple(draw(rng, dtype, n, r) for n, r in zip(shape, ranks, strict=True))
    core, w = draw(rng, dtype, *ranks), draw(rng, dtype, m)
    F = sg.Tucker(modes, core)
    close(backend(core).gather(modes, ours.index, core), F.full()[ours.index], dtype, 10)
    close(backend(core).gather(modes, ours.index, core, w), F.full()[ours.index] - w, dtype, 10)
    for skip in (*range(len(shape)), None):
        close(ours.contract(w, modes, skip), theirs.contract(w, modes, skip), dtype, 100)
    for a, b in zip(
        ours.tucker_gradients(w, modes, core), theirs.tucker_gradients(w, modes, core), strict=True
    ):
        close(a, b, dtype, 100)
    for k in range(len(shape)):
        design = F.design(k)
        target, ridge = draw(rng, dtype, *modes[k].shape), np.ones(ranks[k], dtype)
        system = RowSystem(design, k, ridge)
        a, b = (p.solve_rows(system, target).step for p in (ours, theirs))
        close(a, b, dtype, 1e3)
        off = F.full()[ours.index] - w
        gradient = F.pullback_block(sg.Entries(ours.index, shape).adjoint(off), k)
        expected = theirs.solve_rows(system, gradient + ridge * modes[k]).step
        close(ours.step_rows(system, modes[k], w).step, expected, dtype, 1e3)


@pytest.mark.parametrize("shape", [(40, 33), (37, 130), (64, 64)])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_matrices_and_what_is_rejected_of_them(dtype, share, shape):
    rng = np.random.default_rng(1)
    L, R, Y = draw(rng, dtype, shape[0], 5), draw(rng, dtype, shape[1], 5), draw(rng, dtype, *shape)
    close(backend(L).dense_residual(L, R, Y), L @ R.T - Y, dtype, 10)
    kept = rng.random(shape) >= share
    grid, plain = cpp.Cpp().grid(shape), Generic().grid(shape)
    off = (L @ R.T - Y) * kept
    for mode, x, M in ((0, L, R), (1, R, L)):
        design, gradient = Rows(M, 1 - mode), (off @ R, off.T @ L)[mode]
        ridge = np.full(5, 0.5, dtype)
        held, free = RowSystem(design, mode, ridge), RowSystem(design, mode)
        weights = kept.astype(dtype)
        expected = plain.solve_rows(held, gradient + ridge * x, weights).step
        close(grid.step_rows(held, x, Y, None, kept).step, expected, dtype, 1e3)
        if share in (0.0, 0.2):
            expected = plain.solve_rows(free, gradient, weights).step
            close(grid.step_rows(free, x, Y, None, kept).step, expected, dtype, 1e3)
    system = RowSystem(Rows(R, 1), 0)
    whole = grid.step_rows(system, L, Y).step
    close(whole, plain.solve_rows(system, (L @ R.T - Y) @ R).step, dtype, 1e3)


# ---- order statistics


@pytest.mark.parametrize("kind", ["spread", "ties", "sorted", "periodic", "nan"])
@pytest.mark.parametrize("n", [1, 15, 17, 129, 1000, 30_000, 300_001])
@pytest.mark.parametrize("dtype", DTYPES)
def test_order_statistics_of_any_numbers(dtype, n, kind):
    rng = np.random.default_rng(n)
    x = (rng.standard_normal(n) * np.exp(4 * rng.standard_normal(n))).astype(dtype)
    if kind == "ties":
        x = np.round(x) + dtype(0)  # without zeros that are negative
    elif kind == "sorted":
        x = np.sort(x)
    elif kind == "periodic":
        x = np.resize(np.asarray([3.0, -1.0, 1e9, 0.0], dtype=dtype), n)
    elif kind == "nan":
        x[rng.random(n) < 0.3] = np.nan  # as large as it gets
    size, line = np.sort(np.abs(x)), np.sort(x)
    for k in {0, n // 7, (n - 1) // 2, n - 1}:
        np.testing.assert_equal(C.kth_magnitude(x, k), size[k])
        np.testing.assert_equal(C.kth_of_fibres(x[None, :, None], k).item(), line[k])


@pytest.mark.parametrize("dtype", DTYPES)
def test_middles_and_moments_of_lines(dtype):
    rng = np.random.default_rng(0)
    table = (100 + rng.standard_normal((37, 52))).astype(dtype)
    grid = cpp.Cpp().grid(table.shape)
    for mode, lines in enumerate((table, table.T)):
        middle = np.sort(lines, axis=1)[:, (lines.shape[1] - 1) // 2]
        off = np.sort(np.abs(lines - middle[:, None]), axis=1)[:, (lines.shape[1] - 1) // 2]
        found = grid.spreads(table, mode)
        np.testing.assert_array_equal(found[0], middle)
        np.testing.assert_array_equal(found[1], off)
    ours, theirs = both(rng, (37, 52), 800, False)
    y = (100 + rng.standard_normal(800)).astype(dtype)
    for mode in (0, 1):
        for a, b in zip(ours.moments(y, mode), theirs.moments(y, mode), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10 if dtype == np.float64 else 1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "kind", ["normal", "zeros", "same", "few", "huge range", "negative", "subnormal"]
)
def test_selection_is_exact(dtype, kind):
    rng = np.random.default_rng(0)
    n = 5000
    x = {
        "normal": rng.standard_normal(n),
        "zeros": np.where(rng.random(n) < 0.7, 0.0, rng.standard_normal(n)),
        "same": np.full(n, -3.0),
        "few": rng.integers(-3, 4, n) / 3.0,
        "huge range": rng.standard_normal(n) * 10.0 ** rng.integers(-30, 30, n),
        "negative": -np.abs(rng.standard_normal(n)),
        "subnormal": rng.standard_normal(n) * np.finfo(dtype).tiny,
    }[kind].astype(dtype)
    size = np.sort(np.abs(x))
    for k in (1, 2, n // 3, n // 2, n - 1, n):
        assert backend(x).kth_magnitude(x, k) == size[n - k]
    table = x[:4800].reshape(60, 80)
    for axis in (0, 1):
        for k in (1, 7, 30, table.shape[axis]):
            expected = np.take(np.sort(table, axis=axis), [table.shape[axis] - k], axis=axis)
            np.testing.assert_array_equal(backend(table).kth_largest(table, k, axis), expected)
    cube = x[:4800].reshape(10, 24, 20)
    expected = np.take(np.sort(cube, axis=1), [24 - 5], axis=1)
    np.testing.assert_array_equal(backend(cube).kth_largest(cube, 5, 1), expected)
    for threshold in (0.0, float(size[n // 2]), float(size[-1])):
        kept, count, squares, largest = backend(x).within(x, threshold)
        inside = np.abs(x) <= dtype(threshold)
        np.testing.assert_array_equal(kept, inside)
        assert count == inside.sum()
        assert largest == np.abs(x[inside]).max(initial=0.0)
        if dtype == np.float32 and kind in ("huge range", "subnormal"):
            continue  # squares are of the precision of what is squared
        wanted = np.sum(x[inside].astype(np.float64) ** 2)
        assert squares == pytest.approx(wanted, rel=1e-5, abs=1e-300)
        assert float(backend(x).kept_squares(x, inside)) == pytest.approx(
            wanted, rel=1e-5, abs=1e-30
        )


def test_medians_of_rows():
    rng = np.random.default_rng(0)
    ours, theirs = both(rng, (300, 50), 900, False)
    values = np.abs(rng.standard_normal(900))
    for mode in (0, 1):
        np.testing.assert_array_equal(ours.medians(values, mode), theirs.medians(values, mode))


# ---- reading


def test_present_finds_what_is_not_nan():
    rng = np.random.default_rng(0)
    for shape in ((7,), (6, 5), (4, 3, 5), (1, 1)):
        X = np.where(rng.random(shape) < 0.6, rng.standard_normal(shape), np.nan)
        X.flat[0] = np.nan
        index, values, strange = backend(X).present(X, None)
        expected = np.nonzero(~np.isnan(X))
        for a, b in zip(index, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(values, X[expected])
        assert not strange
    assert backend(np.ones(1)).present(np.ones((3, 2)), None)[0] is None
    assert backend(np.ones(1)).present(np.asarray([[1.0, np.inf], [np.nan, 1.0]]), None)[2]
    observed = np.asarray([[True, False], [False, True]])
    index, values, strange = backend(np.ones(1)).present(
        np.asarray([[1.0, np.nan], [np.inf, 2.0]]), observed
    )
    assert not strange
    np.testing.assert_array_equal(values, [1.0, 2.0])
    assert backend(np.ones(1)).present(np.asarray([[1.0, 2.0], [3.0, np.nan]]), observed)[2]


def test_repeated_entries_and_parts_are_found():
    rng = np.random.default_rng(0)
    for shape in ((30, 40), (9, 8, 7)):
        index = places(rng, shape, 100, False)
        assert backend(*index).distinct(index, shape)
        again = tuple(np.r_[i, i[17]] for i in index)
        assert not backend(*again).distinct(again, shape)
        few = tuple(i[:20] for i in index)
        assert backend(*few).parts(few, shape) == SciPy().parts(few, shape)
        assert Generic().parts(few, shape) == SciPy().parts(few, shape)
    blocks = np.asarray([0, 0, 1, 5]), np.asarray([0, 1, 1, 7])
    assert backend(*blocks).parts(blocks, (9, 9)) == 2


def test_bad_arguments_are_refused_not_followed():
    index = [np.asarray([0, 5]), np.asarray([0, 1])]
    with pytest.raises(ValueError, match="out of range"):
        C.sorted(index, [3, 3], 0)
    side = C.sorted([np.asarray([0, 1]), np.asarray([0, 1])], [2, 2], 0)
    with pytest.raises(ValueError, match="fit the entries"):
        C.one_pass(side, np.ones((2, 2)), None, None, np.ones(5), False, True)
    with pytest.raises(ValueError, match="x does not fit"):
        C.one_pass(side, np.ones((2, 2)), np.ones((3, 2)), np.ones(2), None, True, False)
    with pytest.raises(ValueError, match="k must be"):
        C.kth_magnitude(np.ones(3), 3)


# ---- threads


def fits():
    """Whole fits, so that every kernel has its say."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 4)) @ rng.standard_normal((4, 120))
    noisy = X + 0.1 * rng.standard_normal(X.shape)
    holes = np.where(rng.random(X.shape) < 0.5, noisy, np.nan)
    wrong = X + 10 * (rng.random(X.shape) < 0.1)
    T = np.einsum("ia,ja,ka->ijk", *(rng.standard_normal((n, 2)) for n in (25, 20, 15)))
    T = np.where(rng.random(T.shape) < 0.4, T, np.nan)
    return [
        sg.MatrixCompletion(4, random_state=0).fit(holes).reconstruct(),
        sg.RobustPCA(4, random_state=0).fit(wrong).reconstruct(),
        sg.TensorCompletion(2, random_state=0).fit(T).reconstruct(),
    ]


@pytest.fixture(scope="module")
def alone():
    before = C.get_num_threads()
    C.set_num_threads(1)
    yield fits()
    C.set_num_threads(before)


def test_results_are_the_same_to_the_bit_for_every_number_of_threads(alone, threads):
    for a, b in zip(alone, fits(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_large_kernels_are_the_same_to_the_bit(threads):
    """Large enough to be divided into many pieces."""
    rng = np.random.default_rng(0)
    index = places(rng, (3000, 2000), 300_000, False)
    L, R, y = draw(rng, np.float64, 3000, 12), draw(rng, np.float64, 2000, 12), rng.random(300_000)
    T = whitening(R.T @ R)
    found = []
    for n in (1, threads):
        C.set_num_threads(n)
        pattern = cpp.Cpp().pattern(index, (3000, 2000))
        squares, gradient = pattern.squares_and_gradient(R, L, y, 1)
        solved = pattern.solve_rows(RowSystem(Rows(R, 1), 0, spread=True), L @ T)
        found.append([np.asarray(squares), gradient, *solved, backend(y).kth_magnitude(y, 1000)])
        found[-1] += [np.asarray(x) for x in backend(y).within(y - 0.5, 0.3)]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_many_threads_of_python_at_once():
    rng = np.random.default_rng(0)
    index = places(rng, (500, 400), 40_000, True)
    pattern = cpp.Cpp().pattern(index, (500, 400))
    L, R, y = rng.random((500, 6)), rng.random((400, 6)), rng.random(40_000)
    expected = pattern.squares_and_gradient(L, R, y, 0)
    wrong = []

    def work():
        for _ in range(30):
            squares, gradient = pattern.squares_and_gradient(L, R, y, 0)
            if squares != expected[0] or not np.array_equal(gradient, expected[1]):
                wrong.append(squares)

    crowd = [threading.Thread(target=work) for _ in range(8)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_child_works_and_ends():
    code = """
import os, numpy as np
from scaledgd.kernels import _compiled as C
C.set_num_threads(2)
x = np.random.default_rng(0).random(1 << 21)
here = C.within(x, 0.5)[1]
pid = os.fork()
if pid == 0:
    os._exit(0 if C.within(x, 0.5)[1] == here else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], timeout=300, env=environment, check=False)
    assert done.returncode == 0


def test_threadpoolctl_limits_the_kernels_too():
    from threadpoolctl import ThreadpoolController, threadpool_limits

    C.set_num_threads(2)
    apis = [info["user_api"] for info in ThreadpoolController().info()]
    assert apis.count("scaledgd") == 1
    with threadpool_limits(limits=1):
        assert C.get_num_threads() == 1
    assert C.get_num_threads() == 2


def test_a_fit_gives_threads_back_whatever_happens():
    from threadpoolctl import threadpool_info, threadpool_limits

    def now():
        return [(i["filepath"], i["num_threads"]) for i in threadpool_info()]

    X = np.outer(np.arange(1.0, 31.0), np.arange(1.0, 21.0))
    sg.MatrixCompletion(2, n_jobs=1).fit(X)
    with threadpool_limits(limits=2):
        before = now()
        sg.MatrixCompletion(2, n_jobs=1).fit(X)
        with pytest.raises(ValueError, match="rank"):
            sg.MatrixCompletion((2, 2), n_jobs=1).fit(X)
        assert now() == before


# ---- the rest


def test_patterns_can_be_pickled():
    rng = np.random.default_rng(0)
    operator = sg.Entries(places(rng, (20, 30), 200, False), (20, 30))
    F = sg.LowRank(rng.random((20, 2)), rng.random((30, 2)))
    expected = operator.apply(F)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(operator)).apply(F), expected)


def test_whoever_measures_in_another_way_is_not_passed_over():
    """An operator derived from Entries or Full decides what is measured."""
    rng = np.random.default_rng(0)
    i, j = places(rng, (20, 15), 150, True)
    F = sg.LowRank(rng.random((20, 2)), rng.random((15, 2)))

    class Doubled(sg.Entries):
        def apply(self, factors):
            return 2 * super().apply(factors)

        def adjoint(self, w):
            return super().adjoint(2 * w)

    class DoubledFull(sg.Full):
        def apply(self, factors):
            return 2 * super().apply(factors)

        def adjoint(self, w):
            return super().adjoint(2 * w)

    Y = F.full()
    for operator, y in ((Doubled((i, j), (20, 15)), Y[i, j]), (DoubledFull((20, 15)), Y)):
        state = sg.Observed(operator, y).linearize(F)
        assert float(state.value) == pytest.approx(0.5 * float(np.sum(y**2)))
        eps = 1e-6
        moved = sg.LowRank(F.L + eps * (np.arange(40).reshape(20, 2) == 7), F.R)
        slope = (float(state.objective(moved)) - float(state.value)) / eps
        assert state.gradient[0].ravel()[7] == pytest.approx(slope, rel=1e-4)


def test_without_compiled_kernels_everything_works(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 40))
    holes = np.where(rng.random(X.shape) < 0.6, X, np.nan)
    fast = sg.MatrixCompletion(3, random_state=0).fit(holes).reconstruct()
    monkeypatch.setattr(cpp, "AVAILABLE", False)
    monkeypatch.setattr(cpp, "C", None)
    index = places(rng, (9, 9), 20, True)
    assert type(backend(*index).pattern(index, (9, 9))) is SciPyPattern
    slow = sg.MatrixCompletion(3, random_state=0).fit(holes).reconstruct()
    assert np.abs(slow - fast).max() < 1e-6
    wrong = X + 10 * (rng.random(X.shape) < 0.1)
    assert np.abs(sg.RobustPCA(3).fit(wrong).reconstruct() - X).max() < 1e-6
    T = np.einsum("ia,ja,ka->ijk", *(rng.standard_normal((n, 2)) for n in (15, 12, 10)))
    seen = np.where(rng.random(T.shape) < 0.6, T, np.nan)
    assert np.abs(sg.TensorCompletion(2).fit(seen).reconstruct() - T).max() < 1e-6
