"""Messages that carry a model to a neighbour: sent without waiting, received in the background."""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np

from grsgd.comm.communicator import ANY_RANK
from grsgd.comm.pollables import Until
from grsgd.lazy import LazyModule
from grsgd.models.flat import Flat

torch = LazyModule("torch")

HEADER = 8
"""Bytes of bookkeeping in a model message: the sender, and its step, by which the receiver knows the model's age."""
UNWEIGHTED_HEADER = 16
"""The same where the weight is not used: then all of the message but the model is bookkeeping."""


class ModelMessage:
    """One buffer of step and sender (the header), a weight (float64) and a model x.

    Parameters
    ----------
    like
        the array whose length, dtype and device x has.
    """

    def __init__(self, like: Flat):
        # Header and weight, eight bytes each, keep x aligned for any dtype.
        whole = Flat.zeros(16 + like.array.nbytes, torch.uint8, like.tensor.device)
        self.buffer = whole.array
        self._step = self.buffer[:4].view(np.int32)
        self._sender = self.buffer[4:8].view(np.int32)
        self._weight = self.buffer[8:16].view(np.float64)
        self.x = Flat(whole.array[16:].view(like.array.dtype), whole.tensor[16:].view(like.tensor.dtype))

    step = property(lambda self: int(self._step[0]), lambda self, step: self._step.fill(step))
    sender = property(lambda self: int(self._sender[0]), lambda self, rank: self._sender.fill(rank))
    weight = property(lambda self: float(self._weight[0]), lambda self, weight: self._weight.fill(weight))


class SendBuffers:
    """Model messages like ``x`` under way to other ranks, at most one to each.

    A delivered message is used again for the next one, whichever rank that is for: there are never more of them than
    were under way at once.
    """

    def __init__(self, x: Flat):
        self._x = x
        self._sending: dict[int, tuple[object, ModelMessage]] = {}
        """The last message to each receiver, and the pollable that is true when that is delivered."""
        self._spare: list[ModelMessage] = []
        self._lock = threading.Lock()
        """For `_spare`: messages are taken from it by the trainer, and by the background that receives."""

    def ready(self, receiver: int) -> bool:
        """Return whether the last message to ``receiver`` is delivered, so that the next may go."""
        return receiver not in self._sending or self._sending[receiver][0].Test()

    def take_buffer(self) -> ModelMessage:
        """Return a message to write and then `keep_until`; for the trainer only."""
        for receiver, (delivered, message) in list(self._sending.items()):
            if delivered.Test():
                del self._sending[receiver]
                self._put_back(message)
        return self._take_spare()

    def keep_until(self, delivered, receiver: int, message: ModelMessage):
        """Leave ``message`` to ``receiver`` alone until the pollable ``delivered`` is true; only when `ready`."""
        self._sending[receiver] = delivered, message

    def in_flight(self) -> list:
        """Return the pollables to wait for until all messages are delivered."""
        return [delivered for delivered, _ in self._sending.values()]

    def _take_spare(self) -> ModelMessage:
        with self._lock:
            return self._spare.pop() if self._spare else ModelMessage(self._x)

    def _put_back(self, message: ModelMessage):
        with self._lock:
            self._spare.append(message)


class Mailbox(SendBuffers):
    """Model messages of one rank to ``receivers`` and from ``sources``; all models are like ``x``.

    At most ``capacity`` messages of one source are queued: then, with ``backpressure``, the source cannot send
    the next one before some are popped; without, it can, and ``merge_oldest(older, newer)`` puts the oldest into the
    one after it. Nothing is lost either way. From `close` on there is no backpressure: messages beyond the capacity are
    merged. `receive_loop` must run in the background, once per source or once for all, until every stream has ended.
    """

    END_OF_STREAM = -1
    """The step in a message without a model that ends the stream of messages to a receiver."""

    def __init__(
        self, comm, x: Flat, receivers, sources, capacity: int, merge_oldest, tag: int = 0, backpressure: bool = False
    ):
        super().__init__(x)
        self.comm = comm
        self.tag = tag
        self.receivers = list(receivers)
        self.sources = list(sources)
        self.capacity = capacity
        self.merge_oldest = merge_oldest
        self.backpressure = self._has_backpressure = backpressure
        self._ended: set[int] = set()
        self._waiting: dict[int, list[ModelMessage]] = defaultdict(list)
        """By the source that `receive_loop` was given: what has come and is not popped yet, the oldest first."""

    def ready(self, receiver: int) -> bool:
        """Return whether the last message to ``receiver`` is delivered, so that the next may go.

        False for good once the receiver has ended its own stream.
        """
        return receiver not in self._ended and super().ready(receiver)

    def open(self):
        """Begin, or begin again when all streams have ended."""
        self.backpressure = self._has_backpressure
        self._ended.clear()

    def send(self, receiver: int, x: Flat, weight: float, step: int):
        """Send a copy of x; only when `ready`."""
        message = self.take_buffer()
        message.x.tensor.copy_(x.tensor)
        message.weight, message.step, message.sender = weight, step, self.comm.rank
        # A synchronous send: the library would store any number of small messages for a rank that does not receive.
        delivered = self.comm.Issend(message.buffer, receiver, self.tag, header=HEADER)
        self.keep_until(delivered, receiver, message)

    def receive_loop(self, source: int):
        """Background schedule: receive messages from ``source``, or `ANY_RANK`, until their streams have ended."""
        sending = set(self.sources if source == ANY_RANK else [source])
        sender = "any rank" if source == ANY_RANK else f"rank {source}"
        room = Until(
            lambda: not self.backpressure or len(self._waiting[source]) < self.capacity,
            f"room in the inbox for {sender}'s model",
        )
        while sending:
            message = self._take_spare()
            yield room
            yield self.comm.Irecv(message.buffer, source, self.tag)
            if message.step == self.END_OF_STREAM:
                self._ended.add(message.sender)
                sending.remove(message.sender)
                continue
            with self._lock:
                waiting = self._waiting[source]
                waiting.append(message)
                if len(waiting) > self.capacity:
                    older = waiting.pop(0)
                    self.merge_oldest(older, waiting[0])
                    self._spare.append(older)

    def waiting(self) -> list[ModelMessage]:
        """Return the messages that have come and are not popped yet."""
        with self._lock:
            return [message for messages in self._waiting.values() for message in messages]

    def pop_received(self):
        """Iterate over the messages that have come, taking them out; each is valid until the next one."""
        for source in (*self.sources, ANY_RANK):
            while self._waiting[source]:
                with self._lock:
                    message = self._waiting[source].pop(0)
                yield message
                self._put_back(message)

    def close(self):
        """Schedule: wait until all messages are delivered, then end the stream to every receiver."""
        self.backpressure = False  # two ranks that close must not wait for each other's inboxes
        yield self.in_flight()
        last = self.take_buffer()
        last.step, last.sender = self.END_OF_STREAM, self.comm.rank
        header = last.buffer[:HEADER]
        yield [self.comm.Isend(header, receiver, self.tag, header=HEADER) for receiver in self.receivers]
