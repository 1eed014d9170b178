"""The Gaussian of rows with shrunk correlations."""

import itertools

import numpy as np
import pytest

from scaledgd import gaussian
from scaledgd.gaussian import Gaussian
from scaledgd.kernels import cpp
from scaledgd.kernels.generic import Generic
from scaledgd.kernels.scipy import SciPy


def table(seed, n, d, rank=2, share=0.4, noise=0.3):
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))
    Z += noise * rng.standard_normal((n, d))
    Z /= Z.std(axis=0)
    holes = rng.random((n, d)) < share
    return np.where(holes, np.nan, Z), Z


def some_covariance(seed, d):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((d, d + 2))
    C = A @ A.T
    return C / np.sqrt(np.outer(np.diag(C), np.diag(C)))


def conditional(z, mean, covariance):
    """Mean and covariance of all entries of one row given its observed ones, from the book."""
    o = ~np.isnan(z)
    gain = covariance[:, o] @ np.linalg.inv(covariance[np.ix_(o, o)]) if o.any() else 0
    if not o.any():
        return mean, covariance
    return mean + gain @ (z - mean)[o], covariance - gain @ covariance[o]


def likelihood(Z, mean, covariance):
    total = 0.0
    for z in Z:
        o = ~np.isnan(z)
        S, e = covariance[np.ix_(o, o)], (z - mean)[o]
        total -= (np.linalg.slogdet(S)[1] + e @ np.linalg.solve(S, e)) / 2
    return total


@pytest.mark.parametrize("shrink", [1.0, 0.3, 1e-2, 1e-5])
def test_fit_agrees_with_the_moments_of_one_row_at_a_time(shrink):
    Z, _ = table(0, 25, 5)
    Z[3], Z[4, 1:] = np.nan, np.nan
    mean, C = np.zeros(5), np.eye(5)
    for _ in range(6):
        shrunk = (1 - shrink) * C + shrink * np.diag(np.diag(C))
        rows = [conditional(z, mean, shrunk) for z in Z]
        second = sum(V + np.outer(x, x) for x, V in rows) / len(Z)
        mean = sum(x for x, _ in rows) / len(Z)
        C = second - np.outer(mean, mean)
    found = gaussian.fit(Z, shrink, max_iter=6, fine=0)
    np.testing.assert_allclose(found.mean, mean, atol=1e-11)
    np.testing.assert_allclose(found.covariance, C, atol=1e-10)
    np.testing.assert_allclose(
        found.shrunk, (1 - shrink) * C + shrink * np.diag(np.diag(C)), atol=1e-10
    )


def test_every_iteration_is_more_likely_when_nothing_is_shrunk():
    Z, _ = table(1, 60, 6)
    found, before = None, -np.inf
    for _ in range(25):
        found = gaussian.fit(Z, 1e-12, found, max_iter=1)
        now = likelihood(Z, found.mean, found.shrunk)
        assert now > before
        before = now


def test_a_known_covariance_is_recovered():
    rng = np.random.default_rng(2)
    C = some_covariance(2, 6)
    mean = rng.standard_normal(6)
    Z = rng.multivariate_normal(mean, C, size=20_000)
    Z[rng.random(Z.shape) < 0.3] = np.nan
    found = gaussian.fit(Z, 1e-6, max_iter=100, fine=1e-5)
    np.testing.assert_allclose(found.mean, mean, atol=0.04)
    np.testing.assert_allclose(found.shrunk, C, atol=0.04)


@pytest.mark.parametrize("shrink", [1.0, 0.4, 1e-3])
def test_factors_give_the_same_conditional_means(shrink):
    rng = np.random.default_rng(3)
    scale = 10.0 ** rng.uniform(-3, 3, 7)
    C = some_covariance(3, 7) * np.outer(scale, scale)
    model = Gaussian(rng.standard_normal(7), C, shrink)
    R, noise = gaussian.as_factors(model)
    alike = model.shrunk / np.outer(model.scale, model.scale)
    np.testing.assert_allclose(R @ R.T + noise * np.eye(7), alike, atol=1e-13)
    Z, _ = table(3, 30, 7)
    Z = Z * scale + model.mean
    for z, filled in zip(Z, gaussian.complete(Z, model)[0], strict=True):
        o = ~np.isnan(z)
        units = (z - model.mean) / model.scale
        scores = np.linalg.solve(R[o].T @ R[o] + noise * np.eye(R.shape[1]), R[o].T @ units[o])
        mean = model.mean + model.scale * (R @ scores)
        np.testing.assert_allclose(((filled - mean) / model.scale)[~o], 0, atol=1e-10)
        np.testing.assert_array_equal(filled[o], z[o])


def test_factors_drop_what_vanishes():
    A = np.random.default_rng(4).standard_normal((8, 3))
    C = A @ A.T
    R, _ = gaussian.as_factors(Gaussian(np.zeros(8), C, 0.1))
    assert R.shape == (8, 3)


