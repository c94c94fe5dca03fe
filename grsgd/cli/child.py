"""A command of ``grsgd`` in a process of its own, which ends with this process."""

import signal
import subprocess
from collections.abc import Sequence

from grsgd.job.ending import with_parent
from grsgd.mpi_environment import module

INTERRUPTED = 130
"""The exit code of a command after Ctrl-C."""
OVERDUE = 124
"""The exit code of a command that was killed at the end of its time."""


def in_a_process(arguments: Sequence[str], seconds: float | None = None) -> int:
    """Run ``grsgd`` with ``arguments`` and return its exit code; Ctrl-C reaches the command, which saves its results.

    The command and all that it has started are killed after ``seconds``, and the exit code is `OVERDUE`.
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
