"""Functions that run ``grsgd`` commands in child processes. A child process ends at the latest when this process
ends."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from grsgd.job.ending import with_parent
from grsgd.mpi_environment import module

INTERRUPTED = 130
"""Exit code of a command that was ended by Ctrl-C."""
OVERDUE = 124
"""Exit code of a command that was killed because it exceeded its time limit."""
LOOK_SECONDS = 0.05
"""Seconds between two checks whether processes that run at the same time have ended."""


def in_a_process(arguments: Sequence[str], seconds: float | None = None) -> int:
    """Run ``grsgd`` with ``arguments`` in a child process, and return its exit code. Ctrl-C does not end this process:
    the child process handles Ctrl-C and saves its results.

    After ``seconds`` the child process and all processes that it has started are killed, and the exit code is
    `OVERDUE`.
    """
    process = start(arguments)
    with leaving_interrupts_to_children():
        try:
            return exit_code_of(process.wait(seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return OVERDUE


def start(arguments: Sequence[str], log: Path | None = None) -> subprocess.Popen:
    """Start ``grsgd`` with ``arguments`` in a child process. If ``log`` is given, the child process writes its output
    to the file ``log`` in place of the terminal."""
    command = [*module("grsgd"), *arguments]
    if log is None:
        return subprocess.Popen(command, preexec_fn=with_parent())
    with open(log, "wb") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, preexec_fn=with_parent()
        )


def exit_code_of(returned: int) -> int:
    """Return the exit code of a child process whose returncode in `subprocess` is ``returned``. The exit code is
    `INTERRUPTED` if Ctrl-C has ended the child process."""
    return INTERRUPTED if returned in (-signal.SIGINT, INTERRUPTED) else returned


class Started(Protocol):
    """Child process that runs a command of ``grsgd``. ``poll()`` returns the exit code of the child process, or None
    while the child process runs."""

    def poll(self) -> int | None: ...


def side_by_side(items: Iterable, begin: Callable[..., Started], jobs: int) -> Iterator[tuple[object, int]]:
    """Call ``begin(item)``, which starts a process, for each item, so that at most ``jobs`` processes run at a time.
    Yield (item, exit code) as soon as the process of an item has ended.

    After Ctrl-C has ended the process of an item, no further process is started.
    """
    waiting, running = iter(items), {}
    is_over = False
    with leaving_interrupts_to_children():
        while True:
            while not is_over and len(running) < jobs:
                item = next(waiting, None)
                is_over = item is None
                if not is_over:
                    running[begin(item)] = item
            if not running:
                return
            ended = [process for process in running if process.poll() is not None]
            for process in ended:
                code = exit_code_of(process.poll())
                is_over |= code == INTERRUPTED
                yield running.pop(process), code
            if not ended:
                time.sleep(LOOK_SECONDS)


@contextmanager
def leaving_interrupts_to_children():
    """Ignore Ctrl-C in this process during the block. A terminal sends Ctrl-C to this process and to its child
    processes.

    A child process that is started in the block does not ignore Ctrl-C. The block sets a signal handler that does
    nothing, because child processes would inherit SIG_IGN.
    """
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
