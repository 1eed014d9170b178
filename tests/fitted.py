"""A small fit of every kind, for tests that are about all of them."""

import numpy as np

import scaledgd as sg


def table(shape=(40, 30), rank=3, p=0.6, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))
    return np.where(rng.random(shape) < p, X + noise * rng.standard_normal(shape), np.nan)


def tensor(noise=0.05, p=0.6):
    rng = np.random.default_rng(0)
    X = sg.datasets.low_rank_tensor((14, 12, 10), 2, kappa=3, rng=0).full()
    X = X / X.std() + noise * rng.standard_normal(X.shape)
    return np.where(rng.random(X.shape) < p, X, np.nan)


def corrupted(X):
    return X + 5 * (np.random.default_rng(1).random(X.shape) < 0.05)


def design(shape=(6, 5)):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((120, *shape))
    C = sg.datasets.low_rank_tensor(shape, 2, kappa=2, rng=0).full()
    return A, np.tensordot(A, C, len(shape)) + 0.1 * rng.standard_normal(120)


CASES = {
    "noise": (sg.MatrixCompletion(3), (table(),)),
    "no noise": (sg.MatrixCompletion(3), (table(noise=0),)),
    "few": (sg.MatrixCompletion(4), (table((30, 30), 4, 0.5, 0),)),
    "auto": (sg.MatrixCompletion(), (table() + 4,)),
    "ridge": (sg.MatrixCompletion(3, ridge=0.1), (table(),)),
    "parts": (sg.MatrixCompletion(2, non_negative=True), (np.abs(table()),)),
    "outliers": (sg.MatrixCompletion(3, outliers="auto"), (corrupted(table()),)),
    "robust": (sg.RobustPCA(3), (corrupted(table(p=1.0)),)),
    "robust auto": (sg.RobustPCA(), (corrupted(table(p=1.0)),)),
    "tensor": (sg.TensorCompletion((2, 2, 2), center="both"), (tensor(),)),
    "tensor auto": (sg.TensorCompletion(), (tensor(),)),
    "robust tensor": (sg.TensorRobustPCA(2), (corrupted(tensor(p=1.0)),)),
    "regression": (sg.MatrixRegressor(), design()),
    "tensor regression": (sg.TensorRegressor(2), design((3, 3, 2))),
}


def fresh(name, **params):
    """An estimator of a kind, not fitted, and its data."""
    from sklearn.base import clone

    model, data = CASES[name]
    return clone(model).set_params(random_state=0, **params), data
