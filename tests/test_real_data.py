"""Real data, where they are at hand: not redistributable, so looked for beside the checkout.

Set SCALEDGD_DATA to the folder that holds them.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks.tensors import f_measure, hidden_errors, movers

import scaledgd as sg

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


@pytest.mark.slow
def test_movers_are_separated_from_the_background():
    video = load("highway-cdnet/highway_300x120x160.npz")
    frames, truth = video["frames"][::6], video["gt"][::6]
    score = f_measure(movers(frames, rank=1, iterations=60), truth)
    print(f"highway: F-measure {score:.3f}")
    assert score > 0.8
    still = np.abs(frames - frames.mean(axis=0, dtype=np.float64))
    assert score > f_measure(still, truth)  # the mean is pulled towards the movers


# ---- the estimators, with all defaults


def hidden_error(X, p, seed=0):
    """The relative error on hidden entries, and the model."""
    seen = np.random.default_rng(seed).random(X.shape) < p
    model = sg.MatrixCompletion(random_state=seed).fit(np.where(seen, X, np.nan))
    off = (model.reconstruct() - X)[~seen]
    return np.linalg.norm(off) / np.linalg.norm(X[~seen]), model


@pytest.mark.parametrize(("p", "bound"), [(0.8, 0.062), (0.5, 0.107), (0.2, 0.29)])
def test_chlorine_is_completed(p, bound):
    error, model = hidden_error(load("chlorine/chlorine_1000x166.npz")["X"].T[:120, :180], p)
    print(f"chlorine, {p:.0%} seen: {error:.4f}, rank {model.rank_}")
    assert error < bound


@pytest.mark.parametrize(
    ("p", "bound"),
    [
        pytest.param(0.8, 0.083, marks=pytest.mark.slow),
        pytest.param(0.5, 0.088, marks=pytest.mark.slow),
        (0.2, 0.113),
    ],
)
def test_electricity_is_completed(p, bound):
    X = load("electricity-321/electricity35.npz")["X"].astype(np.float64)
    error, model = hidden_error(X, p)
    print(f"electricity, {p:.0%} seen: {error:.4f}, rank {model.rank_}")
    assert error < bound
    assert model.scale_ == "rows"


def test_ratings_are_predicted():
    data = load("gcmc-flixster/flixster.npz")
    i, j = (data[k].astype(np.int64) for k in ("user", "item"))
    y, test = data["rating"].astype(np.float64), data["is_test"].astype(bool)
    model = sg.MatrixCompletion(random_state=0)
    with pytest.warns(sg.DataWarning):  # users without a rating
        model.fit_entries((i[~test], j[~test]), y[~test], (3000, 3000))
    off = model.predict_entries((i[test], j[test])) - y[test]
    print(f"flixster: RMSE {np.sqrt(np.mean(off**2)):.4f}, rank {model.rank_}")
    assert np.sqrt(np.mean(off**2)) < 0.89


# on a busy lane, some pixels show cars more than half of the time
@pytest.mark.filterwarnings("ignore:more than half of the entries")
def test_robust_pca_finds_the_movers():
    video = load("highway-cdnet/highway_300x120x160.npz")
    frames, truth = video["frames"][::2], video["gt"][::2]
    X = frames.reshape(len(frames), -1).astype(np.float64)
    model = sg.RobustPCA(random_state=0).fit(X)
    score = f_measure(np.abs(X - model.reconstruct()).reshape(frames.shape), truth)
    print(f"highway: F-measure {score:.3f}, rank {model.rank_}")
    assert model.rank_ == 1
    assert score > 0.82
