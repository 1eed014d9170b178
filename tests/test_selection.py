"""Scores of what was not seen; splitters; rank curves."""

import numpy as np
import pytest
import scipy.sparse
from fitted import corrupted, table, tensor
from sklearn.metrics import mean_absolute_error
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate

import scaledgd as sg

pytestmark = pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")


def hidden(seed=0):
    """A table, and the same with holes."""
    X = table((80, 50), p=1.0, seed=seed)
    return X, np.where(np.random.default_rng(seed + 1).random(X.shape) < 0.5, X, np.nan)


# ---- scores


def test_entries_of_the_fit_are_refused_unless_forced():
    X, Y = hidden()
    model = sg.MatrixCompletion(3).fit(Y)
    shuffled = Y[np.random.default_rng(0).permutation(len(Y))]
    for seen in (
        Y,
        Y.copy(),
        scipy.sparse.csr_array(np.nan_to_num(Y)),
        sg.EntryTable.of(Y),
        shuffled,
    ):
        if scipy.sparse.issparse(seen):
            # stored zeros: there are none, so the entries are those of Y
            model.fit(seen)
        with pytest.raises(ValueError, match="force=True"):
            model.score(seen)
    assert model.fit(Y).score(Y, force=True) > model.score(X)


def test_only_held_out_entries_count():
    X, Y = hidden()
    model = sg.MatrixCompletion(3).fit(Y)
    unseen = np.isnan(Y)
    off = (model.reconstruct() - X)[unseen]
    expected = 1 - np.sum(off**2) / np.sum((X[unseen] - X[unseen].mean()) ** 2)
    assert model.score(X) == pytest.approx(expected)
    assert model.score(np.where(unseen, X, np.nan)) == pytest.approx(expected)
    assert model.score(X, observed=unseen) == pytest.approx(expected)
    assert model.score(sg.EntryTable.of(X)) == pytest.approx(expected)


def test_of_new_rows_a_part_is_hidden_and_predicted():
    X, _ = hidden()
    model = sg.MatrixCompletion(3).fit(X[:60])
    truth, _ = model.held_out(X[60:])
    assert len(truth) == 20 * 10  # a fifth of each row
    assert set(truth) <= set(X[60:].ravel())
    assert 0.97 < model.score(X[60:]) < 1
    # what is hidden is not used: noise cannot be predicted
    noise = np.random.default_rng(0).standard_normal((400, 50))
    assert model.score(noise) < 0.1
    assert model.score(X[60:]) == model.score(X[60:])


def test_as_many_new_rows_as_old_ones_are_new():
    X, _ = hidden()
    model = sg.MatrixCompletion(3).fit(X[:40])
    assert len(model.held_out(X[40:])[0]) == 40 * 10


def test_the_same_table_measured_again_is_the_same_table():
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((400, 2)) @ rng.standard_normal((2, 80))
    Y = truth + 0.3 * rng.standard_normal(truth.shape)
    seen, test = rng.random(truth.shape) < 0.3, rng.random(truth.shape) < 0.02
    model = sg.MatrixCompletion(2).fit(np.where(seen, Y, np.nan))
    again = np.where(test, truth, np.nan)
    with pytest.warns(sg.DataWarning, match='set rows="same" or rows="new"'):
        model.score(again)
    assert len(model.held_out(again, rows="same")[0]) == test.sum()
    assert model.score(again, rows="same") == model.score(sg.EntryTable.of(again)) > 0.98
    assert len(model.held_out(again, rows="new")[0]) < test.sum()
    with pytest.raises(ValueError, match="rows must be"):
        model.held_out(again, rows="old")


def test_rows_that_are_alike_anyway_are_not_taken_for_those_of_the_fit():
    rng = np.random.default_rng(0)
    binary = (rng.random((300, 6)) < 0.3) * 1.0
    scores = cross_val_score(sg.MatrixCompletion(1), binary, cv=5, error_score="raise")
    assert np.all(np.isfinite(scores))
    counts = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 30))
    counts = np.maximum(np.round(counts - 1), 0)
    for cv in (KFold(2), KFold(4)):
        scores = cross_val_score(sg.MatrixCompletion(2), counts, cv=cv, error_score="raise")
        assert np.all(scores > 0.1)


def test_new_rows_that_are_as_many_are_new_however_much_they_are_alike():
    rng = np.random.default_rng(0)
    t = np.arange(192)[:, None]
    X = 1.5 * (rng.random(12) + 0.5) * np.sin(2 * np.pi * t / 24)
    X = X + 0.5 * rng.standard_normal((192, 2)) @ rng.standard_normal((2, 12))
    X = X + 0.1 * rng.standard_normal(X.shape)
    model = sg.MatrixCompletion(3).fit(X[:96])
    with pytest.warns(sg.DataWarning, match="taken as new rows"):
        assert abs(model.score(X[96:]) - model.score(X[96:191])) < 0.02
    rare = [(rng.random((200, 50)) < 0.004).astype(float) for _ in range(2)]
    truth, _ = sg.MatrixCompletion(1).fit(rare[0]).held_out(rare[1])
    assert abs(truth.mean() - 0.004) < 0.004


