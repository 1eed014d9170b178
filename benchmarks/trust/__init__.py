"""Tests of whether answers can be trusted: random instances of every estimator and option."""
