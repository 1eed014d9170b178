"""Judging a model by what it has not seen: entries as samples, splitters, rank curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import check_random_state

from .. import checks, kernels
from .cells import Cells
from .packing import host
from .tables import read_entries, read_tensor, sparse_cells

Array = Any


class EntryTable:
    """The observed entries of a table or tensor, each a sample.

    scikit-learn's tools divide samples. To divide a table entry by entry, and not
    row by row, give them this: estimators can be fitted to it, and scored on it.

    Parameters
    ----------
    index : tuple of integer arrays of shape (m,), one per mode
    values : array of shape (m,)
    shape : tuple of int
        Of the table.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> from sklearn.model_selection import cross_val_score
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 40))
    >>> X[rng.random(X.shape) < 0.4] = np.nan
    >>> entries = sg.EntryTable.of(X)
    >>> splits = sg.EntrySplit(3, random_state=0)
    >>> scores = cross_val_score(sg.MatrixCompletion(rank=2), entries, cv=splits)
    >>> bool(scores.min() > 0.999)
    True
    """

    def __init__(self, index: Any, values: Any, shape: tuple[int, ...]) -> None:
        self.cells, self.kind = read_entries(index, values, shape)
        self.dense = False

    @classmethod
    def of(cls, X: Any, observed: Any = None) -> EntryTable:
        """The observed entries of a table.

        Parameters
        ----------
        X : array with NaN, masked array, frame, labelled array, sparse matrix or torch tensor
        observed : boolean array of the shape of X, optional
        """
        table = cls.__new__(cls)
        if sparse.issparse(X):
            table.cells, table.kind = sparse_cells(X, observed)
            table.dense = False
        else:
            cells, table.kind = read_tensor(X, observed)
            table.cells = Cells(cells.coordinates, cells.flat, cells.shape)
            table.dense = True
        return table

    @property
    def shape(self) -> tuple[int]:
        """How many samples there are, as scikit-learn asks for it."""
        return (self.cells.size,)

    @property
    def table_shape(self) -> tuple[int, ...]:
        """The shape of the table."""
        return self.cells.shape

    def refuse(self, observed: Any) -> None:
        """Raise where what is observed is said once more."""
        if observed is not None:
            raise ValueError("an EntryTable holds observed entries only; leave observed out")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "an EntryTable is for fit, score and splitters; give transform and the like the table"
        )

    def __len__(self) -> int:
        return self.cells.size

    def __getitem__(self, key: Any) -> EntryTable:
        key = key[0] if isinstance(key, tuple) else key
        chosen = np.arange(len(self))[host(key) if not isinstance(key, slice) else key]
        part = object.__new__(EntryTable)
        where = array_namespace(self.cells.y).asarray(chosen, device=device(self.cells.y))
        part.cells, part.kind, part.dense = self.cells.some(where), self.kind, self.dense
        return part

    def __repr__(self) -> str:
        return f"EntryTable of {len(self)} entries of a table of shape {self.table_shape}"


# ---- splitters


class _Splitter(BaseCrossValidator):
    """Divides samples into groups, and groups into folds."""

    def __init__(self, n_splits: int = 5, *, random_state: Any = None) -> None:
        self.n_splits, self.random_state = n_splits, random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """How many splits there are."""
        return checks.count("n_splits", self.n_splits, least=2)

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Any, Any]]:
        """Indices of samples to fit, and of samples to predict.

        Parameters
        ----------
        X : EntryTable, or a table whose rows are samples where that makes sense
        y, groups : ignored
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
            f"{type(splitter).__name__} divides entries, and scikit-learn divides rows; give it "
            "scaledgd.EntryTable.of(X)"
        )
    return X


