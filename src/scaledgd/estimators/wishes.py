"""The options of a fit of a table."""

from __future__ import annotations

from dataclasses import dataclass

from .choosing import plain_side
from .robust import Outliers
from .scaling import Choice


@dataclass(frozen=True)
class Wishes:
    """What was asked for.

    Attributes
    ----------
    rank : int, optional
        An upper bound; None leaves it open.
    center, scale : {"auto", "none", "rows", "columns", "both"}
    outliers : None, "auto" or a fraction
    ridge : float, optional
        A ridge that is given; None learns it.
    non_negative : bool
    smooth : {"auto", "none", "rows", "columns"}
        Along which mode neighbours are alike.
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
        """The offsets and scales if nothing is chosen."""
        return Choice(plain_side(self.center), plain_side(self.scale), self.outliers is not None)

    def allow(self, side: str) -> bool:
        """Whether a side may be both centred and scaled."""
        return self.center in ("auto", side) and self.scale in ("auto", side)
