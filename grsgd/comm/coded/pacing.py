"""How fast datagrams leave: nothing in a network with multicast slows a sender down, so it has to do so itself."""

from collections.abc import Callable

MOST_SECONDS = 0.01
"""So many seconds of its rate a rank may send at once, to catch up after it could not send for a while."""
MOST_DATAGRAMS = 2
"""It may always be so many, or a slow rate would never let one go."""


class Pace:
    """A bucket of bytes that fills up with ``rate`` bytes a second; ``largest``: bytes of a datagram."""

    def __init__(self, rate: float, largest: int, clock: Callable[[], float]):
        self.rate, self.clock = rate, clock
        self._room = max(rate * MOST_SECONDS, MOST_DATAGRAMS * largest)
        self._bytes, self._filled = 0.0, clock()

    def allows(self) -> bool:
        """Whether a datagram may leave now."""
        now = self.clock()
        self._bytes = min(self._bytes + (now - self._filled) * self.rate, self._room)
        self._filled = now
        return self._bytes >= 0

    def spend(self, nbytes: int):
        """Count what has left."""
        self._bytes -= nbytes

    def seconds(self, nbytes: int) -> float:
        """How long so many bytes take."""
        return nbytes / self.rate