class EntrySplit(_Splitter):
    """Entries at random, as if they were missing at random.

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
    """Runs of consecutive cells along an axis, as if a sensor had been down for a while.

    Entries at random are predicted from their neighbours in time; whoever has gaps
    should be judged by gaps.

    Parameters
    ----------
    n_splits : int
    length : int
        Cells in a run.
    axis : int
        Along which runs go: 0 where rows are times.
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
        cells = _entries(X, self).cells
        length = checks.count("length", self.length, least=1)
        axis = checks.count("axis", self.axis)
        if axis >= len(cells.shape):
            raise ValueError(f"axis={axis}, but the table has {len(cells.shape)} modes")
        index = tuple(host(i) for i in cells.coordinates)
        fibre = kernels.numbered(index, cells.shape, skip=axis)
        runs = math.ceil(cells.shape[axis] / length)
        return np.unique(fibre * runs + index[axis] // length, return_inverse=True)[1]


class RowSplit(_Splitter):
    """Whole rows: how well are rows completed that were not there at the fit?

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
        return host(X.cells.coordinates[0])
    return np.arange(X.shape[0] if hasattr(X, "shape") else len(X))


class TimeSplit(_Splitter):
    """Rows in the order of time: fit the past, predict what comes after.

    Parameters
    ----------
    n_splits : int
        The rows are cut into one part more than that; each part but the first is predicted
        from all before it.
    gap : int
        Rows left out between the past and what is predicted.

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
        """Indices of samples to fit, and of samples to predict."""
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


# ---- scores


@dataclass(frozen=True)
class scorer:  # noqa: N801  (reads as a function, like scikit-learn's make_scorer)
    """A measure of held-out entries, for the ``scoring`` of scikit-learn's tools.

    Parameters
    ----------
    metric : callable
        ``metric(truth, estimate)``, such as those of `sklearn.metrics`.
    greater_is_better : bool
        Otherwise the score is minus the metric.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> from sklearn.metrics import mean_absolute_error
    >>> from sklearn.model_selection import cross_val_score
    >>> X = np.outer(np.arange(1.0, 31), np.arange(1.0, 21))
    >>> absolute = sg.scorer(mean_absolute_error, greater_is_better=False)
    >>> entries = sg.EntryTable.of(X)
    >>> splits = sg.EntrySplit(2, random_state=0)
    >>> scores = cross_val_score(sg.MatrixCompletion(1), entries, cv=splits, scoring=absolute)
    >>> bool(scores.min() > -1e-6)
    True
    """

    metric: Callable[[Any, Any], float]
    greater_is_better: bool = True

    def __call__(self, estimator: Any, X: Any, y: Any = None) -> float:
        truth, estimate = estimator.held_out(X)
        value = float(self.metric(host(truth), host(estimate)))
        return value if self.greater_is_better else -value


def _root_mean_square(truth: Any, estimate: Any) -> float:
    return math.sqrt(float(np.mean((truth - estimate) ** 2)))


LADDER = (1, 2, 3, 4, 6, 8, 11, 15, 20)


def rank_curve(
    estimator: Any,
    X: Any,
    *,
    ranks: Any = None,
    cv: Any = None,
    n_jobs: int | None = None,
    ax: Any = None,
) -> Any:
    """How well held-out entries are predicted, rank by rank, as a picture.

    Parameters
    ----------
    estimator : MatrixCompletion, TensorCompletion or the like
        A copy is fitted with every rank; its other parameters are kept.
    X : table, tensor or EntryTable
    ranks : iterable of int, or of tuples for tensors, optional
    cv : splitter, optional
        By default a third of the entries at a time, at random.
    n_jobs : int, optional
        Fits side by side.
    ax : matplotlib axes, optional

    Returns
    -------
    display : RankCurveDisplay
        With `ranks`, `errors` (root mean squares), `spread` (their standard errors over the
        splits) and `chosen`, the smallest rank whose error is the least within the standard error
        of that. It is drawn where matplotlib is installed; ``display.plot(ax)`` draws it again.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 40))
    >>> X += 0.1 * rng.standard_normal(X.shape)
    >>> curve = sg.rank_curve(sg.MatrixCompletion(), X, ranks=[1, 2, 3])
    >>> curve.chosen
    2
    """
    from sklearn.model_selection import cross_val_score

    from ..plots import RankCurveDisplay

    table = X if isinstance(X, EntryTable) or cv is not None else EntryTable.of(X)
    splits = EntrySplit(3, random_state=0) if cv is None else cv
    shape = table.table_shape if isinstance(table, EntryTable) else np.shape(table)
    given = [r for r in LADDER if r < min(shape[:2])] if ranks is None else list(ranks)
    if any(isinstance(r, tuple) for r in given):
        given = [r if isinstance(r, tuple) else (r,) * len(shape) for r in given]
    tried = sorted(given, key=lambda r: sum(r) if isinstance(r, tuple) else r)
    if not tried:
        raise ValueError("there is no rank to try; give ranks")
    measure = scorer(_root_mean_square, greater_is_better=False)
    errors = [
        -cross_val_score(
            clone(estimator).set_params(rank=r), table, cv=splits, scoring=measure, n_jobs=n_jobs
        )
        for r in tried
    ]
    means = [float(np.mean(e)) for e in errors]
    spread = [float(np.std(e, ddof=1)) / math.sqrt(len(e)) for e in errors]
    best = int(np.argmin(means))
    enough = [r for r, e in zip(tried, means, strict=True) if e <= means[best] + spread[best]]
    display = RankCurveDisplay(tried, means, spread, enough[0])
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return display
    return display.plot(ax)
