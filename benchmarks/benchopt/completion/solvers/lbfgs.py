"""L-BFGS of SciPy on the factors, from the spectral start."""

import numpy as np
from benchopt import BaseSolver
from scipy.optimize import minimize
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds


class Solver(BaseSolver):
    """Minimise the squared residual over L and R."""

    name = "SciPy L-BFGS"
    sampling_strategy = "iteration"

    def set_objective(self, rows, columns, values, shape, rank):
        """Take the data."""
        self.i, self.j, self.y, self.shape, self.rank = rows, columns, values, shape, rank

    def run(self, n_iter):
        """Make some iterations."""
        (n1, n2), r, i, j = self.shape, self.rank, self.i, self.j
        Z = csr_array((self.y, (i, j)), shape=self.shape) * (n1 * n2 / len(self.y))
        U, s, Vt = svds(Z, k=r, random_state=0)

        def parts(x):
            return x[: n1 * r].reshape(n1, r), x[n1 * r :].reshape(n2, r)

        def value(x):
            L, R = parts(x)
            off = np.einsum("ek,ek->e", L[i], R[j]) - self.y
            W = csr_array((off, (i, j)), shape=self.shape)
            return 0.5 * float(off @ off), np.concatenate([(W @ R).ravel(), (W.T @ L).ravel()])

        x = np.concatenate([(U * np.sqrt(s)).ravel(), (Vt.T * np.sqrt(s)).ravel()])
        if n_iter:
            limits = {"maxiter": n_iter, "ftol": 0.0, "gtol": 0.0, "maxcor": 20}
            x = minimize(value, x, jac=True, method="L-BFGS-B", options=limits).x
        L, R = parts(x)
        self.estimate = L @ R.T

    def get_result(self):
        """Return the estimate."""
        return {"estimate": self.estimate}
