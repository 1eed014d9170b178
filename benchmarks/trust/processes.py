"""Judge instances in separate processes, which may crash."""

from __future__ import annotations

import os
from typing import Any

from .instances import drawn
from .judge import PATIENCE, SECONDS, judged

Line = dict[str, Any]

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "SCALEDGD_NUM_THREADS")


def one_thread() -> None:
    """Give one thread to every process that is started from now on, unless set otherwise."""
    for name in THREADS:
        os.environ.setdefault(name, "1")


def _told(seed: int, number: int, pipe: Any) -> None:
    pipe.send(judged(seed, number))


def apart(context: Any, seed: int, number: int) -> Line:
    """Judge an instance in a separate process."""
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_told, args=(seed, number, there))
    process.start()
    there.close()
    # other processes may take most of the time
    line: Line = {"number": number, "seed": seed, "recipe": drawn(seed, number).plain}
    try:
        told = here.poll(10 * PATIENCE * SECONDS)
        line = here.recv() if told else {**line, "failures": ["slow"]}
    except EOFError:
        process.join()
        line |= {"failures": ["crash"], "message": f"exit code {process.exitcode}"}
    if process.is_alive():
        process.kill()
    process.join()
    return line
