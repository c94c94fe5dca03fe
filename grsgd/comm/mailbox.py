"""Messages that carry a model to a neighbour: sent without waiting, received in the background."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from grsgd.comm.communicator import ANY_RANK, LostRank, until_over
from grsgd.comm.compression.compressors import Compressor
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
    compressor
        if given, the buffer has a payload in place of x: `seal` before it is sent, `open` when it has come.
    """

    def __init__(self, like: Flat, compressor: Compressor | None = None):
        # Header and weight, eight bytes each, keep x aligned for any dtype.
        nbytes = like.array.nbytes if compressor is None else compressor.nbytes
        whole = Flat.zeros(16 + nbytes, torch.uint8, like.tensor.device)
        self.buffer = whole.array
        self._compressor, self._payload = compressor, whole.tensor[16:]
        self._step = self.buffer[:4].view(np.int32)
        self._sender = self.buffer[4:8].view(np.int32)
        self._weight = self.buffer[8:16].view(np.float64)
        if compressor is None:
            self.x = Flat(whole.array[16:].view(like.array.dtype), whole.tensor[16:].view(like.tensor.dtype))
        else:
            self.x = like.like()

    def seal(self, key: tuple[int, ...]):
        """Compress x, which becomes what the receiver will find; ``key``: (seed, rank, step)."""
        if self._compressor is not None:
            self._compressor.encode(self.x.tensor, self._payload, key)
            self.open()

    def open(self):
        """Set x to what has come."""
        if self._compressor is not None:
            self._compressor.decode(self._payload, self.x.tensor)

    step = property(lambda self: int(self._step[0]), lambda self, step: self._step.fill(step))
    sender = property(lambda self: int(self._sender[0]), lambda self, rank: self._sender.fill(rank))
    weight = property(lambda self: float(self._weight[0]), lambda self, weight: self._weight.fill(weight))


OVER = Until(lambda: True, "nothing")


class SendBuffers:
    """Model messages like ``x`` under way to other ranks, at most one to each.

    A delivered message is used again for the next one, whichever rank that is for: there are never more of them than
    were under way at once. One that was under way to a rank whose process has died is given to ``returned(message)``.
    ``compressor``: of what is sent, if it is compressed.
    """

    def __init__(
        self,
        x: Flat,
        returned: Callable[[ModelMessage], None] = lambda message: None,
        compressor: Compressor | None = None,
    ):
        self._x, self.returned, self.compressor = x, returned, compressor
        self._sending: dict[int, tuple[object, ModelMessage]] = {}
        """The last message to each receiver, and the pollable that is true when that is delivered."""
        self._spare: list[ModelMessage] = []
        self._lock = threading.Lock()
        """For `_spare`: messages are taken from it by the trainer, and by the background that receives."""

    def ready(self, receiver: int) -> bool:
        """Return whether the last message to ``receiver`` is delivered, so that the next may go."""
        return receiver not in self._sending or self._is_over(receiver)

    def take_buffer(self) -> ModelMessage:
        """Return a message to write and then `keep_until`; for the trainer only."""
        for receiver in list(self._sending):
            if self._is_over(receiver):
                self._put_back(self._sending.pop(receiver)[1])
        return self._take_spare()

    def keep_until(self, delivered, receiver: int, message: ModelMessage):
        """Leave ``message`` to ``receiver`` alone until the pollable ``delivered`` is true; only when `ready`."""
        self._sending[receiver] = delivered, message

    def until_delivered(self):
        """Schedule: wait until all messages are delivered."""
        for receiver, (delivered, _) in list(self._sending.items()):
            try:
                yield delivered
            except LostRank:
                self._is_over(receiver)

    def _is_over(self, receiver: int) -> bool:
        """Whether the last message to ``receiver`` is delivered, or returned."""
        delivered, message = self._sending[receiver]
        try:
            return delivered.Test()
        except LostRank:
            self._sending[receiver] = OVER, message
            self.returned(message)
            return True

    def _take_spare(self) -> ModelMessage:
        with self._lock:
            return self._spare.pop() if self._spare else ModelMessage(self._x, self.compressor)

    def _put_back(self, message: ModelMessage):
        with self._lock:
            self._spare.append(message)


