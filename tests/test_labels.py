"""Frames and labelled arrays: the same kind comes out, with its names."""

import numpy as np
import pytest
from fitted import tensor

import scaledgd as sg

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
xr = pytest.importorskip("xarray")

pytestmark = pytest.mark.filterwarnings("ignore::scaledgd.DataWarning")

RNG = np.random.default_rng(0)
SEEN = RNG.random((24, 8)) < 0.8
# the first column holds integers throughout, the third one only where it is seen
X = np.outer(np.arange(1.0, 25) + ~SEEN[:, 2] / 6, [6.0, 2, 3, 4, 5, 6, 7, 8])
X[:, 0] = np.rint(X[:, 0])
Y = np.where(SEEN, X, np.nan)
Y[:, 0] = X[:, 0]
NAMES = [f"sensor {k}" for k in range(8)]


def pandas_frame():
    frame = pd.DataFrame(Y, columns=NAMES, index=pd.date_range("2020", periods=24, freq="h"))
    types = {NAMES[0]: "int32", NAMES[1]: "float32", NAMES[2]: "Int64"}
    return frame.astype(types)


def polars_frame():
    return pl.DataFrame(dict(zip(NAMES, Y.T, strict=True))).with_columns(
        pl.col(NAMES[0]).cast(pl.Int32),
        pl.col(NAMES[1]).cast(pl.Float32),
        pl.col(NAMES[2]).fill_nan(None).cast(pl.Int64),
    )


def labelled_array():
    return xr.DataArray(
        tensor(noise=0).astype(np.float32),
        dims=("time", "lat", "lon"),
        coords={
            "time": pd.date_range("2020", periods=14),
            "lat": np.linspace(-5, 5, 12),
            "lon": np.arange(10),
            "station": ("lat", [f"s{k}" for k in range(12)]),
        },
        attrs={"units": "K"},
        name="temperature",
    )


# ---- pandas and polars


def test_pandas_in_pandas_out():
    frame = pandas_frame()
    copy = frame.copy()
    model = sg.MatrixCompletion(1)
    out = model.fit_transform(frame)
    assert isinstance(out, pd.DataFrame)
    assert out.index.equals(frame.index)
    assert list(out.columns) == NAMES == list(model.feature_names_in_)
    # integers that had holes are estimates now, and are not rounded
    expected = ["int32", "float32", "float64"] + ["float64"] * 5
    assert [str(d) for d in out.dtypes] == expected
    np.testing.assert_allclose(out, X, rtol=1e-6)
    pd.testing.assert_frame_equal(frame, copy)


def test_polars_in_polars_out():
    frame = polars_frame()
    model = sg.MatrixCompletion(1).fit(frame)
    out = model.transform(frame)
    assert isinstance(out, pl.DataFrame)
    assert out.columns == NAMES == list(model.feature_names_in_)
    assert out.dtypes == [pl.Int32, pl.Float32] + [pl.Float64] * 6
    np.testing.assert_allclose(out.to_numpy(), X, rtol=1e-6)
    assert isinstance(model.reconstruct(), pl.DataFrame)


@pytest.mark.parametrize("made", [pandas_frame, polars_frame])
def test_the_numbers_are_those_of_the_array(made):
    model = sg.MatrixCompletion(1)
    plain = model.fit(Y).transform(Y)
    np.testing.assert_allclose(np.asarray(model.fit_transform(made())), plain, rtol=1e-6)


def test_all_single_precision_stays_so():
    frame = pd.DataFrame(Y.astype(np.float32), columns=NAMES)
    model = sg.MatrixCompletion(1).fit(frame)
    assert model.predict_entries(([0], [1])).dtype == np.float32
    assert set(model.transform(frame).dtypes) == {np.dtype("float32")}


@pytest.mark.parametrize("made", [pandas_frame, polars_frame])
def test_columns_that_are_not_numeric_are_named(made):
    frame = made()
    if isinstance(frame, pd.DataFrame):
        frame = frame.assign(town="Bern", day=pd.Timestamp("2020-01-01"), good=True)
    else:
        frame = frame.with_columns(
            pl.lit("Bern").alias("town"), pl.lit("Monday").alias("day"), good=True
        )
    with pytest.raises(ValueError, match=r"not numeric: 'town', 'day'; drop them \(X\.drop"):
        sg.MatrixCompletion(1).fit(frame)


