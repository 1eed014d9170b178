"""Fits whose estimates depend on a few entries say so."""

import warnings

import numpy as np
import pytest

import scaledgd as sg
from scaledgd.estimators.local_observations import LocalObservations
from scaledgd.estimators.steadiness import FEW, SAMPLE, Part, _places, unsteady


def entries(X):
    index = np.nonzero(~np.isnan(X))
    return LocalObservations(index, X[index], X.shape)


def holed(shape, share, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal(shape)
    X[rng.random(shape) < share] = np.nan
    return X


def test_the_variance_is_that_of_the_jackknife():
    # the mean of n numbers of variance v has the variance v / n
    rng, n, k = np.random.default_rng(0), 200, 20
    squares = []
    for _ in range(400):
        x = rng.standard_normal(n)
        change = x[k:].mean() - x.mean()
        part = Part.of((entries(x[k:, None]), entries(x[:k, None])), np.asarray)
        squares.append(part.ratio * change**2)
    assert np.mean(squares) == pytest.approx(1 / n, rel=0.2)


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e150, 1e-150])
def test_estimates_that_vary_like_the_data_are_unsteady(robust, scale):
    data = entries(scale * holed((60, 30), 0.4))
    accepted = data if robust else None

    def fit(change):
        return lambda index: scale * change * np.ones(len(index[0]))

    for change, expected in ((0.42, False), (0.52, True), (np.nan, True)):
        part = Part(fit(change), 9.0)  # variances of 1.6 and 2.4
        assert unsteady(fit(0.0), data, [part], accepted) is expected
    assert not unsteady(fit(0.0), data, [], accepted)
    half = [Part(fit(0.6), 9.0), Part(fit(0.0), 9.0)]
    assert not unsteady(fit(0.0), data, half, accepted)  # a mean of parts


def test_small_columns_count_as_much_as_large_ones():
    X = holed((60, 30), 0.4)
    X[:, :5] *= 1e-4
    data = entries(X)

    def off_by(change, small):
        return lambda index: np.where((index[1] < 5) == small, change, 0.0)

    zero = off_by(0.0, True)
    assert unsteady(zero, data, [Part(off_by(1e-3, True), 9.0)])
    assert not unsteady(zero, data, [Part(off_by(1e-3, False), 9.0)])


