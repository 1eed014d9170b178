"""Scores on held-out entries, and the curve of errors over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from .entry_table import EntryTable
from .packing import host
from .splitting import EntrySplit


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
    """Plot how well held-out entries are predicted, rank by rank.

    Parameters
    ----------
    estimator : MatrixCompletion, TensorCompletion or the like
        A copy is fitted with every rank; its other parameters are kept.
    X : table, tensor or EntryTable
    ranks : iterable of int, or of tuples for tensors, optional
    cv : splitter, optional
        By default a third of the entries at a time, at random.
    n_jobs : int, optional
        Number of fits in parallel.
    ax : matplotlib axes, optional

    Returns
    -------
    display : RankCurveDisplay
        With `ranks`, `errors` (root mean squares), `spread` (their standard errors over the
        splits) and `chosen`, the smallest rank whose error is within a standard error of the least.
        It is drawn if matplotlib is installed; ``display.plot(ax)`` draws it again.

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
