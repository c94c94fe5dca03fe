"""A limit for the rate at which a rank sends datagrams. The limit is necessary because a network does not slow down a
sender of multicasts."""

from collections.abc import Callable

MAX_SECONDS = 0.01
"""Largest number of bytes that a rank may send at once, expressed as the seconds in which the rank's rate allows these
bytes. So a rank can send faster than its rate for a short time after a pause in sending."""
MAX_DATAGRAMS = 2
"""Number of datagrams that a rank may always send at once. Without `MAX_DATAGRAMS`, a rank with a slow rate could never
send a datagram."""


class Pace:
    """A token bucket that limits how many bytes are sent, and fills with ``rate`` bytes per second. ``largest``: number
    of bytes of the largest datagram."""

    def __init__(self, rate: float, largest: int, clock: Callable[[], float]):
        self.rate, self.clock = rate, clock
        self._room = max(rate * MAX_SECONDS, MAX_DATAGRAMS * largest)
        self._bytes, self._filled = 0.0, clock()

    def allows(self) -> bool:
        """Return whether a datagram may be sent now."""
        now = self.clock()
        self._bytes = min(self._bytes + (now - self._filled) * self.rate, self._room)
        self._filled = now
        return self._bytes >= 0

    def spend(self, nbytes: int):
        """Subtract ``nbytes`` bytes, which were sent, from the bytes that may be sent now."""
        self._bytes -= nbytes

    def seconds(self, nbytes: int) -> float:
        """Return the seconds that it takes to send ``nbytes`` bytes at this object's rate."""
        return nbytes / self.rate
