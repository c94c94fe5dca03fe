"""Word from any rank to all others that the run is over, outside the traffic of the algorithms."""

import numpy as np

from grsgd.comm.communicator import ANY_RANK

TAG = 1
LENGTH = 512


class Stopped(Exception):
    """The run ends before its time, on every rank; the message says why."""


class Control:
    """The stop word of one rank. ``comm`` is used for nothing else with tag 1."""

    def __init__(self, comm):
        self.comm = comm
        self.reason: str | None = None
        self.request: str | None = None
        """Set by another thread of this rank: a reason to stop at the next `watch`."""
        self._sending = []

    def stop(self, reason: str):
        """Tell all ranks; raises Stopped here, and there at their next `watch`."""
        if self.reason is None:
            self.reason = reason
            word = np.frombuffer(reason.encode()[:LENGTH].ljust(LENGTH), np.uint8).copy()
            others = (rank for rank in range(self.comm.size) if rank != self.comm.rank)
            self._sending = [self.comm.Isend(word, rank, TAG) for rank in others]
        raise Stopped(self.reason)

    def watch(self):
        """Raise Stopped if any rank has called `stop` or made a `request`."""
        if self.request is not None:
            self.stop(self.request)
        if self.reason is None and self.comm.size > 1 and self.comm.Iprobe(ANY_RANK, TAG):
            word = np.zeros(LENGTH, np.uint8)
            message = self.comm.Irecv(word, ANY_RANK, TAG)
            while not message.Test():  # it is here already: a probe found it
                pass
            self.reason = word.tobytes().decode(errors="replace").strip()
        if self.reason is not None:
            raise Stopped(self.reason)
