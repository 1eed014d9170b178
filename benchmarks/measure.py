"""Compare two libraries: to the same accuracy, alternately, several times."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .contestants import Contestant, threads
from .problems import Problem

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
"""Clocks; CPU time is for a machine with other users."""
PATIENCE = 30.0
"""If a run takes more seconds than this, larger efforts are not tried."""


class Results:
    """Measurements in a JSON file, written after each one, so that a run can resume."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def __contains__(self, key: str) -> bool:
        return key in self.records

    def put(self, key: str, record: Any) -> None:
        """Add a measurement and write the file."""
        self.records[key] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.records, indent=1, ensure_ascii=False, sort_keys=True))
        os.replace(fresh, self.path)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress all output and warnings, even from libraries written in C."""
    import sys

    sys.stdout.flush()
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)


def timed(contestant: Contestant, problem: Problem, effort: int) -> tuple[float, float]:
    """Return the seconds of one run and its final error."""
    clock = CLOCKS["cpu" if threads() == 1 else "wall"]
    with quiet():
        begun = clock()
        estimate = contestant.run(problem, effort)
        seconds = clock() - begun
        return seconds, problem.error(estimate)


def least_effort(contestant: Contestant, problem: Problem) -> tuple[int | None, float]:
    """Return the least effort that reaches the target, or None, and the best error seen."""
    low, high = contestant.efforts
    best, effort, reached = float("inf"), low, None
    while True:  # increase until it is reached, then bisect
        seconds, error = timed(contestant, problem, effort)
        best = min(best, error)
        if error <= problem.target:
            reached = effort
            break
        if effort == high or seconds > PATIENCE:
            return None, best
        low, effort = effort + 1, min(high, max(effort + 1, effort * 3 // 2))
    while low < 0.96 * reached:
        middle = (low + reached) // 2
        if timed(contestant, problem, middle)[1] <= problem.target:
            reached = middle
        else:
            low = middle + 1
    return reached, best


def contest(
    ours: Contestant,
    peer: Contestant,
    problem: Problem,
    repeats: int,
    ours_effort: int,
    tick: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:
    """Run both alternately, several times, and check the accuracy of every run."""
    tick(f"{peer.name}: finding the least effort")
    effort, best = least_effort(peer, problem)
    record: dict[str, Any] = {"problem": problem.name, "peer": peer.name, "target": problem.target}
    if effort is None:
        return {**record, "reached": False, "best": best, "effort": peer.efforts[1]}
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    errors: dict[str, list[float]] = {"ours": [], "theirs": []}
    for k in range(repeats):
        tick(f"{peer.name}: {k + 1} of {repeats}")
        for who, contestant, e in (("ours", ours, ours_effort), ("theirs", peer, effort)):
            seconds, error = timed(contestant, problem, e)
            times[who].append(seconds)
            errors[who].append(error)
            if not error <= problem.target and problem.kind != "ratings":
                raise RuntimeError(f"{contestant.name} ended at {error:.2g} on {problem.name}")
    medians = {who: statistics.median(found) for who, found in times.items()}
    return {
        **record,
        "reached": True,
        "effort": effort,
        "times": times,
        "errors": errors,
        "seconds": medians,
        "ratio": medians["theirs"] / medians["ours"],
    }
