"""The limits of a fit, what it has done so far, and its latest iterate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..problems import Observed
from ..solve import Result, solve
from ..state import State
from ..stopping import Record, Stop, StoppingRule
from .journal import Journal, log
from .packing import columns, records

Watch = Callable[["Session", str, State, list[Record]], bool]


def light(state: State) -> dict[str, Any]:
    """Return the part of a state that must be stored to resume from it."""
    kept = {"t": state.t, "factors": state.factors, "memory": state.memory}
    return {**kept, "known": state.known}  # a recomputed loss would be rounded differently


def revived(kept: dict[str, Any], problem: Observed, *_: Any) -> State:
    """Return the state that `light` was given."""
    if tuple(kept["factors"].shape) != tuple(problem.shape):
        raise ValueError(f"it has factors of shape {kept['factors'].shape}, not {problem.shape}")
    state = problem.linearize(kept["factors"], kept["t"], kept["memory"])
    return replace(state, known=kept.get("known"))


def unexplained(state: State) -> float:
    """Return the share of the data that a state does not explain."""
    return float(state.value) / max(float(state.problem.value_at_zero), 1e-300)


@dataclass
class Outcome:
    """How a fit went.

    Attributes
    ----------
    history : list of records
        Those of all stages, with consecutive numbers and times.
    converged : bool
    status : str
        Why the last stage ended.
    """

    history: list[Record] = field(default_factory=list)
    converged: bool = True
    status: str = "nothing had to be fitted"

    def add(self, result: Result, stage: str) -> None:
        """Append the history of a stage, and adopt its status."""
        self.extend(result.history, stage)
        self.converged, self.status = result.converged, result.status

    def extend(self, more: list[Record], stage: str) -> None:
        done = len(self.history)
        before = self.history[-1]["seconds"] if done else 0.0
        self.history += [
            {**record, "t": done + k, "seconds": before + record["seconds"], "stage": stage}
            for k, record in enumerate(more[1 if done else 0 :])
        ]

    def copy(self) -> Outcome:
        return replace(self, history=list(self.history))

    def become(self, other: Outcome) -> None:
        """Return to another outcome, as if later stages had not been tried."""
        self.history = list(other.history)
        self.converged, self.status = other.converged, other.status

    def packed(self, since: int) -> dict[str, Any]:
        """Return the outcome since a position in the history, for a checkpoint."""
        ends = {"converged": self.converged, "status": self.status}
        return {**ends, "history": columns(self.history[since:])}

    def restore(self, kept: dict[str, Any], since: int) -> None:
        """Restore what `packed` returned."""
        self.history = [*self.history[:since], *records(kept["history"])]
        self.converged, self.status = kept["converged"], kept["status"]


@dataclass(frozen=True, eq=False)
class Sighting:
    """An iterate, and the reading that says how its factors map to the data."""

    state: State
    reading: Any


@dataclass
class Shared:
    """What all parts of one fit share.

    Attributes
    ----------
    watch : callable, optional
        Called at every iterate; the fit ends when it returns True.
    latest : Sighting, optional
        The last complete iterate that can be read.
    best : Sighting, optional
        While several candidates are tried, the best so far.
    history : list of records
        The stage that is running.
    stopped : bool
        Whether a callback has stopped the fit.
    parts : list, optional
        Fits like the final one to most of the entries, in the units of the data; None until
        the entries that they leave out have judged the fit.
    """

    watch: Watch | None = None
    latest: Sighting | None = None
    best: Sighting | None = None
    history: list[Record] = field(default_factory=list)
    stopped: bool = False
    parts: list[Any] | None = None

    def rest(self) -> None:
        """Release iterates, whose residuals are as large as the data, once a fit is found."""
        self.latest = self.best = None

    def salvage(self) -> Sighting | None:
        """Return the iterate to end with: the one that explains more of the data."""
        latest, best = self.latest, self.best
        if latest is None or best is None:
            return latest or best
        return latest if unexplained(latest.state) <= unexplained(best.state) else best


@dataclass(frozen=True, eq=False)
class Session:
    """The limits of a fit, its journal, and the record of its results.

    Parameters
    ----------
    tol : float
    max_iter : int
        Iterations per stage.
    deadline : float
        On the clock of `time.perf_counter`.
    max_time : float, optional
        The time limit that led to the deadline, for messages.
    journal : Journal
    outcome : Outcome
    shared : Shared
    reading : object, optional
        How the factors of the iterates to come map to the data. Iterates without a reading
        are not reported, because they cannot be turned into a model.
    readable : bool
        Whether candidates are fitted to all entries; iterates of a part are no models of the whole.
    """

    tol: float = 1e-9
    max_iter: int = 500
    deadline: float = math.inf
    max_time: float | None = None
    journal: Journal = field(default_factory=Journal)
    outcome: Outcome = field(default_factory=Outcome)
    shared: Shared = field(default_factory=Shared)
    reading: Any = None
    readable: bool = True

    @classmethod
    def begin(cls, tol: float, max_iter: int, max_time: float | None, journal: Journal) -> Session:
        """Start the clock of a fit."""
        deadline = math.inf if max_time is None else time.perf_counter() + max_time
        session = cls(tol, max_iter, deadline, max_time, journal)
        journal.over = lambda: session.out_of_time
        return session

    def with_reading(self, reading: Any) -> Session:
        """Return a session whose iterates are reported together with a reading."""
        return replace(self, reading=reading)

    def apart(self, tol: float = 1e-9, max_iter: int = 500) -> Session:
        """Return a session with its own limits and history, and the same deadline."""
        return replace(self, tol=tol, max_iter=max_iter, outcome=Outcome())

    def aside(self, reading: Any) -> Session:
        """Return a session with the same limits, whose history is its own."""
        return replace(self, outcome=Outcome(), reading=reading if self.readable else None)

    @property
    def out_of_time(self) -> bool:
        """Whether the fit has to end, because of the clock or a callback."""
        return self.shared.stopped or time.perf_counter() > self.deadline

    def best_so_far(self, state: State) -> None:
        """Note the state that an interrupted fit should return."""
        if self.reading is not None:
            self.shared.best = Sighting(state, self.reading)

    def ended(self) -> None:
        """Note that time ran out after the last stage, so that the fit was not judged."""
        outcome = self.outcome
        if outcome.converged and time.perf_counter() > self.deadline:
            left = "before the fit was compared with simpler ones"
            outcome.status = f"the time limit of {self.max_time:g} s was reached {left}"
            outcome.converged = False

    def interrupted(self) -> None:
        """Note that Ctrl-C ended the fit, and add the history of the running stage."""
        outcome = self.outcome
        outcome.extend(self.shared.history, "interrupted")
        self.shared.history = []
        at = max(1, len(outcome.history) - 1)
        outcome.converged, outcome.status = False, f"interrupted at iteration {at}"

    def solve(
        self,
        problem: Observed,
        init: Any,
        method: Any,
        rules: list[StoppingRule],
        max_iter: int | None = None,
        stage: str = "",
    ) -> State:
        """Run `scaledgd.solve` within the limits, with callbacks, as a step of the journal.

        Parameters
        ----------
        problem, init, method
            As for `scaledgd.solve`.
        rules : list of stopping rules
        max_iter : int, optional
            A lower limit than that of the session.
        stage : str
            The name of the stage in the history.

        Returns
        -------
        state : State
            The last iterate.
        """
        most = self.max_iter if max_iter is None else min(max_iter, self.max_iter)
        step = self.journal.step(stage)
        last: Result | None = step.restored(lambda kept: _result(kept, problem))
        if last is not None and step.done:
            self.outcome.add(last, stage)
            return last.state
        whole = [] if last is None else last.history[:-1]
        spent = whole[-1]["seconds"] if whole else 0.0
        before: list[State] = []
        limited = replace(self, max_iter=most)

        def watching(state: State, history: list[Record]) -> Stop | None:
            # the previous iterate did not end the run, so the run can resume there
            if before and step.recording:
                step.note(_shrunk(Result(before.pop(), "", False, whole)))
            before[:] = [state]
            whole.append({**history[-1], "seconds": spent + history[-1]["seconds"]})
            return limited.watched(stage, state, whole)

        def within(rule: StoppingRule) -> StoppingRule:
            return lambda state, history: rule(state, whole)

        ends = _at_most(most, most < self.max_iter)
        all_rules = [watching, *map(within, [*rules, self._in_time, ends])]
        start = init if last is None else last.state
        if isinstance(start, State):
            start.view.forget()  # the run forms its own residual
        found = replace(solve(problem, start, method, max_iter=most, stop=all_rules), history=whole)
        step.finish(_shrunk(found) if step.recording else None)
        self.outcome.add(found, stage)
        self.shared.history = []
        found.state.view.forget()
        return found.state

    def watched(self, stage: str, state: State, history: list[Record]) -> Stop | None:
        """Report an iterate; stop if a callback asks for it."""
        shared, record = self.shared, history[-1]
        if self.reading is not None:
            shared.latest = Sighting(state, self.reading)
        shared.history = history
        log.debug("%s: iteration %d, loss %.6g", stage, record["t"], record["value"])
        if shared.watch is not None and shared.watch(self, stage, state, history):
            shared.stopped = True
        if shared.stopped:
            return Stop("stopped by a callback", converged=False)
        return None

    def _in_time(self, state: State, history: list[Record]) -> Stop | None:
        if self.out_of_time and not self.shared.stopped:
            return Stop(f"the time limit of {self.max_time:g} s was reached", converged=False)
        return None


def _shrunk(result: Result) -> dict[str, Any]:
    ends = {"status": result.status, "converged": result.converged}
    return {**light(result.state), **ends, "history": columns(result.history)}


def _result(kept: Any, problem: Observed) -> Result:
    state = revived(kept, problem)
    return Result(state, kept["status"], kept["converged"], records(kept["history"]))


def _at_most(updates: int, ours: bool) -> StoppingRule:
    """Stop after so many updates, an internal limit or the given one."""
    made = f"{updates} updates, the most of this stage," if ours else f"max_iter={updates} updates"

    def rule(state: State, history: list[Record]) -> Stop | None:
        if len(history) > updates:
            return Stop(f"made {made} before a stopping rule was met", converged=False)
        return None

    return rule
