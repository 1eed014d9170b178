"""The options of the command line, and how the rows of a section are made."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import real_data

Array = Any
Row = dict[str, Any]
"""A line of the table: case, measure, value, and perhaps who, CPU seconds per fit and a note."""
Fill = Callable[[Any], Any]
"""Takes an instance and returns an estimate."""


class SkippedError(Exception):
    """A section cannot run here; the message says why."""


@dataclass(frozen=True)
class Peer:
    """Another way to fill an instance, and the package that it needs."""

    name: str
    fill: Fill
    package: str = "numpy"

    @property
    def installed(self) -> bool:
        """Whether the package is installed."""
        return importlib.util.find_spec(self.package) is not None


@dataclass(frozen=True)
class Ask:
    """What to run."""

    data: Path | None = None
    """Folder of the real data."""
    peers: bool = False
    """Whether to run other libraries, too."""
    quick: bool = False
    """Whether to run fewer repetitions."""
    only: str = ""
    """Run the rows with this in ``case, who``; numbers ``from:to`` for ``determined``."""
    baseline: Path | None = None
    """Recorded errors to compare with, for ``determined``."""
    record: Path | None = None
    """File to which errors are appended, one JSON object a line, for ``determined``."""

    def seeds(self, usual: int) -> range:
        """Return the seeds of the repetitions."""
        return range(1 if self.quick else usual)

    def load(self, name: str, file: str = "*") -> Any:
        """Load a real data set."""
        if self.data is None:
            raise SkippedError("it needs the real data: give --data FOLDER or set SCALEDGD_DATA")
        try:
            return real_data.load(self.data, name, file)
        except FileNotFoundError as missing:
            raise SkippedError(str(missing)) from None

    def compared(
        self,
        case: str,
        instances: Callable[[], Sequence[Any]],
        ours: dict[str, Fill],
        peers: Sequence[Peer],
        measures: dict[str, Callable[[Any, Any], float]],
        over: Callable[[Sequence[float]], Any] = np.mean,
    ) -> Iterator[Row]:
        """Fill the instances of a case in several ways, and yield a row per way and measure.

        Parameters
        ----------
        case : str
        instances : function
            Returns the instances. It is called only if a row of the case was requested.
        ours : dict of functions
            Estimators by name.
        peers : sequence of Peer
            Run only if requested and installed.
        measures : dict of functions
            Take an instance and an estimate, and return a number.
        over : function
            Turns the numbers of all instances into one.

        Yields
        ------
        row : dict
            ``cpu`` is the mean of the CPU seconds of a fit.
        """
        ways = {**ours, **{p.name: p.fill for p in peers if self.peers and p.installed}}
        ways = {who: fill for who, fill in ways.items() if self.only in f"{case}, {who}"}
        if not ways:
            return
        given = instances()
        for who, fill in ways.items():
            try:
                fits = [timed(lambda one=one, fill=fill: fill(one)) for one in given]
            except Exception as error:
                note = f"{type(error).__name__}: {error}"
                yield Row(case=case, who=who, measure="failed", value=float("nan"), note=note)
                continue
            cpu = float(np.mean([seconds for _, seconds in fits]))
            for measure, score in measures.items():
                pairs = zip(given, fits, strict=True)
                value = float(over([score(one, estimate) for one, (estimate, _) in pairs]))
                yield Row(case=case, who=who, measure=measure, value=value, cpu=cpu)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, without its warnings, and the CPU seconds it took."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.process_time()
        value = call()
        return value, time.process_time() - began


@dataclass(frozen=True)
class Hidden:
    """A table or tensor, and which of its cells are hidden."""

    truth: Array
    hidden: Array
    seed: int = 0

    @property
    def holes(self) -> Array:
        """The truth, NaN where it is hidden."""
        return np.where(self.hidden, np.nan, self.truth)

    def rmse(self, estimate: Array) -> float:
        """Return the root-mean-square error on the hidden cells."""
        return float(np.sqrt(np.mean((np.asarray(estimate) - self.truth)[self.hidden] ** 2)))

    def relative(self, estimate: Array) -> float:
        """Return the error on the hidden cells, relative to them."""
        off = np.linalg.norm((np.asarray(estimate) - self.truth)[self.hidden])
        return float(off / np.linalg.norm(self.truth[self.hidden]))


RMSE = {"RMSE, hidden": Hidden.rmse}
RELATIVE = {"relative error, hidden": Hidden.relative}
