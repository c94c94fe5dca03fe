"""MPI messages between simulated ranks: matching of receives with messages, times of arrival, and copies of the
content.

Messages are matched with receives by the rules of the MPI standard (section 3.5). Messages from one sender to one
receiver with the same tag match receives in the order in which they were sent. A receive from any rank gets the message
that has arrived first. Receives match messages in the order in which the receives were posted.

The content of a long message is copied as late as possible, when the send completes. If a schedule writes to its send
buffer before the send completes, the receiver therefore gets wrong content, and tests find the error. A short message
is copied when it is sent, because real MPI libraries also copy short messages to a buffer of their own.
"""

from collections import defaultdict

import numpy as np

from grsgd.models.shape_only import PREFIX_BYTES, ShapeOnlyArray
from grsgd.simulator.waitable import Waitable


class Sending(Waitable):
    """A sent message, for the `Inbox` ``inbox`` of one receiving rank, one group of ranks and one tag."""

    __slots__ = ("fabric", "array", "nbytes", "source", "dest", "tag", "synchronous", "inbox")
    __slots__ += ("short", "has_arrived", "is_found", "receiving", "order")

    def __init__(self, fabric, array, source: int, dest: int, tag: int, synchronous: bool, inbox: "Inbox"):
        super().__init__()
        self.fabric, self.array, self.source, self.dest, self.tag = fabric, array, source, dest, tag
        self.synchronous, self.inbox = synchronous, inbox
        self.nbytes = array.nbytes
        self.short = self.nbytes <= fabric.network.spec.eager_bytes
        if self.short and not synchronous:
            self.array = array.copy()
            self.complete = True
        self.has_arrived = False
        """Whether the whole message, if it is short, or the announcement of a long message has arrived at the
        receiver."""
        self.is_found = False
        """Whether a probe of the receiver (`MPI_Iprobe`) has found the message. A receiver that probes for messages
        polls, and polling takes no simulated time."""
        self.receiving: Receiving | None = None
        self.order = 0

    def is_gone(self) -> bool:
        """Return True if the message can no longer arrive, because its sender or its receiver has died.

        A short message leaves its sender as soon as it is sent, and therefore arrives even if the sender dies.
        """
        dead = self.fabric.dead
        return self.dest in dead or (self.source in dead and not self.short)

    def on_handed_over(self):
        """Process the event that the sender's processor has handed the message over to the network."""
        if self not in self.fabric.under_way or self.source in self.fabric.dead:
            return
        fabric, network = self.fabric, self.fabric.network
        self.inbox.sent[self.source].append(self)
        if self.short:
            network.transfer(self.source, (self.dest,), self.nbytes, self)
        fabric.match(self.inbox, self.source)
        if not self.short and self.receiving is None:
            network.after(network.latency(self.source, self.dest), self.on_announced)

    def on_left(self):
        """Process the event that the message's last byte has left the sender."""
        processor = self.fabric.processor(self.source)
        if processor is not None:
            processor.left()
        if self.is_gone():
            return
        if not self.short:
            copy_into(self.receiving.array, self.array)  # after this copy, the sender may write to its send buffer
        if not self.synchronous and not self.complete:
            self.finish(self.fabric.drivers[self.source])

    def on_arrived(self, dest, _):
        """Process the event that the message's last byte has arrived at the receiver's host."""
        if self.is_gone():
            return
        processor = self.fabric.processor(self.dest)
        if processor is not None:
            processor.notice(self.on_noticed)
        else:
            self.on_noticed()

    def on_noticed(self):
        """Process the event that the receiving rank has noticed the arrival of the message's last byte."""
        if self.receiving is not None:
            self.take_in()
        else:
            self.on_announced()

    def take_in(self):
        """Let the receiver's processor receive the message into the buffer of its receive."""
        processor = self.fabric.processor(self.dest)
        if processor is None:
            self.on_received()
        elif self.is_found:  # the processor's work prolongs the receiver's next computation
            processor.receive(self.nbytes, lambda: None)
            self.on_received()
        else:
            processor.receive(self.nbytes, self.on_received)

    def on_announced(self, _=None):
        """Process the event that a short message, or the announcement of a long message, has arrived."""
        if self.receiving is None and not self.is_gone():
            self.has_arrived = True
            self.inbox.waiting += 1
            self.order = next(self.fabric.counter)
            self.fabric.match(self.inbox, self.source)
            if self.receiving is None:
                self.fabric.drivers[self.dest].on_unexpected_message()

    def on_received(self):
        """Complete the send and the receive. The whole message has arrived, and its receive is posted."""
        fabric = self.fabric
        if self.is_gone() or self not in fabric.under_way:  # a process died while the processor took in the message
            return
        del fabric.under_way[self]
        if self.short:
            copy_into(self.receiving.array, self.array)
        if self.synchronous:  # the acknowledgement of a synchronous message takes one latency
            latency = fabric.network.latency(self.source, self.dest)
            fabric.network.after(latency, lambda _: self.finish(fabric.drivers[self.source]))
        self.receiving.finish(fabric.drivers[self.dest])


