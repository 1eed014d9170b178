"""A progress bar over a file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..estimators.progress import display
from .readers.batches import Progress


@contextlib.contextmanager
def progress_bar(stage: str, verbose: int) -> Iterator[Progress]:
    """Show a bar on a terminal; yield a function that takes the share that is done."""
    with display(stage, verbose) as bar:
        yield lambda share: bar.show(stage, f"{100 * share:.0f} %", share)
