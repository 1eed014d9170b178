"""The command line, ``scaledgd``.

`commands` has the commands and their options, `readers` and `writers` the file formats. `main`
runs a command and turns every exception into one line and an exit code.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback

from .. import __version__
from .failures import Failure, Interruption

INSTALL = 'pip install "scaledgd[cli]"'

DEBUG, TRACEBACK = "--debug", "SCALEDGD_TRACEBACK"
"""The option and the environment variable that print tracebacks of failures."""


def main() -> None:
    """Run the command of ``sys.argv``, and exit with its code."""
    args, debug = _debugged(sys.argv[1:])
    if args == ["--version"]:  # faster than importing the option parser
        print(f"scaledgd {__version__}")
        sys.exit(0)
    try:
        from .commands import app
    except ImportError:  # pragma: no cover
        sys.exit(_print_error(f"the command line needs more packages: {INSTALL}", 1))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # some terminals cannot show R²
    try:
        code = app(args, standalone_mode=False, prog_name="scaledgd") or 0
        sys.stdout.flush()
    except Failure as failure:
        code = _print_error(str(failure), 2, debug)
    except (Interruption, KeyboardInterrupt) as interrupt:
        code = _print_error(str(interrupt) or "interrupted", 130, debug)
    except BrokenPipeError:
        # the reader of stdout has gone: Python must not flush into the closed pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except ModuleNotFoundError as error:
        code = _print_error(f"the command line needs {error.name}: {INSTALL}", 1, debug)
    except Exception as error:
        if hasattr(error, "format_message"):  # from the option parser
            code = _print_error(f"{error.format_message()} (see --help)", 2, debug)
        else:
            what = "not enough memory" if isinstance(error, MemoryError) else "unexpected failure"
            more = "" if debug else f" ({DEBUG} or {TRACEBACK}=1 prints the traceback)"
            code = _print_error(f"{what}: {type(error).__name__}: {error}{more}", 1, debug)
    sys.exit(code)


def _debugged(args: list[str]) -> tuple[list[str], bool]:
    """Return the arguments without ``--debug``, which may be anywhere, and whether it is on."""
    options = args.index("--") if "--" in args else len(args)
    others = [word for word in args[:options] if word != DEBUG]
    on = len(others) < options or os.environ.get(TRACEBACK, "") not in ("", "0")
    return others + args[options:], on


def _print_error(message: str, code: int, debug: bool = False) -> int:
    """Print a message on one line, in debug mode after the traceback of the exception."""
    if debug:
        traceback.print_exc()
    print(f"scaledgd: error: {' '.join(message.split())}", file=sys.stderr)
    return code
