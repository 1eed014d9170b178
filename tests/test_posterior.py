"""The posterior of the variational model."""

import warnings

import numpy as np

import scaledgd as sg
from scaledgd.variational import Posterior
from scaledgd.variational.posterior import HOLD


def test_a_column_without_variance_is_held_also_without_noise():
    F = sg.LowRank(np.array([[1.0, 0.0]]), np.array([[2.0, 0.0]]))
    for noise in (0.0, 0.5):
        first = Posterior.first(F, noise)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bare = Posterior(noise, tuple(np.array([1.0, 0.0]) for _ in "LR"), first.variance, ())
            assert bare.penalty(0).tolist() == [noise, HOLD]