class Mailbox(SendBuffers):
    """Model messages of one rank to ``receivers`` and from ``sources``; all models are like ``x``.

    At most ``capacity`` messages of one source are queued: then, with ``backpressure``, the source cannot send
    the next one before some are popped; without, it can, and ``merge_oldest(older, newer)`` puts the oldest into the
    one after it. Nothing is lost either way. From `close` on there is no backpressure: messages beyond the capacity are
    merged. `receive_loop` must run in the background, once per source or once for all, until every stream has ended.

    Models are compressed if there is a ``compressor``, by random numbers of the ``seed``.

    A message to a rank whose process has died is given to ``returned(message)``. The stream of such a rank begins anew
    with the process that takes its place; without one it ends when this rank closes.
    """

    END_OF_STREAM = -1
    """The step in a message without a model that ends the stream of messages to a receiver."""

    def __init__(
        self,
        comm,
        x: Flat,
        receivers,
        sources,
        capacity: int,
        merge_oldest,
        returned=lambda message: None,
        tag: int = 0,
        backpressure: bool = False,
        compressor: Compressor | None = None,
        seed: int = 0,
    ):
        super().__init__(x, returned, compressor)
        self.seed = seed
        self.comm = comm
        self.tag = tag
        self.receivers = list(receivers)
        self.sources = list(sources)
        self._open = set(self.sources)
        """The sources whose streams have not ended."""
        self._neighbours = set(self.sources)
        """The sources that there are now: while a rank has no process, others take its place."""
        self.capacity = capacity
        self.merge_oldest = merge_oldest
        self.backpressure = self._has_backpressure = backpressure
        self._ended: set[int] = set()
        self._closed = False
        self._last: dict[int, ModelMessage] = {}
        """The messages that end streams, by the rank whose stream it is: this one's, or, to itself, that of one that
        has died."""
        self._waiting: dict[int, list[ModelMessage]] = defaultdict(list)
        """By the source that `receive_loop` was given: what has come and is not popped yet, the oldest first."""

    def ready(self, receiver: int) -> bool:
        """Return whether the last message to ``receiver`` is delivered, so that the next may go.

        False for good once the receiver has ended its own stream, or has died.
        """
        return receiver not in self._ended and receiver not in self.comm.lost and super().ready(receiver)

    def open(self):
        """Begin, or begin again when all streams have ended."""
        self.backpressure, self._closed = self._has_backpressure, False
        self._open = set(self.sources)
        self._ended.clear()

    def send(self, receiver: int, x: Flat, weight: float, step: int) -> ModelMessage:
        """Send a copy of x; only when `ready`. Returns the message, with what the receiver will find."""
        message = self.take_buffer()
        message.x.tensor.copy_(x.tensor)
        message.seal((self.seed, self.comm.rank, step))
        message.weight, message.step, message.sender = weight, step, self.comm.rank
        # A synchronous send: the library would store any number of small messages for a rank that does not receive.
        delivered = self.comm.Issend(message.buffer, receiver, self.tag, header=HEADER)
        self.keep_until(delivered, receiver, message)
        return message

    def receive_loop(self, source: int):
        """Background schedule: receive messages from ``source``, or `ANY_RANK`, until their streams have ended."""
        sender = "any rank" if source == ANY_RANK else f"rank {source}"
        room = Until(
            lambda: not self.backpressure or len(self._waiting[source]) < self.capacity,
            f"room in the inbox for {sender}'s model",
        )
        while self._open if source == ANY_RANK else source in self._open:
            message = self._take_spare()
            yield room
            try:
                yield self.comm.Irecv(message.buffer, source, self.tag)
            except LostRank:
                self._put_back(message)
                yield Until(lambda: source not in self.comm.lost or self._closed, f"a process that holds {sender}")
                continue
            if message.step == self.END_OF_STREAM:
                self._ended.add(message.sender)
                self._open.discard(message.sender)
                self._put_back(message)
                continue
            message.open()
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
        yield from self.until_delivered()
        self._closed = True
        self._last[self.comm.rank] = self.take_buffer()
        last = [self._end_stream(receiver) for receiver in self.receivers]
        for source in self.comm.lost:
            self._end_lost_stream(source)
        yield from until_over(last)

    def has_ended(self) -> bool:
        """Whether the streams of all neighbours have ended. One that is none any more need not know that it was one."""
        return not self._open & self._neighbours

    def changed(self, rank: int, receivers: list[int], sources: list[int], meanwhile: list[int] = ()) -> list[int]:
        """Note that another process holds ``rank`` than before, or none, and who the neighbours are now.

        ``meanwhile``: who may have sent something while none did. Returns the new sources, from each of which
        `receive_loop` is to receive.
        """
        new_receivers, new_sources = set(receivers) - set(self.receivers), {*sources, *meanwhile} - set(self.sources)
        self.receivers += sorted(new_receivers)
        self.sources += sorted(new_sources)
        self._open |= new_sources
        self._neighbours = set(sources)
        self._ended.discard(rank)
        if self._closed:
            for receiver in new_receivers | ({rank} & set(self.receivers)):
                self._end_stream(receiver)
            self._end_lost_stream(rank)
        return sorted(new_sources)

    def _end_lost_stream(self, source: int):
        """End the stream of a rank that no process holds; `receive_loop` may wait for a message of any rank."""
        if source in self.comm.lost and source in self._open:
            self._open.discard(source)
            self._end_stream(self.comm.rank, sender=source)

    def _end_stream(self, receiver: int, sender: int | None = None):
        """Return the message to ``receiver`` that ends the stream of ``sender``, by default this rank."""
        sender = self.comm.rank if sender is None else sender
        if sender not in self._last:
            self._last[sender] = self._take_spare()
        last = self._last[sender]
        last.step, last.sender = self.END_OF_STREAM, sender
        return self.comm.Isend(last.buffer[:HEADER], receiver, self.tag, header=HEADER)
