"""Ways to fit a table: offsets, scales, rank and start, and how the fit maps to the data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from array_api_compat import array_namespace

from ..factors import Bordered
from ..problems import Observed
from ..state import State
from ..variational import current
from .joint import Joint, narrow, whole_covariances, work_of
from .local_observations import LocalObservations
from .packing import brought
from .scaling import Choice, Scales, empty, scales, table_factors
from .timed import Timed
from .units import Units, column_units

Array = Any
Trail = list[dict[str, Any]]

LARGEST_RANK = 60
"""Largest rank that rank="auto" considers."""

FIRST_RANK = 10
"""Largest rank at which candidates are compared."""

SWEEPS = 20
"""Half of the sweeps that a fit with full covariances is allowed at least."""

MOST_SWEEPS = 200
"""Maximum number of sweeps of the fit."""

WORTH = 200_000_000
"""Limit on the numbers that the sweeps of a fit sum over the entries, beyond a few sweeps."""

FEW_SWEEPS = 12
"""Sweeps without full covariances that continue a fit; one from the start takes twice as many."""

ROUNDS = 2
"""Power iterations of a start that only a few sweeps follow."""

NEARBY = 0.95
"""Initial share of the variance that is not noise, after power iterations for a large table."""

SETTLED = 2e-3
"""Relative change of the noise that ends the fit of a large table."""

STEADY = 2
"""Number of consecutive sweeps with no larger change that end it."""


@dataclass(frozen=True, eq=False)
class Reading:
    """How the factors of an iterate map to the data.

    Attributes
    ----------
    size : float
        The power of two that the data were divided by.
    choice : Choice
    scales : Scales
    trail : list of dict
        How the rank has been found so far.
    units : Units, optional
        Units of columns.
    """

    size: float = 1.0
    choice: Choice = field(default_factory=Choice)
    scales: Scales = field(default_factory=lambda: Scales(None, None))
    trail: Trail = field(default_factory=list)
    units: Units | None = None

    def apply(self, data: LocalObservations) -> LocalObservations:
        """Return data in the units of the fit."""
        data = data if self.units is None else self.units.apply(data)
        return self.scales.apply(data.scaled(self.size))

    def values(self, F: Bordered | Timed, index: tuple[Array, ...]) -> Array:
        """Return the values of factors at coordinates, in the units of the data."""
        values = self.size * self.scales.undo(F.gather(index), index)
        return values if self.units is None else self.units.undo(values, index[1])


@dataclass(frozen=True, eq=False)
class Plan:
    """How to fit a table.

    Attributes
    ----------
    choice : Choice
    rank : int
        An upper bound.
    trail : list of dict
        How the rank was found.
    start : {"joint", "grown", "offsets", "smooth", "series", "exact"}
        How the fit starts: with all columns at once, with one more at a time, or with none.
        "smooth" is "joint" followed by a model of time; "series" uses time only. "exact" has
        reproduced the data, and is complete.
    mode : int
        The mode along which neighbours are alike.
    caution : float
        How much larger squared errors of new observations are than the model says, as a factor.
    standard : bool
        Whether columns are standardised first, and each has its own noise level.
    begun : State, optional
        A fit to most of the data, to continue from.
    """

    choice: Choice
    rank: int
    trail: Trail = field(default_factory=list)
    start: str = "joint"
    standard: bool = False
    begun: State | None = None
    mode: int = 0
    caution: float = 1.0

    @property
    def named(self) -> dict[str, str]:
        """Offsets and scales, as the parameters name them."""
        center, scale = self.choice.center, self.choice.scale
        if self.standard:
            center = {"none": "columns", "rows": "both"}.get(center, center)
            scale = "columns"
        return {"center": center, "scale": scale}

    def ranked(self, rank: int) -> Plan:
        """Return the plan with a rank."""
        return replace(self, rank=rank)

    @property
    def in_time(self) -> bool:
        """Whether neighbours in time are used."""
        return self.start in ("smooth", "series")

    def joint(self, data: LocalObservations) -> Joint:
        """Return how a fit from a joint start is made."""
        how = Joint(self.rank)
        if not whole_covariances(data, self.rank):
            sweeps = 2 * FEW_SWEEPS if self.begun is None else FEW_SWEEPS
            how = replace(how, share=NEARBY, rounds=ROUNDS)
            # sums over many entries hardly fluctuate
            return replace(how, sweeps=sweeps, fine=SETTLED, steady=STEADY)
        sweeps = min(MOST_SWEEPS, max(2 * SWEEPS, WORTH // work_of(data, self.rank)))
        return replace(how, sweeps=sweeps)

    def prepared(
        self, data: LocalObservations, size: float | None = None
    ) -> tuple[Reading, LocalObservations, Bordered]:
        """Return how to read a fit of data, the data in its units, and its offsets.

        Parameters
        ----------
        data : LocalObservations
        size : float, optional
            The power of two to divide by, if it is that of another fit.
        """
        units = column_units(data) if self.standard else None
        normal = data if units is None else units.apply(data)
        size = normal.magnitude() if size is None else size
        normal = normal.scaled(size)
        scale = scales(normal, self.choice)
        if units is not None:
            scale = replace(scale, mean=0.0)  # units of columns remove it
        reading = Reading(size, self.choice, scale, list(self.trail), units)
        blank = empty(normal, self.choice, scale)
        if units is not None and blank.v is not None:
            # offsets of rows are additive in the units of the data
            xp = array_namespace(blank.v)
            v = blank.v * (xp.min(units.scale) / units.scale)  # squares of tiny numbers vanish
            blank = replace(blank, v=v / xp.mean(v * v) ** 0.5)
        return reading, scale.apply(normal), blank


def continued(problem: Observed, start: Bordered, known: State | None) -> State | None:
    """The state of a fit to other entries, with the offsets of this one."""
    if known is None or known.factors.shape != tuple(problem.shape):
        return None
    F, posterior = (brought(x, problem.y) for x in (table_factors(known), current(known)))
    before, borders = known.problem, (F.u, F.v, start.u, start.v)
    same = isinstance(before, Observed) and before.y is problem.y
    loss = known.known if same and all(b is None for b in borders) else None
    F = replace(F, u=start.u, v=start.v)
    state = problem.linearize(F).remembering(replace(posterior, weight=None))
    return replace(state, known=loss)


def plain_side(side: str) -> str:
    """Return the sides that are centred or scaled by default."""
    return "none" if side == "auto" else side


def candidates(data: LocalObservations, center: str, scale: str, unlike: bool) -> tuple[Plan, ...]:
    """Return the offsets and scales that agree with the parameters.

    "auto" agrees with all. Columns in their own units come first, because they suit most tables.

    Parameters
    ----------
    data : LocalObservations
    center, scale : {"auto", "none", "rows", "columns", "both"}
    unlike : bool
        Whether columns have very different scales, so that offsets of rows are in their units.
    """
    known = {
        ("columns", "columns"): Plan(Choice("columns"), 0, standard=True),
        ("none", "none"): Plan(Choice(), 0),
        ("both", "none"): Plan(Choice("both"), 0),
        ("rows", "rows"): Plan(Choice("rows", "rows"), 0),
    }
    if unlike and center == scale == "auto":
        known |= {
            ("both", "none"): Plan(Choice("both"), 0, standard=True),
            ("rows", "rows"): Plan(Choice("rows"), 0, standard=True),
        }
    found = [
        plan
        for (offsets, scales), plan in known.items()
        if center in ("auto", offsets) and scale in ("auto", scales)
    ]
    if narrow(data) and len(found) > 2:
        found = found[:-1]  # rows of a few numbers have no scale of their own
    return tuple(found) or (Plan(Choice(plain_side(center), plain_side(scale)), 0),)


def gaussian_of(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Return the Gaussian of the rows, which has units of columns, if these are allowed."""
    allowed = any(plan.standard and plan.choice.center == "columns" for plan in plans)
    return (Plan(Choice(), 0, standard=True, start="gaussian"),) if allowed else ()


def reproduced(state: State | None, rank: int | None) -> Plan:
    """Return the plan for a fit that reproduces the data: nothing is left to do."""
    trail = [{"rank": rank, "why": "the data are reproduced"}]
    return Plan(Choice(), 0, trail, "exact", begun=state)


def only_noise_left(state: State, rank: int) -> Plan:
    """Return the plan if least squares leave nothing but noise: only the ridge is left to find.

    Offsets could explain nothing more, and every row has enough entries to do without them.
    """
    trail = [{"rank": rank, "why": "given, and leaves nothing but noise"}]
    return Plan(Choice(), rank, trail, begun=state)


def in_the_time_of(plan: Plan, mode: int) -> Plan:
    """The plan with neighbours in time."""
    standard = plan.standard or plan.choice.columns
    choice = Choice() if mode == 0 else Choice("none", plan.choice.scale)
    plan = replace(plan, choice=choice, standard=standard and mode == 0, mode=mode)
    rank = plan.rank if plan.start == "joint" else min(plan.rank, FIRST_RANK)
    return replace(plan, start="smooth", rank=max(1, rank))
