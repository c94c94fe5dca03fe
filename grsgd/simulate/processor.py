"""A rank's processor, which computes gradients and moves messages: what messages take of it, they take from a gradient.

The parameters are those of LogGOPS (Hoefler, Schneider, Lumsdaine 2010, LogGOPSim, section 2): o, the processor's time
for a message, and O, that for each byte, of a sender and of a receiver. There a message and a computation are steps of
one program, one after the other. Here messages move beside a gradient, so there is a time more: how long it takes until
a rank that computes notices a message. Of ranks that wait, latency and bandwidth have these times already, as they were
measured between such ranks.
"""

from collections import deque
from collections.abc import Callable

from grsgd.simulate.flows import Network
from grsgd.simulate.network import ProcessorSpec


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
    """

    def __init__(self, network: Network, spec: ProcessorSpec, slowdown: float, waited: Callable[[], float]):
        self.network, self.spec, self.slowdown, self.waited = network, spec, slowdown, waited
        self.free_at = 0.0
        """When it has done all that messages have asked of it so far."""
        self.leaving = 0
        """Messages that were posted and have not left yet."""
        self.is_computing = False
        self.taken = 0.0
        """Seconds that messages have taken from the computation under way."""
        self.unnoticed: deque[list[Callable]] = deque()
        """The calls that are due for messages that have come while it computes."""

    def compute(self, seconds: float, polls: bool, call: Callable[[], None]):
        """Compute, and ``call`` when that is over. polls: whether something in the background waits."""
        self.is_computing = True
        if polls:
            seconds *= 1 + self.spec.polling
        self.taken += max(self.free_at - self.network.env.now, 0.0)  # by what was posted right before
        self.network.after(seconds, lambda _: self._end(call))

    def send(self, nbytes: int, call: Callable[[], None]):
        """Hand over a message of so many bytes, and ``call`` when that is done: at once, unless the rank computes. If
        it begins to while the message would still be handed over, the rest is taken from that."""
        self.leaving += 1
        seconds = self.spec.send + nbytes * self.spec.send_byte
        if not self.is_computing:
            self.free_at = max(self.free_at, self.network.env.now) + seconds * self.slowdown
        self._work(seconds, call)

    def left(self):
        """A message has left: its work is done, and if it was the last one, all of it."""
        self.leaving -= 1
        if not (self.leaving or self.is_computing):
            self.free_at = min(self.free_at, self.network.env.now)

    def receive(self, nbytes: int, call: Callable[[], None]):
        """Take in a message of so many bytes that the rank has noticed, and ``call`` when that is done: at once, unless
        the rank computes."""
        self._work(self.spec.receive + nbytes * self.spec.receive_byte, call)

    def notice(self, call: Callable[[], None]):
        """``call`` as soon as the rank looks at a message that comes now."""
        if self.is_computing:
            seconds = self.spec.reaction
        else:
            # A rank looks for messages all the time at first, and then sleeps for a part of the time it has waited.
            waited, spec = self.waited(), self.spec
            seconds = spec.wake * min(waited / spec.full_sleep, 1.0) if waited > spec.spin else 0.0
        if not seconds:
            call()
            return
        entry = [call]
        if self.is_computing:
            self.unnoticed.append(entry)
        self.network.after(seconds * self.slowdown, lambda _: run_once(entry))

    def _work(self, seconds: float, call: Callable[[], None]):
        """Do some work for messages beside a computation, after what is to be done already, and ``call`` then."""
        if not (self.is_computing and seconds):
            call()
            return
        work, now = seconds * self.slowdown, self.network.env.now
        self.free_at = max(self.free_at, now) + work
        self.taken += work
        self.network.after(self.free_at - now, lambda _: call())

    def _end(self, call: Callable[[], None]):
        """The computation is over but for the time that was taken from it."""
        while self.unnoticed:  # a rank looks at its messages after each gradient
            run_once(self.unnoticed.popleft())
        if self.taken:
            seconds, self.taken = self.taken, 0.0
            self.network.after(seconds, lambda _: self._end(call))
            return
        self.is_computing = False
        call()


def run_once(entry: list[Callable]):
    """Call what is in ``entry``, unless that has been done."""
    if entry:
        entry.pop()()
