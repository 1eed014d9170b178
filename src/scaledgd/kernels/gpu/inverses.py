"""Inverses of small positive matrices on a GPU, in registers or block by block.

Systems are stored one after the other, each followed by other sums; see `kept_of_piece`.
"""

from __future__ import annotations

import triton
import triton.language as tl

EXTRA = 8
"""Number of scalars stored for a piece."""

VARYING = "count", "r", "q"
"""Numbers that no kernel is compiled anew for; Triton would, depending on their factors."""

BLOCK = 32
"""Columns that are eliminated at a time, and the widest system that is inverted in registers."""


def kept_of_piece(q: int) -> int:
    """Return how many numbers are stored for a piece of a long row, or for a wide system.

    They are in the order G, g, u, a, d and scalars, where G is the Gram matrix, g the gradient, u
    the sum of the variances, a the last column of G if there is a border, and d the diagonal of G.
    """
    return q * q + 4 * q + EXTRA


@triton.jit
def inverse_by_columns(A, Q: tl.constexpr, least: tl.constexpr):
    """Return the inverse of a positive matrix with a diagonal of ones, in registers.

    This is the symmetric sweep operator, a rank-one update per column, which adds 2 to each
    diagonal entry on the way.
    """
    k = tl.arange(0, Q)
    for i in range(Q):
        here = k == i
        row = tl.sum(tl.where(here[:, None], A, 0.0), axis=0)
        pivot = tl.sum(tl.where(here, row, 0.0), axis=0)
        pivot = tl.maximum(pivot, least)
        c = tl.where(here, pivot - 1.0, row) * (1.0 / tl.sqrt(pivot))
        A = A - c[:, None] * c[None, :]
    return tl.where(k[:, None] == k[None, :], 2.0, 0.0) - A


@triton.jit
def _inverse_of_block(A, N: tl.constexpr, least: tl.constexpr):
    """Return the inverse of a positive matrix, scaled to unit diagonal on the way.

    Rounding that is not symmetric would be amplified.
    """
    n = tl.arange(0, N)
    same = n[:, None] == n[None, :]
    A = 0.5 * (A + tl.trans(A))
    unit = 1.0 / tl.sqrt(tl.maximum(tl.sum(tl.where(same, A, 0.0), axis=1), least))
    A = tl.where(same, 1.0, A * (unit[:, None] * unit[None, :]))
    return inverse_by_columns(A, N, least) * (unit[:, None] * unit[None, :])


@triton.jit(do_not_specialize=VARYING)
def pivots(systems, found, first, count, Q: tl.constexpr, N: tl.constexpr, least: tl.constexpr):
    """Invert N columns and rows of every system, starting with the first one."""
    W: tl.constexpr = Q * Q + 4 * Q + 8
    n = tl.arange(0, N)
    nothing = tl.program_id(0).to(tl.int64) * 0
    for item in range(tl.program_id(0), count, tl.num_programs(0)):
        at = systems + (nothing + item) * W + first * (Q + 1)
        P = _inverse_of_block(tl.load(at + n[:, None] * Q + n[None, :]), N, least)
        tl.store(found + (nothing + item) * (N * N) + n[:, None] * N + n[None, :], P)


@triton.jit(do_not_specialize=VARYING)
def invert_pairs(systems, count, N: tl.constexpr, least: tl.constexpr, PRECISION: tl.constexpr):
    """Replace systems of width 2 N by minus their inverses, plus 2 on the diagonals."""
    Q: tl.constexpr = 2 * N
    T: tl.constexpr = systems.dtype.element_ty
    n = tl.arange(0, N)
    two = tl.where(n[:, None] == n[None, :], 2.0, 0.0).to(T)
    nothing = tl.program_id(0).to(tl.int64) * 0
    for item in range(tl.program_id(0), count, tl.num_programs(0)):
        at = systems + (nothing + item) * (Q * Q + 4 * Q + 8) + n[:, None] * Q + n[None, :]
        P = _inverse_of_block(tl.load(at), N, least)
        B = tl.load(at + N)
        X = tl.dot(P, B, input_precision=PRECISION, out_dtype=T)
        S = tl.load(at + N * Q + N)
        S -= tl.dot(tl.trans(B), X, input_precision=PRECISION, out_dtype=T)
        S = _inverse_of_block(S, N, least)
        Y = tl.dot(X, S, input_precision=PRECISION, out_dtype=T)
        P += tl.dot(Y, tl.trans(X), input_precision=PRECISION, out_dtype=T)
        tl.debug_barrier()  # all loads come before the first store
        tl.store(at, two - 0.5 * (P + tl.trans(P)))
        tl.store(at + N, Y)
        tl.store(at + N * Q, tl.trans(Y))
        tl.store(at + N * Q + N, two - S)


@triton.jit(do_not_specialize=VARYING)
def eliminate(
    systems, inverses, first, count, Q: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr
):
    """Sweep N columns of every system, whose pivots are already inverted.

    This is the symmetric sweep operator, which adds 2 to each diagonal entry on the way.
    """
    W: tl.constexpr = Q * Q + 4 * Q + 8
    k = tl.arange(0, Q)
    n = tl.arange(0, N)
    nothing = tl.program_id(0).to(tl.int64) * 0
    for item in range(tl.program_id(0), count, tl.num_programs(0)):
        at = systems + (nothing + item) * W
        P = tl.load(inverses + (nothing + item) * (N * N) + n[:, None] * N + n[None, :])
        C = tl.load(at + k[:, None] * Q + (first + n)[None, :])
        A = tl.load(at + k[:, None] * Q + k[None, :])
        C = tl.where(k[:, None] == first + n[None, :], C - 1.0, C)
        D = tl.dot(C, P, input_precision=PRECISION, out_dtype=A.dtype)
        A -= tl.dot(D, tl.trans(C), input_precision=PRECISION, out_dtype=A.dtype)
        tl.debug_barrier()  # from here on, writes are read by other programs
        tl.store(at + k[:, None] * Q + k[None, :], A)
