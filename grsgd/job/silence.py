"""End of processes that are silent for too long, such as stopped ones, by another process on their host.

A process that is only silent, not dead, may come back, with messages of steps that the others have gone on without.
After it has been killed, MPI tells all ranks that it has died, and they go on as after any other death.
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
"""Number of signs of life that a process gives in the time after which it is taken for dead."""


class Silence:
    """Sender of signs of life to the other processes of this host, which ends processes that give none.

    Parameters
    ----------
    comm
        Communicator of all processes, which carries nothing else.
    membership
        Knowledge of which processes live.
    processes
        (host, process id) of each process, as `grsgd.job.launch.processes` returns them.
    seconds
        Seconds after which a silent process is ended.
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
        """Time of the last sign of life of each process."""
        self.is_over = False
        """Whether training is over on this process: from then on this process kills no silent process, because
        processes may end by themselves."""
        self._signed = self._looked = -np.inf
        self._sending: list[Tolerant] = []

    def attend(self):
        """Schedule, run in the background without end, that tells the other processes that this process is alive, and
        kills silent processes."""
        yield Until(self.look, "silent processes")

    def look(self) -> bool:
        """Give a sign of life, and end processes that have given none for too long; return False."""
        now = self.membership.clock()
        if now - self._looked < self.seconds / SIGNS / 4:
            return False
        if now - self._looked > self.seconds / 2:  # this process has stood still itself, and heard no other
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
        """End silent processes, if this is the lowest process of its host that gives signs: one is enough."""
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
            said = f"{who} has given no sign of life for {self.seconds:g} s: its process is ended"
            print(f"\ngrsgd: {said}", file=sys.stderr, flush=True)
