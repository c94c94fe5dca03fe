"""Asynchronous models between neighbours: post without waiting, collect what has come."""

import threading
from collections import defaultdict

import numpy as np
import torch

from grsgd.comm.communicator import ANY_RANK, Message
from grsgd.comm.pollables import Until
from grsgd.replica import Flat

HEADER = 8
"""Bytes of bookkeeping in a letter: the sender, and its step, by which the receiver knows how old the model is."""
UNWEIGHTED_HEADER = 16
"""The same where the weight is not used: then all of a letter but the model is bookkeeping."""


class Letter:
    """A model with a weight on its way: one buffer of step and sender (header), a weight (float64) and the model x.

    ``like``: the `Flat` whose length, dtype and device x has.
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


class Mailbox:
    """Letters of one rank to ``receivers`` and from ``sources``; all models are like ``x``.

    At most one letter is under way to each receiver. At most ``capacity`` letters of one source wait to be drained:
    then, with ``hold``, the source cannot send the next one before some are drained; without, it can, and
    ``combine(older, newer)`` puts the oldest into the one after it. Nothing is lost either way. While ending, an
    inbox holds nobody back: letters beyond its capacity are combined, or kept where ``combine`` is None.
    `collect` must run in the background, one activity per source or one for all, until the last letter has come.
    """

    LAST = -1
    """The step in a letter without a model that ends the stream of letters to a receiver."""

    def __init__(self, comm, x: Flat, receivers, sources, capacity: int, combine, tag: int = 0, hold: bool = False):
        self.comm = comm
        self.tag = tag
        self.receivers = list(receivers)
        self.sources = list(sources)
        self.capacity = capacity
        self.combine = combine
        self.hold = hold
        self._ended: set[int] = set()
        self._x = x
        self._sending: dict[int, tuple[Message, Letter]] = {}
        self._waiting: dict[int, list[Letter]] = defaultdict(list)
        self._spare: list[Letter] = []
        self._lock = threading.Lock()

    def ready(self, receiver: int) -> bool:
        """Whether the last letter to ``receiver`` has been taken up, so that the next may go.

        Never again once the receiver has sent its own last letter: it trains no more.
        """
        if receiver in self._ended:
            return False
        if receiver in self._sending:
            message, letter = self._sending[receiver]
            if not message.Test():
                return False
            del self._sending[receiver]
            with self._lock:
                self._spare.append(letter)
        return True

    def post(self, receiver: int, x: Flat, weight: float, step: int):
        """Send a copy of x; only when `ready`."""
        letter = self._blank()
        letter.x.tensor.copy_(x.tensor)
        letter.weight, letter.step, letter.sender = weight, step, self.comm.rank
        # A synchronous send: otherwise the library would store any number of small letters for a rank that sleeps.
        self._sending[receiver] = self.comm.Issend(letter.buffer, receiver, self.tag, header=HEADER), letter

    def collect(self, source: int):
        """Background schedule: receive letters from ``source``, or `ANY_RANK`, until the last one has come."""
        writing = set(self.sources if source == ANY_RANK else [source])
        whom = "any rank" if source == ANY_RANK else f"rank {source}"
        room = Until(
            lambda: not self.hold or len(self._waiting[source]) < self.capacity, f"room in the inbox for {whom}'s model"
        )
        while writing:
            letter = self._blank()
            yield room
            yield self.comm.Irecv(letter.buffer, source, self.tag)
            if letter.step == self.LAST:
                self._ended.add(letter.sender)
                writing.remove(letter.sender)
                continue
            with self._lock:
                waiting = self._waiting[source]
                waiting.append(letter)
                if len(waiting) > self.capacity and self.combine is not None:
                    older = waiting.pop(0)
                    self.combine(older, waiting[0])
                    self._spare.append(older)

    def _blank(self) -> Letter:
        with self._lock:
            return self._spare.pop() if self._spare else Letter(self._x)

    def drain(self):
        """Iterate over the letters that have come, taking them out; each is valid until the next one."""
        for source in (*self.sources, ANY_RANK):
            while self._waiting[source]:
                with self._lock:
                    letter = self._waiting[source].pop(0)
                yield letter
                with self._lock:
                    self._spare.append(letter)

    def close(self):
        """Schedule: wait until all letters are taken up, then tell every receiver that there will be no more."""
        self.hold = False  # two ranks that close must not wait for each other's inboxes
        yield [message for message, _ in self._sending.values()]
        last = Letter(self._x)
        last.step, last.sender = self.LAST, self.comm.rank
        header = last.buffer[:HEADER]
        yield [self.comm.Isend(header, receiver, self.tag, header=HEADER) for receiver in self.receivers]