@pytest.mark.parametrize("shape", [(12, 10), (300, 200), (9, 8, 7), (3000, 2000)])
def test_missing_entries_are_compared(shape):
    rng, cells = np.random.default_rng(0), int(np.prod(shape))
    known = np.sort(rng.choice(cells, min(cells // 2, 5000), replace=False))
    data = LocalObservations(np.unravel_index(known, shape), np.ones(len(known)), shape)
    places = np.ravel_multi_index(_places(data, False), shape)
    assert not np.isin(places, known).any()
    assert min(cells - len(known), 0.85 * SAMPLE) <= len(places) <= SAMPLE
    everywhere = np.ravel_multi_index(_places(data, True), shape)
    assert len(everywhere) == min(cells, SAMPLE)
    full = LocalObservations(None, np.ones(shape), shape)
    assert len(_places(full, False)[0]) == min(cells, SAMPLE)
    assert cells - FEW > 0


@pytest.mark.parametrize(
    ("estimator", "shape"),
    [
        (sg.MatrixCompletion(random_state=0), (80, 60)),
        (sg.MatrixCompletion(2, random_state=0), (80, 60)),
        (sg.MatrixCompletion(2, ridge=0.1, random_state=0), (80, 60)),
        (sg.RobustPCA(random_state=0), (80, 60)),
        (sg.TensorCompletion(random_state=0), (20, 15, 12)),
        (sg.TensorCompletion(2, random_state=0), (20, 15, 12)),
        (sg.TensorRobustPCA(2, random_state=0), (20, 15, 12)),
    ],
    ids=str,
)
def test_fits_that_the_data_determine_are_not_doubted(estimator, shape):
    rng = np.random.default_rng(0)
    letters = "abc"[: len(shape)]
    spec = ",".join(f"{c}z" for c in letters) + "->" + letters
    truth = np.einsum(spec, *(rng.standard_normal((n, 2)) for n in shape))
    X = truth + 0.1 * truth.std() * rng.standard_normal(shape)
    X[rng.random(shape) < 0.3] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator.fit(X)
    assert np.sqrt(np.mean((estimator.reconstruct() - truth) ** 2)) < 0.1 * truth.std()


@pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")
def test_nonnegative_factors_are_no_larger_than_the_data():
    """Rows with few ratings were 100 times as large, without a warning."""
    rng = np.random.default_rng(0)  # ratings: many rows have few entries
    seen = rng.random((300, 200)) < 3 / np.arange(1, 301)[:, None] ** 0.8
    truth = 1 + rng.random((300, 2)) @ rng.random((2, 200))
    rated = np.where(seen, truth + 0.5 * rng.standard_normal(truth.shape), np.nan)
    model = sg.MatrixCompletion(4, non_negative=True, center="none", random_state=0).fit(
        np.maximum(rated, 0)
    )
    known = seen.any(axis=1)
    assert model.reconstruct()[known].max() < 1.5 * np.nanmax(rated)


@pytest.mark.parametrize("rank", [2, 4, "auto"])
def test_superfluous_nonnegative_components_are_not_kept(rank):
    """They reproduced single columns, and were arbitrary where these are missing."""
    rng = np.random.default_rng(0)
    truth = 5 * rng.random((40, 1)) @ rng.random((1, 30))
    X = np.where(rng.random(truth.shape) < 0.3, np.nan, truth)
    model = sg.MatrixCompletion(rank, non_negative=True, center="none", random_state=0).fit(X)
    assert model.rank_ == 1
    assert np.abs(model.reconstruct() - truth).max() < 1e-5


def test_a_nonnegative_rank_may_be_larger_than_the_rank():
    square = np.array([[1.0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1]])  # rank 3
    X = np.kron(square, np.ones((5, 5)))
    model = sg.MatrixCompletion(4, non_negative=True, center="none", random_state=0).fit(X)
    assert model.rank_ == 4
    assert np.abs(model.reconstruct() - X).max() < 1e-3


def test_robust_fits_in_time_are_not_doubted_beside_fits_without():
    rng = np.random.default_rng(0)
    X = np.cumsum(rng.standard_normal((120, 2)), axis=0) @ rng.standard_normal((2, 12))
    noise = 0.1 * X.std()
    Y = X + noise * rng.standard_normal(X.shape)
    Y += 10 * X.std() * (rng.random(X.shape) < 0.03)
    Y[rng.random(X.shape) < 0.2] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error", sg.DataWarning)
        model = sg.RobustPCA(smooth="rows", random_state=0).fit(Y)
    assert "neighbours are alike" in [step["why"] for step in model.rank_path_ if "why" in step]
    assert np.sqrt(np.mean((model.reconstruct() - X) ** 2)) < noise


def test_units_of_columns_are_those_of_accepted_entries():
    # most entries of a column hardly vary, but its peaks are no errors
    X = holed((100, 8), 0.2)
    X[:, 0] *= np.where(np.arange(100) % 4 == 0, 1.0, 1e-6)
    data = entries(X)
    change = Part(lambda index: 0.2 * np.ones(len(index[0])), 1.0)
    assert not unsteady(lambda index: np.zeros(len(index[0])), data, [change], data)


def test_entries_are_left_out_by_their_coordinates():
    X = holed((20, 10), 0.3)
    wrong = np.nonzero(np.nan_to_num(X) > 1)
    for data in (entries(X), LocalObservations(None, np.nan_to_num(X), X.shape)):
        rest = data.without(wrong)
        assert rest.size == data.size - len(wrong[0])
        assert float(rest.flat.max()) <= 1
        assert data.without(data.coordinates) is data


def test_time_that_is_up_leaves_a_fit_unproven(clock):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 50))
    X += 0.1 * rng.standard_normal(X.shape)
    X[rng.random(X.shape) < 0.4] = np.nan
    clock.tick = 1.0
    for limit, proven in ((1e9, True), (30, False)):
        clock.restart()
        model = sg.MatrixCompletion(random_state=0, max_time=limit, n_jobs=1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X)
        assert model.rank_ >= 2  # what was found is kept
        doubts = [str(w.message) for w in caught if issubclass(w.category, sg.DataWarning)]
        assert (not doubts) == proven == (not model.diagnostics_)
        assert proven or "could judge it: raise max_time" in doubts[0]
        assert model.converged_ == proven
