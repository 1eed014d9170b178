"""Convert pandas, polars and xarray containers to arrays and back."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .packing import packable

Array = Any

INTEGERS = tuple(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))


@packable
@dataclass(eq=False)
class Labels:
    """Names, coordinates and types of a table.

    Attributes
    ----------
    kind : {"pandas", "polars", "xarray"}
    names : tuple
        Of columns, or of dimensions.
    dtypes : tuple of str
        Of every column, or of the array.
    coords : dict
        Coordinates by name, each a pair of dimensions and values; the index of pandas, or the
        column of times of polars, is "index".
    name : str, optional
    attrs : dict
    exact : object
        The labels themselves, if the table is in memory; a file stores the other fields.
    """

    kind: str
    names: tuple[Any, ...]
    dtypes: tuple[str, ...]
    coords: dict[str, Any]
    name: Any = None
    attrs: dict[str, Any] = field(default_factory=dict)
    exact: Any = field(default=None, init=False)


def stripped(X: Any) -> tuple[Any, Labels | None]:
    """Return the numbers of a table, NaN where missing, and its labels if it has any."""
    library = type(X).__module__.split(".")[0]
    kind = type(X).__name__
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(X, pandas.DataFrame):
        return _from_pandas(X)
    if library == "polars" and kind in ("DataFrame", "LazyFrame"):
        if kind == "LazyFrame":
            raise TypeError("X is a polars LazyFrame, which has no values yet; pass X.collect()")
        return _from_polars(X)
    if library == "xarray" and kind in ("DataArray", "Dataset"):
        if kind == "Dataset":
            raise TypeError(
                'X is an xarray Dataset; pick one of its variables, X["name"], or stack them '
                "with X.to_dataarray()"
            )
        return _from_xarray(X)
    return X, None


def features(X: Any, labels: Labels) -> Any:
    """Return a frame without the column of the times of its rows, if it has one."""
    if labels.kind == "polars" and "index" in labels.coords:
        return X.drop(labels.attrs["index"])
    return X


def without_times(labels: Labels | None) -> Labels | None:
    """Return labels without the column of the times of the rows, if there is one."""
    if labels is None or labels.kind != "polars" or "index" not in labels.coords:
        return labels
    return Labels(labels.kind, labels.names, labels.dtypes, {})


def compatible(new: Labels | None, fitted: Labels | None) -> None:
    """Refuse labelled arrays whose dimensions or coordinates are not those of the fit."""
    if new is None or fitted is None or new.kind != "xarray" or fitted.kind != "xarray":
        return
    if new.names != fitted.names:
        raise ValueError(
            f"X has the dimensions {new.names}, but the model was fitted to {fitted.names}; "
            f"X.transpose(*{fitted.names}) puts them in order"
        )
    for name in new.names[1:]:
        here, there = (labels.coords.get(name) for labels in (new, fitted))
        if here is not None and there is not None and not _equal(here[1], there[1]):
            raise ValueError(
                f"the coordinates {name!r} of X are not those of the fit; X.reindex({name}=...) "
                "puts them in order"
            )


def _equal(a: Array, b: Array) -> bool:
    """Whether coordinates are equal; missing ones equal each other."""
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fMm" and b.dtype.kind in "fMm")


def _refuse(columns: list[str], drop: str, advice: str = "") -> None:
    if columns:
        named = ", ".join(repr(str(c)) for c in columns[:5]) + (", …" if len(columns) > 5 else "")
        raise ValueError(
            f"X has columns that are not numeric: {named}; drop them ({drop}) or encode them as "
            f"numbers{advice}"
        )


def _common(dtypes: list[str]) -> Any:
    return np.float32 if dtypes and all(d.lower() == "float32" for d in dtypes) else np.float64


def _from_pandas(X: Any) -> tuple[Any, Labels]:
    import pandas as pd

    def numeric(column: Any) -> bool:
        plain = pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column)
        if plain or not pd.api.types.is_object_dtype(column):
            return bool(plain) and not pd.api.types.is_complex_dtype(column)
        try:  # numbers in a column of objects
            pd.to_numeric(column.dropna())
        except (TypeError, ValueError):
            return False
        return not any(isinstance(v, str) for v in column)

    names = list(X.columns)
    wrong = [c for k, c in enumerate(names) if not numeric(X.iloc[:, k])]
    dtypes = [str(d) for d in X.dtypes]
    times = [c for c, dtype in zip(names, dtypes, strict=True) if dtype.startswith("datetime64")]
    advice = f"; X.set_index({times[0]!r}) makes them the times of the rows" if times else ""
    _refuse(wrong, f"X.drop(columns={wrong[:5]!r})", advice)
    if "object" in dtypes:
        values = np.stack([_numbers(X.iloc[:, k]) for k in range(X.shape[1])], axis=1)
    else:
        values = X.to_numpy(dtype=_common(dtypes), na_value=np.nan)
    labels = Labels("pandas", tuple(map(_word, names)), tuple(dtypes), {})
    names_of = {"index": _word(X.index.name), "columns": _word(X.columns.name)}
    zone = getattr(X.index, "tz", None)
    index = _plain(X.index if zone is None else X.index.tz_convert("UTC").tz_localize(None))
    if index is not None:
        labels.coords = {"index": (("index",), index)}
    labels.attrs = {**names_of, "zone": None if zone is None else str(zone)}
    labels.exact = X.index, X.columns
    return values, labels


def _numbers(column: Any) -> Any:
    import pandas as pd

    return pd.to_numeric(column).to_numpy(dtype=np.float64, na_value=np.nan)


def _from_polars(X: Any) -> tuple[Any, Labels]:
    import polars as pl

    plain = ("Boolean", "Null")  # a column of nulls is a column of holes
    given, times = X, [c for c, d in X.schema.items() if d in (pl.Date, pl.Datetime)]
    if len(times) == 1:  # a polars frame has no index: its only column of times serves as one
        X = X.drop(times)
    wrong = [c for c, d in X.schema.items() if not (d.is_numeric() or str(d) in plain)]
    _refuse(wrong, f"X.drop({wrong[:5]!r})")
    dtypes = [str(d) for d in X.dtypes]
    kind = _common(dtypes)
    columns = [X[:, k].cast(pl.Float64).to_numpy() for k in range(X.width)]
    empty = np.empty((X.height, 0))
    values = np.stack(columns, axis=1).astype(kind) if columns else empty
    labels = Labels("polars", tuple(X.columns), tuple(dtypes), {})
    if len(times) == 1:
        series = given[times[0]]
        zone = getattr(series.dtype, "time_zone", None)
        labels.coords = {"index": (("index",), series.to_numpy())}
        labels.attrs = {
            "index": times[0],
            "place": given.columns.index(times[0]),
            "zone": zone,
            "date": series.dtype == pl.Date,
        }
        labels.exact = series, None
    return values, labels


def _from_xarray(X: Any) -> tuple[Any, Labels]:
    if X.dtype.kind not in "fiub":
        raise ValueError(
            f"X is an array of {X.dtype}, not of numbers; convert it with X.astype(float)"
        )
    coords = {}
    for name, c in X.coords.items():
        plain = _plain(c.values)
        if plain is not None and _storable(name, None):
            coords[str(name)] = (tuple(map(str, c.dims)), plain)
    attrs = {
        str(k): v
        for k, v in X.attrs.items()
        if isinstance(v, (str, int, float, bool, type(None))) and _storable(k, v)
    }
    dims = tuple(map(str, X.dims))
    labels = Labels("xarray", dims, (str(X.dtype),), coords, _word(X.name), attrs)
    labels.exact = X.coords, X.attrs
    return X.values, labels


def _storable(name: Any, value: Any) -> bool:
    """Whether a file can store a name."""
    return not str(name).startswith("$") and len(repr(value)) < 10_000


def _word(name: Any) -> Any:
    return name if isinstance(name, (str, int, type(None))) else str(name)


def _plain(index: Any) -> Any:
    """Labels as an array that a file can store, or None."""
    values = np.asarray(index)
    if values.dtype.kind in "iufbMmU":
        return values
    if values.dtype.kind in "OT" and all(isinstance(v, str) for v in values.ravel().tolist()):
        return values.astype(np.str_)
    return None


def dressed(values: Array, labels: Labels | None) -> Any:
    """Return numbers as a table with its original labels, if they fit.

    Columns get their original type. Integers that did not stay integers become floats, because
    estimates are not rounded.
    """
    if labels is None:
        return values
    if labels.kind == "xarray":
        return _to_xarray(values, labels)
    columns = [_typed(values[:, k], dtype) for k, dtype in enumerate(labels.dtypes)]
    if labels.kind == "polars":
        import polars as pl

        series = [pl.Series(str(n), c) for n, c in zip(labels.names, columns, strict=True)]
        times = _kept_times(labels) if labels.exact is None else labels.exact[0]
        if times is not None and len(times) == values.shape[0]:
            series.insert(labels.attrs["place"], times)
        return pl.DataFrame(series)
    import pandas as pd

    index, names = labels.exact or _kept(labels)
    if index is not None and len(index) != values.shape[0]:
        index = None  # rows were added
    frame = pd.DataFrame(dict(enumerate(map(_nullable, columns, labels.dtypes))), index=index)
    frame.columns = names if isinstance(names, pd.Index) else pd.Index(names)
    return frame


def _kept_times(labels: Labels) -> Any:
    """The column of times of a polars frame, from the contents of a file."""
    import polars as pl

    if "index" not in labels.coords:
        return None
    zone = labels.attrs.get("zone")
    series = pl.Series(labels.attrs["index"], labels.coords["index"][1])
    if labels.attrs.get("date"):
        return series.cast(pl.Date)
    if zone is None:
        return series
    return series.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)


def _kept(labels: Labels) -> tuple[Any, Any]:
    """Index and columns, from the contents of a file."""
    import pandas as pd

    index = labels.coords.get("index", (None, None))[1]
    if index is not None:
        index = pd.Index(index, name=labels.attrs.get("index"))
        zone = labels.attrs.get("zone")
        index = index if zone is None else index.tz_localize("UTC").tz_convert(zone)
    return index, pd.Index(labels.names, name=labels.attrs.get("columns"))


def _nullable(column: Array, dtype: str) -> Any:
    """A column in its original nullable pandas type, if it had one."""
    import pandas as pd

    same = dtype.lower() == ("boolean" if column.dtype == np.bool_ else str(column.dtype))
    return (
        pd.array(column, dtype=dtype) if same and dtype[0] in "FIUb" and dtype != "bool" else column
    )


def _typed(column: Array, dtype: str) -> Array:
    name = dtype.lower()
    if name.startswith("float"):
        return column.astype(np.float32 if name == "float32" else np.float64)
    # floats beyond 2^53 are not exact integers
    whole = bool(np.all(np.abs(column) < 2.0**53) and np.all(column == np.rint(column)))
    if name in INTEGERS and whole:
        bounds = np.iinfo(name)
        if bounds.min <= column.min(initial=0) and column.max(initial=0) <= bounds.max:
            return column.astype(name)
    if name.startswith("bool") and bool(np.all((column == 0) | (column == 1))):
        return column.astype(np.bool_)
    return column.astype(np.float64)


def _to_xarray(values: Array, labels: Labels) -> Any:
    import xarray as xr

    kind = np.float32 if labels.dtypes[0] == "float32" else np.float64
    coords, attrs = labels.exact or (labels.coords, labels.attrs)
    sizes = dict(zip(labels.names, values.shape, strict=True))
    fitting = {k: c for k, c in coords.items() if _fits(c, sizes)}
    return xr.DataArray(
        values.astype(kind), dims=labels.names, coords=fitting, name=labels.name, attrs=dict(attrs)
    )


def _fits(coordinate: Any, sizes: dict[Any, int]) -> bool:
    """Whether a coordinate still has the length of its dimensions: rows may have been added."""
    dims, values = (coordinate.dims, coordinate) if hasattr(coordinate, "dims") else coordinate
    return tuple(np.shape(values)) == tuple(sizes[d] for d in dims)
