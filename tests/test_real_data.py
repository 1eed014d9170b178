"""Real data, where they are at hand: not redistributable, so looked for beside the checkout.

Set SCALEDGD_DATA to the folder that holds them.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from scaledgd.experiments.tensors import f_measure, hidden_errors, movers

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("SCALEDGD_DATA", ROOT.parent / "shared" / "data"))


def load(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the data set {name} is not here; set SCALEDGD_DATA to its folder")
    return np.load(path)


@pytest.mark.parametrize(
    ("name", "p", "ranks", "rank", "mode", "bound"),
    [
        ("metr-la-week/metr_la_week.npz", 0.5, (10, 10, 5), 6, 0, 0.105),
        ("indian-pines/indian_pines.npz", 0.1, (10, 10, 5), 2, 2, 0.085),
    ],
)
def test_a_tensor_is_completed_better_than_its_unfolding(name, p, ranks, rank, mode, bound):
    X = load(name)["X"].astype(np.float64)
    tensor, matrix = hidden_errors(X, p, ranks, rank, mode, iterations=25)
    print(f"{name}: hidden entries, tensor {ranks} {tensor:.4f}, unfolded {matrix:.4f}")
    assert tensor < bound
    assert tensor < matrix


def test_movers_are_separated_from_the_background():
    video = load("highway-cdnet/highway_300x120x160.npz")
    frames, truth = video["frames"][::3], video["gt"][::3]
    score = f_measure(movers(frames, rank=1, iterations=60), truth)
    print(f"highway: F-measure {score:.3f}")
    assert score > 0.8
    still = np.abs(frames - frames.mean(axis=0, dtype=np.float64))
    assert score > f_measure(still, truth)  # the mean is pulled towards the movers
