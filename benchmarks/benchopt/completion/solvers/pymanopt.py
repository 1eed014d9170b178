"""Riemannian conjugate gradients of pymanopt on matrices of fixed rank."""

import numpy as np
import pymanopt
from benchopt import BaseSolver
from pymanopt.manifolds import FixedRankEmbedded
from pymanopt.optimizers import ConjugateGradient
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds


class Solver(BaseSolver):
    """`FixedRankEmbedded`, from the spectral start."""

    name = "pymanopt"
    sampling_strategy = "iteration"
    requirements = ["pip::pymanopt"]  # noqa: RUF012

    def set_objective(self, rows, columns, values, shape, rank):
        """Take the data."""
        self.i, self.j, self.y, self.shape, self.rank = rows, columns, values, shape, rank

    def run(self, n_iter):
        """Make some iterations."""
        (n1, n2), i, j = self.shape, self.i, self.j
        manifold = FixedRankEmbedded(n1, n2, self.rank)

        def residual(u, s, vt):
            return np.einsum("ek,ek->e", (u * s)[i], vt.T[j]) - self.y

        @pymanopt.function.numpy(manifold)
        def cost(u, s, vt):
            off = residual(u, s, vt)
            return 0.5 * float(off @ off)

        @pymanopt.function.numpy(manifold)
        def gradient(u, s, vt):
            W = csr_array((residual(u, s, vt), (i, j)), shape=self.shape)
            WV, WU = W @ vt.T, W.T @ u
            return WV * s, np.einsum("ik,ik->k", u, WV), (WU * s).T

        Z = csr_array((self.y, (i, j)), shape=self.shape) * (n1 * n2 / len(self.y))
        point = type(manifold.random_point())(*svds(Z, k=self.rank, random_state=0))
        if n_iter:
            problem = pymanopt.Problem(manifold, cost, euclidean_gradient=gradient)
            solver = ConjugateGradient(max_iterations=n_iter, min_gradient_norm=0, verbosity=0)
            point = solver.run(problem, initial_point=point).point
        u, s, vt = point
        self.estimate = (u * s) @ vt

    def get_result(self):
        """Return the estimate."""
        return {"estimate": self.estimate}
