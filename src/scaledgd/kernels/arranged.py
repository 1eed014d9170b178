"""Entries sorted by each of their modes, when first needed."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .design import Index
from .entries import Pattern

if TYPE_CHECKING:
    from .generic import Generic

Array = Any


class ArrangedPattern(Pattern):
    """A pattern whose kernels traverse the entries in the order of a mode.

    The sorted copies of the last arrays are kept, because a run uses the same data again and again.
    """

    compiled = True

    def __init__(self, index: Index, shape: tuple[int, ...], backend: Generic) -> None:
        super().__init__(index, shape, backend)
        self._entries: dict[int, Any] = {}
        self._known: list[tuple[weakref.ref[Any], dict[Any, Any]]] = []

    def __reduce__(self) -> Any:
        return type(self), (self.index, self.shape, self.backend)

    def sorted_by(self, mode: int) -> Any:
        """Return the entries sorted by a mode, in the form that the kernels need."""
        raise NotImplementedError

    def in_order(self, x: Any, mode: int) -> Any:
        """Return per-entry values in the order of a mode; None if there are none."""
        raise NotImplementedError

    def entries(self, mode: int) -> Any:
        """Return `sorted_by`, cached."""
        if mode not in self._entries:
            self._entries[mode] = self.sorted_by(mode)
        return self._entries[mode]

    def arranged(self, x: Any, mode: int) -> Any:
        """Return `in_order`, cached for the last arrays."""
        known = self.about(x)
        if mode not in known:
            known[mode] = self.in_order(x, mode)
        return known[mode]

    def about(self, x: Array) -> dict[Any, Any]:
        """Return the cache of an array. The last two arrays have one: data and a residual.

        It is freed with the array, because copies of a residual are as large as the data.
        """
        for other, known in self._known:
            if other() is x:
                return known
        fresh: dict[Any, Any] = {}
        if x is not None:
            own = weakref.ref(self)  # otherwise the array would keep the pattern alive

            def forget(gone: Any) -> None:
                pattern = own()
                if pattern is not None:
                    pattern._known = [pair for pair in pattern._known if pair[0] is not gone]

            self._known = [*self._known[-1:], (weakref.ref(x, forget), fresh)]
        return fresh

    def cast(self, x: Array, dtype: Any) -> Array:
        """Return per-entry values in another precision; their sorted copies are cast, too."""
        other, known = x.astype(dtype), self.about(x)
        self.about(other).update(
            {k: kept.astype(dtype) for k, kept in known.items() if isinstance(k, int)}
        )
        return other

    def rest(self) -> None:
        self._entries = {mode: kept for mode, kept in self._entries.items() if mode == 0}
        self._known = []
