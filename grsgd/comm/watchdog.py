"""Time limits for calls that block inside a library without one of their own: the job ends with one line."""

import faulthandler
import os
import select
import signal
import sys
import threading
import time
from contextlib import contextmanager

from grsgd.mpi_environment import rank

EXIT_SECONDS = 1.0
"""How long after a time limit a process ends of which all threads are stopped."""
PASSING_ON_SECONDS = 0.3
"""How long a launcher may need to pass on what was printed, before it notices that a process has ended."""


@contextmanager
def within(seconds: float, what: str):
    """End this process with exit code 1, and so the job, if the block takes longer than ``seconds``.

    ``what`` says what is being done, such as "making a communicator". A thread waits beside the block, so the call that
    blocks must let other threads run; those of mpi4py do, except the start and the end of MPI (`stopped_within`).
    """
    done = threading.Event()

    def watch():
        if not done.wait(min(seconds, threading.TIMEOUT_MAX)):
            time.sleep(0.05 * min(int(rank() or 0), 40))  # the first one that says so ends the others
            say(f"{what}: not done after {seconds:g} s: a rank that takes part has not come, has stopped or has died")
            os._exit(1)

    threading.Thread(target=watch, name="grsgd-watchdog", daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def stopped_within(seconds: float, what: str):
    """Like `within`, for a block that stops all threads of Python: another process waits, and says so.

    ``what`` is the whole line that is printed then. A thread outside of Python ends this process, with exit code 1: of
    one that is killed a fault-tolerant launcher makes 0. Where that does not help the other process kills this one.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(writing)
        if not select.select([reading], [], [], seconds)[0]:  # else the other end is closed: done, or dead
            say(what)
            if not select.select([reading], [], [], 2 * EXIT_SECONDS)[0]:
                os.kill(parent, signal.SIGKILL)
        os._exit(0)
    os.close(reading)
    unseen = open(os.devnull, "w")
    if seconds + EXIT_SECONDS < threading.TIMEOUT_MAX:
        faulthandler.dump_traceback_later(seconds + EXIT_SECONDS, exit=True, file=unseen)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        unseen.close()
        os.close(writing)
        os.waitpid(child, 0)


def say(what: str):
    """Print a line, with this process's rank where it is known, and give the launcher time to pass it on."""
    number = rank()
    line = f"\ngrsgd: {'' if number is None else f'rank {number}: '}{what}\n"
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line.encode())
    time.sleep(PASSING_ON_SECONDS)
