"""Estimators of tables whose rows, or columns, follow each other in time."""

import functools
import os
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import library
from numpy.testing import assert_allclose
from sklearn.base import clone

import scaledgd as sg

pd = pytest.importorskip("pandas")

KINDS = ("points", "blocks", "outage", "blackout")
DATA = Path(
    os.environ.get("SCALEDGD_DATA", Path(__file__).parent.parent.parent / "shared" / "data")
)


def hours(T):
    return pd.date_range("2024-01-01", periods=T, freq="h")


def series(rng, T, length, n=1):
    """Stationary series of variance 1."""
    x, a = np.empty((T, n)), np.exp(-1 / length)
    x[0] = rng.standard_normal(n)
    for t in range(1, T):
        x[t] = a * x[t - 1] + np.sqrt(1 - a * a) * rng.standard_normal(n)
    return x


def table(seed=0, T=300, n=12, wave=0.0, noise=0.3):
    """Two slow components, what every column has of its own, noise, and a day."""
    rng = np.random.default_rng(seed)
    L = np.hstack([series(rng, T, 50), series(rng, T, 20)])
    day = np.sin(2 * np.pi * np.arange(T) / 24)[:, None] * rng.uniform(0.5, 1.5, n)
    X = L @ rng.standard_normal((2, n)) + 0.4 * series(rng, T, 10, n) + wave * day
    return X + noise * rng.standard_normal((T, n)) + 3 * rng.standard_normal(n)


