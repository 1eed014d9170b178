"""How many threads: those of the kernels, and those of the BLAS beside them.

The kernels are known to threadpoolctl, so that `threadpool_limits` and joblib limit them too. While
they are at work the BLAS gets one thread, because it is asked for nothing but small products, and
its threads would go on waiting, busily, where the kernels want to work.
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
    """Of the libraries that are loaded; looked for again when there may be more."""
    global _libraries
    known = sum(name in sys.modules for name in ("scipy.linalg", "sklearn", "torch"))
    if _libraries is None or _libraries[0] != known:
        _libraries = known, ThreadpoolController()
    return _libraries[1]


@contextlib.contextmanager
def limited(blas: int | None, others: int | None) -> Iterator[None]:
    """Limit threads for a while, those of the BLAS and all others; None leaves them alone.

    Limits are of the whole process: of several at a time the first counts, and the last to
    end gives back what was, because one that gave back what another had set would leave it
    so for ever.
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
