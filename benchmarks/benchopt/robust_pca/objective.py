"""Recover a low-rank matrix from all of its entries, some of which are grossly wrong."""

import numpy as np
from benchopt import BaseObjective


class Objective(BaseObjective):
    """The relative error of the low-rank part."""

    name = "Robust PCA"
    url = "https://benchopt.github.io"
    min_benchopt_version = "1.6"

    def set_data(self, Y, rank, truth):
        """Take the corrupted matrix and the truth."""
        self.Y, self.rank, self.truth = Y, rank, truth

    def get_objective(self):
        """Return the arguments of the solvers."""
        return {"Y": self.Y, "rank": self.rank}

    def get_one_result(self):
        """Return some estimate, for tests."""
        return {"estimate": np.zeros(self.truth.shape)}

    def evaluate_result(self, estimate):
        """Return the relative error of an estimate."""
        error = np.linalg.norm(estimate - self.truth) / np.linalg.norm(self.truth)
        return {"value": float(error)}
