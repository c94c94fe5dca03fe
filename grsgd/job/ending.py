"""Functions that end the child processes of a program, however the program itself ends."""

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
"""Functions that `grsgd.job.launch.abort` calls with the rank's number before the rank ends the whole job."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # constants of linux/prctl.h
ORPHANS_SECONDS = 2.0
"""Seconds after which `kill_orphans` gives up, even if child processes are left."""


def exit_on_signals() -> dict:
    """Make the signals of `ENDING` raise SystemExit, except signals that the program handles already. Return a
    dictionary from each signal whose handler was replaced to the earlier handler. Do nothing outside of the main
    thread, because only the main thread can set signal handlers."""

    def leave(number, frame):
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    return {number: signal.signal(number, leave) for number in numbers}


def with_parent() -> Callable[[], None]:
    """Return a function that a new child process must call first (argument ``preexec_fn`` of `subprocess.Popen`). After
    the child's call, Linux kills the child when the thread that has started the child ends, for any reason. Sending
    SIGTERM to the child would not suffice, because an mpiexec that is just starting loses the signal."""
    parent = os.getpid()
    # prctl is looked up before the fork, because few calls are safe after a fork
    return partial(end_with, parent, ctypes.CDLL(None).prctl)


def end_with_launcher():
    """Make Linux kill this process after its launcher has ended. Do nothing if a thread of the launcher other than its
    main thread started this process, because Linux would kill this process when that thread ends. Open MPI's launcher
    starts ranks in other threads than its main thread if it starts many ranks on a host."""
    parent = os.getppid()
    with suppress(OSError):  # do nothing without the file "children", which some kernels lack
        if str(os.getpid()) in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            end_with(parent)


def end_with(parent: int, prctl=None):
    """Make Linux kill this process after the end of the thread of process ``parent`` that has started this process."""
    prctl = prctl or ctypes.CDLL(None).prctl
    prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # the parent process has ended before this call
        os._exit(1)


def adopt_orphans():
    """Make this process the parent of all orphans among its descendants, so that `kill_orphans` finds the orphans."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def kill_orphans():
    """Kill all child processes of this process. The child processes of a killed process become child processes of this
    process, and are killed, too.

    A killed launcher leaves processes such as ssh, which wait for a dead host. Processes that a killed launcher leaves
    keep open the pipe into which this process writes, so that the reader of the pipe would wait for them. The function
    kills no process on kernels without lists of child processes in /proc.
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
    """Return the PIDs of the child processes of this process; an empty list if the kernel does not list child
    processes."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
