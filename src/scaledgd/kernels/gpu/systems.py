"""The small systems of rows on a GPU: formed, inverted and solved without leaving the chip.

A program reads the entries of a row in blocks, sums their system in registers, and inverts it
there. Systems wider than `BLOCK` are too large for that: one kernel forms and stores them, others
eliminate a block of columns at a time, and the first one continues from the inverse.

Gram matrices of single-precision data are summed by tensor cores. Every product is made of three
products in half precision, or in TF32 if entries have weights; both are nearly full precision.
Gradients are summed in full precision, and a row is updated by the inverse times the gradient. So
rounding in a system affects how fast a fit converges, but not where it ends.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .inverses import VARYING, inverse_by_columns

SINGLE, PIECES, LONG = 0, 1, 2
"""What a launch does: solves rows of one piece, sums pieces of long rows, or solves these."""

WHOLE, FORM, FINISH = 0, 1, 2
"""Stages: systems are solved at once, or formed and stored, and used after inversion."""

NUMBERS = 5
"""Sums per row: squares before and after, weights, variance from the rows and from the others."""


@triton.jit
def _solved(G, unit, least: tl.constexpr, STAGE: tl.constexpr, Q: tl.constexpr):
    """Return a system scaled to unit diagonal, or the inverse of one scaled back."""
    k = tl.arange(0, Q)
    eye = k[:, None] == k[None, :]
    if STAGE == 2:
        A = tl.where(eye, 2.0, 0.0) - G
    else:
        A = tl.where(eye, 1.0, G * (unit[:, None] * unit[None, :]))
        if STAGE == 0:
            A = inverse_by_columns(A, Q, least)
    return A


@triton.jit
def _vectors(other, second, M, C, e, live, Q: tl.constexpr, TERMS: tl.constexpr):
    """Return the vectors of entries, and their positions: rows of M, or combinations of TERMS."""
    k = tl.arange(0, Q)
    j = tl.load(other + e, mask=live, other=0).to(tl.int64)
    if TERMS == 0:
        v = tl.load(M + j[:, None] * Q + k[None, :], mask=live[:, None], other=0.0)
    else:
        i = tl.load(second + e, mask=live, other=0).to(tl.int64)
        v = tl.zeros((e.shape[0], Q), M.dtype.element_ty)
        for t in range(TERMS):
            at = (j * TERMS + t) * Q
            c = tl.load(C + i * TERMS + t, mask=live, other=0.0)
            v += c[:, None] * tl.load(M + at[:, None] + k[None, :], mask=live[:, None], other=0.0)
    return v, j


@triton.jit
def _reach(item, row, starts, begins, ends, first, KIND: tl.constexpr):
    """Return where the entries of a row or piece begin and end, or the pieces of a long row."""
    if KIND == 0:
        begin = tl.load(starts + row)
        end = tl.load(starts + row + 1)
    elif KIND == 1:
        begin = tl.load(begins + item)
        end = tl.load(ends + item)
    else:
        begin = tl.load(first + item)
        end = tl.load(first + item + 1)
    return begin, end


@triton.jit
def _stored(at, G, g, u, a, d, corner, edge, squares, seen, spill, Q: tl.constexpr):
    """Store a system and its other sums."""
    k = tl.arange(0, Q)
    tl.store(at + k[:, None] * Q + k[None, :], G)
    tl.store(at + Q * Q + k, g)
    tl.store(at + Q * Q + Q + k, u)
    tl.store(at + Q * Q + 2 * Q + k, a)
    tl.store(at + Q * Q + 3 * Q + k, d)
    one = at + Q * Q + 4 * Q + tl.zeros((1,), tl.int32)
    tl.store(one, corner)
    tl.store(one + 1, edge)
    tl.store(one + 2, squares)
    tl.store(one + 3, seen)
    tl.store(one + 4, spill)


@triton.jit
def _summed(pieces, begin, end, Q: tl.constexpr):
    """Return the sums over the pieces of a long row."""
    W: tl.constexpr = Q * Q + 4 * Q + 8
    T: tl.constexpr = pieces.dtype.element_ty
    k = tl.arange(0, Q)
    G = tl.zeros((Q, Q), T)
    g = tl.zeros((Q,), T)
    u = tl.zeros((Q,), T)
    a = tl.zeros((Q,), T)
    d = tl.zeros((Q,), T)
    corner = tl.zeros((1,), T)
    edge = tl.zeros((1,), T)
    squares = tl.zeros((1,), T)
    seen = tl.zeros((1,), T)
    spill = tl.zeros((1,), T)
    for s in range(begin, end):
        at = pieces + s * W
        G += tl.load(at + k[:, None] * Q + k[None, :])
        g += tl.load(at + Q * Q + k)
        u += tl.load(at + Q * Q + Q + k)
        a += tl.load(at + Q * Q + 2 * Q + k)
        d += tl.load(at + Q * Q + 3 * Q + k)
        one = at + Q * Q + 4 * Q + tl.zeros((1,), tl.int32)
        corner += tl.load(one)
        edge += tl.load(one + 1)
        squares += tl.load(one + 2)
        seen += tl.load(one + 3)
        spill += tl.load(one + 4)
    return G, g, u, a, d, corner, edge, squares, seen, spill


@triton.jit
def _added(
    begin,
    end,
    other,
    second,
    y,
    root,
    M,
    C,
    U,
    beside,
    halves,
    here,
    edge_x,
    mine,
    Q: tl.constexpr,
    E: tl.constexpr,
    TERMS: tl.constexpr,
    MEASURED: tl.constexpr,
    ROOT: tl.constexpr,
    UNSURE: tl.constexpr,
    BORDER: tl.constexpr,
    GIVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the sums over some entries of a row.

    `halves` has powers of 2 that bring the columns of M into the range of half precision.
    """
    T: tl.constexpr = M.dtype.element_ty
    k = tl.arange(0, Q)
    if PRECISION == "halves":
        unit = tl.load(halves + k)
    G = tl.zeros((Q, Q), T)
    g = tl.zeros((Q,), T)
    u = tl.zeros((Q,), T)
    a = tl.zeros((Q,), T)
    corner = tl.zeros((E,), T)
    edge = tl.zeros((E,), T)
    squares = tl.zeros((E,), T)
    seen = tl.zeros((E,), T)
    spill = tl.zeros((E,), T)
    for at in range(begin, end, E):
        e = at + tl.arange(0, E)
        live = e < end
        v, j = _vectors(other, second, M, C, e, live, Q, TERMS)
        weight = tl.where(live, 1.0, 0.0).to(T)
        if ROOT:
            weight = tl.load(root + e, mask=live, other=0.0)
            v = v * weight[:, None]
        if MEASURED:
            off = tl.sum(v * here[None, :], axis=1) - tl.load(y + e, mask=live, other=0.0)
            if BORDER:
                m = weight * tl.load(beside + j * 3, mask=live, other=0.0)
                off += m * edge_x
            if GIVEN:
                off += weight * mine * tl.load(beside + j * 3 + 1, mask=live, other=0.0)
                doubt = tl.load(beside + j * 3 + 2, mask=live, other=0.0)
                spill += weight * weight * doubt
            g += tl.sum(v * off[:, None], axis=0)
            if BORDER:
                a += tl.sum(v * m[:, None], axis=0)
                corner += m * m
                edge += m * off
            squares += off * off
            seen += weight * weight
        if UNSURE:
            d = tl.load(U + j[:, None] * Q + k[None, :], mask=live[:, None], other=0.0).to(T)
            if ROOT:
                d = d * (weight * weight)[:, None]
            u += tl.sum(d, axis=0)
        if PRECISION == "halves":
            v = v * unit[None, :]
            high = v.to(tl.float16)
            low = (v - high.to(T)).to(tl.float16)
            G = tl.dot(tl.trans(low), high, G)
            G = tl.dot(tl.trans(high), low, G)
            G = tl.dot(tl.trans(high), high, G)
        else:
            G = tl.dot(tl.trans(v), v, G, input_precision=PRECISION, out_dtype=T)
    if PRECISION == "halves":
        G = G * (1.0 / unit)[:, None] * (1.0 / unit)[None, :]
    d = tl.sum(tl.where(k[:, None] == k[None, :], G, 0.0), axis=1)
    one = tl.zeros((1,), T)
    corner = one + tl.sum(corner, axis=0)
    edge = one + tl.sum(edge, axis=0)
    squares = one + tl.sum(squares, axis=0)
    seen = one + tl.sum(seen, axis=0)
    spill = one + tl.sum(spill, axis=0)
    return G, g, u, a, d, corner, edge, squares, seen, spill