def test_completion_and_variances_are_conditional_moments():
    C = some_covariance(5, 6)
    model = Gaussian(np.linspace(-1, 1, 6), C, 0.05)
    Z, _ = table(5, 40, 6)
    Z[0], Z[1] = np.nan, 1.0
    filled, variances = gaussian.complete(Z, model)
    for z, x, v in zip(Z, filled, variances, strict=True):
        mean, V = conditional(z, model.mean, model.shrunk)
        np.testing.assert_allclose(x, mean, atol=1e-11)
        np.testing.assert_allclose(v, np.where(np.isnan(z), np.diag(V), 0), atol=1e-12)
    assert gaussian.complete(Z, model, variances=False)[1] is None


def test_leaving_one_out_is_deleting_it():
    model = Gaussian(np.linspace(-1, 1, 6), 4 * some_covariance(6, 6), 0.05)
    Z, _ = table(6, 20, 6)
    Z[0], Z[1], Z[2, 1:] = np.nan, 1.0, np.nan
    predictions, variances = gaussian.leave_one_out(Z, model)
    for i, j in itertools.product(range(20), range(6)):
        z = Z[i].copy()
        z[j] = np.nan
        mean, V = conditional(z, model.mean, model.shrunk)
        np.testing.assert_allclose(predictions[i, j], mean[j], atol=1e-10)
        np.testing.assert_allclose(variances[i, j], V[j, j], rtol=1e-9)


def test_orders_of_rows_and_columns_do_not_matter():
    Z, _ = table(7, 90, 9)
    rng = np.random.default_rng(7)
    a, b = rng.permutation(90), rng.permutation(9)
    W = Z[np.ix_(a, b)]
    groups = gaussian.row_groups(Z)
    np.testing.assert_array_equal(gaussian.row_groups(W), groups[a])
    assert set(np.bincount(groups)) == {30}
    shrink = gaussian.choose_shrinkage(Z)
    assert gaussian.choose_shrinkage(W) == shrink
    one, two = (gaussian.fit(X, shrink) for X in (Z, W))
    np.testing.assert_allclose(two.covariance, one.covariance[np.ix_(b, b)], atol=1e-12)
    filled = gaussian.complete(Z, one)[0][np.ix_(a, b)]
    np.testing.assert_allclose(gaussian.complete(W, two)[0], filled, atol=1e-11)


def test_groups_tell_binary_rows_apart():
    rng = np.random.default_rng(8)
    Z = (rng.random((60, 12)) < np.linspace(0.1, 0.9, 12)).astype(float)
    Z = np.unique(Z, axis=0)
    a, b = rng.permutation(len(Z)), rng.permutation(12)
    np.testing.assert_array_equal(gaussian.row_groups(Z[np.ix_(a, b)]), gaussian.row_groups(Z)[a])


def test_units_of_a_model_do_not_matter():
    Z, _ = table(9, 50, 6)
    found = gaussian.fit(Z, 0.1)
    units = np.asarray([1.0, 1e-9, 1e9, 3.0, 1e-30, 1e30])
    scaled = Gaussian(found.mean * units, found.covariance * np.outer(units, units), 0.1)
    filled, variances = gaussian.complete(Z, found)
    found_filled, found_variances = gaussian.complete(Z * units, scaled)
    np.testing.assert_allclose(found_filled / units, filled, atol=1e-11)
    np.testing.assert_allclose(found_variances / units**2, variances, atol=1e-12)


def test_shrinkage_follows_what_there_is():
    noise = np.random.default_rng(10).standard_normal((60, 20))
    alone = gaussian.choose_shrinkage(noise)
    Z, X = table(10, 400, 10, rank=2, share=0.4, noise=0.05)
    together = gaussian.choose_shrinkage(Z)
    assert alone > 0.3
    assert together < 0.02
    *_, found = gaussian.fit_path(Z, gaussian.shrinks_down_to(together))
    holes = np.isnan(Z)
    errors = (gaussian.complete(Z, found)[0] - X)[holes]
    assert np.sqrt(np.mean(errors**2)) < 0.15


def test_rows_left_out_may_be_given():
    Z, _ = table(11, 60, 5)
    groups = np.arange(60) // 30
    shrink = gaussian.choose_shrinkage(Z, (0.2,), groups=groups)
    assert shrink == pytest.approx(0.2 / (0.2 + 2 * 0.8))
    assert gaussian.choose_shrinkage(Z, groups=np.zeros(60, int)) == 0.5
    assert 0 < gaussian.choose_shrinkage(Z, centred=True) < 1


def test_paths_are_warm():
    Z, _ = table(12, 80, 6)
    *_, found = gaussian.fit_path(Z, (0.5, 0.1, 0.01), max_iter=3)
    again = None
    for shrink in (0.5, 0.1, 0.01):
        again = gaussian.fit(Z, shrink, again, max_iter=3)
    np.testing.assert_array_equal(found.covariance, again.covariance)
    assert gaussian.shrinks_down_to(0.03) == (0.5, 0.25, 0.12, 0.05, 0.03)


