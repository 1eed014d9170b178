"""Passes over entries on a GPU: values of factors, residuals, and sums per row."""

from __future__ import annotations

import triton
import triton.language as tl

VARYING = "m", "count"
"""Numbers that no kernel is compiled anew for. The widths of rows matter: their factors tell which
loads can be combined.
"""


@triton.jit(do_not_specialize=VARYING)
def values_at(i, j, A, B, y, out, m, Q: tl.constexpr, q, E: tl.constexpr, LESS: tl.constexpr):
    """Write the entries of A Bᵀ at (i, j), minus y."""
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


@triton.jit(do_not_specialize=VARYING)
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
    """Add up w v over the entries of every row, where v are rows of M, `stride` apart.

    The w are given, or ones, or the residuals x v − y; in that case their squares are summed, too,
    and they can be stored.
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
                here = tl.load(x + row * q + k, mask=inside, other=0.0)
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
                tl.store(sums + row * q + k, s, mask=inside)
            tl.store(squares + row + one, total)


@triton.jit(do_not_specialize=VARYING)
def tucker_values(
    lead,
    i,
    j,
    small,
    A,
    B,
    y,
    out,
    m,
    a,
    b,
    P: tl.constexpr,
    Q: tl.constexpr,
    E: tl.constexpr,
    LESS: tl.constexpr,
):
    """Write Σ small[lead, s, t] A[i, s] B[j, t], minus y."""
    s = tl.arange(0, P)
    t = tl.arange(0, Q)
    e = tl.program_id(0).to(tl.int64) * E + tl.arange(0, E)
    live = e < m
    at = tl.load(lead + e, mask=live, other=0).to(tl.int64) * (a * b)
    left = tl.load(i + e, mask=live, other=0).to(tl.int64) * a
    right = tl.load(j + e, mask=live, other=0).to(tl.int64) * b
    first = live[:, None] & (s < a)[None, :]
    second = live[:, None] & (t < b)[None, :]
    u = tl.load(A + left[:, None] + s[None, :], mask=first, other=0.0)
    v = tl.load(B + right[:, None] + t[None, :], mask=second, other=0.0)
    whole = first[:, :, None] & second[:, None, :]
    place = at[:, None, None] + s[None, :, None] * b + t[None, None, :]
    found = tl.load(small + place, mask=whole, other=0.0) * v[:, None, :]
    found = tl.sum(tl.sum(found, axis=2) * u, axis=1)
    if LESS:
        found -= tl.load(y + e, mask=live, other=0.0)
    tl.store(out + e, found, mask=live)


@triton.jit
def core_sums(
    i,
    j,
    k,
    A,
    B,
    C,
    w,
    out,
    m,
    a,
    b,
    c,
    P: tl.constexpr,
    Q: tl.constexpr,
    R: tl.constexpr,
    E: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add up w C[k] (A[i] ⊗ B[j])ᵀ over entries, one sum of shape (R, P Q) per program."""
    T: tl.constexpr = A.dtype.element_ty
    s = tl.arange(0, P)
    t = tl.arange(0, Q)
    r = tl.arange(0, R)
    total = tl.zeros((R, P * Q), T)
    count = tl.load(m)
    for block in range(tl.program_id(0), tl.cdiv(count, E), tl.num_programs(0)):
        e = (count * 0 + block) * E + tl.arange(0, E)
        live = e < count
        left = tl.load(i + e, mask=live, other=0).to(tl.int64) * a
        middle = tl.load(j + e, mask=live, other=0).to(tl.int64) * b
        right = tl.load(k + e, mask=live, other=0).to(tl.int64) * c
        weight = tl.load(w + e, mask=live, other=0.0)
        u = tl.load(
            A + left[:, None] + s[None, :], mask=live[:, None] & (s < a)[None, :], other=0.0
        )
        v = tl.load(
            B + middle[:, None] + t[None, :], mask=live[:, None] & (t < b)[None, :], other=0.0
        )
        x = tl.load(
            C + right[:, None] + r[None, :], mask=live[:, None] & (r < c)[None, :], other=0.0
        )
        both = tl.reshape(u[:, :, None] * v[:, None, :], (E, P * Q))
        total = tl.dot(
            tl.trans(x * weight[:, None]), both, total, input_precision=PRECISION, out_dtype=T
        )
    at = out + tl.program_id(0) * (R * P * Q)
    n = tl.arange(0, P * Q)
    tl.store(at + r[:, None] * (P * Q) + n[None, :], total)


@triton.jit
def counts_below(x, size, prefix, shift, out, B: tl.constexpr, SINGLE: tl.constexpr):
    """Count how many magnitudes are below prefix + (j + 1) 2^shift, for j < 16.

    They are compared as integers, which order nonnegative numbers in the same way.
    """
    j = tl.arange(0, 16).to(tl.int64)
    one = j * 0 + 1
    limits = tl.load(prefix) + ((j + one) << shift)
    limits = tl.where(limits < 0, 0x7FFFFFFFFFFFFFFF, limits)
    counts = tl.zeros((16,), tl.int64)
    total = tl.load(size)
    for block in range(tl.program_id(0), tl.cdiv(total, B), tl.num_programs(0)):
        at = (total * 0 + block) * B + tl.arange(0, B)
        live = at < total
        value = tl.abs(tl.load(x + at, mask=live, other=0.0))
        if SINGLE:
            key = value.to(tl.int32, bitcast=True).to(tl.int64)
        else:
            key = value.to(tl.int64, bitcast=True)
        below = (key[:, None] < limits[None, :]) & live[:, None]
        counts += tl.sum(below.to(tl.int32), axis=0).to(tl.int64)
    tl.store(out + tl.program_id(0) * 16 + tl.arange(0, 16), counts)
