"""Models in files: without pickle, so that a file from a stranger can do no harm."""

from __future__ import annotations

import math
import os
from fractions import Fraction
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array
from sklearn.utils import check_random_state

from .. import files, kernels
from ..factors import Bordered, LowRank, Tucker
from ..files import FileError
from ..variational import Posterior
from .base import LowRankEstimator
from .cells import Cells
from .completion import MatrixCompletion, RobustPCA, RowModel, _MatrixEstimator
from .labels import Labels
from .matrix import Choice, Scales
from .packing import columns, host, pack, records, unpack
from .regression import MatrixRegressor, TensorRegressor, _Regressor
from .tensors import SliceModel, TensorCompletion, TensorRobustPCA, _TensorEstimator
from .uncertainty import Information

ESTIMATORS: dict[str, type[LowRankEstimator]] = {
    c.__name__: c
    for c in (
        MatrixCompletion,
        RobustPCA,
        MatrixRegressor,
        TensorCompletion,
        TensorRobustPCA,
        TensorRegressor,
    )
}

FITTED = (
    "factors_",
    "components_",
    "singular_values_",
    "rank_",
    "rank_path_",
    "center_",
    "scale_",
    "noise_variance_",
    "n_iter_",
    "converged_",
    "status_",
    "diagnostics_",
    "row_offset_",
    "column_offset_",
    "offsets_",
    "outliers_",
    "threshold_",
    "coef_",
    "intercept_",
    "ridge_",
    "shape_",
    "n_features_in_",
    "_kind",
    "_came_dense",
    "_conformal",
    "_cells",
    "_held",
    "_model",
    "_settings",
    "_solution",
    "_noise",
    "_free",
    "_scaled",
    "_information",
)
"""What a fit leaves; `history_` and `feature_names_in_` are written in another form."""


