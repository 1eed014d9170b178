"""Standard errors, intervals and draws: do they say what is true?"""

import numpy as np
import pytest
from benchmarks.estimators import matrix, spectrum

import scaledgd as sg

pytestmark = pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")


def instance(seed=0, shape=(300, 200), rank=4, p=0.3, noise=0.1, kappa=10):
    rng = np.random.default_rng(seed)
    X = matrix(shape, spectrum(kappa, rank), rng)
    Y = X + noise * rng.standard_normal(shape)
    return X, np.where(rng.random(shape) < p, Y, np.nan), rng


def everywhere(X):
    return tuple(i.ravel() for i in np.indices(X.shape))


def z_scores(model, X):
    values, std = model.predict_entries(everywhere(X), return_std=True)
    return (values - X.ravel()) / std


def covered(interval, values):
    return np.mean((interval[0] <= values) & (values <= interval[1]))


# ---- the model's own


@pytest.mark.parametrize("noise", [0.1, 0.01])
def test_standard_errors_are_as_large_as_errors(noise):
    X, Y, _ = instance(noise=noise)
    z = z_scores(sg.MatrixCompletion(4).fit(Y), X)
    assert 0.95 < np.std(z) < 1.05
    assert 0.93 < np.mean(np.abs(z) < 1.96) < 0.97


def test_where_entries_are_missing_at_random_they_are_those_of_the_theory():
    X, Y, _ = instance(noise=0.01, p=0.5)
    model = sg.MatrixCompletion(4).fit(Y)
    U, V = (np.linalg.svd(X)[0][:, :4], np.linalg.svd(X)[2][:4].T)
    rows, columns = everywhere(X)
    p = np.isfinite(Y).mean()
    theory = 0.01**2 / p * ((U**2).sum(1)[rows] + (V**2).sum(1)[columns])
    _, std = model.predict_entries((rows, columns), return_std=True)
    ratio = std**2 / theory
    assert 0.97 < np.median(ratio) < 1.05
    assert np.std(np.log(ratio)) < 0.15  # rows differ in how many entries they have


def test_rows_that_were_seen_less_are_less_sure():
    X, Y, rng = instance()
    Y[:50][rng.random((50, 200)) < 0.7] = np.nan
    model = sg.MatrixCompletion(4).fit(Y)
    _, std = model.predict_entries(everywhere(X), return_std=True)
    std = std.reshape(X.shape)
    assert np.median(std[:50]) > 1.4 * np.median(std[50:])
    z = z_scores(model, X).reshape(X.shape)
    assert 0.9 < np.std(z[:50]) < 1.15


def test_offsets_and_scales_are_counted_in():
    X, Y, rng = instance(p=0.5, noise=0)
    size = np.exp(rng.standard_normal((300, 1)))
    X = (X + rng.standard_normal((300, 1))) * size
    Y = np.where(np.isnan(Y), np.nan, X + 0.1 * size * rng.standard_normal(X.shape))
    model = sg.MatrixCompletion(4, center="rows", scale="rows").fit(Y)
    z = z_scores(model, X)
    assert 0.93 < np.mean(np.abs(z) < 1.96) < 0.97


def test_weights_are_precisions():
    X, _, rng = instance(noise=0)
    W = np.exp(rng.standard_normal(X.shape))
    Y = X + 0.1 * rng.standard_normal(X.shape) / np.sqrt(W)
    Y[rng.random(X.shape) > 0.4] = np.nan
    z = z_scores(sg.MatrixCompletion(4).fit(Y, entry_weight=W), X)
    assert 0.95 < np.std(z) < 1.06


def test_the_bias_of_a_given_ridge_is_taken_off_the_interval():
    X, Y, _ = instance(shape=(400, 300))
    model = sg.MatrixCompletion(4, ridge=0.1).fit(Y)
    index = everywhere(X)
    assert 0.93 < covered(model.interval(index, 0.95), X.ravel()) < 0.98
    # an interval as wide around the biased estimate would not do
    lower, upper = model.interval(index, 0.95)
    values, std = model.predict_entries(index, return_std=True)
    assert np.mean(np.abs(values - X.ravel()) < (upper - lower) / 2) < 0.92
    # so the standard error of the estimate is larger
    assert np.mean(np.abs(values - X.ravel()) < 1.96 * std) > 0.92


