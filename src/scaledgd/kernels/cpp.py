"""Compiled kernels for real NumPy arrays; SciPy does everything else.

Per-entry arrays are passed sorted by the mode being traversed, so that reads are sequential. The
sorted copies of the last arrays are kept, because a run uses the same data again and again.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from ..linalg import mode_product, whitening
from . import threads as threads  # registers the kernels with threadpoolctl
from .arranged import ArrangedPattern
from .design import (
    Cleaning,
    Conditionals,
    Contracted,
    Index,
    Rows,
    RowSolution,
    RowSystem,
    RowUpdate,
    Sums,
    UnsureRows,
    WholeRows,
    WholeUpdate,
    decoupled,
    sizes_of,
)
from .entries import Grid, Pattern, jitter
from .scipy import SciPy, SciPyPattern

try:
    from . import _compiled as C  # noqa: N812
except ImportError:  # built without a compiler
    C = None  # type: ignore[assignment]

Array = Any

AVAILABLE = C is not None

_KINDS = ({np.dtype(np.float64)}, {np.dtype(np.float32)}, {np.dtype(np.int64)})

EXACT = 32
"""Rank up to which the small systems are formed; beyond it, conjugate gradients are cheaper."""
DENSE = 0.75
"""Fill fraction above which the dense row kernel is used (measured crossover)."""
ARGUMENTS = ("x", "target", "y", "root", "kept", "ridge", "whole")
STEPS, TOL = 5, 1e-2
"""Conjugate-gradient steps and tolerance of the small systems that are not formed."""


def suits(*arrays: Array | None) -> bool:
    """Return whether the kernels accept arrays: of one supported type, none empty."""
    kinds = {
        x.dtype if isinstance(x, np.ndarray) and x.size else None for x in arrays if x is not None
    }
    return AVAILABLE and kinds in _KINDS


def _whole(x: Any) -> Any:
    return None if x is None else np.ascontiguousarray(x)


def _narrow(shape: tuple[int, ...]) -> bool:
    """Whether the kernels' 32-bit indices can address an object of this shape."""
    return max(shape) < 2**31 - 1 and len(shape) < 16


class Cpp(SciPy):
    """The compiled loops."""

    name = "cpp"

    def pattern(self, index: Index, shape: tuple[int, ...]) -> Pattern:
        compiled = _narrow(shape) and index[0].size < 2**32
        return (CppPattern if compiled else SciPyPattern)(index, shape, self)

    def grid(self, shape: tuple[int, ...]) -> Grid:
        return CppGrid(shape, self)

    def gather(
        self,
        modes: tuple[Array, ...],
        index: Index,
        core: Array | None = None,
        y: Array | None = None,
    ) -> Array:
        if not suits(y, core, *modes):
            return super().gather(modes, index, core, y)
        if core is None:
            table, order = modes[0], [0, 1]
        else:
            lead = max(range(core.ndim), key=lambda k: core.shape[k])
            small = np.moveaxis(mode_product(core, modes[lead], lead), lead, 0)
            table = small.reshape(small.shape[0], -1)
            order = [lead, *(k for k in range(core.ndim) if k != lead)]
        rest = [_whole(modes[k]) for k in order[1:]]
        return C.tucker_values([_whole(index[k]) for k in order], _whole(table), rest, _whole(y))[1]

    def dense_residual(self, L: Array, R: Array, Y: Array) -> Array:
        return C.dense(_whole(L), _whole(R.T), _whole(Y), None, True, -1)[1]

    def turned(self, C_: Array, M: Array) -> Array:
        return C.turned(_whole(C_), _whole(M)) if suits(C_, M) else super().turned(C_, M)

    def conditionals(
        self,
        Z: Array,
        covariance: Array,
        precision: Array,
        *,
        total: bool = False,
        variances: bool = False,
        others: bool = False,
    ) -> Conditionals:
        if Z.dtype != np.float64 or not suits(Z, covariance, precision):
            return super().conditionals(
                Z, covariance, precision, total=total, variances=variances, others=others
            )
        arrays = (_whole(Z), _whole(covariance), _whole(precision))
        return Conditionals(*C.conditional_rows(*arrays, total, variances, others))

    def kth_largest(self, x: Array, k: int, axis: int) -> Array:
        shape = x.shape
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        fibres = _whole(x).reshape(before, shape[axis], after)
        found = C.kth_of_fibres(fibres, shape[axis] - k)
        return found.reshape(*shape[:axis], 1, *shape[axis + 1 :])

    def kth_magnitude(self, x: Array, k: int) -> Array:
        return np.asarray(C.kth_magnitude(_whole(x), math.prod(x.shape) - k), dtype=x.dtype)

    def within(self, x: Array, threshold: Any) -> tuple[Array, Array, Array, Array]:
        kept, count, squares, largest = C.within(_whole(x), float(threshold))
        return kept.view(np.bool_), count, squares, largest

    def kept_squares(self, x: Array, kept: Array) -> Array:
        return np.asarray(C.kept_squares(_whole(x), _whole(kept).view(np.uint8)), dtype=x.dtype)

    def distinct(self, index: Index, shape: tuple[int, ...]) -> bool:
        if not _narrow(shape):
            return super().distinct(index, shape)
        return bool(C.distinct([_whole(i) for i in index], list(shape)))

    def parts(self, index: Index, shape: tuple[int, ...]) -> int:
        if not _narrow(shape):
            return super().parts(index, shape)
        return int(C.parts([_whole(i) for i in index], list(shape)))

    def present(self, x: Array, observed: Array | None) -> tuple[Any, Any, bool]:
        mask = None if observed is None else _whole(observed).view(np.uint8)
        found: tuple[Any, Any, bool] = C.present(_whole(x), mask)
        return found


