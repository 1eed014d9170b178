"""Alternating least squares of cmfrec."""

from benchopt import BaseSolver
from cmfrec import CMF
from scipy.sparse import coo_matrix


class Solver(BaseSolver):
    """`CMF` without offsets and almost without a ridge."""

    name = "cmfrec"
    sampling_strategy = "iteration"
    requirements = ["pip::cmfrec"]  # noqa: RUF012

    def set_objective(self, rows, columns, values, shape, rank):
        """Take the data."""
        self.X, self.rank = coo_matrix((values, (rows, columns)), shape=shape), rank

    def run(self, n_iter):
        """Make some iterations."""
        asked = {"k": self.rank, "method": "als", "use_cg": False, "use_float": False}
        asked |= {"lambda_": 1e-14, "niter": max(1, n_iter), "center": False, "user_bias": False}
        model = CMF(**asked, item_bias=False, nthreads=2, verbose=False).fit(self.X)
        self.estimate = model.A_ @ model.B_.T

    def get_result(self):
        """Return the estimate."""
        return {"estimate": self.estimate}
