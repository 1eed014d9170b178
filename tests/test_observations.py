"""What was observed: reductions, splits, precision; and what the estimators decide from it."""

import numpy as np
import pytest
from fitted import CASES, corrupted, design, fresh, table, tensor

import scaledgd as sg
from scaledgd.estimators import hashing
from scaledgd.estimators.local_observations import LocalObservations
from scaledgd.estimators.observations import Observations

pytestmark = pytest.mark.filterwarnings("ignore")


def holes(shape=(40, 30), p=0.6, seed=0):
    rng = np.random.default_rng(seed)
    X = np.where(rng.random(shape) < p, rng.standard_normal(shape), np.nan)
    index = np.nonzero(~np.isnan(X))
    return X, LocalObservations(index, X[index], shape)


# ---- reductions


@pytest.mark.parametrize("complete", [False, True])
def test_reductions_are_those_of_numpy(complete):
    X, data = holes(p=1.0 if complete else 0.6)
    if complete:
        data = LocalObservations(None, X, X.shape)
    for mode in (0, 1):
        axis = 1 - mode
        np.testing.assert_array_equal(data.counts(mode), (~np.isnan(X)).sum(axis=axis))
        np.testing.assert_allclose(data.means(mode), np.nanmean(X, axis=axis))
        squares = np.nansum((X - np.nanmean(X, axis, keepdims=True)) ** 2, axis=axis)
        np.testing.assert_allclose(data.squares(mode), squares)
        lower = np.nanquantile(X, 0.5, axis=axis, method="lower")
        np.testing.assert_array_equal(data.medians(mode), lower)
    assert data.mean() == pytest.approx(np.nanmean(X))
    assert data.mean_square() == pytest.approx(np.nanmean(X**2))
    assert data.fraction == (~np.isnan(X)).mean()
    assert 0.5 < np.sqrt(np.nanmean(X**2)) / data.magnitude() < 2


def test_residuals_are_counted_where_they_exceed_a_limit():
    X, data = holes()
    F = sg.LowRank(np.ones((40, 1)), np.full((30, 1), 0.3))
    off = np.abs(F.full() - X)
    share, shares = data.rejected(F, 1.0)
    assert share == pytest.approx((off[~np.isnan(X)] > 1).mean())
    np.testing.assert_allclose(shares[0], np.nansum(off > 1, axis=1) / data.counts(0))
    np.testing.assert_allclose(shares[1], np.nansum(off > 1, axis=0) / data.counts(1))
    assert data.within(F, 1.0) == (off <= 1).sum()
    assert data.residual_scale(F) == pytest.approx(np.sqrt(np.nanmean(off**2)), rel=0.05)


def test_a_second_kind_of_observations_needs_all_members():
    with pytest.raises(TypeError, match="abstract"):
        Observations()


# ---- splits


def test_a_split_depends_on_the_coordinates_alone():
    torch = pytest.importorskip("torch")
    _, data = holes((60, 50))
    order = np.random.default_rng(1).permutation(data.size)
    turned = data.some(order)
    tensors = LocalObservations(
        tuple(torch.from_numpy(i) for i in data.index), torch.from_numpy(data.y), data.shape
    )

    def names(part):
        return set(zip(*(np.asarray(i).tolist() for i in part.coordinates), strict=True))

    for k in range(2):
        tests = [names(d.split(0.1, 7, 2)[k][1]) for d in (data, turned, tensors)]
        assert tests[0] == tests[1] == tests[2]
    first, second = (names(test) for _, test in data.split(0.1, 7, 2))
    assert not first & second
    assert names(data.split(0.1, 8)[0][1]) != first
    # rows that come later do not change what is held out of the earlier ones
    more = data.stacked(holes((9, 50), seed=3)[1])
    assert {(i, j) for i, j in names(more.split(0.1, 7)[0][1]) if i < 60} == first


