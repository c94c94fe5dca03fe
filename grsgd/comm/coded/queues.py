"""Messages to ranks that may be silent: queued for each, and sent one after the other, as the receiver takes them.

So nobody waits for a silent rank, and few messages to it lie in the MPI library, which has room for some: what more
there is to say waits here, up to a bound.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from grsgd.comm import tags
from grsgd.comm.communicator import Communicator
from grsgd.comm.elastic.membership import Tolerant


class Content:
    """A buffer that several messages carry; goes back to the ``spare`` ones when none does any more."""

    def __init__(self, buffer, spare: list):
        self.buffer, self._spare, self._users = buffer, spare, 0

    def use(self):
        """One message more carries it."""
        self._users += 1

    def drop(self):
        """One less does."""
        self._users -= 1
        if not self._users:
            self._spare.append(self.buffer)


class Letter(NamedTuple):
    """A message to one rank: a header, int64, and behind it a content, or none."""

    header: np.ndarray
    content: Content | None = None


class Queues:
    """The messages of one rank to all others that they have not taken yet.

    Parameters
    ----------
    comm
        Carries headers and contents with tags of their own.
    most
        How many contents may wait for a receiver. With one more it is left behind: what waits is dropped.
    make_buffer
        Makes a buffer for a content.
    farewell
        The header of the last message to a rank that is left behind.
    """

    def __init__(self, comm: Communicator, most: int, make_buffer: Callable[[], object], farewell: np.ndarray):
        self.comm, self.most, self.make_buffer, self.farewell = comm, most, make_buffer, farewell
        self.others = [rank for rank in range(comm.size) if rank != comm.rank]
        self.latest = -1
        """The last step of which there was a message."""
        self.left_behind: set[int] = set()
        self._waiting: dict[int, deque[Letter]] = {rank: deque() for rank in self.others}
        self._under_way: dict[int, tuple[Letter, list[Tolerant]]] = {}
        self._spare: list = []
        self._lock = threading.RLock()
        """The trainer puts messages into queues, and the background takes them out."""

    def take_buffer(self):
        """Return a buffer for the content of the next `send`."""
        with self._lock:
            return self._spare.pop() if self._spare else self.make_buffer()

    def send(self, header: np.ndarray, buffer, receivers: Iterable[int]):
        """Send to all of these that are not left behind; ``buffer`` is of `take_buffer`, and is not to be changed."""
        with self._lock:
            self.latest = int(header[1])
            content = Content(buffer, self._spare)
            content.use()
            for receiver in receivers:
                if receiver not in self.left_behind:
                    content.use()
                    self._waiting[receiver].append(Letter(header, content))
                    self._move(receiver)
                    if len(self._waiting[receiver]) > self.most:
                        self._leave_behind(receiver)
            content.drop()

    def tell(self, header: np.ndarray, receivers: Iterable[int]):
        """Send a header alone."""
        with self._lock:
            for receiver in receivers:
                self._waiting[receiver].append(Letter(header))
                self._move(receiver)

    def move(self) -> bool:
        """Begin to send what can be sent now; returns whether nothing waits or is under way any more."""
        with self._lock:
            for receiver in self.others:
                self._move(receiver)
            return not self._under_way

    def is_delivered(self, receivers: Iterable[int]) -> bool:
        """Return whether these have taken all that was sent to them."""
        self.move()
        return not self._under_way.keys() & set(receivers)

    def _move(self, receiver: int):
        while True:
            if receiver in self._under_way:
                letter, messages = self._under_way[receiver]
                if not all(message.Test() for message in messages):
                    return
                del self._under_way[receiver]
                if letter.content is not None:
                    letter.content.drop()
            if not self._waiting[receiver]:
                return
            letter = self._waiting[receiver].popleft()
            header = letter.header.copy()
            header[3] = self.latest
            messages = [Tolerant(self.comm.Isend(header, receiver, tags.SUM_HEADER, header=header.nbytes), header)]
            if letter.content is not None:  # synchronous: else a library might store any number of short ones
                messages.append(Tolerant(self.comm.Issend(letter.content.buffer, receiver, tags.SUM_CONTENT)))
            self._under_way[receiver] = letter, messages

    def _leave_behind(self, receiver: int):
        self.left_behind.add(receiver)
        for letter in self._waiting[receiver]:
            if letter.content is not None:
                letter.content.drop()
        self._waiting[receiver].clear()
        self._waiting[receiver].append(Letter(self.farewell))
