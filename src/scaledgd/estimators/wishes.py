"""The options of a fit of a table."""

from __future__ import annotations

from dataclasses import dataclass

from .plans import plain_side
from .robust import Outliers
from .scaling import Choice


@dataclass(frozen=True)
class Wishes:
    """The options that the user gave.

    Attributes
    ----------
    rank : int, optional
        An upper bound; None leaves it open.
    center, scale : {"auto", "none", "rows", "columns", "both"}
    outliers : None, "auto" or a fraction
    ridge : float, optional
        The given ridge; None learns it.
    non_negative : bool
    smooth : {"auto", "none", "rows", "columns"}
        The side along which neighbours are alike.
    """

    rank: int | None
    center: str
    scale: str
    outliers: Outliers | None = None
    ridge: float | None = None
    non_negative: bool = False
    smooth: str = "none"

    @property
    def plain(self) -> Choice:
        """The default offsets and scales."""
        return Choice(plain_side(self.center), plain_side(self.scale), self.outliers is not None)

    def allow(self, side: str) -> bool:
        """Whether a side may be both centred and scaled."""
        return self.center in ("auto", side) and self.scale in ("auto", side)
