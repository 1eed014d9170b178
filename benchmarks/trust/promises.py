"""Tests of guarantees: kills, hostile files, interrupts, threads and forks.

Every part yields lines: what was seen, how often, and how often it may be seen. Work that is
interrupted runs in forked processes.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import scaledgd as sg

from .. import reliability
from ..estimators import Line

Array = Any

WAIT = 60
"""Seconds after which a process that should have ended counts as hanging."""


def _forked(work: Callable[..., None], *given: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=work, args=given)
    process.start()
    return process


def _killed(work: Callable[..., None], folder: str, longest: float, rng: random.Random) -> None:
    """Call a function in a separate process, and kill it at a random moment."""
    process = _forked(work, folder)
    time.sleep(rng.uniform(0, longest))
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.join()


# ---- kills


def _models() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 30))
    X = np.where(rng.random(X.shape) < 0.8, X, np.nan)
    return tuple(sg.MatrixCompletion(r, random_state=0).fit(X) for r in (1, 2))  # type: ignore[return-value]


def saving(count: int) -> Iterator[Line]:
    """Kill a process that keeps saving one of two models: one of them must be there."""
    rng, lost = random.Random(1), 0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models, path = _models(), Path(folder) / "model.npz"
        wanted = [m.reconstruct() for m in models]
        models[0].save(path)

        def work(folder: str) -> None:
            for k in range(1000):
                models[k % 2].save(path)

        for _ in range(count):
            _killed(work, folder, 0.3, rng)
            try:
                found = sg.load(path).reconstruct()
                lost += not any(np.array_equal(found, X) for X in wanted)
            except Exception:
                lost += 1
        left = len(os.listdir(folder)) - 1
    yield f"{count} kills while saving, models lost", lost, 0
    yield "unfinished files left per kill", left / max(1, count), 1


def writing(count: int) -> Iterator[Line]:
    """Kill the command line while it writes: the old or the new table must be there."""
    rng, lost, changed = random.Random(2), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        source, result = _csv(Path(folder) / "table.csv"), Path(folder) / "filled.csv"
        command = ["complete", str(source), "-o", str(result), "--force"]
        began = time.perf_counter()
        told = commanded(command)
        took = time.perf_counter() - began
        assert result.exists(), told
        good, old = result.read_bytes(), b"an,older\n1,2\n"
        for _ in range(count):
            result.write_bytes(old)
            _killed(lambda _: _quiet(command), folder, 1.2 * took, rng)
            now = result.read_bytes() if result.exists() else b""
            lost += now not in (old, good)
            changed += now == good
    yield f"{count} kills of the command line, {changed} after it wrote; tables lost", lost, 0


def kills(count: int) -> Iterator[Line]:
    """Kill processes that save, checkpoint or write tables: nothing may be lost."""
    third = max(1, count // 3)
    yield from saving(third)
    yield from writing(third)
    yield from reliability.kills(max(1, count - 2 * third))


# ---- hostile files


def _csv(path: Path, rows: int = 30, columns: int = 6) -> Path:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 2)) @ rng.standard_normal((2, columns))
    cells = np.where(rng.random(X.shape) < 0.8, np.char.mod("%.5g", X), "")
    head = ",".join(f"c{j}" for j in range(columns))
    path.write_text("\n".join([head, *(",".join(row) for row in cells)]) + "\n")
    return path


def commanded(arguments: list[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what it printed."""
    from scaledgd import cli

    told, before = io.StringIO(), sys.argv
    sys.argv = ["scaledgd", *arguments]
    handlers = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            cli.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
        for s, handler in handlers.items():
            signal.signal(s, handler)
    return code, told.getvalue()


def _quiet(arguments: list[str]) -> None:
    commanded(arguments)


CELLS = (b"nan", b"inf", b"1e400", b'"', b'"a', b"\x00", b"\xff", b"1,5", b"-", b"=1+1", b"1e-320")


def _mangled(text: bytes, rng: random.Random) -> bytes:
    """Change a table: bits, lines, cells, delimiters, encodings, or its end."""
    lines = text.splitlines(keepends=True)
    some = rng.randrange(len(lines))
    kind = rng.randrange(10)
    if kind == 0:
        return reliability._flipped(text, rng)
    if kind == 1:
        return text[: rng.randrange(len(text))]
    if kind == 2:
        return text + rng.randbytes(rng.randint(1, 400))
    if kind == 3:
        return rng.randbytes(rng.randint(0, 2000))
    if kind == 4:
        return b"".join(lines[:some] + lines[some + 1 :])
    if kind == 5:
        return b"".join([*lines[:some], lines[some][:-1] + b",7\n", *lines[some + 1 :]])
    if kind == 6:
        return text.replace(b",", rng.choice([b";", b"\t", b"|", b" ", b""]))
    if kind == 7:
        return text.decode("latin-1").encode(rng.choice(["utf-16", "utf-32", "utf-8-sig"]))
    cells = text.split(b",")
    for _ in range(rng.randint(1, 20)):
        cells[rng.randrange(len(cells))] = rng.choice(CELLS)
    return b",".join(cells)