def test_outliers_say_nothing():
    X, Y, rng = instance(p=1.0)
    Y[rng.random(X.shape) < 0.1] += 5
    z = z_scores(sg.RobustPCA(4).fit(Y), X)
    assert 0.95 < np.std(z) < 1.08


@pytest.mark.parametrize("center", ["none", "both"])
def test_tensors_have_standard_errors_too(center):
    rng = np.random.default_rng(0)
    X = sg.datasets.low_rank_tensor((40, 30, 20), 2, kappa=5, rng=0).full()
    X = X / X.std() + (np.arange(30.0)[:, None] / 10 if center == "both" else 0)
    Y = np.where(rng.random(X.shape) < 0.3, X + 0.1 * rng.standard_normal(X.shape), np.nan)
    rank = 2 if center == "none" else 3
    z = z_scores(sg.TensorCompletion(rank, center=center).fit(Y), X)
    assert 0.85 < np.std(z) < 1.1


def test_float32_data_have_float32_errors():
    _, Y, _ = instance(shape=(60, 40))
    model = sg.MatrixCompletion(4).fit(Y.astype(np.float32))
    index = ([0, 1], [2, 3])
    found = [*model.predict_entries(index, return_std=True), *model.interval(index, 0.9)]
    assert all(x.dtype == np.float32 and x.shape == (2,) for x in found)


def test_few_entries_cost_no_more_than_they_need(monkeypatch):
    X, Y, _ = instance()
    model = sg.MatrixCompletion(4).fit(Y)
    whole = model.predict_entries(everywhere(X), return_std=True)[1].reshape(X.shape)
    i, j = np.asarray([3, 3, 250]), np.asarray([7, 0, 199])
    np.testing.assert_allclose(model.predict_entries((i, j), return_std=True)[1], whole[i, j])


def test_torch_agrees_with_numpy():
    torch = pytest.importorskip("torch")
    _, Y, _ = instance(shape=(60, 40))
    model = sg.MatrixCompletion(4, calibrate=0.2, random_state=0)
    index = (np.arange(40), np.arange(40))
    here = model.fit(Y).interval(index, 0.8, kind="conformal")
    tensors = tuple(torch.from_numpy(i) for i in index)
    there = model.fit(torch.from_numpy(Y)).interval(tensors, 0.8, kind="conformal")
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-6)


def test_where_no_factor_was_found_that_is_not_certain():
    shares, ranks = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = 0.2 * np.outer(rng.standard_normal(60), rng.standard_normal(40))
        model = sg.MatrixCompletion(1).fit(X + rng.standard_normal(X.shape))
        ranks.append(model.rank_)
        shares.append(covered(model.interval(everywhere(X), 0.95), X.ravel()))
    assert sum(ranks) <= 2  # chance may look like a factor
    assert 0.85 < np.mean(shares) < 0.98


def test_a_fraction_of_outliers_that_is_too_large_does_not_shrink_the_noise():
    _, Y, _ = instance(p=1.0)
    for fraction in (0.05, 0.2):
        model = sg.MatrixCompletion(4, outliers=fraction).fit(Y)
        assert 0.8 < model.noise_variance_ / 0.01 < 1.2
    tensor = sg.datasets.low_rank_tensor((30, 25, 20), 2, kappa=3, rng=0).full()
    noisy = tensor / tensor.std() + 0.1 * np.random.default_rng(0).standard_normal(tensor.shape)
    model = sg.TensorCompletion(2, outliers=0.1).fit(noisy)
    assert 0.8 < model.noise_variance_ / 0.01 < 1.2


@pytest.mark.parametrize("center", ["none", "rows"])
def test_a_ridge_that_was_given_is_not_the_noise(center):
    rng = np.random.default_rng(0)
    X = sg.datasets.low_rank_tensor((30, 25, 20), 2, kappa=3, rng=0).full()
    Y = X / X.std() + 0.3 * rng.standard_normal(X.shape)
    Y[rng.random(X.shape) < 0.5] = np.nan
    plain = sg.TensorCompletion(2, center=center).fit(Y)
    little = sg.TensorCompletion(2, ridge=0.01, center=center).fit(Y)
    much = sg.TensorCompletion(2, ridge=2.0, center=center).fit(Y)
    assert 0.9 < little.noise_variance_ / 0.09 < 1.1
    size = [np.linalg.norm(m.factors_.full()) for m in (plain, little, much)]
    assert size[2] < 0.98 * size[0]
    assert abs(size[1] / size[0] - 1) < 0.01


