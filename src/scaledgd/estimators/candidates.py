"""Ways to fit a table that may be compared: each is fitted to all entries, and judged as it is.

A candidate is fitted until it has converged, once. It is judged by *warm folds*: from the fit of
all entries a few sweeps without some of them, which forget these, and predict them. So the errors
are those of the optimum that is returned, at a small part of the cost of new fits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from ..state import State
from ..variational import Variational, current
from .fitting import aligned_components, refine
from .growing import begin, grow
from .joint import SHARE, Joint, fit_joint, may_hide_more, relevance, rules_of, whole_covariances
from .limits import FINE, FIRST_RANK, FORGET
from .local_observations import LocalObservations
from .matrix_model import TableFit
from .planned import polished
from .plans import Plan, Reading, continued
from .rules import change
from .scaling import table_factors
from .session import Outcome, Session
from .timed import LAST_SWEEPS, SWEEPS, Timed, fit_timed, refined


class Fitted(ABC):
    """A candidate that has been fitted to all entries."""

    plan: Plan
    reading: Reading
    state: State

    @property
    def rank(self) -> int:
        """The number of components."""
        return table_factors(self.state).rank

    @property
    def needs_more(self) -> bool:
        """Whether nearly all columns are needed, so that a larger rank may be better."""
        return False

    @abstractmethod
    def without(self, session: Session, fit: LocalObservations) -> TableFit:
        """Return what remains of the fit if it forgets all entries but some."""

    @abstractmethod
    def finished(self, session: Session) -> TableFit:
        """Return the fit, converged further."""


@dataclass(frozen=True, eq=False)
class Factored(Fitted):
    """A variational fit: all columns at once, or one at a time.

    Attributes
    ----------
    plan : Plan
    data : LocalObservations
        In their own units.
    scaled : LocalObservations
        In units of the fit.
    outcome : Outcome
        How the fit went.
    """

    plan: Plan
    data: LocalObservations
    reading: Reading
    scaled: LocalObservations
    state: State
    outcome: Outcome

    @classmethod
    def of(cls, session: Session, data: LocalObservations, plan: Plan) -> Factored:
        """Fit a candidate to all entries."""
        reading, scaled, blank = plan.prepared(data)
        session = session.aside(reading)
        problem = scaled.problem()
        if plan.start == "offsets":
            state = begin(session, scaled, blank, None).state
        elif plan.start == "grown":
            path = grow(session, begin(session, scaled, blank, None), plan.rank, None)
            state = refine(session, problem, path.state, scaled)
        else:
            how = _how(plan, scaled)
            begun = how.begun(scaled, problem, blank)
            state = fit_joint(session, problem, scaled, begun, how, False)
        return cls(plan, data, reading, scaled, state, session.outcome)

    def reproducing(self, session: Session) -> Factored | None:
        """Return the fit of least rank that reproduces the data, if the components found do.

        Rows and columns with fewer entries than components would be arbitrary.
        """
        pairs = zip((0, 1), self.state.factors.blocks, strict=True)
        if any(float(self.data.counts(k).min()) < B.shape[1] for k, B in pairs):
            return None
        session = session.aside(self.reading)
        state = polished(session, self.scaled, self.state)
        return None if state is None else replace(self, state=state)

    @property
    def hides_more(self) -> bool:
        """Whether noise is left that may be components beyond those that were found."""
        if self.plan.start != "joint":
            return False
        return may_hide_more(Session(), self.scaled, self.state, _how(self.plan, self.scaled))

    def deeper(self, session: Session) -> Factored:
        """Look for components that seem to be noise."""
        how, problem = _how(self.plan, self.scaled), self.scaled.problem()
        session = session.aside(self.reading)
        return replace(self, state=fit_joint(session, problem, self.scaled, self.state, how))

    @property
    def needs_more(self) -> bool:
        return (
            self.plan.start == "joint"
            and int((relevance(self.state) > 0.5).sum()) >= self.plan.rank
        )

    def _method(self) -> Variational:
        return _how(self.plan, self.scaled).method(self.scaled)

    def without(self, session: Session, fit: LocalObservations) -> TableFit:
        reading, scaled, blank = self.plan.prepared(fit, self.reading.size)
        problem = scaled.problem()
        state = continued(problem, blank, self.state)
        assert state is not None
        # a fit that reproduces what it has seen would never forget it
        posterior = current(state)
        sizes = posterior.prior[0][: self.rank] * posterior.prior[1][: self.rank]
        least = (1 - SHARE) * float(sizes.min()) if self.rank else 0.0
        noise = max(float(posterior.noise), least)
        F = table_factors(state)
        state = problem.linearize(F.with_blocks((0 * F.L, F.R)))
        state = state.remembering(replace(posterior, noise=noise))
        if self.plan.start == "offsets":
            state = begin(session.apart(), scaled, blank, None).state
        elif sum(B.shape[1] for B in state.factors.blocks):
            method = self._method() if self.plan.start == "joint" else Variational()
            rules = [change(1e-4)]
            state = session.apart().solve(problem, state, method, rules, FORGET, stage="fold")
        return TableFit(reading, state)

    def finished(self, session: Session) -> TableFit:
        state, session = self.state, session.with_reading(self.reading)
        session.outcome.become(self.outcome)
        if self.plan.start == "joint" and sum(B.shape[1] for B in state.factors.blocks):
            how = replace(self.plan.joint(self.scaled), steady=1)
            how = replace(how, fine=max(how.fine, 0.1 * session.tol))
            rules, problem = rules_of(how), self.scaled.problem()
            state = session.solve(problem, state, self._method(), rules, stage="joint")
        if not self.outcome.converged:
            session.outcome.converged, session.outcome.status = False, self.outcome.status
        return TableFit(self.reading, aligned_components(state, self.scaled))


def _how(plan: Plan, scaled: LocalObservations) -> Joint:
    """How a candidate is fitted: as the final fit, but not as closely."""
    how = plan.joint(scaled)
    if not whole_covariances(scaled, plan.rank):
        return how
    return replace(how, fine=FINE, least=FIRST_RANK)


@dataclass(frozen=True, eq=False)
class InTime(Fitted):
    """A fit in which rows, or columns, follow each other in time.

    Attributes
    ----------
    plan : Plan
    reading : Reading
    scaled : LocalObservations
    state : State
        The fit without time from which it began.
    timed : Timed
    outcome : Outcome
    """

    plan: Plan
    reading: Reading
    scaled: LocalObservations
    state: State
    timed: Timed
    outcome: Outcome

    @classmethod
    def of(cls, session: Session, data: LocalObservations, plan: Plan) -> InTime:
        """Fit a candidate to all entries: "smooth" with a low-rank part, or "series" alone."""
        reading, scaled, blank = plan.prepared(data)
        session = session.aside(reading)
        if plan.start == "series":
            state = begin(session, scaled, blank, None).state
            known = None
        else:
            problem, how = scaled.problem(), _how(replace(plan, start="joint"), scaled)
            # every series has its own noise, so the start must not explain the noise of some
            how = replace(how, columns=plan.mode == 0)
            begun = how.begun(scaled, problem, blank)
            state = fit_joint(session, problem, scaled, begun, how, False)
            known = state if table_factors(state).rank else None
        timed = fit_timed(session, scaled, known, plan.mode, LAST_SWEEPS)
        return cls(plan, reading, scaled, state, timed, session.outcome)

    @property
    def rank(self) -> int:
        return int(self.timed.model.R.shape[1])

    def without(self, session: Session, fit: LocalObservations) -> TableFit:
        reading, scaled, _ = self.plan.prepared(fit, self.reading.size)
        timed = self.timed
        path = (timed.rows.L, timed.rows.covariance) if timed.layout.mode else None
        how = self.plan.mode, timed.layout.clock, SWEEPS, None, path
        return TableFit(reading, self.state, timed=refined(scaled, timed.model, *how))

    def finished(self, session: Session) -> TableFit:
        session.outcome.become(self.outcome)
        return TableFit(self.reading, self.state, timed=self.timed)
