"""Stop messages, by which any rank tells all other ranks that the run is over. Stop messages are not counted as traffic
of the algorithm."""

import threading
from collections.abc import Sequence

import numpy as np

from grsgd.comm import tags
from grsgd.comm.communicator import Communicator, LostRank, receive_if_come

MESSAGE_BYTES = 512
"""Number of bytes of a stop message. A stop message consists of one byte for its kind (`STOP` or `FAILURE`), and the
reason as text, cut off or padded with spaces."""
STOP, FAILURE = b"-", b"!"
"""Kinds of stop messages, which are the first byte of the message."""


class Stopped(Exception):
    """Error raised on every rank if the run ends early. The message of `Stopped` is the reason why the run ends."""


class EndAsked(Stopped):
    """Error raised on every rank if the run ends after a checkpoint, because a signal of the operating system has
    requested the end."""


class UnevenSteps(RuntimeError):
    """Error raised if this rank waits for a training step that another rank will not take. The message of `UnevenSteps`
    names the two ranks."""


class UnevenCalls(RuntimeError):
    """Error raised if different ranks call different collectives (functions that all ranks must call together). The
    message of `UnevenCalls` names the calls of two ranks."""


class StopSignal:
    """Object by which a rank sends and receives stop messages, which tell all ranks that the run is over.

    Parameters
    ----------
    comm
        A communicator on which only stop messages have the tag `grsgd.comm.tags.STOP`.
    tolerant
        Whether the run continues without the ranks whose processes have died.
    """

    def __init__(self, comm: Communicator, tolerant: bool = False):
        self.comm, self.tolerant = comm, tolerant
        self.reason: str | None = None
        self.failed = False
        """Whether the run ends because a rank has failed. If `failed` is True, no rank may wait for the failed rank any
        more."""
        self.request: str | None = None
        """Reason for which the next call of `watch` on this rank stops the run, or None. Another thread of this rank
        sets `request`."""
        self._sending = []
        self._receiving = threading.Lock()
        """Lock that a thread holds while it receives stop messages, because two threads may call `watch` at the same
        time."""

    def stop(self, reason: str):
        """Send a stop message with ``reason`` to all other ranks, and raise Stopped. On each other rank, the next call
        of `watch` raises Stopped."""
        if self.reason is None:
            self.reason = reason
            self._send(STOP)
        raise Stopped(self.reason)

    def fail(self, reason: str):
        """Send a message with ``reason`` to all living ranks that the run ends, because this rank has failed or another
        rank has died."""
        self.reason, self.failed = reason, True
        self._send(FAILURE)

    def watch(self):
        """Raise Stopped if any rank has called `stop` or `fail`, or if this rank's attribute `request` is set. Raise
        LostRank if the process of a rank has died and `tolerant` is False."""
        if self.request is not None and not self.failed:
            self.stop(self.request)
        self.watch_failures()
        if self.reason is not None:
            raise Stopped(self.reason)

    def watch_failures(self):
        """Raise Stopped if any rank has called `fail`. Raise LostRank if the process of a rank has died and `tolerant`
        is False."""
        with self._receiving:
            while self.comm.size > 1 and not self.failed and self._receive():
                pass
        if self.failed:
            raise Stopped(self.reason)
        if self.comm.lost and not self.tolerant:
            raise LostRank(died(self.comm.lost))

    def _receive(self) -> bool:
        """Receive one stop message, if one has arrived from another rank. Return True if a stop message has arrived."""
        come = receive_if_come(self.comm, tags.STOP, MESSAGE_BYTES)
        if come is None:
            return False
        content = come.tobytes()
        self.failed = content[:1] == FAILURE
        if self.failed or self.reason is None:
            self.reason = content[1:].decode(errors="replace").strip()
        return True

    def repeat(self, rank: int):
        """If this rank has sent a stop message, send it again to ``rank``, because another process has taken over the
        rank ``rank``."""
        if self.reason is not None:
            self._send(FAILURE if self.failed else STOP, [rank])

    def _send(self, kind: bytes, ranks: Sequence[int] | None = None):
        content = (kind + self.reason.encode())[:MESSAGE_BYTES].ljust(MESSAGE_BYTES)
        message = np.frombuffer(content, np.uint8).copy()
        for rank in range(self.comm.size) if ranks is None else ranks:
            if rank not in (self.comm.rank, *self.comm.lost):
                self._sending.append(self.comm.Isend(message, rank, tags.STOP))


def died(ranks: Sequence[int]) -> str:
    """Return the text of an error message which says that the processes of ``ranks`` have died."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} lost: its process has died"
    return f"ranks {', '.join(map(str, ranks))} lost: their processes have died"
