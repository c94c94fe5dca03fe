"""Messages that carry models (parameter vectors) between neighbouring ranks. A rank sends model messages without
waiting for the receiver, and receives model messages in the background.

A schedule is a generator that yields each object (such as a request of a message) for which the schedule waits.
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
"""Number of bytes of a model message that contain the sender's rank and step. From the sender's step, the receiver
computes the staleness of the model."""
UNWEIGHTED_HEADER = 16
"""Number of bytes of a model message in front of the model, which contain the sender's step and rank, and a weight. For
an algorithm that ignores the weight, all these bytes count as header, and not as payload."""


class ModelMessage:
    """A buffer for one message, which contains the sender's step and rank (int32), a weight (float64) and a model
    ``x``.

    Parameters
    ----------
    like
        Array that has the length, dtype and device of ``x``.
    compressor
        Compressor of the model, or None. With a compressor, the buffer contains a compressed payload instead of ``x``.
        The sender must call `seal` before it sends the message, and the receiver must call `open` when the message has
        arrived.
    """

    def __init__(self, like: Flat, compressor: Compressor | None = None):
        nbytes = like.array.nbytes if compressor is None else compressor.nbytes
        # The model begins at a cache line, and step, sender and weight are in the 16 bytes before it. Arrays on the
        # meta device have no memory, so that their models begin right after step, sender and weight.
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
        """Compress the model ``x`` into the buffer, and set ``x`` to the model that the receiver will decode. ``key``:
        the integers (seed, rank, step) from which the compressor's random numbers are derived."""
        if self._compressor is not None:
            self._compressor.encode(self.x.tensor, self._payload, key)
            self.open()

    def open(self):
        """Decode the received payload, and set ``x`` to the decoded model."""
        if self._compressor is not None:
            self._compressor.decode(self._payload, self.x.tensor)

    step = property(lambda self: int(self._step[0]), lambda self, step: self._step.fill(step))
    sender = property(lambda self: int(self._sender[0]), lambda self, rank: self._sender.fill(rank))
    weight = property(lambda self: float(self._weight[0]), lambda self, weight: self._weight.fill(weight))


def message_arrays(options) -> float:
    """Return the memory of one `ModelMessage`, divided by the memory of the model. A compressed message contains the
    payload and also the decoded model."""
    return 1 + payload_share(options) if options.compresses else 1


OVER = Until(lambda: True, "nothing")


