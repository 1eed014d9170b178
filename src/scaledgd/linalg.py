"""Small dense linear algebra, in array-API calls only."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np
from array_api_compat import device

from .namespaces import array_namespace

Array = Any
F = TypeVar("F", bound=Callable[..., Any])

LARGE = 33
"""Size from which the eigenvalues of a Gram matrix take ten times as long as its Cholesky factor.
"""


def blank(B: Array, width: int) -> Array:
    """Return zeros with as many rows as B, stored where those are."""
    xp = array_namespace(B)
    row = xp.zeros((1, width), dtype=B.dtype, device=device(B))
    return xp.zeros_like(xp.sum(B, axis=1))[:, None] + row


def is_complex(x: Array) -> bool:
    """Return whether x holds complex numbers."""
    if isinstance(x, np.ndarray | np.generic):  # called very often
        return x.dtype.kind == "c"
    return bool(array_namespace(x).isdtype(x.dtype, "complex floating"))


def conj(x: Array) -> Array:
    return array_namespace(x).conj(x) if is_complex(x) else x


def adjoint(M: Array) -> Array:
    """Return Mᴴ."""
    return conj(M).T


def gram(M: Array) -> Array:
    """Return MᴴM, which is r × r."""
    return adjoint(M) @ M


SLABS = 64
"""Number of slabs before a mode up to which a tensor is multiplied without being transposed."""


def unwarned(function: F) -> F:
    """Return the function without NumPy's warnings of invalid values.

    In single precision, products of small matrices give them by chance, once in some thousand fits,
    although all numbers are finite. Whether iterates are finite is checked elsewhere.
    """
    return np.errstate(invalid="ignore")(function)


@unwarned
def mode_product(T: Array, M: Array, mode: int) -> Array:
    """Return T ×_mode M: every mode-fibre of T is multiplied by M."""
    xp, n = array_namespace(T), T.shape[mode]
    before, after = math.prod(T.shape[:mode]), math.prod(T.shape[mode + 1 :])
    if after == 1:
        product = xp.reshape(T, (before, n)) @ M.T
    elif before <= SLABS:
        product = M @ xp.reshape(T, (before, n, after))
    else:  # many small products would be slow
        return xp.moveaxis(xp.tensordot(T, M, axes=((mode,), (1,))), -1, mode)
    return xp.reshape(product, (*T.shape[:mode], M.shape[0], *T.shape[mode + 1 :]))


def mode_products(T: Array, matrices: Sequence[Array], skip: int | None = None) -> Array:
    """Return T ×_j matrices[j] for every j but `skip`."""
    for j, M in enumerate(matrices):
        if j != skip:
            T = mode_product(T, M, j)
    return T


def row_products(blocks: Sequence[Array]) -> Array:
    """Return the Kronecker products of rows: row i is that of the rows i of all blocks."""
    xp, J = array_namespace(blocks[0]), blocks[0]
    for B in blocks[1:]:
        J = xp.reshape(J[:, :, None] * B[:, None, :], (J.shape[0], -1))
    return J


def kronecker(blocks: Sequence[Array]) -> Array:
    """Return the Kronecker product of matrices, rows and columns in C order."""
    xp, J = array_namespace(blocks[0]), blocks[0]
    for B in blocks[1:]:
        J = J[:, None, :, None] * B[None, :, None, :]
        J = xp.reshape(J, (J.shape[0] * J.shape[1], -1))
    return J


def unfold(T: Array, mode: int) -> Array:
    """Return the matrix whose rows are indexed by `mode`; columns are in C order."""
    xp = array_namespace(T)
    return xp.reshape(xp.moveaxis(T, mode, 0), (T.shape[mode], -1))


def magnitude2(x: Array) -> Array:
    """Return |x|², entrywise."""
    xp = array_namespace(x)
    return xp.real(x) ** 2 + xp.imag(x) ** 2 if is_complex(x) else x * x


def inner(a: Array, b: Array) -> Array:
    """Return Re⟨a, b⟩, a 0-d array: the inner product in which gradients are taken."""
    if isinstance(a, np.ndarray) and a.dtype.kind == "f":  # called very often
        return np.sum(a * b)
    xp = array_namespace(a, b)
    product = xp.sum(conj(a) * b)
    return xp.real(product) if is_complex(product) else product


def square(x: Array) -> Array:
    """Return Σ |x|², a 0-d array."""
    if isinstance(x, np.ndarray) and not is_complex(x):
        flat = np.ravel(x)
        return np.asarray(flat @ flat)  # makes no array of squares
    return array_namespace(x).sum(magnitude2(x))


def norm(x: Array) -> Array:
    """Return the Frobenius norm, a 0-d array."""
    xp = array_namespace(x)
    return xp.sqrt(square(x))


def to_host(x: Array) -> Array:
    """Return an array as a NumPy array; a device waits for it."""
    return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)


def on_host(x: Array) -> Array:
    """Return a 0-d array as a number if reading it costs nothing, and unchanged otherwise."""
    return float(x) if isinstance(x, np.ndarray | np.generic) else x


def plain_float(x: Array) -> float:
    """Return a 0-d array as a number; torch tensors are detached first."""
    return float(x.detach() if hasattr(x, "detach") else x)


def epsilon(x: Array) -> float:
    """Return the relative spacing of the numbers in x."""
    if isinstance(x, np.ndarray):  # asked very often
        return float(np.finfo(x.dtype).eps)
    return float(array_namespace(x).finfo(x.dtype).eps)


def smallest(x: Array) -> float:
    """Return the smallest normal number of the type of x."""
    return float(array_namespace(x).finfo(x.dtype).smallest_normal)


def identity(n: int, like: Array) -> Array:
    return array_namespace(like).eye(n, dtype=like.dtype, device=device(like))


def inverse(G: Array, damping: float | Array = 0.0) -> Array:
    """Return (G + damping · I)⁻¹ for a small Hermitian G, or a pseudo-inverse if it is singular.

    A pseudo-inverse is enough, because a gradient vanishes where the Gram matrix of its partner
    does: zero factors stay zero. The result is NaN if G is not finite, which the loop reports.
    """
    xp = array_namespace(G)
    G = G + damping * identity(G.shape[0], like=G)
    if not G.shape[0]:
        return G
    unchecked = _unchecked(G, "inv_ex")
    if unchecked is not None:
        found, failed = unchecked(G)
        return xp.where((failed != 0) | _singular(G, found), xp.full_like(found, math.nan), found)
    with _unless_singular():
        found = xp.linalg.inv(G)
        if not bool(_singular(G, found)):
            return found
    with _unless_singular():
        return xp.linalg.pinv(G, rtol=_rounding(G))
    return xp.full_like(G, math.nan)


def _rounding(G: Array) -> float:
    """Return the share of the largest eigenvalue below which others may be due to rounding."""
    return 10 * int(G.shape[0]) * epsilon(G)


def _singular(G: Array, found: Array) -> Array:
    """Return whether a Hermitian G, whose computed inverse is given, is singular to rounding.

    It is if it is ill-conditioned to rounding, or if one column depends on the others: the share of
    a column that does not is 1 / (G_kk (G⁻¹)_kk), whatever the sizes of the columns.
    """
    own: Array
    if isinstance(G, np.ndarray):  # called very often
        size = np.abs(found).max() * np.abs(G).max()
        own = (G.diagonal() * found.diagonal()).real.max()
    else:
        xp = array_namespace(G)
        size = xp.max(xp.abs(found)) * xp.max(xp.abs(G))
        own = xp.max(xp.real(xp.linalg.diagonal(G) * xp.linalg.diagonal(found)))
    return (size > 1 / epsilon(G)) | (own > 1 / _rounding(G))


@contextlib.contextmanager
def _unless_singular() -> Iterator[None]:
    """Suppress the errors of singular matrices; every library has its own class of this name."""
    try:
        yield
    except Exception as error:
        if not type(error).__name__.endswith("LinAlgError"):
            raise


_careful: ContextVar[bool] = ContextVar("careful", default=False)


@contextlib.contextmanager
def careful() -> Iterator[None]:
    """Check for singular matrices in a `with` block, even if that makes a device wait.

    Otherwise `inverse` and `whitening` of singular matrices are NaN for libraries whose arrays may
    be on a device; `solve` then repeats the step with these checks. Kernels of a device compute
    small systems in double precision meanwhile.
    """
    token = _careful.set(True)
    try:
        yield
    finally:
        _careful.reset(token)


def being_careful() -> bool:
    """Whether a step is repeated with checks."""
    return _careful.get()


def _unchecked(G: Array, name: str) -> Callable[..., Any] | None:
    """Return the variant of a function that does not wait for errors, if G's library has one."""
    found = getattr(array_namespace(G).linalg, name, None)
    return None if _careful.get() else found


