"""Queues of messages to ranks that may be silent (receive no messages for a while), one queue per receiving rank. A
message in a queue is sent when the receiving rank has received the previous message of the queue.

Because of the queues, a rank does not wait until a silent rank receives, and the MPI library stores few messages for a
silent rank. The number of messages in each queue is limited.
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
    """A buffer whose content is sent to several ranks, in one message per rank. When all messages with the buffer's
    content have been delivered or dropped, the buffer is added to ``spare``, the list of free buffers."""

    def __init__(self, buffer, spare: list):
        self.buffer, self._spare, self._users = buffer, spare, 0

    def use(self):
        """Add 1 to the number of messages that carry the buffer's content and are not yet delivered."""
        self._users += 1

    def drop(self):
        """Subtract 1 from the number of messages that carry the buffer's content and are not yet delivered. If no
        message needs the buffer any more, add the buffer to the list of free buffers."""
        self._users -= 1
        if not self._users:
            self._spare.append(self.buffer)


class Letter(NamedTuple):
    """A message to one rank: a header, perhaps followed by a content. ``header``: array of int64. ``content``: content
    that is sent after the header, or None for a message without content."""

    header: np.ndarray
    content: Content | None = None


class Queues:
    """Queues of the messages from this rank to each other rank. A message stays in its queue until the receiving rank
    has received it.

    Parameters
    ----------
    comm
        Communicator that carries the messages. The header and the content of a message have different tags.

    most
        Largest number of contents that may wait in the queue of a receiver. If more contents wait, the receiver is left
        behind: all messages in its queue are dropped, and only ``farewell`` is still sent to the receiver.

    make_buffer
        Function that returns a new buffer for the content of a message.

    farewell
        Header of the last message to a receiver that is left behind.
    """

    def __init__(self, comm: Communicator, most: int, make_buffer: Callable[[], object], farewell: np.ndarray):
        self.comm, self.most, self.make_buffer, self.farewell = comm, most, make_buffer, farewell
        self.others = [rank for rank in range(comm.size) if rank != comm.rank]
        self.latest = -1
        """The number of the last training step for which this rank has sent a message."""
        self.left_behind: set[int] = set()
        self._waiting: dict[int, deque[Letter]] = {rank: deque() for rank in self.others}
        self._under_way: dict[int, tuple[Letter, list[Tolerant]]] = {}
        self._spare: list = []
        self._lock = threading.RLock()
        """Lock that protects the queues, because the trainer (the thread that computes gradients) adds messages while a
        background schedule removes messages."""

    def take_buffer(self):
        """Return a free buffer, into which the caller writes the content of the next message before it calls `send`."""
        with self._lock:
            return self._spare.pop() if self._spare else self.make_buffer()

    def send(self, header: np.ndarray, buffer, receivers: Iterable[int]):
        """Send ``header``, followed by ``buffer``, to all ranks in ``receivers`` that are not left behind. ``buffer``
        must come from `take_buffer`, and the caller must not change it after this call."""
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
        """Send ``header``, without a content, to the ranks ``receivers``."""
        with self._lock:
            for receiver in receivers:
                self._waiting[receiver].append(Letter(header))
                self._move(receiver)

    def move(self) -> bool:
        """Start to send the next message of each queue whose previous message has been received. Return True if no
        message is left in the queues or under way after this call."""
        with self._lock:
            for receiver in self.others:
                self._move(receiver)
            return not self._under_way

    def is_delivered(self, receivers: Iterable[int]) -> bool:
        """Return True if each rank in ``receivers`` has received all messages that this rank has sent to it."""
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
            # use `Issend`, because with `Isend` MPI might store any number of short messages for a silent rank
            if letter.content is not None:
                messages.append(Tolerant(self.comm.Issend(letter.content.buffer, receiver, tags.SUM_CONTENT)))
            self._under_way[receiver] = letter, messages

    def _leave_behind(self, receiver: int):
        self.left_behind.add(receiver)
        for letter in self._waiting[receiver]:
            if letter.content is not None:
                letter.content.drop()
        self._waiting[receiver].clear()
        self._waiting[receiver].append(Letter(self.farewell))
