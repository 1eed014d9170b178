"""Models in files, without pickle: untrusted files are safe to read."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from array_api_compat import is_torch_array
from sklearn.utils import check_random_state

from .. import files, folders
from ..distributed import far
from ..distributed.far import FarModel
from ..distributed.labelling import Names
from ..distributed.remembered import RememberedObservations
from ..files import FileError
from . import validation
from .base import LowRankEstimator
from .completion import MatrixCompletion, RobustPCA
from .former import converted
from .matrix_estimator import MatrixEstimator
from .matrix_model import MatrixModel
from .packing import columns, in_numpy, pack, plain, records, unpack
from .reading import Kind
from .regression import MatrixRegressor, TensorRegressor, _Regressor
from .regression_model import RegressionModel
from .tensor_model import TensorModel
from .tensors import TensorCompletion, TensorRobustPCA, _TensorEstimator
from .validation import must

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

MODELS: tuple[tuple[type, type], ...] = (
    (MatrixEstimator, MatrixModel),
    (_TensorEstimator, TensorModel),
    (_Regressor, RegressionModel),
)

RUN = ("n_iter_", "converged_", "status_", "diagnostics_", "n_features_in_")
"""Attributes that do not follow from the model."""


def save(estimator: LowRankEstimator, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator; see `LowRankEstimator.save`."""
    from .. import __version__

    known, name = vars(estimator), type(estimator).__name__
    if ESTIMATORS.get(name) is not type(estimator):
        raise TypeError(f"{name} is not an estimator of this library, and could not be loaded")
    params = {k: plain(v) for k, v in estimator.get_params(deep=False).items()}
    params["checkpoint"] = params["n_jobs"] = None  # they belong to this machine
    names = known.get("feature_names_in_")
    tree = {
        "estimator": name,
        "params": params,
        "model": pack(_without_source(known["_model"])),
        "kind": pack(known["_kind"]),
        "run": {k: pack(known[k]) for k in RUN if k in known},
        "history": columns(known["history_"]),
        "names": None if names is None else np.asarray(names, dtype=np.str_),
    }
    if known.get("_names") is not None:
        tree["labels"] = [pack(name.packed()) for name in known["_names"]]
    if isinstance(known["_model"], FarModel):
        far.save(path, tree, known["_model"], __version__)
        return
    files.write(path, tree, "model", __version__)


def _without_source(model: Any) -> Any:
    """The model, without the collection from which its entries could be read again."""
    data = getattr(model, "observations", None)
    if isinstance(model, FarModel):
        model = replace(model, rows=None)
    if isinstance(data, RememberedObservations):
        return replace(model, observations=data.without_source())
    return model


def load(path: str | os.PathLike[str]) -> Any:
    """Return a fitted estimator from a file, or a folder, that `save` wrote.

    Nothing in the file is executed: it contains numbers, strings and arrays, and a checksum. Parts
    of a factor that was distributed are read when they are needed.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    estimator

    Raises
    ------
    FileError
        If the file is damaged, is not a model, or does not make sense.

    Examples
    --------
    >>> import numpy as np, os, scaledgd as sg, tempfile
    >>> X = np.outer(np.arange(1.0, 7), np.arange(1.0, 6))
    >>> path = os.path.join(tempfile.mkdtemp(), "model.npz")
    >>> sg.MatrixCompletion(rank=1).fit(X).save(path)
    >>> bool(np.allclose(sg.load(path).reconstruct(), X))
    True
    """
    folders.recover(path)
    folder = Path(path) if os.path.isdir(path) else None
    if folder is not None and not (folder / "model.npz").is_file():
        raise FileError(f"{os.fspath(path)} is a folder that does not hold a saved model")
    tree = files.read(path if folder is None else folder / "model.npz", "model")
    try:
        return _revived(converted(tree), folder)
    except Exception as error:
        raise FileError(f"{os.fspath(path)} does not hold a model: {error}") from None


