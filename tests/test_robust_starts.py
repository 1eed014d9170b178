"""Likelihoods by which robust starts are compared."""

import warnings

import numpy as np
import pytest

from scaledgd.estimators.robust_starts import cauchy, evidence


def test_residuals_that_vanish_have_a_likelihood():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (np.float32, np.float64):
            nothing, one = np.zeros(5, dtype=kind), np.eye(1, 5, dtype=kind)[0]
            likelihoods = [cauchy(x)[0] for x in (nothing, one, one + 1)]
            assert likelihoods == sorted(likelihoods, reverse=True)
            assert likelihoods[0] > likelihoods[1] > likelihoods[2]


@pytest.mark.parametrize("noise", [1e-1, 1e-4, 1e-7, 1e-10])
def test_gross_errors_are_worth_as_many_parameters_whatever_the_noise(noise):
    """A gross error is worth between 1.5 and 4 parameters."""
    left = noise * np.random.default_rng(0).standard_normal(1000)
    wrong = np.where(np.arange(1000) < 10, 1.0, left)
    assert evidence(left, 100 + 40) < evidence(wrong, 100) < evidence(left, 100 + 15)
