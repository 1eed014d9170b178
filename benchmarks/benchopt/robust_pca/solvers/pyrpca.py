"""Principal component pursuit of the package pyrpca."""

from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion
from pyrpca import rpca_pcp_ialm


class Solver(BaseSolver):
    """`rpca_pcp_ialm`, with the usual weight."""

    name = "pyrpca"
    stopping_criterion = SufficientProgressCriterion(patience=6, strategy="iteration")
    requirements = ["pip::pyrpca"]  # noqa: RUF012

    def set_objective(self, Y, rank):
        """Take the data."""
        self.Y = Y

    def run(self, effort):
        """Fit to a tolerance, two efforts per decade."""
        sparsity = 1 / max(self.Y.shape) ** 0.5
        tol = max(10 ** (-effort / 2), 1e-12)
        self.estimate = rpca_pcp_ialm(self.Y, sparsity, tol=tol, verbose=False)[0]

    def get_result(self):
        """Return the estimate."""
        return {"estimate": self.estimate}
