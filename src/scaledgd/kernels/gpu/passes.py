"""Passes over entries on a GPU: values of factors, residuals, and sums per row."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def values_at(i, j, A, B, y, out, m, Q: tl.constexpr, q, E: tl.constexpr, LESS: tl.constexpr):
    """Write the entries of A Bᵀ at (i, j), less y."""
    k = tl.arange(0, Q)
    e = tl.program_id(0).to(tl.int64) * E + tl.arange(0, E)
    live = e < m
    both = live[:, None] & (k < q)[None, :]
    left = tl.load(i + e, mask=live, other=0).to(tl.int64)
    right = tl.load(j + e, mask=live, other=0).to(tl.int64)
    a = tl.load(A + left[:, None] * q + k[None, :], mask=both, other=0.0)
    b = tl.load(B + right[:, None] * q + k[None, :], mask=both, other=0.0)
    found = tl.sum(a * b, axis=1)
    if LESS:
        found -= tl.load(y + e, mask=live, other=0.0)
    tl.store(out + e, found, mask=live)


@triton.jit
def row_sums(
    rows,
    begins,
    ends,
    first,
    count,
    starts,
    other,
    y,
    w,
    M,
    x,
    pieces,
    residual,
    sums,
    squares,
    q,
    stride,
    KIND: tl.constexpr,
    Q: tl.constexpr,
    E: tl.constexpr,
    GIVEN: tl.constexpr,
    ONES: tl.constexpr,
    KEPT: tl.constexpr,
    SUMMED: tl.constexpr,
):
    """Add up w v over the entries of every row, where v are rows of M.

    The w are given, or ones, or what x v differs from y by; then their squares are summed too,
    and they can be kept.
    """
    k = tl.arange(0, Q)
    inside = k < q
    T: tl.constexpr = M.dtype.element_ty
    one = tl.zeros((1,), tl.int32)
    for item in range(tl.program_id(0), count, tl.num_programs(0)):
        row = tl.load(rows + item).to(tl.int64)
        s = tl.zeros((Q,), T)
        total = tl.zeros((1,), T)
        if KIND == 2:
            for piece in range(tl.load(first + item), tl.load(first + item + 1)):
                at = pieces + piece * (Q + 1)
                s += tl.load(at + k)
                total += tl.load(at + Q + one)
        else:
            here = tl.zeros((Q,), T)
            if not GIVEN:
                here = tl.load(x + row * stride + k, mask=inside, other=0.0)
            if KIND == 1:
                begin = tl.load(begins + item)
                end = tl.load(ends + item)
            else:
                begin = tl.load(starts + row)
                end = tl.load(starts + row + 1)
            many = tl.zeros((E,), T)
            for at in range(begin, end, E):
                e = at + tl.arange(0, E)
                live = e < end
                j = tl.load(other + e, mask=live, other=0).to(tl.int64)
                both = live[:, None] & inside[None, :]
                v = tl.load(M + j[:, None] * stride + k[None, :], mask=both, other=0.0)
                if ONES:
                    s += tl.sum(v, axis=0)
                else:
                    if GIVEN:
                        weight = tl.load(w + e, mask=live, other=0.0)
                    else:
                        weight = tl.sum(v * here[None, :], axis=1)
                        weight -= tl.load(y + e, mask=live, other=0.0)
                        many += weight * weight
                    if KEPT:
                        tl.store(residual + e, weight, mask=live)
                    if SUMMED:
                        s += tl.sum(v * weight[:, None], axis=0)
            total += tl.sum(many, axis=0)
        if KIND == 1:
            at = pieces + (begin * 0 + item) * (Q + 1)
            tl.store(at + k, s)
            tl.store(at + Q + one, total)
        else:
            if SUMMED:
                tl.store(sums + row * stride + k, s, mask=inside)
            tl.store(squares + row + one, total)
