"""A table whose samples are its entries, for scikit-learn's tools."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from scipy import sparse

from .local_observations import LocalObservations
from .packing import host
from .reading import Kind, read_entries, read_tensor, sparse_entries


class EntryTable:
    """The observed entries of a table or tensor, each a sample.

    scikit-learn's tools split samples. Pass an EntryTable to split a table by entries rather than
    by rows. Estimators can be fitted to it and scored on it.

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
        self.observations, self.kind = read_entries(index, values, shape)

    @classmethod
    def of(cls, X: Any, observed: Any = None) -> EntryTable:
        """Return the observed entries of a table.

        Parameters
        ----------
        X : array with NaN, masked array, frame, labelled array, sparse matrix or torch tensor
        observed : boolean array of the shape of X, optional

        Returns
        -------
        table : EntryTable
        """
        if sparse.issparse(X):
            return cls._holding(*sparse_entries(X, observed))
        data, kind = read_tensor(X, observed)
        entries = LocalObservations(data.coordinates, data.flat, data.shape, None, data.stamps)
        return cls._holding(entries, kind)

    @classmethod
    def _holding(cls, observations: LocalObservations, kind: Kind) -> EntryTable:
        table = object.__new__(EntryTable)
        table.observations, table.kind = observations, kind
        return table

    @property
    def shape(self) -> tuple[int]:
        """The number of samples, as scikit-learn expects it."""
        return (self.observations.size,)

    @property
    def table_shape(self) -> tuple[int, ...]:
        """The shape of the table."""
        return self.observations.shape

    def refuse(self, observed: Any) -> None:
        """Raise an error if `observed` is given as well.

        Parameters
        ----------
        observed : object
        """
        if observed is not None:
            raise ValueError("an EntryTable holds observed entries only; leave observed out")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "an EntryTable is for fit, score and splitters; give transform and the like the table"
        )

    def __len__(self) -> int:
        return self.observations.size

    def __getitem__(self, key: Any) -> EntryTable:
        key = key[0] if isinstance(key, tuple) else key
        chosen = np.arange(len(self))[host(key) if not isinstance(key, slice) else key]
        y = self.observations.y
        where = array_namespace(y).asarray(chosen, device=device(y))
        return self._holding(self.observations.some(where), self.kind)

    def __repr__(self) -> str:
        return f"EntryTable of {len(self)} entries of a table of shape {self.table_shape}"
