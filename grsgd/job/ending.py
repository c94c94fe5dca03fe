"""End of everything that an experiment has started, however the experiment ends."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

ENDING = (signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1  # linux/prctl.h defines this number


def exit_on_signals() -> dict:
    """Make the signals of `ENDING` raise SystemExit, if they would have killed this process; return the earlier
    handlers. Only a program's main thread can have handlers."""

    def leave(number, frame):
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    return {number: signal.signal(number, leave) for number in numbers}


def with_parent() -> Callable[[], None]:
    """Return a function that a child of this process calls first. Linux then kills the child after the thread that has
    started it has ended, for any reason, without support by the child's program. SIGTERM is lost in a starting
    mpiexec."""
    parent = os.getpid()
    # prctl is looked up before the fork, as less can go wrong after it
    return partial(end_with, parent, ctypes.CDLL(None).prctl)


def end_with_launcher():
    """Make Linux kill this process after its launcher has ended. Do nothing if another thread than the main thread
    started it, as in Open MPI's launcher with many ranks on a host: this process would end with the thread."""
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