class _Systems:
    """The small systems of the rows of one mode, in orthonormal coordinates."""

    def __init__(self, system: RowSystem) -> None:
        G = decoupled(system.design.gram(), system.ridge)
        self.T = whitening(G)
        self.back = G @ self.T  # x · v = (x back) · (v T)
        self.design: Any = system.design.transformed(self.T)
        self.ridge, self.spread = system.ridge, system.spread

    def table(self) -> tuple[Array, list[Array], int]:
        """Return the vectors as a table, the factors whose rows combine its rows, and its mode."""
        design = self.design
        if isinstance(design, Rows):
            return _whole(design.M)[:, None, :], [], 0
        assert isinstance(design, Contracted)
        # the core absorbs the factor of largest rank, so that least is left to combine
        lead = max(range(len(design.modes)), key=lambda j: design.modes[j].shape[1])
        core = design.core.reshape(-1, *(M.shape[1] for M in design.modes))
        tensor = np.moveaxis(mode_product(core, design.modes[lead], lead + 1), lead + 1, 0)
        tensor = np.moveaxis(tensor, 1, -1)
        table = _whole(tensor.reshape(tensor.shape[0], -1, tensor.shape[-1]))
        rest = [_whole(M) for j, M in enumerate(design.modes) if j != lead]
        return table, rest, lead

    def solve(self, entries: Any, steps: int = STEPS, **given: Any) -> RowSolution:
        table, factors, lead = self.table()
        exact = self.spread or table.shape[2] <= EXACT or given.get("whole") is not None
        given["ridge"] = self.ridge
        step, diagonal, total, *squares = C.solve_rows(
            entries,
            table,
            factors,
            lead,
            _whole(self.T),
            *(_whole(given.get(name)) for name in ARGUMENTS),
            jitter(table),
            0 if exact else steps,
            TOL,
            self.spread,
        )
        known = exact and given.get("target") is None and self.ridge is None
        before_and_after: Any = tuple(squares) if known else None
        return RowSolution(step @ self.T.T, diagonal, total, before_and_after)


