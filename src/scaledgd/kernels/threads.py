"""Threads of the kernels and of the BLAS.

The kernels are registered with threadpoolctl, so `threadpool_limits` and joblib limit them too.
While they run, the BLAS gets one thread: it does only small products, and its spinning threads
would compete with the kernels for cores.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from threadpoolctl import LibController, ThreadpoolController, register


class _Kernels(LibController):  # type: ignore[misc]
    user_api = "scaledgd"
    internal_api = "scaledgd"
    filename_prefixes = ("_compiled.",)
    check_symbols = ("scaledgd_get_num_threads", "scaledgd_set_num_threads")

    def get_num_threads(self) -> int:
        return int(self.dynlib.scaledgd_get_num_threads())

    def set_num_threads(self, num_threads: int) -> None:
        self.dynlib.scaledgd_set_num_threads(num_threads)

    def get_version(self) -> None:
        return None


register(_Kernels)

_lock = threading.Lock()
_inside = 0
_limits: Any = None
_libraries: Any = None


def _controller() -> Any:
    """Return a controller of the loaded libraries, renewed when more may have been loaded."""
    global _libraries
    known = sum(name in sys.modules for name in ("scipy.linalg", "sklearn", "torch"))
    if _libraries is None or _libraries[0] != known:
        _libraries = known, ThreadpoolController()
    return _libraries[1]


@contextlib.contextmanager
def limited(blas: int | None, others: int | None) -> Iterator[None]:
    """Limit the threads of the BLAS, and all others, in a `with` block; None leaves them alone.

    Limits apply to the whole process. If several blocks overlap, the first limit counts, and the
    last block to end restores the original numbers; restoring another block's limit would make it
    permanent.
    """
    global _inside, _limits
    with _lock:
        if _inside == 0:
            wanted = {"blas": blas, "openmp": others, "scaledgd": others}
            chosen = {api: n for api, n in wanted.items() if n is not None}
            _limits = _controller().limit(limits=chosen) if chosen else None
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _limits is not None:
                _limits.restore_original_limits()
                _limits = None
