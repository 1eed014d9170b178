"""Matrix completion and robust PCA: estimators of tables."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from .base import SHAPES
from .choosing import FEWEST
from .dask import any_dask
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
        An upper bound: components that the data do not support are cut. `rank_` was used.
    center : {"auto", "none", "rows", "columns", "both"}
        Offsets that are estimated together with the factors. "auto" chooses them on held-out
        entries, also if a rank is given. There are none if a low-rank matrix alone reproduces
        the data, or if a rank is given beside a number as the ridge or `non_negative`.
    scale : {"auto", "none", "rows", "columns", "both"}
        Sides that are divided by their standard deviation. "auto" chooses them together with
        the offsets. Standardised columns are a candidate for tables with at least twice as many
        rows as columns, and for columns of very unlike scale.
    ridge : "auto" or float
        Learnt from the noise in the residual; or a number: about the size of the noise
        relative to the data.
    outliers : None, "auto" or a fraction
        Whether some of the observed entries are grossly wrong. If so, `rank`, `center` and
        `scale` are chosen as in `RobustPCA`.
    smooth : {"auto", "none", "rows", "columns"}
        Whether neighbouring rows (or columns) are alike, as they are in time series. They are
        then related to those before and after, and what the components do not explain of a
        series is interpolated. "auto" tries it where labels are times or, without such labels,
        where the data suggest it, and keeps it if it predicts held-out entries better. Times
        may be irregular.
    clip : (lo, hi), optional
        Bounds of the estimates that are returned.
    calibrate : float, optional
        The share of the entries to hold out for ``interval(..., kind="conformal")``.
    non_negative : bool
        Factors without negative entries, and no offsets: parts that add up.
    tol : float
        Relative accuracy of the fit.
    max_iter : int
        Iterations of a stage at most.
    max_time : float, optional
        Seconds at most, of this fit.
    warm_start : bool
        Begin where the last fit ended.
    random_state : int, RandomState or None
        Draws the held-out entries. Offsets and scales that are chosen beside a given rank do
        not depend on it.
    n_jobs : int, optional
        The number of threads.
    verbose : int
        1 shows progress if there is a terminal; 2 also elsewhere, in a line every few seconds.
    checkpoint : path, optional
        File for the state of the fit, written every few seconds. A fit of the same data with
        the same parameters resumes from it.
    interrupt : {"raise", "return"}
        Whether Ctrl-C is raised again after the fit ended at its last iterate.

    Attributes
    ----------
    factors_ : LowRank
        The low-rank part. ``reconstruct()`` is offsets + ``factors_.full()``, but the constant in
        rows and columns whose entries are all equal. A factor of the rows of a Dask collection
        that is too large for one machine is a Dask array.
    components_ : array of shape (rank_, n2), orthonormal rows
    singular_values_ : array of shape (rank_,)
    row_offset_, column_offset_ : arrays of shape (n1,) and (n2,)
    rank_, center_, scale_ : those that were used
    rank_path_ : list of dict
        How the rank was found.
    noise_variance_ : float
    n_iter_, converged_, status_, history_ : how the fit went
    diagnostics_ : list of str
        What the data cannot determine, and whether means of columns predict better.
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
            Observed values as they are, estimates elsewhere. Of a Dask array, a lazy one in the
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
        "auto" finds it together with offsets and noise: components that the data do not
        support, or that one row or column has to itself, are cut. Of a table that is too large
        for that, such as a video, it is the rank below a gap in the spectrum of the clean
        residual. An integer is an upper bound.
    center : {"auto", "none", "rows", "columns", "both"}
        Offsets, estimated robustly together with the factors. "auto" means those of columns, or
        none if the entries that are not rejected are reproduced without, or if the table is
        large.
    scale : {"auto", "none", "rows", "columns", "both"}
        "auto" divides columns by a robust deviation if the table gets offsets and has at least
        twice as many rows as columns, or columns of very unlike scale; otherwise it is "none".
        Divided columns have noise levels of their own.
    ridge : "auto"
        Learnt from the noise in what was not rejected.
    smooth, clip, calibrate, tol, max_iter, max_time, warm_start, random_state, n_jobs
    verbose, checkpoint, interrupt
        As in `MatrixCompletion`.

    Attributes
    ----------
    outliers_ : scipy.sparse array of shape (n1, n2)
        X minus the estimate, where that exceeds the threshold.
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
