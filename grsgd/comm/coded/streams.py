"""Messages from other ranks: one message per step and rank, received in the background. Some of the ranks may be
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
"""Number of steps after the step under way for which this rank already receives messages. Messages for later steps wait
on their senders."""


class HeaderKind(IntEnum):
    """Meaning of a header. A header is sent before a content, or alone."""

    STEP = 0
    """After this header, the sender sends the content of its message of a step."""
    LEFT_BEHIND = 1
    """The sender sends nothing more to the receiver, because the receiver is too many steps behind."""
    GONE = 2
    """The sender has given up, because it was left behind."""
    FINISHED = 3
    """The sender has taken its last step."""
    PROPOSAL = 4
    """The sender proposes to go on without the ranks that the header names."""
    AGREED = 5
    """The sender agrees to the receiver's proposal."""
    DECISION = 6
    """All ranks go on without the ranks that the header names."""
    LAST = 7
    """The sender sends nothing after this header."""
    WITHDRAWN = 8
    """The sender withdraws its proposal and makes no other proposal, because a lower rank has finished."""


FIXED = 4
"""Number of elements of a header before its values.

These elements are: the kind of the header; the step; whether the sender made the content from other ranks' messages;
the last step of which the sender has sent a message.
"""


def header(size: int, word: HeaderKind, step: int = 0, is_made: bool = False, values=()) -> np.ndarray:
    """Return a header with room for ``size`` values: int64 of shape [`FIXED` + size]."""
    numbers = np.zeros(FIXED + size, np.int64)
    numbers[:FIXED] = word, step, is_made, step
    numbers[FIXED : FIXED + len(values)] = values
    return numbers


class Streams:
    """The messages of all other ranks to this rank.

    Parameters
    ----------
    comm
        Communicator of the messages. Headers have one tag, and contents have another tag.
    values
        Number of values at the end of each header.
    row
        ``row(source, step)`` returns the memory for the content of the message of rank ``source`` in ``step``. The
        memory is in use until ``step`` is over. Step ``step`` + `AHEAD` + 1 uses the same memory again.
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
        """Number of the step under way."""
        self.newest = {rank: -1 for rank in range(comm.size) if rank != comm.rank}
        """Per other rank, the last step of which the other rank has a message, as far as this rank knows."""
        self.said: dict[HeaderKind, dict[int, np.ndarray]] = defaultdict(dict)
        """The values in headers of other kinds than STEP, by kind and rank."""
        self.heard = 0
        """Number of headers of other kinds than STEP, plus the number of deaths."""
        self.dead: set[int] = set()
        """Ranks whose processes have died."""
        self._arrived: dict[int, list[int]] = defaultdict(list)
        self._lock = threading.Lock()

    def receive(self, source: int):
        """Schedule, run in the background, that receives the messages of rank ``source`` until the last header of
        ``source``, or until the process of ``source`` has died."""
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
        """Record that a rank's message of a step has arrived; a message of an earlier step is dropped."""
        with self._lock:
            if step >= self.step:
                self._arrived[step].append(source)

    def arrived(self, step: int) -> list[int]:
        """Return the ranks whose messages of a step have arrived, in the order of arrival."""
        with self._lock:
            return list(self._arrived.get(step, ()))

    def count(self) -> int:
        """Return the number of ranks whose messages of the step under way have arrived."""
        with self._lock:
            return len(self._arrived.get(self.step, ()))

    def announced(self) -> int:
        """Return the number of ranks that are known to have a message of the step under way or of a later step."""
        return sum(newest >= self.step for newest in self.newest.values())

    def go_on(self):
        """End the step under way and forget its messages."""
        with self._lock:
            self._arrived.pop(self.step)
            self.step += 1