class Receiving(Waitable):
    """A receive that a simulated rank has posted (`MPI_Irecv`)."""

    __slots__ = ("array", "order", "source", "queue")

    def __init__(self, array, order: int = 0):
        super().__init__()
        self.array, self.order = array, order
        self.queue: list[Receiving] | None = None
        """Queue of the `Inbox` in which the receive waits for a message; None if the receive was never put into a
        queue."""
        self.source: int | None = None
        """Rank that has sent the received message; None until the receive is matched with a message."""

    def Cancel(self):
        if self.queue is not None and self in self.queue:
            self.queue.remove(self)
            self.complete = True


class Inbox:
    """The messages to one rank that have no receive yet, and the receives of this rank that have no message yet. All
    messages and receives in an inbox have the same group of ranks and the same tag."""

    __slots__ = ("sent", "posted", "posted_any", "waiting")

    def __init__(self):
        self.sent: dict[int, list[Sending]] = defaultdict(list)  # a list, because each deque would allocate 64 entries
        self.posted: dict[int, list[Receiving]] = defaultdict(list)
        self.posted_any: list[Receiving] = []
        self.waiting = 0
        """Number of messages that have arrived, or have been announced, and for which no receive is posted."""

    def next_pair(self, source: int) -> "tuple[Sending, Receiving] | None":
        """Remove the next message from ``source`` and the receive that gets it, and return both. Return None if no
        message from ``source`` can be matched with a receive at present."""
        sent, posted, posted_any = self.sent.get(source), self.posted.get(source), self.posted_any
        if not (sent and (posted or posted_any)):
            return None
        if posted_any and (not posted or posted_any[0].order < posted[0].order):
            if not sent[0].has_arrived:
                return None  # the receive accepts messages from any rank, and another rank's message may arrive first
            receiving = posted_any.pop(0)
        else:
            receiving = posted.pop(0)
        self.waiting -= sent[0].has_arrived
        return sent.pop(0), receiving

    def forget(self, source: int):
        """Remove the long messages of rank ``source``, whose process has died. The inbox keeps the short messages from
        ``source``, because they left when they were sent."""
        if self.sent.get(source):
            self.waiting -= sum(sending.has_arrived and not sending.short for sending in self.sent[source])
            self.sent[source] = [sending for sending in self.sent[source] if sending.short]

    def first_arrived(self) -> int | None:
        """Return the rank whose message arrived first among the messages without a receive; None if all arrived
        messages have receives."""
        if not self.waiting:
            return None
        waiting = [queue[0] for queue in self.sent.values() if queue and queue[0].has_arrived]
        return min(waiting, key=lambda sending: sending.order).source if waiting else None


def copy_into(buffer, message):
    """Copy the content of ``message`` to the beginning of the receive buffer ``buffer``."""
    if isinstance(buffer, ShapeOnlyArray):
        buffer.receive(message)
    elif isinstance(message, ShapeOnlyArray):
        if buffer.nbytes > PREFIX_BYTES:  # a small buffer may hold the beginning of an array without content
            raise TypeError("a message without content was sent to a receive buffer with content")
    elif buffer.dtype == message.dtype:
        buffer[: len(message)] = message
    else:
        buffer.view(np.uint8)[: message.nbytes] = message.view(np.uint8)
