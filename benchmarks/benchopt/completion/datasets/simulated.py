"""A matrix of known rank and condition number, some of whose entries are observed."""

import numpy as np
from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Entries of U diag(1, ..., 1/κ) Vᵀ with random orthonormal U and V."""

    name = "simulated"
    parameters = {"n, rank, kappa, share": [(300, 5, 1, 0.3), (300, 5, 100, 0.3)]}  # noqa: RUF012
    test_parameters = {"n, rank, kappa, share": [(60, 2, 1, 0.5)]}  # noqa: RUF012

    def get_data(self):
        """Draw the matrix and its observed entries."""
        rng = np.random.default_rng(0)
        U, V = (np.linalg.qr(rng.standard_normal((self.n, self.rank)))[0] for _ in range(2))
        truth = self.n * (U * np.linspace(1, 1 / self.kappa, self.rank)) @ V.T
        rows, columns = np.nonzero(rng.random(truth.shape) < self.share)
        entries = {"rows": rows, "columns": columns, "values": truth[rows, columns]}
        return {**entries, "rank": self.rank, "truth": truth}
