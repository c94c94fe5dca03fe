"""The processor of a simulated rank, which spends time on gradients and on messages. The processor's work for messages
prolongs the computation of gradients.

Two parameters are taken from the model LogGOPS (Hoefler, Schneider, Lumsdaine 2010, LogGOPSim, section 2): o, the
processor time per message, and O, the processor time per byte. In this simulator, senders and receivers have different
values of o and O. In LogGOPS a processor runs sends, receives and computations as steps of one program, one after the
other. A simulated rank, however, sends and receives messages also while it computes a gradient. The simulated processor
therefore has another parameter: the seconds until a computing rank notices a message.

If a rank waits, the processor time of its messages is part of the network's latency and bandwidth, because latency and
bandwidth were measured between waiting ranks. If a rank has a quota of processor time, the messages that it sends or
receives while it waits leave less of the quota for its next computation (`grsgd.simulator.quota`).
"""

import math
from collections import deque
from collections.abc import Callable

from grsgd.comm.engine import SLEEP_SECONDS
from grsgd.simulator.flows import Network
from grsgd.simulator.network import ProcessorSpec
from grsgd.simulator.quota import Quota

SAME_WAIT = 1e-9
"""Largest difference in seconds, due to rounding, between two calculated beginnings of the same wait."""


class Processor:
    """The simulated processor of one rank, which computes gradients and handles messages.

    Parameters
    ----------
    network
        The network whose simulated clock the processor uses.
    spec
        The processor time of messages, as in a network file.
    slowdown
        The factor by which this processor is slower.
    waited
        Function that returns the seconds of the rank's present wait, or 0 if the rank does not wait.
    rank
        The number of the rank.
    """

    def __init__(self, network: Network, spec: ProcessorSpec, slowdown: float, waited: Callable[[], float], rank: int):
        self.network, self.spec, self.slowdown, self.waited = network, spec, slowdown, waited
        self.quota = None
        if spec.period:
            self.quota = Quota.of_rank(rank, min(spec.share / slowdown, 1.0), spec.period * slowdown)
        self.free_at = 0.0
        """Simulated moment at which the processor will have done all work for messages that it was given so far."""
        self.waits_since, self.looks = -math.inf, 0.0
        """Two numbers about the last wait in which looking for messages has used up quota of processor time.
        ``waits_since`` is the moment at which the wait began, and ``looks`` the number of looks whose time was already
        subtracted from the quota."""
        self.leaving = 0
        """Number of messages that this rank has posted and that have not left yet."""
        self.is_computing = self.has_computed = False
        self.in_turn: deque[Callable] = deque()
        self.turn_at = 0.0
        """Queue of functions that are called one after the other (``in_turn``), and the moment at which the last of
        them is called (``turn_at``)."""
        self.taken = 0.0
        """Seconds by which work on messages prolongs the present computation."""
        self.unnoticed: deque[list[Callable]] = deque()
        """Functions to call when the rank notices messages that have arrived during the present computation."""

    def compute(self, seconds: float, polls: bool, call: Callable[[], None]):
        """Compute for ``seconds``, then call ``call``. polls: whether a background schedule waits during the
        computation. The schedule in the background looks for messages, and therefore prolongs the computation."""
        self.is_computing = self.has_computed = True
        if polls:
            seconds *= 1 + self.spec.polling
        if self.quota is not None:
            seconds = self.quota.compute(seconds, self.network.env.now)
        self.taken += max(self.free_at - self.network.env.now, 0.0)  # work for earlier messages
        self.network.after(seconds, lambda _: self._end(call))

    def send(self, nbytes: int, call: Callable[[], None]):
        """Let the processor hand a message of ``nbytes`` bytes over to the network, then call ``call``. A rank that
        does not compute and has no quota hands the message over at once.

        If the rank begins to compute before the processor has done its work for this message, the remaining work
        prolongs the computation.
        """
        self.leaving += 1
        now, of_bytes = self.network.env.now, nbytes * self.spec.send_byte
        if self.is_computing:
            self._work(self.spec.send + of_bytes, call)
        elif self.quota is None:
            self.free_at = max(self.free_at, now) + (self.spec.send + of_bytes) * self.slowdown
            call()
        else:
            # Bytes that are sent in later quota periods use only quota that would expire unused, and are not counted.
            left = self.network.spec.bandwidth * (self.quota.period - self.quota.since_refill(now))
            delay = self.quota.use(self.spec.exchange / 2 * self.slowdown, now)
            self.quota.take(min(nbytes, left) * self.spec.send_byte * self.slowdown, now)
            self._in_turn(delay, call)

    def left(self):
        """Record that a message has left the rank. When the last of the posted messages has left, the processor has no
        more work on messages."""
        self.leaving -= 1
        if not (self.leaving or self.is_computing):
            self.free_at = min(self.free_at, self.network.env.now)

    def receive(self, nbytes: int, call: Callable[[], None]):
        """Let the processor receive a message of ``nbytes`` bytes that the rank has noticed, then call ``call``.

        A rank that is not computing and has no quota calls ``call`` without a delay.
        """
        if self.is_computing:
            self._work(self.spec.receive + nbytes * self.spec.receive_byte, call)
        elif self.quota is None:
            call()
        else:  # bytes that arrived in earlier quota periods used only quota that has expired
            now = self.network.env.now
            nbytes = min(nbytes, self.network.spec.bandwidth * self.quota.since_refill(now))
            of_byte = self.spec.send_byte if self.has_computed else self.spec.receive_byte
            seconds = self.spec.exchange / 2 + nbytes * of_byte
            self._in_turn(self.quota.use(seconds * self.slowdown, now), call)

    def notice(self, call: Callable[[], None]):
        """Call ``call`` when this rank notices a message that arrives at the present simulated time."""
        if self.is_computing:
            seconds = self.spec.reaction
        else:
            # At first, a waiting rank looks for messages without pause. Later, it sleeps for a share of the waited
            # time.
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
        """If this rank has a quota, subtract the processor time of the looks for messages in the present wait from the
        quota. ``waited``: seconds for which the present wait has lasted so far."""
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
        """Let the processor work on a message for ``seconds`` during a computation, after all earlier work on messages.
        Then call ``call``."""
        work, now = seconds * self.slowdown, self.network.env.now
        self.free_at = max(self.free_at, now) + work
        self.taken += work
        self._in_turn(self.free_at - now if work else 0.0, call)

    def _in_turn(self, seconds: float, call: Callable[[], None]):
        """Call ``call`` after ``seconds`` (at once if 0), but not before the functions that earlier calls of this
        method have passed.

        A message with little processor work can therefore not overtake an earlier message on which the processor still
        works.
        """
        now = self.network.env.now
        self.turn_at = max(now + seconds, self.turn_at)
        if self.turn_at > now or self.in_turn:
            self.in_turn.append(call)
            self.network.after(self.turn_at - now, lambda _: self.in_turn.popleft()())
        else:
            call()

    def _end(self, call: Callable[[], None]):
        """End the computation, or prolong it by the seconds of work on messages."""
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
        if not self.is_computing:  # call() has begun no other computation, so the rank waits
            self._look()

    def _look(self):
        """Let this rank notice all messages that have arrived during its present computation."""
        while self.unnoticed:
            run_once(self.unnoticed.popleft())


def number_of_looks(waited: float, spec: ProcessorSpec) -> float:
    """Return the number of times that a rank has looked for messages in a wait of ``waited`` seconds.

    A waiting rank sleeps between two looks for messages, as in `grsgd.comm.engine.back_off`. Each sleep lasts a fixed
    fraction of the time waited so far, but at most `SLEEP_SECONDS`.
    """
    share, look = SLEEP_SECONDS / spec.full_sleep, spec.look * spec.share
    growing = min(waited, spec.full_sleep)
    return math.log1p(share * growing / look) / math.log1p(share) + (waited - growing) / (SLEEP_SECONDS + look)


def run_once(entry: list[Callable]):
    """Call the function in the list ``entry`` and remove it from the list. Do nothing if the list is empty."""
    if entry:
        entry.pop()()