def test_a_column_of_times_can_be_the_index():
    frame = pandas_frame().assign(day=pd.Timestamp("2020-01-01"))
    with pytest.raises(ValueError, match=r"X\.set_index\('day'\) makes them the times of the rows"):
        sg.MatrixCompletion(1).fit(frame)


def test_numbers_in_a_column_of_objects_are_numbers():
    frame = pd.DataFrame(Y, columns=NAMES).astype({NAMES[3]: object})
    np.testing.assert_allclose(sg.MatrixCompletion(1).fit_transform(frame), X, rtol=1e-6)


def test_numbers_that_can_be_missing_keep_their_type():
    frame = pd.DataFrame(Y, columns=NAMES).astype({NAMES[0]: "Int32", NAMES[1]: "Float64"})
    frame[NAMES[2]] = frame[NAMES[2]].astype(object)
    frame.loc[0, NAMES[2]] = pd.NA
    out = sg.MatrixCompletion(1).fit_transform(frame)
    assert [str(d) for d in out.dtypes[:3]] == ["Int32", "Float64", "float64"]
    np.testing.assert_allclose(out.to_numpy(dtype=float), X, rtol=1e-6)


def test_columns_of_many_levels_stay_so():
    columns = pd.MultiIndex.from_product([["a", "b"], range(4)], names=["side", "number"])
    frame = pd.DataFrame(Y, columns=columns)
    out = sg.MatrixCompletion(1).fit_transform(frame)
    pd.testing.assert_index_equal(out.columns, columns)


def test_frames_of_others_are_frames():
    class Special(pd.DataFrame):
        @property
        def _constructor(self):
            return Special

    out = sg.MatrixCompletion(1).fit_transform(Special(Y, columns=NAMES))
    assert isinstance(out, pd.DataFrame)


def test_columns_of_nulls_are_holes_and_long_integers_floats():
    frame = polars_frame().with_columns(pl.lit(None).alias("empty"))
    out = sg.MatrixCompletion(1).fit_transform(frame)
    assert out["empty"].null_count() == 0
    if hasattr(pl, "Int128"):
        frame = polars_frame().with_columns(pl.col(NAMES[0]).cast(pl.Int128))
        assert sg.MatrixCompletion(1).fit_transform(frame).dtypes[0] == pl.Float64


def test_later_rows_do_not_change_the_kind():
    model = sg.MatrixCompletion(1).fit(Y[:15]).partial_fit(Y[15:].astype(np.float32))
    assert model.reconstruct().dtype == np.float64


def test_other_columns_are_refused():
    model = sg.MatrixCompletion(1).fit(polars_frame())
    with pytest.raises(ValueError, match="feature names"):
        model.transform(polars_frame().rename({NAMES[0]: "other"}))


def test_large_integers_are_not_pretended_to_be_kept():
    frame = pd.DataFrame(Y, columns=NAMES)
    frame[NAMES[0]] = np.arange(24) + 2**60
    out = sg.MatrixCompletion(1, scale="columns").fit_transform(frame)
    assert out[NAMES[0]].dtype == np.float64


def test_a_lazy_frame_has_no_values_yet():
    with pytest.raises(TypeError, match="collect"):
        sg.MatrixCompletion(1).fit(polars_frame().lazy())


def test_what_was_asked_of_scikit_learn_is_given():
    frame = pandas_frame()
    out = sg.MatrixCompletion(1).set_output(transform="polars").fit_transform(frame)
    assert isinstance(out, pl.DataFrame)


def test_draws_of_a_frame_are_frames():
    draws = sg.MatrixCompletion(1).fit(pandas_frame()).sample(2, random_state=0)
    assert [type(d) for d in draws] == [pd.DataFrame] * 2
    assert draws[0].index.equals(pandas_frame().index)


def test_rows_that_were_added_have_no_labels_to_put_back():
    frame = pandas_frame()
    model = sg.MatrixCompletion(1).fit(frame[:15]).partial_fit(frame[15:])
    out = model.reconstruct()
    assert out.shape == X.shape
    assert list(out.columns) == NAMES


# ---- xarray


