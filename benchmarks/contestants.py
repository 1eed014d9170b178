"""scaledgd and the libraries it is compared with, each at its best settings.

A contestant runs with an effort between two bounds: a number of iterations, or the exponent of a
tolerance. The least effort that reaches the target is timed. A run returns an estimate in the form
that the problem's error takes.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .problems import Problem

Array = Any


def threads() -> int:
    """Return the number of threads that every library may use."""
    return int(os.environ.get("OMP_NUM_THREADS", "2"))


@dataclass(frozen=True)
class Contestant:
    """A library, and how to solve some kinds of problems with it."""

    name: str
    package: str
    kinds: tuple[str, ...]
    run: Callable[[Problem, int], Any]
    efforts: tuple[int, int]
    largest: float = 1e6
    """Largest number of observed entries that it is run on."""
    finest: float = 0.0
    """Smallest target it is run to; single precision does not reach smaller ones."""

    @property
    def installed(self) -> bool:
        """Whether the library is installed."""
        return importlib.util.find_spec(self.package) is not None


# ---- scaledgd


def _tol(effort: int) -> float:
    """Return a tolerance, three per decade."""
    return float(10 ** (-effort / 3))


def _completed(problem: Problem, effort: int) -> Any:
    import scaledgd as sg

    data = problem.data
    model = sg.MatrixCompletion(rank=problem.rank, tol=_tol(effort), random_state=0)
    index = data["rows"], data["columns"]
    model.fit_entries(index, data["values"], problem.shape)
    return lambda at=None: model.reconstruct() if at is None else model.predict_entries(at)


def _robust(problem: Problem, effort: int) -> Any:
    import scaledgd as sg

    model = sg.RobustPCA(rank=problem.rank, tol=_tol(effort), random_state=0)
    return model.fit(problem.data["Y"]).reconstruct()


def _tensor(problem: Problem, effort: int) -> Any:
    import scaledgd as sg

    model = sg.TensorCompletion(rank=problem.rank, tol=_tol(effort), random_state=0)
    return model.fit(problem.data["X"]).reconstruct()


def _rated(problem: Problem, effort: int) -> Any:
    import scaledgd as sg

    data = problem.data
    clip = tuple(data["bounds"]) if "bounds" in data else None
    model = sg.MatrixCompletion(clip=clip, random_state=0)
    index = data["rows"], data["columns"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows and columns without a rating
        model.fit_entries(index, data["values"], problem.shape)
    return model.predict_entries


OURS = {
    "completion": Contestant("scaledgd", "scaledgd", ("completion",), _completed, (3, 36), 1e12),
    "robust": Contestant("scaledgd", "scaledgd", ("robust",), _robust, (3, 36)),
    "tensor": Contestant("scaledgd", "scaledgd", ("tensor",), _tensor, (3, 36)),
    "ratings": Contestant("scaledgd", "scaledgd", ("ratings",), _rated, (1, 1)),
    "skewed": Contestant("scaledgd, rank given", "scaledgd", ("skewed",), _completed, (3, 3)),
}


# ---- completion


def _cmfrec(problem: Problem, effort: int, **settings: Any) -> Any:
    from cmfrec import CMF
    from scipy.sparse import coo_matrix

    data = problem.data
    X = coo_matrix((data["values"], (data["rows"], data["columns"])), shape=problem.shape)
    asked = {"k": problem.rank, "method": "als", "use_cg": False, "use_float": False}
    asked |= {"lambda_": 1e-14, "niter": effort, "center": False, "user_bias": False}
    asked |= {"item_bias": False, "nthreads": threads(), "verbose": False, "finalize_chol": False}
    asked |= {"precompute_for_predictions": False, **settings}
    model = CMF(**asked).fit(X)
    A, B = model.A_, model.B_
    return lambda at=None: A @ B.T if at is None else np.einsum("ek,ek->e", A[at[0]], B[at[1]])


def _cmfrec_noisy(problem: Problem, effort: int) -> Any:
    return _cmfrec(problem, effort, lambda_=0.01)


def _lbfgs(problem: Problem, effort: int) -> Any:
    """Run L-BFGS on the factors, with SciPy's sparse products, from the spectral start."""
    from scipy.optimize import minimize
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import svds

    data, (n1, n2), r = problem.data, problem.shape, problem.rank
    i, j, y = data["rows"], data["columns"], data["values"]
    Z = csr_array((y, (i, j)), shape=problem.shape)
    U, s, Vt = svds(Z * (n1 * n2 / len(y)), k=r, random_state=0)
    start = np.concatenate([(U * np.sqrt(s)).ravel(), (Vt.T * np.sqrt(s)).ravel()])

    def value(x: Array) -> tuple[float, Array]:
        L, R = x[: n1 * r].reshape(n1, r), x[n1 * r :].reshape(n2, r)
        off = np.einsum("ek,ek->e", L[i], R[j]) - y
        W = csr_array((off, (i, j)), shape=problem.shape)
        return 0.5 * float(off @ off), np.concatenate([(W @ R).ravel(), (W.T @ L).ravel()])

    limits = {"maxiter": effort, "maxfun": 2 * effort + 10, "ftol": 0.0, "gtol": 0.0, "maxcor": 20}
    x = minimize(value, start, jac=True, method="L-BFGS-B", options=limits).x
    L, R = x[: n1 * r].reshape(n1, r), x[n1 * r :].reshape(n2, r)
    return lambda at=None: L @ R.T if at is None else np.einsum("ek,ek->e", L[at[0]], R[at[1]])


