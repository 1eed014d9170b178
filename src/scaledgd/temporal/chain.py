"""Gaussian chains: block-tridiagonal systems, their inverses and draws, at linear cost.

A chain x₁, …, x_T has a precision matrix with blocks D_t on the diagonal and E_t below it, between
x_t and x_{t+1}. Every other block is eliminated, which leaves a chain of half the length, and so
on (cyclic reduction). It is a Cholesky decomposition in another order: as stable, but every level
is one batch of small matrix products instead of a loop over time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..linalg import invert_systems
from ..namespaces import array_namespace

Array = Any


class Algebra(Protocol):
    """How the blocks of a chain are multiplied: entrywise, or as matrices."""

    def mul(self, A: Array, B: Array) -> Array: ...
    def act(self, A: Array, x: Array) -> Array: ...
    def inverse(self, A: Array) -> Array: ...
    def transpose(self, A: Array) -> Array: ...


@dataclass(frozen=True)
class Numbers:
    """Blocks are numbers: arrays of shape (T, …) are independent chains."""

    def mul(self, A: Array, B: Array) -> Array:
        return A * B

    def act(self, A: Array, x: Array) -> Array:
        return A * x

    def inverse(self, A: Array) -> Array:
        return 1 / A

    def transpose(self, A: Array) -> Array:
        return A


@dataclass(frozen=True)
class Matrices:
    """Blocks are matrices: arrays of shape (T, r, r)."""

    def mul(self, A: Array, B: Array) -> Array:
        return A @ B

    def act(self, A: Array, x: Array) -> Array:
        return (A @ x[..., None])[..., 0]

    def inverse(self, A: Array) -> Array:
        P = invert_systems(A)
        return 0.5 * (P + self.transpose(P))

    def transpose(self, A: Array) -> Array:
        return array_namespace(A).matrix_transpose(A)


NUMBERS, MATRICES = Numbers(), Matrices()


@dataclass(frozen=True, eq=False)
class Solved:
    """The mean of a chain, and the blocks of its covariance on and below the diagonal.

    Attributes
    ----------
    mean : array of shape (T, …)
    covariance : array of shape (T, …)
        Of every block.
    lagged : array of shape (T − 1, …)
        Between x_{t+1} and x_t.
    """

    mean: Array
    covariance: Array
    lagged: Array


@dataclass(frozen=True, eq=False)
class _Level:
    """One elimination: odd blocks as functions of their neighbours, and the chain of the others.

    x_i = P b_i + left x_{i−1} + right x_{i+1}, with P the conditional covariance.
    """

    P: Array
    left: Array
    right: Array
    D: Array
    E: Array
    above: Array
    below: Array


def _reduced(D: Array, E: Array, ops: Algebra) -> _Level:
    xp = array_namespace(D)
    P = ops.inverse(D[1::2, ...])
    m = P.shape[0]
    below, above = E[0::2, ...][:m, ...], E[1::2, ...]
    k = above.shape[0]
    left = -ops.mul(P, below)
    right = -ops.mul(P[:k, ...], ops.transpose(above))
    even = xp.asarray(D[0::2, ...], copy=True)
    even[:m, ...] += ops.mul(ops.transpose(below), left)
    even[1 : k + 1, ...] += ops.mul(above, right)
    return _Level(P, left, right, even, ops.mul(above, left[:k, ...]), above, below)


def _carried(level: _Level, b: Array, ops: Algebra) -> tuple[Array, Array]:
    """The odd blocks solved separately, and the right side of the others."""
    own = ops.act(level.P, b[1::2, ...])
    m, k = level.P.shape[0], level.above.shape[0]
    rest = array_namespace(b).asarray(b[0::2, ...], copy=True)
    rest[:m, ...] -= ops.act(ops.transpose(level.below), own)
    rest[1 : k + 1, ...] -= ops.act(level.above, own[:k, ...])
    return own, rest


def _between(level: _Level, own: Array, even: Array, ops: Algebra) -> Array:
    """All blocks, from those that were not eliminated."""
    m, k = level.P.shape[0], level.above.shape[0]
    odd = own + ops.act(level.left, even[:m, ...])
    odd[:k, ...] += ops.act(level.right, even[1 : k + 1, ...])
    return _interleaved(even, odd)


def _interleaved(even: Array, odd: Array) -> Array:
    xp = array_namespace(even)
    out = xp.empty_like(xp.concat([even, odd]))
    out[0::2, ...], out[1::2, ...] = even, odd
    return out


def solve_chain(D: Array, E: Array, b: Array, ops: Algebra) -> Solved:
    """Return the solution of a chain, and the requested parts of its inverse.

    Parameters
    ----------
    D : array of shape (T, …)
        Diagonal blocks of the precision.
    E : array of shape (T − 1, …)
        Blocks below the diagonal.
    b : array of shape (T, …)
        The right side.
    ops : Numbers or Matrices
    """
    if D.shape[0] == 1:
        P = ops.inverse(D)
        return Solved(ops.act(P, b), P, E)
    level = _reduced(D, E, ops)
    own, rest = _carried(level, b, ops)
    even = solve_chain(level.D, level.E, rest, ops)
    m, k = level.P.shape[0], level.above.shape[0]
    C, X, back = even.covariance, even.lagged, ops.transpose
    to_left = ops.mul(level.left, C[:m, ...])
    to_left[:k, ...] += ops.mul(level.right, X[:k, ...])
    to_right = ops.mul(level.left[:k, ...], back(X[:k, ...]))
    to_right = to_right + ops.mul(level.right, C[1 : k + 1, ...])
    odd = level.P + ops.mul(to_left, back(level.left))
    odd[:k, ...] += ops.mul(to_right, back(level.right))
    mean = _between(level, own, even.mean, ops)
    return Solved(mean, _interleaved(C, odd), _interleaved(to_left, back(to_right)))


def evidence(D: Array, E: Array, b: Array) -> tuple[Array, Array]:
    """Return log det A and bᵀ A⁻¹ b of every chain of numbers.

    Parameters
    ----------
    D : array of shape (T, …)
    E : array of shape (T − 1, …)
    b : array of shape (T, …)
    """
    xp = array_namespace(D)
    determinant = square = 0 * D[0, ...]
    while D.shape[0] > 1:
        level = _reduced(D, E, NUMBERS)
        determinant = determinant + xp.sum(xp.log(D[1::2, ...]), axis=0)
        own, rest = _carried(level, b, NUMBERS)
        square = square + xp.sum(own * b[1::2, ...], axis=0)
        D, E, b = level.D, level.E, rest
    determinant = determinant + xp.log(D[0, ...])
    return determinant, square + b[0, ...] ** 2 / D[0, ...]


def drawn_chain(D: Array, E: Array, z: Array, ops: Algebra) -> Array:
    """Return a draw of a chain of mean zero, from standard normal numbers of its shape."""
    if D.shape[0] == 1:
        return _rooted(ops.inverse(D), z, ops)
    level = _reduced(D, E, ops)
    own = _rooted(level.P, z[1::2, ...], ops)
    return _between(level, own, drawn_chain(level.D, level.E, z[0::2, ...], ops), ops)


def _rooted(P: Array, z: Array, ops: Algebra) -> Array:
    """Numbers with covariance P."""
    xp = array_namespace(P)
    if isinstance(ops, Numbers):
        return xp.sqrt(P) * z
    values, Q = xp.linalg.eigh(P)
    values = xp.where(values > 0, values, xp.zeros_like(values))
    return ops.act(Q, xp.sqrt(values) * z)
