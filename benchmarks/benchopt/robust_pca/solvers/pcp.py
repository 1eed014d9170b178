"""Principal component pursuit by an augmented Lagrangian, in NumPy."""

import numpy as np
from benchopt import BaseSolver


class Solver(BaseSolver):
    """Minimise the nuclear norm plus λ times the absolute sum of the errors."""

    name = "PCP"
    sampling_strategy = "iteration"

    def set_objective(self, Y, rank):
        """Take the data."""
        self.Y = Y

    def run(self, n_iter):
        """Make some iterations."""
        Y, sparsity = self.Y, 1 / np.sqrt(max(self.Y.shape))
        norm = np.linalg.norm(Y, 2)
        dual = Y / max(norm, np.abs(Y).max() / sparsity)
        X, S, mu = np.zeros_like(Y), np.zeros_like(Y), 1.25 / norm
        for _ in range(n_iter):
            Z = Y - X + dual / mu
            S = np.sign(Z) * np.maximum(np.abs(Z) - sparsity / mu, 0)
            U, s, Vt = np.linalg.svd(Y - S + dual / mu, full_matrices=False)
            X = (U * np.maximum(s - 1 / mu, 0)) @ Vt
            dual = dual + mu * (Y - X - S)
            mu *= 1.5
        self.estimate = X

    def get_result(self):
        """Return the estimate."""
        return {"estimate": self.estimate}
