"""The estimators: what a data scientist relies on without reading a paper."""

import pickle
import warnings

import numpy as np
import pytest
from conftest import library
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import scaledgd as sg
from scaledgd.estimators import reading

pytestmark = pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")

# ---- scikit-learn's own checks

WEIGHTS = (
    "a weight says how precise a row is; repeating a row also changes medians, thresholds and "
    "which entries are held out"
)
EXCEPTIONS = {
    "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
    "check_sample_weight_equivalence_on_sparse_data": WEIGHTS,
}


@parametrize_with_checks([sg.MatrixCompletion(), sg.MatrixRegressor(shape=(-1, 1))])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_is_content(estimator, check):
    check(estimator)


@pytest.mark.long
@parametrize_with_checks([sg.RobustPCA()], expected_failed_checks=lambda estimator: EXCEPTIONS)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_is_content_with_robust_pca(estimator, check):
    """It shares its interface with `MatrixCompletion`, and every check takes longer."""
    check(estimator)


# ---- data


def table(shape=(60, 40), rank=3, kappa=3.0, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.standard_normal((n, rank)))[0] for n in shape)
    X = (U * np.linspace(1, 1 / kappa, rank)) @ V.T
    X *= np.sqrt(X.size) / np.linalg.norm(X)
    return X, X + noise * rng.standard_normal(shape), rng


def holes(Y, rng, p=0.6):
    return np.where(rng.random(Y.shape) < p, Y, np.nan)


def relative(estimate, X):
    return np.linalg.norm(estimate - X) / np.linalg.norm(X)


# ---- one table, many containers


def containers(Y, seen):
    filled = np.where(seen, Y, np.nan)
    yield "nan", filled, {}
    yield "masked", np.ma.masked_array(np.where(seen, Y, 7e7), ~seen), {}
    yield "observed", np.where(seen, Y, -3.0), {"observed": seen}
    yield "fortran", np.asfortranarray(filled), {}
    yield "strides", filled[::-1, ::-1][::-1, ::-1], {}
    yield "swapped", filled.astype(">f8"), {}
    i, j = np.nonzero(seen)
    yield "coo", sparse.coo_array((Y[i, j], (i, j)), shape=Y.shape), {}
    yield "csc", sparse.csc_matrix((Y[i, j], (i, j)), shape=Y.shape), {}


def test_every_container_gives_the_same_model():
    _, Y, rng = table(noise=0.05)
    Y[3, 4] = 0.0  # an explicit zero is data
    seen = rng.random(Y.shape) < 0.6
    seen[3, 4] = True
    models = {}
    for name, X, keywords in containers(Y, seen):
        models[name] = sg.MatrixCompletion(rank=3).fit(X, **keywords).reconstruct()
    i, j = np.nonzero(seen)
    order = rng.permutation(i.size)
    entries = sg.MatrixCompletion(rank=3).fit_entries((i[order], j[order]), Y[i, j][order], Y.shape)
    models["entries"] = entries.reconstruct()
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(np.where(seen, Y, np.nan)).rename(columns=str)
    models["frame"] = sg.MatrixCompletion(rank=3).fit(frame).reconstruct()
    for name, estimate in models.items():
        np.testing.assert_allclose(estimate, models["nan"], rtol=1e-5, atol=1e-7, err_msg=name)
    assert abs(models["nan"][3, 4]) < 3  # and it had its say


def test_frames_keep_their_names():
    pd = pytest.importorskip("pandas")
    _, Y, rng = table(noise=0.05)
    frame = pd.DataFrame(holes(Y, rng), columns=[f"c{k}" for k in range(40)], index=range(5, 65))
    model = sg.MatrixCompletion(rank=3).set_output(transform="pandas")
    filled = model.fit_transform(frame)
    assert list(filled.columns) == list(frame.columns)
    assert list(filled.index) == list(frame.index)
    assert not filled.isna().any().any()
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame.rename(columns={"c0": "other"}))


@pytest.mark.parametrize(
    ("estimator", "atol"),
    # with gross errors, a fit ends as soon as noise hides the rest
    [("MatrixCompletion", 1e-8), ("RobustPCA", 1e-6), ("TensorCompletion", 1e-8)],
)
def test_torch_in_torch_out(estimator, atol):
    torch = library("torch")
    _, Y, rng = table((40, 25), noise=0.05)
    X = holes(Y, rng)
    model = getattr(sg, estimator)(rank=3)
    expected = model.fit(X).transform(X)
    ours = clone(model).fit(torch.asarray(X)).transform(torch.asarray(X))
    assert isinstance(ours, torch.Tensor)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-6, atol=atol)
    single = clone(model).fit_transform(torch.asarray(X, dtype=torch.float32))
    assert single.dtype == torch.float32


@pytest.mark.parametrize("dtype", [np.float16, np.int8, bool, np.longdouble, object, np.float32])
def test_numbers_of_any_kind(dtype):
    X, _, _ = table((30, 20))
    Y = (10 * X).astype(np.int8).astype(dtype)
    if dtype is bool:
        Y = (X[:, :1] > 0) & (X[:1] > 0)  # of rank 1: signs of X alone have no low rank
    before = Y.copy()
    model = sg.RobustPCA(rank=3, random_state=0).fit(Y)
    clean = model.transform(Y)
    assert clean.dtype == (np.float32 if dtype is np.float32 else np.float64)
    np.testing.assert_array_equal(Y, before)
    expected = clone(model).fit_transform(np.asarray(Y, dtype=float))
    np.testing.assert_allclose(clean, expected, rtol=1e-4, atol=1e-3)


def test_read_only_and_mapped_arrays(tmp_path):
    _, Y, rng = table(noise=0.05)
    X = holes(Y, rng)
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    frozen = X.copy()
    frozen.setflags(write=False)
    expected = sg.MatrixCompletion(rank=3).fit_transform(X)
    for given in (mapped, frozen):
        ours = sg.MatrixCompletion(rank=3).fit_transform(given)
        np.testing.assert_allclose(ours, expected, rtol=1e-9)


# ---- what is refused, and how