@pytest.mark.parametrize("change", [lambda x: x.astype(np.float32), lambda x: x * (1 + 1e-9)])
def test_other_rounding_is_no_disguise(change):
    _, Y = hidden()
    model = sg.MatrixCompletion(3).fit(Y)
    with pytest.raises(ValueError, match="force=True"):
        model.score(change(Y))


def test_an_empty_table_is_not_scored():
    _, Y = hidden()
    model = sg.MatrixCompletion(3).fit(Y)
    with pytest.raises(ValueError, match="nothing to score"):
        model.score(np.full_like(Y, np.nan))
    one = np.full_like(Y, np.nan)
    one[tuple(np.argwhere(np.isnan(Y))[0])] = 1.0
    assert np.isnan(model.score(one))


def test_where_scikit_learn_hands_over_a_y_it_is_warned():
    _, Y = hidden()
    model = sg.MatrixCompletion(3).fit(Y)
    with pytest.warns(sg.DataWarning, match="remembers"):
        assert model.score(Y, np.zeros(len(Y))) == model.score(Y, force=True)


def test_rows_with_one_entry_cannot_be_scored():
    X, _ = hidden()
    model = sg.MatrixCompletion(3).fit(X[:60])
    single = np.full((3, 50), np.nan)
    single[:, 4] = 1.0
    with pytest.raises(ValueError, match="two entries"):
        model.score(single)


def test_entries_of_another_table_are_refused():
    X, Y = hidden()
    model = sg.MatrixCompletion(3).fit(Y)
    with pytest.raises(ValueError, match="shape"):
        model.score(sg.EntryTable.of(X[:10]))


