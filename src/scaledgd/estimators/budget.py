"""The work of a fit: what is left of it, what was done, and how to go on after a crash."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from .. import files
from ..problems import Observed
from ..solve import Record, Result, State, Stop, StoppingRule, solve
from .packing import columns, pack, records, unpack

log = logging.getLogger("scaledgd")
log.addHandler(logging.NullHandler())

EVERY = 2.0
"""Seconds between checkpoints."""
SHARE = 0.05
"""Of the time may go into writing them."""

Watch = Callable[[str, State, list[Record], "Budget"], bool]


class Journal:
    """The steps of a fit that are done, so that a fit begun again can pass over them.

    A fit is deterministic but for the results of its steps. Each is remembered under its
    place in the order of calls; begun again, the fit runs through the same calls, is handed
    what was remembered, and goes on where that ends. Steps may have steps within:
    those are forgotten when the step that they belong to is done or has noted how far it is.

    Parameters
    ----------
    path : path, optional
        Of the checkpoint; without it nothing is kept.
    about : dict
        What the fit is of. A checkpoint of anything else is refused.
    """

    def __init__(self, path: Any = None, about: dict[str, Any] | None = None) -> None:
        self.path = None if path is None else os.path.expanduser(os.fspath(path))
        self.about = about or {}
        self.entries: dict[str, tuple[str, bool, Any]] = {}
        self._at: list[int] = [0]
        self._next, self._dirty = time.perf_counter() + EVERY, False
        if self.path is not None:
            files.clear(self.path)
            folder = os.path.dirname(os.path.realpath(self.path))
            if not os.access(folder, os.W_OK):
                raise OSError(f"checkpoint {self.path}: cannot write to the folder {folder}")
            if os.path.exists(self.path):
                self._read()

    def _read(self) -> None:
        found = files.read(self.path, "checkpoint")  # type: ignore[arg-type]
        try:
            about, entries = unpack(found["about"]), found["entries"]
            differing = [k for k in {**self.about, **about} if self.about.get(k) != about.get(k)]
            differing = [k for k in differing if k != "seed"]
            self.entries = {
                k: (str(name), bool(done), unpack(value))
                for k, (name, done, value) in entries.items()
            }
        except Exception as error:
            raise files.FileError(f"the checkpoint {self.path} {error}") from None
        if differing:
            raise ValueError(
                f"the checkpoint {self.path} is of another fit ({', '.join(sorted(differing))} "
                "differ); delete it to begin anew, or give another path"
            )
        self.about = about
        log.info("going on from the checkpoint %s", self.path)

    def remember(
        self,
        name: str,
        work: Callable[[Any, Callable[[Any], None]], Any],
        shrink: Callable[[Any], Any] = lambda value: value,
        restore: Callable[[Any], Any] = lambda value: value,
    ) -> Any:
        """Do a step, or what is left of it.

        Parameters
        ----------
        name : str
            To tell whether what was kept is of the same step.
        work : callable
            ``work(last, note)`` returns the value of the step. `last` is what was noted last,
            None at first; ``note(value)`` says how far it is.
        shrink, restore : callable
            To and from what can be packed.
        """
        if self.path is None:
            return work(None, lambda value: None)
        key = ".".join(map(str, self._at))
        known, done, kept = self.entries.get(key, (name, False, None))
        last = None
        if kept is not None:
            try:
                if known != name:
                    raise ValueError(f"{name!r} was expected where it has {known!r}")
                last = restore(kept)
            except Exception as error:
                raise files.FileError(
                    f"the checkpoint {self.path} is not of this fit: {error}; delete it"
                ) from None
        if done:
            self._at[-1] += 1
            return last
        self._at.append(0)

        def note(value: Any, done: bool = False) -> None:
            self.entries = {k: v for k, v in self.entries.items() if not k.startswith(key + ".")}
            self.entries[key] = name, done, shrink(value)
            self._at[-1], self._dirty = 0, True
            if time.perf_counter() >= self._next:
                self.write()

        value = work(last, note)
        self._at.pop()
        note(value, True)
        self._at[-1] = int(key.rpartition(".")[2]) + 1
        return value

    def write(self) -> None:
        """Write the checkpoint, whole or not at all."""
        if self.path is None or not self._dirty:
            return
        began = time.perf_counter()
        entries = {k: [name, done, pack(v)] for k, (name, done, v) in self.entries.items()}
        try:
            _write(self.path, {"about": pack(self.about), "entries": entries}, "checkpoint")
        except OSError as error:
            # the fit is worth more than its checkpoint, and what was written is still there
            warnings.warn(f"the checkpoint {self.path} cannot be written: {error}", stacklevel=2)
        took = time.perf_counter() - began
        self._next, self._dirty = time.perf_counter() + max(EVERY, took / SHARE), False
        log.debug("wrote the checkpoint %s in %.3f s", self.path, took)

    def close(self) -> None:
        """Write, and keep no more: the rest of a fit that is cut short is not worth keeping."""
        self.write()
        self.path = None

    def finish(self) -> None:
        """The fit is over: nothing is left to go on from."""
        if self.path is not None:
            files.clear(self.path)
            if os.path.exists(self.path):
                os.unlink(self.path)


def _write(path: str, tree: Any, kind: str) -> None:
    from .. import __version__

    files.write(path, tree, kind, __version__)


def light(state: State) -> dict[str, Any]:
    """What of a state must be kept to go on from it."""
    return {"t": state.t, "factors": state.factors, "memory": dict(state.memory)}


def revived(kept: dict[str, Any], problem: Observed) -> State:
    if tuple(kept["factors"].shape) != tuple(problem.shape):
        raise ValueError(f"it has factors of shape {kept['factors'].shape}, not {problem.shape}")
    return problem.linearize(kept["factors"], kept["t"], kept["memory"])


def left(state: State) -> float:
    """The share of the data that a state does not explain."""
    return float(state.value) / max(float(state.problem.value_at_zero), 1e-300)


@dataclass
class Desk:
    """What all parts of a fit share."""

    journal: Journal = field(default_factory=Journal)
    watch: Watch | None = None
    latest: State | None = None
    """The last whole iterate."""
    about: dict[str, Any] = field(default_factory=dict)
    """What that is an iterate of: how its factors are to be read."""
    best: tuple[State, dict[str, Any]] | None = None
    """While several ways are tried: the best so far, and how it is to be read."""
    history: list[Record] = field(default_factory=list)
    """Of the run that is going on."""
    stopped: bool = False
    """Whether somebody asked for the end."""

    def turn(self, **about: Any) -> None:
        """Iterates to come are to be read in another way."""
        self.latest = None
        self.about.update(about)

    def salvage(self) -> tuple[State | None, dict[str, Any]]:
        """The iterate to end with, and how it is to be read: the one that explains more."""
        latest, best = self.latest, self.best
        if best is None or (latest is not None and left(latest) <= left(best[0])):
            return latest, self.about
        return best[0], {**self.about, **best[1]}


@dataclass
class Budget:
    """How much work is left, and what was done."""

    tol: float = 1e-9
    max_iter: int = 500
    max_time: float | None = None
    history: list[Record] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    converged: bool = True
    status: str = "nothing had to be fitted"
    desk: Desk = field(default_factory=Desk)

    def run(
        self,
        problem: Observed,
        init: Any,
        method: Any,
        stop: list[StoppingRule],
        max_iter: int | None = None,
        stage: str = "",
    ) -> Result:
        """`solve`, watched, within the limits, and remembered."""
        most = self.max_iter if max_iter is None else min(max_iter, self.max_iter)
        rules = [*stop, self._in_time, _at_most(most)]
        watched = replace(self, max_iter=most)._watched

        def work(last: Result | None, note: Callable[[Any], None]) -> Result:
            past = [] if last is None else last.history[:-1]
            spent = past[-1]["seconds"] if past else 0.0
            whole: list[Record] = list(past)
            before: list[State] = []

            def watching(state: State, history: list[Record]) -> Stop | None:
                # the state before did not end the run: from there it can be gone on
                if before:
                    note(Result(before.pop(), "", False, list(whole)))
                before.append(state)
                whole.append({**history[-1], "seconds": spent + history[-1]["seconds"]})
                return watched(stage, state, whole)

            def within(rule: StoppingRule) -> StoppingRule:
                return lambda state, history: rule(state, whole)

            start = init if last is None else last.state
            all_rules = [watching, *map(within, rules)]
            result = solve(problem, start, method, max_iter=most, stop=all_rules)
            return replace(result, history=whole)

        def shrink(result: Result) -> Any:
            ends = {"status": result.status, "converged": result.converged}
            return {**light(result.state), **ends, "history": columns(result.history)}

        def restore(kept: Any) -> Result:
            state = revived(kept, problem)
            return Result(state, kept["status"], kept["converged"], records(kept["history"]))

        result: Result = self.desk.journal.remember(stage, work, shrink, restore)
        self.add(result.history, stage)
        self.converged, self.status = result.converged, result.status
        return result

    def add(self, records: list[Record], stage: str) -> None:
        """Go on with the history."""
        done = len(self.history)
        before = self.history[-1]["seconds"] if done else 0.0
        self.history += [
            {**record, "t": done + k, "seconds": before + record["seconds"], "stage": stage}
            for k, record in enumerate(records[1 if done else 0 :])
        ]
        self.desk.history = []

    def remember(
        self,
        name: str,
        work: Callable[[Any, Callable[[Any], None]], Any],
        shrink: Callable[[Any], Any] = lambda value: value,
        restore: Callable[[Any], Any] = lambda value: value,
    ) -> Any:
        """A part of a fit, as `Journal.remember` says, with what it does to this budget."""
        since = len(self.history)

        def with_history(value: Any) -> Any:
            ends = {"converged": self.converged, "status": self.status}
            return {**ends, "history": columns(self.history[since:]), "value": shrink(value)}

        def redone(kept: Any) -> Any:
            self.history = [*self.history[:since], *records(kept["history"])]
            self.converged, self.status = kept["converged"], kept["status"]
            return restore(kept["value"])

        return self.desk.journal.remember(name, work, with_history, redone)

    def step(
        self,
        name: str,
        problem: Observed,
        work: Callable[[State | None, Callable[[State], None]], State],
    ) -> State:
        """A part of a fit that ends in a state; what led there need not be remembered."""
        state: State = self.remember(name, work, light, lambda kept: revived(kept, problem))
        return state

    def _watched(self, stage: str, state: State, history: list[Record]) -> Stop | None:
        desk = self.desk
        desk.latest, desk.history = state, history
        record = history[-1]
        log.debug("%s: iteration %d, loss %.6g", stage, record["t"], record["value"])
        if desk.watch is not None and desk.watch(stage, state, history, self):
            desk.stopped = True
        if desk.stopped:
            return Stop("stopped by a callback", converged=False)
        return None

    def _in_time(self, state: State, history: list[Record]) -> Stop | None:
        if self.out_of_time and not self.desk.stopped:
            return Stop(f"the time limit of {self.max_time:g} s was reached", converged=False)
        return None

    def apart(self, tol: float = 1e-9, max_iter: int = 500) -> Budget:
        """A budget of its own, with the same end."""
        return replace(self, tol=tol, max_iter=max_iter, history=[])

    @property
    def out_of_time(self) -> bool:
        """Whether the fit has to come to its end, by the clock or because somebody asked."""
        late = self.max_time is not None and time.perf_counter() - self.began > self.max_time
        if late or self.desk.stopped:
            self.desk.journal.close()
        return late or self.desk.stopped


def _at_most(updates: int) -> StoppingRule:
    def rule(state: State, history: list[Record]) -> Stop | None:
        if len(history) > updates:
            return Stop(
                f"made max_iter={updates} updates before a stopping rule was met", converged=False
            )
        return None

    return rule
