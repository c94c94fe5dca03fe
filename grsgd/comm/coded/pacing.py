"""A limit on the rate at which a rank sends datagrams. The limit is necessary because IP multicast, unlike TCP, does
not slow down a sender that is too fast."""

from collections.abc import Callable

MAX_SECONDS = 0.01
"""Largest number of bytes that a rank may send at once, in seconds: the number of bytes is `MAX_SECONDS` times the
rank's rate. A rank can therefore send faster than its rate for a short time after a pause in sending."""
MAX_DATAGRAMS = 2
"""Number of datagrams of the largest size that a rank may send at once, even if its rate is very low. Without
`MAX_DATAGRAMS`, a rank with a very low rate could never send a datagram."""


class Pace:
    """A token bucket that limits how many bytes are sent, and fills with ``rate`` bytes per second. ``largest``: number
    of bytes of the largest datagram."""

    def __init__(self, rate: float, largest: int, clock: Callable[[], float]):
        self.rate, self.clock = rate, clock
        self._room = max(rate * MAX_SECONDS, MAX_DATAGRAMS * largest)
        self._bytes, self._filled = 0.0, clock()

    def allows(self) -> bool:
        """Return True if a datagram may be sent now."""
        now = self.clock()
        self._bytes = min(self._bytes + (now - self._filled) * self.rate, self._room)
        self._filled = now
        return self._bytes >= 0

    def spend(self, nbytes: int):
        """Subtract ``nbytes``, the size of a datagram that was sent, from the number of bytes that may be sent now."""
        self._bytes -= nbytes

    def seconds(self, nbytes: int) -> float:
        """Return the seconds that it takes to send ``nbytes`` bytes at the rate of this token bucket."""
        return nbytes / self.rate
