"""Gaussian chains, priors of series, and tables in time, against dense linear algebra."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from conftest import LIBRARIES, library
from numpy.testing import assert_allclose

import scaledgd.temporal.prior as prior_module
import scaledgd.temporal.smooth as smooth_module
from scaledgd.linalg import to_host
from scaledgd.temporal.chain import MATRICES, NUMBERS, drawn_chain, evidence, solve_chain
from scaledgd.temporal.prior import LENGTHS, Times, learnt_lengths, precision
from scaledgd.temporal.series import Series, learnt_series
from scaledgd.temporal.smooth import (
    Smooth,
    Table,
    begun,
    drawn_rows,
    no_rows,
    solved_rows,
    solved_series,
    swept,
    without_errors,
)

SIZES = range(1, 14)


def irregular(rng, T):
    """Steps of very different sizes."""
    return np.exp(rng.normal(0, 1, max(0, T - 1)))


def places(steps):
    return np.concatenate([[0.0], np.cumsum(steps)])


def correlation(steps, length):
    t = places(steps)
    return np.exp(-np.abs(t[:, None] - t[None, :]) / length)


def series(rng, steps, length, n=1):
    """Stationary series of variance 1, drawn step by step."""
    x = np.empty((len(steps) + 1, n))
    x[0] = rng.standard_normal(n)
    for t, step in enumerate(steps):
        a = np.exp(-step / length)
        x[t + 1] = a * x[t] + np.sqrt(1 - a * a) * rng.standard_normal(n)
    return x


def chain(rng, T, r):
    """Blocks of a positive definite block-tridiagonal matrix, and the matrix itself."""
    A = np.zeros((T * r, T * r))
    E = rng.standard_normal((T - 1, r, r))
    D = np.empty((T, r, r))
    for t in range(T):
        M = rng.standard_normal((r, r))
        D[t] = M @ M.T + 8 * r * np.eye(r)
        A[t * r : (t + 1) * r, t * r : (t + 1) * r] = D[t]
        if t:
            A[t * r : (t + 1) * r, (t - 1) * r : t * r] = E[t - 1]
            A[(t - 1) * r : t * r, t * r : (t + 1) * r] = E[t - 1].T
    return D, E, A


# ---- chains


@pytest.mark.parametrize("T", SIZES)
def test_a_chain_of_matrices_is_solved_like_a_dense_system(T):
    rng, r = np.random.default_rng(T), 3
    D, E, A = chain(rng, T, r)
    b = rng.standard_normal((T, r))
    before = [x.copy() for x in (D, E, b)]
    found = solve_chain(D, E, b, MATRICES)
    C = np.linalg.inv(A).reshape(T, r, T, r)
    assert_allclose(found.mean, np.linalg.solve(A, b.ravel()).reshape(T, r), atol=1e-12)
    assert_allclose(found.covariance, [C[t, :, t] for t in range(T)], atol=1e-12)
    assert found.lagged.shape == (T - 1, r, r)
    for t in range(T - 1):
        assert_allclose(found.lagged[t], C[t + 1, :, t], atol=1e-12)
    for x, y in zip((D, E, b), before, strict=True):
        assert np.array_equal(x, y)


@pytest.mark.parametrize("T", SIZES)
def test_chains_of_numbers_stand_beside_each_other(T):
    rng, n = np.random.default_rng(100 + T), 4
    steps, lengths = irregular(rng, T), np.array([0.2, 1.0, 7.0, 300.0])
    D, E = precision(steps, lengths)
    weight = rng.random((T, n)) * (rng.random((T, n)) < 0.7)
    b = rng.standard_normal((T, n))
    found = solve_chain(D + weight, E, b, NUMBERS)
    determinant, square = evidence(D + weight, E, b)
    for j in range(n):
        A = np.diag(D[:, j] + weight[:, j]) + np.diag(E[:, j], -1) + np.diag(E[:, j], 1)
        C = np.linalg.inv(A)
        assert_allclose(found.mean[:, j], C @ b[:, j], rtol=1e-8, atol=1e-10)
        assert_allclose(found.covariance[:, j], np.diag(C), rtol=1e-8)
        assert_allclose(found.lagged[:, j], np.diag(C, -1), rtol=1e-8, atol=1e-12)
        assert_allclose(determinant[j], np.linalg.slogdet(A)[1], rtol=1e-8, atol=1e-9)
        assert_allclose(square[j], b[:, j] @ C @ b[:, j], rtol=1e-8)


@pytest.mark.parametrize("ops", [NUMBERS, MATRICES])
@pytest.mark.parametrize("T", [1, 2, 5, 12, 13])
def test_draws_have_the_covariance_of_the_chain(T, ops):
    """A draw is linear in its normal numbers: the matrix of that map is a root of the inverse."""
    rng, r = np.random.default_rng(T), 1 if ops is NUMBERS else 2
    D, E, A = chain(rng, T, r)
    if ops is NUMBERS:
        D, E = D[:, :, 0], E[:, :, 0]
    shape = (T, r)
    root = np.stack([drawn_chain(D, E, z.reshape(shape), ops).ravel() for z in np.eye(T * r)], 1)
    assert_allclose(root @ root.T, np.linalg.inv(A), atol=1e-12)


@pytest.mark.parametrize("name", LIBRARIES)
def test_chains_are_the_same_in_every_library(name):
    xp, rng = library(name), np.random.default_rng(0)
    D, E, _ = chain(rng, 11, 2)
    b, z = rng.standard_normal((2, 11, 2))
    here = [xp.asarray(x) for x in (D, E, b)]
    found, expected = solve_chain(*here, MATRICES), solve_chain(D, E, b, MATRICES)
    for k in ("mean", "covariance", "lagged"):
        assert_allclose(to_host(getattr(found, k)), getattr(expected, k), atol=1e-12)
    drawn = drawn_chain(here[0], here[1], xp.asarray(z), MATRICES)
    assert_allclose(np.abs(to_host(drawn)).shape, (11, 2))


# ---- priors


@pytest.mark.parametrize("T", SIZES)
def test_the_precision_is_the_inverse_of_the_correlations(T):
    steps = irregular(np.random.default_rng(T), T)
    lengths = np.array([0.3, 2.0, 50.0])
    D, E = precision(steps, lengths)
    assert D.shape == (T, 3)
    assert E.shape == (T - 1, 3)
    for j, length in enumerate(lengths):
        P = np.diag(D[:, j]) + np.diag(E[:, j], -1) + np.diag(E[:, j], 1)
        assert_allclose(P @ correlation(steps, length), np.eye(T), atol=1e-8)


def test_similar_distances_are_merged():
    rng = np.random.default_rng(0)
    few = Times(rng.choice([1.0, 2.0, 5.0], 200)).groups
    assert_allclose(few[0], [1, 2, 5])
    steps = np.exp(rng.normal(0, 1, 1000))
    values, place = Times(steps).groups
    assert len(values) <= 64
    assert np.abs(np.log(values[place] / steps)).max() < 0.1


@pytest.mark.parametrize("regular", [True, False])
@pytest.mark.parametrize("length", [0.5, 3.0, 20.0, 100.0])
def test_lengths_are_learnt(length, regular):
    """Within a factor of two in every draw, and near the truth in the middle of them."""
    rng = np.random.default_rng(int(length * 10))
    steps = np.ones(999) if regular else irregular(rng, 1000)
    X = series(rng, steps, length, 12)
    moments = X * X, X[1:] * X[:-1]
    found = learnt_lengths(Times(steps), *moments, np.ones(12))
    assert set(found) <= set(LENGTHS)
    ratio = found / length
    print(f"length {length}: ratios {ratio.min():.2f} to {ratio.max():.2f}")
    assert (np.abs(np.log(ratio)) < np.log(2)).all()
    assert abs(np.log(np.median(ratio))) < np.log(1.5)


def test_noise_has_no_length():
    X = np.random.default_rng(0).standard_normal((2000, 6))
    found = learnt_lengths(Times(np.ones(1999)), X * X, X[1:] * X[:-1], np.ones(6))
    assert (found < 0.5).all()


# ---- series of their own


@pytest.mark.parametrize(("share", "length"), [(0.8, 10.0), (0.5, 30.0), (0.95, 4.0)])
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_share_and_length_of_series_are_found(share, length, missing):
    rng, n, T = np.random.default_rng(3), 12, 1500
    steps = np.ones(T - 1)
    sizes = np.geomspace(0.1, 10, n)
    X = np.sqrt(share) * series(rng, steps, length, n)
    X = (X + np.sqrt(1 - share) * rng.standard_normal((T, n))) * sizes
    weight = (rng.random((T, n)) >= missing) * 1.0
    found, noise = learnt_series(Times(steps), X * weight, weight)
    shares = found.variance / (found.variance + noise)
    print(f"shares {shares.min():.2f} to {shares.max():.2f} of {share}")
    assert abs(np.median(shares) - share) < 0.08
    assert np.abs(shares - share).max() < 0.2
    assert 0.6 < np.median(found.length) / length < 1.7
    assert_allclose(found.variance + noise, sizes**2, rtol=0.6)


def test_the_evidence_of_a_series_is_that_of_its_covariance():
    """Of two values of share and length, the one with the larger dense likelihood is taken."""
    from scaledgd.temporal.series import _Evidence

    rng, T = np.random.default_rng(0), 30
    steps = irregular(rng, T)
    X = series(rng, steps, 5.0, 1) + 0.5 * rng.standard_normal((T, 1))
    weight = (rng.random((T, 1)) < 0.7) * rng.uniform(0.5, 2, (T, 1))
    seen = weight[:, 0] > 0
    values = []
    for share, length in [(0.2, 1.0), (0.8, 1.0), (0.8, 20.0), (0.5, 400.0)]:
        found = _Evidence(Times(steps), X * seen[:, None], weight)(np.r_[share], np.r_[length])
        C = share * correlation(steps, length)[seen][:, seen]
        C = (C + (1 - share) * np.diag(1 / weight[seen, 0])) * found.scale[0]
        x = X[seen, 0]
        dense = -0.5 * (np.linalg.slogdet(C)[1] + x @ np.linalg.solve(C, x))
        values.append((found.value[0], dense))
    got, expected = np.array(values).T
    assert_allclose(got - got[0], expected - expected[0], atol=1e-8)


def test_a_series_without_entries_where_lengths_are_learnt_is_like_the_others():
    """Long tables are learnt from a part of their steps, in which a series may have nothing."""
    rng, T, n = np.random.default_rng(0), 1200, 400
    X = 0.9 * series(rng, np.ones(T - 1), 10.0, n) + 0.4 * rng.standard_normal((T, n))
    weight = np.ones((T, n))
    weight[300:900, 5] = 0.0
    found, noise = learnt_series(Times(np.ones(T - 1)), X * weight, weight)
    others = np.delete(noise, 5)
    assert 0.3 < noise[5] / np.median(others) < 3
    assert 0.1 < found.variance[5] / np.median(found.variance) < 10


# ---- tables


def table_of(X, seen, steps=None, season=None):
    T = len(X)
    steps = np.ones(T - 1) if steps is None else steps
    season = np.ones((T, 1)) if season is None else season
    return Table(np.where(seen, X, 0.0), seen * 1.0, Times(steps), season)


def model_of(rng, n, r, lengths, noise=0.3, own=1e-12):
    return Smooth(
        R=rng.standard_normal((n, r)),
        covariance=np.zeros((n, r, r)),
        prior=rng.uniform(0.5, 2, r),
        spread=np.ones(r),
        length=np.asarray(lengths, float),
        season=rng.standard_normal((1, r)),
        noise=rng.uniform(0.5, 1.5, n) * noise,
        series=Series(own * np.ones(n), 3 * np.ones(n)),
    )


@pytest.mark.parametrize("T", [1, 2, 5, 12])
def test_rows_are_the_conditional_distribution(T):
    """Without own series, and R known, the answer is Gaussian conditioning."""
    rng, n, r = np.random.default_rng(T), 4, 2
    steps = irregular(rng, T)
    model = model_of(rng, n, r, [2.0, 9.0])
    mean = model.season[0]
    L = mean + np.sqrt(model.prior) * np.hstack([series(rng, steps, k) for k in model.length])
    X = L @ model.R.T + np.sqrt(model.noise) * rng.standard_normal((T, n))
    seen = rng.random((T, n)) < 0.6
    seen[T // 2] = False
    rows = solved_rows(table_of(X, seen, steps), model)
    # all numbers L[t, k], then all entries
    prior = np.zeros((T, r, T, r))
    for k in range(r):
        prior[:, k, :, k] = model.prior[k] * correlation(steps, model.length[k])
    prior = prior.reshape(T * r, T * r)
    A = np.kron(np.eye(T), model.R)[seen.ravel()]
    noise = np.tile(model.noise, T)[seen.ravel()]
    gain = prior @ A.T @ np.linalg.inv(A @ prior @ A.T + np.diag(noise))
    middle = np.tile(mean, T)
    expected = (middle + gain @ (X[seen] - A @ middle)).reshape(T, r)
    C = (prior - gain @ A @ prior).reshape(T, r, T, r)
    assert_allclose(rows.L, expected, atol=1e-8)
    assert_allclose(rows.covariance, [C[t, :, t] for t in range(T)], atol=1e-8)
    for t in range(T - 1):
        assert_allclose(rows.lagged[t], C[t + 1, :, t], atol=1e-8)
    unsure = np.einsum("jk,tkl,jl->tj", model.R, rows.covariance, model.R)
    assert_allclose(rows.unsure(model), unsure, atol=1e-10)


def test_own_series_are_interpolated_as_gaussian_processes():
    """Without components, every column is a process with noise."""
    rng, T, n = np.random.default_rng(0), 12, 3
    steps = irregular(rng, T)
    model = replace(model_of(rng, n, 0, []), season=np.zeros((1, 0)))
    model = replace(model, series=Series(np.array([1.0, 2.0, 0.5]), np.array([1.0, 5.0, 40.0])))
    X, seen = rng.standard_normal((T, n)), rng.random((T, n)) < 0.6
    rows = solved_rows(table_of(X, seen, steps), model)
    for j in range(n):
        K = model.series.variance[j] * correlation(steps, model.series.length[j])
        s = seen[:, j]
        gain = K[:, s] @ np.linalg.inv(K[np.ix_(s, s)] + model.noise[j] * np.eye(s.sum()))
        assert_allclose(rows.own[:, j], gain @ X[s, j], atol=1e-9)
        assert_allclose(rows.variance[:, j], np.diag(K - gain @ K[s]), atol=1e-9)


def test_draws_of_rows_have_their_variance():
    rng, T, n = np.random.default_rng(0), 8, 3
    model = replace(model_of(rng, n, 2, [2.0, 9.0]), series=Series(np.ones(n), 3 * np.ones(n)))
    table = table_of(rng.standard_normal((T, n)), rng.random((T, n)) < 0.6)
    rows = solved_rows(table, model)
    draws = [drawn_rows(table, model, rows, rng) for _ in range(1500)]
    L, own = (np.stack([getattr(d, k) for d in draws]) for k in ("L", "own"))
    assert_allclose(L.mean(0), rows.L, atol=0.12)
    assert_allclose(L.var(0), np.diagonal(rows.covariance, axis1=1, axis2=2), rtol=0.2)
    assert_allclose(own.var(0), rows.variance, rtol=0.2)


def fitted(table, rank, sweeps=8, freedom=None):
    """Sweeps from the leading components of what is observed."""
    T, n = table.Z.shape
    U, s, Vt = np.linalg.svd(table.Z, full_matrices=False)
    L, R = U[:, :rank] * np.sqrt(T), Vt[:rank].T * s[:rank] / np.sqrt(T)
    little = [np.tile(1e-3 * np.eye(rank), (m, 1, 1)) for m in (T, n)]
    noise = 0.1 * np.mean(table.Z**2) + np.zeros(n)
    model, rows = begun(table, L, R, tuple(little), noise + 1e-30, freedom)
    for k in range(sweeps):
        model, rows = swept(table, model, rows, k % 4 == 0)
    return model, rows


def test_a_fit_that_has_not_begun_has_no_memory():
    empty = np.zeros((6, 3))
    table = Table(empty, empty + 1, Times(np.ones(5)), np.zeros((6, 0)))
    none = [np.zeros((m, 2, 2)) for m in (6, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, rows = begun(table, np.zeros((6, 2)), np.zeros((3, 2)), tuple(none), np.ones(3))
    assert np.all(rows.L == 0)
    assert np.all(np.isfinite(model.R))


def test_sweeps_find_the_lengths_of_components():
    errors = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        L = np.hstack([series(rng, np.ones(999), k) for k in (30.0, 3.0)])
        X = L @ rng.standard_normal((2, 15)) + 0.3 * rng.standard_normal((1000, 15))
        seen = rng.random(X.shape) < 0.8
        model, rows = fitted(table_of(X, seen), 2, 12)
        errors.append(np.log(np.sort(model.length) / [3.0, 30.0]))
        assert_allclose(np.median(model.noise), 0.09, rtol=0.25)
        off = (rows.estimate(model) - X)[~seen]
        assert np.sqrt(np.mean(off**2)) < 0.4
    print("ratios of lengths", np.exp(errors).round(2).tolist())
    assert np.abs(errors).max() < np.log(4)
    assert np.abs(np.median(errors, axis=0)).max() < np.log(2)


def finite(model, rows):
    numbers = [getattr(model, k) for k in ("R", "covariance", "prior", "spread", "length", "noise")]
    numbers += [model.season, model.series.variance, model.series.length]
    numbers += [rows.L, rows.covariance, rows.own, rows.variance]
    assert all(np.isfinite(x).all() for x in numbers)
    assert (model.noise > 0).all()
    assert (rows.variance >= 0).all()


def strange(name):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 6))
    seen = rng.random(X.shape) < 0.8
    if name == "constant":
        X = np.full_like(X, 3.0)
    elif name == "zero":
        X = np.zeros_like(X)
    elif name == "one column is constant":
        X = X + rng.standard_normal(X.shape)
        X[:, 2] = 7.0
    elif name == "all but one missing":
        seen[:] = False
        seen[7, 3] = True
    elif name == "a column is missing":
        seen[:, 1] = False
    elif name == "two rows":
        X, seen = X[:2], seen[:2]
    elif name == "tiny":
        X = 1e-20 * X
    elif name == "huge":
        X = 1e20 * X
    return X, seen


NAMES = ("constant", "zero", "exact", "one column is constant", "all but one missing")
NAMES += ("a column is missing", "two rows", "tiny", "huge")


@pytest.mark.parametrize("freedom", [None, 1.0])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_sweeps_stay_finite(name, rank, freedom):
    X, seen = strange(name)
    table = table_of(X, seen)
    with np.errstate(under="ignore"):
        model, rows = fitted(table, rank, 8, freedom)
        finite(model, rows)
        finite(model, solved_rows(table, model))
        finite(*solved_series(table, model, rows))
        kept = without_errors(table, model, rows, 3.0)
    assert (kept.weight <= table.weight).all()


def test_inputs_are_not_changed():
    X, seen = strange("one column is constant")
    table = table_of(X, seen)
    before = table.Z.copy(), table.weight.copy(), table.season.copy()
    model, rows = fitted(table, 2, 2)
    held = [x.copy() for x in (model.R, model.noise, rows.L, rows.own)]
    solved_rows(table, model)
    solved_series(table, model, rows)
    swept(table, model, rows, True)
    after = table.Z, table.weight, table.season, model.R, model.noise, rows.L, rows.own
    assert all(np.array_equal(a, b) for a, b in zip(after, (*before, *held), strict=True))


def test_other_devices_are_not_left(monkeypatch):
    """A library that refuses arrays of two devices in one operation."""
    xp = library("array_api_strict")
    there, here = xp.Device("device1"), xp.Device("CPU_DEVICE")
    for module in (prior_module, smooth_module):
        monkeypatch.setattr(module, "to_host", lambda x: to_host(_brought(x, here)))
    X, seen = strange("one column is constant")
    table = table_of(X, seen)

    def moved(x):
        return xp.asarray(x, device=there) if isinstance(x, np.ndarray) else x

    table = replace(table, **{k: moved(getattr(table, k)) for k in ("Z", "weight", "season")})
    L, R, noise = (moved(np.random.default_rng(0).random(k)) for k in ((40, 2), (6, 2), 6))
    little = tuple(moved(np.tile(1e-3 * np.eye(2), (m, 1, 1))) for m in (40, 6))
    for freedom in (None, 1.0):
        model, rows = begun(table, L, R, little, noise, freedom)
        for learn in (True, False):
            model, rows = swept(table, model, rows, learn)
        kept = without_errors(table, model, rows, 3.0)
        drawn = drawn_rows(table, model, solved_rows(kept, model), np.random.default_rng(0))
        found = solved_series(table, model, rows)[1]
        assert {x.device for x in (drawn.L, drawn.own, found.own, model.length)} == {there}


def _brought(x, device):
    return x if isinstance(x, np.ndarray) else x.to_device(device)


@pytest.mark.parametrize("name", LIBRARIES)
def test_tables_are_the_same_in_every_library(name):
    xp = library(name)
    X, seen = strange("one column is constant")
    table = table_of(X, seen)
    model, rows = fitted(table, 2, 2)

    def there(x):
        if isinstance(x, np.ndarray):
            return xp.asarray(x)
        if isinstance(x, (Smooth, Series)):
            return replace(x, **{k: there(v) for k, v in vars(x).items()})
        return x

    other = replace(table, Z=there(table.Z), weight=there(table.weight), season=there(table.season))
    moved = replace(no_rows(other, 2), **{k: there(v) for k, v in vars(rows).items()})
    for learn in (True, False):
        expected = swept(table, model, rows, learn)
        found = swept(other, there(model), moved, learn)
        estimates = [to_host(r.estimate(m)) for m, r in (found, expected)]
        assert_allclose(*estimates, atol=1e-8)
