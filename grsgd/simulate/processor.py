"""A rank's processor, which computes gradients and moves messages: what messages take of it, they take from a gradient.

The parameters are those of LogGOPS (Hoefler, Schneider, Lumsdaine 2010, LogGOPSim, section 2): o, the processor's time
for a message, and O, that for each byte, of a sender and of a receiver. There a message and a computation are steps of
one program, one after the other. Here messages move beside a gradient, so there is a time more: how long it takes until
a rank that computes notices a message. Of ranks that wait, latency and bandwidth have these times already, as they were
measured between such ranks; but with a quota they are missing afterwards (`grsgd.simulate.quota`).
"""

import math
from collections import deque
from collections.abc import Callable

from grsgd.comm.engine import SLEEP_SECONDS
from grsgd.simulate.flows import Network
from grsgd.simulate.network import ProcessorSpec
from grsgd.simulate.quota import Quota

SAME_WAIT = 1e-9
"""Seconds by which the beginning of a wait may seem to move."""


class Processor:
    """One for each rank.

    Parameters
    ----------
    network
        Its clock counts.
    spec
        What messages take of a processor.
    slowdown
        How many times slower this one is.
    waited
        Returns for how many seconds the rank has waited; 0 if it does not.
    rank
        Its number.
    """

    def __init__(self, network: Network, spec: ProcessorSpec, slowdown: float, waited: Callable[[], float], rank: int):
        self.network, self.spec, self.slowdown, self.waited = network, spec, slowdown, waited
        self.quota = None
        if spec.period:
            self.quota = Quota.of_rank(rank, min(spec.share / slowdown, 1.0), spec.period * slowdown)
        self.free_at = 0.0
        """When it has done all that messages have asked of it so far."""
        self.waits_since, self.looks = -math.inf, 0.0
        """When the last wait began whose looks for messages are paid for, and how many these are."""
        self.leaving = 0
        """Messages that were posted and have not left yet."""
        self.is_computing = self.has_computed = False
        self.in_turn: deque[Callable] = deque()
        self.turn_at = 0.0
        """The calls that are to be made in their order, and when the last of them is due."""
        self.taken = 0.0
        """Seconds that messages have taken from the computation under way."""
        self.unnoticed: deque[list[Callable]] = deque()
        """The calls that are due for messages that have come while it computes."""

    def compute(self, seconds: float, polls: bool, call: Callable[[], None]):
        """Compute, and ``call`` when that is over. polls: whether something in the background waits."""
        self.is_computing = self.has_computed = True
        if polls:
            seconds *= 1 + self.spec.polling
        if self.quota is not None:
            seconds = self.quota.compute(seconds, self.network.env.now)
        self.taken += max(self.free_at - self.network.env.now, 0.0)  # by what was posted right before
        self.network.after(seconds, lambda _: self._end(call))

    def send(self, nbytes: int, call: Callable[[], None]):
        """Hand over a message of so many bytes, and ``call`` when that is done: at once, unless the rank computes. If
        it begins to while the message would still be handed over, the rest is taken from that."""
        self.leaving += 1
        now, of_bytes = self.network.env.now, nbytes * self.spec.send_byte
        if self.is_computing:
            self._work(self.spec.send + of_bytes, call)
        elif self.quota is None:
            self.free_at = max(self.free_at, now) + (self.spec.send + of_bytes) * self.slowdown
            call()
        else:
            # bytes leave bit by bit; those that do so later are paid for by what would be lost
            left = self.network.spec.bandwidth * (self.quota.period - self.quota.since_refill(now))
            delay = self.quota.use(self.spec.exchange / 2 * self.slowdown, now)
            self.quota.take(min(nbytes, left) * self.spec.send_byte * self.slowdown, now)
            self._in_turn(delay, call)

    def left(self):
        """A message has left: its work is done, and if it was the last one, all of it."""
        self.leaving -= 1
        if not (self.leaving or self.is_computing):
            self.free_at = min(self.free_at, self.network.env.now)

    def receive(self, nbytes: int, call: Callable[[], None]):
        """Take in a message of so many bytes that the rank has noticed, and ``call`` when that is done: at once, unless
        the rank computes."""
        if self.is_computing:
            self._work(self.spec.receive + nbytes * self.spec.receive_byte, call)
        elif self.quota is None:
            call()
        else:  # what has come in earlier periods was paid for by what would have been lost
            now = self.network.env.now
            nbytes = min(nbytes, self.network.spec.bandwidth * self.quota.since_refill(now))
            of_byte = self.spec.send_byte if self.has_computed else self.spec.receive_byte
            seconds = self.spec.exchange / 2 + nbytes * of_byte
            self._in_turn(self.quota.use(seconds * self.slowdown, now), call)

    def notice(self, call: Callable[[], None]):
        """``call`` as soon as the rank looks at a message that comes now."""
        if self.is_computing:
            seconds = self.spec.reaction
        else:
            # A rank looks for messages all the time at first, and then sleeps for a part of the time it has waited.
            waited, spec = self.waited(), self.spec
            self._pay_for_looks(waited)
            seconds = spec.wake * min(waited / spec.full_sleep, 1.0) if waited > spec.spin else 0.0
        if not seconds:
            call()
            return
        entry = [call]
        if self.is_computing:
            self.unnoticed.append(entry)
        self.network.after(seconds * self.slowdown, lambda _: run_once(entry))

    def _pay_for_looks(self, waited: float):
        """Let the looks for messages in a wait, which has taken so many seconds so far, take what they do of the quota,
        if there is one."""
        now = self.network.env.now
        if self.quota is None or not (waited and self.spec.look):
            return
        begin = now - waited
        if begin - self.waits_since > SAME_WAIT:
            self.waits_since, self.looks = begin, 0.0
        looks = number_of_looks(waited, self.spec)
        earlier = max(self.looks, number_of_looks(max(waited - self.quota.since_refill(now), 0.0), self.spec))
        self.quota.take((looks - earlier) * self.spec.look * self.slowdown, now)
        self.looks = looks

    def _work(self, seconds: float, call: Callable[[], None]):
        """Do some work for messages beside a computation, after what is to be done already, and ``call`` then."""
        work, now = seconds * self.slowdown, self.network.env.now
        self.free_at = max(self.free_at, now) + work
        self.taken += work
        self._in_turn(self.free_at - now if work else 0.0, call)

    def _in_turn(self, seconds: float, call: Callable[[], None]):
        """``call`` after so many seconds, or at once, but not before what was to be called before: a message that a
        rank has not paid for yet is not overtaken by one that comes cheap."""
        now = self.network.env.now
        self.turn_at = max(now + seconds, self.turn_at)
        if self.turn_at > now or self.in_turn:
            self.in_turn.append(call)
            self.network.after(self.turn_at - now, lambda _: self.in_turn.popleft()())
        else:
            call()

    def _end(self, call: Callable[[], None]):
        """The computation is over but for the time that was taken from it."""
        if not self.spec.thread:
            self._look()
        if self.taken:
            seconds, self.taken = self.taken, 0.0
            if self.quota is not None:
                seconds = self.quota.compute(seconds, self.network.env.now)
            self.network.after(seconds, lambda _: self._end(call))
            return
        self.is_computing = False
        call()
        if not self.is_computing:  # it waits
            self._look()

    def _look(self):
        """Notice all messages that have come."""
        while self.unnoticed:
            run_once(self.unnoticed.popleft())


def number_of_looks(waited: float, spec: ProcessorSpec) -> float:
    """Return how often a rank has looked for messages that has waited for so many seconds, as
    `grsgd.comm.engine.back_off` lets it: each sleep is as long as the same share of the time waited, up to the longest
    one."""
    share, look = SLEEP_SECONDS / spec.full_sleep, spec.look * spec.share
    growing = min(waited, spec.full_sleep)
    return math.log1p(share * growing / look) / math.log1p(share) + (waited - growing) / (SLEEP_SECONDS + look)


def run_once(entry: list[Callable]):
    """Call what is in ``entry``, unless that has been done."""
    if entry:
        entry.pop()()
