"""Time limits for calls of libraries, such as MPI, that may block for ever. If a call takes longer than its time limit,
this module prints one line and ends the job."""

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
"""Number of seconds after a time limit at which the process is ended, if a blocking call stops all Python threads."""
PASSING_ON_SECONDS = 0.3
"""Number of seconds that a process waits before it ends, so that the launcher (such as mpiexec) can print the process's
last output."""


@contextmanager
def within(seconds: float, what: str):
    """Context manager that ends this process with exit code 1, and thereby the whole job, if the code in the ``with``
    block takes longer than ``seconds``.

    ``what``: text that names the action of the ``with`` block, such as "making a communicator". The time is measured by
    a thread, so a blocking call in the ``with`` block must let other Python threads run. All calls of mpi4py let other
    threads run, except the start and the end of MPI. The context manager `stopped_within` limits the time of the start
    and the end of MPI.
    """
    done = threading.Event()

    def watch():
        if not done.wait(min(seconds, threading.TIMEOUT_MAX)):
            # let one rank print its line first and end the job before the other ranks print
            time.sleep(0.05 * min(int(rank() or 0), 40))
            say(f"{what}: not done after {seconds:g} s: another rank has not joined, has stopped or has died")
            os._exit(1)

    threading.Thread(target=watch, name="grsgd-watchdog", daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def stopped_within(seconds: float, what: str):
    """Context manager that, like `within`, limits the time of a ``with`` block, even if the block stops all Python
    threads.

    A forked process measures the time, and prints the line ``what`` when ``seconds`` seconds have passed. A thread of
    the module `faulthandler`, which needs no running Python code, then ends this process with exit code 1. This process
    is not killed at once, because a fault-tolerant launcher would report exit code 0 for a killed process. If this
    process has not ended two seconds later, the forked process kills it.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(writing)
        # the pipe closes in time if the parent process has left the block or has died
        if not select.select([reading], [], [], seconds)[0]:
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
    """Print the line ``what``, with this process's rank if the rank is known, and give the launcher time to pass the
    line on."""
    number = rank()
    line = f"\ngrsgd: {'' if number is None else f'rank {number}: '}{what}\n"
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line.encode())
    time.sleep(PASSING_ON_SECONDS)
