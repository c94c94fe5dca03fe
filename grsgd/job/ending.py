"""Ending of the processes that a program has started, however the program itself ends."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

ENDING = (signal.SIGTERM, signal.SIGHUP)
BEFORE_ABORT: list[Callable[[int], None]] = []
"""Functions that a rank calls with its number before it ends the whole job (`grsgd.job.launch.abort`)."""
PR_SET_PDEATHSIG = 1  # number of this option in linux/prctl.h


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
