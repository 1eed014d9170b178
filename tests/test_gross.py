"""Which cells are called gross errors: by their odds, not beyond a multiple of the noise."""

import numpy as np
import pytest

import scaledgd as sg


def planted(X, rng, share=0.02, size=8.0):
    """A table with errors of several deviations of its columns, and where they are."""
    wrong = rng.random(X.shape) < share
    signs = rng.choice([-1.0, 1.0], X.shape)
    return X + np.where(wrong, size * X.std(axis=0) * signs, 0.0), wrong


def named(model, shape):
    """The cells that a model calls gross errors."""
    found = np.zeros(shape, dtype=bool)
    found[model.outliers_.coords] = True
    return found


def low_rank(rng, shape, rank):
    return rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))


def heavy(rng, shape):
    """Noise with the tails of Student's distribution with three degrees of freedom."""
    return low_rank(rng, shape, 2) + rng.standard_t(3, shape)


def flickering(rng, shape):
    """Noise whose level differs from cell to cell, eightfold at times."""
    level = np.exp(rng.standard_normal(shape))
    return low_rank(rng, shape, 2) + 0.2 * level * rng.standard_normal(shape)


def mostly_zero(rng, shape):
    """Columns a third of which are flags that are mostly zero."""
    X = low_rank(rng, shape, 2) + 0.3 * rng.standard_normal(shape)
    X[:, ::3] = rng.random(X[:, ::3].shape) < 0.25
    return X


def bursts(rng, shape):
    """Smooth series with stretches in which they vary a lot."""
    X = np.cumsum(rng.standard_normal((shape[0], 3)), axis=0) @ rng.standard_normal((3, shape[1]))
    level = np.exp(1.5 * np.sin(np.arange(shape[0]) / 15)[:, None])
    return X + 0.1 * X.std(axis=0) * level * rng.standard_normal(shape)


@pytest.mark.parametrize("kind", [heavy, flickering, mostly_zero, bursts])
@pytest.mark.parametrize("seed", [0, 1])
def test_tails_and_bursts_are_not_errors(kind, seed):
    rng = np.random.default_rng(seed)
    X = kind(rng, (400, 15))
    Y, wrong = planted(X, rng)
    good = ~wrong
    found = named(sg.RobustPCA().fit(Y), X.shape)
    if kind is mostly_zero:
        wrong[:, ::3] &= found[:, ::3]  # eight deviations of a flag are not far from one
    assert found[wrong].mean() >= 0.95
    assert found[good].mean() <= 0.02


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_many_errors_are_still_found(share):
    rng = np.random.default_rng(0)
    X = low_rank(rng, (80, 60), 4) + 0.1 * rng.standard_normal((80, 60))
    wrong = rng.random(X.shape) < share
    found = named(sg.RobustPCA(4).fit(np.where(wrong, 50.0, X)), X.shape)
    assert found[wrong].all()
    assert found[~wrong].mean() < 0.001


def test_columns_have_their_own_limits():
    rng = np.random.default_rng(2)
    X = 0.1 * rng.standard_normal((500, 12)) + low_rank(rng, (500, 12), 2)
    X[:, :6] += 0.5 * rng.standard_t(2.5, (500, 6))
    Y, _ = planted(X, rng, 0.03)
    model = sg.RobustPCA().fit(Y)
    off = abs(Y - model.reconstruct())
    found = named(model, X.shape)
    # the least error of a column with heavy tails is larger than what is wrong elsewhere
    least = [off[found[:, j], j].min() for j in range(12)]
    assert min(least[:6]) > max(least[6:])
    assert 0 < model.threshold_ < np.inf


