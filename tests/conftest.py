"""Shared pieces: signals and clocks, array libraries, reference instances, small problems."""

import importlib.util
import os
import signal
import time
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:
    # As many workers as cores: more threads than that wait for each other. The library's own
    # threads stay, because tests are about them. Set before NumPy is imported.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("SCALEDGD_NUM_THREADS", "2")

# Without a GPU the kernels for one run in Triton's interpreter. Set before Triton is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

import json
import sys

import numpy as np
import pytest

import scaledgd as sg

REFERENCE = Path(__file__).parent / "reference"
TOGETHER = (
    "test_reproduce.py",
    "test_docs.py",
    "test_report.py",
    "test_commands.py",
    "test_dask.py",
    "test_time.py",
)
"""Files that stay in one worker: their tests share a site, a browser, a cluster or long fits."""

PURE = (
    "test_cli_people.py",
    "test_constants.py",
    "test_contract.py",
    "test_files.py",
    "test_gradients.py",
    "test_labels.py",
    "test_loop.py",
    "test_metrics.py",
    "test_operators.py",
    "test_plausible.py",
    "test_reference.py",
    "test_refusals.py",
    "test_starts.py",
    "test_steps.py",
    "test_trim.py",
)
"""Files that say in a short time whether the library works without its compiled kernels."""

collect_ignore = []
if not all(map(importlib.util.find_spec, ("pandas", "pyarrow", "typer"))):
    # they need scaledgd[cli]
    collect_ignore += [
        "test_cli.py",
        "test_cli_people.py",
        "test_cli_workbooks.py",
        "test_commands.py",
    ]


def pytest_collection_modifyitems(items):
    """Mark the files of `PURE`."""
    for item in items:
        if item.path.name in PURE:
            item.add_marker(pytest.mark.pure)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hand out test by test, but some files as a whole, and those first."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return file if Path(file).name in TOGETHER else nodeid

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def browser():
    """One browser for all pages; see browser.py."""
    from browser import started

    with started() as found:
        yield found


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup():
    """Fits without a seed begin with the same draw, whatever ran before, and in every run."""
    np.random.seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call():
    """The same in tests."""
    np.random.seed(0)


@pytest.fixture(autouse=True)
def _control_c():
    """Ctrl-C raises KeyboardInterrupt, also where SIGINT is ignored at the start.

    A shell without job control starts background jobs that way. A process that a test starts
    begins with the default action, because a handler does not survive `exec`.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Clock:
    """Stands in for `time.perf_counter` and moves only when a test says so.

    Attributes
    ----------
    tick : float
        Seconds that pass whenever somebody reads the clock.
    """

    def __init__(self):
        self.read = time.perf_counter
        self.tick = 0.0
        self.restart()

    def restart(self):
        self.began = self.now = self.read()

    def skip(self, seconds):
        self.now += seconds

    @property
    def passed(self):
        return self.now - self.began

    def __call__(self):
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The clock of the library for one test; call `restart` before each fit."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


LIMITS = {
    "table": ("estimators.searching.LARGE", "estimators.local_observations.ORDERED"),
    "tensor": ("estimators.tensor_search.LARGE", "estimators.tensor_search.PART"),
    "joint": ("estimators.joint.WORK",),
    "judged_tensor": ("estimators.tensor_vouching.LARGE",),
    "judged_again": ("estimators.robust_search.JUDGED",),
    "exact_information": ("estimators.information.LARGEST",),
    "single_precision": ("estimators.local_observations.MANY",),
    "checkpoint_seconds": ("estimators.journal.EVERY",),
    "checkpoint_share": ("estimators.journal.SHARE",),
    "quiet_seconds": ("estimators.progress.QUIET",),
    "shard": ("distributed.fitting.PART",),
    "gathered": ("distributed.fitting.GATHER",),
    "cells": ("distributed.fitting.CELLS",),
    "streamed": ("distributed.streaming.PART",),
    "sorted_on_device": ("distributed.streaming.SORTING",),
}
"""Sizes and times from which the library does something else, and where it keeps them."""


@pytest.fixture
def limits(monkeypatch):
    """Set limits, so that what happens to large data and long fits is seen on small ones.

    No test but those of a unit knows where the library keeps them.
    """

    def limits(**given):
        for name, limit in given.items():
            for place in LIMITS[name]:
                monkeypatch.setattr(f"scaledgd.{place}", limit)

    return limits


def reference(name):
    """A fixed small instance with whole error trajectories."""
    with np.load(REFERENCE / f"{name}.npz", allow_pickle=False) as data:
        return {k: data[k] for k in data.files}


def library(name):
    """An array library by name, or a skip with a reason."""
    if name == "numpy":
        return np
    return pytest.importorskip(name, reason=f"{name} is not installed")


LIBRARIES = ("numpy", "torch", "array_api_strict")


def draw(rng, *shape, dtype=np.float64):
    """Standard normal numbers of a dtype."""
    x = rng.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def invertible(r, cond, rng, dtype=np.float64):
    """An invertible r × r matrix with this condition number."""
    U, V = (np.linalg.qr(draw(rng, r, r, dtype=dtype))[0] for _ in range(2))
    return U * np.geomspace(cond**0.5, cond**-0.5, r) @ V


def slopes(state, factors, rng, dtype):
    """The slope of an objective along a random direction, twice, and how large it could be.

    By differences, with a formula that is exact for cubic terms, and by the gradient.
    """
    d = tuple(draw(rng, *B.shape, dtype=dtype) for B in factors.blocks)
    h = 1e-6

    def along(s):
        moved = tuple(B + s * D for B, D in zip(factors.blocks, d, strict=True))
        return float(state.objective(factors.with_blocks(moved)))

    found = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
    pairs = list(zip(state.gradient, d, strict=True))
    expected = sum(np.real(np.vdot(g, D)) for g, D in pairs)
    return found, expected, sum(np.linalg.norm(g) * np.linalg.norm(D) for g, D in pairs)


def error_to(truth):
    return lambda factors: sg.metrics.relative_error(factors, truth)


def trajectory(problem, init, method, truth, max_iter):
    """The relative errors of the iterates 0 .. max_iter."""
    result = sg.solve(problem, init, method, max_iter=max_iter, metrics={"error": error_to(truth)})
    return np.asarray([record["error"] for record in result.history])


def first_below(errors, level):
    """The first iteration at or below a level; infinity if there is none."""
    below = np.flatnonzero(np.asarray(errors) <= level)
    return below[0] if below.size else np.inf


def full_iterates(problem, factors, method, n):
    """X_0 .. X_n as dense arrays."""
    states = sg.iterate(problem, factors, method)
    return [next(states).factors.full() for _ in range(n + 1)]


@pytest.fixture
def run(limits, monkeypatch, capsys, tmp_path):
    """Run a command in an empty folder; return its exit code, stdout and stderr."""
    from scaledgd import cli

    monkeypatch.chdir(tmp_path)
    # on a machine that is busy, a line of progress would be among the messages
    limits(quiet_seconds=float("inf"))

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["scaledgd", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return run


@pytest.fixture
def fine(run):
    """Run a command that must succeed; return its JSON summary."""

    def fine(*args):
        code, out, err = run(*args, "--json")
        assert code == 0, err
        assert out.count("\n") == 1
        return json.loads(out)

    return fine
