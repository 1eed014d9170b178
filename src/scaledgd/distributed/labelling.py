"""Numbers for labels: the rows and columns of a frame of entries, in the order of their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .shards import Piece, integers

Array = Any


class BadPartError(ValueError):
    """A part of a frame holds what no entry can be; the message says which."""


class BadTypeError(TypeError):
    """A part of a frame holds what is not of the type of entries; the message says which."""


@dataclass(frozen=True, eq=False)
class Names:
    """The labels of rows, or of columns, in order.

    Attributes
    ----------
    column : str
        Where they were in the frame.
    labels : pandas.Index
    """

    column: str
    labels: Any

    def packed(self) -> dict[str, Any]:
        """Return the labels as a file can hold them."""
        labels = np.asarray(self.labels)
        if labels.dtype.kind == "M":
            labels = labels.astype("M8[ns]")
            return {"column": self.column, "kind": "dates", "labels": labels.astype(np.int64)}
        if labels.dtype.kind in "iu":
            return {"column": self.column, "kind": "integers", "labels": labels.astype(np.int64)}
        if labels.dtype.kind == "f":
            return {"column": self.column, "kind": "numbers", "labels": labels.astype(np.float64)}
        return {"column": self.column, "kind": "text", "labels": labels.astype(np.str_)}

    @classmethod
    def unpacked(cls, kept: dict[str, Any]) -> Names:
        """Return what `packed` was given."""
        import pandas as pd

        labels = np.asarray(kept["labels"])
        if kept["kind"] == "dates":
            labels = labels.astype("M8[ns]")
        elif kept["kind"] == "text":
            labels = np.asarray(labels.tolist(), dtype=object)
        return cls(str(kept["column"]), pd.Index(labels))

    def numbers(self, found: Any) -> Array:
        """Return the numbers of some labels; −1 for those that are not known."""
        import pandas as pd

        return np.asarray(self.labels.get_indexer(pd.Index(found)))

    def known(self, found: Any) -> Array:
        """Return the numbers of some labels; all must be known."""
        places = self.numbers(found)
        if len(places) and int(places.min()) < 0:
            strange = np.asarray(found)[places < 0]
            raise KeyError(
                f"{self.column} {strange[0]!r} was not among the data of the fit "
                f"({len(strange):,} such labels)"
            )
        return places


def read(number: int, frame: Any, names: list[str], dtype: Any) -> tuple[Any, Any, Array]:
    """Check a part of a frame, and return labels of rows and columns, and values.

    Lines without a value are no entries.
    """
    import pandas as pd

    where = f"part {number} of the frame"
    rows, columns, values = (frame.iloc[:, k] for k in range(3))
    for name, labels in zip(names, (rows, columns), strict=False):
        missing = int(labels.isna().sum())
        if missing:
            lines = "1 line has" if missing == 1 else f"{missing:,} lines have"
            raise BadPartError(
                f"{where}: {lines} no label in {name!r}; drop such lines, or label them"
            )
    plain = pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values)
    if not plain or pd.api.types.is_complex_dtype(values):
        if len(values) and not values.isna().all():
            raise BadTypeError(f"{where}: {names[2]!r} holds {values.dtype}, not numbers")
        values = pd.Series(np.full(len(values), np.nan))
    y = values.to_numpy(dtype=dtype, na_value=np.nan)
    if np.isinf(y).any():
        raise BadPartError(f"{where}: {names[2]!r} holds infinity; leave such lines out")
    seen = ~np.isnan(y)
    if not seen.all():
        rows, columns, y = rows[seen], columns[seen], y[seen]
    return _plain(rows), _plain(columns), y


def _plain(labels: Any) -> Any:
    """Labels as an index; categories as what they stand for."""
    import pandas as pd

    if isinstance(labels.dtype, pd.CategoricalDtype):
        labels = labels.astype(labels.cat.categories.dtype)
    return pd.Index(labels)


def survey(number: int, part: tuple[Any, Any, Array], names: list[str]) -> tuple[Any, Any]:
    """Return the labels of rows and of columns, with how often each occurs."""
    import pandas as pd

    return tuple(  # type: ignore[return-value]
        pd.Series(labels).value_counts(sort=False) if len(labels) else None for labels in part[:2]
    )


def merged(a: tuple[Any, Any], b: tuple[Any, Any], names: list[str]) -> tuple[Any, Any]:
    """Return the labels of both, with the sums of how often they occur."""
    import pandas as pd

    sides = []
    for name, one, two in zip(names, a, b, strict=False):
        if one is None or two is None:
            sides.append(two if one is None else one)
            continue
        kinds = {_kind(side.index.dtype) for side in (one, two)}
        if len(kinds) > 1:
            raise BadTypeError(
                f"the labels in {name!r} are {' in some parts and '.join(sorted(kinds))} in "
                "others; convert them to one type"
            )
        sides.append(pd.concat([one, two]).groupby(level=0, sort=False).sum())
    return sides[0], sides[1]


def _kind(dtype: Any) -> str:
    """What labels are: those of one kind can be ordered."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(dtype):
        return "numbers"
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return "dates"
    return "text" if pd.api.types.is_string_dtype(dtype) else str(dtype)


def ordered(counts: Any) -> tuple[Any, Array]:
    """Return labels in order, and how often each occurs."""
    if counts is None:
        return (), np.zeros(0, dtype=np.int64)
    counts = counts.sort_index()
    return counts.index, counts.to_numpy()


def numbered(part: tuple[Any, Any, Array], names: tuple[Names, Names]) -> Piece:
    """Return entries with numbers in place of labels."""
    i, j = (
        name.numbers(labels).astype(integers(len(name.labels)))
        for name, labels in zip(names, part[:2], strict=True)
    )
    return i, j, part[2]
