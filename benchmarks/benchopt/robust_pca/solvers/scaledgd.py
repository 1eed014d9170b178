"""scaledgd with a growing accuracy."""

from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

import scaledgd as sg


class Solver(BaseSolver):
    """`RobustPCA` with the rank given; the share of errors is not."""

    name = "scaledgd"
    stopping_criterion = SufficientProgressCriterion(patience=6, strategy="iteration")
    requirements = ["pip::scaledgd"]  # noqa: RUF012

    def set_objective(self, Y, rank):
        """Take the data."""
        self.Y, self.rank = Y, rank

    def run(self, effort):
        """Fit to a relative accuracy, two efforts per decade."""
        tol = max(10 ** (-effort / 2), 1e-12)
        self.estimate = sg.RobustPCA(self.rank, tol=tol, random_state=0).fit(self.Y).reconstruct()

    def get_result(self):
        """Return the estimate."""
        return {"estimate": self.estimate}
