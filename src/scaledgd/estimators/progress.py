"""Progress of a fit, shown at a terminal."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from ..state import State
from ..stopping import Record
from .session import Session

QUIET = 5.0
"""Seconds between lines without a terminal, and before the first one."""
LIVELY = 1.0
"""Seconds between lines on a terminal."""


def rate(history: list[Record], over: int = 5) -> float:
    """Return the factor by which an iteration shrinks the residual, over the last few."""
    k = min(over, len(history) - 1)
    last = history[-1]["value"]
    # the loss may have vanished before a threshold fell
    if k < 1 or last <= 0 or history[-1 - k]["value"] <= 0:
        return math.nan
    return float((last / history[-1 - k]["value"]) ** (0.5 / k))


def iterations_left(history: list[Record], zero: float, session: Session) -> float:
    """Return how many iterations are left at this rate, at most."""
    most = session.max_iter - (len(history) - 1)
    speed, value = rate(history), history[-1]["value"]
    if not 0 < speed < 0.999 or zero <= 0:
        return most
    least = (0.1 * session.tol) ** 2 * zero
    return min(most, max(0.0, 0.5 * math.log(max(least / value, 1e-300)) / math.log(speed)))


def seconds_left(history: list[Record], zero: float, session: Session) -> float:
    """Return how many seconds they take, at most."""
    spent, done = history[-1]["seconds"] - history[0]["seconds"], len(history) - 1
    left = iterations_left(history, zero, session) * spent / done if done else math.inf
    return max(0.0, min(left, session.deadline - time.perf_counter()))


class Lines:
    """Prints a plain line from time to time."""

    def __init__(self, name: str, every: float = LIVELY, wait: float = 0.0) -> None:
        self.name, self.every, self._next = name, every, time.perf_counter() + wait

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def show(self, stage: str, text: str, share: float) -> None:
        if time.perf_counter() >= self._next:
            self._next = time.perf_counter() + self.every
            print(f"[{self.name}] {stage}: {text}", file=sys.stderr, flush=True)


class Bar:
    """Shows a progress bar with rich."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        stage, text = TextColumn("{task.description}"), TextColumn("{task.fields[text]}")
        where = Console(file=sys.stderr)
        bar, spent = BarColumn(bar_width=12), TimeElapsedColumn()
        self.bar: Any = Progress(stage, bar, text, spent, console=where)
        self.name = name

    def __enter__(self) -> Bar:
        self.bar.start()
        self.task = self.bar.add_task(self.name, total=1.0, text="")
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None:
            self.bar.update(self.task, completed=1.0, description=self.name, text="done")
        self.bar.stop()

    def show(self, stage: str, text: str, share: float) -> None:
        self.bar.update(self.task, completed=share, description=stage, text=text)


class Silence(Lines):
    """No output: verbose=0, or verbose=1 without a terminal."""

    def show(self, stage: str, text: str, share: float) -> None:
        pass


def display(name: str, verbose: int) -> Any:
    """Return the object that shows progress.

    A bar on a terminal; otherwise nothing, or with verbose=2 a line every few seconds.
    """
    try:
        seen = bool(verbose) and sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it was closed
        return Silence(name)
    if not seen:
        return Lines(name, QUIET, QUIET) if verbose >= 2 else Silence(name)
    try:
        return Bar(name)
    except ImportError:
        return Lines(name)


def report(shown: Any, stage: str, state: State, history: list[Record], session: Session) -> None:
    """Show loss, rate and time left of a running stage."""
    if isinstance(shown, Silence):
        return
    zero = float(state.problem.value_at_zero)
    loss = history[-1]["value"] / zero if zero > 0 else 0.0
    left = iterations_left(history, zero, session)
    share = (len(history) - 1) / max(1.0, len(history) - 1 + left)
    speed, seconds = rate(history), seconds_left(history, zero, session)
    text = f"iteration {len(history) - 1}, loss {loss:.1e}"
    text += f", rate {speed:.2f}" if speed == speed else ""
    text += f", at most {seconds:.0f} s left in this stage" if math.isfinite(seconds) else ""
    shown.show(stage, text, share)