def solve_systems(G: Array, b: Array) -> Array:
    """Return G⁻¹ b for stacks of small regular systems, without making a device wait."""
    unchecked = _unchecked(G, "solve_ex")
    return array_namespace(G).linalg.solve(G, b) if unchecked is None else unchecked(G, b)[0]


def invert_systems(G: Array) -> Array:
    """Return G⁻¹ for stacks of small regular matrices, without making a device wait."""
    unchecked = _unchecked(G, "inv_ex")
    if unchecked is not None:
        return unchecked(G)[0]
    xp = array_namespace(G)
    try:
        return xp.linalg.inv(G)
    except np.linalg.LinAlgError:  # one of them is singular to rounding
        return xp.linalg.pinv(G)


def whitening(G: Array) -> Array:
    """Return T with Tᴴ G T = I on the range of a small positive semidefinite G, and 0 off it."""
    xp = array_namespace(G)
    unchecked = _unchecked(G, "cholesky_ex")
    if unchecked is not None and not G.requires_grad:
        # it is small, and a failed decomposition on a device costs more than the wait
        return like(whitening(to_host(G)), G)
    if unchecked is not None and G.shape[0]:
        root, failed = unchecked(G)
        pivots = xp.real(xp.linalg.diagonal(root)) ** 2
        small = xp.min(pivots) <= _rounding(G) * xp.max(pivots)
        T = adjoint(xp.linalg.solve_triangular(root, identity(G.shape[0], like=G), upper=False))
        return xp.where((failed != 0) | small, xp.full_like(T, math.nan), T)
    if not G.shape[0]:
        return G
    if G.shape[0] >= LARGE:  # eigenvalues are needed only if it is close to singular
        least = max(1e-8, 100 * G.shape[0] * epsilon(G))
        with contextlib.suppress(np.linalg.LinAlgError):
            root = xp.linalg.cholesky(G)
            pivots = xp.real(xp.linalg.diagonal(root)) ** 2
            if float(xp.min(pivots)) > least * float(xp.max(pivots)):
                return adjoint(xp.linalg.inv(root))
    values, vectors = xp.linalg.eigh(G)
    seen = values > _rounding(G) * values[-1]
    root = xp.astype(seen, values.dtype) / xp.sqrt(xp.where(seen, values, xp.ones_like(values)))
    return vectors * xp.astype(root, G.dtype)[None, :]


