"""Recover a low-rank matrix from some of its entries."""

import numpy as np
from benchopt import BaseObjective


class Objective(BaseObjective):
    """The relative error of the whole matrix."""

    name = "Matrix completion"
    url = "https://benchopt.github.io"
    min_benchopt_version = "1.6"

    def set_data(self, rows, columns, values, rank, truth):
        """Take the observed entries and the matrix that they come from."""
        self.rows, self.columns, self.values = rows, columns, values
        self.rank, self.truth = rank, truth

    def get_objective(self):
        """Return the arguments of the solvers."""
        entries = {"rows": self.rows, "columns": self.columns, "values": self.values}
        return {**entries, "shape": self.truth.shape, "rank": self.rank}

    def get_one_result(self):
        """Return some estimate, for tests."""
        return {"estimate": np.zeros(self.truth.shape)}

    def evaluate_result(self, estimate):
        """Return the relative error of an estimate."""
        error = np.linalg.norm(estimate - self.truth) / np.linalg.norm(self.truth)
        return {"value": float(error)}