def brought_to_host(estimator: Any) -> Any:
    """Return an estimator that was fitted to PyTorch tensors, as if fitted to NumPy arrays.

    Parameters
    ----------
    estimator : fitted estimator
        It is changed.
    """
    kind = unpack(in_numpy(pack(estimator._kind)))
    estimator._kind = replace(kind, how="numpy" if kind.dense else "sparse")
    estimator._publish(unpack(in_numpy(pack(estimator._model))))
    return estimator


def _revived(tree: Any, folder: Path | None = None) -> LowRankEstimator:
    name = tree["estimator"]
    if name not in ESTIMATORS:
        raise FileError(f"there is no estimator {str(name)[:40]!r}")
    params = {k: unpack(v) for k, v in tree["params"].items()}
    must(params["checkpoint"] is None and params["n_jobs"] is None, "a parameter")
    check_random_state(params["random_state"])
    estimator = ESTIMATORS[name](**params)
    estimator._check_params()
    model, kind = unpack(tree["model"]), unpack(tree["kind"])
    for family, made in MODELS:
        must(not isinstance(estimator, family) or isinstance(model, made), "no model")
    model.validate()
    must(isinstance(model, FarModel) == (folder is not None), "rows")
    if folder is not None:
        heights, r = tree["heights"], model.right.shape[1]
        must(int(heights.sum()) == model.observations.shape[0], "rows")
        rows = far.loaded_rows(folder, heights, r + 2, model.right.dtype)
        model = replace(model, rows=rows)
    robust = isinstance(estimator, (RobustPCA, TensorRobustPCA))
    must(not robust or model.threshold is not None, "the threshold")
    _check_kind(kind, model)
    estimator._kind = kind
    estimator._publish(model)
    for key, value in tree["run"].items():
        must(key in RUN, "an attribute")
        setattr(estimator, key, unpack(value))
    if tree.get("labels") is not None:
        must(len(tree["labels"]) == 2, "the labels")
        estimator._names = tuple(Names.unpacked(unpack(one)) for one in tree["labels"])
        must([len(x.labels) for x in estimator._names] == list(estimator.factors_.shape), "labels")
    estimator.history_ = records(tree["history"])
    _check_run(estimator)
    if tree["names"] is not None:
        names = np.asarray(tree["names"].tolist(), dtype=object)
        must(names.shape == (estimator.n_features_in_,), "the names of features")
        estimator.feature_names_in_ = names
    return estimator


def _check_kind(kind: Any, model: Any) -> None:
    must(isinstance(kind, Kind) and kind.how in ("numpy", "sparse", "torch"), "the kind of data")
    must(is_torch_array(model.factors.blocks[0]) == (kind.how == "torch"), "the kind of data")
    dtype = kind.dtype
    must(not isinstance(dtype, str), "the type of the data")
    must(str(dtype).removeprefix("torch.") in ("float32", "float64"), "the type of the data")
    must(isinstance(kind.dense, bool), "the kind of data")
    if kind.labels is not None:
        validation.labels(kind.labels, model.factors.shape)


def _check_run(estimator: Any) -> None:
    validation.number(estimator.n_iter_, least=1)
    must(isinstance(estimator.converged_, bool), "converged_")
    must(isinstance(estimator.status_, str), "status_")
    must(isinstance(estimator.diagnostics_, list), "the diagnostics")
    for record in estimator.history_:
        for name in ("t", "value", "seconds"):
            validation.number(record[name])
        validation.number(record.get("noise", 0.0))
        must(isinstance(record["stage"], str), "the history")
    shape = estimator.factors_.shape
    if isinstance(estimator, MatrixEstimator):
        must(estimator.n_features_in_ == shape[1], "a width")
        estimator._rank()
    elif isinstance(estimator, _TensorEstimator):
        estimator._ranks(shape)
    else:
        must(estimator.n_features_in_ == int(np.prod(shape)), "a width")
        estimator._wanted()
