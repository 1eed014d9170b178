"""Slices of the last mode of a tensor may be variables of different units."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import scaledgd as sg

SHAPE = (24, 15, 9)
UNITS = np.geomspace(1e-3, 1e3, SHAPE[-1])


def variables(noise: float = 0.0, gross: float = 0.0, seed: int = 0):
    """A tensor of ranks (2, 2, 2) whose last mode has units: the truth, the data."""
    rng = np.random.default_rng(seed)
    U, V, W = (rng.standard_normal((n, 2)) for n in SHAPE)
    truth = np.einsum("iz,jz,kz->ijk", U, V, W)
    truth /= truth.std(axis=(0, 1))
    wrong = rng.random(SHAPE) < gross
    errors = wrong * rng.choice([-1, 1], SHAPE) * rng.uniform(4, 30, SHAPE)
    values = truth + noise * rng.standard_normal(SHAPE) + errors
    values[rng.random(SHAPE) < 0.1] = np.nan
    return truth * UNITS, values * UNITS, wrong & np.isfinite(values)


def errors(estimate, truth):
    """The error of every variable, as a share of its deviation."""
    return np.sqrt(np.mean((estimate - truth) ** 2, axis=(0, 1))) / UNITS


@pytest.fixture(scope="module")
def robust():
    truth, X, wrong = variables(gross=0.12)
    return truth, X, wrong, sg.TensorRobustPCA(random_state=0).fit(X)


def test_gross_errors_are_found_in_variables_of_all_sizes(robust):
    truth, X, wrong, model = robust
    assert model.scale_ == "columns"
    assert errors(model.reconstruct(), truth).max() < 1e-6
    found = np.zeros(X.shape, dtype=bool)
    found[model.outliers_.coords] = True
    assert np.array_equal(found, wrong)
    # in the units of the largest ones, most of them cannot be told
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = sg.TensorRobustPCA(2, random_state=0, scale="none").fit(X)
    assert plain.scale_ == "none"
    assert plain.diagnostics_
    assert errors(plain.reconstruct(), truth).max() > 0.1


@pytest.mark.parametrize("rank", [2, (3, 3, 3)])
def test_given_ranks_are_fitted_in_units(rank):
    truth, X, _ = variables(gross=0.12, seed=1)
    model = sg.TensorRobustPCA(rank, random_state=0).fit(X)
    assert model.scale_ == "columns"
    assert errors(model.reconstruct(), truth).max() < 1e-6


def test_factors_and_predictions_are_in_the_units_of_the_data(robust):
    truth, _, _, model = robust
    assert np.allclose(model.factors_.full(), model.reconstruct(), rtol=1e-9, atol=1e-9)
    index = tuple(np.array(i) for i in ((0, 5, 23), (1, 14, 0), (0, 4, 8)))
    assert np.allclose(model.predict_entries(index), truth[index], rtol=1e-6, atol=1e-8)


def test_other_slices_are_solved_in_units(robust):
    truth, X, _, model = robust
    some = X[3:9].copy()
    assert errors(model.transform(some), truth[3:9]).max() < 1e-6


def test_a_fit_continues_in_units(robust):
    truth, X, _, _ = robust
    model = sg.TensorRobustPCA(random_state=0).fit(X[:18]).partial_fit(X[18:])
    assert model.scale_ == "columns"
    assert errors(model.reconstruct(), truth).max() < 1e-6


def test_models_with_units_are_saved(robust, tmp_path):
    *_, model = robust
    model.save(tmp_path / "model.sgd")
    other = sg.load(tmp_path / "model.sgd")
    assert np.array_equal(other.reconstruct(), model.reconstruct())
    assert other.scale_ == "columns"


def test_other_units_give_other_units():
    """Estimates change by the same factors as the data."""
    _, X, _ = variables(gross=0.12, seed=2)
    change = 2.0 ** np.arange(-4, 5)
    one = sg.TensorRobustPCA(random_state=0).fit(X)
    two = sg.TensorRobustPCA(random_state=0).fit(X * change)
    assert one.scale_ == two.scale_ == "columns"
    assert errors(two.reconstruct() / change, one.reconstruct()).max() < 1e-9


def test_small_variables_are_completed_and_have_intervals_of_their_own():
    truth, X, _ = variables(noise=0.05, seed=3)
    model = sg.TensorCompletion(random_state=0).fit(X)
    off = errors(model.reconstruct(), truth)
    assert off.max() < 0.05
    index = np.nonzero(np.isnan(X))
    low, high = model.interval(index, level=0.9)
    inside = (low <= truth[index]) & (truth[index] <= high)
    by_variable = [inside[index[2] == k].mean() for k in range(SHAPE[-1])]
    assert min(by_variable) > 0.75
    assert model.scale_ == "columns"
    widths = [np.median((high - low)[index[2] == k]) for k in range(SHAPE[-1])]
    assert np.ptp(np.log10(widths / UNITS)) < 1