def save(estimator: LowRankEstimator, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator; see `LowRankEstimator.save`."""
    from .. import __version__

    known, name = vars(estimator), type(estimator).__name__
    if ESTIMATORS.get(name) is not type(estimator):
        raise TypeError(f"{name} is no estimator of this library, and could not be loaded again")
    params = {k: _plain(v) for k, v in estimator.get_params(deep=False).items()}
    params["checkpoint"] = params["n_jobs"] = None  # of this machine
    fitted = {name: pack(known[name]) for name in FITTED if name in known}
    names = known.get("feature_names_in_")
    tree = {
        "estimator": name,
        "params": params,
        "fitted": fitted,
        "history": columns(known["history_"]),
        "names": None if names is None else np.asarray(names, dtype=np.str_),
    }
    files.write(path, tree, "model", __version__)


def _plain(value: Any) -> Any:
    """A parameter as a file can hold it; a generator is not one."""
    if isinstance(value, np.random.RandomState):
        return None
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map(_plain, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    return pack(float(value) if isinstance(value, Fraction) else value)


def load(path: str | os.PathLike[str]) -> Any:
    """A fitted estimator from a file that `save` wrote.

    Nothing in the file is executed: it holds numbers, words and arrays, and a checksum of
    them all.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    estimator

    Raises
    ------
    FileError
        Where the file is damaged, is not of a model, or does not make sense.

    Examples
    --------
    >>> import numpy as np, os, scaledgd as sg, tempfile
    >>> X = np.outer(np.arange(1.0, 7), np.arange(1.0, 6))
    >>> path = os.path.join(tempfile.mkdtemp(), "model.npz")
    >>> sg.MatrixCompletion(rank=1).fit(X).save(path)
    >>> bool(np.allclose(sg.load(path).reconstruct(), X))
    True
    """
    tree = files.read(path, "model")
    try:
        return _revived(tree)
    except Exception as error:
        raise FileError(f"{os.fspath(path)} does not hold a model: {error}") from None


def _revived(tree: Any) -> LowRankEstimator:
    name = tree["estimator"]
    if name not in ESTIMATORS:
        raise FileError(f"there is no estimator {str(name)[:40]!r}")
    params = {k: unpack(v) for k, v in tree["params"].items()}
    _must(params["checkpoint"] is None and params["n_jobs"] is None, "a parameter")
    check_random_state(params["random_state"])
    estimator = ESTIMATORS[name](**params)
    estimator._check_params()
    for key, value in tree["fitted"].items():
        if key not in FITTED:
            raise FileError(f"an estimator has no {str(key)[:40]!r}")
        setattr(estimator, key, unpack(value))
    estimator.history_ = records(tree["history"])
    if tree["names"] is not None:
        names = np.asarray(tree["names"].tolist(), dtype=object)
        _must(names.shape == (estimator.n_features_in_,), "the names of features")
        estimator.feature_names_in_ = names
    _validate(estimator)
    return estimator


# ---- whether it makes sense


def _validate(estimator: Any) -> None:
    how, dtype, labels = estimator._kind
    _must(how in ("numpy", "sparse", "torch"), "the kind of data")
    _must(is_torch_array(estimator.factors_.blocks[0]) == (how == "torch"), "the kind of data")
    _must(str(dtype).removeprefix("torch.") in ("float32", "float64"), "the type of the data")
    _must(not isinstance(dtype, str), "the type of the data")
    if labels is not None:
        _labels(labels, estimator.factors_.shape)
    _number(estimator.n_iter_, least=1)
    _must(isinstance(estimator.noise_variance_, float), "the noise")
    _must(estimator.noise_variance_ >= 0, "the noise")  # of huge data it may be infinite
    _must(isinstance(estimator.diagnostics_, list), "the diagnostics")
    _must(isinstance(estimator.center_, str) and isinstance(estimator.scale_, str), "a choice")
    _number(estimator._free)
    for name in ("converged_", "_came_dense"):
        _must(isinstance(getattr(estimator, name), bool), name)
    _must(isinstance(estimator.status_, str), "status_")
    _must(isinstance(estimator.rank_path_, list), "rank_path_")
    for record in estimator.history_:
        for name in ("t", "value", "seconds"):
            _number(record[name])
        _must(isinstance(record["stage"], str), "the history")
    for kind, check in (
        (_MatrixEstimator, _matrix),
        (_TensorEstimator, _tensor),
        (_Regressor, _regressor),
    ):
        if isinstance(estimator, kind):
            check(estimator)


def _matrix(e: Any) -> None:
    cells = _cells(e._cells)
    _held(e, cells.shape)
    _must(len(cells.shape) == 2, "data that are no table")
    n1, n2 = cells.shape
    _factors(e.factors_, LowRank, cells.shape)
    r = _number(e.rank_)
    _must(r == int(r) and e.n_features_in_ == n2, "a rank or a width")
    _shaped(e.components_, (r, n2))
    _shaped(e.singular_values_, (r,))
    _shaped(e.row_offset_, (n1,))
    _shaped(e.column_offset_, (n2,))
    _number(e._noise, least=0)
    _must(isinstance(e.rank_, int), "the rank")
    _must(isinstance(e._settings, (dict, tuple)), "what the model depends on")
    _rejected(e, cells.shape)
    model, (F, known) = e._model, e._solution
    _must(isinstance(model, RowModel), "no model")
    _factors(F, Bordered, cells.shape)
    _shaped(F.u, (n1,), optional=True)
    _shaped(F.v, (n2,), optional=True)
    e._rank()
    for scales, rows in ((model.scales, None), (known, n1)):
        _must(isinstance(scales, Scales), "no scales")
        _shaped(scales.columns, (n2,), optional=True)
        if scales.rows is not None:
            _shaped(scales.rows, (rows or scales.rows.shape[0],))
        for number in (scales.mean, scales.unit, 0.0 if scales.typical is None else scales.typical):
            _number(number)
    _must(_number(model.size) > 0, "the size")
    _must(model.threshold is None or _number(model.threshold, least=0) >= 0, "the threshold")
    _must(isinstance(model.choice, Choice), "no choice")
    for word in (model.choice.center, model.choice.scale):
        _must(word in ("none", "rows", "columns", "both"), "a choice")
    _must(model.choice.rows == (model.v is not None), "offsets")
    _must(model.choice.columns == (F.u is not None), "offsets")
    _shaped(model.R, F.R.shape)
    _shaped(model.v, (n2,), optional=True)
    _must((model.v is None) == (F.v is None), "offsets")
    q = F.L.shape[1]
    if model.ridge is not None:
        _shaped(model.ridge, (q,))
    if model.posterior is not None:
        p = model.posterior
        _must(isinstance(p, Posterior), "the posterior")
        _number(p.noise, least=0)
        for k, (width, n) in enumerate(((q, n1), (F.R.shape[1], n2))):
            _shaped(p.prior[k], (width,), least=0)
            _shaped(p.variance[k], (n, width), least=0)
            _shaped(p.total[k], (width, width))


def _tensor(e: Any) -> None:
    cells = _cells(e._cells)
    _held(e, cells.shape)
    F = _factors(e.factors_, Tucker, cells.shape)
    e._ranks(cells.shape)
    _must(tuple(e.rank_) == F.ranks, "a rank")
    _must(len(e.offsets_) == len(cells.shape), "offsets")
    for b, n in zip(e.offsets_, cells.shape, strict=True):
        _shaped(b, (n,), optional=True)
    for V, s, r, n in zip(e.components_, e.singular_values_, F.ranks, cells.shape, strict=True):
        _shaped(V, (r, n))
        _shaped(s, (r,))
    model = e._model
    _must(isinstance(model, SliceModel), "no model")
    _must(isinstance(model.factors, Tucker), "no factors")
    first = int(model.factors.shape[0])
    _factors(model.factors, Tucker, (first, *cells.shape[1:]))
    _must(_number(model.size) > 0, "the size")
    _number(model.noise, least=0)
    _must(model.threshold is None or _number(model.threshold, least=0) >= 0, "the threshold")
    _must(len(model.offsets) == len(cells.shape), "offsets")
    _must(isinstance(model.own_offset, bool), "offsets")
    _rejected(e, cells.shape)
    for b, n in zip(model.offsets, cells.shape, strict=True):
        if b is not None:
            _shaped(b, b.shape[:1] if n == cells.shape[0] else (n,))


def _regressor(e: Any) -> None:
    shape = tuple(int(_number(n)) for n in e.shape_)
    kind = LowRank if e._matrix else Tucker
    e._wanted()
    F = _factors(e.factors_, kind, shape)
    _factors(e._scaled, kind, shape)
    _number(e.intercept_)
    _must(tuple(e.coef_.shape) == shape, "the coefficient")
    _must(e.n_features_in_ == math.prod(shape), "a width")
    known = e._information
    _must(isinstance(known, Information), "no information")
    q = sum(math.prod(B.shape) for B in F.blocks)
    _shaped(known.mean, (q,))
    _shaped(known.total, (q, q), optional=True)
    _number(known.m, least=1)
    _number(known.square, least=0)
    _held(e, None)


def _must(so: bool, what: str) -> None:
    if not so:
        raise FileError(f"{what} is wrong")


def _number(x: Any, least: float = -math.inf) -> float:
    _must(isinstance(x, (int, float)) and math.isfinite(x) and x >= least, "a number")
    return float(x)


def _shaped(
    x: Any, shape: tuple[Any, ...], optional: bool = False, least: float = -math.inf
) -> None:
    """An array of finite numbers of a shape."""
    if optional and x is None:
        return
    _must(hasattr(x, "shape") and tuple(x.shape) == tuple(shape), f"an array of shape {shape}")
    xp = array_namespace(x)
    _must(x.dtype == xp.float64, "an array of numbers")
    _must(bool(xp.all(xp.isfinite(x))), "an array that holds NaN or infinity")
    _must(bool(xp.all(x >= least)), "an array that holds what is too small")


def _factors(F: Any, kind: type[Any], shape: tuple[int, ...]) -> Any:
    _must(isinstance(F, kind) and tuple(F.shape) == tuple(shape), f"factors of shape {shape}")
    for B in F.blocks:
        _shaped(B, B.shape)
    return F


def _cells(given: Any) -> Cells:
    cells: Cells = given
    _must(isinstance(cells, Cells) and isinstance(cells.shape, tuple), "the data")
    _must(all(isinstance(n, int) and n > 0 for n in cells.shape), "the shape of the data")
    if cells.index is None:
        _shaped(cells.y, cells.shape)
    else:
        xp = array_namespace(cells.y)
        _must(len(cells.index) == len(cells.shape), "an index")
        _must(len(cells.y.shape) == 1, "the data")
        _shaped(cells.y, (cells.size,))
        for i, n in zip(cells.index, cells.shape, strict=True):
            _must(tuple(i.shape) == (cells.size,), "an index")
            _must(i.dtype == xp.int64, "an index")
            _must(not cells.size or (int(xp.min(i)) >= 0 and int(xp.max(i)) < n), "an index")
        flat = host(kernels.numbered(cells.index, cells.shape))
        _must(len(np.unique(flat)) == cells.size, "an index that names a cell twice")
    _shaped(cells.weight, tuple(cells.y.shape), optional=True, least=0)
    return cells


def _labels(labels: Any, shape: tuple[int, ...]) -> None:
    _must(isinstance(labels, Labels), "the labels")
    _must(labels.kind in ("pandas", "polars", "xarray"), "the kind of labels")
    _must(isinstance(labels.names, tuple) and isinstance(labels.dtypes, tuple), "the labels")
    frame = labels.kind != "xarray"
    _must(len(labels.names) == (shape[1] if frame else len(shape)), "the labels")
    _must(len(labels.dtypes) == (shape[1] if frame else 1), "the labels")
    _must(all(isinstance(d, str) for d in labels.dtypes), "the labels")
    _must(all(isinstance(n, (str, int, type(None))) for n in labels.names), "the labels")
    _must(isinstance(labels.coords, dict) and isinstance(labels.attrs, dict), "the labels")
    for dims, values in labels.coords.values():
        _must(isinstance(dims, tuple) and isinstance(values, np.ndarray), "the labels")
        _must(values.ndim == len(dims), "the labels")
        _must(frame or set(dims) <= set(labels.names), "the labels")


def _rejected(e: Any, shape: tuple[int, ...]) -> None:
    """Where outliers were looked for there are some, or could have been."""
    model = e._model
    robust = isinstance(e, (RobustPCA, TensorRobustPCA))
    _must(model.threshold is not None or not robust, "the threshold")
    if model.threshold is not None:
        _number(e.threshold_, least=0)
        _must(tuple(e.outliers_.shape) == tuple(shape), "the outliers")


def _held(e: Any, shape: Any) -> None:
    if e._conformal is not None:
        _shaped(e._conformal, (e._conformal.shape[0],), least=0)
    if shape is not None and e._held is not None:
        _must(_cells(e._held).shape == shape, "the shape of what was held out")
