"""A message by which any rank tells all other ranks that the run is over. Its bytes do not count as traffic of the
algorithm."""

import threading
from collections.abc import Sequence

import numpy as np

from grsgd.comm import tags
from grsgd.comm.communicator import Communicator, LostRank, receive_if_come

MESSAGE_BYTES = 512
"""Number of bytes of a message. A message has its kind, then the reason as text, which is cut off or padded with spaces
to this length."""
STOP, FAILURE = b"-", b"!"
"""Kinds of messages."""


class Stopped(Exception):
    """Error raised on every rank if the run ends early. The error's message gives the reason."""


class EndAsked(Stopped):
    """Error raised on every rank after a checkpoint for which a signal asked, and after which the run ends."""


class UnevenSteps(RuntimeError):
    """Error of a rank that waits for a step that another rank will not take; the error's message names both ranks."""


class UnevenCalls(RuntimeError):
    """Error of ranks whose collective calls do not match; the error's message names the calls of two ranks."""


class StopSignal:
    """A signal that tells all ranks that the run is over, and that receives the signal of other ranks.

    Parameters
    ----------
    comm
        A communicator that carries no other messages with tag `grsgd.comm.tags.STOP`.
    tolerant
        Whether the run goes on without ranks whose processes have died.
    """

    def __init__(self, comm: Communicator, tolerant: bool = False):
        self.comm, self.tolerant = comm, tolerant
        self.reason: str | None = None
        self.failed = False
        """Whether the run ends because a rank has failed. If so, no rank may wait for the failed rank any more."""
        self.request: str | None = None
        """A reason to stop at the next `watch`, which another thread of this rank sets."""
        self._sending = []
        self._receiving = threading.Lock()
        """Held while messages are received: two threads may watch."""

    def stop(self, reason: str):
        """Tell all ranks to stop. This call raises Stopped, and so does the next `watch` on each of the other ranks."""
        if self.reason is None:
            self.reason = reason
            self._send(STOP)
        raise Stopped(self.reason)

    def fail(self, reason: str):
        """Tell all living ranks that this rank has failed, or that another rank has died."""
        self.reason, self.failed = reason, True
        self._send(FAILURE)

    def watch(self):
        """Raise Stopped if any rank has called `stop` or `fail`, or has a `request`; raise LostRank if a rank
        has died."""
        if self.request is not None and not self.failed:
            self.stop(self.request)
        self.watch_failures()
        if self.reason is not None:
            raise Stopped(self.reason)

    def watch_failures(self):
        """Raise Stopped if any rank has called `fail`; raise LostRank if a rank has died and the run is not
        tolerant."""
        with self._receiving:
            while self.comm.size > 1 and not self.failed and self._receive():
                pass
        if self.failed:
            raise Stopped(self.reason)
        if self.comm.lost and not self.tolerant:
            raise LostRank(died(self.comm.lost))

    def _receive(self) -> bool:
        """Receive a message of another rank; return whether one has arrived."""
        come = receive_if_come(self.comm, tags.STOP, MESSAGE_BYTES)
        if come is None:
            return False
        content = come.tobytes()
        self.failed = content[:1] == FAILURE
        if self.failed or self.reason is None:
            self.reason = content[1:].decode(errors="replace").strip()
        return True

    def repeat(self, rank: int):
        """Tell ``rank`` again of an earlier stop or failure, after another process has taken ``rank``."""
        if self.reason is not None:
            self._send(FAILURE if self.failed else STOP, [rank])

    def _send(self, kind: bytes, ranks: Sequence[int] | None = None):
        content = (kind + self.reason.encode())[:MESSAGE_BYTES].ljust(MESSAGE_BYTES)
        message = np.frombuffer(content, np.uint8).copy()
        for rank in range(self.comm.size) if ranks is None else ranks:
            if rank not in (self.comm.rank, *self.comm.lost):
                self._sending.append(self.comm.Isend(message, rank, tags.STOP))


def died(ranks: Sequence[int]) -> str:
    """Return a sentence that says that the processes of ``ranks`` have died."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} lost: its process has died"
    return f"ranks {', '.join(map(str, ranks))} lost: their processes have died"
