"""The backend of CUDA tensors; PyTorch does what it has no kernel for."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import triton

from ...linalg import being_careful, like, mode_product, to_host, whitening
from ..arranged import ArrangedPattern
from ..design import (
    Contracted,
    Index,
    Rows,
    RowSolution,
    RowSystem,
    RowUpdate,
    Sums,
    UnsureRows,
    decoupled,
    sizes_of,
)
from ..entries import Pattern, jitter
from ..torch import Torch, all_reached
from .inverses import BLOCK, eliminate, invert_pairs, kept_of_piece, pivots
from .passes import core_sums, counts_below, row_sums, tucker_values, values_at
from .sorting import SMALL, Sorted
from .systems import FINISH, FORM, LONG, NUMBERS, PIECES, SINGLE, WHOLE, step, update

Array = Any

WIDEST = {torch.float32: 128, torch.float64: 64}
"""Width of the largest system that is solved on the chip."""

WIDE_CORE = 256
"""Largest product of the two smaller ranks of a core whose entries are computed on the chip."""

PROGRAMS = 16
"""Programs per multiprocessor."""


class Shape(NamedTuple):
    """Launch configuration: entries at a time, warps, programs per processor, loads in flight."""

    entries: int
    warps: int
    programs: int
    stages: int


SHAPES = {
    16: Shape(32, 1, 32, 2),
    32: Shape(32, 1, 16, 2),
    64: Shape(64, 4, 4, 1),
    128: Shape(32, 4, 2, 1),
}
"""For sums over entries, by the width of systems, padded to a power of two."""

INVERTED = {64: Shape(16, 4, 4, 1), 128: Shape(16, 8, 2, 1)}
"""For wide systems that are stored and inverted."""

ELIMINATED = Shape(16, 4, 4, 1)
"""For the inversion of these, if they are wider than two blocks."""

STORED = 2**30
"""Bytes of wide systems that are stored at a time."""

RANGE = 12
"""Binary logarithm of the largest number in a column that is split into halves.

