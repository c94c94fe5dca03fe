"""Messages that carry a model to a neighbour. They are sent without waiting, and received in the background.

A schedule is a generator that yields each object it waits for.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from grsgd.comm.communicator import ANY_RANK, LostRank, until_over
from grsgd.comm.compression.compressors import Compressor, payload_share
from grsgd.comm.pollables import Until
from grsgd.lazy import LazyModule
from grsgd.models.flat import LINE_BYTES, Flat

torch = LazyModule("torch")

HEADER = 8
"""Number of bytes of bookkeeping in a model message. They hold the sender's rank and the sender's step; from the step
the receiver computes the model's age."""
UNWEIGHTED_HEADER = 16
"""Number of bytes of bookkeeping in a model message whose weight is not used: the whole message except the model."""


class ModelMessage:
    """A buffer that holds a header (step and sender, int32), a weight (float64) and a model ``x``.

    Parameters
    ----------
    like
        Array that has the length, dtype and device of ``x``.
    compressor
        If given, the buffer holds a compressed payload instead of ``x``: call `seal` before the message is sent, and
        `open` when it has arrived.
    """

    def __init__(self, like: Flat, compressor: Compressor | None = None):
        nbytes = like.array.nbytes if compressor is None else compressor.nbytes
        # The content begins at a cache line, and header and weight end there. Arrays without content have no lines,
        # and keep the bytes of a header at their beginning only.
        begin = UNWEIGHTED_HEADER if like.tensor.is_meta else LINE_BYTES
        whole = Flat.zeros(begin + nbytes, torch.uint8, like.tensor.device)
        content = whole.tensor[begin:]
        self.buffer = whole.array[begin - UNWEIGHTED_HEADER :]
        self._compressor, self._payload = compressor, content
        self._step = self.buffer[:4].view(np.int32)
        self._sender = self.buffer[4:8].view(np.int32)
        self._weight = self.buffer[8:16].view(np.float64)
        if compressor is None:
            self.x = Flat(whole.array[begin:].view(like.array.dtype), content.view(like.tensor.dtype))
        else:
            self.x = like.like()

    def seal(self, key: tuple[int, ...]):
        """Compress ``x``, and set ``x`` to the model that the receiver will decode; ``key``: (seed, rank, step)."""
        if self._compressor is not None:
            self._compressor.encode(self.x.tensor, self._payload, key)
            self.open()

    def open(self):
        """Set ``x`` to the model in the received payload."""
        if self._compressor is not None:
            self._compressor.decode(self._payload, self.x.tensor)

    step = property(lambda self: int(self._step[0]), lambda self, step: self._step.fill(step))
    sender = property(lambda self: int(self._sender[0]), lambda self, rank: self._sender.fill(rank))
    weight = property(lambda self: float(self._weight[0]), lambda self, weight: self._weight.fill(weight))


def message_arrays(options) -> float:
    """Return the arrays of a model's size in a `ModelMessage`: a compressed message has the model besides the
    payload."""
    return 1 + payload_share(options) if options.compresses else 1


OVER = Until(lambda: True, "nothing")


