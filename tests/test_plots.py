"""Plots show the numbers of the models; the tests check these numbers, not pixels."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import library
from scipy import sparse
from sklearn.base import BaseEstimator

import scaledgd as sg

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

from scaledgd import plots  # noqa: E402
from scaledgd.estimators.local_observations import LocalObservations  # noqa: E402
from scaledgd.plots import (  # noqa: E402
    ConvergenceDisplay,
    IntervalDisplay,
    MissingDisplay,
    RankCurveDisplay,
    ResidualDisplay,
    SeparationDisplay,
    SpectrumDisplay,
)

pytestmark = pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")


@pytest.fixture(autouse=True)
def _no_figures_left():
    before = dict(matplotlib.rcParams)
    yield
    plt.close("all")
    assert dict(matplotlib.rcParams) == before


def table(shape=(40, 30), rank=2, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    return X + noise * rng.standard_normal(shape), rng


@pytest.fixture(scope="module")
def holes():
    X, rng = table()
    return np.where(rng.random(X.shape) < 0.7, X, np.nan)


@pytest.fixture(scope="module")
def completion(holes):
    return sg.MatrixCompletion(random_state=0).fit(holes)


@pytest.fixture(scope="module")
def robust():
    X, rng = table()
    X[rng.random(X.shape) < 0.05] += 20.0
    X[3, 4:9] = np.nan
    return X, sg.RobustPCA(rank=2).fit(X)


def cube(seed=0):
    rng = np.random.default_rng(seed)
    X = sg.datasets.low_rank_tensor((12, 10, 8), 2, kappa=2, rng=seed).full()
    X = X / np.std(X) + 0.05 * rng.standard_normal(X.shape)
    return np.where(rng.random(X.shape) < 0.7, X, np.nan)


@pytest.fixture(scope="module")
def tensor():
    X = cube()
    return X, sg.TensorCompletion(random_state=0).fit(X)


@pytest.fixture(scope="module")
def regressor():
    X, rng = table((6, 5), 1, 0.0)
    A = rng.standard_normal((200, 6, 5))
    y = np.tensordot(A, X, 2) + 0.1 * rng.standard_normal(200)
    return sg.MatrixRegressor(random_state=0).fit(A, y)


def drawn(display):
    """Draw a figure and return all of its axes."""
    display.figure_.canvas.draw()
    return display.figure_.axes


# ---- convergence


def test_convergence_is_the_history(completion, robust, tensor, regressor):
    for model in (completion, robust[1], tensor[1], regressor):
        display = ConvergenceDisplay.from_estimator(model)
        x, y = display.line_.get_data()
        np.testing.assert_array_equal(y, [record["value"] for record in model.history_])
        np.testing.assert_array_equal(x, [record["t"] for record in model.history_])
        assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("iteration", "loss")
        drawn(display)


def test_convergence_against_time(robust):
    display = ConvergenceDisplay.from_estimator(robust[1], against="seconds")
    seconds = [record["seconds"] for record in robust[1].history_]
    np.testing.assert_array_equal(display.line_.get_xdata(), seconds)
    assert display.ax_.get_xlabel() == "time (s)"
    with pytest.raises(ValueError, match="against"):
        ConvergenceDisplay([1.0], against="moons")
    with pytest.raises(ValueError, match="needs the seconds"):
        ConvergenceDisplay([1.0], against="seconds")


def test_stages_are_named_and_shaded():
    display = ConvergenceDisplay([8.0, 1.0, 0.1, 0.01], stages=["far", "far", "near", "near"])
    ax = display.plot().ax_
    assert {text.get_text() for text in ax.texts} == {"far", "near"}
    # "near" begins at the last record of "far"
    (band,) = ax.patches
    assert (band.get_x(), band.get_width()) == (1.0, 2.0)


@pytest.mark.parametrize("losses", [[1.0, 1e-3, 0.0], [0.0, 2.0, 1e-9], [0.0, 0.0], [3.0], [0.0]])
def test_losses_of_zero_can_be_drawn(losses):
    display = ConvergenceDisplay(losses).plot()
    drawn(display)
    low, high = display.ax_.get_ylim()
    assert np.isfinite([low, high]).all()
    if max(losses) > 0 and len(losses) > 1:
        assert display.ax_.get_yscale() == "log"
        assert 0 < low < min(v for v in losses if v > 0)
        assert display.ax_.get_legend().get_texts()[0].get_text() == "loss 0"


def test_many_iterations_and_stages_can_be_drawn():
    losses = np.geomspace(1, 1e-20, 300)
    display = ConvergenceDisplay(losses, stages=[f"stage {k // 7}" for k in range(300)]).plot()
    drawn(display)
    assert 1 < len(display.ax_.texts) < 300 // 7


def test_without_iterations_there_is_no_curve():
    model = Stub(np.ones((2, 2)))
    model.history_, model.status_ = [], "nothing had to be fitted"
    with pytest.raises(ValueError, match="nothing had to be fitted"):
        ConvergenceDisplay.from_estimator(model)


# ---- ranks


def test_spectrum_and_rank(completion):
    display = SpectrumDisplay.from_estimator(completion, unit="mV")
    (line,), (mark,) = display.lines_, display.rank_lines_
    np.testing.assert_array_equal(line.get_ydata(), completion.singular_values_)
    assert set(mark.get_xdata()) == {completion.rank_}
    p = completion._model.observations.size / 1200
    level = np.sqrt(completion.noise_variance_ / p) * (np.sqrt(40) + np.sqrt(30))
    assert display.noise == pytest.approx(level)
    assert display.ax_.get_yscale() == "log"
    assert display.ax_.get_ylabel() == "singular value (mV)"
    names = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert names == [f"rank {completion.rank_}", "noise"]


def test_noise_alone_reaches_about_that_level():
    rng = np.random.default_rng(0)
    p, noise = 0.4, rng.standard_normal((200, 150))
    seen = np.where(rng.random(noise.shape) < p, noise, 0.0) / p
    level = np.sqrt(1 / p) * (np.sqrt(200) + np.sqrt(150))
    assert np.linalg.norm(seen, 2) == pytest.approx(level, rel=0.05)


def test_spectrum_of_a_tensor_has_a_line_per_mode(tensor):
    model = tensor[1]
    display = SpectrumDisplay.from_estimator(model)
    assert len(display.lines_) == 3
    for line, values in zip(display.lines_, model.singular_values_, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), values)
    styles = {(line.get_linestyle(), line.get_marker()) for line in display.lines_}
    assert len(styles) == 3  # lines differ without colour
    assert {line.get_xdata()[0] for line in display.rank_lines_} == set(model.rank_)
    assert display.noise is None


def test_spectrum_of_nothing_and_of_few_values(regressor):
    drawn(SpectrumDisplay(np.zeros(0), 0).plot())
    drawn(SpectrumDisplay(np.zeros(0), 0, noise=1.0).plot())
    drawn(SpectrumDisplay([2.0, 0.0], 1, noise=0.0).plot())
    assert SpectrumDisplay.from_estimator(regressor).noise is None  # no noise of entries


def test_no_level_of_noise_where_rows_were_scaled(holes):
    scaled = sg.MatrixCompletion(rank=2, scale="rows").fit(holes)
    assert SpectrumDisplay.from_estimator(scaled).noise is None


def test_rank_curve_is_the_path(completion):
    display = RankCurveDisplay.from_estimator(completion, unit="mV")
    used = {
        record["rank"]: record["held_out"]
        for record in completion.rank_path_
        if (record["center"], record["scale"]) == (completion.center_, completion.scale_)
    }
    assert display.ranks == sorted(used)
    x, y = display.line_.get_data()
    np.testing.assert_array_equal(x, display.ranks)
    np.testing.assert_allclose((y / y[0]) ** 2, [used[r] / used[x[0]] for r in x])
    assert set(display.chosen_line_.get_xdata()) == {completion.rank_}
    assert display.ax_.get_ylabel() == "held-out RMS error (mV)"


def test_rank_curve_is_in_the_units_of_the_data(holes, completion):
    # without a low-rank part, the error is the size of the data
    display = RankCurveDisplay.from_estimator(completion)
    assert display.errors[0] == pytest.approx(np.sqrt(np.nanmean(holes**2)), rel=0.4)
    larger = sg.MatrixCompletion(random_state=0).fit(1024 * holes)
    many = RankCurveDisplay.from_estimator(larger)
    np.testing.assert_allclose(many.errors, 1024 * display.errors)


def test_rank_curve_of_tuples(tensor):
    display = RankCurveDisplay.from_estimator(tensor[1])
    tried = {r["rank"] for r in tensor[1].rank_path_ if isinstance(r["rank"], tuple)}
    assert set(display.ranks) <= tried
    place = display.ranks[display.chosen_line_.get_xdata()[0]]
    assert all(a >= b for a, b in zip(place, tensor[1].rank_, strict=True))
    (name,) = display.ax_.get_legend().get_texts()
    assert name.get_text() == "chosen: " + " × ".join(map(str, tensor[1].rank_))


def test_rank_curve_of_a_regression(regressor):
    display = RankCurveDisplay.from_estimator(regressor)
    assert len(set(display.ranks)) == len(display.ranks) > 1
    assert display.chosen == regressor.rank_
    first = regressor.rank_path_[0]
    assert display.errors[0] == pytest.approx(np.sqrt(first["held_out"]))


def test_rank_curve_by_hand_has_error_bars():
    display = RankCurveDisplay([1, 2, 3], [3.0, 1.0, 2.0], spread=[0.1, 0.2, 0.3], chosen=2).plot()
    (bars,) = display.ax_.containers[0].lines[2]
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    np.testing.assert_allclose(ends, [[2.9, 3.1], [0.8, 1.2], [1.7, 2.3]])


def test_without_held_out_errors_there_is_no_rank_curve(robust, holes):
    exact = np.outer(np.arange(1.0, 9), np.arange(1.0, 7))
    for model in (robust[1], sg.MatrixCompletion(rank=1).fit(exact)):
        with pytest.raises(ValueError, match=r'rank="auto".*scaledgd.rank_curve'):
            RankCurveDisplay.from_estimator(model)


# ---- missing cells


def test_what_is_missing(holes, completion):
    known = ~np.isnan(holes)
    for display in (MissingDisplay.from_data(holes), MissingDisplay.from_estimator(completion)):
        np.testing.assert_array_equal(display.image_.get_array(), known)
        np.testing.assert_allclose(display.row_fraction, known.mean(axis=1))
        np.testing.assert_allclose(display.column_fraction, known.mean(axis=0))
        (side,) = display.row_ax_.patches
        np.testing.assert_allclose(side.get_data().values, known.mean(axis=1))
        assert (display.ax_.get_ylabel(), display.ax_.get_xlabel()) == ("row", "column")
        drawn(display)


@pytest.mark.parametrize("kind", [np.ma.MaskedArray, sparse.csr_array, sparse.coo_matrix, "given"])
def test_what_is_missing_of_other_tables(holes, kind):
    known = ~np.isnan(holes)
    observed = None
    if kind == "given":
        X, observed = np.nan_to_num(holes), known
    elif kind is np.ma.MaskedArray:
        X = np.ma.MaskedArray(np.nan_to_num(holes), ~known)
    else:
        X = kind(np.where(known, 1.0, 0.0))
    display = MissingDisplay.from_data(X, observed)
    np.testing.assert_array_equal(display.fraction, known)


def test_what_is_missing_of_a_large_table_is_in_blocks(monkeypatch):
    monkeypatch.setattr(plots.blocks, "PIXELS", 10)
    rng = np.random.default_rng(0)
    known = rng.random((37, 20)) < np.linspace(0, 1, 37)[:, None]
    display = MissingDisplay.from_data(np.where(known, 1.0, np.nan))
    assert display.fraction.shape == (10, 10)
    edges = np.linspace(0, 37, 11).round().astype(int)
    block = known[edges[3] : edges[4], 4:6]
    assert display.fraction[3, 2] == pytest.approx(block.mean())
    # the axes still count rows and columns
    assert display.image_.get_extent() == [-0.5, 19.5, 36.5, -0.5]
    sizes = np.diff(edges)[:, None] * 2
    assert (display.fraction * sizes).sum() == pytest.approx(known.sum())
    assert len(display.row_fraction) == 37


def test_what_is_missing_of_a_tensor(tensor):
    known = ~np.isnan(tensor[0])
    display = MissingDisplay.from_estimator(tensor[1], modes=(2, 0))
    np.testing.assert_allclose(display.fraction, known.mean(axis=1).T)
    np.testing.assert_allclose(display.row_fraction, known.mean(axis=(0, 1)))
    np.testing.assert_allclose(display.column_fraction, known.mean(axis=(1, 2)))
    assert (display.ax_.get_ylabel(), display.ax_.get_xlabel()) == ("mode 2", "mode 0")
    for modes in ((0, 0), (0, 3), (-1, 0)):
        with pytest.raises(ValueError, match="modes must be two"):
            MissingDisplay.from_estimator(tensor[1], modes=modes)


# ---- separation and residuals


def test_separation_adds_up(robust):
    X, model = robust
    display = SeparationDisplay.from_estimator(model, unit="mV")
    data, low_rank, outliers = (image.get_array() for image in display.images_[0])
    np.testing.assert_array_equal(data.filled(np.nan), X)
    np.testing.assert_array_equal(low_rank, model.reconstruct())
    np.testing.assert_array_equal(outliers, model.outliers_.toarray())
    first, second, third = (image.get_clim() for image in display.images_[0])
    assert first == second
    assert third[0] == -third[1]
    # a few outliers do not stretch the colour scale
    assert first[1] < np.nanmax(X)
    labels = [ax.get_xlabel() for ax in drawn(display)]
    assert labels == ["column"] * 3 + ["value (mV)", "outlier (mV)"]


def test_separation_of_a_completion_with_outliers(robust):
    X, _ = robust
    model = sg.MatrixCompletion(rank=2, outliers="auto").fit(X)
    display = SeparationDisplay.from_estimator(model)
    assert np.count_nonzero(display.outliers) == model.outliers_.nnz > 0


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("rows_are", ["frames", "pixels"])
def test_frames_of_a_video(order, rows_are):
    video = np.arange(5 * 4 * 3, dtype=float).reshape(5, 4, 3)
    flat = np.stack([image.ravel(order=order) for image in video])
    data = flat if rows_are == "frames" else flat.T
    display = SeparationDisplay(
        data, data + 1, data - 1, [4, 2], (4, 3), order=order, rows_are=rows_are
    ).plot()
    assert display.axes_.shape == (2, 3)
    for k, frame in enumerate([4, 2]):
        for image, shift in zip(display.images_[k], (0, 1, -1), strict=True):
            np.testing.assert_array_equal(image.get_array(), video[frame] + shift)
        assert display.axes_[k, 0].get_ylabel() == f"frame {frame}"
    drawn(display)


def test_slices_of_a_tensor_are_frames():
    X = np.nan_to_num(cube())
    X[2, 3, 4] += 30.0
    model = sg.TensorRobustPCA(rank=2).fit(X)
    display = SeparationDisplay.from_estimator(model, frames=[2])
    np.testing.assert_array_equal(display.images_[0, 0].get_array(), X[2])
    with pytest.raises(ValueError, match="frames="):
        SeparationDisplay.from_estimator(model)


def test_separation_refuses_what_it_cannot_show(completion, robust):
    with pytest.raises(ValueError, match="nothing was separated"):
        SeparationDisplay.from_estimator(completion)
    with pytest.raises(ValueError, match="both frames and image_shape"):
        SeparationDisplay.from_estimator(robust[1], frames=[0])
    with pytest.raises(ValueError, match="12 pixels, but a frame has 30"):
        SeparationDisplay.from_estimator(robust[1], frames=[0], image_shape=(4, 3))
    with pytest.raises(ValueError, match="order"):
        SeparationDisplay.from_estimator(robust[1], order="A")
    with pytest.raises(ValueError, match="rows_are"):
        SeparationDisplay.from_estimator(robust[1], rows_are="images")
    with pytest.raises(ValueError, match="not of 4"):
        SeparationDisplay(*[np.zeros((2, 2, 2, 2))] * 3)


@pytest.mark.parametrize("shape", [(3, 5), (40, 7), (17, 32)])
def test_block_means_are_means_of_what_is_known(shape, monkeypatch):
    monkeypatch.setattr(plots.blocks, "PIXELS", 10)
    rng = np.random.default_rng(0)
    values = rng.standard_normal(shape)
    values[1:3, 2] = np.nan
    small = plots.blocks.block_means(values)
    assert small.shape == tuple(min(n, 10) for n in shape)
    index = np.nonzero(np.isfinite(values))
    from_cells = plots.blocks.cell_means(index, shape, values[index])
    np.testing.assert_allclose(small, from_cells)  # whole tables and single cells agree
    if max(shape) <= 10:
        np.testing.assert_array_equal(small, values)
    edges = [plots.blocks.block_edges(n) for n in shape]
    last = values[edges[0][-2] :, edges[1][-2] :]
    assert small[-1, -1] == pytest.approx(np.nanmean(last))
    assert np.isnan(plots.blocks.block_means(np.full(shape, np.nan))).all()


def test_large_separations_are_drawn_in_blocks(monkeypatch):
    monkeypatch.setattr(plots.blocks, "PIXELS", 5)
    data = np.arange(200.0).reshape(20, 10)
    data[0:4, 0:2] = np.nan
    data[5, 2] = np.nan
    outliers = np.zeros_like(data)
    outliers[9, 9] = -7.0
    display = SeparationDisplay(data, np.nan_to_num(data), outliers).plot()
    means, _, extremes = (image.get_array() for image in display.images_[0])
    assert means.shape == (5, 5)
    assert means.mask[0, 0]
    assert means[1, 1] == pytest.approx(np.nanmean(data[4:8, 2:4]))
    assert extremes[2, 4] == -7.0  # a single cell is not averaged away


def test_residuals_are_observed_minus_estimate(holes, completion):
    display = ResidualDisplay.from_estimator(completion, unit="mV")
    expected = holes - completion.reconstruct()
    image = display.image_.get_array()
    np.testing.assert_allclose(image.filled(np.nan), expected)
    low, high = display.image_.get_clim()
    assert low == -high
    known = expected[~np.isnan(expected)]
    np.testing.assert_allclose(display.standardised, known / np.sqrt(completion.noise_variance_))
    first, second, bar = drawn(display)
    assert (first.get_xlabel(), first.get_ylabel()) == ("column", "row")
    assert (second.get_xlabel(), second.get_ylabel()) == ("standardised residual", "density")
    assert bar.get_ylabel() == "observed − estimate (mV)"
    bars = second.patches[0].get_data()
    assert (bars.values * np.diff(bars.edges)).sum() == pytest.approx(1.0)


def test_outliers_are_mapped_but_not_in_the_histogram(robust):
    X, model = robust
    display = ResidualDisplay.from_estimator(model)
    np.testing.assert_allclose(display.residual, X - model.reconstruct())
    assert len(display.standardised) == np.isfinite(X).sum() - model.outliers_.nnz
    assert np.abs(display.standardised).max() < 6


def test_residuals_of_scaled_rows_are_of_size_one_in_every_row():
    X, _ = table((40, 60))
    X *= np.geomspace(1, 1e4, 40)[:, None]
    for scale, axis in (("rows", 1), ("columns", 0)):
        data = X if scale == "rows" else X.T
        model = sg.MatrixCompletion(rank=2, scale=scale).fit(data)
        z = ResidualDisplay.from_estimator(model).standardised.reshape(data.shape)
        np.testing.assert_allclose(np.mean(z**2, axis=axis), 1.0)


def test_residuals_of_a_tensor(tensor):
    X, model = tensor
    expected = X - model.reconstruct()
    display = ResidualDisplay.from_estimator(model, modes=(1, 2))
    np.testing.assert_allclose(display.residual, np.nanmean(np.abs(expected), axis=0))
    assert display.image_.get_clim()[0] == 0.0
    slice_ = ResidualDisplay.from_estimator(model, modes=(1, 0), at=[3])
    np.testing.assert_allclose(slice_.residual, expected[:, :, 3].T)
    with pytest.raises(ValueError, match="at must have"):
        ResidualDisplay.from_estimator(model, at=[1, 2])


def test_residuals_without_noise_or_with_weights(holes):
    X, _ = table(noise=0.0)
    exact = sg.MatrixCompletion(rank=2).fit(np.round(X * 0))
    drawn(ResidualDisplay.from_estimator(exact))
    weight = np.linspace(1, 3, 40)
    model = sg.MatrixCompletion(rank=2).fit(holes, sample_weight=weight)
    z = ResidualDisplay.from_estimator(model).standardised
    root = np.sqrt(weight / weight.mean())[:, None]
    known = ~np.isnan(holes)
    ratio = z / ((holes - model.reconstruct()) * root)[known]
    np.testing.assert_allclose(ratio, ratio[0])


def test_a_regression_has_no_cells(regressor):
    for display in (MissingDisplay, ResidualDisplay, SeparationDisplay):
        with pytest.raises(TypeError, match="MatrixRegressor was not fitted to the cells"):
            display.from_estimator(regressor)


# ---- intervals


class Stub(BaseEstimator):
    """An estimator with given intervals."""

    def __init__(self, X):
        index = tuple(np.nonzero(~np.isnan(X)))
        data = LocalObservations(index, X[~np.isnan(X)], X.shape)
        self._model = SimpleNamespace(observations=data, held=None)
        self.asked = None

    def __sklearn_is_fitted__(self):
        return True

    def fit(self):
        return self

    def predict_entries(self, index):
        return 10.0 * index[0] + index[1]

    def interval(self, index, level, *, kind):
        self.asked = level, kind
        return self.predict_entries(index) - 1, self.predict_entries(index) + 2


@pytest.mark.parametrize("side", ["row", "column"])
def test_intervals(holes, side):
    model = Stub(holes)
    truth = np.zeros(30 if side == "row" else 40)
    display = IntervalDisplay.from_estimator(
        model, **{side: 7}, level=0.8, kind="conformal", truth=truth, unit="mV"
    )
    assert model.asked == (0.8, "conformal")
    x, y = display.line_.get_data()
    np.testing.assert_array_equal(y, 70 + x if side == "row" else 10 * x + 7)
    np.testing.assert_array_equal(display.lower, y - 1)
    np.testing.assert_array_equal(display.upper, y + 2)
    seen = holes[7] if side == "row" else holes[:, 7]
    np.testing.assert_array_equal(display.points_.get_ydata(), seen)
    names = [text.get_text() for text in display.ax_.get_legend().get_texts()]
    assert names == ["80 % interval of the new observation", "estimate", "truth", "observed"]
    other = "column" if side == "row" else "row"
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == (other, "value (mV)")
    drawn(display)


@pytest.mark.parametrize("zone", [None, "Europe/Oslo"])
def test_intervals_are_over_times_where_labels_are_times(holes, zone):
    import pandas as pd

    times = pd.date_range("2024-03-04", periods=len(holes), freq="h", tz=zone)
    model = sg.MatrixCompletion(rank=2, smooth="none").fit(pd.DataFrame(holes, index=times))
    display = IntervalDisplay.from_estimator(model, column=0)
    assert display.position[5] == np.datetime64("2024-03-04T05")
    assert display.ax_.get_xlabel() == "time"
    display.figure_.canvas.draw()
    labels = [text.get_text() for text in display.ax_.get_xticklabels()]
    assert any(re.fullmatch(r"\d\d(:\d\d)?", label) for label in labels), labels
    assert IntervalDisplay.from_estimator(model, row=0).ax_.get_xlabel() == "column"


def test_intervals_are_of_one_row_or_column(holes):
    for both in ({}, {"row": 1, "column": 1}):
        with pytest.raises(ValueError, match="either row or column"):
            IntervalDisplay.from_estimator(Stub(holes), **both)


# ---- all displays


SINGLE = {
    "convergence": lambda ax: ConvergenceDisplay([1.0, 0.1]).plot(ax),
    "spectrum": lambda ax: SpectrumDisplay([3.0, 1.0], 2).plot(ax),
    "rank": lambda ax: RankCurveDisplay([1, 2], [1.0, 2.0]).plot(ax),
    "missing": lambda ax: MissingDisplay(np.eye(3), np.ones(3) / 3, np.ones(3) / 3).plot(ax),
    "residual": lambda ax: ResidualDisplay(np.eye(3), np.zeros(9)).plot(ax),
    "interval": lambda ax: IntervalDisplay([0, 1], [0, 1], [0, 0], [1, 1]).plot(ax),
}


@pytest.mark.parametrize("name", SINGLE)
def test_the_axes_of_the_user_are_used(name):
    figure, (other, ax) = plt.subplots(1, 2)
    size = ax.xaxis.label.get_fontsize()
    display = SINGLE[name](ax)
    assert getattr(display, "ax_", None) is ax or display.axes_[0, 0] is ax
    assert display.figure_ is figure
    assert plt.get_fignums() == [figure.number]
    assert not other.has_data()
    assert ax.xaxis.label.get_fontsize() == size
    figure.canvas.draw()


@pytest.mark.parametrize("name", SINGLE)
def test_a_new_figure_has_labels(name):
    display = SINGLE[name](None)
    assert plt.get_fignums() == [display.figure_.number]
    for ax in drawn(display):
        assert ax.get_xlabel() or ax.get_ylabel() or ax.get_yticklabels()


def test_several_axes_of_the_user_are_used(robust):
    figure, axes = plt.subplots(1, 3)
    display = SeparationDisplay.from_estimator(robust[1], ax=axes)
    assert list(display.axes_[0]) == list(axes)
    assert plt.get_fignums() == [figure.number]
    with pytest.raises(ValueError, match="takes 3 axes"):
        SeparationDisplay.from_estimator(robust[1], ax=axes[:2])


def test_keywords_reach_the_artists(holes):
    line = ConvergenceDisplay([1.0, 0.1]).plot(c="red", lw=3).line_
    assert (line.get_color(), line.get_linewidth()) == ("red", 3)
    assert MissingDisplay.from_data(holes, cmap="gray").image_.get_cmap().name == "gray"


def test_images_are_rasterised_and_the_rest_is_not(holes):
    display = MissingDisplay.from_data(holes)
    assert display.image_.get_rasterized()
    assert not display.ax_.xaxis.label.get_rasterized()


def test_torch_models_are_drawn_as_numpy_ones_are(holes):
    torch = library("torch")
    model = sg.MatrixCompletion(random_state=0).fit(torch.asarray(holes))
    known = ~np.isnan(holes)
    assert isinstance(SpectrumDisplay.from_estimator(model).singular_values, np.ndarray)
    np.testing.assert_array_equal(MissingDisplay.from_estimator(model).fraction, known)
    np.testing.assert_array_equal(MissingDisplay.from_data(torch.asarray(holes)).fraction, known)
    residual = ResidualDisplay.from_estimator(model).residual
    np.testing.assert_allclose(residual, holes - model.reconstruct().numpy())
    ConvergenceDisplay.from_estimator(model)
    RankCurveDisplay.from_estimator(model)
    clean = sg.RobustPCA(rank=2).fit(torch.asarray(np.nan_to_num(holes)))
    display = SeparationDisplay.from_estimator(clean)
    np.testing.assert_array_equal(display.low_rank, clean.reconstruct().numpy())


def test_intervals_of_torch_models_ask_with_tensors(holes):
    torch = library("torch")
    stub = Stub(holes)
    data = stub._model.observations
    index = tuple(torch.asarray(i) for i in data.index)
    stub._model.observations = LocalObservations(index, torch.asarray(data.y), (40, 30))
    display = IntervalDisplay.from_estimator(stub, row=2)
    assert isinstance(display.estimate, np.ndarray)
    np.testing.assert_array_equal(display.observed, holes[2])


def test_without_matplotlib_one_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r'pip install "scaledgd\[plot\]"'):
        ConvergenceDisplay([1.0, 0.1]).plot()


def test_the_module_does_not_import_matplotlib():
    import subprocess

    code = "import sys, scaledgd.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
