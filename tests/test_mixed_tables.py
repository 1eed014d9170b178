"""Tables whose columns have little in common, and rows with few entries or none."""

import numpy as np
import pytest

import scaledgd as sg

pytestmark = pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")


def hidden_error(model, X, hidden):
    """The error at hidden cells, in units of the columns."""
    filled = model.fit_transform(np.where(hidden, np.nan, X))
    return float(np.sqrt(np.mean(((filled - X) / X.std(0))[hidden] ** 2)))


def mixed(rng, n=150, p=24):
    """Scores, counts and flags of one latent structure, and two columns of large amounts."""
    Z = rng.standard_normal((n, 3)) @ rng.standard_normal((3, p))
    X = Z + 0.5 * rng.standard_normal((n, p))
    X[:, 2:8] = Z[:, 2:8] > 0
    X[:, 8:14] = np.rint(40 + 12 * X[:, 8:14])
    X[:, :2] = np.exp(2 * X[:, :2] + 9)
    return X


@pytest.mark.parametrize("seed", range(3))
def test_a_few_columns_of_large_amounts_do_not_hide_the_others(seed):
    rng = np.random.default_rng(seed)
    X = mixed(rng)
    hidden = rng.random(X.shape) < 0.1
    hidden[:, :2] = False
    assert hidden_error(sg.MatrixCompletion(random_state=0), X, hidden) < 0.8


@pytest.mark.parametrize("seed", [15, 33, 41])
def test_columns_far_from_zero_are_not_taken_for_explained(seed):
    """A fit without offsets leaves little of their squares, but all of their variance."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((55, 2)) @ rng.standard_normal((2, 19))
    X += 0.1 * rng.standard_normal(X.shape)
    X = X * 10 ** rng.uniform(-4, 4, 19) + 10 ** rng.uniform(-3, 5, 19)
    hidden = rng.random(X.shape) < 0.1
    assert hidden_error(sg.MatrixCompletion(random_state=0), X, hidden) < 0.4


@pytest.mark.parametrize("center", ["auto", "none"])
def test_rows_with_too_few_entries_are_like_a_typical_row(center):
    rng = np.random.default_rng(0)
    X = 100 + rng.standard_normal((80, 2)) @ rng.standard_normal((2, 30))
    given = np.where(rng.random(X.shape) < 0.3, np.nan, X)
    given[0] = np.nan  # nothing, and a single entry for rank 3
    given[1, 1:] = np.nan
    given[1, 0] = X[1, 0]
    model = sg.MatrixCompletion(rank=3, center=center, random_state=0).fit(given)
    typical = np.delete(X, [0, 1], axis=0).mean(axis=0)
    filled = model.transform(given)
    np.testing.assert_allclose(filled[2:], X[2:], atol=1e-6)
    assert np.abs(filled[0] - typical).max() < 1
    assert np.abs(filled[1] - typical).max() < 1 + np.abs(X[1] - typical).max()
    # new rows, too
    np.testing.assert_allclose(model.transform(given[:2]), filled[:2], atol=1e-9)


def test_means_that_are_uncertain_say_little_about_rows_without_entries():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 30))  # the mean is zero
    X[0] = np.nan
    model = sg.MatrixCompletion(rank=2, center="none", random_state=0).fit(X)
    mean = np.delete(X, 0, axis=0).mean(axis=0)
    guess = model.transform(X)[0]
    assert np.linalg.norm(guess) < 0.7 * np.linalg.norm(mean)
    np.testing.assert_allclose(model.transform(X)[1:], X[1:], atol=1e-8)


def test_times_without_entries_are_filled_from_their_neighbours_in_exact_tables():
    """The low-rank part reproduces all entries, and says nothing about such times."""
    i, j = np.mgrid[:160, :24]
    X = 100 + 30 * np.sin(0.12 * i) * np.cos(0.3 * j) + 20 * np.cos(0.05 * i + 0.1 * j)
    rng = np.random.default_rng(0)
    hidden = rng.random(X.shape) < 0.2
    hidden[rng.choice(160, 20, replace=False)] = True
    model = sg.MatrixCompletion(random_state=0)
    assert hidden_error(model, X, hidden) < 0.2


@pytest.mark.parametrize("size", [30, 1e4, 1e8])
def test_the_size_of_gross_errors_does_not_matter(size):
    """The first sweep fitted errors of 1e8 alone, and nothing was left of the rest."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 2)) @ rng.standard_normal((2, 16)) + 1000 * rng.random(16)
    wrong = size * rng.uniform(0.2, 1, X.shape) * (rng.random(X.shape) < 0.03)
    Y = X + 0.1 * rng.standard_normal(X.shape) + wrong
    model = sg.RobustPCA(random_state=0).fit(Y)
    assert model.rank_ == 2
    assert np.sqrt(np.mean((model.reconstruct() - X) ** 2)) < 0.1


def test_units_that_were_mixed_up_are_found():
    """A few readings in other units, among columns of different units."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((73, 2)) @ rng.standard_normal((2, 16))
    X += 0.1 * rng.standard_normal(X.shape)
    unit, level = 10 ** rng.uniform(-4, 4, 16), 10 ** rng.uniform(-3, 5, 16)
    X = X * unit + level
    wrong = rng.random(X.shape) < 0.03
    model = sg.RobustPCA(random_state=0).fit(np.where(wrong, 1000 * X, X))
    off = (model.reconstruct() - X) / unit
    assert np.sqrt(np.mean(off**2)) < 0.4 * np.sqrt(np.mean((X - X.mean(0)) ** 2 / unit**2))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_medians_without_residual_give_all_entries_their_weight(dtype):
    X = np.zeros((15, 60), dtype=dtype)
    X[:, 30:] = 1
    model = sg.RobustPCA(center="columns", rank=1, random_state=0).fit(X)
    np.testing.assert_array_equal(model.reconstruct(), X)