@pytest.mark.parametrize("shrink", [0, -1, 1.5, np.nan])
def test_impossible_shrinkages_are_refused(shrink):
    with pytest.raises(ValueError, match="at most 1"):
        Gaussian(np.zeros(2), np.eye(2), shrink)


EDGES = {
    "constant columns": lambda Z: Z * [0, 1, 0, 1, 1],
    "constant columns with holes": lambda Z: np.where(np.arange(5) < 2, 0 * Z, Z),
    "one entry in a column": lambda Z: np.where(np.isin(np.arange(30), [4])[:, None], 1.0, Z),
    "a column without entries": lambda Z: np.where(np.arange(5) == 2, np.nan, Z),
    "two entries in a column": lambda Z: np.where(
        (np.arange(5) == 2) & (np.arange(30) > 1)[:, None], np.nan, Z
    ),
    "equal columns": lambda Z: np.repeat(Z[:, :1], 5, axis=1),
    "rows without entries": lambda Z: np.where((np.arange(30) % 2 == 0)[:, None], np.nan, Z),
    "no entries": lambda Z: np.full_like(Z, np.nan),
    "complete": lambda Z: np.nan_to_num(Z),
    "one column": lambda Z: Z[:, :1],
    "one row": lambda Z: Z[:1],
    "two rows": lambda Z: Z[:2],
    "no rows": lambda Z: Z[:0],
    "no columns": lambda Z: Z[:, :0],
    "more columns than rows": lambda Z: np.tile(Z[:4], (1, 30)),
    "infinite": lambda Z: np.where(Z > 1, np.inf, Z),
    "exact": lambda Z: np.where(np.isnan(Z), Z, np.arange(30.0)[:, None] / 15 - 1),
    "floats": lambda Z: Z.astype(np.float32),
    "transposed": lambda Z: Z.T,
    "large": lambda Z: Z * 1e100,
    "small": lambda Z: Z * 1e-100,
}


@pytest.mark.parametrize("edge", EDGES)
def test_nothing_is_undefined(edge):
    Z = EDGES[edge](table(13, 30, 5)[0])
    shrink = gaussian.choose_shrinkage(Z)
    for found in gaussian.fit_path(Z, gaussian.shrinks_down_to(shrink), max_iter=40):
        assert np.all(np.isfinite(found.covariance))
        assert np.all(np.isfinite(found.mean))
    filled, variances = gaussian.complete(Z, found)
    predictions, errors = gaussian.leave_one_out(Z, found)
    for x in (filled, variances, predictions, errors):
        assert x.shape == Z.shape
        assert x.dtype == np.float64
        assert np.all(np.isfinite(x))
    assert np.all(variances >= 0)
    assert np.all(errors > 0)
    R, noise = gaussian.as_factors(found)
    assert np.all(np.isfinite(R))
    assert noise == shrink
    assert np.isfinite(gaussian.cost(Z))


def test_columns_of_zeros_are_filled_with_zeros():
    Z, _ = table(14, 40, 5)
    Z[:, 1] *= 0
    found = gaussian.fit(Z, 0.01, max_iter=100, fine=0)
    filled, variances = gaussian.complete(Z, found)
    assert np.all(filled[:, 1] == 0)
    assert np.all(variances[:, 1] <= 1e-6)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 8, 17])
def test_kernels_agree(d):
    rng = np.random.default_rng(d)
    patterns = np.asarray(list(itertools.product([False, True], repeat=d))[: 1 << min(d, 8)])
    more = rng.random((200, d)) < rng.random((200, 1))
    holes = rng.permutation(np.concatenate([patterns, more]))
    Z = np.where(holes, np.nan, rng.standard_normal(holes.shape))
    C = some_covariance(d, d)
    K = np.linalg.inv(C)
    kernels = [Generic(), cpp.Cpp() if cpp.AVAILABLE else SciPy()]
    for wanted in ({"total": True}, {"variances": True}, {"others": True, "total": True}, {}):
        ours, theirs = (kernel.conditionals(Z, C, K, **wanted) for kernel in kernels)
        for x, y in zip(ours, theirs, strict=True):
            assert (x is None) == (y is None)
            if x is not None:
                np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)


@pytest.mark.skipif(not cpp.AVAILABLE, reason="built without a compiler")
def test_sums_do_not_depend_on_the_number_of_threads():
    Z, _ = table(15, 3000, 40, share=0.5)
    model = gaussian.fit(Z, 0.1, max_iter=2)
    before, found = cpp.C.get_num_threads(), []
    for number in (1, 2, 5):
        cpp.C.set_num_threads(number)
        found.append(model._conditionals(Z, total=True, others=True))
    cpp.C.set_num_threads(before)
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(x, y)


def test_rows_do_not_depend_on_other_rows():
    Z, _ = table(16, 200, 13, share=0.5)
    model = gaussian.fit(Z, 0.1)
    together = gaussian.leave_one_out(Z, model)
    for i in range(0, 200, 7):
        alone = gaussian.leave_one_out(Z[i : i + 1], model)
        for x, y in zip(together, alone, strict=True):
            np.testing.assert_allclose(x[i : i + 1], y, rtol=1e-12, atol=1e-13)
