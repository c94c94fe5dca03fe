"""Streams, by which this rank receives one message per step from each other rank in the background, although some ranks
may be silent (send no messages).

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
"""

import threading
from collections import defaultdict
from collections.abc import Callable
from enum import IntEnum

import numpy as np

from grsgd.comm import tags
from grsgd.comm.communicator import Communicator, LostRank
from grsgd.comm.pollables import Until

AHEAD = 1
"""Number of steps by which a message that this rank receives may be ahead of this rank's present step. Messages for
steps further ahead wait on the sending ranks until this rank has gone on."""


class HeaderKind(IntEnum):
    """Kind of a header. A header is an int64 message that is sent before the content of a step's message, or without a
    content."""

    STEP = 0
    """STEP: after this header, the sender sends the content of its message for a step."""
    LEFT_BEHIND = 1
    """LEFT_BEHIND: after this header, the sender sends no more messages to the receiver, because the receiver is too
    many steps behind."""
    GONE = 2
    """GONE: the sender of this header has stopped training, because other ranks have left it behind."""
    FINISHED = 3
    """FINISHED: the sender of this header has taken its last training step."""
    PROPOSAL = 4
    """PROPOSAL: the sender of this header proposes to end the run without the ranks that the header names."""
    AGREED = 5
    """AGREED: the sender of this header agrees to the proposal of the receiver."""
    DECISION = 6
    """DECISION: the ranks have decided to end the run without the ranks that this header names."""
    LAST = 7
    """LAST: the sender sends no message to the receiver after this header."""
    WITHDRAWN = 8
    """WITHDRAWN: the sender of this header withdraws its proposal and makes no other proposal, because a lower rank has
    finished its last step."""


FIXED = 4
"""Number of fixed elements at the beginning of each header, before the values that depend on the kind of the header.

The first two fixed elements of a header are its kind and the number of the step. The third fixed element of a header is
1 if the sender computed its message from the messages of other ranks, and not from its own blocks. The fourth fixed
element of a header is the last step for which the sender has sent a message.
"""


def header(size: int, word: HeaderKind, step: int = 0, is_made: bool = False, values=()) -> np.ndarray:
    """Return a header (int64 of shape [`FIXED` + size]) with the given fixed elements and with ``values``, padded with
    zeros to ``size`` values."""
    numbers = np.zeros(FIXED + size, np.int64)
    numbers[:FIXED] = word, step, is_made, step
    numbers[FIXED : FIXED + len(values)] = values
    return numbers


class Streams:
    """Object by which this rank receives the messages of all other ranks.

    Parameters
    ----------
    comm
        Communicator that carries the messages. The header and the content of a message have different tags.
    values
        Number of values in each header, after the fixed elements.

    row
        ``row(source, step)`` returns the memory for the content of the message of rank ``source`` for ``step``. The
        memory is in use until ``step`` is over, and is used again for ``step`` + `AHEAD` + 1.
    announced_step
        ``announced_step(source, step, numbers)`` is called with the header of each message of a step.
    """

    def __init__(
        self,
        comm: Communicator,
        values: int,
        row: Callable,
        announced_step: Callable[[int, int, np.ndarray], None],
    ):
        self.announced_step = announced_step
        self.comm, self.values, self.row = comm, values, row
        self.step = 0
        """Number of this rank's present training step."""
        self.newest = {rank: -1 for rank in range(comm.size) if rank != comm.rank}
        """Last step for which each other rank has announced to this rank that it has a message."""
        self.said: dict[HeaderKind, dict[int, np.ndarray]] = defaultdict(dict)
        """The values of the headers that this rank has received, of all kinds except STEP, by kind of the header and
        sending rank."""
        self.heard = 0
        """Number of headers that this rank has received, of all kinds except STEP, plus the number of ranks in
        `dead`."""
        self.dead: set[int] = set()
        """Ranks whose processes are known to have died."""
        self._arrived: dict[int, list[int]] = defaultdict(list)
        self._lock = threading.Lock()

    def receive(self, source: int):
        """Generator (schedule), run in the background, that receives the messages of rank ``source``, until the header
        LAST of ``source`` arrives or the process of ``source`` has died."""
        try:
            yield from self._receive(source)
        except LostRank:
            self.dead.add(source)
            self.heard += 1

    def _receive(self, source: int):
        while True:
            numbers = header(self.values, HeaderKind.LAST)
            yield self.comm.Irecv(numbers, source, tags.SUM_HEADER)
            word, step = HeaderKind(int(numbers[0])), int(numbers[1])
            if word is HeaderKind.STEP:
                self.newest[source] = int(numbers[3])
                self.announced_step(source, step, numbers)
                if step > self.step + AHEAD:
                    yield Until(lambda step=step: step <= self.step + AHEAD, "this rank's own steps")
                yield self.comm.Irecv(self.row(source, step), source, tags.SUM_CONTENT)
                self.take(source, step)
            else:
                self.said[word][source] = numbers[FIXED:]
                self.heard += 1
                if word is HeaderKind.LAST:
                    return

    def take(self, source: int, step: int):
        """Record that the message which rank ``source`` has sent for ``step`` has arrived. If this rank has already
        ended ``step``, the message is ignored."""
        with self._lock:
            if step >= self.step:
                self._arrived[step].append(source)

    def arrived(self, step: int) -> list[int]:
        """Return the ranks whose messages for ``step`` have arrived, in the order of arrival."""
        with self._lock:
            return list(self._arrived.get(step, ()))

    def count(self) -> int:
        """Return the number of ranks whose messages for the present step have arrived."""
        with self._lock:
            return len(self._arrived.get(self.step, ()))

    def announced(self) -> int:
        """Return the number of other ranks that have announced a message for the present step or for a later step."""
        return sum(newest >= self.step for newest in self.newest.values())

    def go_on(self):
        """End the present step, discard the step's messages, and begin the next step."""
        with self._lock:
            self._arrived.pop(self.step)
            self.step += 1
