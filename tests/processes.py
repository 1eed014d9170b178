"""Start child processes that Ctrl-C can interrupt."""

import os
import signal
import subprocess


def _restore_interrupt():
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(command, **options):
    """Start a process, like `subprocess.Popen`, that does not ignore SIGINT.

    A shell starts background jobs with SIGINT ignored, and children inherit that.
    """
    before = _restore_interrupt if os.name == "posix" else None
    return subprocess.Popen(command, preexec_fn=before, **options)