@pytest.mark.parametrize("scale", [1e160, 1e-160, 0.0])
def test_data_of_any_size_have_errors(scale):
    X, Y, _ = instance(shape=(30, 20), p=0.8)
    model = sg.MatrixCompletion(2, calibrate=0.2, random_state=0).fit(Y * scale)
    index = everywhere(X)
    found = [model.predict_entries(index, return_std=True)[1], *model.interval(index, 0.9)]
    found += [*model.interval(index, 0.8, kind="conformal")]
    assert all(np.all(np.isfinite(x)) for x in found)
    assert np.all(found[-2] <= model.predict_entries(index))
    assert np.all(found[-1] >= model.predict_entries(index))


def test_bounds_are_within_what_values_can_be():
    X, Y, _ = instance(shape=(60, 40))
    model = sg.MatrixCompletion(4, clip=(-1, 1), calibrate=0.2, random_state=0).fit(Y)
    estimate = model.predict_entries(everywhere(X))
    for kind in ("model", "prediction", "conformal"):
        lower, upper = model.interval(everywhere(X), 0.95, kind=kind)
        assert lower.min() == -1
        assert upper.max() == 1
        assert np.all((lower <= estimate) & (estimate <= upper))


@pytest.mark.parametrize("order", [2, 3])
def test_prediction_intervals_are_for_observations_and_model_intervals_are_not(order):
    """Nine tenths of new observations lie inside; inside the other kind, far fewer."""
    inside = {"model": [], "prediction": []}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        shape = (80, 60) if order == 2 else (20, 18, 15)
        X = sg.datasets.low_rank_tensor(shape, 2, kappa=3, rng=seed).full()
        X = X / X.std()
        Y = X + 0.5 * rng.standard_normal(shape)
        hidden = rng.random(shape) < 0.3
        made = sg.MatrixCompletion if order == 2 else sg.TensorCompletion
        model = made(2, random_state=0).fit(np.where(hidden, np.nan, Y))
        for kind, shares in inside.items():
            shares.append(covered(model.interval(np.nonzero(hidden), 0.9, kind=kind), Y[hidden]))
    assert 0.88 < np.mean(inside["prediction"]) < 0.92
    assert np.mean(inside["model"]) < 0.6
    with pytest.raises(ValueError, match="kind must be"):
        model.interval(np.nonzero(hidden), 0.9, kind="predictive")


def test_torch_models_take_plain_coordinates():
    torch = pytest.importorskip("torch")
    _, Y, _ = instance(shape=(60, 40))
    model = sg.MatrixCompletion(4).fit(torch.from_numpy(Y))
    assert model.predict_entries((np.asarray([1]), [2])).shape == (1,)
    assert model.predict_entries((1, 2)).shape == (1,)


# ---- without a model


@pytest.mark.parametrize("kind", ["normal", "student"])
def test_conformal_intervals_hold_new_observations(kind):
    shares = []
    for seed in range(3):
        X, _, rng = instance(seed, noise=0)

        def noise(shape, rng=rng):
            return 0.1 * (
                rng.standard_normal(shape) if kind == "normal" else rng.standard_t(2.2, shape)
            )

        seen = rng.random(X.shape) < 0.4
        model = sg.MatrixCompletion(4, calibrate=0.2, random_state=seed)
        model.fit(np.where(seen, X + noise(X.shape), np.nan))
        index = np.nonzero(~seen)
        new = X[index] + noise(len(index[0]))
        shares.append(covered(model.interval(index, 0.9, kind="conformal"), new))
    assert 0.88 < np.mean(shares) < 0.92


def test_conformal_intervals_are_centred_on_the_estimate():
    X, Y, _ = instance(shape=(60, 40))
    model = sg.MatrixCompletion(4, calibrate=0.2, random_state=0).fit(Y)
    index = everywhere(X)
    lower, upper = model.interval(index, 0.9, kind="conformal")
    np.testing.assert_allclose((lower + upper) / 2, model.predict_entries(index), atol=1e-12)
    wider = model.interval(index, 0.95, kind="conformal")
    assert np.all(wider[1] - wider[0] > upper - lower)