class SendBuffers:
    """Model messages under way to other ranks, at most one per receiver. The models have the length, dtype and device
    of ``x``.

    The buffer of a delivered message is used again for the next message to any rank. So the number of buffers is at
    most the largest number of messages that were under way at the same time. A message to a rank whose process has died
    is given to ``returned(message)``. The models are compressed if ``compressor`` is given.
    """

    def __init__(
        self,
        x: Flat,
        returned: Callable[[ModelMessage], None] = lambda message: None,
        compressor: Compressor | None = None,
    ):
        self._x, self.returned, self.compressor = x, returned, compressor
        self._sending: dict[int, tuple[object, ModelMessage]] = {}
        """Per receiver, the last message, and a pollable that is true when this message is delivered."""
        self._spare: list[ModelMessage] = []
        self._lock = threading.Lock()
        """Lock that guards `_spare`: the trainer and the schedules that receive in the background take messages from
        this list."""

    def ready(self, receiver: int) -> bool:
        """Return whether the last message to ``receiver`` is delivered, so that the next one may be sent."""
        return receiver not in self._sending or self._is_over(receiver)

    def take_buffer(self) -> ModelMessage:
        """Return a message to write and to pass to `keep_until`; only the trainer calls this."""
        for receiver in list(self._sending):
            if self._is_over(receiver):
                self._put_back(self._sending.pop(receiver)[1])
        return self._take_spare()

    def keep_until(self, delivered, receiver: int, message: ModelMessage):
        """Keep ``message`` to ``receiver`` unchanged until the pollable ``delivered`` is true; call this only if
        `ready`."""
        self._sending[receiver] = delivered, message

    def until_delivered(self):
        """Schedule that waits until all messages are delivered."""
        for receiver, (delivered, _) in list(self._sending.items()):
            try:
                yield delivered
            except LostRank:
                self._is_over(receiver)

    def _is_over(self, receiver: int) -> bool:
        """Return whether the last message to ``receiver`` is delivered or returned."""
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
    """Model messages from this rank to ``receivers``, and from ``sources`` to this rank. All models have the length,
    dtype and device of ``x``.

    At most ``capacity`` messages per source are queued. With ``backpressure``, a source whose queue is full cannot send
    its next message before this rank pops a message. Without ``backpressure`` the source can send even if its queue is
    full: in this case ``merge_oldest(older, newer)`` merges the oldest queued message into the second-oldest message.
    No model is lost in either mode. After `close` there is no backpressure. `receive_loop` must run in the background,
    once per source or once for all sources, until every stream has ended.

    If a ``compressor`` is given, models are compressed, with random numbers that depend on ``seed``.

    A message to a rank whose process has died is given to ``returned(message)``. The stream of messages from a dead
    rank begins anew with the process that takes the rank. If no process takes the rank, its stream ends when this rank
    closes.
    """

    END_OF_STREAM = -1
    """Value of ``step`` in the message without a model that ends the stream of messages to a receiver."""

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
        """The ranks that are sources now. While a rank has no process, other ranks are sources instead of this rank."""
        self.capacity = capacity
        self.merge_oldest = merge_oldest
        self.backpressure = self._has_backpressure = backpressure
        self._ended: set[int] = set()
        self._closed = False
        self._last: dict[int, ModelMessage] = {}
        """Messages that end streams, by the rank whose stream ends.

        This rank sends the end of its own stream to other ranks, and the end of a dead rank's stream to itself.
        """
        self._waiting: dict[int, list[ModelMessage]] = defaultdict(list)
        """Messages that have arrived and are not popped yet, the oldest first, per source that `receive_loop` was
        given."""

    def ready(self, receiver: int) -> bool:
        """Return whether the last message to ``receiver`` is delivered, so that the next one may be sent.

        After the receiver has ended its own stream or has died, the result is always False.
        """
        return receiver not in self._ended and receiver not in self.comm.lost and super().ready(receiver)

    def open(self):
        """Open the streams of model messages from all sources, for the first time or after all streams have ended."""
        self.backpressure, self._closed = self._has_backpressure, False
        self._open = set(self.sources)
        self._ended.clear()

    def send(self, receiver: int, x: Flat, weight: float, step: int) -> ModelMessage:
        """Start to send ``x`` to ``receiver``. This is allowed only if `ready`. Return the message, which has the model
        that the receiver decodes."""
        message = self.take_buffer()
        message.x.tensor.copy_(x.tensor)
        message.seal((self.seed, self.comm.rank, step))
        message.weight, message.step, message.sender = weight, step, self.comm.rank
        # A synchronous send: without it the library would store any number of small messages for a rank that does not
        # receive.
        delivered = self.comm.Issend(message.buffer, receiver, self.tag, header=HEADER)
        self.keep_until(delivered, receiver, message)
        return message

    def receive_loop(self, source: int):
        """Schedule, run in the background, that receives messages from ``source`` (or `ANY_RANK`) until the streams
        have ended."""
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
        """Return the messages that have arrived and are not popped yet."""
        with self._lock:
            return [message for messages in self._waiting.values() for message in messages]

    def pop_received(self):
        """Remove and yield the messages that have arrived. A message is valid until the next message is yielded."""
        for source in (*self.sources, ANY_RANK):
            while self._waiting[source]:
                with self._lock:
                    message = self._waiting[source].pop(0)
                yield message
                self._put_back(message)

    def close(self):
        """Schedule that waits until all messages are delivered, then ends the stream to every receiver."""
        self.backpressure = False  # without this, two ranks that close might wait for room in each other's inbox
        yield from self.until_delivered()
        self._closed = True
        self._last[self.comm.rank] = self.take_buffer()
        last = [self._end_stream(receiver) for receiver in self.receivers]
        for source in self.comm.lost:
            self._end_lost_stream(source)
        yield from until_over(last)

    def has_ended(self) -> bool:
        """Return whether the streams of all neighbours have ended.

        A rank that is no longer a neighbour may never have learnt that it was a neighbour, so this rank does not wait
        for it.
        """
        return not self._open & self._neighbours

    def changed(self, rank: int, receivers: list[int], sources: list[int], meanwhile: list[int] = ()) -> list[int]:
        """Update the neighbours after another process has taken ``rank``, or after ``rank`` has lost its process.

        ``receivers`` and ``sources`` are the neighbours from now on. ``meanwhile``: ranks that may have sent messages
        to this rank while ``rank`` had no process. Return the new sources, for each of which the caller must start a
        `receive_loop`.
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
        """End the stream of a rank that has no process; a `receive_loop` may still wait for a message from any rank."""
        if source in self.comm.lost and source in self._open:
            self._open.discard(source)
            self._end_stream(self.comm.rank, sender=source)

    def _end_stream(self, receiver: int, sender: int | None = None):
        """Send the message to ``receiver`` that ends the stream of ``sender``, by default this rank; return the
        message."""
        sender = self.comm.rank if sender is None else sender
        if sender not in self._last:
            self._last[sender] = self._take_spare()
        last = self._last[sender]
        last.step, last.sender = self.END_OF_STREAM, sender
        return self.comm.Isend(last.buffer[:HEADER], receiver, self.tag, header=HEADER)
