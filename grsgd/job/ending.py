"""Ends what an experiment has started, however the experiment ends."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

ENDING = (signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def exit_on_signals() -> dict:
    """From now on the signals of `ENDING` raise SystemExit if they would have killed this process; the handlers that
    were there before. Only a program's main thread can have handlers."""

    def leave(number, frame):
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        return {}
    numbers = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    return {number: signal.signal(number, leave) for number in numbers}


def with_parent() -> Callable[[], None]:
    """A function that a child of this process calls first, and a program that it becomes need not know of: Linux kills
    it when the thread that has started it has ended, however that was. SIGTERM is lost in mpiexec while it starts."""
    parent = os.getpid()
    return partial(end_with, parent, ctypes.CDLL(None).prctl)  # looked up before the fork: less can go wrong after it


def end_with_launcher():
    """Have Linux kill this process when the one that has started it has ended. Nothing is done where a thread beside
    the main one has started it, as Open MPI's launcher does with many ranks on a host: it would end with the thread."""
    parent = os.getppid()
    with suppress(OSError):  # not all kernels tell
        if str(os.getpid()) in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            end_with(parent)


def end_with(parent: int, prctl=None):
    """Have Linux kill this process when the thread of ``parent`` has ended that has started it."""
    prctl = prctl or ctypes.CDLL(None).prctl
    prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # it has ended before this
        os._exit(1)