def conjugate_gradients(
    normal: Callable[[Array], Array],
    target: Array,
    precondition: Callable[[Array], Array],
    tol: float,
    max_steps: int,
) -> Array:
    """Solve normal(x) = target for a Hermitian positive semidefinite operator.

    Stops when the preconditioned residual is `tol` times the first, or at `max_steps`.
    """
    xp = array_namespace(target)
    x, r = xp.zeros_like(target), target
    z = precondition(r)
    p, rho = z, float(inner(r, z))
    first = rho
    for _ in range(max_steps):
        if not rho > tol**2 * first:
            break
        q = normal(p)
        curvature = float(inner(p, q))
        if not curvature > 0:  # nothing left to gain, or not a number
            break
        step = rho / curvature
        x, r = x + step * p, r - step * q
        z = precondition(r)
        rho, last = float(inner(r, z)), rho
        p = z + (rho / last) * p
    return x


def like(x: np.ndarray[Any, Any], example: Array) -> Array:
    """Return a NumPy array as an array of the kind, dtype and device of `example`."""
    xp = array_namespace(example)
    if getattr(example, "is_cuda", False):  # from pinned memory, so that the host need not wait
        ready = xp.asarray(x, dtype=example.dtype).pin_memory()
        return ready.to(device(example), non_blocking=True)
    return xp.asarray(x, dtype=example.dtype, device=device(example))