class CppPattern(ArrangedPattern, SciPyPattern):
    """Entries, sorted by each of their modes when first needed."""

    def sorted_by(self, mode: int) -> Any:
        index = [np.ascontiguousarray(i) for i in self.index]
        return C.sorted(index, list(self.shape), mode)

    def in_order(self, x: Any, mode: int) -> Any:
        if x is None or self.entries(mode).as_measured:
            return _whole(x)
        return C.arranged(self.entries(mode), _whole(x))

    def arranged(self, x: Any, mode: int) -> Any:
        if x is None or self.entries(mode).as_measured:
            return _whole(x)  # nothing to keep
        return super().arranged(x, mode)

    def ones(self, like: Array) -> Array:
        if like.dtype not in self._ones:
            # one number tells the kernels that all weights are equal
            one = np.ones((), dtype=like.dtype)
            self._ones[like.dtype] = np.broadcast_to(one, (self.index[0].shape[0],))
        return self._ones[like.dtype]

    @cached_property
    def dense(self) -> bool:
        """Whether most entries of a matrix are observed, so that rows are processed as dense."""
        return len(self.shape) == 2 and self.index[0].size >= DENSE * math.prod(self.shape)

    def _spread_out(self, x: Array, dtype: Any) -> Array:
        """Return per-entry values as a matrix, with zeros elsewhere."""
        whole = np.zeros(self.shape, dtype=dtype)
        whole[tuple(self.index)] = x
        return whole

    @cached_property
    def _seen(self) -> Array:
        return self._spread_out(np.True_, np.bool_)

    def _whole_table(self, y: Array) -> Array:
        """Return the measurements as a matrix, cached for the last ones."""
        known = self.about(y)
        if "table" not in known:
            known["table"] = self._spread_out(y, y.dtype)
        return known["table"]

    def contract(self, weights: Array, modes: tuple[Array, ...], skip: int | None = None) -> Array:
        if not suits(weights, *(M for k, M in enumerate(modes) if k != skip)):
            return super().contract(weights, modes, skip)
        if skip is None:
            keep = max(range(len(modes)), key=lambda k: modes[k].shape[1])
            return mode_product(self.contract(weights, modes, keep), modes[keep].T, keep)
        if len(self.shape) == 2:
            M, same = _whole(modes[1 - skip]), weights is self.ones(weights)
            w = None if same else self.arranged(weights, skip)
            sums = C.one_pass(self.entries(skip), M, None, None, w, False, True)[2]
            return sums if skip == 0 else sums.T
        others = [_whole(M) for k, M in enumerate(modes) if k != skip]
        sums = C.outer_sums(self.entries(skip), others, self.arranged(weights, skip))
        return np.moveaxis(sums.reshape(-1, *(M.shape[1] for M in others)), 0, skip)

    def tucker_gradients(
        self, weights: Array, modes: tuple[Array, ...], core: Array
    ) -> tuple[Array, ...]:
        if not suits(weights, core, *modes):
            return super().tucker_gradients(weights, modes, core)
        from ..ambient import Ambient, Sparse

        return Ambient.tucker_gradients(Sparse(self, weights), modes, core)

    def residual(self, modes: tuple[Array, ...], y: Array | None = None) -> Array:
        if not suits(y, *modes):
            return super().residual(modes, y)
        return self.residual_along(0, modes, self.arranged(y, 0))

    def residual_along(self, mode: int, modes: tuple[Array, ...], y: Array | None) -> Array:
        """Return the residual of a matrix in the order of a mode; y is in that order, too."""
        x, M = _whole(modes[mode]), _whole(modes[1 - mode])
        return C.one_pass(self.entries(mode), M, x, _whole(y), None, True, False)[1]

    def fuses(self, *arrays: Array) -> bool:
        return len(self.shape) == 2 and suits(*arrays)

    def squares_and_gradient(
        self, x: Array, M: Array, y: Array, mode: int
    ) -> tuple[Array | float, Array]:
        if not self.fuses(x, M, y):
            return super().squares_and_gradient(x, M, y, mode)
        given = self.arranged(y, mode)
        squares, _, sums = C.one_pass(
            self.entries(mode), _whole(M), _whole(x), given, None, False, True
        )
        return squares, sums

    @cached_property
    def _counts(self) -> dict[int, Array]:
        return {}

    def sums(self, values: Array | None, mode: int, like: Array) -> Array:
        if values is not None:
            return super().sums(values, mode, like)
        if mode not in self._counts:
            self._counts[mode] = self.entries(mode).counts()
        return self._counts[mode].astype(like.dtype)

    def moments(self, values: Array, mode: int) -> tuple[Array, Array]:
        if not suits(values):
            return super().moments(values, mode)
        found: tuple[Array, Array] = C.row_moments(self.entries(mode), self.arranged(values, mode))
        return found

    def medians(self, values: Array, mode: int) -> Array:
        if not suits(values):
            return super().medians(values, mode)
        entries = self.entries(mode)
        values = _whole(values)
        return C.row_medians(
            entries, values if entries.as_measured else C.arranged(entries, values)
        )

    def solve_rows(
        self, system: RowSystem, target: Array, weights: Array | None = None
    ) -> RowSolution:
        loops = isinstance(system.design, Rows | Contracted)
        if not loops or not suits(target, system.ridge, weights, *system.design.arrays):
            return super().solve_rows(system, target, weights)
        systems = _Systems(system)
        root = None if weights is None else self.arranged(np.sqrt(weights), system.mode)
        return systems.solve(self.entries(system.mode), target=target @ systems.T, root=root)

    def steps(self, system: RowSystem, root: Array | None, *arrays: Array | None) -> bool:
        loops = isinstance(system.design, Rows | Contracted)
        return loops and suits(*arrays, root, system.ridge, *system.design.arrays)

    def step_rows(
        self,
        system: RowSystem,
        x: Array,
        y: Array,
        root: Array | None = None,
        kept: Array | None = None,
    ) -> RowSolution:
        mode = system.mode
        if root is None and self.dense and isinstance(system.design, Rows):
            seen = self._seen if kept is None else self._spread_out(kept, np.bool_)
            grid = CppGrid(self.shape, self.backend)
            return grid.step_rows(system, x, self._whole_table(y), None, seen)
        systems = _Systems(system)
        given = {"x": x @ systems.back, "y": self.arranged(y, mode)}
        given["root"] = self.in_order(root, mode)
        given["kept"] = self.in_order(None if kept is None else kept.view(np.uint8), mode)
        return systems.solve(self.entries(mode), **given)

    def update_rows(
        self,
        system: UnsureRows,
        x: Array,
        y: Array,
        root: Array | None = None,
        kept: Array | None = None,
    ) -> RowUpdate | None:
        M, mode = system.M, system.mode
        arrays = x, y, M, system.variance, system.ridge, system.own, system.given, root
        if len(self.shape) != 2 or (self.dense and root is None) or not suits(*arrays):
            return None
        sizes = sizes_of(M.T @ M, system.ridge)
        if sizes is None:
            return None
        found = C.update_rows(
            self.entries(mode),
            _whole(M),
            _whole(x),
            self.arranged(y, mode),
            _whole(system.variance),
            _whole(system.ridge),
            sizes,
            _whole(system.own),
            _whole(system.given),
            self.in_order(root, mode),
            self.in_order(None if kept is None else kept.view(np.uint8), mode),
            jitter(M),
            float(system.noise),
        )
        return RowUpdate(*found[:4], Sums(*found[4:]))

    def whole_rows(self, system: WholeRows, weights: Array, pulled: Array) -> WholeUpdate | None:
        x, M, C_, mode = system.x, system.M, system.covariance, system.mode
        if len(self.shape) != 2 or not suits(x, M, C_, system.ridge, weights, pulled):
            return None
        if weights is self.ones(weights):
            root, y = None, self.arranged(pulled, mode)
        else:
            root = np.sqrt(weights)
            y = np.divide(pulled, root, out=np.zeros_like(pulled), where=root > 0)
            root, y = self.in_order(root, mode), self.in_order(y, mode)
        found = C.whole_rows(
            self.entries(mode),
            _whole(M),
            _whole(C_),
            system.known,
            _whole(x),
            y,
            root,
            system.free,
            _whole(system.ridge),
            system.noise,
        )
        return WholeUpdate(*found[:3], Sums(*found[3:]))


