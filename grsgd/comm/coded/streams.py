"""Messages of each step from other ranks, of which some may be silent: received in the background, in order."""

import threading
from collections import defaultdict
from collections.abc import Callable
from enum import IntEnum

import numpy as np

from grsgd.comm import tags
from grsgd.comm.communicator import Communicator, LostRank
from grsgd.comm.pollables import Until

AHEAD = 1
"""Of how many steps after the one under way messages are received; later ones stay with their senders."""


class HeaderKind(IntEnum):
    """The meaning of a header."""

    STEP = 0
    """A content follows: the sender's message of a step."""
    LEFT_BEHIND = 1
    """The sender sends the receiver nothing any more, which is too many steps behind."""
    GONE = 2
    """The sender has given up: it was left behind."""
    FINISHED = 3
    """The sender has taken its last step."""
    PROPOSAL = 4
    """The sender proposes to end without the ranks that the header names."""
    AGREED = 5
    """The receiver's proposal may be the decision."""
    DECISION = 6
    """All go on without the ranks that the header names."""
    LAST = 7
    """Nothing follows."""
    WITHDRAWN = 8
    """The sender's proposal is none any more, and it makes no other one: a lower rank has finished."""


FIXED = 4
"""Numbers of a header before its values: word, step, whether the content was made out of those of others, and the last
step of which the sender has a message when it sends this."""


def header(size: int, word: HeaderKind, step: int = 0, is_made: bool = False, values=()) -> np.ndarray:
    """Return a header with room for ``size`` values: int64 of shape [`FIXED` + size]."""
    numbers = np.zeros(FIXED + size, np.int64)
    numbers[:FIXED] = word, step, is_made, step
    numbers[FIXED : FIXED + len(values)] = values
    return numbers


class Streams:
    """The messages of all other ranks to this one.

    Parameters
    ----------
    comm
        Carries headers and contents with tags of their own.
    values
        For how many values headers have room.
    row
        ``row(source, step)``: where the content of a rank's message of a step goes; it is in use until the step is
        over, and the same for another step after `AHEAD` + 1.
    announced_step
        ``announced_step(source, step, numbers)``: called with the header of each message of a step.
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
        """The one under way."""
        self.newest = {rank: -1 for rank in range(comm.size) if rank != comm.rank}
        """Of each other rank the last step of which it has a message, as far as is known."""
        self.said: dict[HeaderKind, dict[int, np.ndarray]] = defaultdict(dict)
        """The values that other ranks have told beside the messages of steps, by word and rank."""
        self.heard = 0
        """How often anything was said."""
        self.dead: set[int] = set()
        """Ranks whose processes have died."""
        self._arrived: dict[int, list[int]] = defaultdict(list)
        self._lock = threading.Lock()

    def receive(self, source: int):
        """Background schedule: take in all that a rank sends, until it has said its last word or has died."""
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
        """Note that a rank's message of a step is there; too late, it is dropped."""
        with self._lock:
            if step >= self.step:
                self._arrived[step].append(source)

    def arrived(self, step: int) -> list[int]:
        """Return the ranks whose messages of a step are there, in the order of their arrival."""
        with self._lock:
            return list(self._arrived.get(step, ()))

    def count(self) -> int:
        """Return of how many ranks the message of the step under way is there."""
        with self._lock:
            return len(self._arrived.get(self.step, ()))

    def announced(self) -> int:
        """Return how many ranks are known to have a message of the step under way, or of a later one."""
        return sum(newest >= self.step for newest in self.newest.values())

    def go_on(self):
        """The step under way is over: forget its messages."""
        with self._lock:
            self._arrived.pop(self.step)
            self.step += 1
