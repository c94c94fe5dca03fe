"""Queues of messages to ranks that may be silent, one queue per receiver. A message is sent when the receiver has
received the previous message.

Because of the queues, no rank waits for a silent rank, and the MPI library stores few messages to a silent rank. The
length of each queue is limited.
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
    """A buffer that is sent in several messages. When all these messages are delivered or dropped, the buffer is added
    to ``spare``, the list of free buffers."""

    def __init__(self, buffer, spare: list):
        self.buffer, self._spare, self._users = buffer, spare, 0

    def use(self):
        """Add 1 to the number of messages in which the buffer is sent."""
        self._users += 1

    def drop(self):
        """Subtract 1 from the number of messages in which the buffer is sent. If the number is 0, add the buffer to the
        free buffers."""
        self._users -= 1
        if not self._users:
            self._spare.append(self.buffer)


class Letter(NamedTuple):
    """A message to one rank. ``header``: array of int64. ``content``: content that is sent after the header, or
    None."""

    header: np.ndarray
    content: Content | None = None


class Queues:
    """Queues of the messages from one rank to the other ranks. A message is kept until the message's receiver has
    received it.

    Parameters
    ----------
    comm
        Communicator that carries the messages. Headers and contents of messages have different tags.

    most
        Largest number of contents that may wait for a receiver. If more contents wait for a receiver, the receiver is
        left behind. All messages that wait for a receiver that is left behind are dropped, and only ``farewell`` is
        still sent to the receiver.

    make_buffer
        Function that returns a new buffer for a content.

    farewell
        Header that is sent as the last message to a receiver that is left behind.
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
        """Lock that protects the queues: the trainer (the thread that computes gradients) adds messages, and a
        background schedule removes messages."""

    def take_buffer(self):
        """Return a free buffer for the content of the next message that is passed to `send`."""
        with self._lock:
            return self._spare.pop() if self._spare else self.make_buffer()

    def send(self, header: np.ndarray, buffer, receivers: Iterable[int]):
        """Send ``header`` and ``buffer`` to all ``receivers`` that are not left behind. ``buffer`` must be a buffer
        from `take_buffer`, and must not be changed after this call."""
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
        """Start to send all messages that can be sent now. Return True if no message waits or is under way after this
        call."""
        with self._lock:
            for receiver in self.others:
                self._move(receiver)
            return not self._under_way

    def is_delivered(self, receivers: Iterable[int]) -> bool:
        """Return whether each rank in ``receivers`` has received all messages that were sent to the rank."""
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
            if letter.content is not None:  # with `Isend`, MPI might store any number of short messages
                messages.append(Tolerant(self.comm.Issend(letter.content.buffer, receiver, tags.SUM_CONTENT)))
            self._under_way[receiver] = letter, messages

    def _leave_behind(self, receiver: int):
        self.left_behind.add(receiver)
        for letter in self._waiting[receiver]:
            if letter.content is not None:
                letter.content.drop()
        self._waiting[receiver].clear()
        self._waiting[receiver].append(Letter(self.farewell))