WRONG = {
    "nothing-observed": (lambda m, X: m.fit(np.full((5, 4), np.nan)), "no observed entry"),
    "inf": (lambda m, X: m.fit(np.where(X > 2, np.inf, X)), "infinity"),
    "strings": (lambda m, X: m.fit([["a", "b"], ["c", "d"]]), "could not convert|dtype"),
    "complex": (lambda m, X: m.fit(X + 1j), "Complex data not supported"),
    "ragged": (lambda m, X: m.fit([[1.0, 2.0], [3.0]]), "inhomogeneous"),
    "0-d": (lambda m, X: m.fit(np.asarray(3.0)), "Expected 2D array"),
    "1-d": (lambda m, X: m.fit(X[0]), "Expected 2D array"),
    "3-d": (lambda m, X: m.fit(X[None]), "dim 3|3D|2 dim"),
    "empty": (lambda m, X: m.fit(np.empty((0, 4))), "0 sample"),
    "no-column": (lambda m, X: m.fit(np.empty((4, 0))), "0 feature"),
    "observed-nan": (
        lambda m, X: m.fit(np.where(X > 1, np.nan, X), observed=np.ones(X.shape, bool)),
        "where observed is True",
    ),
    "observed-numbers": (lambda m, X: m.fit(X, observed=np.ones(X.shape)), "must be boolean"),
    "observed-shape": (lambda m, X: m.fit(X, observed=np.ones(3, bool)), "shape of X"),
    "observed-sparse": (
        lambda m, X: m.fit(sparse.csr_array(X), observed=np.ones(X.shape, bool)),
        "leave observed out",
    ),
    "duplicates": (
        lambda m, X: m.fit(sparse.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(3, 3))),
        "more than once",
    ),
    "duplicate-entries": (
        lambda m, X: m.fit_entries(([0, 0], [1, 1]), [1.0, 2.0], (3, 3)),
        "more than once",
    ),
    "entries-range": (lambda m, X: m.fit_entries(([5], [0]), [1.0], (3, 3)), "must lie in"),
    "entries-nan": (lambda m, X: m.fit_entries(([0], [0]), [np.nan], (3, 3)), "NaN"),
    "entries-count": (lambda m, X: m.fit_entries(([0], [0]), [1.0, 2.0], (3, 3)), "as many"),
    "weight-negative": (lambda m, X: m.fit(X, entry_weight=-np.ones(X.shape)), "not be negative"),
    "weight-nan": (lambda m, X: m.fit(X, sample_weight=np.full(60, np.nan)), "finite"),
    "weight-shape": (lambda m, X: m.fit(X, entry_weight=np.ones((2, 2))), "shape of X"),
    "weight-zero": (lambda m, X: m.fit(X, sample_weight=np.zeros(60)), "all weights are zero"),
    "columns": (lambda m, X: m.fit(X).transform(X[:, :5]), "features"),
    "index": (lambda m, X: m.fit(X).predict_entries((np.asarray([99]), np.asarray([0]))), "lie in"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_refused_with_a_reason(name):
    attempt, words = WRONG[name]
    with pytest.raises((ValueError, TypeError), match=words):
        attempt(sg.MatrixCompletion(rank=2), table()[0])


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"rank": 0}, "at least 1"),
        ({"rank": "many"}, "auto"),
        ({"rank": (2, 2)}, "one integer"),
        ({"rank": 2.5}, "integer"),
        ({"center": "middle"}, "center must be"),
        ({"scale": 3}, "scale must be"),
        ({"ridge": -1.0}, "ridge"),
        ({"ridge": "some"}, "ridge"),
        ({"outliers": "yes"}, "outliers"),
        ({"outliers": 0.7}, "one half"),
        ({"clip": (2, 1)}, "lo <= hi"),
        ({"clip": 3}, "pair"),
        ({"tol": -1}, "tol"),
        ({"max_iter": 0}, "max_iter"),
        ({"max_time": -1}, "max_time"),
        ({"outliers": "auto", "ridge": 0.1}, "leave it"),
        ({"non_negative": True, "center": "rows"}, "no offsets"),
        ({"non_negative": True, "outliers": "auto"}, "cannot be combined"),
        ({"non_negative": True, "ridge": 0.1}, "cannot be combined"),
    ],
)
def test_bad_parameters_are_refused_with_a_reason(parameters, words):
    model = sg.MatrixCompletion(**{"rank": 2, **parameters})
    with pytest.raises((ValueError, TypeError), match=words):
        model.fit(table()[0])


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (1, 1), (2, 2)])
@pytest.mark.parametrize("estimator", [sg.MatrixCompletion(), sg.RobustPCA()], ids=str)
def test_tiny_tables(estimator, shape):
    X = np.random.default_rng(0).standard_normal(shape)
    out = estimator.set_params(random_state=0).fit_transform(X)
    assert out.shape == shape
    assert np.isfinite(out).all()


def test_rows_and_columns_without_data():
    _, Y, rng = table(noise=0.05)
    X = holes(Y, rng)
    X[5], X[:, 7] = np.nan, np.nan
    with pytest.warns(sg.DataWarning, match="1 row has no observation and is filled"):
        model = sg.MatrixCompletion(rank=3, center="both").fit(X)
    filled = model.transform(X)
    assert np.isfinite(filled).all()
    np.testing.assert_allclose(filled[5], model.reconstruct()[5], atol=1e-8)


# ---- transform


