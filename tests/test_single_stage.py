"""Large tables begin in single precision, and end as accurate as if they had not."""

import numpy as np
import pytest

import scaledgd as sg
from scaledgd.estimators import rules


def table(noise, n=(160, 120), rank=4, rng=0):
    """Observed entries of a matrix of low rank, plenty of them, and the matrix."""
    rng = np.random.default_rng(rng)
    X = rng.standard_normal((n[0], rank)) @ rng.standard_normal((rank, n[1]))
    index = np.nonzero(rng.random(n) < 0.5)
    return index, X[index] + noise * rng.standard_normal(len(index[0])), X


def fitted(index, y, shape, **asked):
    return sg.MatrixCompletion(rank=4, random_state=0, **asked).fit_entries(index, y, shape)


@pytest.fixture
def stages(monkeypatch):
    """The precision of the problems that are solved, in turn."""
    seen = []
    solve = sg.estimators.session.Session.solve

    def watched(self, problem, *args, **kwargs):
        seen.append(problem.y.dtype.name)
        return solve(self, problem, *args, **kwargs)

    monkeypatch.setattr(sg.estimators.session.Session, "solve", watched)
    return seen


def test_an_exact_fit_goes_on_in_double_precision(limits, stages):
    index, y, X = table(0.0)
    limits(single_precision=1000)
    model = fitted(index, y, X.shape)
    assert stages[:2] == ["float32", "float64"]
    assert model.reconstruct().dtype == np.float64
    assert np.linalg.norm(model.reconstruct() - X) < 1e-9 * np.linalg.norm(X)


def test_a_noisy_fit_is_that_of_double_precision(limits, stages):
    index, y, X = table(0.1)
    plain = fitted(index, y, X.shape).reconstruct()
    assert "float32" not in stages
    limits(single_precision=1000)
    model = fitted(index, y, X.shape)
    assert "float32" in stages
    assert stages[-1] == "float64"
    assert model.reconstruct().dtype == np.float64
    away = np.linalg.norm(model.reconstruct() - plain)
    assert away < 1e-2 * np.linalg.norm(plain - X)


def test_data_in_single_precision_stay_in_it(limits, stages):
    index, y, X = table(0.1)
    limits(single_precision=1000)
    model = fitted(index, y.astype(np.float32), X.shape)
    assert set(stages) == {"float32"}
    assert model.reconstruct().dtype == np.float32


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-8])
def test_the_change_of_the_residual_never_hides_an_end(monkeypatch, tol):
    """A run ends at the same iterate where every change of X is computed."""
    index, y, X = table(1e-3, rng=1)
    problem = sg.Observed(sg.Entries(index, X.shape), y)

    def ends():
        stop = rules.change(tol)
        return sg.solve(problem, sg.spectral(4), sg.Alternating(), max_iter=60, stop=stop).n_iter

    quick, computed = ends(), []
    monkeypatch.setattr(rules, "_residual_change", lambda *_: computed.append(1) or 0.0)
    assert quick == ends() < 60
    assert len(computed) == quick
