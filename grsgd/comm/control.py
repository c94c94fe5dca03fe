"""Word from any rank to all others that the run is over, outside the traffic of the algorithms."""

import numpy as np

from grsgd.comm.communicator import ANY_RANK, LostRank, has_died

TAG = 1
LENGTH = 512
STOP, FAILURE = b"-", b"!"
"""How a word begins."""


class Stopped(Exception):
    """The run ends before its time, on every rank; the message says why."""


class UnevenSteps(RuntimeError):
    """A rank waits for a step that another one will not take; the message names both."""


class Control:
    """The stop word of one rank. ``comm`` is used for nothing else with tag 1.

    ``tolerant``: the run goes on without ranks whose processes have died.
    """

    def __init__(self, comm, tolerant: bool = False):
        self.comm, self.tolerant = comm, tolerant
        self.reason: str | None = None
        self.failed = False
        """Whether the reason is that some rank has failed: nobody must wait for it any more."""
        self.request: str | None = None
        """Set by another thread of this rank: a reason to stop at the next `watch`."""
        self._sending = []

    def stop(self, reason: str):
        """Tell all ranks; raises Stopped here, and there at their next `watch`."""
        if self.reason is None:
            self.reason = reason
            self._tell(STOP)
        raise Stopped(self.reason)

    def fail(self, reason: str):
        """Tell all ranks that can still hear it that this one has failed, or that another one has died."""
        self.reason, self.failed = reason, True
        self._tell(FAILURE)

    def watch(self):
        """Raise Stopped if any rank has called `stop` or `fail` or made a `request`, and LostRank if one has died."""
        if self.request is not None and not self.failed:
            self.stop(self.request)
        self.watch_failures()
        if self.reason is not None:
            raise Stopped(self.reason)

    def watch_failures(self):
        """Raise Stopped if any rank has called `fail`, and LostRank if one has died."""
        while self.comm.size > 1 and not self.failed and self.comm.Iprobe(ANY_RANK, TAG):
            word = np.zeros(LENGTH, np.uint8)
            message = self.comm.Irecv(word, ANY_RANK, TAG)
            while not message.Test():  # it is here already: a probe found it
                pass
            word = word.tobytes()
            self.failed = word[:1] == FAILURE
            if self.failed or self.reason is None:
                self.reason = word[1:].decode(errors="replace").strip()
        if self.failed:
            raise Stopped(self.reason)
        if self.comm.lost and not self.tolerant:
            raise LostRank(died(self.comm.lost))

    def _tell(self, kind: bytes):
        word = np.frombuffer((kind + self.reason.encode())[:LENGTH].ljust(LENGTH), np.uint8).copy()
        for rank in range(self.comm.size):
            if rank not in (self.comm.rank, *self.comm.lost):
                try:
                    self._sending.append(self.comm.Isend(word, rank, TAG))
                except RuntimeError as error:
                    if not has_died(error):
                        raise


def died(ranks) -> str:
    """That the processes of these ranks have died, in words."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} lost: its process has died"
    return f"ranks {', '.join(map(str, ranks))} lost: their processes have died"
