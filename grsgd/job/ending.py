"""Ending of the processes that a program has started, however the program itself ends."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

ENDING = (signal.SIGTERM, signal.SIGHUP)
BEFORE_ABORT: list[Callable[[int], None]] = []
"""Functions that a rank calls with its number before it ends the whole job (`grsgd.job.launch.abort`)."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # numbers of these options in linux/prctl.h
ORPHANS_SECONDS = 2.0
"""Seconds in which all orphans of a process must have been killed."""


def exit_on_signals() -> dict:
    """Make the signals of `ENDING` raise SystemExit, unless the program handles them already; return the earlier
    handlers. Do nothing outside of the main thread, because only the main thread can have signal handlers."""

    def leave(number, frame):
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    return {number: signal.signal(number, leave) for number in numbers}


def with_parent() -> Callable[[], None]:
    """Return a function that a child process must call first. Linux then kills the child when the thread that has
    started the child ends, for any reason. SIGTERM is not sufficient for this: an mpiexec that is just starting loses
    the signal."""
    parent = os.getpid()
    # prctl is looked up before the fork, because few calls are safe after a fork
    return partial(end_with, parent, ctypes.CDLL(None).prctl)


def end_with_launcher():
    """Make Linux kill this process after its launcher has ended. Do nothing if the launcher started this process in
    another thread than its main thread, as Open MPI's launcher does with many ranks on a host: Linux would kill this
    process when that thread ends."""
    parent = os.getppid()
    with suppress(OSError):  # not all kernels have this file
        if str(os.getpid()) in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            end_with(parent)


def end_with(parent: int, prctl=None):
    """Make Linux kill this process after the thread of ``parent`` that has started it has ended."""
    prctl = prctl or ctypes.CDLL(None).prctl
    prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # the parent process has ended before this call
        os._exit(1)


def adopt_orphans():
    """Make Linux give this process the orphans among its descendants, so that `kill_orphans` finds them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_orphans():
    """Kill all children of this process, and the children that it inherits from them.

    A launcher that was killed leaves its agents, such as ssh, which wait for a dead host, and keep open the pipe into
    which this process writes. Nothing is killed on kernels without lists of children in /proc.
    """
    deadline = time.monotonic() + ORPHANS_SECONDS
    while (children := own_children()) and time.monotonic() < deadline:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)


def own_children() -> list[int]:
    """Return the numbers of the child processes of this process; an empty list if the kernel does not list them."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