class CppGrid(Grid):
    """Every entry of a matrix; rejected entries are subtracted from the common Gram matrix."""

    def spreads(self, values: Array, mode: int) -> tuple[Array, Array] | None:
        if len(self.shape) != 2 or not suits(values):
            return None
        n1, n2 = self.shape
        found = C.spreads(_whole(values).reshape((n1, n2, 1) if mode == 0 else (1, n1, n2)))
        middle, typical = (x.reshape(-1) for x in found)
        return middle, typical

    def cleaned_rows(self, system: RowSystem, y: Array, cleaning: Cleaning) -> Array | None:
        ridge = system.ridge
        if system.mode or not self.steps(system, None, y):
            return None
        systems = _Systems(system)
        T, M = systems.T, systems.design.M
        if ridge is not None:
            ridge = _whole(np.broadcast_to(ridge, (y.shape[0], T.shape[0])))
        found = C.cleaned_rows(
            _whole(y),
            _whole(M.T),
            _whole(T),
            ridge,
            (T.T @ systems.back).astype(np.float64),
            cleaning.floor,
            cleaning.multiple,
            cleaning.fall,
            jitter(M),
            cleaning.rounds,
        )
        return found @ T.T

    def steps(self, system: RowSystem, root: Array | None, *arrays: Array | None) -> bool:
        matrix = len(self.shape) == 2 and isinstance(system.design, Rows) and root is None
        return matrix and suits(*arrays, system.ridge, *system.design.arrays)

    def step_rows(
        self,
        system: RowSystem,
        x: Array,
        y: Array,
        root: Array | None = None,
        kept: Array | None = None,
    ) -> RowSolution:
        systems, mode, ridge = _Systems(system), system.mode, system.ridge
        M, at = systems.design.M, x @ systems.back
        L, Rt = (at, M.T) if mode == 0 else (M, at.T)
        mask = None if kept is None else _whole(kept).view(np.uint8)
        gradient = C.dense(_whole(L), _whole(Rt), _whole(y), mask, False, mode)[2]
        if mask is None and ridge is None and not system.spread:
            # in these coordinates the Gram matrix is I
            return RowSolution(gradient @ systems.T.T)
        if ridge is not None:
            gradient = gradient + (ridge * x) @ systems.T
        entries = C.nothing(self.shape[mode]) if mask is None else C.rejected(mask, mode)
        whole = systems.T.T @ systems.back
        return systems.solve(entries, target=gradient, whole=whole.astype(np.float64))
