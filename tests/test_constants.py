"""Constant rows, columns and slices, and tables of a single one."""

import warnings

import numpy as np
import pytest

import scaledgd as sg
from scaledgd.estimators.constants import varying
from scaledgd.estimators.local_observations import LocalObservations

pytestmark = pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")
NAN = np.nan


def holes(n=40, k=8, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2)) @ rng.standard_normal((2, k))
    X += 0.3 * rng.standard_normal(X.shape)
    return X, rng.random(X.shape) < 0.25


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"center": "both"},
        {"center": "none", "scale": "none"},
        {"rank": 2},
        {"rank": 2, "ridge": 0.1},
        {"outliers": "auto"},
    ],
)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_constant_columns_are_filled_with_the_constant(options, kind, tmp_path):
    X, hidden = holes()
    X[:, 3], X[:, 5], X[:, 6] = 7, 0, 0.1
    X = np.where(hidden, NAN, X).astype(kind)
    model = sg.MatrixCompletion(random_state=0, **options).fit(X)
    model.save(tmp_path / "model.npz")
    for m in (model, sg.load(tmp_path / "model.npz")):
        every = np.arange(40)
        for filled in (m.reconstruct(), m.transform(X)):
            for j, level in ((3, 7), (5, 0), (6, kind(0.1))):
                assert np.all(filled[:, j] == level)
                assert np.all(m.predict_entries((every, np.full(40, j))) == level)
        new = np.where(np.arange(8) < 3, 0.5 * np.arange(8.0), NAN).astype(kind)
        assert m.transform(new[None])[0, [3, 5]].tolist() == [7, 0]


def test_constant_rows_are_filled_with_the_constant():
    X, hidden = holes(8, 40)
    X[3], X[5] = 7, 0
    X = np.where(hidden, NAN, X)
    model = sg.MatrixCompletion(random_state=0).fit(X)
    for filled in (model.reconstruct(), model.transform(X)):
        assert np.all(filled[3] == 7)
        assert np.all(filled[5] == 0)


@pytest.mark.parametrize("options", [{}, {"rank": 2}, {"rank": 2, "center": "both"}])
@pytest.mark.parametrize("entries", [False, True])
def test_constant_slices_are_filled_with_the_constant(options, entries, tmp_path):
    rng = np.random.default_rng(0)
    X = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((n, 2)) for n in (12, 9, 8)))
    X += 0.1 * rng.standard_normal(X.shape)
    X[..., 3], X[:, 5] = 7, 7
    hidden = rng.random(X.shape) < 0.25
    Y = np.where(hidden, NAN, X)
    model = sg.TensorCompletion(random_state=0, **options)
    seen = np.nonzero(~hidden)
    model = model.fit_entries(seen, X[seen], X.shape) if entries else model.fit(Y)
    model.save(tmp_path / "model.npz")
    for m in (model, sg.load(tmp_path / "model.npz")):
        for filled in (m.reconstruct(), m.transform(Y)):
            assert np.all(filled[..., 3] == 7)
            assert np.all(filled[:, 5] == 7)
            assert np.sum(filled == 7) <= 12 * (9 + 8 - 1)
        index = np.arange(12), np.full(12, 2), np.full(12, 3)
        assert np.all(m.predict_entries(index) == 7)


def test_constant_slices_have_no_outliers():
    rng = np.random.default_rng(0)
    X = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((n, 2)) for n in (20, 15, 8)))
    X[..., 3] = 1e-3
    wrong = (rng.random(X.shape) < 0.05) & (np.arange(8) != 3)
    model = sg.TensorRobustPCA(rank=2, random_state=0).fit(X + 10 * wrong)
    assert np.all(model.reconstruct()[..., 3] == 1e-3)
    where = model.outliers_.coords
    assert not np.any(where[2] == 3)
    assert len(where[0]) >= wrong.sum()


def test_tensors_have_the_constants_of_arrays():
    torch = pytest.importorskip("torch")
    X, hidden = holes(30, 40)
    X[3], X[:, 7] = 7, 2
    X = np.where(hidden, NAN, X)
    # some lines have one value by chance only
    for table in (X, np.where(np.arange(40) < 20, X, NAN), np.where(hidden, X, 1.0)):
        here = sg.MatrixCompletion(rank=2, random_state=0).fit(table)
        there = sg.MatrixCompletion(rank=2, random_state=0).fit(torch.tensor(table))
        assert np.allclose(here.reconstruct(), there.reconstruct().numpy(), atol=1e-9)
        for a, b in (
            (here._model.levels, there._model.levels),
            (here._model._row_levels, there._model._row_levels),
        ):
            assert (a is None) == (b is None)
            assert a is None or np.array_equal(a, b.numpy(), equal_nan=True)
        rows = torch.tensor(table[:4])
        assert np.allclose(here.transform(table[:4]), there.transform(rows).numpy(), atol=1e-9)


