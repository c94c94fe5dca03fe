"""Spare processes of a script. Each spare waits at the script's first call of grsgd, and goes on with the rank of a
process that has died.

Before its wait, a spare executes the script up to the first call of grsgd, such as the imports and the reading of the
data. A spare that takes a rank goes on in the script with that rank's number. No other rank comes to the collective
calls before the loop, so the spare makes these calls alone.
"""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from grsgd.comm.backend import MpiBackend
from grsgd.errors import SetupError
from grsgd.job import launch, words
from grsgd.mpi_environment import SPARES, fault_tolerant, flush
from grsgd.own_loop.lives import Lives, meet
from grsgd.own_loop.script_end import SCRIPT_END

LOOK_SECONDS, LATER_LOOK_SECONDS = 2e-3, 0.05
"""Seconds between two checks for deaths, by the spare that takes the next rank, and by the other spares."""


class Late:
    """Communicator of a process that has taken rank ``rank`` of ``size`` ranks.

    All other attributes come from ``alone``, a communicator with only this process. So collective calls need no other
    process.
    """

    def __init__(self, alone, rank: int, size: int):
        self.alone, self.rank, self.size = alone, rank, size

    def __getattr__(self, name: str):
        return getattr(self.alone, name)


class ScriptJob:
    """Processes of a script with spares. ``mpi`` is the communicator of the ranks, or a `Late` on a former spare."""

    def __init__(self, lives: Lives, mpi, local_rank: int):
        self.lives, self.mpi, self.local_rank = lives, mpi, local_rank
        self.is_used = False
        """Whether a loop over `surviving` uses the communicators in ``lives``."""

    @property
    def is_late(self) -> bool:
        """Whether this process was a spare and has taken a rank."""
        return isinstance(self.mpi, Late)

    def release_spares(self):
        """End the wait of the spares, at the end of a script that has not called `surviving`. Rank 0 prints that the
        spares were not used."""
        if self.is_used:  # finish() has ended the wait of the spares
            return
        if self.mpi.rank == 0:
            print("grsgd: spares were given, but grsgd.surviving() was not called", file=sys.stderr, flush=True)
        membership = self.lives.membership
        if self.is_late:
            membership.take_over(self.mpi.rank)
        membership.finish(to_all=False)


@cache
def of_script() -> ScriptJob | None:
    """Return the processes of this script; None for a script without spares. On a spare, this function returns when the
    spare is to take a rank.

    If no rank needs a spare, the spare's process ends within this function. All processes must make the first call;
    later calls need no other process. Raises SetupError for an unfit number of spares, and for an MPI library that does
    not survive deaths.
    """
    if os.environ.get(SPARES, "0") == "0":
        return None
    world = launch.world()
    spares = spares_of(world)
    ranks = world.size - spares
    local_rank, _ = launch.local_ranks(world)
    lives = Lives(MpiBackend(world, launch.start_seconds()), ranks, time.perf_counter)
    mpi = world.Split(int(world.rank >= ranks), world.rank)
    if world.rank >= ranks:
        mpi = Late(alone(), stand_by(lives), ranks)
    job = ScriptJob(lives, mpi, local_rank)
    SCRIPT_END.leave_out_finalize(lives.world, job.release_spares)
    return job


def alone():
    """Return MPI's communicator with only this process."""
    from mpi4py import MPI

    return MPI.COMM_SELF


def spares_of(world) -> int:
    """Return the number of spares that the launcher was given. Raises SetupError for an unfit number."""
    text = os.environ[SPARES]
    spares = int(text) if text.isdecimal() else -1
    if not 0 < spares < world.size - 1:
        what = f"--spares {text}: must be from 0 to {world.size - 2}, because two of {world.size} processes must train"
        raise SetupError(what, is_printed=world.rank == 0)
    if not fault_tolerant():
        what = f"--spares {text}: needs an MPI that survives deaths: Open MPI 5's mpiexec --with-ft ulfm"
        raise SetupError(what, is_printed=world.rank == 0)
    return spares


def stand_by(lives: Lives) -> int:
    """Wait, as a spare, until a rank has no process, and return the rank. Does not return if the job ends first."""
    membership = lives.membership
    with without_signals():
        while not membership.is_wanted():
            if membership.is_over:
                end_unused(lives)
            time.sleep(LOOK_SECONDS if membership.is_next else LATER_LOOK_SECONDS)
    return membership.vacant[0]


@contextmanager
def without_signals() -> Iterator[None]:
    """Ignore, within the block, the signals that ask a job for a checkpoint, unless the script has handlers for
    them."""
    is_in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGUSR1, signal.SIGUSR2) if is_in_main_thread else ()  # only the main thread can set a handler
    usual = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in usual:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number in usual:
            signal.signal(number, signal.SIG_DFL)


def end_unused(lives: Lives):
    """End this spare's process, which no rank needs any more, when the ranks have ended their scripts."""
    while meet(lives.world, math.inf):
        pass
    words.leave(words.ENDED)
    flush()
    os._exit(0)