def tables(count: int) -> Iterator[Line]:
    """Pass mangled tables to the command line: an answer, or a clear error."""
    rng, unclear, codes = random.Random(3), [], set()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path, result = Path(folder) / "table.csv", Path(folder) / "filled.csv"
        text = _csv(path).read_bytes()
        for _ in range(count):
            path.write_bytes(_mangled(text, rng))
            name = rng.choice(["complete", "clean"])
            try:
                asked = [name, str(path), "-o", str(result), "--force"]
                code, told = commanded(asked)
            except BaseException as error:
                unclear.append(f"{name}: {error!r}"[:200])
                continue
            codes.add(code)
            if code not in (0, 2, 3) or "Traceback" in told or (code and len(told.split()) < 4):
                unclear.append(f"{name}, {code}: {told[-200:]}")
    yield (
        f"{count} mangled tables, exit codes {sorted(codes)}, unclear {unclear[:3]}",
        len(unclear),
        0,
    )


def files(count: int) -> Iterator[Line]:
    """Read corrupted models and mangled tables: clear errors, and no crash."""
    yield from reliability.mutations(max(1, count // 2))
    yield from tables(max(1, count - count // 2))


# ---- interrupts


def _interrupted(kind: str, delay: float, pipe: Any) -> None:
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 3)) @ rng.standard_normal((3, 60))
    X = X + 0.1 * rng.standard_normal(X.shape) + 5
    X = np.where(rng.random(X.shape) < 0.6, X, np.nan)
    if kind.startswith("Tensor"):
        X = X.reshape(120, 12, 5)
    model = getattr(sg, kind)(random_state=0, interrupt="return")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let others ignore it
    signal.setitimer(signal.ITIMER_REAL, delay)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    told = ""
    try:
        model.fit(X)
    except KeyboardInterrupt as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = ([f for f in frames if "scaledgd" in f.filename] or frames)[-1]
        told = str(error) or f"no word from {place.filename}:{place.lineno}"
    except Exception as error:
        told = repr(error)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if not told:
        told = "" if np.all(np.isfinite(model.reconstruct())) else "estimates that are not finite"
    pipe.send((told, "interrupted" in getattr(model, "status_", "")))


def interrupts(count: int) -> Iterator[Line]:
    """Interrupt fits at random moments: the best answer so far, or a clear error."""
    rng, wrong, ended, hung = random.Random(4), [], 0, 0
    kinds = ("MatrixCompletion", "RobustPCA", "TensorCompletion")
    for k in range(count):
        here, there = multiprocessing.Pipe(duplex=False)
        process = _forked(_interrupted, kinds[k % 3], rng.uniform(1e-3, 1.5), there)
        there.close()
        try:
            told, early = here.recv() if here.poll(WAIT) else ("", False)
        except EOFError:
            told, early = "the process ended", False
        process.join(WAIT)
        if process.is_alive():
            process.kill()
            hung += 1
        clear = told == "" or told.startswith("interrupted before the data were read")
        wrong += [] if clear else [told]
        ended += early
    yield f"{count} interrupts, {ended} before the end of the fit, wrong {wrong[:3]}", len(wrong), 0
    yield "interrupts that came too late, all of them", float(ended == 0), 0
    yield "processes that hang", hung, 0


# ---- threads and forks


def forks(count: int = 3) -> Iterator[Line]:
    """Fit, fork, and fit in the child, which must end with the same result."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3)) @ rng.standard_normal((3, 80))
    X = np.where(rng.random(X.shape) < 0.5, X + 0.1 * rng.standard_normal(X.shape), np.nan)

    def fitted() -> Array:
        return sg.MatrixCompletion(3, random_state=0).fit(X).reconstruct()

    expected, different, hung = fitted(), 0, 0

    def work(pipe: Any) -> None:
        pipe.send(np.array_equal(fitted(), expected))

    for _ in range(count):
        here, there = multiprocessing.Pipe(duplex=False)
        process = _forked(work, there)
        there.close()
        try:
            different += not (here.recv() if here.poll(WAIT) else True)
        except EOFError:
            different += 1
        process.join(WAIT)
        if process.is_alive():
            process.kill()
            hung += 1
    yield f"{count} forks after a fit, other results", different, 0
    yield "children that hang", hung, 0


PARTS: dict[str, Callable[[int], Iterator[Line]]] = {
    "kills": kills,
    "files": files,
    "interrupts": interrupts,
    "threads": reliability.threads,
    "forks": forks,
}
