"""The compiled kernels, for real NumPy arrays; what they cannot do is left to the others.

What there is one of per entry is handed over in the order of the mode that the work goes along, so
that nothing is read out of order. That order is kept for the arrays used last, which in a run are
the data again and again.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from ..linalg import mode_product, whitening
from . import Contracted, Design, Grid, Index, Pattern, Rows, jitter
from . import threads as threads

try:
    from . import _compiled as C  # noqa: N812
except ImportError:  # built without a compiler
    C = None  # type: ignore[assignment]

Array = Any

AVAILABLE = C is not None

_DOUBLE, _SINGLE = np.dtype(np.float64), np.dtype(np.float32)

EXACT = 32
"""Columns up to which the small systems are formed: beyond, conjugate gradients are cheaper."""
DENSE = 0.75
"""The share of a matrix from which on its rows are gone through whole: where that was faster."""
ARGUMENTS = ("x", "target", "y", "root", "kept", "ridge", "whole")
STEPS, TOL = 5, 1e-2
"""Of these conjugate gradients."""


def suits(*arrays: Any) -> bool:
    """Whether the kernels can work on arrays: float64 or float32 of NumPy, and none empty."""
    given = [x for x in arrays if x is not None]
    kinds = {x.dtype if isinstance(x, np.ndarray) and x.size else None for x in given}
    return C is not None and (kinds == {_DOUBLE} or kinds == {_SINGLE})


def _whole(x: Any) -> Any:
    return None if x is None else np.ascontiguousarray(x)


class _Systems:
    """The small systems of the rows of one mode, in orthonormal coordinates."""

    def __init__(self, design: Design) -> None:
        G = design.gram()
        self.T = whitening(G)
        self.back = G @ self.T  # x · v = (x back) · (v T)
        self.design = design.transformed(self.T)

    def table(self) -> tuple[Array, list[Array], int]:
        """The vectors: a table, the factors whose rows combine its rows, and its mode."""
        design = self.design
        if isinstance(design, Rows):
            return _whole(design.M)[:, None, :], [], 0
        assert isinstance(design, Contracted)
        # the core takes up the factor of largest rank, and leaves the least to combine
        lead = max(range(len(design.modes)), key=lambda j: design.modes[j].shape[1])
        core = design.core.reshape(-1, *(M.shape[1] for M in design.modes))
        tensor = np.moveaxis(mode_product(core, design.modes[lead], lead + 1), lead + 1, 0)
        tensor = np.moveaxis(tensor, 1, -1)
        table = _whole(tensor.reshape(tensor.shape[0], -1, tensor.shape[-1]))
        rest = [_whole(M) for j, M in enumerate(design.modes) if j != lead]
        return table, rest, lead

    def solve(self, entries: Any, spread: bool, steps: int = STEPS, **given: Any) -> Any:
        table, factors, lead = self.table()
        exact = spread or table.shape[2] <= EXACT or given.get("whole") is not None
        step, *inverses = C.solve_rows(
            entries,
            table,
            factors,
            lead,
            _whole(self.T),
            *(_whole(given.get(name)) for name in ARGUMENTS),
            jitter(table),
            0 if exact else steps,
            TOL,
            spread,
        )
        x = step @ self.T.T
        return (x, *inverses) if spread else x


class CompiledPattern(Pattern):
    """Entries, sorted by each of their modes when it is first needed."""

    def __init__(self, index: Index, shape: tuple[int, ...]) -> None:
        super().__init__(index, shape)
        self._entries: dict[int, Any] = {}
        self._known: list[tuple[Any, dict[Any, Any]]] = []

    def __reduce__(self) -> Any:
        return CompiledPattern, (self.index, self.shape)

    @cached_property
    def plain(self) -> Pattern:
        """The same, for what is not compiled."""
        if len(self.shape) != 2:
            return Pattern(self.index, self.shape)
        from .numpy import CSRPattern

        return CSRPattern(self.index, self.shape)

    def entries(self, mode: int) -> Any:
        if mode not in self._entries:
            index = [np.ascontiguousarray(i) for i in self.index]
            self._entries[mode] = C.sorted(index, list(self.shape), mode)
        return self._entries[mode]

    @cached_property
    def dense(self) -> bool:
        """Whether so many entries of a matrix are seen that those which are not are the few."""
        return len(self.shape) == 2 and self.index[0].size >= DENSE * math.prod(self.shape)

    def _spread_out(self, x: Array, dtype: Any) -> Array:
        """What there is one of per measurement, in its place in the matrix; zero elsewhere."""
        whole = np.zeros(self.shape, dtype=dtype)
        whole[self.index] = x
        return whole

    @cached_property
    def _seen(self) -> Array:
        return self._spread_out(np.True_, np.bool_)

    def _whole_table(self, y: Array) -> Array:
        """The measurements as a matrix; kept for those used last."""
        known = self._about(y)
        if "table" not in known:
            known["table"] = self._spread_out(y, y.dtype)
        return known["table"]

    def _about(self, x: Array) -> dict[Any, Any]:
        """What is known of the two arrays used last: in a run, the data and a residual."""
        for other, known in self._known:
            if other is x:
                return known
        fresh: dict[Any, Any] = {}
        self._known = [*self._known[-1:], (x, fresh)]
        return fresh

    def _in_order(self, x: Any, mode: int) -> Any:
        """What there is one of per measurement, in the order of a mode."""
        if x is None or self.entries(mode).as_measured:
            return _whole(x)
        return C.arranged(self.entries(mode), _whole(x))

    def arranged(self, x: Any, mode: int) -> Any:
        """The same, kept for the arrays used last."""
        known = self._about(x)
        if mode not in known:
            known[mode] = self._in_order(x, mode)
        return known[mode]

    def contract(self, weights: Array, modes: tuple[Array, ...], skip: int | None = None) -> Array:
        if not suits(weights, *(M for k, M in enumerate(modes) if k != skip)):
            return self.plain.contract(weights, modes, skip)
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
            return self.plain.tucker_gradients(weights, modes, core)
        from ..ambient import Ambient, Sparse

        return Ambient.tucker_gradients(Sparse(self, weights), modes, core)

    def residual(self, modes: tuple[Array, ...], y: Array | None = None) -> Array | None:
        if len(self.shape) != 2 or not suits(y, *modes):
            return None
        L, R = (_whole(M) for M in modes)
        return C.one_pass(self.entries(0), R, L, self.arranged(y, 0), None, True, False)[1]

    def squares_and_gradient(
        self, x: Array, M: Array, y: Array, mode: int
    ) -> tuple[float, Array] | None:
        if len(self.shape) != 2 or not suits(x, M, y):
            return None
        given = self.arranged(y, mode)
        squares, _, sums = C.one_pass(
            self.entries(mode), _whole(M), _whole(x), given, None, False, True
        )
        return squares, sums

    def medians(self, values: Array, mode: int) -> Array:
        if not suits(values):
            return self.plain.medians(values, mode)
        entries = self.entries(mode)
        values = _whole(values)
        return C.row_medians(
            entries, values if entries.as_measured else C.arranged(entries, values)
        )

    def row_grams(self, design: Design, mode: int, first: int, last: int, weights: Any) -> Array:
        return self.plain.row_grams(design, mode, first, last, weights)

    def solve_rows(
        self,
        design: Design,
        mode: int,
        target: Array,
        ridge: Array | None = None,
        weights: Array | None = None,
        spread: bool = False,
    ) -> Any:
        if not suits(target, ridge, weights, *design.arrays):
            return self.plain.solve_rows(design, mode, target, ridge, weights, spread)
        systems = _Systems(design)
        root = None if weights is None else self.arranged(np.sqrt(weights), mode)
        given = {"target": target @ systems.T, "ridge": ridge, "root": root}
        return systems.solve(self.entries(mode), spread, **given)

    def step_rows(
        self,
        design: Design,
        mode: int,
        x: Array,
        y: Array,
        ridge: Array | None = None,
        root: Array | None = None,
        kept: Array | None = None,
        spread: bool = False,
    ) -> Any:
        if not suits(x, y, ridge, root, *design.arrays):
            return None
        if root is None and self.dense and isinstance(design, Rows):
            seen = self._seen if kept is None else self._spread_out(kept, np.bool_)
            return CompiledGrid(self.shape).step_rows(
                design, mode, x, self._whole_table(y), ridge, None, seen, spread
            )
        systems = _Systems(design)
        entries, arranged = self.entries(mode), self.arranged(y, mode)
        root = self._in_order(root, mode)
        kept = self._in_order(None if kept is None else kept.view(np.uint8), mode)
        given = {"x": x @ systems.back, "y": arranged, "root": root, "kept": kept, "ridge": ridge}
        return systems.solve(entries, spread, **given)


class CompiledGrid(Grid):
    """Every entry of a matrix: what is rejected is taken off the Gram matrix of all."""

    def step_rows(
        self,
        design: Design,
        mode: int,
        x: Array,
        y: Array,
        ridge: Array | None = None,
        root: Array | None = None,
        kept: Array | None = None,
        spread: bool = False,
    ) -> Any:
        fits = suits(x, y, ridge, *design.arrays) and isinstance(design, Rows)
        if root is not None or not fits or len(self.shape) != 2:
            return None
        systems = _Systems(design)
        M, at = systems.design.M, x @ systems.back  # type: ignore[attr-defined]
        L, Rt = (at, M.T) if mode == 0 else (M, at.T)
        mask = None if kept is None else _whole(kept).view(np.uint8)
        gradient = C.dense(_whole(L), _whole(Rt), _whole(y), mask, False, mode)[2]
        if mask is None and ridge is None and not spread:
            return gradient @ systems.T.T  # in these coordinates the Gram matrix is I
        if ridge is not None:
            gradient = gradient + (ridge * x) @ systems.T
        entries = C.nothing(self.shape[mode]) if mask is None else C.rejected(mask, mode)
        whole = systems.T.T @ systems.back
        given = {"target": gradient, "ridge": ridge, "whole": whole.astype(np.float64)}
        return systems.solve(entries, spread, **given)


def dense_residual(L: Array, R: Array, Y: Array) -> Array:
    """L Rᵀ − Y."""
    return C.dense(_whole(L), _whole(R.T), _whole(Y), None, True, -1)[1]


def values(
    modes: tuple[Array, ...], core: Array | None, index: Index, y: Array | None = None
) -> Array:
    """The entries of a low-rank object, less y."""
    if core is None:
        table, order = modes[0], [0, 1]
    else:
        lead = max(range(core.ndim), key=lambda k: core.shape[k])
        small = np.moveaxis(mode_product(core, modes[lead], lead), lead, 0)
        table = small.reshape(small.shape[0], -1)
        order = [lead, *(k for k in range(core.ndim) if k != lead)]
    rest = [_whole(modes[k]) for k in order[1:]]
    return C.tucker_values([_whole(index[k]) for k in order], _whole(table), rest, _whole(y))[1]


def distinct(index: Index, shape: tuple[int, ...]) -> bool:
    return C.distinct([_whole(i) for i in index], list(shape))


def parts(index: Index, shape: tuple[int, ...]) -> int:
    """Connected parts of the graph that joins the slices that share an entry."""
    return C.parts([_whole(i) for i in index], list(shape))


def present(x: Array, observed: Array | None) -> tuple[Any, Any, bool]:
    return C.present(_whole(x), None if observed is None else _whole(observed).view(np.uint8))


def kth_magnitude(x: Array, k: int) -> Array:
    """The k-th smallest magnitude (k ≥ 0)."""
    return np.asarray(C.kth_magnitude(_whole(x), k), dtype=x.dtype)


def kth_of_fibres(x: Array, k: int, axis: int) -> Array:
    """The k-th smallest value along an axis (k ≥ 0), kept as an axis of size 1."""
    shape = x.shape
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    found = C.kth_of_fibres(_whole(x).reshape(before, shape[axis], after), k)
    return found.reshape(*shape[:axis], 1, *shape[axis + 1 :])


def within(x: Array, threshold: float) -> tuple[Array, int, float, float]:
    kept, count, squares, largest = C.within(_whole(x), threshold)
    return kept.view(np.bool_), count, squares, largest


def kept_squares(x: Array, kept: Array) -> Array:
    return np.asarray(C.kept_squares(_whole(x), _whole(kept).view(np.uint8)), dtype=x.dtype)