def test_what_was_held_out_was_not_fitted():
    _, Y, _ = instance(shape=(60, 40))
    model = sg.MatrixCompletion(4, calibrate=0.25, random_state=0).fit(Y)
    seen = np.isfinite(Y).sum()
    assert model._model.observations.size + model._model.held.size == seen
    assert abs(model._model.held.size / seen - 0.25) < 0.05
    pairs = set(zip(*(i.tolist() for i in model._model.observations.coordinates), strict=True))
    assert not pairs & set(zip(*(i.tolist() for i in model._model.held.coordinates), strict=True))


def test_without_calibration_the_error_says_so():
    _, Y, _ = instance(shape=(60, 40))
    model = sg.MatrixCompletion(4).fit(Y)
    with pytest.raises(ValueError, match=r"calibrate=0\.1"):
        model.interval(([0], [0]), 0.9, kind="conformal")


def test_a_level_that_too_few_entries_speak_for_is_refused():
    _, Y, _ = instance(shape=(20, 15), p=0.9)
    model = sg.MatrixCompletion(2, calibrate=0.1, random_state=0).fit(Y)
    with pytest.raises(ValueError, match="entries to calibrate with"):
        model.interval(([0], [0]), 0.999, kind="conformal")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((([0], [0]), 1.0), "level"),
        ((([0], [0]), 0.9, "frequentist"), "kind must be"),
        ((([0], [99]), 0.9), "index"),
    ],
)
def test_bad_questions_are_refused(arguments, message):
    _, Y, _ = instance(shape=(20, 15), p=0.9)
    model = sg.MatrixCompletion(2).fit(Y)
    with pytest.raises((ValueError, IndexError), match=message):
        model.interval(*arguments)


def test_rows_added_later_are_calibrated_too():
    _, Y, _ = instance(shape=(80, 40))
    model = sg.MatrixCompletion(4, calibrate=0.2, random_state=0).fit(Y[:50])
    before = model._model.held.size
    model.partial_fit(Y[50:])
    assert model._model.held.size > before
    assert model._model.held.shape == (80, 40)
    model.interval(([70], [3]), 0.9, kind="conformal")


# ---- draws


def test_draws_keep_what_was_observed_and_differ_by_as_much_as_is_unsure():
    _, Y, _ = instance(shape=(80, 60), p=0.5)
    model = sg.MatrixCompletion(4, calibrate=0.1, random_state=0).fit(Y)
    draws = model.sample(40, random_state=0)
    assert draws.shape == (40, 80, 60)
    seen = np.isfinite(Y)
    assert np.array_equal(draws[7][seen], Y[seen])
    index = np.nonzero(~seen)
    _, std = model.predict_entries(index, return_std=True)
    expected = np.sqrt(std**2 + model.noise_variance_)
    assert 0.9 < np.median(draws[:, ~seen].std(axis=0) / expected) < 1.1
    again = model.sample(40, random_state=0)
    assert np.array_equal(draws, again)


def test_draws_of_a_row_share_what_is_unsure_about_it():
    # few entries, hardly any noise: all that is unsure is where the row lies
    rng = np.random.default_rng(0)
    X = np.outer(rng.standard_normal(200), np.ones(100))
    Y = X + 0.05 * rng.standard_normal(X.shape)
    Y[0, 3:] = np.nan
    model = sg.MatrixCompletion(1).fit(Y)
    index = (np.zeros(50, int), np.arange(50, 100))
    draws = model.sample(200, index, random_state=0)
    assert draws.shape == (200, 50)
    common = draws.mean(axis=1).std()
    assert common > 0.6 * 0.05 / np.sqrt(3)


def test_draws_of_tensors():
    rng = np.random.default_rng(0)
    X = sg.datasets.low_rank_tensor((12, 10, 8), 2, kappa=2, rng=0).full()
    Y = np.where(rng.random(X.shape) < 0.6, X + 0.01 * rng.standard_normal(X.shape), np.nan)
    draws = sg.TensorCompletion(2).fit(Y).sample(2, random_state=0)
    assert draws.shape == (2, 12, 10, 8)
    assert np.array_equal(draws[0][np.isfinite(Y)], Y[np.isfinite(Y)])


