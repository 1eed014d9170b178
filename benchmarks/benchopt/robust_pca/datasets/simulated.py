"""A matrix of known rank and condition number, some of whose entries are wrong."""

import numpy as np
from benchopt import BaseDataset


class Dataset(BaseDataset):
    """U diag(1, ..., 1/κ) Vᵀ and gross errors in a share of the entries."""

    name = "simulated"
    parameters = {"n, rank, kappa, share": [(300, 5, 1, 0.1), (300, 5, 20, 0.1)]}  # noqa: RUF012
    test_parameters = {"n, rank, kappa, share": [(60, 2, 1, 0.05)]}  # noqa: RUF012

    def get_data(self):
        """Draw the matrix and its errors."""
        rng = np.random.default_rng(0)
        U, V = (np.linalg.qr(rng.standard_normal((self.n, self.rank)))[0] for _ in range(2))
        truth = self.n * (U * np.linspace(1, 1 / self.kappa, self.rank)) @ V.T
        wrong = rng.random(truth.shape) < self.share
        return {"Y": truth + 10 * wrong * rng.standard_normal(truth.shape), "rank": self.rank,
                "truth": truth}  # fmt: skip
