"""Running of a ``grsgd`` command in a child process, which ends at the latest when this process ends."""

import signal
import subprocess
from collections.abc import Sequence

from grsgd.job.ending import with_parent
from grsgd.mpi_environment import module

INTERRUPTED = 130
"""The exit code of a command after Ctrl-C."""
OVERDUE = 124
"""The exit code of a command that was killed because it exceeded its time limit."""


def in_a_process(arguments: Sequence[str], seconds: float | None = None) -> int:
    """Run ``grsgd`` with ``arguments`` in a child process, and return its exit code. Ctrl-C reaches the child only,
    which saves its results.

    After ``seconds`` the child and all processes that it has started are killed, and the exit code is `OVERDUE`.
    """
    process = subprocess.Popen([*module("grsgd"), *arguments], preexec_fn=with_parent())
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return OVERDUE
    finally:
        signal.signal(signal.SIGINT, before)
    return INTERRUPTED if code in (-signal.SIGINT, INTERRUPTED) else code
