"""Fits know when they should not be trusted, and say so or give offsets."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import scaledgd as sg
from scaledgd import DataWarning


def noisy(shape, rank, noise, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    return truth, truth + noise * rng.standard_normal(shape)


# ---- ranks that reproduce anything


@pytest.mark.parametrize("estimator", [sg.MatrixCompletion, sg.RobustPCA])
@pytest.mark.parametrize("rank", [39, 40, 400])
def test_a_rank_that_reproduces_anything_is_only_a_bound(estimator, rank):
    truth, X = noisy((40, 45), 2, 0.1)
    model = estimator(rank=rank, random_state=0).fit(X)
    assert model.rank_ <= 4
    assert np.sqrt(np.mean((model.reconstruct() - truth) ** 2)) < 0.05


def test_a_tensor_of_full_rank_is_not_its_noise():
    rng = np.random.default_rng(0)
    truth = np.einsum("i,j,k->ijk", *(rng.standard_normal(n) for n in (12, 10, 9)))
    X = truth + 0.3 * rng.standard_normal(truth.shape)
    for rank in (12, (12, 10, 9)):
        model = sg.TensorCompletion(rank=rank, random_state=0).fit(X)
        assert max(model.rank_) < 6
        assert np.std(model.reconstruct() - truth) < 0.15
    bounded = sg.TensorCompletion(rank=(12, 10, 1), random_state=0).fit(X)
    assert bounded.rank_[2] == 1


# ---- fits that are not given, or doubted


def test_offsets_in_place_of_a_fit_that_means_beat():
    rng = np.random.default_rng(1)
    X = np.arange(8.0) + rng.standard_normal((30, 8))
    X[rng.random(X.shape) < 0.3] = np.nan
    for model in (sg.MatrixCompletion(random_state=0), sg.MatrixCompletion(3, scale="rows")):
        with pytest.warns(sg.DataWarning):
            model.fit(X)
        assert model.diagnostics_


@pytest.mark.filterwarnings("ignore:not converged")
def test_a_penalised_fit_is_doubted():
    rng = np.random.default_rng(0)
    X = np.where(rng.random((60, 30)) < 0.3, rng.standard_normal((60, 30)), np.nan)
    with pytest.warns(sg.DataWarning, match="column means predict"):
        model = sg.MatrixCompletion(6, random_state=0, center="none", ridge=1e-4).fit(X)
    assert "column means predict" in model.rank_path_[-1]["why"]
    with pytest.warns(sg.DataWarning, match="do not support a low-rank part"):
        model = sg.MatrixCompletion(random_state=0, non_negative=True).fit(X)
    assert np.abs(model.reconstruct()).max() < 0.3
    good = noisy((60, 30), 2, 0.1)[1]
    good = np.where(rng.random(good.shape) < 0.6, good - good.min(), np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sg.DataWarning)
        sg.MatrixCompletion(3, random_state=0, center="none", ridge=0.01).fit(good)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("RobustPCA", {"center": "rows", "scale": "columns"}, "medians predict"),
        ("RobustPCA", {"center": "none"}, "medians predict"),
        ("MatrixCompletion", {"center": "none", "rank": 2}, "column means predict"),
    ],
)
def test_estimates_beyond_the_data_give_way_to_means(name, options, why):
    """Without offsets of columns, estimates were 1000 off, and up to 5e4 in unsuitable units."""
    rng = np.random.default_rng(0)
    truth = 1000 + rng.standard_normal((26, 2)) @ rng.standard_normal((2, 13))
    X = truth.copy()
    if name == "RobustPCA":
        X += 100 * (rng.random(truth.shape) < 0.1)
    else:
        X += rng.standard_normal(truth.shape)
        X[rng.random(X.shape) < 0.5] = np.nan
        X[:, -2:] = np.nan  # columns that would be zero
    X[:18, :9] = np.nan
    with pytest.warns(sg.DataWarning, match="offsets only"):
        model = getattr(sg, name)(random_state=0, **options).fit(X)
    assert model.status_.startswith(why)
    assert model.rank_path_[-1]["why"] == model.status_
    assert 1 < np.abs(model.reconstruct() - truth).max() < 10
    assert np.allclose(np.isnan(X) * (model.transform(X) - model.reconstruct()), 0)


def test_noise_has_no_tensor_and_no_coefficient():
    rng = np.random.default_rng(0)
    X = np.where(rng.random((9, 8, 7)) < 0.5, rng.standard_normal((9, 8, 7)), np.nan)
    with pytest.warns(sg.DataWarning, match="offsets only"):
        model = sg.TensorCompletion(rank=3, random_state=0).fit(X)
    assert "offsets alone" in model.rank_path_[-1]["why"]
    assert np.abs(model.reconstruct()).max() < 3
    A, y = rng.standard_normal((40, 6, 5)), 3 + rng.standard_normal(40)
    with pytest.warns(sg.DataWarning, match="intercept only"):
        model = sg.MatrixRegressor(random_state=0).fit(A, y)
    assert np.allclose(model.predict(A), y.mean())


def test_slices_of_outliers_are_named():
    rng = np.random.default_rng(0)
    X = noisy((60, 20), 1, 0.01)[1]
    X[7] = 100 * rng.standard_normal(20)
    with pytest.warns(sg.DataWarning, match="more than half of the entries of 1 row"):
        sg.RobustPCA(random_state=0).fit(X)


def test_errors_that_may_outnumber_the_others_are_spoken_of():
    rng = np.random.default_rng(0)
    truth = noisy((200, 3), 1, 0.0)[0]
    wrong = rng.random(truth.shape) < 0.1
    with pytest.warns(sg.DataWarning, match=r"in about \d+ rows they may outnumber the others"):
        sg.RobustPCA(1, random_state=0).fit(truth + 50 * wrong + 0.01 * rng.random(truth.shape))
    truth = noisy((200, 40), 1, 0.0)[0]
    wrong = rng.random(truth.shape) < 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error", sg.DataWarning)
        sg.RobustPCA(1, random_state=0).fit(truth + 50 * wrong + 0.01 * rng.random(truth.shape))


@pytest.mark.parametrize("estimator", [sg.MatrixCompletion, sg.RobustPCA, sg.TensorCompletion])
def test_too_few_entries_to_check_a_fit_are_spoken_of(estimator):
    model = estimator(rank=1, center="none", random_state=0)
    truth, X = noisy((4, 4), 1, 0.03)
    with pytest.warns(sg.DataWarning, match="16 observed entries are too few to check"):
        model.fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sg.DataWarning)
        model.fit(truth)


@pytest.mark.filterwarnings("ignore:not converged")
def test_large_tables_with_errors_are_judged_by_some_rows():
    rng = np.random.default_rng(0)
    X = 5 * rng.standard_normal(200) + 0.001 * rng.standard_normal((1000, 200))
    X[:, :20] = 1000 * rng.standard_normal((1000, 2)) @ rng.standard_normal((2, 20))
    assert X.size > 100_000
    with pytest.warns(sg.DataWarning, match="column means predict held-out entries better"):
        sg.RobustPCA(2, center="none", scale="none", random_state=0).fit(X)
    good = noisy((1000, 200), 2, 0.1)[1]
    for Y in (good, good.T):
        Y = np.where(rng.random(Y.shape) < 0.03, 40.0, Y)
        with warnings.catch_warnings():
            warnings.simplefilter("error", sg.DataWarning)
            sg.RobustPCA(2, center="both", scale="rows", random_state=0).fit(Y)


def test_a_row_unlike_all_others_keeps_its_component():
    rng = np.random.default_rng(0)
    truth, X = noisy((60, 50), 2, 0.01)
    X[:, 7] = truth[:, 7] = 5 * rng.standard_normal(60)
    wrong = rng.random(X.shape) < 0.03
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sg.DataWarning)
        model = sg.RobustPCA(random_state=0).fit(X + 40 * wrong)
    others = np.arange(50) != 7
    assert np.sqrt(np.mean((model.reconstruct() - truth)[:, others] ** 2)) < 0.02


def test_scales_that_are_asked_for_are_used_where_outliers_are():
    rng = np.random.default_rng(0)
    truth, X = noisy((50, 60), 1, 0.05)
    unit = 10.0 ** rng.uniform(-2, 2, 60)
    wrong = rng.random(X.shape) < 0.05
    model = sg.RobustPCA(scale="columns", random_state=0).fit(unit * np.where(wrong, 9.0, X))
    off = model.reconstruct() / unit - truth
    assert np.sqrt(np.mean(off**2)) < 0.05


@pytest.mark.parametrize("estimator", [sg.TensorCompletion, sg.TensorRobustPCA])
@pytest.mark.parametrize("value", [0.0, 7.0, -1e-9])
@pytest.mark.parametrize("shape", [(16, 1), (4, 5, 6), (1, 1)])
@pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")
def test_a_tensor_whose_entries_are_equal_is_a_constant(estimator, value, shape):
    X = np.full(shape, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model = estimator(rank=1, center="none", random_state=0).fit(X)
        assert np.all(np.isfinite(model.interval(([0], [0], [0])[: X.ndim])))
    np.testing.assert_allclose(model.reconstruct(), X, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")
def test_two_entries_of_a_tensor_have_finite_errors():
    X = np.full((1, 10, 7), np.nan)
    X[0, 3, 2], X[0, 4, 5] = 1e3, -2e3
    for seed in range(5):
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            model = sg.TensorCompletion(random_state=seed).fit(X)
            values, std = model.predict_entries(np.nonzero(np.ones(X.shape)), return_std=True)
        assert np.all(np.isfinite(values))
        assert not np.any(np.isnan(std))


def test_superfluous_components_of_robust_tensors_are_dropped():
    """Too many components rejected a fifth of the entries, and were off by a third elsewhere."""
    rng = np.random.default_rng(0)
    X = np.einsum("i,j,k->ijk", *(rng.standard_normal(n) for n in (16, 12, 10)))
    X = np.rint(10 * X / X.std())  # bounded errors, and none where entries are small
    wrong = rng.random(X.shape) < 0.08
    Y = X + wrong * 100 * rng.standard_normal(X.shape)
    Y[rng.random(X.shape) < 0.35] = np.nan
    for rank in ("auto", 6):
        model = sg.TensorRobustPCA(rank, random_state=0).fit(Y)
        assert np.sqrt(np.mean((model.reconstruct() - X) ** 2)) < 0.05 * X.std(), rank


def test_constant_slices_of_a_tensor_do_not_judge_a_fit():
    """Medians predict them exactly, and so does the model, whatever its rank."""
    rng = np.random.default_rng(0)
    X = np.einsum("ia,ja,ka->ijk", *(rng.standard_normal((n, 2)) for n in (35, 26, 18)))
    X /= X.std()
    X[..., 0], X[..., 1] = 8.0, 0.0
    Y = X + 0.01 * rng.standard_normal(X.shape) * (np.arange(18) > 1)
    wrong = (rng.random(X.shape) < 0.03) & (np.arange(18) > 1)
    Y += wrong * 20 * rng.standard_normal(X.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = sg.TensorRobustPCA(random_state=0).fit(Y)
    assert np.sqrt(np.mean((model.reconstruct() - X) ** 2)) < 0.01
    assert np.all(model.reconstruct()[..., 0] == 8)


# ---- what is said only where it is true


def test_columns_of_unlike_scale_are_no_outliers():
    """With one threshold for all columns, what is ordinary in large ones was rejected."""
    rng = np.random.default_rng(0)
    truth, X = noisy((60, 80), 2, 0.3)
    unit = 10 ** rng.uniform(-1.5, 1.5, 80)
    wrong = rng.random(X.shape) < 0.03
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = sg.RobustPCA(random_state=0).fit(unit * (X + 20 * wrong))
    assert model.rank_ == 2
    assert model.scale_ == "columns"
    assert model.outliers_.nnz < 0.06 * X.size
    assert np.sqrt(np.mean((model.reconstruct() / unit - truth) ** 2)) < 0.15


@pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")
def test_a_fit_that_hardly_began_gives_offsets():
    rng = np.random.default_rng(0)
    truth, X = noisy((80, 70), 2, 0.1)
    X = np.where(rng.random(X.shape) < 0.7, X, np.nan)
    cube = X[:, :64].reshape(80, 8, 8)
    for model, Y in (
        (sg.MatrixCompletion(max_time=0, random_state=0), X),
        (sg.MatrixCompletion(60, center="none", max_time=0), X),
        (sg.RobustPCA(max_time=0, random_state=0), X),
        (sg.TensorCompletion(max_time=0, random_state=0), cube),
    ):
        with pytest.warns(ConvergenceWarning, match="time limit"):
            model.fit(Y)
        if Y is X and model.center != "auto":
            assert "offsets alone predict better than the fit so far" in model.status_
        right = truth[:, : Y[0].size].reshape(Y.shape)
        assert np.sqrt(np.mean((model.reconstruct() - right) ** 2)) < 1.1 * right.std()
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        model = sg.MatrixCompletion(2, max_iter=1, random_state=0).fit(X)
    assert model.rank_ == 2  # what predicts better is kept


@pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")
@pytest.mark.parametrize("seed", range(3))
def test_few_cells_of_a_tensor_do_not_lead_far_away(seed):
    rng = np.random.default_rng(seed)
    X = np.full(240, np.nan)
    X[rng.choice(240, 19, replace=False)] = rng.standard_normal(19)
    X = X.reshape(10, 12, 2)
    model = sg.TensorCompletion(random_state=0).fit(X)
    assert np.abs(model.reconstruct()).max() < 2 * np.nanmax(np.abs(X))


def test_a_constant_column_has_no_outliers():
    rng = np.random.default_rng(0)
    X = noisy((60, 20), 1, 0.0)[0]
    X[:, 0] = 7
    X[:, 1:] += 50 * (rng.random((60, 19)) < 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sg.DataWarning)
        model = sg.RobustPCA(1, center="none", random_state=0).fit(X)
    assert np.all(model.reconstruct()[:, 0] == 7)
    assert not np.any(model.outliers_.coords[1] == 0)
    assert model.outliers_.nnz


def test_advice_names_the_limit_that_was_met():
    X = noisy((60, 30), 2, 0.1)[1]
    for options, wanted in (({"max_iter": 1}, "raise max_iter"), ({"max_time": 0}, "max_time")):
        with pytest.warns(ConvergenceWarning, match=wanted) as caught:
            sg.MatrixCompletion(2, **options).fit(X)
        said = " ".join(str(w.message) for w in caught)
        assert ("raise max_iter" in said) == ("max_iter" in options)


def test_few_measurements_are_too_few_to_judge_by():
    rng = np.random.default_rng(0)
    A, coefficient = rng.standard_normal((15, 3, 2)), np.outer([1, 2, 3], [1, -1])
    y = np.tensordot(A, coefficient, 2)
    with pytest.warns(sg.DataWarning, match="15 measurements are too few"):
        sg.MatrixRegressor(1, random_state=0).fit(A, y + 0.1 * rng.standard_normal(15))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sg.MatrixRegressor(1, random_state=0).fit(A, y)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"rank": 2}])
@pytest.mark.parametrize("model", [sg.TensorRobustPCA(), sg.TensorCompletion(outliers="auto")])
def test_a_robust_tensor_fit_that_is_cut_short_gives_offsets_of_all_modes(options, model):
    rng = np.random.default_rng(0)
    shape = (12, 9, 8)
    truth = np.einsum("iz,jz,kz->ijk", *(rng.standard_normal((n, 2)) for n in shape))
    for axis, n in enumerate(shape):
        others = tuple(k for k in range(3) if k != axis)
        truth = truth + np.expand_dims(6 * rng.standard_normal(n), others)
    X = truth + 50 * (rng.random(shape) < 0.1)
    X[rng.random(shape) < 0.3] = np.nan
    model = clone(model).set_params(max_time=0, random_state=0, **options).fit(X)
    assert all(b is not None for b in model.offsets_)
    assert np.std(model.reconstruct() - truth) < 0.3 * np.std(truth)
    missing = np.isnan(X)
    assert np.std(model.transform(X)[missing] - truth[missing]) < 0.3 * np.std(truth)
    assert "offsets alone predict better" in model.status_
    assert model.outliers_.nnz > 0.8 * np.sum(truth + 40 < X)


@pytest.mark.parametrize("seed", range(4))
def test_superfluous_components_are_nothing_in_single_cells(seed):
    """A component of one missing cell changes no observed one, so it could be anything."""
    rng = np.random.default_rng(seed)
    truth = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((n, 3)) for n in (37, 23, 3)))
    seen = rng.random(truth.shape) < 0.96
    model = sg.TensorCompletion(5, center="none", random_state=0)
    model.fit(np.where(seen, truth, np.nan))
    assert np.abs(model.reconstruct() - truth).max() < 1e-7 * truth.std()


def test_ranks_of_a_coefficient_are_bounds_if_they_reproduce_nearly_anything():
    rng = np.random.default_rng(0)
    B = np.einsum("i,j,k,l->ijkl", *(rng.standard_normal(n) for n in (5, 4, 6, 5)))
    A = rng.standard_normal((124, *B.shape))
    y = np.tensordot(A, B, 4)
    model = sg.TensorRegressor(rank=3, random_state=0).fit(
        A, y + 0.03 * y.std() * rng.normal(size=124)
    )
    assert np.linalg.norm(model.coef_ - B) < 0.05 * np.linalg.norm(B)


def test_advice_never_asks_for_what_is_set():
    rng = np.random.default_rng(0)
    X = 5 + rng.standard_normal((60, 12))
    X[rng.random(X.shape) < 0.2] = np.nan
    for given, advice in (
        ({"non_negative": True}, "observe more entries, or leave out rows and columns with few"),
        ({"rank": 6, "ridge": 1e-4}, 'set rank to "auto"'),
        ({"rank": 6, "ridge": 1e-4, "center": "none"}, 'set rank and center to "auto"'),
    ):
        with pytest.warns(DataWarning, match="column means predict"):
            model = sg.MatrixCompletion(random_state=0, **given).fit(X)
        (said,) = [text for text in model.diagnostics_ if text.startswith("column means")]
        assert said.endswith(f": do not rely on it; {advice}")