def larger(a: Any, b: Any) -> Any:
    """Return the larger one of two numbers or 0-d arrays; a device need not wait."""
    for x in (a, b):
        if hasattr(x, "detach"):
            other = b if x is a else a
            xp = array_namespace(x)
            return xp.where(x < other, xp.zeros_like(x) + other, x)
    return max(a, b)


def gaussian(shape: tuple[int, ...], rng: np.random.Generator, example: Array) -> Array:
    """Draw standard normal numbers like `example`; complex ones have E|z|² = 1.

    NumPy always draws them, so that every array library gets the same numbers.
    """
    draws = rng.standard_normal(shape)
    if is_complex(example):
        return like((draws + 1j * rng.standard_normal(shape)) / math.sqrt(2), example)
    return like(draws, example)


def orthonormal(M: Array) -> Array:
    return array_namespace(M).linalg.qr(M, mode="reduced")[0]


def fix_signs(U: Array) -> Array:
    """Return unit phases that make the largest entry of every column of U real and positive."""
    xp = array_namespace(U)
    pivot = xp.linalg.diagonal(xp.take(U, xp.argmax(xp.abs(U), axis=0), axis=0))
    pivot = xp.where(pivot == 0, xp.ones_like(pivot), pivot)  # columns of zeros stay
    return conj(pivot) / xp.astype(xp.abs(pivot), U.dtype)


def _signed(U: Array, s: Array, V: Array) -> tuple[Array, Array, Array]:
    """Return singular triplets with the signs of U fixed."""
    phase = fix_signs(U)[None, :]
    return U * phase, s, V * phase


def top_eigh(
    apply: Callable[[Array], Array],
    start: Array,
    rank: int,
    tol: float | None = None,
    max_blocks: int = 300,
) -> tuple[Array, Array]:
    """Return the largest eigenvalues of a Hermitian operator and their eigenvectors.

    Block Lanczos by residuals, with full reorthogonalisation and thick restarts.

    Parameters
    ----------
    apply : callable
        Multiplies an (n, b) block of vectors by the operator.
    start : array of shape (n, b), b >= rank
        The first block.
    rank : int
        How many pairs.
    tol : float, optional
        Largest residual norm, relative to the largest eigenvalue in magnitude; a few hundred
        ulp by default.

    Returns
    -------
    values : array of shape (rank,), descending
    vectors : array of shape (n, rank), orthonormal columns
    """
    xp = array_namespace(start)
    n, b = start.shape
    tol = 500 * epsilon(start) if tol is None else tol
    widest = max(6 * b, 40)
    V = identity(n, like=start) if n <= widest else orthonormal(start)
    W = apply(V)
    size = xp.max(xp.abs(W))
    size = xp.where(size > 0, size, xp.ones_like(size))  # norms are squares: keep them in range
    W = W / size
    for _ in range(max_blocks):
        values, Y = xp.linalg.eigh(adjoint(V) @ W)
        # descending; a restart also keeps some Ritz vectors beyond the wanted ones
        values, Y = xp.flip(values), xp.flip(Y, axis=1)
        X, residual = V @ Y[:, :b], W @ Y[:, :b]
        residual = residual - X * xp.astype(values[:b], X.dtype)[None, :]
        errors = xp.sqrt(xp.sum(magnitude2(residual[:, :rank]), axis=0))
        if V.shape[1] == n or bool(xp.max(errors) <= tol * xp.max(xp.abs(values))):
            break
        if V.shape[1] + b > min(widest, n):
            V, W = V @ Y[:, : 2 * b], W @ Y[:, : 2 * b]
        # A converged column leaves a residual of rounding errors: orthogonalise twice.
        fresh = orthonormal(residual - V @ (adjoint(V) @ residual))
        fresh = orthonormal(fresh - V @ (adjoint(V) @ fresh))
        V, W = xp.concat([V, fresh], axis=1), xp.concat([W, apply(fresh) / size], axis=1)
    return values[:rank] * size, X[:, :rank]