def test_hashes_are_uniform_and_few_are_held_out():
    index = tuple(i.ravel() for i in np.indices((1500, 1000)))
    x = hashing.hashed(index, 3)
    assert x.min() >= 0
    assert x.max() < 2**53
    counts = np.histogram(x, bins=50, range=(0, 2**53))[0]
    assert np.abs(counts / counts.mean() - 1).max() < 0.03
    rows = np.bincount(index[0][x < 2**53 // 10], minlength=1500)
    assert rows.std() == pytest.approx(np.sqrt(90), rel=0.15)
    (chosen,) = hashing.chosen_by_hash(index, 0.3, 3, 1)
    assert 190_000 < chosen.sum() <= 200_000


def test_the_core_is_the_densest_part():
    rng = np.random.default_rng(0)
    likely = np.outer(np.linspace(1, 0.05, 200), np.linspace(1, 0.05, 150))
    index = np.nonzero(rng.random(likely.shape) < likely)
    data = LocalObservations(index, rng.standard_normal(len(index[0])), likely.shape)
    core = data.core(2000, 0)
    assert 1000 < core.size <= 2000
    assert core.fraction > 2 * data.fraction
    assert np.isin(core.y, data.y).all()


# ---- single precision


SINGLE = {
    "completion": (sg.MatrixCompletion(3), lambda n: (table((60, 50), noise=n),)),
    "chosen": (sg.MatrixCompletion(), lambda n: (table((60, 50), noise=n),)),
    "robust": (sg.RobustPCA(3), lambda n: (corrupted(table((60, 50), p=1.0, noise=n)),)),
    "tensor": (sg.TensorCompletion(2), lambda n: (tensor(noise=n),)),
    "robust tensor": (sg.TensorRobustPCA(2), lambda n: (corrupted(tensor(noise=n, p=1.0)),)),
    "regression": (sg.MatrixRegressor(2), lambda n: noisy(design(), n)),
    "tensor regression": (sg.TensorRegressor(2), lambda n: noisy(design((3, 3, 2)), n)),
}


def noisy(data, noise):
    A, _ = data
    C = sg.datasets.low_rank_tensor(A.shape[1:], 2, kappa=2, rng=0).full()
    y = np.tensordot(A, C, A.ndim - 1)
    return A, y + noise * np.random.default_rng(5).standard_normal(len(y))


@pytest.mark.parametrize("noise", [0.1, 0.0])
@pytest.mark.parametrize("name", SINGLE)
def test_single_precision_stays_and_is_as_accurate_as_it_can_be(name, noise):
    from sklearn.base import clone

    made, data = SINGLE[name]
    double, single = (clone(made).set_params(random_state=0) for _ in range(2))
    double.fit(*data(noise))
    single.fit(*(x.astype(np.float32) for x in data(noise)))
    assert single.rank_ == double.rank_
    assert single.converged_
    assert {B.dtype for B in single.factors_.blocks} == {np.dtype(np.float32)}
    exact, found = double.reconstruct(), single.reconstruct()
    assert found.dtype == np.float32
    size = np.sqrt(np.mean(exact**2))
    assert np.sqrt(np.mean((exact - found) ** 2)) < (1e-3 * noise + 2e-6) * size
    index = tuple(np.arange(3) % n for n in exact.shape)
    a, b = (m.predict_entries(index, return_std=True)[1] for m in (double, single))
    assert b.dtype == np.float32
    np.testing.assert_allclose(b, a, rtol=0.01, atol=1e-5 * size)


@pytest.mark.parametrize("name", CASES)
def test_no_fit_of_single_precision_becomes_double(name, tmp_path):
    model, data = fresh(name, calibrate=0.2)
    model.fit(*(x.astype(np.float32) for x in data))
    model.save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz")
    for m in (model, again):
        assert all(B.dtype == np.float32 for B in m.factors_.blocks)
        assert m.reconstruct().dtype == np.float32
    assert np.array_equal(model.reconstruct(), again.reconstruct())


def test_torch_stays_in_its_precision():
    torch = pytest.importorskip("torch")
    X = torch.from_numpy(table().astype(np.float32))
    model = sg.MatrixCompletion(3, random_state=0).fit(X)
    assert model.factors_.L.dtype == torch.float32
    expected = sg.MatrixCompletion(3, random_state=0).fit(X.numpy()).reconstruct()
    np.testing.assert_allclose(model.reconstruct().numpy(), expected, atol=2e-3)


# ---- what the estimators decide


def unlike(outliers, seed=0):
    """300 × 12 of rank 3, columns of very unlike scale."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((300, 3)) @ rng.standard_normal((3, 12))
    X, units = X / X.std(axis=0), np.geomspace(1, 1e3, 12)
    Y = X + 0.1 * rng.standard_normal(X.shape)
    Y = Y + 10 * rng.choice([-1, 1], X.shape) * (rng.random(X.shape) < outliers)
    return X * units, Y * units, units


def error(model, X, units):
    return np.sqrt(np.mean(((model.reconstruct() - X) / units) ** 2))


def test_robust_pca_of_unlike_columns(tmp_path):
    X, Y, units = unlike(0.05)
    model = sg.RobustPCA(random_state=0).fit(Y)
    assert (model.rank_, model.center_, model.scale_) == (3, "columns", "columns")
    assert error(model, X, units) < 0.15
    model.save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz")
    for m in (model, again):
        np.testing.assert_array_equal(m.reconstruct(), model.reconstruct())
        np.testing.assert_allclose(m.transform(Y), model.reconstruct(), rtol=1e-6, atol=1e-6)
    lower, upper = again.interval(np.nonzero(np.ones(X.shape)), 0.9)
    inside = (lower <= X.ravel()) & (X.ravel() <= upper)
    assert inside.mean() > 0.85
    model.partial_fit(Y[:20])
    assert model.reconstruct().shape == (320, 12)
    assert np.sqrt(np.mean(((model.reconstruct()[:300] - X) / units) ** 2)) < 0.15


def test_completion_of_unlike_columns():
    X, Y, units = unlike(0.0)
    Y[np.random.default_rng(1).random(Y.shape) < 0.3] = np.nan
    model = sg.MatrixCompletion(random_state=0).fit(Y)
    assert model.scale_ == "columns"
    plain = sg.MatrixCompletion(center="none", scale="none", random_state=0).fit(Y)
    assert error(model, X, units) < min(0.12, 0.9 * error(plain, X, units))
    assert model.score(Y, force=True) > 0.9


@pytest.mark.parametrize("made", [sg.MatrixCompletion, sg.RobustPCA])
@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_units_of_data_of_any_size(made, size):
    Y = unlike(0.0)[1]
    model, other = (made(random_state=0).fit(Y * s) for s in (1.0, size))
    assert other.rank_ == model.rank_
    scale = np.abs(Y).max(axis=0)
    off = other.reconstruct() / size - model.reconstruct()
    assert np.abs(off / scale).max() < 1e-6


def test_columns_that_are_alike_are_left_alone():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 150))
    model = sg.RobustPCA(random_state=0).fit(corrupted(X))
    assert (model.rank_, model.center_, model.scale_) == (2, "none", "none")
    given = sg.RobustPCA(2, random_state=0).fit(corrupted(X))
    np.testing.assert_allclose(model.reconstruct(), given.reconstruct(), atol=1e-9)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_rank_of_a_narrow_table_with_errors(rank):
    rng = np.random.default_rng(rank)
    X = rng.standard_normal((300, rank)) @ rng.standard_normal((rank, 14))
    Y = corrupted(X + 0.05 * rng.standard_normal(X.shape))
    assert sg.RobustPCA(random_state=0).fit(Y).rank_ == rank
    exact = sg.RobustPCA(random_state=0).fit(corrupted(X))
    assert exact.rank_ == rank


def test_large_tables_are_judged_by_their_densest_part(limits):
    Y = table((150, 120), noise=0.1) + 3.0
    whole = sg.MatrixCompletion(random_state=0).fit(Y)
    limits(table=4000)
    part = sg.MatrixCompletion(random_state=0).fit(Y)
    assert part.rank_path_[-1]["why"] == "chosen on the densest part"
    assert part.rank_ <= whole.rank_
    np.testing.assert_allclose(part.reconstruct(), whole.reconstruct(), atol=0.1)


@pytest.mark.parametrize("rank", [16, "auto"])
def test_a_sparser_part_does_not_lower_the_rank_of_the_whole(rank, limits):
    rng = np.random.default_rng(0)
    L, R = rng.standard_normal((1500, 16)), rng.standard_normal((1000, 16))
    index = np.nonzero(rng.random((1500, 1000)) < 0.08)
    values = np.sum(L[index[0]] * R[index[1]], axis=1) + rng.standard_normal(len(index[0]))
    limits(table=25_000)
    model = sg.MatrixCompletion(rank=rank, random_state=0).fit_entries(index, values, (1500, 1000))
    assert model.rank_path_[-1]["why"] == "chosen on the densest part"
    assert model.rank_ == 16


def test_without_a_low_rank_part_there_are_offsets():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((40, 30))
    Y = np.where(rng.random((40, 30)) < 0.5, noise + rng.standard_normal(30), np.nan)
    model = sg.MatrixCompletion(random_state=0).fit(Y)
    assert model.rank_ == 0
    assert model.center_ != "none"
    assert np.abs(model.row_offset_).max() + np.abs(model.column_offset_).max() > 0


@pytest.mark.parametrize("made", [sg.MatrixCompletion, sg.RobustPCA, sg.TensorCompletion])
@pytest.mark.parametrize("center", ["none", "both"])
def test_rows_of_another_precision_are_taken(made, center):
    """A model of single precision fills rows of double precision, and the other way round."""
    rng = np.random.default_rng(0)
    shape = (12, 10, 8) if made is sg.TensorCompletion else (40, 20)
    X = sg.datasets.low_rank_tensor(shape, 2, kappa=2, rng=0).full() * 10
    X = X + 0.01 * rng.standard_normal(shape)
    holes = np.where(rng.random(shape) < 0.8, X, np.nan)
    for first, second in (("f4", "f8"), ("f8", "f4")):
        sides = "columns" if made is sg.RobustPCA and center == "both" else center
        model = made(2, center=sides, warm_start=True, random_state=0).fit(holes.astype(first))
        rows = holes[:5].astype(second)
        found = model.transform(rows)
        assert found.dtype == np.dtype(second)
        np.testing.assert_allclose(found, model.transform(rows.astype(first)), rtol=1e-3, atol=1e-3)
        if made is not sg.RobustPCA:
            seen = ~np.isnan(rows)
            np.testing.assert_array_equal(found[seen], rows[seen])
        model.partial_fit(rows)
        assert model.factors_.shape[0] == shape[0] + 5
        model.fit(holes.astype(second))
        assert model.transform(rows).dtype == np.dtype(second)


def test_a_table_of_noise_in_unlike_units_is_filled_with_column_means():
    """Nothing low-rank is there, and offsets of rows would only add their own noise."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 12)) * np.geomspace(1, 1e4, 12) + np.geomspace(1e4, 1, 12)
    hidden = rng.random(X.shape) < 0.7
    Y = np.where(hidden, np.nan, X)
    model = sg.MatrixCompletion(random_state=0).fit(Y)
    means = np.broadcast_to(np.nanmean(Y, axis=0), X.shape)
    ours, plain = (
        np.sqrt(np.mean(((Z - X) / X.std(0))[hidden] ** 2)) for Z in (model.reconstruct(), means)
    )
    assert (model.rank_, model.center_) == (0, "columns")
    assert not model.row_offset_.any()
    assert ours == pytest.approx(plain, rel=5e-3)


@pytest.mark.parametrize("seed", [0, 1, 3, 7])
def test_one_estimate_in_all_words(seed):
    """Rows solved anew, factors with offsets, and single entries say the same."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 40))
    X = X * np.exp(2 * rng.standard_normal(40)) * np.exp(1.2 * rng.standard_normal((60, 1)))
    seen = rng.random(X.shape) < 0.6
    noise = 1e-4 * np.abs(X).mean() * rng.standard_normal(X.shape)
    Y = np.where(seen, X + noise, np.nan)
    for options in ({}, {"scale": "rows"}, {"center": "rows"}):
        model = sg.MatrixCompletion(random_state=0, smooth="none", **options).fit(Y)
        whole, size = model.reconstruct(), np.abs(X).max()
        np.testing.assert_allclose(whole[~seen], model.transform(Y)[~seen], atol=1e-9 * size)
        some = model.predict_entries(np.nonzero(~seen))
        np.testing.assert_allclose(some, whole[~seen], atol=1e-9 * size)


@pytest.mark.parametrize("offset", [0, 10])
def test_offsets_for_a_given_rank_are_chosen_on_held_out_entries(offset):
    rng = np.random.default_rng(0)
    X = table((80, 60), noise=0.1) + offset * rng.standard_normal((80, 1))
    chosen = sg.MatrixCompletion(3, center="auto", random_state=0).fit(X).center_
    assert chosen in ("rows", "both") if offset else chosen == "none"
