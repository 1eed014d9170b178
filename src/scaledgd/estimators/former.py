"""Files of version 0.1.0: convert their trees to the current form.

In 0.1.0 a file held the attributes of the estimator one by one; now it holds one model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..factors import LowRank
from .local_observations import LocalObservations
from .matrix_model import MatrixModel
from .packing import pack, unpack
from .reading import Kind
from .regression_model import RegressionModel
from .tensor_model import TensorModel

RENAMED = {"Cells": "LocalObservations"}


def converted(tree: Any) -> Any:
    """Return the tree of a model file in the current form."""
    if not isinstance(tree, dict) or "fitted" not in tree:
        return tree
    old = {name: _unpacked(value) for name, value in tree["fitted"].items()}
    params = tree["params"]
    how, dtype, labels = old["_kind"]
    kind = Kind(how, dtype, labels, old["_came_dense"])
    if "coef_" in old:
        model: Any = _regression(old)
    elif "offsets_" in old:
        model = _tensor(old, params)
    else:
        model = _matrix(old, params, tree["estimator"])
    run = {
        k: pack(old[k])
        for k in ("n_iter_", "converged_", "status_", "diagnostics_", "n_features_in_")
        if k in old
    }
    same = {k: tree[k] for k in ("estimator", "params", "history", "names")}
    return {**same, "model": pack(model), "kind": pack(kind), "run": run}


def _unpacked(tree: Any) -> Any:
    """Unpack a tree in which classes have their former names."""
    if isinstance(tree, dict) and tree.get("class") in ("RowModel", "SliceModel"):
        return {k: _unpacked(v) for k, v in tree["fields"].items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(_unpacked, tree))
    if isinstance(tree, dict) and tree.get("class") in RENAMED:
        return unpack({**tree, "class": RENAMED[tree["class"]]})
    return unpack(tree)


def _common(old: dict[str, Any]) -> dict[str, Any]:
    names = {"observations": "_cells", "held": "_held", "scores": "_conformal", "free": "_free"}
    return {new: old.get(name) for new, name in names.items()} | {"trail": old["rank_path_"]}


def _matrix(old: dict[str, Any], params: dict[str, Any], estimator: str) -> MatrixModel:
    rows, (factors, scales) = old["_model"], old["_solution"]
    asked = ("rank", "center", "scale", "ridge", "outliers", "non_negative")
    settings = {k: v for k, v in zip(asked, old["_settings"], strict=True) if k in params}
    expected = "auto" if estimator == "RobustPCA" else settings.get("outliers")
    return MatrixModel(
        **_common(old),
        size=rows["size"],
        noise=old["_noise"],
        threshold=rows["threshold"],
        settings=settings,
        choice=rows["choice"],
        scales=scales,
        factors=factors,
        ridge=rows["ridge"],
        posterior=rows["posterior"],
        non_negative=bool(rows.get("non_negative", False)),
        outliers_expected=expected,
    )


def _tensor(old: dict[str, Any], params: dict[str, Any]) -> TensorModel:
    slices, data = old["_model"], old["_cells"]
    center, ridge, outliers = old["_settings"]
    settings = {"rank": params["rank"], "center": center, "scale": params["scale"], "ridge": ridge}
    if "outliers" in params:
        settings["outliers"] = outliers
    size = slices["size"]
    model = TensorModel(
        **_common(old),
        size=size,
        noise=old["noise_variance_"] / size / size,
        threshold=slices["threshold"],
        settings=settings,
        factors=slices["factors"],
        solved=slices["factors"],
        offsets=slices["offsets"],
        own_offset=slices["own_offset"],
        ridge_noise=slices["noise"],
        center=old["center_"],
        given_ridge=ridge != "auto",
    )
    if not isinstance(data, LocalObservations):
        return model
    solved, own = model.solve_slices(data)
    return replace(model, solved=solved, own=own)


def _regression(old: dict[str, Any]) -> RegressionModel:
    F = old["factors_"]
    rank = old["rank_"] if isinstance(F, LowRank) else tuple(old["rank_"])
    return RegressionModel(
        factors=F,
        fitted=old["_scaled"],
        rank=rank,
        ridge=old["ridge_"],
        intercept=old["intercept_"],
        noise_variance=old["noise_variance_"],
        free=old["_free"],
        information=old["_information"],
        center=old["center_"],
        scores=old["_conformal"],
        trail=old["rank_path_"],
    )
