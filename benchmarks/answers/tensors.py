"""Tensors with cells, days and bands lost, compared with their unfoldings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

import scaledgd as sg

from . import peers
from .asked import RELATIVE, RMSE, Array, Ask, Hidden, Row


def unfolded(mode: int, tensor: Hidden) -> Array:
    """Fill the unfolding along a mode with the default settings."""
    Y = np.moveaxis(tensor.holes, mode, 0)
    filled = sg.MatrixCompletion(random_state=0).fit(Y.reshape(len(Y), -1)).reconstruct()
    return np.moveaxis(filled.reshape(Y.shape), 0, mode)


OURS = {
    "TensorCompletion()": lambda tensor: (
        sg.TensorCompletion(random_state=0).fit(tensor.holes).reconstruct()
    ),
    **{f"MatrixCompletion(), mode {k}": partial(unfolded, k) for k in range(3)},
}


def lost(shape: tuple[int, ...], along: int | None, share: float = 0.3, seed: int = 0) -> Array:
    """Draw which cells are hidden: single ones, or whole fibres along a mode."""
    kept = tuple(1 if k == along else n for k, n in enumerate(shape))
    drawn = np.random.default_rng(seed).random(kept) < share
    return np.broadcast_to(drawn, shape).copy()


def tensors(ask: Ask) -> Iterator[Row]:
    """Fill passengers, speeds and an image of many bands, 30 % of them lost.

    A lost day is one sensor's, a lost band that of one line of the image. Speeds are of every
    third sensor and every fourth time, the image is cropped to 72×72 pixels and every fourth band
    (quick: 36×36 and every eighth): whole, some fits take too long.
    """
    X = ask.load("traffic-hangzhou")["X"].astype(float)
    # zeros are missing there: they are not scored, and nobody sees them
    hidden = lost(X.shape, None)
    X = np.where(X == 0, np.nan, X)
    scored = Hidden(X, hidden & np.isfinite(X))
    yield from ask.compared("hangzhou, cells", lambda: [scored], OURS, peers.TENSORS, RMSE)
    speeds = ask.load("metr-la-week")["X"][::3, ::4].astype(float)
    crop = np.s_[:36, :36, ::8] if ask.quick else np.s_[:72, :72, ::4]
    image = ask.load("indian-pines")["X"][crop].astype(float)
    for case, X, along in (
        ("metr-la-week, cells", speeds, None),
        ("metr-la-week, days", speeds, 1),
        ("indian-pines, cells", image, None),
        ("indian-pines, bands", image, 1),
    ):
        yield from ask.compared(
            case,
            lambda X=X, along=along: [Hidden(X, lost(X.shape, along))],  # type: ignore[misc]
            OURS,
            peers.TENSORS,
            RELATIVE,
        )