def test_draws_of_robust_models_do_not_keep_what_was_rejected():
    X, Y, rng = instance(shape=(80, 60), p=1.0)
    wrong = rng.random(X.shape) < 0.05
    model = sg.RobustPCA(4).fit(np.where(wrong, 50.0, Y))
    draw = model.sample(1, random_state=0)[0]
    assert np.abs(draw - X).max() < 1
    kept = np.ones(X.shape, dtype=bool)
    kept[model.outliers_.coords] = False
    assert np.array_equal(draw[kept], Y[kept])


# ---- regression


@pytest.mark.parametrize("shape", [(12, 10), (6, 5, 4)])
def test_prediction_intervals_hold_new_measurements(shape):
    made = sg.MatrixRegressor if len(shape) == 2 else sg.TensorRegressor
    found = {"model": [], "prediction": [], "conformal": []}
    z = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        C = sg.datasets.low_rank_tensor(shape, 2, kappa=2, rng=seed).full()
        C = C / C.std()
        A = rng.standard_normal((500, *shape))
        T = rng.standard_normal((2000, *shape))
        y, new = (np.tensordot(D, C, len(shape)) + 2 + rng.standard_normal(len(D)) for D in (A, T))
        model = made(2, calibrate=0.2, random_state=0).fit(A, y)
        for kind, shares in found.items():
            shares.append(covered(model.interval(T, 0.9, kind=kind), new))
        value, std = model.predict(T, return_std=True)
        assert np.array_equal(value, model.predict(T))
        assert np.all(std > np.sqrt(model.noise_variance_))
        coef, error = model.predict_entries(everywhere(C), return_std=True)
        z.append((coef - C.ravel()) / error)
    assert 0.87 < np.mean(found["model"]) < 0.93
    assert found["prediction"] == found["model"]
    assert 0.84 < np.mean(found["conformal"]) < 0.95
    assert 0.8 < np.std(z) < 1.25


def test_a_model_with_too_many_parameters_to_weigh_is_still_about_right(limits):

    rng = np.random.default_rng(0)
    C = rng.standard_normal((12, 2)) @ rng.standard_normal((2, 10))
    A = rng.standard_normal((600, 12, 10))
    y = np.tensordot(A, C, 2) + rng.standard_normal(600)
    exact = sg.MatrixRegressor(2).fit(A, y).predict(A, return_std=True)[1]
    limits(exact_information=5)
    rough = sg.MatrixRegressor(2).fit(A, y).predict(A, return_std=True)[1]
    assert 0.95 < np.median(rough / exact) < 1.05


def test_the_gradient_of_a_measurement_is_its_derivative():
    from scaledgd.estimators.information import gradients

    rng = np.random.default_rng(0)
    for F in (
        sg.LowRank(rng.standard_normal((5, 2)), rng.standard_normal((4, 2))),
        sg.datasets.low_rank_tensor((5, 4, 3), 2, kappa=2, rng=0),
    ):
        A = rng.standard_normal((3, int(np.prod(F.shape))))
        found = gradients(F, A)
        moves = [rng.standard_normal(B.shape) for B in F.blocks]
        flat = np.concatenate([D.ravel() for D in moves])

        def at(t, F=F, moves=moves, A=A):
            moved = F.with_blocks(tuple(B + t * D for B, D in zip(F.blocks, moves, strict=True)))
            return A @ moved.full().ravel()

        np.testing.assert_allclose(found @ flat, (at(1e-5) - at(-1e-5)) / 2e-5, rtol=1e-6)


def test_units_of_the_design_do_not_matter():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((60, 8, 7))
    C = rng.standard_normal((8, 2)) @ rng.standard_normal((2, 7))
    y = np.tensordot(A, C, 2) + rng.standard_normal(60)
    for made in (sg.MatrixRegressor, sg.TensorRegressor):
        found = [
            made(2, ridge=0.1, center="none").fit(A * s, y).predict_entries((0, 0), return_std=True)
            for s in (1e-6, 1.0, 1e3)
        ]
        errors = [float(std[0]) * s for (_, std), s in zip(found, (1e-6, 1.0, 1e3), strict=True)]
        np.testing.assert_allclose(errors, errors[1], rtol=1e-3)


