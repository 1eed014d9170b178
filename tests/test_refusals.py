"""What cannot be a table of numbers, or must not be replaced, is refused with a sentence."""

import os
import re
import stat
import warnings

import numpy as np
import pytest

import scaledgd as sg
from scaledgd import report

rng = np.random.default_rng(0)
TABLE = rng.standard_normal((30, 2)) @ rng.standard_normal((2, 12))
TABLE = np.where(rng.random(TABLE.shape) < 0.8, TABLE, np.nan)
ENTRYWISE = (sg.MatrixCompletion, sg.RobustPCA, sg.TensorCompletion, sg.TensorRobustPCA)


@pytest.fixture(scope="module")
def model():
    return sg.MatrixCompletion(rank=1).fit(np.outer(np.arange(1.0, 7), np.arange(1.0, 6)))


# ---- files


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_not_replaced(model, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for write in (model.save, lambda p: report.write(p, "page", [])):
        with pytest.raises(ValueError, match="is not a regular file; give the name of a file"):
            write(path)
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_folder_is_not_replaced(model, tmp_path):
    with pytest.raises(ValueError, match="is not a regular file"):
        model.save(tmp_path)


def test_a_link_to_a_file_is_followed(model, tmp_path):
    (tmp_path / "link.npz").symlink_to(tmp_path / "model.npz")
    for _ in range(2):  # the file is made, and then replaced
        model.save(tmp_path / "link.npz")
    assert (tmp_path / "link.npz").is_symlink()
    assert sg.load(tmp_path / "model.npz").rank_ == 1


# ---- what is not a number


def dates():
    days = np.datetime64("2020-01-01") + np.arange(60).astype("timedelta64[D]")
    days[0] = np.datetime64("NaT")
    return days.reshape(12, 5)


@pytest.mark.parametrize("estimator", ENTRYWISE)
def test_dates_and_durations_are_not_numbers(estimator):
    index = tuple(np.indices((12, 5)).reshape(2, -1))
    for X, word in ((dates(), "dates"), (dates() - dates()[1, 1], "durations")):
        for fit in (
            lambda model, X: model.fit(X),
            lambda model, X: model.fit_entries(index, X.ravel(), X.shape),
        ):
            with pytest.raises(TypeError, match=f"holds {word} .*; convert them, e.g. to days"):
                fit(estimator(), X)


def test_dates_are_no_measurements():
    A, y = rng.standard_normal((50, 12)), np.arange(50).astype("datetime64[D]")
    with pytest.raises(TypeError, match="y holds dates"):
        sg.MatrixRegressor(shape=(3, 4)).fit(A, y)
    with pytest.raises(TypeError, match="A holds dates"):
        sg.MatrixRegressor(shape=(3, 4)).fit(np.tile(y[:, None], (1, 12)), np.arange(50))
    with pytest.raises(TypeError, match="sample_weight holds durations"):
        sg.MatrixCompletion().fit(A, sample_weight=y - y[0])


@pytest.mark.parametrize("estimator", ENTRYWISE)
def test_an_integer_beyond_floating_point(estimator):
    X = TABLE.astype(object)
    X[0, 0] = 10**400
    for given in (X, X.tolist()):
        with pytest.raises(ValueError, match=r"too large .*; divide X by a constant, or mark"):
            estimator().fit(given)


def test_numbers_whose_sums_are_not_finite():
    X = np.array([[1.7e308, 1e308], [np.nan, 1e308], [1e308, 1.7e308]])
    with pytest.raises(ValueError, match=r"whose sums are not finite .*; divide X by a constant"):
        sg.MatrixCompletion().fit(X)


def test_parameters_beyond_floating_point():
    for name, value in (("tol", 10**400), ("clip", (0, 10**400))):
        with pytest.raises(ValueError, match=f"^{name} .*too large"):
            sg.MatrixCompletion(**{name: value}).fit(TABLE)
    assert sg.MatrixCompletion(10**400).fit(TABLE).rank_ <= 12


@pytest.mark.parametrize("estimator", ENTRYWISE)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_numbers_whose_sums_overflow(estimator, kind):
    with pytest.raises(ValueError, match=r"X holds numbers beyond .*; divide X by a constant"):
        estimator().fit((TABLE / np.nanmax(np.abs(TABLE))).astype(kind) * np.finfo(kind).max)


@pytest.mark.parametrize("rank", [2, "auto"])
@pytest.mark.parametrize("big", [1e20, -1e100, 1e300])
def test_an_error_of_any_size_is_rejected(rank, big):
    X = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 30))
    Y = X + 0.1 * rng.standard_normal(X.shape)
    Y[3, 4] = big
    model = sg.RobustPCA(rank, random_state=0).fit(Y)
    assert np.sqrt(np.mean((model.reconstruct() - X) ** 2)) < 0.1
    assert model.outliers_.toarray()[3, 4] == pytest.approx(big)


def test_a_shape_far_beyond_memory():
    index = np.array([0, 1, 2**31 - 2]), np.array([0, 1, 2])
    with pytest.raises(MemoryError, match=r"number only those that have an entry"):
        sg.MatrixCompletion().fit_entries(index, np.ones(3), (2**31 - 1, 20))


@pytest.mark.parametrize("missing", [np.nan, np.datetime64("NaT")])
def test_a_coordinate_that_is_missing_is_its_own(missing):
    xr = pytest.importorskip("xarray")
    kind = "datetime64[D]" if isinstance(missing, np.datetime64) else float
    other = np.append(np.arange(11).astype(kind), missing)
    X = xr.DataArray(TABLE, dims=("time", "place"), coords={"place": other})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sg.MatrixCompletion(rank=2).fit(X).transform(X).shape == TABLE.shape


# ---- pages


def test_names_cannot_break_out_of_the_script(tmp_path):
    name = "<!--<script>&\u2028\u2029</script>"
    chart = report.Chart("chart", "x", "y", [report.Curve(name, [0, 1], [0, 1])])
    report.write(tmp_path / "page.html", "page", [report.Section("one", chart)])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert not set(text) & set("<>&\u2028\u2029")
    assert r"\u003c!--\u003cscript\u003e\u0026\u2028\u2029" in text


# ---- advice


def test_advice_does_not_contradict_itself():
    with pytest.warns(sg.DataWarning) as said:
        sg.MatrixCompletion().fit([[1.0, np.nan, np.nan]])
    (message,) = (str(w.message) for w in said)
    assert "2 columns have no observation and are filled with offsets only" in message
    assert "the estimate is offsets only" in message
    assert "lower the rank" not in message


@pytest.mark.parametrize("side", ["rows", "columns", "both"])
@pytest.mark.parametrize("estimator", [sg.MatrixRegressor, sg.TensorRegressor])
def test_measurements_have_no_sides(estimator, side):
    A = np.random.default_rng(0).standard_normal((20, 3, 2))
    words = f'center must be "auto" or "none" for regression, not \'{side}\'; measurements have no'
    with pytest.raises(ValueError, match=words):
        estimator(rank=1, center=side).fit(A, A[:, 0, 0])


def test_the_name_of_a_file_is_no_table(tmp_path):
    for name in ("table.csv", tmp_path / "table.csv"):
        with pytest.raises(TypeError, match=r"not the name of a file; read '.*table\.csv' first"):
            sg.MatrixCompletion().fit(name)
