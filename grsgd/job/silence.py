"""Killing of processes that send no signs of life for too long, such as stopped processes, by another process on the
same host.

A silent process that is alive may later send messages of steps that the other ranks have finished without this process.
So a silent process is killed. MPI then reports the death to all ranks, which go on as after any other death.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from grsgd.comm import tags
from grsgd.comm.communicator import Communicator, receive_if_come
from grsgd.comm.elastic.membership import Membership, Tolerant
from grsgd.comm.pollables import Until

SIGNS = 4
"""Number of signs of life (messages) that a process sends within ``seconds``. A process that sends no sign of life for
``seconds`` counts as silent."""


class Silence:
    """Sender of signs of life to the other processes on this host. A `Silence` object also kills processes on this host
    that send no signs of life.

    Parameters
    ----------
    comm
        Communicator of all processes, which carries only signs of life.
    membership
        Record of which processes live, and which process holds each rank.
    processes
        (host, process id) of each process, as `grsgd.job.places.processes` returns them.
    seconds
        Seconds without a sign of life after which a process is killed.
    """

    def __init__(
        self,
        comm: Communicator,
        membership: Membership,
        processes: list[tuple[str, int]],
        seconds: float,
        kill: Callable[[int, int], None] = os.kill,
    ):
        self.comm, self.membership, self.seconds, self.kill = comm, membership, seconds, kill
        here = processes[comm.rank][0]
        self.ids = {other: pid for other, (host, pid) in enumerate(processes) if host == here and other != comm.rank}
        self.heard: dict[int, float] = {}
        """Dictionary from each process on this host to the time of its last sign of life."""
        self.is_over = False
        """Whether training is over on this process. After training this process kills no silent process, because
        processes may end by themselves."""
        self._signed = self._looked = -np.inf
        self._sending: list[Tolerant] = []

    def attend(self):
        """Call `look` again and again, for as long as this process runs. This method is a schedule (a generator that
        yields the objects it waits for), which runs in the background."""
        yield Until(self.look, "silent processes")

    def look(self) -> bool:
        """Send a sign of life if the last one is old enough, and kill processes that are silent for too long. Return
        False, so that the schedule `attend` calls this method again."""
        now = self.membership.clock()
        if now - self._looked < self.seconds / SIGNS / 4:
            return False
        # this process itself was stopped and received no signs of life, so no process counts as silent
        if now - self._looked > self.seconds / 2:
            self.heard = dict.fromkeys(self.ids, now)
        self._looked = now
        while (sign := receive_if_come(self.comm, tags.SIGN_OF_LIFE, 1, np.int64)) is not None:
            self.heard[int(sign[0])] = now
        if now - self._signed >= self.seconds / SIGNS:
            self._signed = now
            self._sign()
        if not self.is_over:
            self._end_silent(now)
        return False

    def _sign(self):
        self._sending = [sending for sending in self._sending if not sending.Test()]
        sign = np.array([self.comm.rank], np.int64)
        for process in self.ids.keys() - self.membership.dead:
            self._sending.append(Tolerant(self.comm.Isend(sign, process, tags.SIGN_OF_LIFE), sign))

    def _end_silent(self, now: float):
        """Kill the silent processes on this host. Only the lowest process on the host that is not silent kills other
        processes."""
        living = self.ids.keys() - self.membership.dead
        silent = {process for process in living if now - self.heard[process] > self.seconds}
        if min(living - silent | {self.comm.rank}) == self.comm.rank:
            for process in sorted(silent):
                self._end(process)

    def _end(self, process: int):
        self.heard[process] = np.inf
        holders = self.membership.holders
        who = f"rank {holders.index(process)}" if process in holders else f"process {process}, a spare,"
        with suppress(ProcessLookupError):
            self.kill(self.ids[process], signal.SIGKILL)
            said = f"{who} has given no sign of life for {self.seconds:g} s: its process is killed"
            print(f"\ngrsgd: {said}", file=sys.stderr, flush=True)