def test_fewer_measurements_than_parameters_say_nothing_about_errors():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((10, 8, 7))
    with pytest.warns(sg.DataWarning, match="is unknown"):
        model = sg.MatrixRegressor(2, ridge=0.0).fit(A, rng.standard_normal(10))
    lower, upper = model.interval(A)
    assert np.all(np.isinf(lower))
    assert np.all(np.isinf(upper))
    assert np.all(np.isinf(model.predict(A, return_std=True)[1]))


@pytest.mark.filterwarnings("ignore:.*have no observation")
def test_rows_without_entries_have_intervals():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 12))
    X[[3, 7], :] = np.nan
    model = sg.MatrixCompletion(random_state=0, smooth="none").fit(X + 0.1 * rng.random(X.shape))
    low, high = model.interval((np.asarray([3, 7, 7]), np.asarray([0, 1, 2])), 0.9, "prediction")
    assert np.all(np.isfinite(low) & np.isfinite(high) & (low < high))


# ---- new observations: narrow tables


def correlated(seed, n=500, d=9, missing=0.2):
    """A normal sample with correlated columns, as many components as columns, and its holes."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((d, d))
    X = rng.multivariate_normal(np.zeros(d), 0.6 * A @ A.T / d + 0.4 * np.eye(d), size=n)
    return X, rng.random(X.shape) < missing


def coverage_and_width(X, hidden, scale=1.0, **settings):
    """The share of hidden entries in 90 % intervals, and half widths over those of normal errors
    of the same size, 1.645 times their root mean square.
    """
    Y = np.where(hidden, np.nan, X) * scale
    model = sg.MatrixCompletion(random_state=0, **settings).fit(Y)
    index = np.nonzero(hidden)
    lower, upper = model.interval(index, 0.9, kind="prediction")
    off = model.predict_entries(index) - (X * scale)[index]
    width = np.sqrt(np.mean((upper - lower) ** 2)) / 2 / (1.645 * np.sqrt(np.mean(off**2)))
    return covered((lower, upper), (X * scale)[index]), width


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_intervals_of_narrow_tables_are_as_wide_as_their_errors(seed):
    # the rank is the number of columns: the prior leaves degrees of freedom that a count of
    # parameters does not
    share, width = coverage_and_width(*correlated(seed))
    assert 0.84 < share < 0.96
    assert 0.8 < width < 1.3


def test_intervals_do_not_depend_on_units():
    X, hidden = correlated(0)
    share, width = coverage_and_width(X, hidden)
    again = coverage_and_width(X, hidden, scale=1e6)
    assert again == pytest.approx((share, width), rel=1e-6)
    units = 10.0 ** np.linspace(-6, 6, X.shape[1])
    assert 0.84 < coverage_and_width(X, hidden, scale=units)[0] < 0.96


def test_what_a_prior_holds_is_not_spent():
    # without a prior to shrink them, factors have the parameters of a matrix of their rank
    problem, truth = sg.datasets.matrix_completion(30, 20, rank=3, kappa=2, p=0.9, rng=0)
    assert sg.Posterior.first(truth, 0.0).spent == pytest.approx(3 * (30 + 20 - 3))
    # noise says little about rows: the prior holds nearly all of them
    rng = np.random.default_rng(0)
    noise = sg.Observed(problem.operator, rng.standard_normal(problem.y.shape))
    found = sg.solve(noise, sg.joint(3), sg.Variational(full=True), max_iter=200)
    assert 0 <= found.state.memory.method.spent < 0.4 * 3 * (30 + 20 - 3)
    # the residual and the noise agree about what is left
    y = problem.y / np.std(problem.y) + 0.3 * rng.standard_normal(problem.y.shape)
    noisy = sg.Observed(problem.operator, y)
    found = sg.solve(noisy, sg.joint(3), sg.Variational(full=True), max_iter=200)
    left, posterior = 2 * float(found.state.value), found.state.memory.method
    assert left / (y.size - posterior.spent) == pytest.approx(float(posterior.noise), rel=0.05)


@pytest.mark.parametrize("seed", [0, 1])
def test_offsets_alone_have_intervals_that_were_compared_with_errors(seed):
    # most values are alike and a few large: nine in ten are far closer than normal ones would be
    rng = np.random.default_rng(seed)
    X, hidden = rng.standard_normal((400, 12)) ** 5, rng.random((400, 12)) < 0.3
    assert 0.85 < coverage_and_width(X, hidden)[0] < 0.95