@pytest.mark.parametrize("rank", ["auto", 3])
def test_small_errors_are_found_where_data_are_exact(rank):
    rng = np.random.default_rng(3)
    X = low_rank(rng, (120, 60), 3)
    wrong = rng.random(X.shape) < 0.05
    Y = X + wrong * rng.choice([1e-3, 1.0, 1e3], X.shape)
    model = sg.RobustPCA(rank).fit(Y)
    assert np.linalg.norm(model.reconstruct() - X) < 2e-10 * np.linalg.norm(X)
    assert np.array_equal(named(model, X.shape), wrong)


@pytest.mark.parametrize("kind", [heavy, bursts])
def test_limits_are_saved_and_used_for_new_rows(kind, tmp_path):
    rng = np.random.default_rng(4)
    X = kind(rng, (400, 12))
    Y, _ = planted(X, rng)
    model = sg.RobustPCA().fit(Y)
    model.save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz")
    assert again.threshold_ == model.threshold_
    assert np.array_equal(again.transform(Y[:50]), model.transform(Y[:50]))
    assert np.array_equal(again.outliers_.toarray(), model.outliers_.toarray())


@pytest.mark.parametrize("kind", [heavy, flickering])
def test_draws_and_order_do_not_change_estimates(kind):
    rng = np.random.default_rng(5)
    X = kind(rng, (150, 20))
    Y, _ = planted(X, rng)
    first = sg.RobustPCA(random_state=0, smooth="none").fit(Y).reconstruct()
    error = np.sqrt(np.mean((first - X) ** 2))
    other = sg.RobustPCA(random_state=1, smooth="none").fit(Y).reconstruct()
    a, b = rng.permutation(150), rng.permutation(20)
    turned = np.empty_like(X)
    model = sg.RobustPCA(random_state=0, smooth="none").fit(Y[a][:, b])
    turned[np.ix_(a, b)] = model.reconstruct()
    for change in (other - first, turned - first):
        assert np.sqrt(np.mean(change**2)) < 0.1 * error


def test_cleaning_leaves_alone_what_is_not_doubted(fine):
    rng = np.random.default_rng(6)
    X = bursts(rng, (400, 8))
    Y, wrong = planted(X, rng)
    header = ",".join(f"sensor{j}" for j in range(8))
    np.savetxt("readings.csv", Y, delimiter=",", header=header, comments="", fmt="%.10g")
    facts = fine("clean", "readings.csv", "-o", "clean.csv")
    before, after = (
        np.loadtxt(name, delimiter=",", skiprows=1) for name in ("readings.csv", "clean.csv")
    )
    changed = before != after
    assert changed.sum() == facts["outliers"]
    assert changed[wrong].mean() >= 0.95
    assert changed[~wrong].mean() <= 0.02


def test_cleaning_replaces_the_named_errors_of_unlike_series(fine):
    """Every series has its own noise, and its own limit."""
    rng = np.random.default_rng(7)
    X = np.cumsum(rng.standard_normal((300, 2)), axis=0) @ rng.standard_normal((2, 10))
    X += X.std(axis=0) * np.geomspace(0.01, 0.3, 10) * rng.standard_normal(X.shape)
    Y, _ = planted(X, rng)
    header = ",".join(f"sensor{j}" for j in range(10))
    np.savetxt("readings.csv", Y, delimiter=",", header=header, comments="", fmt="%.17g")
    facts = fine("clean", "readings.csv", "-o", "clean.csv")
    model = sg.RobustPCA(random_state=0).fit(Y)
    assert model.center_ == model.scale_ == "columns"
    assert facts["outliers"] == model.outliers_.nnz


def test_new_rows_of_series_are_cleaned():
    rng = np.random.default_rng(8)
    X = (np.cumsum(rng.standard_normal((200, 2)), axis=0) @ rng.standard_normal((2, 20))).T
    X += 0.1 * X.std() * rng.standard_normal(X.shape)
    Y, wrong = planted(X, rng)
    model = sg.RobustPCA(smooth="columns").fit(Y)
    clean = model.transform(Y[:5])
    assert np.abs((clean - X[:5])[wrong[:5]]).max() < X.std()
