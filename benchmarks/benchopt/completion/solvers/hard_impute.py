"""Iterated singular value decompositions (hard impute, also known as IterativeSVD)."""

import numpy as np
from benchopt import BaseSolver


class Solver(BaseSolver):
    """Fill, truncate to the rank, fill again."""

    name = "iterated SVD"
    sampling_strategy = "iteration"

    def set_objective(self, rows, columns, values, shape, rank):
        """Take the data."""
        self.rank, self.index, self.values = rank, (rows, columns), values
        self.shape = shape

    def run(self, n_iter):
        """Make some iterations."""
        X = np.zeros(self.shape)
        for _ in range(n_iter):
            X[self.index] = self.values
            U, s, Vt = np.linalg.svd(X, full_matrices=False)
            X = (U[:, : self.rank] * s[: self.rank]) @ Vt[: self.rank]
        self.estimate = X

    def get_result(self):
        """Return the estimate."""
        return {"estimate": self.estimate}
