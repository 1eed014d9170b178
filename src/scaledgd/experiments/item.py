"""The parts of an item: cases to measure, rows of numbers, and a verdict on claims.

An item is a figure, a table or a theorem. It lists its cases, measures one case at a time, and
judges the rows of all cases. Claims and charts come from these rows alone. The rows are also
written as CSV, so that claims can be checked from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..report import Block

Case = dict[str, Any]
"""The parameters of one measurement: numbers, booleans and strings."""
Row = dict[str, Any]
"""One line of the CSV."""


@dataclass(frozen=True)
class Setting:
    """How much to measure, and on which data.

    Parameters
    ----------
    quick : bool
        Run at reduced size.
    chlorine : path, optional
        A local copy of the chlorine measurements; by default a simulation replaces them.

    Examples
    --------
    >>> from scaledgd.experiments import Setting
    >>> Setting(quick=True).pick(quick=100, full=1000)
    100
    """

    quick: bool = False
    chlorine: Path | None = None

    def pick(self, quick: Any, full: Any) -> Any:
        """Return the value for the size of this run.

        Parameters
        ----------
        quick, full : object
            The values at reduced and at full size.

        Returns
        -------
        object
            One of the two.
        """
        return quick if self.quick else full


@dataclass(frozen=True)
class Claim:
    """A statement of the monograph and what was measured.

    Parameters
    ----------
    says : str
        The statement.
    measured : str
        What was measured, as a sentence.
    holds : bool
        Whether the two agree.

    Examples
    --------
    >>> from scaledgd.experiments import Claim
    >>> Claim("κ does not matter", "40, 41 iterations for κ = 1, 10", holds=True).holds
    True
    """

    says: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class Verdict:
    """What the rows of an item show.

    Parameters
    ----------
    claims : sequence of Claim
    blocks : sequence of Block
        Charts and tables of the report.
    notes : sequence of str
        Choices that were made, and what was not run.

    Examples
    --------
    >>> from scaledgd.experiments import Claim, Verdict
    >>> len(Verdict([Claim("1 + 1 = 2", "2", True)]).claims)
    1
    """

    claims: Sequence[Claim]
    blocks: Sequence[Block] = ()
    notes: Sequence[str] = ()


class Rows(list[Row]):
    """A list of rows that can be filtered and grouped by column.

    Examples
    --------
    >>> from scaledgd.experiments.item import Rows
    >>> rows = Rows([{"kappa": 1, "count": 40}, {"kappa": 10, "count": 41}])
    >>> rows.distinct("kappa"), rows.where(kappa=10).column("count").tolist()
    ([1, 10], [41.0])
    """

    def where(self, **given: Any) -> Rows:
        """Return the rows that have these values.

        Parameters
        ----------
        **given : object
            Values by column.

        Returns
        -------
        Rows
        """
        return Rows(r for r in self if all(r.get(k) == v for k, v in given.items()))

    def column(self, name: str) -> Any:
        """Return a column as a float array.

        Parameters
        ----------
        name : str

        Returns
        -------
        array of shape (len(self),)
        """
        return np.asarray([row[name] for row in self], dtype=float)

    def distinct(self, name: str) -> list[Any]:
        """Return the different values of a column, in order of appearance.

        Parameters
        ----------
        name : str
            Rows without this column are ignored.

        Returns
        -------
        list
        """
        return list(dict.fromkeys(row[name] for row in self if name in row))

    def groups(self, *names: str) -> Iterable[tuple[tuple[Any, ...], Rows]]:
        """Group the rows by their values in some columns, in order of appearance.

        Parameters
        ----------
        *names : str
            Columns; rows that lack one of them are left out.

        Returns
        -------
        iterable of (tuple, Rows)
            The values, and the rows that have them.
        """
        found: dict[tuple[Any, ...], Rows] = {}
        for row in self:
            if all(name in row for name in names):
                found.setdefault(tuple(row[name] for name in names), Rows()).append(row)
        return found.items()


@dataclass(frozen=True)
class Item:
    """A figure, a table or a theorem to reproduce.

    Parameters
    ----------
    name : str
        Name of its module.
    source : str
        Its place in the monograph.
    title, about : str
        Heading and description in the report.
    cases : callable
        From a `Setting` to the list of cases.
    measure : callable
        Called with the parameters of a case; returns a list of rows.
    judge : callable
        From the `Rows` of all cases, each with the parameters of its case, to a `Verdict`.
    alone : bool
        Measure one case at a time, with all threads, because cases are timed or large.

    Examples
    --------
    >>> from scaledgd.experiments import Setting, item
    >>> one = item("figure3")
    >>> one.source, one.cases(Setting(quick=True))
    ('Fig. 3', [{'path': None}])
    """

    name: str
    source: str
    title: str
    about: str
    cases: Callable[[Setting], list[Case]] = field(repr=False)
    measure: Callable[..., list[Row]] = field(repr=False)
    judge: Callable[[Rows], Verdict] = field(repr=False)
    alone: bool = False
