"""``transform(X, plausible=True)``: values that could have been observed."""

import numpy as np
import pytest

import scaledgd as sg
from scaledgd.estimators.plausible import ANY, ColumnValues, places_of


def seen(values):
    found = ColumnValues(values.shape[1])
    found.add_rows(values)
    return found.found()


def test_digits_and_signs():
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((200, 4))
    known = seen(np.stack([np.rint(9 * Z[:, 0]), np.round(Z[:, 1], 2), abs(Z[:, 2]), Z[:, 3]], 1))
    assert known.places.tolist() == [0, 2, ANY, ANY]
    assert known.low.tolist() == [-np.inf, -np.inf, 0, -np.inf]
    assert np.isinf(known.high).all()
    found = known.values(np.array([[2.6, 0.126, -0.3, 0.123456789]]))
    assert found.tolist() == [[3, 0.13, 0, 0.123456789]]
    assert known.values(np.array([[2.6, 0.126, -0.3, 0.1]]), rounded=False)[0, 0] == 2.6


@pytest.mark.parametrize("step", [1.0, 0.5])
def test_a_scale_has_ends(step):
    """Of the whole table, also if a column has seen a part of it only."""
    rng = np.random.default_rng(0)
    stars = 1 + step * rng.integers(0, 4 / step + 1, (400, 3))
    stars[:, 2] = np.maximum(stars[:, 2], 3)
    known = seen(stars)
    assert (known.low.tolist(), known.high.tolist()) == ([1, 1, 1], [5, 5, 5])
    few = seen(stars[:4])  # too few values to call them a scale
    assert np.isinf(few.high).all()
    mixed = seen(np.column_stack([stars[:, :1], 1000 * rng.random(400)]))
    assert (mixed.low.tolist(), mixed.high.tolist()) == ([1, 0], [5, np.inf])


def test_rows_and_entries_say_the_same():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.round(5 * rng.standard_normal(50), k) for k in (0, 1, 3)])
    X[rng.random(X.shape) < 0.3] = np.nan
    parts = ColumnValues(3)
    parts.add_rows(X[:20])
    parts.add_rows(X[20:])
    other = ColumnValues(3)
    other.add_rows(X[35:])
    joined = ColumnValues(3)
    joined.add_rows(X[:35])
    joined.add(other)
    i, j = np.nonzero(~np.isnan(X))
    entries = ColumnValues(3)
    entries.add_entries(j, X[i, j])
    for name in ("count", "low", "high", "places", "at_low", "at_high"):
        assert getattr(parts, name).tolist() == getattr(entries, name).tolist()
        assert getattr(joined, name).tolist() == getattr(entries, name).tolist()


def test_single_precision_has_digits_too():
    assert places_of(np.array([0.1, 0.25], dtype=np.float32)) == 2
    assert places_of(np.array([1e-9])) == ANY


def table():
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((120, 2)) @ rng.standard_normal((2, 5))
    X = np.column_stack([np.rint(20 + 3 * Z[:, 0]), np.round(5 + Z[:, 1], 1), Z[:, 2:]])
    return X, np.where(rng.random(X.shape) < 0.2, np.nan, X)


def test_a_table_is_filled_with_values_of_its_columns(tmp_path):
    X, holes = table()
    model = sg.MatrixCompletion(2, center="columns", scale="columns").fit(holes)
    plain, filled = model.transform(holes), model.transform(holes, plausible=True)
    there = ~np.isnan(holes)
    assert np.array_equal(filled[there], X[there])
    assert np.array_equal(filled[:, 0], np.rint(plain[:, 0]))
    assert np.array_equal(filled[:, 1], np.round(plain[:, 1], 1))
    assert np.array_equal(filled[:, 2:], plain[:, 2:])
    assert not np.array_equal(filled[:, 0], plain[:, 0])
    # new rows, and a model that was saved
    model.save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz").transform(holes[:5], plausible=True)
    assert np.array_equal(again[:, 0], np.rint(model.transform(holes[:5])[:, 0]))


def test_frames_keep_their_types():
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    X, holes = table()
    frame = pd.DataFrame(holes, columns=list("abcde"))
    frame["a"] = frame["a"].astype("Int64")
    frame["yes"] = pd.array(X[:, 0] > 20, dtype="boolean")
    frame.loc[3, "yes"] = None
    model = sg.MatrixCompletion(2, center="columns", scale="columns").fit(frame)
    filled = model.transform(frame, plausible=True)
    assert [str(t) for t in filled.dtypes] == [str(t) for t in frame.dtypes]
    assert str(model.transform(frame)["a"].dtype) == "float64"


def test_other_estimators_have_it_too():
    rng = np.random.default_rng(0)
    T = np.rint(100 * np.einsum("ia,ja,ka->ijk", *(0.5 + rng.random((n, 1)) for n in (9, 8, 7))))
    holes = np.where(rng.random(T.shape) < 0.2, np.nan, T)
    model = sg.TensorCompletion(1, center="none", scale="none").fit(holes)
    filled = model.transform(holes, plausible=True)
    assert np.array_equal(filled, np.rint(filled))
    assert filled.min() >= 0
    assert np.array_equal(filled[~np.isnan(holes)], T[~np.isnan(holes)])
    X = np.rint(50 + 9 * rng.standard_normal((100, 2)) @ rng.standard_normal((2, 15)))
    before = X[4, 0]
    X[4, 0] += 300
    clean = sg.RobustPCA(2, random_state=0).fit(X).transform(X, plausible=True)
    assert np.array_equal(clean, np.rint(clean))
    assert abs(clean[4, 0] - before) < 5


def test_tensors_of_torch_stay_where_they_are():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    _, holes = table()
    X = torch.as_tensor(holes)
    model = sg.MatrixCompletion(2, center="columns", scale="columns").fit(X)
    filled = model.transform(X, plausible=True)
    assert filled.dtype == X.dtype
    assert bool(torch.all(filled[:, 0] == torch.round(filled[:, 0])))
