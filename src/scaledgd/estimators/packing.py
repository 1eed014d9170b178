"""Convert models and checkpoints to trees of plain values, and back."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from ..factors import CP, Bordered, LowRank, Symmetric, Tucker
from ..files import FileError, Tree
from ..linalg import to_host
from ..methods import CurvatureMemory, Relaxation
from ..state import Memory
from ..steps import StepMemory, line_search
from ..thresholds import Threshold, median_threshold
from ..variational import Posterior
from ..variational.cp import PosteriorCP

CLASSES: dict[str, type] = {
    c.__name__: c
    for c in (
        *(CP, Bordered, LowRank, Symmetric, Tucker),
        *(Memory, Posterior, PosteriorCP, CurvatureMemory, Relaxation, StepMemory, Threshold),
        *(median_threshold, line_search),
    )
}
"""The dataclasses that a file may contain, by name."""


MANY = 100
"""Number of strings above which they are stored as an array."""


def packable(cls: type) -> type:
    """Register a dataclass that may be written to files."""
    CLASSES[cls.__name__] = cls
    return cls


host = to_host


def plain(value: Any) -> Any:
    """Return a parameter in a form that a file can hold; a generator cannot be stored."""
    if isinstance(value, np.random.RandomState):
        return None
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map(plain, value))
    if hasattr(value, "tolist"):
        return value.tolist()
    return pack(float(value) if isinstance(value, Fraction) else value)


def pack(x: Any) -> Tree:
    """Return a tree for `files.write`."""
    if is_dataclass(x) and not isinstance(x, type):
        name = type(x).__name__
        if CLASSES.get(name) is not type(x):
            raise TypeError(f"{name} cannot be written to a file")
        parts = {f.name: pack(getattr(x, f.name)) for f in fields(x) if f.init}
        return {"class": name, "fields": parts}
    if isinstance(x, Mapping):
        return {"class": "dict", "fields": {str(k): pack(v) for k, v in x.items()}}
    if isinstance(x, tuple) and len(x) > MANY and all(isinstance(v, str) for v in x):
        return {"class": "words", "fields": {"array": np.asarray(x, dtype=np.str_)}}
    if isinstance(x, (tuple, list)):
        return type(x)(pack(v) for v in x)
    if (
        isinstance(x, np.ndarray)
        and x.dtype == np.int64
        and x.size
        and int(x.min()) >= -(2**31)
        and int(x.max()) < 2**31
    ):
        # indices, in half the space
        return {"class": "index", "fields": {"array": x.astype(np.int32)}}
    if isinstance(x, np.dtype):
        return {"class": "dtype", "fields": {"name": x.name}}
    if type(x).__module__.split(".")[0] == "torch":
        if hasattr(x, "detach"):
            return {"class": "torch", "fields": {"array": host(x), "device": str(x.device)}}
        return {"class": "torch dtype", "fields": {"name": str(x)}}
    if hasattr(x, "coords") and hasattr(x, "nnz"):
        index = tuple(pack(np.asarray(i, dtype=np.int64)) for i in x.coords)
        parts = {"index": index, "data": x.data, "shape": tuple(x.shape)}
        return {"class": "sparse", "fields": parts}
    if isinstance(x, np.generic):
        return x.item()
    return x


def in_numpy(tree: Tree) -> Tree:
    """Return the same tree with NumPy arrays."""
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(in_numpy, tree))
    if not isinstance(tree, dict):
        return tree
    if tree.get("class") == "torch":
        return pack(tree["fields"]["array"])
    if tree.get("class") == "torch dtype":
        return {"class": "dtype", "fields": {"name": tree["fields"]["name"][6:]}}
    return {k: in_numpy(v) for k, v in tree.items()}


def on_device(x: Any, place: Any) -> Any:
    """Return dataclasses, lists and mappings with their PyTorch tensors on a device."""
    if is_dataclass(x) and not isinstance(x, type):
        parts = {f.name: on_device(getattr(x, f.name), place) for f in fields(x) if f.init}
        return replace(x, **parts)
    if isinstance(x, Mapping):
        return {k: on_device(v, place) for k, v in x.items()}
    if isinstance(x, (tuple, list)):
        return type(x)(on_device(v, place) for v in x)
    return _sent(x, place) if is_torch_array(x) else x


def _sent(x: Any, place: Any) -> Any:
    """A tensor on a device; from a GPU to pinned memory, which it can write to at full speed."""
    if not x.is_cuda or place.type != "cpu":
        return x.to(place)
    there = x.new_empty(x.shape, device=place, pin_memory=True)
    return there.copy_(x)


def brought(x: Any, like: Any) -> Any:
    """Return a dataclass with NumPy arrays converted to the library and device of another one."""
    if isinstance(like, np.ndarray):
        return x
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: brought(getattr(x, f.name), like) for f in fields(x)})
    if isinstance(x, tuple):
        return tuple(brought(v, like) for v in x)
    if not isinstance(x, np.ndarray):
        return x
    # a copy, because tensors may be written to, and views of diagonals may not
    return array_namespace(like).asarray(x.copy(), device=device(like))


def unpack(tree: Tree) -> Any:
    """Return the object that `pack` was given."""
    if isinstance(tree, (tuple, list)):
        return type(tree)(unpack(v) for v in tree)
    if not isinstance(tree, dict):
        return tree
    name, parts = tree.get("class"), tree.get("fields")
    if not isinstance(name, str) or not isinstance(parts, dict) or len(tree) != 2:
        raise FileError("holds something that this library does not write")
    parts = {k: unpack(v) for k, v in parts.items()}
    if name == "dict":
        return parts
    if name == "words":
        return tuple(_vector(parts["array"], "U").tolist())
    if name == "index":
        if getattr(parts["array"], "dtype", None) != np.int32:
            raise FileError("holds an invalid index")
        return parts["array"].astype(np.int64)
    if name == "dtype":
        return np.dtype(_one_of(parts["name"], "float32", "float64"))
    if name == "torch":
        return _torch(parts["array"], parts["device"])
    if name == "torch dtype":
        import torch

        return getattr(torch, _one_of(parts["name"], "torch.float32", "torch.float64")[6:])
    if name == "sparse":
        from scipy.sparse import coo_array

        return coo_array((parts["data"], parts["index"]), shape=parts["shape"])
    if name not in CLASSES:
        raise FileError(f"holds a {name[:40]!r}, which this library does not write")
    cls = CLASSES[name]
    unknown = set(parts) - {f.name for f in fields(cls) if f.init}
    if unknown:
        raise FileError(f"holds a {name} with {sorted(unknown)[0][:40]!r}")
    return cls(**parts)


def _vector(x: Any, kinds: str) -> Any:
    if not isinstance(x, np.ndarray) or x.ndim != 1 or x.dtype.kind not in kinds:
        raise FileError("does not hold a list where one is expected")
    return x


def _one_of(name: Any, *known: str) -> str:
    if name not in known:
        raise FileError(f"holds {str(name)[:40]!r} where one of {known} should be")
    return str(name)


def _torch(array: Any, place: Any) -> Any:
    """A tensor on its original device, or on the CPU if there is no such device."""
    try:
        import torch
    except ImportError:
        raise FileError("holds PyTorch tensors; install torch to load it") from None
    tensor = torch.from_numpy(array)
    return (
        tensor.to(place) if str(place).startswith("cuda") and torch.cuda.is_available() else tensor
    )


def fingerprint(*parts: Any) -> str:
    """Return a digest of arrays, numbers and strings."""
    sha = hashlib.sha256()
    for x in parts:
        if x is None or isinstance(x, (str, int, float, bool)):
            sha.update(f"{type(x).__name__}:{x!r};".encode())
        elif isinstance(x, (tuple, list)):
            sha.update(f"{len(x)}({fingerprint(*x)});".encode())
        else:
            array = np.ascontiguousarray(host(x))
            sha.update(f"{array.dtype.str}{array.shape};".encode())
            sha.update(array.data.cast("B") if array.size else b"")
    return sha.hexdigest()


def columns(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a history as one array per name, because JSON is slow for many numbers."""
    names = list(dict.fromkeys(name for record in records for name in record))
    return {name: _column([record.get(name) for record in records]) for name in names}


def _column(values: list[Any]) -> Any:
    kinds = {type(v) for v in values}
    if kinds <= {int}:
        return np.asarray(values, dtype=np.int64)
    if kinds <= {int, float}:
        return np.asarray(values, dtype=np.float64)
    if kinds <= {str}:
        return np.asarray(values, dtype=np.str_)
    return values


def records(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the history that `columns` was given, without fields that a record did not have."""
    arrays = {k: _vector(v, "ifU") for k, v in table.items() if isinstance(v, np.ndarray)}
    lists = {k: arrays[k].tolist() if k in arrays else list(v) for k, v in table.items()}
    if len({len(v) for v in lists.values()}) > 1:
        raise FileError("holds a history whose columns differ in length")
    return [
        {k: v for k, v in zip(lists, row, strict=True) if v is not None}
        for row in zip(*lists.values(), strict=True)
    ]
