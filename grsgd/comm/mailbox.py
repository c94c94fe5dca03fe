"""Asynchronous models between neighbours: post without waiting, collect what has come."""

import threading
from collections import defaultdict

import numpy as np
import torch

from grsgd.comm.communicator import ANY_RANK
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


class Outbox:
    """Letters like ``x`` on their way to other ranks, at most one to each.

    A letter that has been taken up is used for the next one, whoever that is for: there are never more of them than
    were under way at once.
    """

    def __init__(self, x: Flat):
        self._x = x
        self._sending: dict[int, tuple[object, Letter]] = {}
        """By receiver: the last letter to it, and the pollable that is true when that has been taken up."""
        self._spare: list[Letter] = []
        self._lock = threading.Lock()
        """For `_spare`: letters are taken from it by the trainer, and by who receives in the background."""

    def ready(self, receiver: int) -> bool:
        """Whether the last letter to ``receiver`` has been taken up, so that the next may go."""
        return receiver not in self._sending or self._sending[receiver][0].Test()

    def blank(self) -> Letter:
        """A letter to write and `send`; for the trainer only."""
        for receiver, (taken_up, letter) in list(self._sending.items()):
            if taken_up.Test():
                del self._sending[receiver]
                self._put_back(letter)
        return self._blank()

    def send(self, receiver: int, letter: Letter, taken_up):
        """Leave ``letter`` alone until the pollable ``taken_up`` is true; only when `ready`."""
        self._sending[receiver] = taken_up, letter

    def under_way(self) -> list:
        """What to wait for until all letters have been taken up."""
        return [taken_up for taken_up, _ in self._sending.values()]

    def _blank(self) -> Letter:
        with self._lock:
            return self._spare.pop() if self._spare else Letter(self._x)

    def _put_back(self, letter: Letter):
        with self._lock:
            self._spare.append(letter)


class Mailbox(Outbox):
    """Letters of one rank to ``receivers`` and from ``sources``; all models are like ``x``.

    At most ``capacity`` letters of one source wait to be drained: then, with ``hold``, the source cannot send the next
    one before some are drained; without, it can, and ``combine(older, newer)`` puts the oldest into the one after it.
    Nothing is lost either way. While ending, an inbox holds nobody back: letters beyond its capacity are combined.
    `collect` must run in the background, one activity per source or one for all, until the last letter has come.
    """

    LAST = -1
    """The step in a letter without a model that ends the stream of letters to a receiver."""

    def __init__(self, comm, x: Flat, receivers, sources, capacity: int, combine, tag: int = 0, hold: bool = False):
        super().__init__(x)
        self.comm = comm
        self.tag = tag
        self.receivers = list(receivers)
        self.sources = list(sources)
        self.capacity = capacity
        self.combine = combine
        self.hold = hold
        self._ended: set[int] = set()
        self._waiting: dict[int, list[Letter]] = defaultdict(list)

    def ready(self, receiver: int) -> bool:
        """Whether the last letter to ``receiver`` has been taken up, so that the next may go.

        Never again once the receiver has sent its own last letter: it trains no more.
        """
        return receiver not in self._ended and super().ready(receiver)

    def post(self, receiver: int, x: Flat, weight: float, step: int):
        """Send a copy of x; only when `ready`."""
        letter = self.blank()
        letter.x.tensor.copy_(x.tensor)
        letter.weight, letter.step, letter.sender = weight, step, self.comm.rank
        # A synchronous send: otherwise the library would store any number of small letters for a rank that sleeps.
        self.send(receiver, letter, self.comm.Issend(letter.buffer, receiver, self.tag, header=HEADER))

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
                if len(waiting) > self.capacity:
                    older = waiting.pop(0)
                    self.combine(older, waiting[0])
                    self._spare.append(older)

    def drain(self):
        """Iterate over the letters that have come, taking them out; each is valid until the next one."""
        for source in (*self.sources, ANY_RANK):
            while self._waiting[source]:
                with self._lock:
                    letter = self._waiting[source].pop(0)
                yield letter
                self._put_back(letter)

    def close(self):
        """Schedule: wait until all letters are taken up, then tell every receiver that there will be no more."""
        self.hold = False  # two ranks that close must not wait for each other's inboxes
        yield self.under_way()
        last = self.blank()
        last.step, last.sender = self.LAST, self.comm.rank
        header = last.buffer[:HEADER]
        yield [self.comm.Isend(header, receiver, self.tag, header=HEADER) for receiver in self.receivers]
