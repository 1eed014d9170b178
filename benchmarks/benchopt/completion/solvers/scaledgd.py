"""scaledgd with a growing accuracy."""

from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

import scaledgd as sg


class Solver(BaseSolver):
    """`MatrixCompletion` with the rank given."""

    name = "scaledgd"
    stopping_criterion = SufficientProgressCriterion(patience=6, strategy="iteration")
    requirements = ["pip::scaledgd"]  # noqa: RUF012

    def set_objective(self, rows, columns, values, shape, rank):
        """Take the data."""
        self.index, self.values, self.shape, self.rank = (rows, columns), values, shape, rank

    def run(self, effort):
        """Fit to a relative accuracy, two efforts per decade."""
        tol = max(10 ** (-effort / 2), 1e-12)
        model = sg.MatrixCompletion(self.rank, center="none", scale="none", tol=tol, random_state=0)
        model.fit_entries(self.index, self.values, self.shape)
        self.estimate = model.reconstruct()

    def get_result(self):
        """Return the estimate."""
        return {"estimate": self.estimate}