def test_labelled_arrays_in_labelled_arrays_out():
    array = labelled_array()
    out = sg.TensorCompletion(2).fit(array).transform(array)
    assert isinstance(out, xr.DataArray)
    xr.testing.assert_equal(out.coords.to_dataset(), array.coords.to_dataset())
    assert (out.name, out.attrs, out.dtype, out.dims) == (
        array.name,
        array.attrs,
        array.dtype,
        array.dims,
    )
    seen = np.isfinite(array.values)
    assert np.array_equal(out.values[seen], array.values[seen])
    assert np.all(np.isfinite(out))


def test_new_times_are_labelled_by_themselves():
    array = labelled_array()
    model = sg.TensorCompletion(2).fit(array[:10])
    out = model.transform(array[10:])
    assert np.array_equal(out.time, array.time[10:])
    assert model.reconstruct().sizes["time"] == 10


def test_a_labelled_table():
    array = xr.DataArray(Y, dims=("time", "place"), coords={"place": NAMES})
    out = sg.MatrixCompletion(1).fit_transform(array)
    assert list(out.place) == NAMES
    np.testing.assert_allclose(out, X, rtol=1e-6)
    out = sg.RobustPCA(1).fit_transform(array.fillna(1.0))
    assert isinstance(out, xr.DataArray)


def test_a_data_set_has_to_be_chosen_from():
    with pytest.raises(TypeError, match="pick one of its variables"):
        sg.TensorCompletion(2).fit(labelled_array().to_dataset())
    with pytest.raises(ValueError, match="astype"):
        sg.TensorCompletion(2).fit(labelled_array().astype(str))


def test_the_order_of_dimensions_and_coordinates_is_that_of_the_fit():
    array = labelled_array()
    model = sg.TensorCompletion(2).fit(array)
    with pytest.raises(ValueError, match="transpose"):
        model.transform(array.transpose("lat", "time", "lon"))
    with pytest.raises(ValueError, match="coordinates 'lon'"):
        model.transform(array.isel(lon=[1, 0, *range(2, 10)]))
    model.transform(array.isel(time=[3, 1]))
    model.transform(array.drop_vars(["lon", "lat"]))


# ---- in files


@pytest.mark.parametrize("made", [pandas_frame, polars_frame, labelled_array])
def test_labels_survive(made, tmp_path):
    data = made()
    model = (sg.TensorCompletion(2) if made is labelled_array else sg.MatrixCompletion(1)).fit(data)
    model.save(tmp_path / "model.npz")
    here, there = model.reconstruct(), sg.load(tmp_path / "model.npz").reconstruct()
    if isinstance(here, xr.DataArray):
        xr.testing.assert_identical(here, there)
    elif isinstance(here, pd.DataFrame):
        pd.testing.assert_frame_equal(here, there, check_freq=False)
    else:
        assert here.equals(there)


def test_names_and_time_zones_survive(tmp_path):
    frame = pandas_frame().tz_localize("Europe/Berlin").rename_axis(index="time", columns="place")
    model = sg.MatrixCompletion(1).fit(frame)
    model.save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz").reconstruct()
    pd.testing.assert_index_equal(again.index, frame.index, exact="equiv")
    assert (again.index.name, again.columns.name) == ("time", "place")


def test_entries_of_a_frame_remember_its_columns():
    model = sg.MatrixCompletion(1).fit(sg.EntryTable.of(polars_frame()))
    assert list(model.feature_names_in_) == NAMES
    with pytest.raises(ValueError, match="feature names"):
        model.transform(polars_frame().select(NAMES[::-1]))


def test_wide_frames_can_be_saved(tmp_path):
    names = [f"gene_{k:07d}" for k in range(50_000)]
    frame = pd.DataFrame(np.outer([1.0, 2, 3], np.ones(50_000)), columns=names)
    sg.MatrixCompletion(1).fit(frame).save(tmp_path / "model.npz")
    assert list(sg.load(tmp_path / "model.npz").reconstruct().columns) == names


def test_labels_that_a_file_cannot_hold_are_left_out(tmp_path):
    frame = pandas_frame()
    frame.index = pd.MultiIndex.from_product([["a", "b"], range(12)])
    model = sg.MatrixCompletion(1).fit(frame)
    assert model.reconstruct().index.equals(frame.index)
    model.save(tmp_path / "model.npz")
    again = sg.load(tmp_path / "model.npz").reconstruct()
    assert again.index.equals(pd.RangeIndex(24))
    assert list(again.columns) == NAMES