@triton.jit(do_not_specialize=VARYING)
def update(
    rows,
    begins,
    ends,
    first,
    count,
    starts,
    other,
    y,
    root,
    M,
    U,
    beside,
    halves,
    x,
    own,
    ridge,
    sizes,
    units,
    noise,
    pieces,
    solved,
    variance,
    numbers,
    systems,
    total,
    r,
    q,
    jitter: tl.constexpr,
    least: tl.constexpr,
    KIND: tl.constexpr,
    STAGE: tl.constexpr,
    Q: tl.constexpr,
    E: tl.constexpr,
    ROOT: tl.constexpr,
    BORDER: tl.constexpr,
    GIVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Solve rows x of x Mᵀ + own givenᵀ, where M and given are uncertain.

    M has shape (n, Q), padded with zeros, and so has U, the variances of its rows in some units.
    The last column of a system may be a border, which is the first column of `beside`, followed by
    `given` and its variance.
    """
    k = tl.arange(0, Q)
    inside = k < r
    eye = k[:, None] == k[None, :]
    T: tl.constexpr = M.dtype.element_ty
    one = tl.zeros((1,), tl.int32)
    zero = tl.zeros((1,), T)
    every = tl.zeros((Q, Q), T)
    every_a = tl.zeros((Q,), T)
    every_c = tl.zeros((1,), T)
    alone = total + tl.program_id(0).to(tl.int64) * (Q * Q + Q + 1)
    held_all = tl.load(ridge + k, mask=inside, other=1.0)
    size_all = tl.load(sizes + k, mask=inside, other=0.0)
    unit_all = tl.load(units + k)
    for item in range(tl.program_id(0), count, tl.num_programs(0)):
        row = tl.load(rows + item).to(tl.int64)
        here = tl.load(x + row * q + k, mask=inside, other=0.0)
        edge_x = zero
        mine = zero
        if BORDER:
            edge_x = tl.load(x + row * q + r + one)
        if GIVEN:
            mine = tl.load(own + row + one)
        begin, end = _reach(item, row, starts, begins, ends, first, KIND)
        place = begin * 0 + item
        if STAGE == 2:
            G, g, u, a, diagonal, corner, edge, squares, seen, spill = _summed(
                systems, place, place + 1, Q
            )
        elif KIND == 2:
            G, g, u, a, diagonal, corner, edge, squares, seen, spill = _summed(
                pieces, begin, end, Q
            )
        else:
            G, g, u, a, diagonal, corner, edge, squares, seen, spill = _added(
                begin, end, other, other, y, root, M, M, U, beside, halves, here, edge_x, mine,
                Q, E, 0, True, ROOT, True, BORDER, GIVEN, PRECISION,
            )  # fmt: skip
        if KIND == 1:
            at = pieces + place * (Q * Q + 4 * Q + 8)
            _stored(at, G, g, u, a, diagonal, corner, edge, squares, seen, spill, Q)
        else:
            known = size_all > 0
            relative = tl.where(known, diagonal / tl.where(known, size_all, 1.0), 0.0)
            size = tl.max(relative, axis=0) + zero
            if BORDER:
                edge_size = tl.load(sizes + r + one)
                size = tl.maximum(size, corner / tl.where(edge_size > 0, edge_size, 1.0))
            size = size * jitter
            doubt = u * unit_all
            penalty = held_all + doubt
            held = penalty + size * size_all
            b = g + penalty * here
            unit = 1.0 / tl.sqrt(diagonal + held)
            A = _solved(G, unit, least, STAGE, Q)
            if STAGE == 1:
                at = systems + place * (Q * Q + 4 * Q + 8)
                _stored(at, A, g, u, a, diagonal, corner, edge, squares, seen, spill, Q)
        if KIND != 1 and STAGE != 1:
            inverse = A * (unit[:, None] * unit[None, :])
            d = tl.sum(inverse * b[None, :], axis=1)
            edge_d = zero
            edge_s = zero
            taken = zero
            if BORDER:
                edge_ridge = tl.load(ridge + r + one)
                edge_held = edge_ridge + size * edge_size
                edge_b = edge + edge_ridge * edge_x
                t = tl.sum(inverse * a[None, :], axis=1)
                whole = corner + edge_held
                edge_s = 1.0 / tl.maximum(whole - tl.sum(a * t, axis=0), least * whole)
                edge_d = edge_s * (edge_b - tl.sum(a * d, axis=0))
                d = d - t * edge_d
                inverse = inverse + (t * edge_s)[:, None] * t[None, :]
                every_a -= t * edge_s
                every_c += edge_s
                taken = edge_d * (edge_b + edge_held * edge_d - 2.0 * edge_ridge * edge_x)
            level = tl.load(noise)
            spread = tl.sum(tl.where(eye, inverse, 0.0), axis=1)
            moved = here - d
            # with (G + H) d = b + R x, where b and G are of the data alone, the step takes
            # d'(2 b - G d) = d'(b + H d - R x) off the squares
            taken += tl.sum(d * (b + held * d - 2.0 * penalty * here), axis=0)
            from_rows = tl.sum((diagonal + doubt) * tl.where(inside, spread, 0.0), axis=0) + zero
            from_others = tl.sum(doubt * moved * moved, axis=0) + spill * mine * mine
            tl.store(solved + row * q + k, moved, mask=inside)
            tl.store(variance + row * q + k, level * spread, mask=inside)
            if BORDER:
                tl.store(solved + row * q + r + one, edge_x - edge_d)
                tl.store(variance + row * q + r + one, level * edge_s)
                from_rows += corner * edge_s
            at = numbers + row * 5 + one
            tl.store(at, squares)
            tl.store(at + 1, squares - taken)
            tl.store(at + 2, seen)
            tl.store(at + 3, from_rows)
            tl.store(at + 4, from_others)
            every += inverse
    if KIND != 1 and STAGE != 1:
        tl.store(alone + k[:, None] * Q + k[None, :], every)
        if BORDER:
            tl.store(alone + Q * Q + k, every_a)
            tl.store(alone + Q * Q + Q + one, every_c)


@triton.jit
def _rows_of_inverse(systems, place, unit, part, Q: tl.constexpr):
    """Return some rows of an inverse that is stored, scaled back."""
    k = tl.arange(0, Q)
    at = systems + place * (Q * Q + 4 * Q + 8)
    A = tl.load(at + part[:, None] * Q + k[None, :])
    A = tl.where(part[:, None] == k[None, :], 2.0, 0.0) - A
    own = tl.load(at + Q * Q + 3 * Q + part)
    return A * (own[:, None] * unit[None, :])


@triton.jit(do_not_specialize=VARYING)
def step(
    rows,
    begins,
    ends,
    first,
    count,
    starts,
    other,
    second,
    y,
    root,
    M,
    C,
    x,
    target,
    turn,
    ridge,
    pieces,
    steps,
    diagonals,
    systems,
    total,
    jitter: tl.constexpr,
    least: tl.constexpr,
    KIND: tl.constexpr,
    STAGE: tl.constexpr,
    Q: tl.constexpr,
    E: tl.constexpr,
    TERMS: tl.constexpr,
    MEASURED: tl.constexpr,
    ROOT: tl.constexpr,
    RIDGE: tl.constexpr,
    SPREAD: tl.constexpr,
    SCALED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Solve for the distance of rows from their solutions, with v orthonormal on average.

    `turn` holds the coordinates, and is diagonal if SCALED; `ridge` has one row for all (RIDGE 1)
    or one each (RIDGE 2), in the original coordinates. Without MEASURED the right-hand side is
    `target`.
    """
    k = tl.arange(0, Q)
    eye = k[:, None] == k[None, :]
    T: tl.constexpr = M.dtype.element_ty
    PART: tl.constexpr = min(Q, 32)
    zero = tl.zeros((1,), T)
    every = tl.zeros((Q, Q), T)
    alone = total + tl.program_id(0).to(tl.int64) * (Q * Q)
    for item in range(tl.program_id(0), count, tl.num_programs(0)):
        row = tl.load(rows + item).to(tl.int64)
        here = tl.zeros((Q,), T)
        if MEASURED:
            here = tl.load(x + row * Q + k)
        begin, end = _reach(item, row, starts, begins, ends, first, KIND)
        place = begin * 0 + item
        if STAGE == 2:
            G, g, u, a, unit, corner, edge, squares, seen, spill = _summed(
                systems, place, place + 1, Q
            )
        elif KIND == 2:
            G, g, u, a, unit, corner, edge, squares, seen, spill = _summed(pieces, begin, end, Q)
        else:
            G, g, u, a, unit, corner, edge, squares, seen, spill = _added(
                begin, end, other, second, y, root, M, C, M, M, M, here, zero, zero,
                Q, E, TERMS, MEASURED, ROOT, False, False, False, PRECISION,
            )  # fmt: skip
        if KIND == 1:
            at = pieces + place * (Q * Q + 4 * Q + 8)
            _stored(at, G, g, u, a, unit, corner, edge, squares, seen, spill, Q)
        elif STAGE != 2:
            if not MEASURED:
                g = tl.load(target + row * Q + k)
            # relative to the data: the ridge of a vanishing column is huge, and must not affect the
            # others
            size = tl.max(unit, axis=0)
            little = jitter * tl.where(size > 1e-12, size, 1.0)
            if RIDGE > 0:
                held = tl.load(ridge + (RIDGE - 1) * row * Q + k)
                if SCALED:
                    s = tl.load(turn + k * (Q + 1))
                    held = held * s * s
                    G = tl.where(eye, G + held[:, None], G)
                    g += held * here
                else:
                    at = ridge + (RIDGE - 1) * row * Q
                    H = tl.zeros((Q, Q), T)
                    for c in range(0, Q, PART):  # whole matrices would not fit on small chips
                        part = c + tl.arange(0, PART)
                        S = tl.load(turn + part[:, None] * Q + k[None, :])
                        h = tl.load(at + part)
                        H = tl.dot(
                            tl.trans(S), S * h[:, None], H, input_precision=PRECISION, out_dtype=T
                        )
                    G += 0.5 * (H + tl.trans(H))
                    g += tl.sum(H * here[None, :], axis=1)
            G = tl.where(eye, G + little, G)
            unit = 1.0 / tl.sqrt(tl.sum(tl.where(eye, G, 0.0), axis=1))
        if KIND != 1:
            A = _solved(G, unit, least, STAGE, Q)
            if STAGE == 1:
                at = systems + place * (Q * Q + 4 * Q + 8)
                _stored(at, A, g, u, a, unit, corner, edge, squares, seen, spill, Q)
            else:
                inverse = A * (unit[:, None] * unit[None, :])
                tl.store(steps + row * Q + k, tl.sum(inverse * g[None, :], axis=1))
                if SPREAD:
                    if SCALED:
                        s = tl.load(turn + k * (Q + 1))
                        d = s * s * tl.sum(tl.where(eye, inverse, 0.0), axis=1)
                    else:
                        Z = tl.zeros((Q, Q), T)
                        for c in range(0, Q, PART):
                            part = c + tl.arange(0, PART)
                            S = tl.load(turn + k[:, None] * Q + part[None, :])
                            some = inverse
                            if STAGE == 2:
                                some = _rows_of_inverse(systems, place, unit, part, Q)
                            Z = tl.dot(S, some, Z, input_precision=PRECISION, out_dtype=T)
                        S = tl.load(turn + k[:, None] * Q + k[None, :])
                        d = tl.sum(Z * S, axis=1)
                    tl.store(diagonals + row * Q + k, d)
                    every += inverse
    if SPREAD and KIND != 1 and STAGE != 1:
        tl.store(alone + k[:, None] * Q + k[None, :], every)
