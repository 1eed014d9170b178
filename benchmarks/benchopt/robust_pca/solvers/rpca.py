"""Accelerated alternating projections of the package rpca."""

from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion
from rpca import RobustPCA


class Solver(BaseSolver):
    """`RobustPCA` of rpca, with the rank given."""

    name = "AccAltProj"
    stopping_criterion = SufficientProgressCriterion(patience=6, strategy="iteration")
    requirements = ["pip::rpca"]  # noqa: RUF012

    def set_objective(self, Y, rank):
        """Take the data."""
        self.Y, self.rank = Y, rank

    def run(self, effort):
        """Fit to a tolerance, two efforts per decade."""
        # it subtracts the column means, errors included, which costs one more component
        tol = max(10 ** (-effort / 2), 1e-12)
        model = RobustPCA(n_components=self.rank + 1, tol=tol, verbose=False).fit(self.Y)
        self.estimate = model.low_rank_ + model.mean_

    def get_result(self):
        """Return the estimate."""
        return {"estimate": self.estimate}