def _libmf(problem: Problem, effort: int) -> Any:
    from libmf import mf

    data = problem.data
    triplets = np.column_stack([data["rows"], data["columns"], data["values"]]).astype(float)
    asked = {"k": problem.rank, "nr_iters": effort, "eta": 0.1, "nr_threads": threads()}
    engine = mf.MF(lambda_p2=0.0, lambda_q2=0.0, quiet=True, **asked)
    engine.fit(triplets)
    # its predictions are wrong, but its factors are right
    A, B = engine.p_factors(), engine.q_factors()
    return lambda at=None: A @ B.T if at is None else np.einsum("ek,ek->e", A[at[0]], B[at[1]])


def _pymanopt(problem: Problem, effort: int) -> Any:
    import pymanopt
    from pymanopt.manifolds import FixedRankEmbedded
    from pymanopt.optimizers import ConjugateGradient
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import svds

    data, (n1, n2), r = problem.data, problem.shape, problem.rank
    i, j, y = data["rows"], data["columns"], data["values"]
    manifold = FixedRankEmbedded(n1, n2, r)

    @pymanopt.function.numpy(manifold)
    def cost(u: Array, s: Array, vt: Array) -> float:
        off = np.einsum("ek,ek->e", (u * s)[i], vt.T[j]) - y
        return 0.5 * float(off @ off)

    @pymanopt.function.numpy(manifold)
    def gradient(u: Array, s: Array, vt: Array) -> tuple[Array, Array, Array]:
        off = np.einsum("ek,ek->e", (u * s)[i], vt.T[j]) - y
        W = csr_array((off, (i, j)), shape=problem.shape)
        WV, WU = W @ vt.T, W.T @ u
        return WV * s, np.einsum("ik,ik->k", u, WV), (WU * s).T

    U, s, Vt = svds(csr_array((y, (i, j)), shape=(n1, n2)) * (n1 * n2 / len(y)), k=r)
    start = type(manifold.random_point())(U, s, Vt)
    solver = ConjugateGradient(max_iterations=effort, min_gradient_norm=0, verbosity=0)
    point = solver.run(
        pymanopt.Problem(manifold, cost, euclidean_gradient=gradient), initial_point=start
    ).point
    u, s, vt = point
    return lambda at=None: (u * s) @ vt


# ---- robust PCA


def _altproj(problem: Problem, effort: int) -> Any:
    from rpca import RobustPCA

    # it subtracts the column means, outliers included, which costs one more component
    model = RobustPCA(n_components=problem.rank + 1, tol=_tol(effort), verbose=False)
    model.fit(problem.data["Y"])
    return model.low_rank_ + model.mean_


def _pcp(problem: Problem, effort: int) -> Any:
    from pyrpca import rpca_pcp_ialm

    sparsity = 1 / np.sqrt(max(problem.shape))
    return rpca_pcp_ialm(problem.data["Y"], sparsity, tol=_tol(effort), verbose=False)[0]


# ---- tensors


def _tensorly(problem: Problem, effort: int) -> Any:
    import tensorly
    from tensorly.decomposition import tucker

    observed = problem.data["observed"]
    given = np.where(observed, problem.data["X"], 0.0)
    found = tucker(given, rank=problem.rank, mask=observed, n_iter_max=effort, tol=0, init="svd")
    return tensorly.tucker_to_tensor(found)


# ---- ratings