def test_equal_values_that_are_common_are_no_constant():
    rng = np.random.default_rng(0)
    X = rng.integers(1, 4, (60, 30)).astype(float)
    X[rng.random(X.shape) < 0.5] = NAN
    X[:, 0], X[:3, 0] = NAN, 3  # three of them, by chance
    assert sg.MatrixCompletion(random_state=0).fit(X)._model.levels is None


@pytest.mark.parametrize("estimator", [sg.MatrixCompletion, sg.RobustPCA])
@pytest.mark.parametrize("values", [[7, NAN, 7, 7], [7, NAN], [1, NAN, 2, 6], [0, NAN, 0, 0, 0]])
@pytest.mark.parametrize("center", ["auto", "none", "columns"])
def test_a_single_row_or_column_is_filled_with_its_mean(estimator, values, center):
    values = np.asarray(values, dtype=float)
    mean = np.nanmean(values)
    for X in (values[:, None], values[None, :]):
        model = estimator(center=center).fit(X)
        assert np.all(model.reconstruct() == mean)
        assert np.all(model.transform(X)[np.isnan(X)] == mean)
        assert np.all(model.transform(np.full((2, X.shape[1]), NAN)) == mean)


def test_four_equal_entries_of_a_tiny_table_are_constant():
    X = np.array([[20, np.nan], [np.nan, np.nan], [20, 70], [20, 70], [20, np.nan]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sg.DataWarning)
        filled = sg.MatrixCompletion(scale="rows", random_state=0).fit_transform(X)
    assert np.all(filled[:, 0] == 20)


@pytest.mark.parametrize("level", [7.0, 0.0])
def test_a_table_of_one_value(level):
    rng = np.random.default_rng(0)
    X = np.where(rng.random((10, 6)) < 0.3, NAN, level)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert np.all(sg.MatrixCompletion().fit(X).reconstruct() == level)
        assert np.all(sg.RobustPCA().fit(X).reconstruct() == level)


def test_a_single_constant_column_is_that_constant():
    X = np.full((88, 1), 7.3)
    X[::3] = np.nan
    assert np.all(sg.MatrixCompletion().fit(X).reconstruct() == 7.3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_of_constants_alone_are_fitted(dtype):
    rng = np.random.default_rng(0)
    X = np.broadcast_to(np.asarray([3.0, 5.0], dtype=dtype), (60, 2)).copy()
    X[rng.random(X.shape) < 0.5] = np.nan
    for model in (sg.MatrixCompletion(random_state=0), sg.RobustPCA(random_state=0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimate = model.fit(X).reconstruct()
        assert np.all(estimate == np.asarray([3.0, 5.0], dtype=dtype))


def test_slices_of_zeros_have_no_size_to_divide_by():
    X = np.full((3, 7, 2), np.nan)
    X[0, :3, 0], X[1, :4, 1], X[2, 2:6, 0] = 0.0, 1e-150, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.all(np.isfinite(sg.TensorCompletion(random_state=0).fit(X).reconstruct()))


def test_intervals_of_huge_tensors_are_finite():
    rng = np.random.default_rng(0)
    X = np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((n, 2)) for n in (9, 8, 7))) + 3
    X = 1e150 * (X + 0.1 * rng.standard_normal(X.shape))
    X[rng.random(X.shape) < 0.1] = np.nan
    model = sg.TensorCompletion(random_state=0).fit(X)
    lower, upper = model.interval(([0, 1], [2, 3], [4, 5]))
    assert np.all(np.isfinite(upper))
    assert np.all(lower < upper)


def test_entries_of_constant_slices_are_no_evidence_about_others():
    rng = np.random.default_rng(0)
    X = np.einsum("i,j,k->ijk", *(rng.standard_normal(n) + 2 for n in (5, 5, 3)))
    X[..., :2] = 0, 6
    X[rng.random(X.shape) < 0.25] = np.nan
    left = int(np.isfinite(X[..., 2]).sum())
    with pytest.warns(sg.DataWarning, match=f"{left} observed entries that are not part of"):
        sg.TensorRobustPCA(random_state=0).fit(X)
    data = LocalObservations(None, np.where(np.isfinite(X), X, 0.0), X.shape)
    levels = (None, None, np.array([0, 6, np.nan]))
    assert varying(data, levels) == 25
    assert varying(data, (None, None, None)) == 75
