"""Time limits for calls of libraries that may block for ever. If a call exceeds the limit, this module prints one line
and ends the job."""

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
"""Number of seconds between a time limit and the end of the process, if a blocking call stops all Python threads."""
PASSING_ON_SECONDS = 0.3
"""Number of seconds that a process waits before it ends, so that the launcher (such as mpiexec) can pass on printed
text."""


@contextmanager
def within(seconds: float, what: str):
    """Context manager that ends this process with exit code 1, and so the whole job, if its block takes longer than
    ``seconds``.

    ``what`` names the action of the block, such as "making a communicator". A thread measures the time, so a blocking
    call in the block must let other threads run. All calls of mpi4py let other threads run, except the start and the
    end of MPI. `stopped_within` limits the start and the end of MPI.
    """
    done = threading.Event()

    def watch():
        if not done.wait(min(seconds, threading.TIMEOUT_MAX)):
            time.sleep(0.05 * min(int(rank() or 0), 40))  # so that one rank prints first and ends the job
            say(f"{what}: not done after {seconds:g} s: another rank has not joined, has stopped or has died")
            os._exit(1)

    threading.Thread(target=watch, name="grsgd-watchdog", daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def stopped_within(seconds: float, what: str):
    """Context manager that limits the time of its block like `within`, even if the block stops all Python threads.

    A forked process measures the time, and prints the line ``what`` when ``seconds`` are over. A thread outside of
    Python then ends this process with exit code 1. The process is not killed at once, because a fault-tolerant launcher
    would turn a killed process into exit code 0. If this process has not ended after two more seconds, the forked
    process kills this process.
    """
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(writing)
        if not select.select([reading], [], [], seconds)[0]:  # if the pipe closes in time, the parent is done or dead
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
