"""The processor of a simulated rank. It computes gradients and moves messages; messages prolong computations.

The parameters come from LogGOPS (Hoefler, Schneider, Lumsdaine 2010, LogGOPSim, section 2): o, the processor's time
per message, and O, its time per byte, both for a sender and for a receiver. In LogGOPS a message and a computation are
steps of one program, one after the other. Here messages move during a gradient, so there is one more parameter: the
time until a computing rank notices a message.

For waiting ranks these times are part of the network's latency and bandwidth, which were measured between waiting
ranks. With a quota, however, the processor time that a waiting rank uses is missing afterwards
(`grsgd.simulator.quota`).
"""

import math
from collections import deque
from collections.abc import Callable

from grsgd.comm.engine import SLEEP_SECONDS
from grsgd.simulator.flows import Network
from grsgd.simulator.network import ProcessorSpec
from grsgd.simulator.quota import Quota

SAME_WAIT = 1e-9
"""Largest rounding error, in seconds, of the calculated beginning of a wait."""


class Processor:
    """The processor of one rank.

    Parameters
    ----------
    network
        The network whose clock counts.
    spec
        The processor time of messages.
    slowdown
        The factor by which this processor is slower.
    waited
        Function that returns the seconds that the rank has waited so far; 0 if it does not wait.
    rank
        The number of the rank.
    """

    def __init__(self, network: Network, spec: ProcessorSpec, slowdown: float, waited: Callable[[], float], rank: int):
        self.network, self.spec, self.slowdown, self.waited = network, spec, slowdown, waited
        self.quota = None
        if spec.period:
            self.quota = Quota.of_rank(rank, min(spec.share / slowdown, 1.0), spec.period * slowdown)
        self.free_at = 0.0
        """Moment at which the processor has done all work for messages so far."""
        self.waits_since, self.looks = -math.inf, 0.0
        """Two numbers about the last wait whose looks for messages are charged to the quota: the moment at which the
        wait began, and the number of its looks that are charged already."""
        self.leaving = 0
        """Number of messages that were posted and have not left yet."""
        self.is_computing = self.has_computed = False
        self.in_turn: deque[Callable] = deque()
        self.turn_at = 0.0
        """Queue of calls that must be made one after the other, and the moment of the last of these calls."""
        self.taken = 0.0
        """Seconds by which messages prolong the present computation."""
        self.unnoticed: deque[list[Callable]] = deque()
        """Calls to be made when the rank notices messages that have arrived during the present computation."""

    def compute(self, seconds: float, polls: bool, call: Callable[[], None]):
        """Compute for ``seconds``, then call ``call``. polls: whether a background schedule waits meanwhile, and
        prolongs the computation by looking for messages."""
        self.is_computing = self.has_computed = True
        if polls:
            seconds *= 1 + self.spec.polling
        if self.quota is not None:
            seconds = self.quota.compute(seconds, self.network.env.now)
        self.taken += max(self.free_at - self.network.env.now, 0.0)  # time that messages posted just before still need
        self.network.after(seconds, lambda _: self._end(call))

    def send(self, nbytes: int, call: Callable[[], None]):
        """Charge the processor for handing a message of ``nbytes`` bytes over to the network, then call ``call``. If
        the rank does not compute, it hands the message over at once.

        If the rank begins to compute before the message is handed over, the remaining time prolongs the computation.
        """
        self.leaving += 1
        now, of_bytes = self.network.env.now, nbytes * self.spec.send_byte
        if self.is_computing:
            self._work(self.spec.send + of_bytes, call)
        elif self.quota is None:
            self.free_at = max(self.free_at, now) + (self.spec.send + of_bytes) * self.slowdown
            call()
        else:
            # Bytes sent in later quota periods are charged to quota that would otherwise expire unused.
            left = self.network.spec.bandwidth * (self.quota.period - self.quota.since_refill(now))
            delay = self.quota.use(self.spec.exchange / 2 * self.slowdown, now)
            self.quota.take(min(nbytes, left) * self.spec.send_byte * self.slowdown, now)
            self._in_turn(delay, call)

    def left(self):
        """Record that a message has left. After the last message has left, no work for messages remains."""
        self.leaving -= 1
        if not (self.leaving or self.is_computing):
            self.free_at = min(self.free_at, self.network.env.now)

    def receive(self, nbytes: int, call: Callable[[], None]):
        """Do the processor work of receiving a message of ``nbytes`` bytes that the rank has noticed, then call
        ``call``.

        The call is made at once, unless the rank computes.
        """
        if self.is_computing:
            self._work(self.spec.receive + nbytes * self.spec.receive_byte, call)
        elif self.quota is None:
            call()
        else:  # bytes of earlier quota periods took only quota that would have expired
            now = self.network.env.now
            nbytes = min(nbytes, self.network.spec.bandwidth * self.quota.since_refill(now))
            of_byte = self.spec.send_byte if self.has_computed else self.spec.receive_byte
            seconds = self.spec.exchange / 2 + nbytes * of_byte
            self._in_turn(self.quota.use(seconds * self.slowdown, now), call)

    def notice(self, call: Callable[[], None]):
        """Call ``call`` as soon as the rank looks at a message that arrives now."""
        if self.is_computing:
            seconds = self.spec.reaction
        else:
            # A waiting rank looks for messages all the time at first, and later sleeps for a share of the waited time.
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
        """If the rank has a quota, charge the looks for messages to the quota. ``waited``: seconds that the present
        wait has lasted."""
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
        """Charge the processor ``seconds`` for work on messages during a computation, after all earlier work on
        messages, then call ``call``."""
        work, now = seconds * self.slowdown, self.network.env.now
        self.free_at = max(self.free_at, now) + work
        self.taken += work
        self._in_turn(self.free_at - now if work else 0.0, call)

    def _in_turn(self, seconds: float, call: Callable[[], None]):
        """Call ``call`` after ``seconds`` seconds (at once if 0), but after all calls that were ordered earlier.

        So a later message with less processor work does not overtake a message whose processor work is not done yet.
        """
        now = self.network.env.now
        self.turn_at = max(now + seconds, self.turn_at)
        if self.turn_at > now or self.in_turn:
            self.in_turn.append(call)
            self.network.after(self.turn_at - now, lambda _: self.in_turn.popleft()())
        else:
            call()

    def _end(self, call: Callable[[], None]):
        """End the computation, or compute on for the seconds by which messages have prolonged it."""
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
        if not self.is_computing:  # the rank waits
            self._look()

    def _look(self):
        """Notice all messages that have arrived."""
        while self.unnoticed:
            run_once(self.unnoticed.popleft())


def number_of_looks(waited: float, spec: ProcessorSpec) -> float:
    """Return how often a rank has looked for messages during a wait of ``waited`` seconds.

    As in `grsgd.comm.engine.back_off`, each sleep is the same fraction of the time waited until then, up to a longest
    sleep.
    """
    share, look = SLEEP_SECONDS / spec.full_sleep, spec.look * spec.share
    growing = min(waited, spec.full_sleep)
    return math.log1p(share * growing / look) / math.log1p(share) + (waited - growing) / (SLEEP_SECONDS + look)


def run_once(entry: list[Callable]):
    """Call the function in ``entry``, unless it has been called."""
    if entry:
        entry.pop()()