def test_outliers_do_not_decide_a_robust_score():
    X, _ = hidden()
    model = sg.RobustPCA(3).fit(corrupted(X[:60]))
    one = X[60:].copy()
    one[0, 0] = 1e6
    assert model.score(X[60:]) > 0.8
    truth, estimate = model.held_out(X[60:])
    share = np.abs(truth - estimate).sum() / np.abs(truth - np.sort(truth)[len(truth) // 2]).sum()
    assert model.score(X[60:]) == pytest.approx(1 - share)


# ---- splitters

SPLITTERS = [
    sg.EntrySplit(4, random_state=0),
    sg.BlockSplit(4, length=7, random_state=0),
    sg.BlockSplit(4, length=7, axis=1, random_state=0),
    sg.RowSplit(4, random_state=0),
]


@pytest.mark.parametrize("splitter", SPLITTERS, ids=repr)
def test_every_entry_is_predicted_once(splitter):
    entries = sg.EntryTable.of(hidden()[1])
    folds = list(splitter.split(entries))
    assert len(folds) == splitter.get_n_splits() == 4
    every = np.arange(len(entries))
    assert np.array_equal(np.sort(np.concatenate([test for _, test in folds])), every)
    for train, test in folds:
        assert np.array_equal(np.sort(np.concatenate([train, test])), every)
        assert abs(len(test) / len(entries) - 0.25) < 0.05


def test_runs_are_not_divided():
    entries = sg.EntryTable.of(hidden()[1])
    rows, columns = entries.observations.coordinates
    for train, test in sg.BlockSplit(3, length=8, random_state=0).split(entries):
        runs = [set(zip(rows[part] // 8, columns[part], strict=True)) for part in (train, test)]
        assert not runs[0] & runs[1]


def test_the_future_is_predicted_from_the_past():
    entries = sg.EntryTable.of(hidden()[1])
    rows = entries.observations.coordinates[0]
    seen = []
    for train, test in sg.TimeSplit(4, gap=3).split(entries):
        assert rows[train].max() < rows[test].min() - 3
        seen.append(set(rows[test]))
    assert set().union(*seen) == set(range(16, 80))


@pytest.mark.parametrize(
    "X", [hidden()[1], scipy.sparse.csr_array(np.nan_to_num(hidden()[1]))], ids=["array", "sparse"]
)
@pytest.mark.parametrize("cv", [sg.RowSplit(3, random_state=0), sg.TimeSplit(3), 3])
def test_rows_are_cross_validated(X, cv):
    scores = cross_val_score(sg.MatrixCompletion(3), X, cv=cv, error_score="raise")
    assert np.all(scores > 0.95)
    assert np.all(scores < 1)


@pytest.mark.parametrize("cv", [*SPLITTERS, sg.TimeSplit(3), KFold(3, shuffle=True)], ids=repr)
def test_entries_are_cross_validated(cv):
    entries = sg.EntryTable.of(hidden()[1])
    found = cross_validate(sg.MatrixCompletion(3), entries, cv=cv, error_score="raise")
    assert np.all(found["test_score"] > 0.95)


def test_the_grid_is_searched_by_held_out_entries():
    X, Y = hidden()
    search = GridSearchCV(
        sg.MatrixCompletion(),
        {"rank": [1, 2, 3]},
        cv=sg.EntrySplit(3, random_state=0),
        error_score="raise",
    )
    search.fit(sg.EntryTable.of(Y))
    assert search.best_params_ == {"rank": 3}
    assert np.all(np.diff(search.cv_results_["mean_test_score"]) > 0.05)
    filled = search.best_estimator_.transform(Y)
    assert np.linalg.norm(filled - X) < 0.1 * np.linalg.norm(X)


def test_tensors_are_cross_validated():
    X = tensor()
    for table_, cv in (
        (sg.EntryTable.of(X), sg.EntrySplit(3, random_state=0)),
        (X, sg.RowSplit(3)),
    ):
        assert np.all(
            cross_val_score(sg.TensorCompletion(2), table_, cv=cv, error_score="raise") > 0.95
        )


def test_another_measure_can_be_taken():
    entries = sg.EntryTable.of(hidden()[1])
    measure = sg.scorer(mean_absolute_error, greater_is_better=False)
    cv = sg.EntrySplit(3, random_state=0)
    scores = cross_val_score(sg.MatrixCompletion(3), entries, cv=cv, scoring=measure, n_jobs=2)
    assert np.all((scores < -0.05) & (scores > -0.2))  # the noise is 0.1


def test_entries_can_be_given_as_coordinates():
    _, Y = hidden()
    i, j = np.nonzero(np.isfinite(Y))
    entries = sg.EntryTable((i, j), Y[i, j], Y.shape)
    model = sg.MatrixCompletion(3).fit(entries)
    other = sg.MatrixCompletion(3).fit_entries((i, j), Y[i, j], Y.shape)
    assert np.array_equal(model.factors_.L, other.factors_.L)
    assert len(entries[:10]) == 10
    assert len(entries[np.arange(len(entries)) % 2 == 0]) == (len(entries) + 1) // 2
    assert entries[[5, 7]].table_shape == Y.shape


def test_weights_of_entries_are_heard():
    X, Y = hidden()
    i, j = np.nonzero(np.isfinite(Y))
    wrong = np.random.default_rng(0).random(len(i)) < 0.2
    values = np.where(wrong, 50.0, Y[i, j])
    entries = sg.EntryTable((i, j), values, Y.shape)
    weight = np.where(wrong, 1e-9, 1.0)
    model = sg.MatrixCompletion(3).fit(entries, entry_weight=weight)
    assert np.std(model.reconstruct() - X) < 0.2
    with pytest.raises(ValueError, match="leave observed out"):
        model.fit(entries, observed=np.ones(Y.shape, dtype=bool))
    with pytest.raises(TypeError, match="for fit, score and splitters"):
        model.transform(entries)


def test_bad_splits_are_refused():
    _, Y = hidden()
    with pytest.raises(TypeError, match=r"EntryTable\.of"):
        list(sg.EntrySplit(3).split(Y))
    with pytest.raises(ValueError, match="n_splits"):
        list(sg.EntrySplit(10).split(sg.EntryTable.of(np.ones((2, 2)))))
    with pytest.raises(ValueError, match="axis=2"):
        list(sg.BlockSplit(3, axis=2).split(sg.EntryTable.of(Y)))
    with pytest.raises(ValueError, match="n_splits"):
        list(sg.TimeSplit(80).split(Y))
    with pytest.raises(ValueError, match="gap"):
        list(sg.TimeSplit(3, gap=30).split(Y))


# ---- rank curves


def test_the_rank_curve_falls_to_the_rank():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    _, Y = hidden()
    ax = Figure().subplots()
    curve = sg.rank_curve(sg.MatrixCompletion(), Y, ranks=[4, 3, 1, 2], ax=ax)
    assert curve.chosen == 3  # the smallest that will do, in any order
    error = dict(zip(curve.ranks, curve.errors, strict=True))
    assert error[1] > error[2] > 3 * error[3]
    assert 0.1 < error[3] < 0.14  # the noise, and what it does to the fit
    assert curve.ax_ is ax
    assert np.array_equal(curve.line_.get_ydata(), curve.errors)


def test_the_rank_curve_of_a_tensor():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    curve = sg.rank_curve(
        sg.TensorCompletion(), tensor(), ranks=[1, (2, 2, 2)], ax=Figure().subplots()
    )
    assert curve.chosen == (2, 2, 2)
    assert curve.ranks == [(1, 1, 1), (2, 2, 2)]


def test_columns_that_most_rows_lack_together_keep_entries_to_fit():
    """Else all entries of the block are held out, and every candidate predicts them as badly."""
    rng = np.random.default_rng(0)
    X = 1 + rng.standard_normal((300, 4)) @ rng.standard_normal((4, 60))
    X += 0.1 * rng.standard_normal(X.shape)
    holes = np.zeros(X.shape, dtype=bool)
    holes[np.arange(300) % 6 > 0, -20:] = True
    model = sg.MatrixCompletion(random_state=0).fit(np.where(holes, np.nan, X))
    errors = (model.reconstruct() - X)[holes]
    assert np.sqrt(np.mean(errors**2)) < 0.15  # the noise is 0.1, and column means are 2 off
