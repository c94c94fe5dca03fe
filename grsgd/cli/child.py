"""Running of ``grsgd`` commands in child processes, which end at the latest when this process ends."""

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
"""The exit code of a command after Ctrl-C."""
OVERDUE = 124
"""The exit code of a command that was killed because it exceeded its time limit."""
LOOK_SECONDS = 0.05
"""Seconds between two looks at processes that run side by side."""


def in_a_process(arguments: Sequence[str], seconds: float | None = None) -> int:
    """Run ``grsgd`` with ``arguments`` in a child process, and return its exit code. Ctrl-C reaches the child only,
    which saves its results.

    After ``seconds`` the child and all processes that it has started are killed, and the exit code is `OVERDUE`.
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
    """Start ``grsgd`` with ``arguments``; its output goes to the file ``log``, if it is given, in place of the
    terminal."""
    command = [*module("grsgd"), *arguments]
    if log is None:
        return subprocess.Popen(command, preexec_fn=with_parent())
    with open(log, "wb") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, preexec_fn=with_parent()
        )


def exit_code_of(returned: int) -> int:
    """Return the exit code of a process; `INTERRUPTED` stands for an end by Ctrl-C."""
    return INTERRUPTED if returned in (-signal.SIGINT, INTERRUPTED) else returned


class Started(Protocol):
    """Process of a command; ``poll()`` returns its exit code, or None before its end."""

    def poll(self) -> int | None: ...


def side_by_side(items: Iterable, begin: Callable[..., Started], jobs: int) -> Iterator[tuple[object, int]]:
    """Call ``begin(item)`` for each item, so that at most ``jobs`` processes run at a time; yield each item with the
    exit code of its process, in the order of the ends.

    After an item that Ctrl-C has ended, no further process begins.
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
    """Ignore Ctrl-C in this process during the block; a terminal sends Ctrl-C to the children, too.

    A child that is started in the block does not inherit this, as it would inherit SIG_IGN.
    """
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
