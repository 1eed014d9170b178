"""`robust_pca` of TensorLy, which is made for tensors."""

from benchopt import BaseSolver
from tensorly.decomposition import robust_pca


class Solver(BaseSolver):
    """Nuclear norms of all unfoldings, by an augmented Lagrangian."""

    name = "TensorLy"
    sampling_strategy = "iteration"
    requirements = ["pip::tensorly"]  # noqa: RUF012

    def set_objective(self, Y, rank):
        """Take the data."""
        self.Y = Y

    def run(self, n_iter):
        """Make some iterations."""
        sparsity = 1 / max(self.Y.shape) ** 0.5
        self.estimate = robust_pca(self.Y, reg_E=sparsity, n_iter_max=max(1, n_iter), tol=0)[0]

    def get_result(self):
        """Return the estimate."""
        return {"estimate": self.estimate}
