"""Matrix completion and robust PCA: estimators of tables."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from .base import SHAPES
from .dask import any_dask
from .limits import FEWEST
from .matrix_estimator import MatrixEstimator


@dataclass(eq=False, repr=False)
class MatrixCompletion(MatrixEstimator):
    """Fill in the missing entries of a table with a low-rank model.

    X ≈ offsets + a low-rank matrix. Start, method, step, ridge, noise level and tolerance
    are chosen from the data; rank, offsets and scales on held-out entries, unless you give them.
    `transform` also fills new rows.

    Parameters
    ----------
    rank : "auto" or int
        An upper bound: components that the data do not support are cut. `rank_` is the rank used.
    center : {"auto", "none", "rows", "columns", "both"}
        Offsets that are estimated together with the factors. "auto" chooses them on held-out
        entries, even if a rank is given. There are none if a low-rank matrix alone reproduces the
        data, or if a rank is given together with a number as the ridge or with `non_negative`.
    scale : {"auto", "none", "rows", "columns", "both"}
        Sides that are divided by their standard deviations. "auto" chooses them together with the
        offsets. Standardised columns are a candidate for tables with at least twice as many rows as
        columns, and for columns of very different scale.
    ridge : "auto" or float
        Learnt from the noise in the residual. A number is about the size of the noise relative to
        the data.
    outliers : None, "auto" or a fraction
        Whether some of the observed entries are grossly wrong. If so, `rank`, `center` and
        `scale` are chosen as in `RobustPCA`.
    smooth : {"auto", "none", "rows", "columns"}
        Whether neighbouring rows (or columns) are alike, as in time series. They are then related
        to those before and after, and the part of a series that the components do not explain is
        interpolated. "auto" tries it if labels are times or, without such labels, if the data
        suggest it, and keeps it if it predicts held-out entries better. Times may be irregular.
    clip : (lo, hi), optional
        Bounds of the returned estimates.
    calibrate : float, optional
        The share of the entries to hold out for ``interval(..., kind="conformal")``.
    non_negative : bool
        Factors without negative entries, and no offsets: parts that add up.
    tol : float
        Relative accuracy of the fit.
    max_iter : int
        Maximum number of iterations of a stage.
    max_time : float, optional
        Time limit of the fit, in seconds.
    warm_start : bool
        Start where the last fit ended.
    random_state : int, RandomState or None
        Draws the held-out entries. If a rank is given, the choice of offsets and scales does not
        depend on it.
    n_jobs : int, optional
        The number of threads.
    verbose : int
        1 shows progress in a terminal; 2 also prints a line every few seconds elsewhere.
    checkpoint : path, optional
        File for the state of the fit, written every few seconds. A fit of the same data with
        the same parameters resumes from it.
    interrupt : {"raise", "return"}
        Whether Ctrl-C is raised again after the fit ended at its last iterate.

    Attributes
    ----------
    factors_ : LowRank
        The low-rank part. ``reconstruct()`` is offsets + ``factors_.full()``, except in rows and
        columns whose entries are all equal, where it is that constant. The row factor of a Dask
        collection is a Dask array if it is too large for one machine.
    components_ : array of shape (rank_, n2), orthonormal rows
    singular_values_ : array of shape (rank_,)
    row_offset_, column_offset_ : arrays of shape (n1,) and (n2,)
    rank_, center_, scale_ : those that were used
    rank_path_ : list of dict
        How the rank was found.
    noise_variance_ : float
    n_iter_, converged_, status_, history_ : how the fit went
    diagnostics_ : list of str
        What the data do not determine, and whether column means predict better.
    outliers_, threshold_ : if `outliers` is not None

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 40))
    >>> holes = np.where(rng.random(X.shape) < 0.5, X, np.nan)
    >>> model = sg.MatrixCompletion(rank=2).fit(holes)
    >>> bool(np.allclose(model.transform(holes), X, atol=1e-6))
    True
    """

    _: KW_ONLY
    outliers: Any = field(default=None, metadata=SHAPES)
    non_negative: bool = field(default=False, metadata=SHAPES)
    smooth: str = field(default="auto", metadata=SHAPES)

    @property
    def _fewest(self) -> int:
        plain = self.outliers is None and self.ridge == "auto" and not self.non_negative
        return FEWEST if plain else super()._fewest

    def transform(self, X: Any, *, observed: Any = None, plausible: bool = False) -> Any:
        """Fill in the missing entries of rows, which may be new.

        Parameters
        ----------
        X : array of shape (n, n2), as for `fit`
        observed : boolean array of shape (n, n2), optional
        plausible : bool
            Fill in values that could have been observed: integers in columns of integers,
            nothing negative in a column without a negative value, nothing outside a scale such
            as one to five stars, and no more decimals than the column has. By default,
            estimates are returned as they are.

        Returns
        -------
        filled : array of shape (n, n2)
            Observed values as they are, estimates elsewhere. For a Dask array, a lazy one with the
            same chunks.
        """
        if any_dask(X, observed):
            return self._lazily(X, observed, plausible)
        data, kind = self._read_rows(X, observed)
        filled = self._filled(data)
        return self._as_given(kind, self._plausible(filled, data) if plausible else filled)


@dataclass(eq=False, repr=False)
class RobustPCA(MatrixEstimator):
    """Separate a table into a low-rank part and gross errors.

    The number and the size of the errors need not be known. Up to about a third of the entries
    may be wrong, and entries may be missing (NaN).

    Parameters
    ----------
    rank : "auto" or int
        "auto" finds it together with offsets and noise: components that the data do not support, or
        that only one row or column has, are cut. For a table that is too large for that, such as a
        video, it is the rank below a gap in the spectrum of the clean residual. An integer is an
        upper bound.
    center : {"auto", "none", "rows", "columns", "both"}
        Offsets, estimated robustly together with the factors. "auto" means offsets of columns, or
        none if the entries that are not rejected can be reproduced without offsets, or if the table
        is large.
    scale : {"auto", "none", "rows", "columns", "both"}
        "auto" divides columns by a robust deviation if the table gets offsets and has at least
        twice as many rows as columns, or columns of very different scale; otherwise it is "none".
        Scaled columns have their own noise levels.
    ridge : "auto"
        Learnt from the noise in the entries that are not rejected.
    smooth, clip, calibrate, tol, max_iter, max_time, warm_start, random_state, n_jobs
    verbose, checkpoint, interrupt
        As in `MatrixCompletion`.

    Attributes
    ----------
    outliers_ : scipy.sparse array of shape (n1, n2)
        X minus the estimate, where this exceeds the threshold.
    threshold_ : float
        Part of the model: new rows are cleaned with it.
    factors_, components_, singular_values_, row_offset_, column_offset_, rank_, rank_path_
    noise_variance_, n_iter_, converged_, status_, history_, diagnostics_
        As in `MatrixCompletion`.

    Examples
    --------
    >>> import numpy as np, scaledgd as sg
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((80, 2)) @ rng.standard_normal((2, 60))
    >>> Y = X + 10 * (rng.random(X.shape) < 0.1)
    >>> model = sg.RobustPCA(rank=2).fit(Y)
    >>> bool(np.allclose(model.transform(Y), X)), bool(model.outliers_.nnz == (X != Y).sum())
    (True, True)
    """

    _: KW_ONLY
    smooth: str = field(default="auto", metadata=SHAPES)

    def _outliers(self) -> Any:
        return "auto"

    def transform(self, X: Any, *, observed: Any = None, plausible: bool = False) -> Any:
        """Return the clean part of rows, which may be new.

        Parameters
        ----------
        X : array of shape (n, n2), as for `fit`
        observed : boolean array of shape (n, n2), optional
        plausible : bool
            Return values that could have been observed: integers in columns of integers,
            nothing negative in a column without a negative value, nothing outside a scale such
            as one to five stars, and no more decimals than the column has. By default,
            estimates are returned as they are.

        Returns
        -------
        clean : array of shape (n, n2)
        """
        if any_dask(X, observed):
            return self._lazily(X, observed, plausible)
        data, kind = self._read_rows(X, observed)
        clean = self._estimated(data)
        return self._as_given(kind, self._plausible(clean) if plausible else clean)