OPTIONS = [
    {"rank": 3},
    {"rank": 3, "center": "both"},
    {"rank": 3, "center": "rows", "scale": "rows"},
    {"rank": 3, "center": "columns", "scale": "columns"},
    {"rank": 3, "center": "both", "scale": "rows"},
    {"rank": 3, "center": "both", "scale": "both"},
    {"rank": 3, "center": "columns", "scale": "rows"},
    {"rank": 3, "ridge": 0.05},
    {"rank": 3, "ridge": 0.05, "center": "both", "scale": "columns"},
    {"rank": 3, "ridge": 0.0},
    {"rank": 3, "outliers": "auto"},
    {"rank": 3, "outliers": 0.1, "center": "rows"},
    {"rank": 3, "non_negative": True},
    {"rank": 9},
    {},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_fit_transform_is_fit_then_transform(options):
    _, Y, rng = table(noise=0.1, seed=3)
    Y = Y * rng.uniform(0.5, 3, (60, 1)) + 2.0
    X = holes(Y, rng)
    X[0, 2:] = np.nan
    model = sg.MatrixCompletion(random_state=0, **options)
    together = model.fit_transform(X)
    apart = sg.MatrixCompletion(random_state=0, **options).fit(X).transform(X)
    np.testing.assert_allclose(together, apart, rtol=0, atol=1e-8)
    seen = ~np.isnan(X)
    np.testing.assert_array_equal(together[seen], X[seen])
    # what was not seen is the estimate itself, and one row does not depend on another
    whole = model.reconstruct()
    np.testing.assert_allclose(together[~seen], whole[~seen], rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(model.transform(X[7:9]), together[7:9], rtol=1e-7, atol=1e-8)
    # the model is offsets plus a low-rank matrix
    offsets = model.row_offset_[:, None] + model.column_offset_[None, :]
    np.testing.assert_allclose(whole, offsets + model.factors_.full(), atol=1e-10)
    i, j = np.nonzero(np.ones_like(X))
    np.testing.assert_allclose(model.predict_entries((i, j)), whole.ravel(), atol=1e-10)
    assert model.rank_ <= options.get("rank", 60)
    assert model.components_.shape == (model.rank_, 40)
    gram = model.components_ @ model.components_.T
    np.testing.assert_allclose(gram, np.eye(model.rank_), atol=1e-8)
    if options.get("non_negative"):
        assert model.reconstruct().min() >= 0


@pytest.mark.parametrize("center", ["auto", "columns"])
def test_robust_pca_cleans_rows_it_has_not_seen(center):
    X, _, rng = table((150, 60), noise=0.0)
    X = X + (center == "columns") * rng.uniform(-2, 2, 60)
    Y = X + (rng.random(X.shape) < 0.15) * rng.uniform(-20, 20, X.shape)
    Y[3, 5] = np.nan
    model = sg.RobustPCA(rank=3 + (center == "columns"), center=center).fit(Y[:120])
    np.testing.assert_allclose(model.transform(Y[:120]), model.reconstruct(), atol=1e-8)
    assert relative(model.transform(Y[120:]), X[120:]) < 1e-7
    # with noise the threshold is part of the model too
    noisy = Y + 0.1 * rng.standard_normal(Y.shape)
    model = sg.RobustPCA(rank=4, center=center).fit(noisy[:120])
    np.testing.assert_allclose(model.transform(noisy[:120]), model.reconstruct(), atol=1e-8)
    assert relative(model.transform(noisy[120:]), X[120:]) < 0.1
    assert 0.2 < model.threshold_ < 0.5
    assert 0.6 < model.noise_variance_ / 0.01 < 1.4


def test_outliers_are_found():
    X, _, rng = table((120, 100))
    wrong = rng.random(X.shape) < 0.1
    model = sg.RobustPCA(rank=3).fit(X + 5 * wrong)
    found = model.outliers_.toarray()
    np.testing.assert_array_equal(found != 0, wrong)
    np.testing.assert_allclose(found[wrong], 5.0, atol=1e-6)


def test_new_rows_are_filled():
    X, Y, rng = table((200, 40), noise=0.05)
    model = sg.MatrixCompletion(rank=3).fit(holes(Y[:150], rng))
    filled = model.transform(holes(Y[150:], rng))
    assert relative(filled, X[150:]) < 0.08


def test_partial_fit_is_a_fit_of_all_rows():
    X, Y, rng = table((120, 40), noise=0.05)
    H = holes(Y, rng)
    model = sg.MatrixCompletion(rank=3).partial_fit(H[:70]).partial_fit(H[70:])
    whole = sg.MatrixCompletion(rank=3).fit(H)
    assert model.reconstruct().shape == (120, 40)
    assert relative(model.reconstruct(), whole.reconstruct()) < 5e-3
    assert relative(model.reconstruct(), X) < 0.06
    robust = sg.RobustPCA(rank=3).partial_fit(X[:70]).partial_fit(X[70:])
    assert relative(robust.reconstruct(), X) < 1e-6


def test_warm_start_goes_on():
    _, Y, rng = table((200, 100), noise=0.0)
    H = holes(Y, rng, 0.4)
    cold = sg.MatrixCompletion(rank=3).fit(H)
    warm = clone(cold).set_params(warm_start=True).fit(H)
    first = warm.n_iter_
    assert warm.fit(H).n_iter_ < first / 2
    assert relative(warm.reconstruct(), Y) < 1e-8


# ---- no tuning


def test_scale_does_not_matter():
    _, Y, rng = table(noise=0.02)
    H = holes(Y, rng)
    models = [sg.MatrixCompletion(rank=3).fit(s * H) for s in (1.0, 1e6, 1e-150, 1e150)]
    for s, model in zip((1.0, 1e6, 1e-150, 1e150), models, strict=True):
        assert model.n_iter_ == models[0].n_iter_
        np.testing.assert_allclose(model.reconstruct() / s, models[0].reconstruct(), rtol=1e-6)


def test_the_same_seed_gives_the_same_fit():
    _, Y, rng = table(noise=0.1)
    H = holes(Y, rng)
    one, two = (sg.MatrixCompletion(random_state=7).fit(H).reconstruct() for _ in range(2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kappa", [1, 1000])
def test_completion_does_not_know_condition_numbers(kappa):
    X, Y, rng = table((300, 200), rank=5, kappa=kappa)
    model = sg.MatrixCompletion(rank=5).fit(holes(Y, rng, 0.3))
    assert relative(model.reconstruct(), X) < 1e-8
    assert model.converged_


def test_spectra_over_many_decades_are_found_from_the_top():
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((400, 8)))[0] for _ in range(2))
    X = 400 * (U * np.geomspace(1, 1e-5, 8)) @ V.T
    model = sg.MatrixCompletion(rank=8).fit(holes(X, rng, 0.25))
    assert model.rank_ == 8
    assert relative(model.reconstruct(), X) < 1e-8


@pytest.mark.parametrize("kappa", [1, 100])
def test_few_entries_are_enough(kappa):
    X, Y, rng = table((150, 150), rank=5, kappa=kappa)
    from benchmarks.estimators import observed

    seen = observed(X.shape, int(2.0 * 5 * 295), 5, rng)
    model = sg.MatrixCompletion(rank=5).fit(np.where(seen, Y, np.nan))
    assert relative(model.reconstruct(), X) < 1e-6


@pytest.mark.parametrize("fraction", [0.02, 0.3])
@pytest.mark.parametrize("kappa", [1, 1000])
def test_robust_pca_is_not_told_how_much_is_wrong(kappa, fraction):
    X, _, rng = table((300, 250), rank=5, kappa=kappa)
    Y = X + (rng.random(X.shape) < fraction) * rng.uniform(-10, 10, X.shape)
    assert relative(sg.RobustPCA(rank=5).fit(Y).reconstruct(), X) < 1e-6


@pytest.mark.parametrize("outliers", ["auto", 0.1])
def test_missing_and_wrong_at_once(outliers):
    X, _, rng = table((200, 150), rank=3, kappa=20)
    Y = holes(X + (rng.random(X.shape) < 0.08) * rng.uniform(-10, 10, X.shape), rng, 0.5)
    model = sg.MatrixCompletion(rank=3, outliers=outliers).fit(Y)
    assert relative(model.reconstruct(), X) < 1e-6
    plain = sg.MatrixCompletion(rank=3).fit(Y)
    assert relative(plain.reconstruct(), X) > 0.1  # the negative control
    assert relative(sg.RobustPCA(rank=3).fit(Y).reconstruct(), X) < 1e-6


@pytest.mark.parametrize("decibel", [20, 40])
def test_noise_costs_what_it_must(decibel):
    sigma = 10 ** (-decibel / 20)
    X, Y, rng = table((400, 300), rank=4, kappa=10, noise=sigma)
    H = holes(Y, rng, 0.4)
    oracle = sigma * np.sqrt(4 * 696 / np.count_nonzero(~np.isnan(H)))
    exact = sg.MatrixCompletion(rank=4).fit(H)
    assert 0.9 < relative(exact.reconstruct(), X) / oracle < 1.08
    assert 0.95 < exact.noise_variance_ / sigma**2 < 1.05
    tripled = sg.MatrixCompletion(rank=12).fit(H)
    assert tripled.rank_ == 4
    assert relative(tripled.reconstruct(), X) < 1.2 * relative(exact.reconstruct(), X)


@pytest.mark.parametrize("rank", [1, 4, 9])
def test_the_rank_is_found(rank):
    _, Y, rng = table((200, 150), rank=rank, kappa=5, noise=0.05, seed=rank)
    model = sg.MatrixCompletion(random_state=0).fit(holes(Y, rng, 0.5))
    assert model.rank_ == rank
    assert {step["start"] for step in model.rank_path_} >= {"grown", "joint"}
    assert all(step["seconds"] >= 0 < step["held_out"] for step in model.rank_path_)


@pytest.mark.parametrize("rank", [1, 5])
def test_the_rank_is_found_beneath_outliers(rank):
    X, Y, rng = table((200, 150), rank=rank, kappa=5, noise=0.02, seed=rank)
    Y = Y + (rng.random(X.shape) < 0.1) * rng.uniform(-10, 10, X.shape)
    assert sg.RobustPCA(random_state=0).fit(Y).rank_ == rank


def test_nothing_but_noise_is_the_zero_model():
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((80, 60))
    for rank in (5, "auto"):
        model = sg.MatrixCompletion(rank=rank, center="none", random_state=0).fit(holes(Y, rng))
        assert model.rank_ <= 1
        assert np.std(model.reconstruct()) < 0.15  # that of column means is as large


def test_offsets_are_learnt_with_the_factors():
    X, Y, rng = table((150, 100), noise=0.05)
    b, c = rng.standard_normal(150) * 3, rng.standard_normal(100) * 3
    H = holes(Y + b[:, None] + c[None, :], rng, 0.3)
    truth = X + b[:, None] + c[None, :]
    model = sg.MatrixCompletion(rank=3, center="both").fit(H)
    assert relative(model.reconstruct(), truth) < 0.02
    assert sg.MatrixCompletion(random_state=0).fit(H).center_ != "none"


def test_rows_of_very_different_scale():
    X, Y, rng = table((100, 80), rank=2, noise=0.05)
    d = 10 ** rng.uniform(-3, 3, (100, 1))
    H = holes(Y * d, rng, 0.5)
    model = sg.MatrixCompletion(random_state=0).fit(H)
    assert model.scale_ == "rows"
    small = d[:, 0] < 0.1
    assert relative(model.reconstruct()[small], (X * d)[small]) < 0.2


def test_weights_decide():
    X, _, rng = table((80, 60), rank=2)
    wrong = rng.random(X.shape) < 0.2
    Y = X + 3 * wrong * rng.standard_normal(X.shape)
    weighted = sg.MatrixCompletion(rank=2).fit(Y, entry_weight=np.where(wrong, 1e-8, 1.0))
    assert relative(weighted.reconstruct(), X) < 1e-3
    assert relative(sg.MatrixCompletion(rank=2).fit(Y).reconstruct(), X) > 0.05
    rows = rng.random(80) < 0.3
    Y = X + rows[:, None] * rng.standard_normal(X.shape)
    model = sg.MatrixCompletion(rank=2).fit(Y, sample_weight=np.where(rows, 1e-6, 1.0))
    assert relative(model.reconstruct()[~rows], X[~rows]) < 1e-3


def test_clip_and_non_negative():
    _, Y, rng = table(noise=0.1)
    model = sg.MatrixCompletion(rank=3, clip=(-0.5, 1.0)).fit(holes(Y, rng))
    assert model.reconstruct().min() >= -0.5
    assert model.reconstruct().max() <= 1.0
    parts = rng.random((60, 2)) @ rng.random((2, 40))
    model = sg.MatrixCompletion(rank=2, non_negative=True).fit(holes(parts, rng, 0.7))
    assert relative(model.reconstruct(), parts) < 0.02


# ---- honesty


def test_what_did_not_converge_says_so():
    _, Y, rng = table((100, 80))
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        model = sg.MatrixCompletion(rank=3, max_iter=2).fit(holes(Y, rng, 0.4))
    assert not model.converged_
    assert "max_iter" in model.status_
    with pytest.warns(ConvergenceWarning, match="time limit"):
        sg.MatrixCompletion(rank=3, max_time=0.0).fit(holes(Y, rng, 0.4))


@pytest.mark.filterwarnings("default::scaledgd.DataWarning")
def test_what_cannot_be_known_is_said():
    X, _, rng = table((40, 40), rank=2)
    parts = np.full(X.shape, np.nan)
    parts[:20, :20], parts[20:, 20:] = X[:20, :20], X[20:, 20:]
    with pytest.warns(sg.DataWarning, match="2 parts"):
        model = sg.MatrixCompletion(rank=2).fit(parts)
    assert np.abs(model.reconstruct()).max() < 10 * np.abs(X).max()
    H = holes(X, rng)
    H[0], H[0, 0] = np.nan, X[0, 0]
    with pytest.warns(sg.DataWarning, match="fewer observations than the rank"):
        model = sg.MatrixCompletion(rank=2).fit(H)
    assert np.abs(model.reconstruct()[0]).max() < 10 * np.abs(X).max()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sg.MatrixCompletion(rank=2).fit(holes(X, rng, 0.7))


def test_history_tells_how_it_went():
    _, Y, rng = table(noise=0.05)
    model = sg.MatrixCompletion(rank=3).fit(holes(Y, rng))
    assert model.history_[0]["t"] == 0
    assert {"value", "seconds", "stage"} <= set(model.history_[-1])
    assert model.n_iter_ == len(model.history_) - 1


def test_a_dense_result_that_would_not_fit_is_refused(monkeypatch):
    rng = np.random.default_rng(0)
    flat = np.unique(rng.integers(0, 20_000 * 10_000, 2000))
    model = sg.MatrixCompletion(rank=1, ridge=0.1)
    model.fit_entries((flat // 10_000, flat % 10_000), np.ones(flat.size), (20_000, 10_000))
    monkeypatch.setattr(reading, "available_memory", lambda: 1 << 30)
    with pytest.raises(MemoryError, match="predict_entries"):
        model.reconstruct()
    assert model.predict_entries((np.asarray([3]), np.asarray([4]))).shape == (1,)
    with pytest.raises(MemoryError, match="predict_entries"):
        model.transform(sparse.coo_array((np.ones(1), ([0], [0])), shape=(20_000, 10_000)))


# ---- as scikit-learn uses them


def test_in_a_pipeline_and_a_grid_search():
    X, Y, rng = table((100, 20), rank=2, noise=0.05)
    target = X @ rng.standard_normal(20)
    pipe = make_pipeline(sg.MatrixCompletion(rank=2), StandardScaler(), LinearRegression())
    pipe.fit(holes(Y, rng, 0.7), target)
    assert pipe.score(holes(Y, rng, 0.7), target) > 0.8
    search = GridSearchCV(pipe, {"matrixcompletion__rank": [1, 2]}, cv=3)
    search.fit(holes(Y, rng, 0.7), target)
    assert search.best_params_ == {"matrixcompletion__rank": 2}


def test_pickles_predict_the_same():
    _, Y, rng = table(noise=0.05)
    H = holes(Y, rng)
    for model in (sg.MatrixCompletion(rank=3), sg.RobustPCA(rank=3), sg.TensorCompletion(rank=3)):
        model.fit(H)
        again = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(again.transform(H), model.transform(H))


# ---- regression


def design(m=400, shape=(12, 9), rank=2, noise=0.0, seed=0, correlated=False):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    A = rng.standard_normal((m, *shape))
    if correlated:
        A = A @ (np.eye(shape[1]) + 0.5 * rng.standard_normal((shape[1], shape[1])))
    return A, X, np.tensordot(A, X, 2) + 3.0 + noise * rng.standard_normal(m), rng


@pytest.mark.parametrize("correlated", [False, True])
def test_regression_recovers_a_coefficient(correlated):
    A, X, y, _ = design(correlated=correlated)
    model = sg.MatrixRegressor(rank=2).fit(A, y)
    assert relative(model.coef_, X) < 1e-6
    assert abs(model.intercept_ - 3) < 1e-6
    np.testing.assert_allclose(model.predict(A), y, rtol=1e-5, atol=1e-6)
    flat = sg.MatrixRegressor(rank=2, shape=(12, 9)).fit(A.reshape(400, -1), y)
    np.testing.assert_allclose(flat.coef_, model.coef_, atol=1e-6)
    np.testing.assert_allclose(flat.predict(A.reshape(400, -1)), y, rtol=1e-5, atol=1e-6)


def test_regression_finds_rank_and_ridge():
    A, X, y, _ = design(m=150, noise=2.0)
    model = sg.MatrixRegressor(random_state=0).fit(A, y)
    plain = np.linalg.lstsq(A.reshape(150, -1), y - 3, rcond=None)[0].reshape(12, 9)
    assert relative(model.coef_, X) < 0.5 * relative(plain, X)
    assert model.rank_ in (1, 2, 3)


def test_regression_of_tensors():
    X = sg.datasets.low_rank_tensor((8, 7, 6), 2, kappa=2, rng=0).full()
    A = np.random.default_rng(0).standard_normal((400, 8, 7, 6))
    y = np.tensordot(A, X, 3)
    for rank in (2, (2, 2, 2), "auto"):
        model = sg.TensorRegressor(rank=rank, random_state=0).fit(A, y)
        assert relative(model.coef_, X) < 1e-5
        assert model.rank_ == (2, 2, 2)


def test_regression_refuses_shapes_that_do_not_fit():
    A, _, y, _ = design()
    with pytest.raises(ValueError, match="entries"):
        sg.MatrixRegressor(shape=(5, 5)).fit(A.reshape(400, -1), y)
    with pytest.raises(ValueError, match="use TensorRegressor"):
        sg.MatrixRegressor().fit(A[:, :, :, None], y)
    with pytest.raises(ValueError, match="rows"):
        sg.MatrixRegressor(rank=1).fit(A, y[:-1])


# ---- tensors


def tensor(shape=(40, 30, 20), ranks=(2, 3, 2), kappa=3, seed=0):
    X = sg.datasets.low_rank_tensor(shape, ranks, kappa=kappa, rng=seed).full()
    return X * np.sqrt(X.size) / np.linalg.norm(X), np.random.default_rng(seed)


@pytest.mark.parametrize("options", [{"rank": 3}, {"rank": (2, 3, 2), "center": "both"}, {}])
def test_tensors_are_filled(options):
    X, rng = tensor()
    H = np.where(rng.random(X.shape) < 0.3, X, np.nan)
    model = sg.TensorCompletion(random_state=0, **options)
    filled = model.fit_transform(H)
    level = 1e-3 if "center" in options else 1e-6
    assert relative(model.reconstruct(), X) < level
    assert relative(filled, X) < level
    np.testing.assert_allclose(filled, model.transform(H), atol=1e-8)
    np.testing.assert_allclose(model.transform(H[3:5]), filled[3:5], atol=1e-7)
    if "center" not in options:
        assert model.rank_ == (2, 3, 2)
    index = tuple(np.asarray([1, 2]) for _ in range(3))
    np.testing.assert_allclose(model.predict_entries(index), model.reconstruct()[index], atol=1e-10)


def test_tensor_noise():
    X, rng = tensor()
    H = np.where(rng.random(X.shape) < 0.3, X + 0.1 * rng.standard_normal(X.shape), np.nan)
    model = sg.TensorCompletion(rank=4).fit(H)
    assert model.rank_ == (2, 3, 2)
    dof = 12 + 2 * 38 + 3 * 27 + 2 * 18
    assert relative(model.reconstruct(), X) < 1.1 * 0.1 * np.sqrt(dof / (0.3 * X.size))
    assert 0.93 < model.noise_variance_ / 0.01 < 1.07


def noisy_tensor(shape=(40, 30, 20), rank=3, noise=0.3, p=0.3, seed=0):
    """A sum of outer products, and what is seen of it."""
    rng = np.random.default_rng(seed)
    X = sg.CP(tuple(rng.standard_normal((n, rank)) for n in shape)).full()
    seen = rng.random(shape) < p
    return X, np.where(seen, X + noise * rng.standard_normal(shape), np.nan), rng


def test_a_tensor_with_everything_left_to_the_estimator():
    X, H, _ = noisy_tensor()
    model = sg.TensorCompletion(random_state=0).fit(H)
    given = sg.TensorCompletion(rank=3, random_state=0).fit(H)
    assert relative(model.reconstruct(), X) < 1.1 * relative(given.reconstruct(), X)
    assert model.noise_variance_ == pytest.approx(0.09, rel=0.1)
    for step in model.rank_path_:
        assert set(step) == {"start", "center", "scale", "rank", "held_out", "seconds"}
    starts = [step["start"] for step in model.rank_path_]
    assert {"cp", "mode 0", "mode 1", "mode 2", "tucker"} <= set(starts)
    assert model.rank_ == given.rank_ == (3, 3, 3)  # the simplest of those that predict alike


def test_a_tensor_that_is_a_matrix_is_modelled_as_one():
    """Of low rank along one mode only, with whole fibres lost."""
    rng = np.random.default_rng(0)
    X = np.tensordot(rng.standard_normal((50, 3)), rng.standard_normal((3, 20, 15)), 1)
    lost = np.broadcast_to(rng.random((50, 1, 15)) < 0.2, X.shape)
    H = np.where(lost, np.nan, X + 0.1 * rng.standard_normal(X.shape))
    model = sg.TensorCompletion(random_state=0).fit(H)
    flat = sg.MatrixCompletion(random_state=0).fit(H.reshape(50, -1)).reconstruct()
    error = np.linalg.norm((model.reconstruct() - X)[lost])
    assert error < 1.05 * np.linalg.norm((flat.reshape(X.shape) - X)[lost])
    assert error < 0.1 * np.linalg.norm(X[lost])
    assert model.rank_[0] == 3


@pytest.fixture(scope="module")
def uneven():
    """A tensor whose slices have noise of very different size, and the model of it."""
    X, H, rng = noisy_tensor((30, 20, 25), rank=12, noise=0.0, p=0.5)
    size = np.exp(rng.standard_normal((30, 1, 1)))
    H = H + size * rng.standard_normal(X.shape)
    return X, H, sg.TensorCompletion(center="none", random_state=0).fit(H)


def test_a_mean_of_variational_models_is_one_model(uneven):
    X, H, model = uneven
    assert relative(model.reconstruct(), X) < 0.3
    np.testing.assert_allclose(model.factors_.full(), model.reconstruct(), atol=1e-9)
    filled = model.transform(H)
    there = np.isnan(H)
    np.testing.assert_allclose(filled[there], model.reconstruct()[there], atol=1e-8)
    np.testing.assert_allclose(model.transform(H[4:6]), filled[4:6], atol=1e-7)
    np.testing.assert_allclose(model.transform(H[[4]]), filled[[4]], atol=1e-7)


def test_a_variational_tensor_is_saved(uneven, tmp_path):
    _, H, model = uneven
    model.save(tmp_path / "model")
    again = sg.load(tmp_path / "model")
    np.testing.assert_array_equal(again.transform(H[:3]), model.transform(H[:3]))
    assert again._model.slices
    index = tuple(np.asarray([1, 2, 3]) for _ in range(3))
    lower, upper = again.interval(index, 0.9)
    assert np.all(lower < upper)


def test_slices_of_unlike_size_are_predicted_in_their_units():
    X, H, rng = noisy_tensor((30, 20, 15), noise=0.1, p=0.4)
    size = 10.0 ** rng.uniform(-2, 2, (30, 1, 1))
    model = sg.TensorCompletion(random_state=0).fit(size * H)
    off = np.linalg.norm(model.reconstruct() / size - X, axis=(1, 2)) / np.linalg.norm(
        X, axis=(1, 2)
    )
    assert np.median(off) < 0.1
    np.testing.assert_allclose(model.factors_.full(), model.reconstruct(), atol=1e-9)
    filled = model.transform(size * H)
    np.testing.assert_allclose(model.transform((size * H)[2:4]), filled[2:4], rtol=1e-6)


def test_offsets_of_a_tensor_are_found():
    """With a rank given that leaves no room for them."""
    rng = np.random.default_rng(0)
    X = sg.CP(tuple(rng.standard_normal((n, 1)) for n in (20, 15, 12))).full()
    for axis, n in enumerate(X.shape):
        X = X + 5 * np.moveaxis(rng.standard_normal((n, 1, 1)), 0, axis)
    H = np.where(rng.random(X.shape) < 0.5, X + 0.1 * rng.standard_normal(X.shape), np.nan)
    model = sg.TensorCompletion(rank=1, random_state=0).fit(H)
    assert model.center_ == "both"
    assert relative(model.reconstruct(), X) < 0.02
    assert sg.TensorCompletion(rank=1, center="none").fit(H).center_ == "none"
    exact = sg.datasets.low_rank_tensor((20, 15, 12), 2, kappa=2, rng=0).full() + 1
    assert sg.TensorCompletion(rank=3, random_state=0).fit(exact).center_ == "none"


def test_a_time_limit_leaves_the_best_so_far(clock):
    """On a clock that moves by a second whenever it is read."""
    X, H, _ = noisy_tensor((60, 50, 40), rank=4, p=0.5)
    clock.tick = 1.0
    model = sg.TensorCompletion(max_time=60, random_state=0, n_jobs=1)
    with pytest.warns(UserWarning, match="time limit"):
        model.fit(H)
    assert relative(model.reconstruct(), X) < 0.5
    assert min(model.rank_) > 1


def test_a_large_tensor_is_chosen_for_on_a_part_and_fitted_whole(limits):
    X, H, _ = noisy_tensor((40, 30, 30), p=0.6)
    limits(tensor=20_000)
    assert np.isfinite(H).sum() > 20_000
    model = sg.TensorCompletion(random_state=0).fit(H)
    assert model.reconstruct().shape == X.shape
    assert relative(model.reconstruct(), X) < 0.1


def test_tensor_outliers():
    X, rng = tensor()
    wrong = rng.random(X.shape) < 0.1
    Y = X + wrong * rng.uniform(-10, 10, X.shape)
    model = sg.TensorRobustPCA(rank=(2, 3, 2)).fit(Y[:32])
    assert relative(model.reconstruct(), X[:32]) < 1e-8
    assert relative(model.transform(Y[32:]), X[32:]) < 1e-6
    H = np.where(rng.random(X.shape) < 0.5, Y, np.nan)
    assert relative(sg.TensorRobustPCA(rank=(2, 3, 2)).fit(H).reconstruct(), X) < 1e-6
    both = sg.TensorCompletion(rank=(2, 3, 2), outliers="auto").fit(H)
    assert relative(both.reconstruct(), X) < 1e-6


def test_tensor_input_is_checked():
    X, _ = tensor((6, 5, 4), (1, 1, 1))
    model = sg.TensorCompletion(rank=1)
    for attempt, words in (
        (lambda: model.fit(np.full((3, 3, 3), np.nan)), "no observed entry"),
        (lambda: model.fit(X[0, 0]), "2 dimensions"),
        (lambda: model.fit(X + 1j), "Complex"),
        (lambda: model.fit(np.where(X > 0, np.inf, X)), "infinity"),
        (lambda: model.fit(sparse.eye_array(4)), "not a tensor"),
        (lambda: model.fit(X).transform(X[:, :2]), "slices of shape"),
        (lambda: sg.TensorCompletion(rank=(1, 1)).fit(X), "3 modes"),
        (lambda: sg.TensorCompletion(rank=1, scale="rows").fit(X), "scale"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            attempt()


# ---- memory


def test_completion_never_forms_the_matrix():
    import tracemalloc

    rng = np.random.default_rng(0)
    n1, n2, r, m = 30000, 20000, 4, 400000
    flat = np.unique(rng.integers(0, n1 * n2, m))
    L, R = rng.standard_normal((n1, r)), rng.standard_normal((n2, r))
    index = flat // n2, flat % n2
    values = np.einsum("er,er->e", L[index[0]], R[index[1]])
    tracemalloc.start()
    sg.MatrixCompletion(rank=r, center="none", scale="none").fit_entries(index, values, (n1, n2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 8 * (flat.size + (n1 + n2) * r)
    assert peak < 8 * n1 * n2 / 20


# ---- found by trying to break them


def test_one_huge_outlier_is_one_outlier():
    X, _, _ = table((80, 60), rank=2)
    Y = X.copy()
    Y[0, 0] = 1e9
    for model in (sg.RobustPCA(2), sg.MatrixCompletion(2, outliers=0.01)):
        model.fit(Y)
        np.testing.assert_allclose(model.reconstruct(), X, atol=1e-8)
        assert model.outliers_.nnz == 1


@pytest.mark.parametrize(
    "model",
    [
        sg.MatrixCompletion(2),
        sg.MatrixCompletion(2, ridge=0.1),
        sg.MatrixCompletion(2, center="both"),
        sg.RobustPCA(2),
        sg.TensorCompletion(2),
    ],
    ids=str,
)
def test_a_row_without_data_is_the_same_wherever_it_stands(model):
    _, Y, rng = table(noise=0.05)
    H = holes(Y, rng)
    H[3] = np.nan
    model.fit(H)
    alone = model.transform(H[3:4])
    np.testing.assert_allclose(alone, model.transform(H)[3:4], atol=1e-9)
    assert np.isfinite(alone).all()


def test_what_was_changed_is_not_gone_on_from():
    X, Y, rng = table(noise=0.05)
    H = holes(Y, rng)
    model = sg.MatrixCompletion(2, warm_start=True).fit(H)
    assert model.set_params(rank=3).fit(H).rank_ == 3
    assert model.set_params(center="both").fit(H + 5).center_ == "both"
    assert relative(model.fit(1e100 * H).reconstruct() / 1e100, X) < 0.1
    assert not hasattr(model, "outliers_")
    assert hasattr(model.set_params(outliers="auto").fit(H), "outliers_")
    assert not hasattr(model.set_params(outliers=None).fit(H), "outliers_")
    # a rank that the first rows could not have is found when there are more
    assert sg.MatrixCompletion(3).partial_fit(X[:2]).partial_fit(X[2:]).rank_ == 3


def test_no_weight_is_missing():
    _, Y, rng = table((40, 30), rank=2, noise=0.1)
    weight = (rng.random(Y.shape) < 0.6).astype(float)
    spoilt = np.where(weight > 0, Y, 50 * rng.standard_normal(Y.shape))
    expected = sg.MatrixCompletion(random_state=0).fit(np.where(weight > 0, Y, np.nan))
    model = sg.MatrixCompletion(random_state=0).fit(spoilt, entry_weight=weight)
    np.testing.assert_allclose(model.reconstruct(), expected.reconstruct(), rtol=1e-6)
    by_sparse = sg.MatrixCompletion(random_state=0).fit(
        sparse.coo_array(spoilt), entry_weight=sparse.csr_array(weight)
    )
    np.testing.assert_allclose(by_sparse.reconstruct(), expected.reconstruct(), rtol=1e-6)


@pytest.mark.parametrize("center", ["rows", "both"])
@pytest.mark.parametrize("scale", ["rows", "columns", "both"])
def test_units_do_not_matter_beside_offsets(center, scale):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        Y = rng.standard_normal((12, 2)) @ rng.standard_normal((2, 9)) + 3
        Y = Y + 0.1 * rng.standard_normal(Y.shape)
        options = {"rank": 1, "center": center, "scale": scale, "random_state": 0}
        one, other = (sg.MatrixCompletion(**options).fit(s * Y) for s in (1.0, 1e6))
        np.testing.assert_allclose(1e6 * one.reconstruct(), other.reconstruct(), rtol=1e-3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("made", [sg.MatrixCompletion, sg.RobustPCA])
def test_time_limits_hold(made, clock):
    """On a clock that moves whenever it is read: a fit soon stops asking what time it is."""
    _, Y, rng = table((90, 60), rank=8, noise=0.05)
    clock.tick = 1000.0
    model = made(random_state=0, n_jobs=1, max_time=50_000.0).fit(holes(Y, rng))
    assert "time limit of 50000 s" in model.status_
    assert 50_000 < clock.passed < 130_000


def test_kinds_are_not_mixed():
    torch = library("torch")
    _, Y, rng = table(noise=0.05)
    H = holes(Y, rng)
    model = sg.MatrixCompletion(2).fit(H)
    with pytest.raises(TypeError, match="convert X to numpy"):
        model.transform(torch.asarray(H))
    whole = torch.asarray((10 * Y).astype(np.int64))
    seen = torch.asarray(rng.random(Y.shape) < 0.7)
    filled = sg.MatrixCompletion(2).fit(whole, observed=seen).transform(whole, observed=seen)
    assert filled.dtype == torch.float64


def test_regression_knows_when_there_is_nothing():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((60, 6, 5))
    model = sg.MatrixRegressor(2, random_state=0).fit(A, rng.standard_normal(60))
    assert np.var(model.predict(rng.standard_normal((200, 6, 5)))) < 0.05
    assert np.abs(sg.MatrixRegressor(2).fit(0 * A, np.arange(60.0)).coef_).max() == 0
    with pytest.raises(ValueError, match="rows of shape"):
        model.predict(np.swapaxes(A, 1, 2))
    with pytest.raises(ValueError, match="masked"):
        model.fit(A, np.ma.masked_array(np.ones(60), np.arange(60) > 3))


@pytest.mark.parametrize("weighted", [False, True])
def test_large_ranks_are_as_accurate_as_was_asked(weighted):
    """Beyond some rank a fit takes few conjugate-gradient steps; what it ends with is exact."""
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((n, 40)))[0] for n in (500, 450))
    X = 100 * (U * np.linspace(1, 0.1, 40)) @ V.T
    Y = np.where(rng.random(X.shape) < 0.6, X, np.nan)
    weight = 0.5 + rng.random(X.shape) if weighted else None
    model = sg.MatrixCompletion(rank=40, tol=1e-6).fit(Y, entry_weight=weight)
    assert np.linalg.norm(model.reconstruct() - X) < 2e-6 * np.linalg.norm(X)
    filled = model.transform(Y)
    assert np.linalg.norm(filled - X) < 2e-6 * np.linalg.norm(X)


@pytest.mark.parametrize("scale", ["none", "rows", "both"])
def test_rows_without_any_entry_are_transformed(scale):
    """With scales of rows, the message was about an index that the user never gave."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 12))
    for estimator in (sg.RobustPCA, sg.MatrixCompletion):
        model = estimator(2, center="rows", scale=scale, random_state=0).fit(X)
        assert np.all(np.isfinite(model.transform(np.full((2, 12), np.nan))))


@pytest.mark.parametrize("rank", [2, "auto"])
@pytest.mark.parametrize("scale", ["auto", "none", "rows", "columns", "both"])
def test_nonnegative_factors_need_no_choice_of_offsets(rank, scale):
    """With scale="columns" the error was that there are no offsets, though none were requested."""
    rng = np.random.default_rng(0)
    truth = rng.random((60, 2)) @ rng.random((2, 12))
    X = np.where(rng.random(truth.shape) < 0.3, np.nan, truth)
    model = sg.MatrixCompletion(rank, non_negative=True, scale=scale, random_state=0).fit(X)
    assert model.center_ == "none"
    assert np.abs(model.reconstruct() - truth).max() < 0.02
