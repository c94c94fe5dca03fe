"""Streams: this rank receives one message per step from each other rank in the background, although some ranks may be
silent.

A schedule is a generator that yields each object it waits for.
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
"""Number of steps after the present step for which this rank already receives messages. Messages for later steps wait
on their senders."""


class HeaderKind(IntEnum):
    """Meaning of a header. A header is a message that is sent before the content of a step, or without content."""

    STEP = 0
    """The sender sends the content of its message for a step after this header."""
    LEFT_BEHIND = 1
    """The sender sends no more messages to the receiver, because the receiver is too many steps behind."""
    GONE = 2
    """The sender has stopped training, because other ranks have left it behind."""
    FINISHED = 3
    """The sender has taken its last step."""
    PROPOSAL = 4
    """The sender proposes to end the run without the ranks that the header names."""
    AGREED = 5
    """The sender agrees to the receiver's proposal."""
    DECISION = 6
    """The ranks have decided to end the run without the ranks that the header names."""
    LAST = 7
    """The sender sends no message after this header."""
    WITHDRAWN = 8
    """The sender withdraws its proposal and makes no other proposal, because a lower rank has finished."""


FIXED = 4
"""Number of elements at the beginning of each header, before the header's values.

The first two elements are the kind of the header and the step. The third element is 1 if the sender made the content
from other ranks' messages. The fourth element is the last step for which the sender has sent a message.
"""


def header(size: int, word: HeaderKind, step: int = 0, is_made: bool = False, values=()) -> np.ndarray:
    """Return a header with ``values``, padded with zeros to ``size`` values: int64 of shape [`FIXED` + size]."""
    numbers = np.zeros(FIXED + size, np.int64)
    numbers[:FIXED] = word, step, is_made, step
    numbers[FIXED : FIXED + len(values)] = values
    return numbers


class Streams:
    """Receiver of the messages of all other ranks to this rank.

    Parameters
    ----------
    comm
        Communicator that carries the messages. Headers and contents of messages have different tags.
    values
        Number of values in each header.
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
        """Number of the present step."""
        self.newest = {rank: -1 for rank in range(comm.size) if rank != comm.rank}
        """Last step for which each other rank has a message, as far as this rank knows."""
        self.said: dict[HeaderKind, dict[int, np.ndarray]] = defaultdict(dict)
        """The values in received headers of all kinds except STEP, by kind of the header and sending rank."""
        self.heard = 0
        """Number of received headers of all kinds except STEP, plus the number of ranks in `dead`."""
        self.dead: set[int] = set()
        """Ranks whose processes have died."""
        self._arrived: dict[int, list[int]] = defaultdict(list)
        self._lock = threading.Lock()

    def receive(self, source: int):
        """Background schedule that receives the messages of rank ``source``, until the header LAST of ``source``
        arrives or the process of ``source`` has died."""
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
        """Record that the message of rank ``source`` for ``step`` has arrived. A message for a step that is over is
        ignored."""
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
        """Return the number of other ranks that are known to have a message for the present step or for a later
        step."""
        return sum(newest >= self.step for newest in self.newest.values())

    def go_on(self):
        """End the present step, forget its messages, and begin the next step."""
        with self._lock:
            self._arrived.pop(self.step)
            self.step += 1
