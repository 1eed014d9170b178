"""Fits of Tucker models of given ranks."""

import warnings

import numpy as np

import scaledgd as sg
from scaledgd.estimators.journal import Journal
from scaledgd.estimators.local_observations import LocalObservations
from scaledgd.estimators.session import Session
from scaledgd.estimators.tucker import fit_ranks, smaller


def test_a_start_that_has_vanished_is_not_used():
    """Its systems are singular, and the first step was not finite."""
    rng, shape = np.random.default_rng(0), (1, 4, 5)
    index = tuple(i.ravel()[1:] for i in np.indices(shape))
    data = LocalObservations(index, rng.standard_normal(19), shape)
    start = sg.Tucker(tuple(rng.standard_normal((n, 1)) for n in shape), np.full((1, 1, 1), 5e-159))
    session = Session.begin(1e-9, 500, None, Journal(None, {}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fit_ranks(session, data, (1, 1, 1), None, start)
    assert np.isfinite(found.noise)


def test_no_error_that_cannot_be_seen_beside_the_values_is_gross():
    """A fit that had converged further at most entries won, however far off it was elsewhere."""
    rng = np.random.default_rng(0)
    squares = rng.chisquare(1, 300)
    good, further = 1e-11 * squares, 1e-15 * squares
    further[:60] = 0.01 * squares[:60]
    assert smaller(good, further, typical=1.0)
    assert not smaller(further, good, typical=1.0)
    # gross errors in the data are missed by both
    good[60:90] = further[60:90] = 1e4
    assert smaller(good, further, typical=1.0)
    assert not smaller(good, good, typical=1.0)
