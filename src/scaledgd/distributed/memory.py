"""What the allocator of a worker does with memory that is free."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

TRIM, MAP = -1, -3
"""The numbers of GNU's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""
KEPT = 64 << 20
"""Free bytes that stay with a worker between tasks: what glibc allows itself at most."""
LARGEST = 32 << 20
"""Bytes of an array up to which it may lie there; likewise."""
SMALLEST = 128 << 10
"""The same at first."""


def keep() -> None:
    """Keep what tasks free for the tasks that follow.

    Dask starts its processes with an allocator that returns memory to the system at once. Every
    pass over the entries of a shard would then get fresh pages for each of its arrays, which takes
    about as long as the pass.
    """
    _set(KEPT, LARGEST)


def as_before() -> None:
    """Return memory at once again, as the process was told when it was started."""
    _set(_told(), SMALLEST)
    trim()


def _told() -> int:
    """The threshold in the environment; 0 if glibc was left to itself, or to others."""
    told = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
    return int(told) if told.isdecimal() and int(told) < KEPT else 0


def _set(kept: int, largest: int) -> None:
    if _told():
        with contextlib.suppress(OSError, AttributeError, TypeError):  # not the C library of GNU
            allocator = ctypes.CDLL(None)
            allocator.mallopt(TRIM, kept)
            allocator.mallopt(MAP, largest)


def trim() -> None:
    """Return free memory to the system; the allocator would keep what small pieces leave.

    A worker goes by the memory of its process, and moves data to disk if that is too much.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