def _rated_cmfrec(problem: Problem, effort: int) -> Any:
    from cmfrec import CMF
    from scipy.sparse import coo_matrix

    data = problem.data
    X = coo_matrix((data["values"], (data["rows"], data["columns"])), shape=problem.shape)
    model = CMF(k=10, lambda_=10.0, niter=20, nthreads=threads(), verbose=False).fit(X)
    return lambda at: model.predict(at[0], at[1])


def _rated_surprise(problem: Problem, effort: int) -> Any:
    import pandas as pd
    from surprise import SVD, Dataset, Reader

    data = problem.data
    low, high = data["bounds"]
    frame = pd.DataFrame({"u": data["rows"], "i": data["columns"], "r": data["values"]})
    table = Dataset.load_from_df(frame, Reader(rating_scale=(low, high))).build_full_trainset()
    model = SVD(n_factors=50, n_epochs=60, lr_all=0.007, reg_all=0.1, random_state=0).fit(table)
    return lambda at: np.asarray([model.predict(a, b).est for a, b in zip(*at, strict=True)])


def _rated_biases(problem: Problem, effort: int) -> Any:
    """Predict by shrunken means of rows and columns, a simple baseline."""
    i, j, y = (problem.data[k] for k in ("rows", "columns", "values"))
    n1, n2 = problem.shape
    mean = y.mean()
    b = np.bincount(i, y - mean, n1) / (np.bincount(i, minlength=n1) + 5)
    c = np.bincount(j, y - mean - b[i], n2) / (np.bincount(j, minlength=n2) + 5)
    return lambda at: mean + b[at[0]] + c[at[1]]


def _rated_myfm(problem: Problem, effort: int) -> Any:
    """Run Gibbs sampling of a factorisation machine on indicators of rows and columns."""
    from myfm import MyFMRegressor
    from scipy.sparse import csr_array

    n1, n2 = problem.shape

    def design(i: Array, j: Array) -> Any:
        columns = np.column_stack([i, n1 + j]).ravel()
        starts = np.arange(0, 2 * len(i) + 1, 2)
        return csr_array((np.ones(2 * len(i)), columns, starts), shape=(len(i), n1 + n2))

    data = problem.data
    model = MyFMRegressor(rank=10, random_seed=0)
    groups = [n1, n2]
    X = design(data["rows"], data["columns"])
    model.fit(X, data["values"], n_iter=200, n_kept_samples=180, group_shapes=groups)
    return lambda at: model.predict(design(*at))


def _skewed_cmfrec(ridge: float, iterations: int) -> Callable[[Problem, int], Any]:
    return lambda problem, effort: _cmfrec(problem, iterations, lambda_=ridge)


PEERS = (
    Contestant("cmfrec ALS", "cmfrec", ("completion",), _cmfrec, (1, 40)),
    Contestant("cmfrec ALS, ridge", "cmfrec", ("completion",), _cmfrec_noisy, (4, 20), 1e12, 1e-3),
    Contestant("SciPy L-BFGS-B on the factors", "scipy", ("completion",), _lbfgs, (8, 120)),
    Contestant("pymanopt FixedRankEmbedded", "pymanopt", ("completion",), _pymanopt, (12, 60)),
    Contestant("libmf SGD", "libmf", ("completion",), _libmf, (10, 60), 1e12, 1e-3),
    Contestant("rpca AccAltProj", "rpca", ("robust",), _altproj, (9, 30)),
    Contestant("pyrpca PCP (IALM)", "pyrpca", ("robust",), _pcp, (9, 30)),
    Contestant("TensorLy tucker(mask=)", "tensorly", ("tensor",), _tensorly, (60, 400)),
    Contestant("biases alone", "numpy", ("ratings",), _rated_biases, (1, 1)),
    Contestant("cmfrec k=10, lambda=10", "cmfrec", ("ratings",), _rated_cmfrec, (1, 1)),
    Contestant("surprise SVD f=50", "surprise", ("ratings",), _rated_surprise, (1, 1)),
    Contestant("myfm rank 10, 200 draws", "myfm", ("ratings",), _rated_myfm, (1, 1)),
    Contestant("scaledgd", "scaledgd", ("skewed",), _rated, (1, 1), 1e12),
    *(
        Contestant(
            f"cmfrec ALS, lambda={ridge:g}, {n} iterations",
            "cmfrec",
            ("skewed",),
            _skewed_cmfrec(ridge, n),
            (1, 1),
            1e12 if ridge == 1 else 1e6,
        )
        for ridge, n in ((0.3, 20), (1.0, 20), (3.0, 20), (1.0, 40))
    ),
)