def truncated_svd(
    times: Callable[[Array], Array],
    adjoint_times: Callable[[Array], Array],
    shape: tuple[int, ...],
    rank: int,
    example: Array,
    rng: np.random.Generator,
    tol: float | None = None,
) -> tuple[Array, Array, Array]:
    """Return leading singular triplets (U, σ, V) of M, through products with M only.

    Parameters
    ----------
    times, adjoint_times : callable
        V ↦ M V and U ↦ Mᴴ U on blocks of columns.
    shape : (n1, n2)
    rank : int
    example : array
        Its kind, dtype and device are those of the result.
    rng : numpy.random.Generator
        Draws the first block.
    tol : float, optional
        Relative accuracy of the eigenvectors of MᴴM; a few hundred ulp by default.
    """
    xp = array_namespace(example)
    n1, n2 = shape
    if n1 < n2:
        V, s, U = truncated_svd(adjoint_times, times, (n2, n1), rank, example, rng, tol)
        return _signed(U, s, V)
    start = gaussian((n2, min(rank + 4, n2)), rng, example)
    size = float(xp.max(xp.abs(times(start)))) or 1.0  # MᴴM squares: keep it in range
    _, V = top_eigh(lambda B: adjoint_times(times(B) / size) / size, start, rank, tol)
    # Squaring lost what is below √eps of σ₁; a step of the subspace iteration on M itself
    # finds it again.
    Q = orthonormal(times(V) / size)
    V, s, Wh = xp.linalg.svd(adjoint_times(Q) / size, full_matrices=False)
    U = Q @ adjoint(Wh)
    return _signed(U, s * size, V)


def sketched_svd(
    times: Callable[[Array], Array],
    adjoint_times: Callable[[Array], Array],
    shape: tuple[int, ...],
    rank: int,
    example: Array,
    rng: np.random.Generator,
    rounds: int,
) -> tuple[Array, Array, Array]:
    """Approximate `truncated_svd` by some rounds of a randomised subspace iteration.

    It takes 2 · rounds + 2 products with blocks of rank + 4 columns, whatever the spectrum.
    """
    xp = array_namespace(example)
    n1, n2 = shape
    if n1 < n2:
        V, s, U = sketched_svd(adjoint_times, times, (n2, n1), rank, example, rng, rounds)
        return _signed(U, s, V)

    def spanning(M: Array) -> Array:
        size = xp.max(xp.abs(M))  # a Gram matrix squares: keep it in range
        M = M / xp.where(size > 0, size, xp.ones_like(size))
        for _ in range(2):  # the second pass makes up for the squaring
            M = M @ whitening(gram(M))
        return M

    block = gaussian((n2, min(rank + 4, n2, n1)), rng, example)
    Q = spanning(times(block))
    for _ in range(rounds):
        Q = spanning(times(spanning(adjoint_times(Q))))
    V, s, Wh = xp.linalg.svd(adjoint_times(Q), full_matrices=False)
    U, s, V = (Q @ adjoint(Wh))[:, :rank], s[:rank], V[:, :rank]
    return _signed(U, s, V)
