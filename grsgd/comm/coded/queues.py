"""Messages to ranks that may be silent. The messages are queued per receiver. A message is sent when the receiver has
received the previous message.

So no rank waits for a silent rank, and the MPI library holds few messages to a silent rank. The length of a queue has a
limit.
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
    """A buffer that several messages carry. When no message carries the buffer any more, it is added to the list
    ``spare`` of free buffers."""

    def __init__(self, buffer, spare: list):
        self.buffer, self._spare, self._users = buffer, spare, 0

    def use(self):
        """Count one more message that carries the buffer."""
        self._users += 1

    def drop(self):
        """Count one message less that carries the buffer. If no message carries the buffer any more, add it to the free
        buffers."""
        self._users -= 1
        if not self._users:
            self._spare.append(self.buffer)


class Letter(NamedTuple):
    """A message to one rank: a header (int64), and a content or None."""

    header: np.ndarray
    content: Content | None = None


class Queues:
    """Messages from one rank to the other ranks. A message is kept until its receiver has received it.

    Parameters
    ----------
    comm
        Communicator that carries the messages; headers have one tag, and contents have another tag.

    most
        Largest number of contents that may wait for a receiver. If one more content waits, the receiver is left behind:
        the messages that wait for this receiver are dropped, and it gets no messages any more, except ``farewell``.

    make_buffer
        Function that makes a buffer for a content.

    farewell
        Header that is sent as the last message to a rank that is left behind.
    """

    def __init__(self, comm: Communicator, most: int, make_buffer: Callable[[], object], farewell: np.ndarray):
        self.comm, self.most, self.make_buffer, self.farewell = comm, most, make_buffer, farewell
        self.others = [rank for rank in range(comm.size) if rank != comm.rank]
        self.latest = -1
        """The number of the last step for which a message was sent."""
        self.left_behind: set[int] = set()
        self._waiting: dict[int, deque[Letter]] = {rank: deque() for rank in self.others}
        self._under_way: dict[int, tuple[Letter, list[Tolerant]]] = {}
        self._spare: list = []
        self._lock = threading.RLock()
        """Lock that guards the queues: the trainer puts messages into them, and a background schedule takes messages
        out."""

    def take_buffer(self):
        """Return a buffer for the content of the next `send`."""
        with self._lock:
            return self._spare.pop() if self._spare else self.make_buffer()

    def send(self, header: np.ndarray, buffer, receivers: Iterable[int]):
        """Send ``header`` and ``buffer`` to all ``receivers`` that are not left behind. ``buffer`` is from
        `take_buffer`; do not change it after this call."""
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
        """Send ``header`` without content to ``receivers``."""
        with self._lock:
            for receiver in receivers:
                self._waiting[receiver].append(Letter(header))
                self._move(receiver)

    def move(self) -> bool:
        """Begin to send all messages that can be sent now; return True if then no message waits or is under way."""
        with self._lock:
            for receiver in self.others:
                self._move(receiver)
            return not self._under_way

    def is_delivered(self, receivers: Iterable[int]) -> bool:
        """Return whether each of the ``receivers`` has received all messages to itself."""
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
            if letter.content is not None:  # a plain send might let MPI store any number of short messages
                messages.append(Tolerant(self.comm.Issend(letter.content.buffer, receiver, tags.SUM_CONTENT)))
            self._under_way[receiver] = letter, messages

    def _leave_behind(self, receiver: int):
        self.left_behind.add(receiver)
        for letter in self._waiting[receiver]:
            if letter.content is not None:
                letter.content.drop()
        self._waiting[receiver].clear()
        self._waiting[receiver].append(Letter(self.farewell))
