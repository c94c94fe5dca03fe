"""Timeline of a run on real MPI. Each rank records its activities (spans of time), and one rank writes the timeline
file when training ends."""

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from grsgd.comm import tags
from grsgd.comm.backend import Backend
from grsgd.comm.engine import Schedule
from grsgd.comm.timeline_probe import TimelineBackend, observed
from grsgd.comm.watchdog import within
from grsgd.errors import ConfigError, RunFileError
from grsgd.job import launch, places
from grsgd.runs.run_file import check_writable
from grsgd.runs.timeline import FinishedTimeline, Timeline, limit_of, write

SHORTEST = 1e-6
"""Duration in seconds below which waits and computations are left out of the timeline. Even without a wait, a schedule
(a generator) takes some time between two yields."""
CLOCK = "wall: ranks of one host have one clock, and clocks of different hosts were set to 0 by a barrier"


class TimelineFile:
    """This rank's part of the timeline file ``path``, which all ranks of ``mpi`` write together when training ends."""

    def __init__(self, path: Path, mpi):
        self.path, self.mpi = path, mpi
        self.timeline = Timeline(mpi.rank, time.perf_counter, limit_of(mpi.size), SHORTEST)

    def recorded(self, backend: Backend) -> Backend:
        """Return ``backend`` wrapped so that its messages are recorded in the timeline."""
        return TimelineBackend(backend, self.timeline)

    def observed(self, schedule: Schedule) -> Schedule:
        """Return ``schedule`` wrapped so that its computations and waits are recorded in the timeline."""
        return observed(schedule, self.timeline)

    def begin(self, timeout: float):
        """Set the zero of the timeline to the beginning of training; to be called on all ranks. Ranks on one host have
        the same clock. For ranks on different hosts the zero of the timeline is the moment at which they leave a
        barrier. Two barriers are executed, so that no rank waits long in the second barrier, which sets the zero."""
        for _ in range(2):
            launch.barrier(self.mpi, timeout)
        now = time.perf_counter()
        with within(timeout, "agreeing on when training began"):
            hosts = [host for host, _ in places.processes(self.mpi)]
            self.timeline.begin(self.mpi.allgather(now)[hosts.index(hosts[self.mpi.rank])])

    def gather(self, remaining, timeout: float):
        """Write the timeline file on the lowest rank of the communicator ``remaining``; to be called on all ranks of
        ``remaining``."""
        with within(timeout, "collecting the timelines of all ranks"):
            kept = remaining.gather(self.timeline.kept())
        if remaining.rank == 0:
            self.write(kept)

    def write(self, kept: Iterable[FinishedTimeline]):
        """Write the timelines of the ranks to the file. Print a line on stderr if spans (activities) are missing, or if
        the file cannot be written."""
        try:
            lines = write(self.path, kept, CLOCK)
        except RunFileError as error:
            lines = [str(error)]
        for line in lines:
            print(f"grsgd: {line}", file=sys.stderr, flush=True)

    def rescue(self, mpi, saver: int, ranks: Iterable[int], seconds: float):
        """Write the timelines that arrive when the job ends early. Each of ``ranks`` sends its timeline to rank
        ``saver``, over ``mpi``, within ``seconds`` seconds."""
        deadline, mine = time.perf_counter() + seconds, self.timeline.kept()
        if mpi.rank != saver:
            sending = mpi.isend(mine, saver, tags.RESCUED_TIMELINE)
            while time.perf_counter() < deadline and not is_sent(sending):
                time.sleep(1e-3)
            _unfinished.append(sending)
            return
        kept, waiting = [mine], set(ranks) - {saver}
        while waiting and time.perf_counter() < deadline:
            for rank in sorted(waiting):
                try:
                    if mpi.iprobe(rank, tags.RESCUED_TIMELINE):
                        kept.append(mpi.recv(source=rank, tag=tags.RESCUED_TIMELINE))
                        waiting.discard(rank)
                except RuntimeError:  # receiving failed, because the rank has died
                    waiting.discard(rank)
            time.sleep(1e-3)
        self.write(sorted(kept, key=lambda one: one.rank))


_unfinished: list = []
"""MPI requests of messages that may be under way. The requests are kept because a message's buffer must exist until the
message has arrived."""


def is_sent(sending) -> bool:
    try:
        return bool(sending.Test())
    except RuntimeError:  # sending failed, because the receiver has died
        return True


def check(path: str | os.PathLike, out: str | os.PathLike):
    """Check before training whether a timeline can be written to ``path``. ``out`` is the path of the run file.

    Raises ConfigError if ``path`` and ``out`` are the same file. Raises RunFileError if the timeline cannot be written.
    """
    if os.path.realpath(path) == os.path.realpath(out):
        raise ConfigError(f"--timeline {path}: is the file of --out, too: each option needs its own file")
    check_writable(path)