Half precision reaches 2^15, with a smallest spacing of 2^-24, so a number that is 2^-13 times the
largest one still has 22 bits.
"""

LEAST = {torch.float32: 1e-6, torch.float64: 1e-14}
"""Least pivot of a system with unit diagonal."""


def suits(*arrays: Array | None) -> bool:
    """Return whether the kernels accept arrays: of one real type, none empty."""
    kinds = {x.dtype for x in arrays if x is not None}
    whole = all(x.numel() and not x.requires_grad for x in arrays if x is not None)
    return whole and (kinds == {torch.float32} or kinds == {torch.float64})


@functools.cache
def _processors(device: Any) -> int:
    """The number of multiprocessors of a device; a few in the interpreter."""
    if torch.device(device).type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _programs(x: Array, count: int, per: int = PROGRAMS) -> int:
    return max(1, min(count, per * _processors(x.device)))


def _power(q: int, least: int = 16) -> int:
    return max(least, int(triton.next_power_of_2(q)))


def _warps(numbers: int) -> int:
    """Return the number of warps of a program with so many numbers per array."""
    return min(8, max(1, numbers // 1024))


def _padded(x: Array, width: int) -> Array:
    """Return a contiguous copy, padded with columns of zeros to some width."""
    if x.shape[1] == width:
        return x.contiguous()
    found = x.new_zeros((x.shape[0], width))
    found[:, : x.shape[1]] = x
    return found


class Gpu(Torch):
    """The loops over entries in Triton."""

    name = "gpu"

    def pattern(self, index: Index, shape: tuple[int, ...]) -> Pattern:
        narrow = max(shape) <= SMALL and index[0].numel() > 0
        return (GpuPattern if narrow else Pattern)(index, shape, self)

    def gather(
        self,
        modes: tuple[Array, ...],
        index: Index,
        core: Array | None = None,
        y: Array | None = None,
    ) -> Array:
        if not suits(y, core, *modes) or not index[0].numel():
            return super().gather(modes, index, core, y)
        if core is not None:
            if core.ndim != 3 or sorted(core.shape)[0] * sorted(core.shape)[1] > WIDE_CORE:
                return super().gather(modes, index, core, y)
            return _tucker_values(modes, index, core, y)
        A, B = (M.contiguous() for M in modes)
        m, q = index[0].shape[0], A.shape[1]
        Q = _power(q, 4)
        E = max(16, 2048 // Q)
        found = A.new_empty(m)
        grid = (triton.cdiv(m, E),)
        i, j = (x.contiguous() for x in index)
        less = A if y is None else y.contiguous()
        values_at[grid](i, j, A, B, less, found, m, Q, q, E, y is not None, num_warps=4)
        return found

    def kth_magnitude(self, x: Array, k: int) -> Array:
        if not suits(x):
            return super().kth_magnitude(x, k)
        return _kth_smallest(x.contiguous(), x.numel() - k)


def _invert(systems: Array, count: int, Q: int) -> None:
    """Replace the first of some stored systems by minus their inverses, plus 2 on the diagonals."""
    precise, least = _precision(systems), LEAST[systems.dtype]
    grid = (_programs(systems, count, 16),)
    if Q == 2 * BLOCK:
        invert_pairs[grid](systems, count, BLOCK, least, precise, num_warps=1)
        return
    inverses = systems.new_empty((count, BLOCK, BLOCK))
    wide = (_programs(systems, count, ELIMINATED.programs),)
    how = {"num_warps": ELIMINATED.warps, "num_stages": ELIMINATED.stages}
    for first in range(0, Q, BLOCK):
        pivots[grid](systems, inverses, first, count, Q, BLOCK, least, num_warps=1)
        eliminate[wide](systems, inverses, first, count, Q, BLOCK, precise, **how)


def _kth_smallest(x: Array, k: int) -> Array:
    """Return the k-th smallest magnitude (k ≥ 0), digit by digit of its bits."""
    single = x.dtype == torch.float32
    size = torch.tensor([x.numel()], device=x.device)
    prefix = torch.zeros(1, dtype=torch.int64, device=x.device)
    block = 1024
    programs = _programs(x, triton.cdiv(x.numel(), block))
    counts = torch.empty((programs, 16), dtype=torch.int64, device=x.device)
    for shift in (*range(27 if single else 59, 2, -4), 0):  # the sign is left out
        counts_below[(programs,)](x, size, prefix, shift, counts, block, single, num_warps=4)
        reached = torch.sum(counts, dim=0) <= k
        prefix = prefix + (torch.sum(reached) << shift)
    key = prefix.to(torch.int32) if single else prefix
    return key.view(x.dtype)[0]


def _tucker_values(modes: tuple[Array, ...], index: Index, core: Array, y: Array | None) -> Array:
    """Return the entries of a Tucker decomposition of order 3, minus y."""
    # the core absorbs the factor of largest rank, which leaves the least work per entry
    lead = max(range(3), key=lambda k: core.shape[k])
    j, k = (n for n in range(3) if n != lead)
    small = torch.moveaxis(mode_product(core, modes[lead], lead), lead, 0).contiguous()
    m, a, b = index[0].shape[0], core.shape[j], core.shape[k]
    P, Q = _power(a, 1), _power(b, 1)
    E = max(16, 2048 // (P * Q))
    found = core.new_empty(m)
    at = [index[n].contiguous() for n in (lead, j, k)]
    tables = small, modes[j].contiguous(), modes[k].contiguous()
    less = found if y is None else y.contiguous()
    grid = (triton.cdiv(m, E),)
    tucker_values[grid](*at, *tables, less, found, m, a, b, P, Q, E, y is not None, num_warps=4)
    return found


class GpuPattern(ArrangedPattern):
    """Entries, sorted by each of their modes when first needed."""

    lead = 0
    """The mode along which residuals are computed."""

    def sorted_by(self, mode: int) -> Sorted:
        return Sorted.by(self.index, self.shape, mode)

    def in_order(self, x: Any, mode: int) -> Any:
        return None if x is None else self.entries(mode).arranged(x)

    def rest(self) -> None:
        # both orders are needed for the uncertainty of rows and columns
        self._known = []

    def parts(self) -> int:
        if len(self.shape) != 2:
            return super().parts()
        orders = [self.entries(k) for k in (0, 1)]
        some = torch.empty(0, device=self.index[0].device)

        def next_to(mode: int, reached: Array) -> Array:
            at = reached[orders[mode].others[0]].to(some.dtype)
            sums = self._passed(some.new_ones((1, 1)), mode, w=at)[1]
            assert sums is not None
            return sums[:, 0] > 0

        seen = [entries.starts[1:] > entries.starts[:-1] for entries in orders]
        return 1 if all_reached(seen, next_to) else super().parts()

    # ---- passes

    def _passed(
        self,
        M: Array,
        mode: int,
        x: Array | None = None,
        y: Array | None = None,
        w: Array | None = None,
        kept: bool = False,
        summed: bool = True,
    ) -> tuple[Array, Array | None, Array | None]:
        """Return squares and sums per row, and the residual in the order of the mode.

        An M with one row is repeated as often as needed.
        """
        entries, n, q = self.entries(mode), self.shape[mode], M.shape[1]
        M = M.contiguous()
        x = M if x is None else x.contiguous()
        Q = _power(q, 4)
        E = max(16, min(64, 2048 // Q))
        work = entries.work(Q)
        squares = M.new_zeros(n)
        sums = M.new_empty((n, q)) if summed else squares
        residual = M.new_empty(entries.others[0].shape[0]) if kept else squares
        pieces = M.new_empty((work.rows.shape[0], Q + 1))
        given = w is not None or y is None
        for kind, rows in ((PIECES, work.rows), (LONG, work.long), (SINGLE, work.single)):
            if not rows.shape[0]:
                continue
            row_sums[(_programs(M, rows.shape[0]),)](
                rows,
                work.begins,
                work.ends,
                work.first,
                rows.shape[0],
                entries.starts,
                entries.others[0],
                squares if y is None else self.arranged(y, mode),
                squares if w is None else w,
                M,
                x,
                pieces,
                residual,
                sums,
                squares,
                q,
                q if M.shape[0] > 1 else 0,
                kind,
                Q,
                E,
                given,
                given and w is None,
                kept,
                summed,
                num_warps=_warps(E * Q),
            )
        return squares, sums if summed else None, residual if kept else None

    def residual(self, modes: tuple[Array, ...], y: Array | None = None) -> Array:
        if y is None or not suits(y, *modes):
            return super().residual(modes, y)
        k = self.lead
        found = self._passed(modes[1 - k], k, modes[k], y, kept=True, summed=False)[2]
        return self.entries(k).measured(found)

    def sums(self, values: Array | None, mode: int, like: Array) -> Array:
        entries = self.entries(mode)
        if values is None:
            return (entries.starts[1:] - entries.starts[:-1]).to(like.dtype)
        if not suits(values):
            return super().sums(values, mode, like)
        ones = like.new_ones((1, 1))
        sums = self._passed(ones, mode, w=entries.arranged(values))[1]
        assert sums is not None
        return sums[:, 0]

    def fuses(self, *arrays: Array) -> bool:
        return len(self.shape) == 2 and suits(*arrays)

    def squares_and_gradient(
        self, x: Array, M: Array, y: Array, mode: int
    ) -> tuple[Array | float, Array]:
        if not self.fuses(x, M, y):
            return super().squares_and_gradient(x, M, y, mode)
        squares, sums, _ = self._passed(M, mode, x, y)
        return torch.sum(squares, dtype=torch.float64).to(y.dtype), sums

    def contract(self, weights: Array, modes: tuple[Array, ...], skip: int | None = None) -> Array:
        used = [M for k, M in enumerate(modes) if k != skip]
        if skip is None and len(modes) == 3 and suits(weights, *modes):
            ranks = sorted(M.shape[1] for M in modes)
            if ranks[0] * ranks[1] <= WIDE_CORE and ranks[2] <= 128:
                return self._core_sums(weights, modes)
        if skip is None or len(self.shape) != 2 or not suits(weights, *used):
            return super().contract(weights, modes, skip)
        same = weights is self.ones(weights)
        w = None if same else self.arranged(weights, skip)
        sums = self._passed(used[0], skip, w=w)[1]
        assert sums is not None
        return sums if skip == 0 else sums.T

    def _core_sums(self, weights: Array, modes: tuple[Array, ...]) -> Array:
        """Contract a tensor of order 3 with all its factors."""
        lead = max(range(3), key=lambda k: modes[k].shape[1])
        order = [*(k for k in range(3) if k != lead), lead]
        tables = [modes[k].contiguous() for k in order]
        a, b, c = (M.shape[1] for M in tables)
        P, Q, R = _power(a, 4), _power(b, 4), _power(c)
        E, m = 32, self.index[0].shape[0]
        programs = _programs(weights, triton.cdiv(m, E), 8)
        sums = weights.new_empty((programs, R, P, Q))
        core_sums[(programs,)](
            *(self.index[k].contiguous() for k in order),
            *tables,
            weights.contiguous(),
            sums,
            torch.tensor([m], device=weights.device),
            a,
            b,
            c,
            P,
            Q,
            R,
            E,
            _precision(weights),
            num_warps=4,
        )
        whole = torch.sum(sums, dim=0, dtype=torch.float64)[:c, :a, :b].to(weights.dtype)
        return torch.moveaxis(whole, (1, 2, 0), order).contiguous()

    # ---- systems of rows

    def _launched(
        self,
        kernel: Any,
        mode: int,
        Q: int,
        like: Array,
        before: tuple[Any, ...],
        after: tuple[Any, ...],
        total: int,
        numbers: tuple[Any, ...],
        flags: tuple[Any, ...],
    ) -> Array:
        """Launch a kernel for all rows of a mode; return the total of the programs' sums."""
        entries, shape = self.entries(mode), SHAPES[Q]
        work, wide = entries.work(Q), Q > BLOCK
        pieces = like.new_empty((work.rows.shape[0], kept_of_piece(Q)))
        whole = torch.zeros(total, dtype=torch.float64, device=like.device)
        systems = like
        if wide:
            most = max(1, min(STORED // (kept_of_piece(Q) * like.itemsize), self.shape[mode]))
            systems = like.new_empty((most, kept_of_piece(Q)))

        def launch(kind: int, stage: int, rows: Array, first: Array, how: Shape) -> None:
            programs = _programs(like, rows.shape[0], how.programs)
            sums = like.new_zeros((1 if kind == PIECES or stage == FORM else programs, total))
            kernel[(programs,)](
                rows,
                work.begins,
                work.ends,
                first,
                rows.shape[0],
                entries.starts,
                *before,
                pieces,
                *after,
                systems,
                sums,
                *numbers,
                kind,
                stage,
                Q,
                how.entries,
                *flags,
                num_warps=how.warps,
                num_stages=how.stages,
            )
            if kind != PIECES and stage != FORM:
                whole.add_(torch.sum(sums, dim=0, dtype=torch.float64))

        for kind, rows in ((PIECES, work.rows), (LONG, work.long), (SINGLE, work.single)):
            if kind == PIECES or not wide:
                if rows.shape[0]:
                    launch(kind, WHOLE, rows, work.first, shape)
                continue
            for at in range(0, rows.shape[0], systems.shape[0]):
                some = rows[at : at + systems.shape[0]]
                launch(kind, FORM, some, work.first[at:], shape)
                _invert(systems, some.shape[0], Q)
                launch(kind, FINISH, some, work.first[at:], INVERTED[Q])
        return whole

    def update_rows(
        self,
        system: UnsureRows,
        x: Array,
        y: Array,
        root: Array | None = None,
        kept: Array | None = None,
    ) -> RowUpdate | None:
        M, own, given, mode = system.M, system.own, system.given, system.mode
        if M.dtype == torch.float32 and being_careful():
            return self._update_in_double(system, x, y, root, kept)
        r, q = system.variance.shape[1], M.shape[1]
        arrays = x, y, M, system.ridge, own, given, root
        if len(self.shape) != 2 or not suits(*arrays) or q > r + 1:
            return None
        if not 0 < r <= WIDEST[M.dtype]:
            return None
        n, Q, border = self.shape[mode], _power(r), q > r
        table = _padded(M[:, :r], Q)
        units = _padded(torch.amax(system.variance, dim=0)[None, :], Q)[0]
        least = torch.finfo(M.dtype).tiny
        unsure = _padded(system.variance, Q) / torch.clamp(units, min=least)
        beside = table
        if border or given is not None:
            beside = M.new_zeros((M.shape[0], 3))
            if border:
                beside[:, 0] = M[:, r]
            if given is not None:
                beside[:, 1:] = given
        root = _with(root, kept, M.dtype)
        y = y if kept is None else y * kept
        halves = table
        if root is None and M.dtype == torch.float32:
            largest = torch.clamp(torch.amax(torch.abs(table), dim=0), min=1e-25)
            halves = torch.exp2(RANGE - torch.ceil(torch.log2(largest)))
        level = M.new_ones(1) * system.noise  # a copy of a number would make the host wait
        solved, variance = M.new_empty((n, q)), M.new_empty((n, q))
        numbers = M.new_empty((n, NUMBERS))
        whole = self._launched(
            update,
            mode,
            Q,
            M,
            (
                self.entries(mode).others[0],
                self.arranged(y, mode),
                table if root is None else self.entries(mode).arranged(root),
                table,
                unsure,
                beside,
                halves,
                x.contiguous(),
                table if own is None else own.contiguous(),
                system.ridge.contiguous(),
                torch.sum(M * M, dim=0),
                units,
                level,
            ),
            (solved, variance, numbers),
            Q * Q + Q + 1,
            (r, q, jitter(M), LEAST[M.dtype]),
            (
                root is not None,
                border,
                given is not None,
                _precision(M) if halves is table else "halves",
            ),
        )
        whole = level.to(torch.float64) * whole
        total = whole[: Q * Q].reshape(Q, Q)[:r, :r]
        if border:
            edge = whole[Q * Q : Q * Q + r, None]
            total = torch.cat([torch.cat([total, edge], 1), torch.cat([edge, whole[None, -1:]]).T])
        moments = torch.sum(solved * solved + variance, dim=0, dtype=torch.float64)
        sums = Sums(*torch.sum(numbers, dim=0, dtype=torch.float64))
        return RowUpdate(solved, variance, total.to(M.dtype), moments.to(M.dtype), sums)

    def _update_in_double(
        self, system: UnsureRows, x: Array, y: Array, root: Array | None, kept: Array | None
    ) -> RowUpdate | None:
        """Return `update_rows` of systems that single precision cannot invert."""
        names = "M", "variance", "ridge", "own", "given"
        arrays: dict[str, Any] = {name: _double(getattr(system, name)) for name in names}
        wide = replace(system, **arrays)
        found = self.update_rows(wide, _double(x), _double(y), _double(root), kept)
        if found is None:
            return None
        solved, variance, total, moments = (z.to(torch.float32) for z in found[:4])
        return RowUpdate(solved, variance, total, moments, found.sums)

    def steps(self, system: RowSystem, root: Array | None, *arrays: Array | None) -> bool:
        design = system.design
        loops = isinstance(design, Rows) or (
            isinstance(design, Contracted) and len(design.modes) == 2
        )
        if not loops or not suits(*arrays, root, system.ridge, *design.arrays):
            return False
        return design.width <= WIDEST[design.arrays[0].dtype]

    def step_rows(
        self,
        system: RowSystem,
        x: Array,
        y: Array,
        root: Array | None = None,
        kept: Array | None = None,
    ) -> RowSolution:
        return self._stepped(system, _with(root, kept, y.dtype), x, y)

    def solve_rows(
        self, system: RowSystem, target: Array, weights: Array | None = None
    ) -> RowSolution:
        if not self.steps(system, weights, target):
            return super().solve_rows(system, target, weights)
        root = None if weights is None else torch.sqrt(weights)
        return self._stepped(system, root, target, None)

    def _stepped(
        self, system: RowSystem, root: Array | None, x: Array, y: Array | None
    ) -> RowSolution:
        """Return `step_rows`, or without y `solve_rows`, where x is the right-hand side."""
        T, back, scaled = _coordinates(system.design.gram(), system.ridge)
        design: Any = system.design.transformed(T)
        mode, q, entries = system.mode, design.width, self.entries(system.mode)
        n, Q = self.shape[mode], _power(q)
        table, second, combining = design.M if isinstance(design, Rows) else None, 0, None
        first, terms = 0, 0
        if table is None:
            # the core absorbs the factor of largest rank, so that least is left to combine
            first = max((0, 1), key=lambda j: design.modes[j].shape[1])
            second = 1 - first
            core = design.core.reshape(-1, *(M.shape[1] for M in design.modes))
            tensor = torch.moveaxis(mode_product(core, design.modes[first], first + 1), 0, -1)
            tensor = torch.moveaxis(tensor, first, 0)  # lead, the rest, q
            terms = tensor.shape[1]
            table = _padded(tensor.reshape(-1, q), Q)
            combining = design.modes[second].contiguous()
        else:
            table = _padded(table, Q)
        here = _padded(x @ (T if y is None else back), Q)
        ridge, kind = table, 0
        if system.ridge is not None:
            ridge = _padded(system.ridge.reshape(-1, q), Q)
            kind = 1 if system.ridge.ndim == 1 else 2
        steps = table.new_empty((n, Q))
        diagonals = table.new_empty((n, Q)) if system.spread else table
        turn = table.new_zeros((Q, Q))
        turn[:q, :q] = T
        whole = self._launched(
            step,
            mode,
            Q,
            table,
            (
                entries.others[first],
                entries.others[second],
                table if y is None else self.arranged(y, mode),
                table if root is None else entries.arranged(root),
                table,
                table if combining is None else combining,
                here,
                here,
                turn,
                ridge,
            ),
            (steps, diagonals),
            Q * Q,
            (jitter(table), LEAST[table.dtype]),
            (
                terms,
                y is not None,
                root is not None,
                kind,
                system.spread,
                scaled,
                _precision(table),
            ),
        )
        moved = steps[:, :q] @ T.T
        if not system.spread:
            return RowSolution(moved)
        total = T @ whole.reshape(Q, Q)[:q, :q].to(T.dtype) @ T.T
        return RowSolution(moved, diagonals[:, :q].contiguous(), total)


class SortedPattern(GpuPattern):
    """Entries that are already sorted by one of their modes.

    Parameters
    ----------
    entries : Sorted
    mode : int
    index : pair of arrays
        Made on demand.
    shape : tuple of int
    """

    def __init__(self, entries: Sorted, mode: int, index: Index, shape: tuple[int, ...]) -> None:
        super().__init__(index, shape, Gpu())
        self._entries, self.lead = {mode: entries}, mode

    def ones(self, like: Array) -> Array:
        if like.dtype not in self._ones:
            count = self._entries[self.lead].others[0].shape[0]
            self._ones[like.dtype] = like.new_ones(1).expand(count)  # takes no memory
        return self._ones[like.dtype]


def _coordinates(G: Array, ridge: Array | None) -> tuple[Array, Array, bool]:
    """Return T such that vectors times T are about orthonormal, its inverse transpose, and a flag.

    The vectors have the Gram matrix G. If they are well conditioned, scaling them is enough; the
    flag says whether T does no more than that. Without a ridge to speak of, T decides about rows
    with few entries, so it must not depend on the conditioning.
    """
    r = G.shape[0]
    held = torch.zeros_like(G[:1]) if ridge is None else torch.amin(ridge.reshape(-1, r), 0)[None]
    read = to_host(torch.cat([G, held]))  # small, and a device would wait for decompositions anyway
    known, least = decoupled(read[:r], read[r]), read[r]
    sizes = sizes_of(known, 0 * least)
    scaled = sizes is not None and bool(np.min(least / sizes) >= jitter(G))
    T = np.diag(1 / np.sqrt(np.diagonal(known))) if scaled else whitening(known)
    back = np.diag(np.sqrt(np.diagonal(known))) if scaled else known @ T
    both = like(np.concatenate([T, back]).astype(known.dtype), G)
    return both[:r], both[r:], scaled


def _double(x: Array | None) -> Array | None:
    return None if x is None else x.to(torch.float64)


def _with(root: Array | None, kept: Array | None, dtype: Any) -> Array | None:
    """Return roots of weights, 0 for entries that are not kept."""
    if kept is None:
        return root
    return kept.to(dtype) if root is None else root * kept


def _precision(like: Array) -> str:
    """Return how tensor cores multiply: in single precision, by three products of TF32."""
    return "ieee" if like.dtype == torch.float64 else "tf32x3"