class SendBuffers:
    """Buffers of the model messages that this rank is sending, with at most one message per receiver at a time. All
    models have the length, dtype and device of the model ``x``.

    When a message has been delivered, its buffer is used again for the next message to any receiver. Therefore this
    object needs only as many buffers as the largest number of messages that were under way at the same time. If the
    process of a receiver dies, this object calls the function ``returned(message)`` with the message that was under way
    to this receiver. If ``compressor`` is given, models are sent compressed.
    """

    def __init__(
        self,
        x: Flat,
        returned: Callable[[ModelMessage], None] = lambda message: None,
        compressor: Compressor | None = None,
    ):
        self._x, self.returned, self.compressor = x, returned, compressor
        self._sending: dict[int, tuple[object, ModelMessage]] = {}
        """Last message to each receiver, with a pollable whose ``Test()`` returns True when this message has been
        delivered: pairs (pollable, message) by receiver."""
        self._spare: list[ModelMessage] = []
        self._lock = threading.Lock()
        """Lock that protects the list `_spare`, because both the trainer and background schedules take messages from
        it."""

    def ready(self, receiver: int) -> bool:
        """Return True if the last message to ``receiver`` has been delivered, so that this rank may send the next
        message."""
        return receiver not in self._sending or self._is_over(receiver)

    def take_buffer(self) -> ModelMessage:
        """Return a `ModelMessage` that is not in use. The caller fills the returned message, sends it, and passes it to
        `keep_until`. Only the trainer (the thread that computes gradients) may call `take_buffer`."""
        for receiver in list(self._sending):
            if self._is_over(receiver):
                self._put_back(self._sending.pop(receiver)[1])
        return self._take_spare()

    def keep_until(self, delivered, receiver: int, message: ModelMessage):
        """Do not use the buffer of ``message``, which is being sent to ``receiver``, for another message until
        ``delivered.Test()`` returns True. Call `keep_until` only if `ready` returns True for the receiver."""
        self._sending[receiver] = delivered, message

    def until_delivered(self):
        """Generator (schedule) that waits until all messages that this rank has sent have been delivered."""
        for receiver, (delivered, _) in list(self._sending.items()):
            try:
                yield delivered
            except LostRank:
                self._is_over(receiver)

    def _is_over(self, receiver: int) -> bool:
        """Return True if the last message to ``receiver`` has been delivered, or was passed to `returned` because the
        receiver's process has died."""
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
    """Object by which a rank exchanges model messages: the rank sends models to the ranks ``receivers``, and receives
    models from the ranks ``sources``. All models have the length, dtype and device of the model ``x``.

    Received messages wait in one queue per source until this rank pops them, at most ``capacity`` messages in each
    queue. With ``backpressure``, a source whose queue is full cannot send its next message until this rank pops a
    message of this source. Without ``backpressure``, a source can always send. If a message arrives when its queue is
    full, ``merge_oldest(older, newer)`` merges the model of the oldest message in the queue into the second-oldest
    message. Therefore no model is lost, neither with backpressure nor without it. After the call of `close`, sources
    can always send. The schedule `receive_loop` must run in the background, once per source or once for all sources,
    until every source has ended its stream of messages.

    If ``compressor`` is given, models are sent compressed. The compressor's random numbers are derived from ``seed``.

    If the process of a receiver dies, this object calls the function ``returned(message)`` with the message that was
    under way to this receiver. If the process of a source dies, the process that takes over the source's rank begins a
    new stream of messages. If no process takes over the rank of a source, the source's stream ends when this rank calls
    `close`.
    """

    END_OF_STREAM = -1
    """Value of ``step`` in the last message of a stream, which contains no model, and by which a rank tells a receiver
    that its stream has ended."""

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
        """The sources that have not yet ended their streams of messages."""
        self._neighbours = set(self.sources)
        """The ranks from which this rank at present receives models. While the rank of a source has no process, other
        ranks send models to this rank in place of the source."""
        self.capacity = capacity
        self.merge_oldest = merge_oldest
        self.backpressure = self._has_backpressure = backpressure
        self._ended: set[int] = set()
        self._closed = False
        self._last: dict[int, ModelMessage] = {}
        """The last message of each stream of model messages, by the rank whose stream the message ends.

        This rank sends the last message of its own stream to its receivers, and the last message of a dead rank's
        stream to itself.
        """
        self._waiting: dict[int, list[ModelMessage]] = defaultdict(list)
        """Queues of the messages that have arrived and have not yet been popped, each with the oldest message first.
        The key of a queue is the source that was passed to `receive_loop`."""

    def ready(self, receiver: int) -> bool:
        """Return True if the last message to ``receiver`` has been delivered, so that this rank may send the next
        message.

        If the receiver has ended its own stream of messages or has died, return False.
        """
        return receiver not in self._ended and receiver not in self.comm.lost and super().ready(receiver)

    def open(self):
        """Open the streams of model messages from all sources, either for the first time or after all streams have
        ended."""
        self.backpressure, self._closed = self._has_backpressure, False
        self._open = set(self.sources)
        self._ended.clear()

    def send(self, receiver: int, x: Flat, weight: float, step: int) -> ModelMessage:
        """Start to send the model ``x`` to ``receiver``, and return the message, which contains the model that the
        receiver will decode. Call `send` only if `ready` returns True for the receiver."""
        message = self.take_buffer()
        message.x.tensor.copy_(x.tensor)
        message.seal((self.seed, self.comm.rank, step))
        message.weight, message.step, message.sender = weight, step, self.comm.rank
        # The send is synchronous, because an MPI library would store any number of small messages for a rank that does
        # not receive messages.
        delivered = self.comm.Issend(message.buffer, receiver, self.tag, header=HEADER)
        self.keep_until(delivered, receiver, message)
        return message

    def receive_loop(self, source: int):
        """Generator (schedule), run in the background, that receives messages from ``source`` until the source has
        ended its stream of messages. If ``source`` is `ANY_RANK`, the schedule receives from all sources, and ends when
        all have ended their streams."""
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
        """Return the messages that have arrived and have not yet been popped."""
        with self._lock:
            return [message for messages in self._waiting.values() for message in messages]

    def pop_received(self):
        """Yield the messages that have arrived, and remove them from the queues. The buffer of a message is valid until
        the generator yields the next message."""
        for source in (*self.sources, ANY_RANK):
            while self._waiting[source]:
                with self._lock:
                    message = self._waiting[source].pop(0)
                yield message
                self._put_back(message)

    def close(self):
        """Generator (schedule) that waits until all sent messages have been delivered, and then tells every receiver
        that this rank's stream has ended."""
        # end the backpressure, because two ranks that close might otherwise wait for each other
        self.backpressure = False
        yield from self.until_delivered()
        self._closed = True
        self._last[self.comm.rank] = self.take_buffer()
        last = [self._end_stream(receiver) for receiver in self.receivers]
        for source in self.comm.lost:
            self._end_lost_stream(source)
        yield from until_over(last)

    def has_ended(self) -> bool:
        """Return True if all ranks from which this rank at present receives models have ended their streams of
        messages.

        A rank that was a source only for some time may never have learnt that it was a source. Therefore this rank does
        not wait for the streams of former sources to end.
        """
        return not self._open & self._neighbours

    def changed(self, rank: int, receivers: list[int], sources: list[int], meanwhile: list[int] = ()) -> list[int]:
        """Change this rank's receivers and sources, after the process of ``rank`` has died, or after another process
        has taken over ``rank``.

        ``receivers``, ``sources``: the ranks to which this rank sends models from now on, and from which it receives
        models. ``meanwhile``: ranks that may have sent messages to this rank while ``rank`` had no process. Return the
        new sources of this rank. The caller must run `receive_loop` for each new source that is returned.
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
        """If no process holds the rank ``source``, end the stream of messages from ``source``. The last message of the
        stream, which this rank sends to itself, also wakes a `receive_loop` that waits for a message from any rank."""
        if source in self.comm.lost and source in self._open:
            self._open.discard(source)
            self._end_stream(self.comm.rank, sender=source)

    def _end_stream(self, receiver: int, sender: int | None = None):
        """Send the last message of the stream of ``sender``, which is this rank by default, to ``receiver``. Return the
        `Message`, which may be under way."""
        sender = self.comm.rank if sender is None else sender
        if sender not in self._last:
            self._last[sender] = self._take_spare()
        last = self._last[sender]
        last.step, last.sender = self.END_OF_STREAM, sender
        return self.comm.Isend(last.buffer[:HEADER], receiver, self.tag, header=HEADER)
