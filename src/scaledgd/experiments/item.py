"""What an item of the reproduction is: cases to measure, and what their numbers must show.

An item is a figure, a table or a theorem. It says which cases there are, measures one of
them, and judges the rows that all of them gave. Claims and pictures come from these rows
alone, which are also what is written as CSV: whoever has the file can check the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..report import Block

Case = dict[str, Any]
"""The parameters of one measurement: numbers, truths and words."""
Row = dict[str, Any]
"""One line of the data, as flat as the CSV."""


@dataclass(frozen=True)
class Setting:
    """How much is to be measured, and on which data."""

    quick: bool = False
    chlorine: Path | None = None
    """A local copy of the chlorine measurements."""

    def pick(self, quick: Any, full: Any) -> Any:
        """What goes with the size of this run."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Claim:
    """A statement of the monograph, what was measured, and whether that agrees."""

    says: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class Verdict:
    """What the rows of an item show."""

    claims: Sequence[Claim]
    blocks: Sequence[Block] = ()
    notes: Sequence[str] = ()
    """Choices that were made, and what was not run."""


class Rows(list[Row]):
    """Rows of data, with the few questions that items ask of them.

    Examples
    --------
    >>> from scaledgd.experiments.item import Rows
    >>> rows = Rows([{"kappa": 1, "count": 40}, {"kappa": 10, "count": 41}])
    >>> rows.distinct("kappa"), rows.where(kappa=10).column("count").tolist()
    ([1, 10], [41.0])
    """

    def where(self, **given: Any) -> Rows:
        return Rows(r for r in self if all(r.get(k) == v for k, v in given.items()))

    def column(self, name: str) -> Any:
        return np.asarray([row[name] for row in self], dtype=float)

    def distinct(self, name: str) -> list[Any]:
        return list(dict.fromkeys(row[name] for row in self if name in row))

    def groups(self, *names: str) -> Iterable[tuple[tuple[Any, ...], Rows]]:
        """The rows by what they have in these columns, in order of appearance."""
        found: dict[tuple[Any, ...], Rows] = {}
        for row in self:
            if all(name in row for name in names):
                found.setdefault(tuple(row[name] for name in names), Rows()).append(row)
        return found.items()


@dataclass(frozen=True)
class Item:
    """A figure, a table or a theorem that is to come out again."""

    name: str
    source: str
    """Where the monograph has it."""
    title: str
    about: str
    cases: Callable[[Setting], list[Case]] = field(repr=False)
    measure: Callable[..., list[Row]] = field(repr=False)
    """Called with the parameters of a case."""
    judge: Callable[[Rows], Verdict] = field(repr=False)
    alone: bool = False
    """Its cases are timed, or large: one at a time, with all the threads."""
