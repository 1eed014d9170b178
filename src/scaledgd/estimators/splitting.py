"""Splitters for cross-validation of tables: by entries, gaps, rows or time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import check_random_state

from .. import checks
from ..kernels import numbered
from .entry_table import EntryTable
from .packing import host


class _Splitter(BaseCrossValidator):
    """Splits samples into groups, and groups into folds."""

    def __init__(self, n_splits: int = 5, *, random_state: Any = None) -> None:
        self.n_splits, self.random_state = n_splits, random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of splits.

        Parameters
        ----------
        X, y, groups : ignored

        Returns
        -------
        n_splits : int
        """
        return checks.count("n_splits", self.n_splits, least=2)

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield indices of samples to fit, and of samples to predict.

        Parameters
        ----------
        X : EntryTable, or for splits of rows a table
        y, groups : ignored

        Yields
        ------
        train, test : integer arrays
        """
        label, n = self._groups(X), self.get_n_splits()
        kinds = int(label.max()) + 1 if len(label) else 0
        if kinds < n:
            raise ValueError(f"there are {kinds} groups to divide into n_splits={n}; lower it")
        rng = check_random_state(self.random_state)
        fold = (rng.permutation(kinds) % n)[label]
        for k in range(n):
            yield np.nonzero(fold != k)[0], np.nonzero(fold == k)[0]

    def _groups(self, X: Any) -> Any:
        """The number of the group of every sample."""
        raise NotImplementedError


def _entries(X: Any, splitter: object) -> EntryTable:
    if not isinstance(X, EntryTable):
        raise TypeError(
            f"{type(splitter).__name__} splits entries, but scikit-learn splits rows; pass "
            "scaledgd.EntryTable.of(X)"
        )
    return X


class EntrySplit(_Splitter):
    """Splits entries at random, as if they were missing at random.

    Parameters
    ----------
    n_splits : int
    random_state : int, RandomState or None

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> entries = sg.EntryTable.of(np.arange(12.0).reshape(3, 4))
    >>> [len(test) for train, test in sg.EntrySplit(4, random_state=0).split(entries)]
    [3, 3, 3, 3]
    """

    def _groups(self, X: Any) -> Any:
        return np.arange(len(_entries(X, self)))


class BlockSplit(_Splitter):
    """Splits runs of consecutive entries along an axis, as if a sensor had been down.

    Entries missing at random are predicted from their neighbours in time. Data with gaps should
    be judged by gaps.

    Parameters
    ----------
    n_splits : int
    length : int
        Entries in a run.
    axis : int
        The axis of the runs: 0 if rows are times.
    random_state : int, RandomState or None

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> entries = sg.EntryTable.of(np.arange(12.0).reshape(6, 2))
    >>> splits = sg.BlockSplit(2, length=3, random_state=0).split(entries)
    >>> [len(test) for train, test in splits]
    [6, 6]
    """

    def __init__(
        self, n_splits: int = 5, *, length: int = 10, axis: int = 0, random_state: Any = None
    ) -> None:
        super().__init__(n_splits, random_state=random_state)
        self.length, self.axis = length, axis

    def _groups(self, X: Any) -> Any:
        data = _entries(X, self).observations
        length = checks.count("length", self.length, least=1)
        axis = checks.count("axis", self.axis)
        if axis >= len(data.shape):
            raise ValueError(f"axis={axis}, but the table has {len(data.shape)} modes")
        index = tuple(host(i) for i in data.coordinates)
        fibre = numbered(index, data.shape, skip=axis)
        runs = math.ceil(data.shape[axis] / length)
        return np.unique(fibre * runs + index[axis] // length, return_inverse=True)[1]


class RowSplit(_Splitter):
    """Splits whole rows, to measure how well unseen rows are completed.

    Parameters
    ----------
    n_splits : int
    random_state : int, RandomState or None

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> [test.tolist() for train, test in sg.RowSplit(2, random_state=0).split(np.eye(4))]
    [[0, 3], [1, 2]]
    """

    def _groups(self, X: Any) -> Any:
        return np.unique(_rows(X), return_inverse=True)[1]


def _rows(X: Any) -> Any:
    """The row of every sample."""
    if isinstance(X, EntryTable):
        return host(X.observations.coordinates[0])
    return np.arange(X.shape[0] if hasattr(X, "shape") else len(X))


class TimeSplit(_Splitter):
    """Splits rows in the order of time: fit the past, predict what comes after.

    Parameters
    ----------
    n_splits : int
        The rows are cut into one more part than this; each part but the first is predicted from all
        before it.
    gap : int
        Rows left out between those that are fitted and those that are predicted.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> [(a.tolist(), b.tolist()) for a, b in sg.TimeSplit(2).split(np.eye(6))]
    [([0, 1], [2, 3]), ([0, 1, 2, 3], [4, 5])]
    """

    def __init__(self, n_splits: int = 5, *, gap: int = 0) -> None:
        super().__init__(n_splits)
        self.gap = gap

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield indices of samples to fit, and of samples to predict.

        Parameters
        ----------
        X : EntryTable or table
        y, groups : ignored

        Yields
        ------
        train, test : integer arrays
        """
        n, gap, rows = self.get_n_splits(), checks.count("gap", self.gap), _rows(X)
        times = np.unique(rows)
        if len(times) <= n:
            raise ValueError(f"{len(times)} rows cannot be cut into n_splits + 1 = {n + 1} parts")
        cuts = [len(times) * k // (n + 1) for k in range(n + 2)]
        for first, last in pairwise(cuts[1:]):
            past = rows < times[max(first - gap, 0)]
            later = (rows >= times[first]) & (rows <= times[last - 1])
            if not past.any():
                raise ValueError(f"gap={gap} leaves nothing to fit before row {times[first]}")
            yield np.nonzero(past)[0], np.nonzero(later)[0]
