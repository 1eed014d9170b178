"""Progress over a file: a bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from ..estimators.progress import display
from .readers.batches import Progress


@contextlib.contextmanager
def progress_bar(stage: str, verbose: int) -> Iterator[Progress]:
    """Show the progress of a stage; yield a function that takes the completed share."""
    began = time.perf_counter()
    with display("scaledgd", verbose) as bar:

        def show(share: float) -> None:
            left = (time.perf_counter() - began) * (1 - share) / share if share > 0 else 0.0
            about = f", about {left:.0f} s left" if left >= 1 else ""
            bar.show(stage, f"{100 * share:.0f} %{about}", share)

        yield show