def hidden(shape, kind, seed=0):
    """True where a cell is hidden: cells, runs, columns for a long time, or all for a while."""
    rng, (T, n) = np.random.default_rng(seed + 50), shape
    H = np.zeros(shape, bool)
    if kind == "points":
        return rng.random(shape) < 0.2
    if kind == "blocks":
        for j in range(n):
            for s in rng.integers(0, T - 10, T // 50):
                H[s : s + 10, j] = True
    elif kind == "outage":
        for j in rng.choice(n, n // 4, replace=False):
            s = rng.integers(0, T - T // 5)
            H[s : s + T // 5, j] = True
    else:
        for s in np.linspace(30, T - 60, 3).astype(int):
            H[s : s + 12] = True
    return H


def frame(X, index=None):
    index = hours(len(X)) if index is None else index
    return pd.DataFrame(X, index=index)


def rmse(values, X, H):
    return float(np.sqrt(np.mean((np.asarray(values, float) - X)[H] ** 2)))


def quietly(model, X, **more):
    """Fit; rows without entries are no surprise here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sg.DataWarning)
        return model.fit(X, **more)


def in_time(model):
    """Whether estimates use neighbours in time: nothing public says so."""
    return hasattr(model._model, "clock")


def completion(**more):
    return sg.MatrixCompletion(random_state=0, **more)


@functools.cache
def example(kind="blocks", seed=0, T=150):
    """A table, what is hidden of it, the frame with holes, and its fit."""
    X = table(seed, T)
    H = hidden(X.shape, kind, seed)
    holes = frame(np.where(H, np.nan, X))
    model = completion().fit(holes)
    assert in_time(model)
    return X, H, holes, model


# ---- how good it is


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_are_filled_better_than_without_time(kind):
    errors = []
    for seed in (0, 1):
        X, H, holes, model = example(kind, seed, T=300)
        plain = quietly(completion(smooth="none"), holes)
        line = holes.interpolate(limit_direction="both")
        errors.append([rmse(Y, X, H) for Y in (model.reconstruct(), plain.reconstruct(), line)])
    ours, plain, line = np.mean(errors, axis=0)
    print(f"{kind}: {ours:.3f}, without time {plain:.3f}, interpolated {line:.3f}")
    assert ours < (0.98 if kind == "outage" else 0.95) * plain
    # across a blackout a line is nearly the best there is, even if all lengths were known
    assert ours < (1.05 if kind == "blackout" else 0.97) * line


@pytest.mark.filterwarnings("ignore:.*have no observation")
def test_a_day_bridges_a_blackout():
    X = table(3, T=24 * 14, wave=3.0)
    H = np.zeros(X.shape, bool)
    H[100:118] = H[200:218] = True
    holes = frame(np.where(H, np.nan, X))
    ours = rmse(completion().fit_transform(holes), X, H)
    line = rmse(holes.interpolate(), X, H)
    unlabelled = rmse(completion().fit_transform(holes.to_numpy()), X, H)
    print(f"blackout with a day: {ours:.3f}, interpolated {line:.3f}, no labels {unlabelled:.3f}")
    assert ours < 0.5 * line
    assert ours < 0.6 * unlabelled


def test_prediction_intervals_cover_gaps():
    shares = []
    for kind in KINDS:
        for seed in (0, 1):
            X, H, _, model = example(kind, seed, T=300)
            low, high = model.interval(np.nonzero(H), 0.9, "prediction")
            shares.append(np.mean((X[H] >= low) & (X[H] <= high)))
    print("coverage at 90 %", np.round(shares, 3))
    # of a long gap only a few examples can be held out, so some intervals are too narrow
    assert 0.8 < np.mean(shares) < 0.95
    assert min(shares) > 0.65


def test_conformal_intervals_cover_what_is_like_the_held_out_entries():
    X = table(5)
    H = hidden(X.shape, "points", 5)
    model = completion(calibrate=0.15).fit(frame(np.where(H, np.nan, X)))
    assert in_time(model)
    low, high = model.interval(np.nonzero(H), 0.9, "conformal")
    share = np.mean((X[H] >= low) & (X[H] <= high))
    print(f"conformal coverage {share:.3f}")
    assert 0.82 < share < 0.97


def test_draws_follow_the_series():
    """Draws of a gap vary as smoothly as the series, and as much as the interval says."""
    X = table(1)
    H = np.zeros(X.shape, bool)
    H[100:160, :3] = H[200:240] = True
    model = completion().fit(frame(np.where(H, np.nan, X)))
    draws = np.stack([d.to_numpy() for d in model.sample(60, random_state=0)])
    assert_allclose(draws[:, ~H], np.tile(X[~H], (60, 1)), atol=1e-12)

    def lag_one(A):
        A = A - A.mean(axis=-2, keepdims=True)
        return (A[..., 1:, :] * A[..., :-1, :]).sum() / (A**2).sum()

    drawn, true = lag_one(draws[:, 200:240]), lag_one(X[200:240])
    everywhere = lag_one(X)
    print(f"lag-one correlation of draws {drawn:.2f}, of the truth {true:.2f}/{everywhere:.2f}")
    assert abs(drawn - true) < 0.25
    at = np.nonzero(H)
    low, high = model.interval(at, 0.9, "prediction")
    inside = np.mean((draws[:, at[0], at[1]] > low) & (draws[:, at[0], at[1]] < high))
    print(f"share of draws inside 90 % intervals {inside:.3f}")
    assert 0.8 < inside < 0.98


def test_rows_after_the_end_are_estimated_and_less_sure():
    X = table(2)
    X[-30:] = np.nan
    X[140:144] = np.nan
    model = completion().fit(frame(X))
    assert np.isfinite(model.reconstruct()).all().all()
    std = model.predict_entries(tuple(np.indices(X.shape).reshape(2, -1)), return_std=True)[1]
    std = std.reshape(X.shape).mean(axis=1)
    assert std[:140].max() < std[142] < std[-1]
    assert std[-25] < std[-1]
    assert model.diagnostics_ == []  # neighbours tell about rows without entries


# ---- what labels say


@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_rows_does_not_matter(seed):
    """Nor for what is held out: gaps in time are gaps, wherever the rows are."""
    _, _, holes, model = example(seed=seed)
    order = np.random.default_rng(0).permutation(len(holes))
    other = completion().fit(holes.iloc[order])
    assert in_time(other)
    assert other.rank_path_[-1]["held_out"] == pytest.approx(model.rank_path_[-1]["held_out"])
    assert_allclose(other.reconstruct().loc[holes.index], model.reconstruct(), atol=1e-6)
    assert_allclose(model.transform(holes.iloc[order]).loc[holes.index], model.transform(holes))


def test_time_zones_do_not_matter():
    _, _, holes, model = example()
    zoned = holes.tz_localize("UTC").tz_convert("Asia/Kolkata")
    other = completion().fit(zoned)
    assert_allclose(other.reconstruct().to_numpy(), model.reconstruct().to_numpy(), atol=1e-12)
    assert other.reconstruct().index.equals(zoned.index)


@pytest.mark.parametrize("kind", ["period", "timedelta"])
def test_other_indexes_of_pandas_are_times(kind):
    _, _, holes, model = example()
    index = holes.index.to_period("h") if kind == "period" else holes.index - holes.index[0]
    other = completion().fit(holes.set_index(index))
    assert in_time(other)
    assert other.transform(holes.set_index(index)).index.equals(index)
    assert_allclose(other.reconstruct().to_numpy(), model.reconstruct().to_numpy(), atol=0.15)


def test_stamps_may_be_irregular():
    X = table(4, T=600)
    rng = np.random.default_rng(0)
    keep = np.sort(rng.choice(600, 300, replace=False))
    index = hours(600)[keep] + pd.to_timedelta(rng.uniform(-60, 60, 300), "s")
    X = X[keep]
    H = hidden(X.shape, "points")
    holes = frame(np.where(H, np.nan, X), index)
    model = completion().fit(holes)
    plain = rmse(completion(smooth="none").fit_transform(holes), X, H)
    assert in_time(model)
    assert rmse(model.transform(holes), X, H) < 0.9 * plain


def test_bad_stamps_are_named():
    _, _, holes, model = example()
    twice, missing = holes.index.to_numpy().copy(), holes.index.to_numpy().copy()
    twice[7], missing[3] = twice[5], np.datetime64("NaT")
    for index, words in ((twice, ("2024-01-01T05:00", "5 and 7")), (missing, ("row 3",))):
        bad = holes.set_index(pd.DatetimeIndex(index))
        for call in (completion().fit, completion(smooth="rows").fit, model.transform):
            with pytest.raises(ValueError, match=r"time .*smooth=\"none\"") as error:
                call(bad)
            assert all(word in str(error.value) for word in words)
    assert completion(smooth="none").fit(holes.set_index(pd.DatetimeIndex(twice))).rank_
    across = pd.DataFrame(np.asarray(holes).T, columns=pd.DatetimeIndex(missing))
    with pytest.raises(ValueError, match="the time of column 3"):
        completion(smooth="columns").fit(across)


def test_a_shuffled_array_knows_no_time():
    X = table(0)[np.random.default_rng(0).permutation(300)]
    holes = np.where(hidden(X.shape, "points"), np.nan, X)
    model, plain = completion().fit(holes), completion(smooth="none").fit(holes)
    assert not in_time(model)
    assert np.array_equal(model.reconstruct(), plain.reconstruct())


def test_an_array_in_order_shows_its_time():
    X, H, holes, labelled = example()
    model = completion().fit(holes.to_numpy())
    assert in_time(model)
    assert rmse(model.reconstruct(), X, H) < 1.1 * rmse(labelled.reconstruct(), X, H)


def test_labels_of_xarray_are_times():
    xr = pytest.importorskip("xarray")
    X, H, holes, model = example()
    coords = {"time": holes.index.to_numpy(), "sensor": list(holes.columns)}
    array = xr.DataArray(holes.to_numpy(), dims=("time", "sensor"), coords=coords)
    other = completion().fit(array)
    assert_allclose(other.transform(array).values, model.transform(holes), atol=1e-12)
    across = completion().fit(array.T)
    assert in_time(across)
    assert across.transform(array.T).dims == ("sensor", "time")
    assert rmse(across.transform(array.T).values.T, X, H) < 1.15 * rmse(
        other.transform(array), X, H
    )


@pytest.mark.parametrize("kind", ["naive", "zone", "date"])
def test_the_only_column_of_times_of_polars_is_the_index(kind, tmp_path):
    pl = pytest.importorskip("polars")
    _, _, holes, model = example()
    index = holes.index if kind != "date" else pd.date_range("2024-01-01", periods=len(holes))
    when = pl.Series("when", index.to_numpy()).cast(
        pl.Date if kind == "date" else pl.Datetime("us")
    )
    if kind == "zone":
        when = when.dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Berlin")
    values = pl.DataFrame({f"s{k}": holes[k].to_numpy() for k in holes})
    whole = values.clone().insert_column(3, when)
    other = completion().fit(whole)
    assert list(other.feature_names_in_) == values.columns
    assert list(other.get_feature_names_out()) == values.columns
    filled = other.transform(whole)
    assert filled.columns == whole.columns
    assert filled["when"].equals(when)
    assert in_time(other)
    if kind != "date":
        assert_allclose(filled.drop("when").to_numpy(), model.transform(holes), atol=1e-12)
    other.save(tmp_path / "model.zip")
    assert sg.load(tmp_path / "model.zip").reconstruct().equals(other.reconstruct())
    assert other.transform(values[:5]).columns == values.columns
    if kind == "naive":
        features = clone(other).set_output(transform="polars").fit(whole).transform(whole)
        assert features.columns == values.columns
        with pytest.raises(ValueError, match="'when', 'then'"):
            other.fit(whole.with_columns(when.alias("then")))
        with pytest.raises(ValueError, match="the time of row 4"):
            other.fit(whole.with_columns(when.scatter(4, None)))


# ---- other rows


def test_next_rows_use_what_came_before():
    X, _, holes, _ = example()
    model = completion().fit(holes.iloc[:125])
    rest = holes.iloc[125:].copy()
    rest.iloc[:4] = np.nan  # only the rows before tell about these
    H = np.zeros((25, 12), bool)
    H[:4] = True
    ours = rmse(model.transform(rest), X[125:], H)
    alone = rmse(model.transform(rest.to_numpy()), X[125:], H)
    print(f"next rows {ours:.3f}, without times {alone:.3f}")
    assert ours < 0.95 * alone
    one = model.transform(rest.iloc[10:11])
    assert np.isfinite(one).all().all()


def test_rows_without_times_are_at_no_time_of_the_day():
    """The same rows, whenever they begin: waves must not be read off a clock that is unknown."""
    X = table(3, T=24 * 14, wave=3.0)
    model = completion().fit(frame(X[:240]))
    rng = np.random.default_rng(0)
    for start in (240, 252):
        rows = X[start : start + 48]
        H = rng.random(rows.shape) < 0.4
        filled = model.transform(np.where(H, np.nan, rows))
        assert rmse(filled, rows, H) < 0.5 * rows.std()


def test_fitting_and_transforming_at_once_is_the_same():
    _, _, holes, model = example()
    assert_allclose(completion().fit_transform(holes), model.transform(holes), atol=1e-8)
    H = holes.isna().to_numpy()
    assert_allclose(
        model.transform(holes).to_numpy()[H], model.reconstruct().to_numpy()[H], atol=1e-8
    )


def test_more_rows_continue_a_fit(tmp_path):
    X, H, holes, model = example()
    other = completion().fit(holes.iloc[:125]).partial_fit(holes.iloc[125:])
    error = rmse(other.reconstruct(), X, H)
    print(f"continued {error:.3f}, at once {rmse(model.reconstruct(), X, H):.3f}")
    assert error < 1.1 * rmse(model.reconstruct(), X, H)
    other.save(tmp_path / "more.zip")
    assert_allclose(sg.load(tmp_path / "more.zip").transform(holes), other.transform(holes))
    before = other.reconstruct()
    with pytest.raises(ValueError, match="150 repeated in all"):
        other.partial_fit(holes)
    with pytest.raises(ValueError, match="those of X have none"):
        other.partial_fit(holes.to_numpy()[:10])
    assert before.equals(other.reconstruct())


def test_a_warm_start_knows_time():
    X, H, holes, model = example()
    other = completion(warm_start=True).fit(holes.iloc[:125]).fit(holes)
    assert in_time(other)
    assert rmse(other.reconstruct(), X, H) < 1.1 * rmse(model.reconstruct(), X, H)
    again = other.fit(holes.to_numpy())  # without times it begins anew
    fresh = completion().fit(holes.to_numpy())
    assert np.array_equal(again.reconstruct(), fresh.reconstruct())


def test_calibrated_fits_continue(tmp_path):
    _, H, holes, _ = example()
    model = completion(calibrate=0.1).fit(holes.iloc[:125])
    model.set_params(calibrate=None).partial_fit(holes.iloc[125:])
    model.save(tmp_path / "model.zip")
    low, high = sg.load(tmp_path / "model.zip").interval(np.nonzero(H), 0.9, "conformal")
    assert (low < high).all()


def test_scores_of_new_entries_and_rows():
    X, _, holes, model = example()
    assert model.score(frame(X)) > 0.9
    part = completion().fit(holes.iloc[:125])
    truth, estimate = part.held_out(holes.iloc[125:])
    assert np.isfinite(estimate).all()
    assert np.corrcoef(truth, estimate)[0, 1] > 0.95
    assert part.score(holes.iloc[125:].to_numpy()) > 0.8


def test_saved_models_are_the_same(tmp_path):
    X, H, holes, model = example()
    model.save(tmp_path / "model.zip")
    other = sg.load(tmp_path / "model.zip")
    assert_allclose(other.transform(holes), model.transform(holes))
    bounds = [m.interval(np.nonzero(H), 0.9, "prediction") for m in (model, other)]
    assert_allclose(*bounds)
    later = frame(X[:20], hours(400)[350:370])
    later.iloc[::2, ::3] = np.nan
    assert_allclose(other.transform(later), model.transform(later))


# ---- columns that follow each other


def test_columns_may_follow_each_other():
    X, H, holes, model = example()
    across = completion(smooth="columns").fit(holes.T)
    assert in_time(across)
    error = rmse(across.transform(holes.T).T, X, H)
    print(f"columns {error:.3f}, rows {rmse(model.transform(holes), X, H):.3f}")
    assert error < 1.15 * rmse(model.transform(holes), X, H)


@pytest.mark.parametrize("scale", ["auto", "rows", "both"])
def test_new_series_of_a_fit_whose_columns_are_times(scale):
    X, H, holes, _ = example(T=300)
    new, hides = X[:, 9:], H[:, 9:]
    model = completion(smooth="columns", scale=scale).fit(holes.T.iloc[:9])
    assert in_time(model)
    rest = holes.T.iloc[9:]
    error = rmse(model.transform(rest).T, new, hides)
    mean = rmse(np.tile(holes.iloc[:, 9:].mean(), (300, 1)), new, hides)
    line = rmse(holes.iloc[:, 9:].interpolate(limit_direction="both"), new, hides)
    print(f"new series {error:.3f}, interpolated {line:.3f}, mean {mean:.3f}")
    assert error < 0.9 * line
    assert_allclose(model.transform(rest.to_numpy()), model.transform(rest))
    late = rest.set_axis(rest.columns + pd.Timedelta("1h"), axis=1)
    with pytest.raises(ValueError, match="times of the columns of X are not those of the fit"):
        model.transform(late)
    with pytest.raises(ValueError, match="times of the columns of X are not those of the fit"):
        model.partial_fit(late)
    more = clone(model).fit(holes.T.iloc[:9]).partial_fit(rest)
    assert rmse(more.reconstruct().to_numpy()[9:].T, new, hides) < 1.1 * error


def test_a_warm_start_keeps_the_factor_of_columns():
    X, H, holes, _ = example()
    model = completion(smooth="columns", warm_start=True).fit(holes.T)
    first = rmse(model.reconstruct().T, X, H)
    assert rmse(model.fit(holes.T).reconstruct().T, X, H) < 1.05 * first


# ---- parameters


@pytest.mark.parametrize("estimator", [sg.MatrixCompletion, sg.RobustPCA])
def test_smooth_is_checked(estimator):
    for wrong in ("nonsense", None, 3, True):
        with pytest.raises(ValueError, match=r"smooth must be one of 'auto', 'none', 'rows'"):
            estimator(smooth=wrong).fit(np.ones((9, 4)))


@pytest.mark.filterwarnings("ignore:column means")
def test_what_does_not_go_with_smooth_is_refused():
    X = np.abs(table(0, T=40))
    for more in ({"ridge": 0.1}, {"non_negative": True}):
        with pytest.raises(ValueError, match="cannot be combined"):
            completion(smooth="rows", **more).fit(X)
        assert not in_time(completion(rank=2, **more).fit(X))


def test_single_precision_stays():
    X, H, holes, model = example()
    other = completion().fit(holes.astype(np.float32))
    filled = other.transform(holes.astype(np.float32))
    assert (filled.dtypes == np.float32).all()
    assert other.predict_entries(([0], [0])).dtype == np.float32
    assert all(x.dtype == np.float32 for x in other.interval(np.nonzero(H), 0.9))
    assert rmse(filled, X, H) < 1.05 * rmse(model.transform(holes), X, H)


def test_weights_count():
    """Entries of weight zero are none; wrong ones with little weight hardly count."""
    X, H, holes, model = example()
    given = holes.to_numpy().copy()
    wrong = np.random.default_rng(0).random(X.shape) < 0.1
    wrong &= ~H
    given[wrong] += 5.0
    weight = np.where(wrong, 1e-3, 1.0)
    errors = [
        rmse(quietly(completion(), frame(given), entry_weight=w).reconstruct(), X, H)
        for w in (None, weight)
    ]
    assert errors[1] < 0.8 * errors[0]
    assert errors[1] < 1.3 * rmse(model.reconstruct(), X, H)


def test_a_whole_table_has_weights():
    """Cells of little weight count as if they were hardly there."""
    X = table(0)
    wrong = np.random.default_rng(0).random(X.shape) < 0.1
    given = np.where(wrong, X + 5, X)
    weight = np.where(wrong, 1e-3, 1.0)
    model = completion().fit(frame(given), entry_weight=weight)
    assert in_time(model)
    assert rmse(model.reconstruct(), X, wrong) < 0.5 * rmse(given, X, wrong)


def test_bounds_hold():
    _, H, holes, _ = example()
    model = completion(clip=(-1, 1.5)).fit(holes)
    low, high = model.interval(np.nonzero(H), 0.9, "prediction")
    for values in (model.reconstruct().to_numpy(), low, high):
        assert values.min() >= -1
        assert values.max() <= 1.5


def test_time_runs_out(clock):
    _, _, holes, _ = example()
    for limit in (1e-6, 1.0, 3.0):
        clock.restart()
        clock.tick = 0.02
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = completion(max_time=limit).fit(holes)
        clock.tick = 0.0
        assert np.isfinite(model.reconstruct()).all().all()
        assert np.isfinite(model.transform(holes)).all().all()


def interrupted(model, holes, after):
    """Press Ctrl-C when a fit has made some iterates."""
    pytest.importorskip("sklearn.callback")
    seen = []

    class Pressed(Watching):
        def on_fit_task_end(self, estimator, context, **_):
            seen.append(1)
            if len(seen) == after:
                signal.raise_signal(signal.SIGINT)

    return quietly(model.set_callbacks(Pressed()), holes)


class Watching:
    """A callback of scikit-learn's kind that does nothing."""

    def setup(self, estimator, context):
        pass

    teardown = on_fit_task_begin = on_fit_task_end = setup


@pytest.mark.parametrize("after", [5, 30])
def test_a_fit_resumes_from_its_checkpoint(after, tmp_path):
    _, _, holes, model = example()
    path = tmp_path / "fit.ckpt"
    with pytest.raises(KeyboardInterrupt):
        interrupted(completion(checkpoint=path), holes, after)
    assert path.exists()
    other = completion(checkpoint=path).fit(holes)
    assert in_time(other)
    assert_allclose(other.reconstruct(), model.reconstruct(), atol=1e-8)


@pytest.mark.parametrize("after", [5, 30])
def test_an_interrupted_fit_returns_what_it_has(after):
    X, H, holes, _ = example()
    model = interrupted(completion(interrupt="return"), holes, after)
    assert "interrupted" in model.status_
    assert rmse(model.transform(holes), X, H) < X.std()


def test_tensors_of_torch_are_tables_in_time():
    torch = library("torch")
    X, H, holes, _ = example()
    plain = completion().fit(holes.to_numpy())
    given = torch.asarray(holes.to_numpy().copy())
    model = completion().fit(given)
    assert in_time(model)
    filled = model.transform(given)
    assert isinstance(filled, torch.Tensor)
    assert_allclose(filled.numpy(), plain.transform(holes.to_numpy()), atol=1e-4)
    at = tuple(torch.asarray(i) for i in np.nonzero(H))
    assert all(bool(torch.isfinite(x).all()) for x in model.interval(at, 0.9, "prediction"))
    assert model.sample(2, random_state=0).shape == (2, *X.shape)


def test_entries_keep_their_times():
    X, H, holes, model = example()
    shuffled = holes.sample(frac=1, random_state=0)
    other = completion().fit(sg.EntryTable.of(shuffled))
    assert in_time(other)
    found = other.reconstruct().loc[holes.index]
    assert rmse(found, X, H) < 1.1 * rmse(model.reconstruct(), X, H)


def test_inputs_stay_as_they_are():
    _, _, holes, model = example()
    copy, old = holes.copy(), model.reconstruct().copy()
    model.transform(holes.iloc[:20])
    model.sample(1, random_state=0)
    completion().fit(holes)
    pd.testing.assert_frame_equal(holes, copy)
    pd.testing.assert_frame_equal(model.reconstruct(), old)


# ---- large tables


def test_large_tables_know_time_too(limits):

    limits(table=2000)
    X, H, holes, small = example(T=300)
    order = np.random.default_rng(0).permutation(len(holes))
    model = completion().fit(holes.iloc[order])
    assert in_time(model)
    found = model.reconstruct().loc[holes.index]
    assert rmse(found, X, H) < 1.15 * rmse(small.reconstruct(), X, H)


# ---- gross errors


@functools.cache
def spoilt():
    """Spikes, a sensor that is stuck for a while, and a level that changes slowly."""
    X = table(7, T=400)
    X[:, 5] += 4 / (1 + np.exp(-(np.arange(400) - 200) / 25))
    rng, bad = np.random.default_rng(1), np.zeros(X.shape, bool)
    bad[rng.integers(0, 400, 120), rng.integers(0, 12, 120)] = True
    bad[250:270, 2] = True
    Y = np.where(bad, X + rng.choice([-1, 1], X.shape) * rng.uniform(6, 12, X.shape), X)
    Y[250:270, 2] = X[:, 2].min() - 8
    H = hidden(X.shape, "blocks", 3) & ~bad
    models = [sg.RobustPCA(random_state=0, smooth=s) for s in ("auto", "none")]
    return X, Y, bad, H, [quietly(m, frame(np.where(H, np.nan, Y))) for m in models]


def test_gross_errors_are_cleaned_better_with_time():
    X, _, bad, H, (model, plain) = spoilt()
    assert in_time(model)
    for cells in (H, bad):
        ours, other = (rmse(m.reconstruct(), X, cells) for m in (model, plain))
        print(f"robust: {ours:.3f}, without time {other:.3f}")
        assert ours < 0.95 * other


def test_slow_changes_are_no_gross_errors():
    _, _, bad, H, (model, _) = spoilt()
    found = model.outliers_.toarray() != 0
    print(f"found {found[bad].mean():.3f} of the bad cells, and {found[~bad & ~H].mean():.4f} else")
    assert found[bad].mean() > 0.9
    assert found[~bad & ~H].mean() < 0.02
    assert found[:, 5][~bad[:, 5]].mean() < 0.03


def test_new_rows_are_cleaned(tmp_path):
    X, Y, bad, _H, (model, _) = spoilt()
    later = frame(Y[300:], hours(800)[700:])
    clean = model.transform(later)
    assert rmse(clean, X[300:], bad[300:]) < 1.5
    model.save(tmp_path / "model.zip")
    assert_allclose(sg.load(tmp_path / "model.zip").transform(later), clean)
    more = sg.RobustPCA(random_state=0).fit(frame(Y[:300])).partial_fit(frame(Y).iloc[300:])
    assert rmse(more.reconstruct(), X, bad) < 2 * rmse(model.reconstruct(), X, bad)


# ---- real data


@pytest.mark.slow
@pytest.mark.parametrize("name", ["climate", "airq", "electricity"])
def test_gaps_of_real_sensors(name):
    path = DATA / "time-series" / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"the data set time-series/{name}.npz is not here; set SCALEDGD_DATA")
    X = np.load(path, allow_pickle=False)["X"][:1000].astype(float)
    X = X[:, X.std(axis=0) > 1e-9]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    ratios = []
    for kind in KINDS:
        H = hidden(X.shape, kind)
        holes = frame(np.where(H, np.nan, X))
        line = holes.interpolate(limit_direction="both").fillna(0.0)
        fits = [quietly(completion(smooth=s), holes).reconstruct() for s in ("auto", "none")]
        ours, plain, line = (rmse(Y, X, H) for Y in (*fits, line))
        print(f"{name} {kind}: {ours:.3f}, without time {plain:.3f}, interpolated {line:.3f}")
        ratios.append((ours / plain, ours / line))
        assert ours < 1.05 * min(plain, line)
    assert np.mean(ratios) < 0.9


def test_times_are_exact():
    """Seconds in double precision took stamps of 100 ns for repeated ones."""
    X = table(0)[:120]
    holes = np.where(hidden(X.shape, "points"), np.nan, X)
    start = np.datetime64("2024-05-01T12:00:00", "ns")
    found = []
    for step in (100, 3_600_000_000_000):
        index = start + step * np.arange(120).astype("timedelta64[ns]")
        model = completion(smooth="rows").fit(pd.DataFrame(holes, index=index))
        found.append(np.asarray(model.reconstruct()))
    assert np.allclose(found[0], found[1], atol=0.2)


def test_centuries_are_no_surprise():
    X = table(0)[:60]
    holes = np.where(hidden(X.shape, "points"), np.nan, X)
    far = pd.DataFrame(holes, index=np.array("1000-01-01", "M8[s]") + np.arange(60))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.isfinite(np.asarray(completion().fit(far).reconstruct())).all()
