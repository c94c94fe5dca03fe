"""Asynchronous models between neighbours: post without waiting, collect what has come."""

import threading
from collections import defaultdict

import numpy as np

HEADER = 8
"""Bytes of bookkeeping in a letter: the sender's step, by which the receiver knows how old the model is."""


class Letter:
    """A model with a weight on its way: one buffer of a step (header), a weight (float64) and the model x.

    ``like``: the array whose kind, length and dtype x has.
    """

    def __init__(self, like):
        lead = 2  # the step and the weight, eight bytes each, keep x aligned for any dtype
        self.buffer = type(like)(8 * lead + like.nbytes, dtype=np.uint8)
        self._step = self.buffer[:8].view(np.int64)
        self._weight = self.buffer[8:16].view(np.float64)
        self.x = self.buffer[8 * lead :].view(like.dtype)

    step = property(lambda self: int(self._step[0]), lambda self, step: self._step.fill(step))
    weight = property(lambda self: float(self._weight[0]), lambda self, weight: self._weight.fill(weight))


class Mailbox:
    """Letters of one rank to ``receivers`` and from ``sources``; all arrays are like ``x``.

    At most one letter is under way to each receiver. At most ``capacity`` letters of one source wait to be drained:
    then, with ``hold``, the source cannot send the next one before some are drained; without, it can, and
    ``combine(older, newer)`` puts the oldest into the one after it. Nothing is lost either way.
    `collect` must run in the background, one activity per source, until the source has sent its last letter.
    """

    LAST = -1
    """The step in a letter without a model that ends the stream of letters to a receiver."""

    def __init__(self, comm, x, receivers, sources, capacity: int, combine, tag: int = 0, hold: bool = False):
        self.comm = comm
        self.tag = tag
        self.receivers = list(receivers)
        self.sources = list(sources)
        self.capacity = capacity
        self.combine = combine
        self.hold = hold
        self._ended: set[int] = set()
        self._x = x
        self._outgoing = {receiver: Letter(x) for receiver in self.receivers}
        self._sending = {}
        self._waiting: dict[int, list[Letter]] = defaultdict(list)
        self._spare: list[Letter] = []
        self._lock = threading.Lock()

    def ready(self, receiver: int) -> bool:
        """Whether the last letter to ``receiver`` has been taken up, so that the next may go.

        Never again once the receiver has sent its own last letter: it trains no more.
        """
        if receiver in self._ended:
            return False
        sending = self._sending.get(receiver)
        return sending is None or sending.Test()

    def post(self, receiver: int, x, weight: float, step: int):
        """Send a copy of x; only when `ready`."""
        letter = self._outgoing[receiver]
        letter.x[:] = x
        letter.weight, letter.step = weight, step
        # A synchronous send: otherwise the library would store any number of small letters for a rank that sleeps.
        self._sending[receiver] = self.comm.Issend(letter.buffer, receiver, self.tag, header=HEADER)

    def collect(self, source: int):
        """Background schedule: receive letters from ``source`` until its last one."""
        while True:
            with self._lock:
                letter = self._spare.pop() if self._spare else Letter(self._x)
            if self.hold:
                yield Room(self, source)
            yield self.comm.Irecv(letter.buffer, source, self.tag)
            if letter.step == self.LAST:
                self._ended.add(source)
                return
            with self._lock:
                waiting = self._waiting[source]
                waiting.append(letter)
                if len(waiting) > self.capacity:
                    older = waiting.pop(0)
                    self.combine(older, waiting[0])
                    self._spare.append(older)

    def drain(self):
        """Iterate over the letters that have come, taking them out; each is valid until the next one."""
        for source in self.sources:
            while self._waiting[source]:
                with self._lock:
                    letter = self._waiting[source].pop(0)
                yield letter
                with self._lock:
                    self._spare.append(letter)

    def close(self):
        """Schedule: wait until all letters are taken up, then tell every receiver that there will be no more."""
        self.hold = False  # two ranks that close must not wait for each other's inboxes
        yield list(self._sending.values())
        last = Letter(self._x)
        last.step = self.LAST
        header = last.buffer[:HEADER]
        yield [self.comm.Isend(header, receiver, self.tag, header=HEADER) for receiver in self.receivers]


class Room:
    """A pollable: there is room for a letter from ``source``."""

    def __init__(self, mailbox: Mailbox, source: int):
        self.mailbox, self.source = mailbox, source

    def Test(self) -> bool:
        return not self.mailbox.hold or len(self.mailbox._waiting[self.source]) < self.mailbox.capacity

    def __str__(self):
        return f"room in the inbox for a model of rank {self.source}"
