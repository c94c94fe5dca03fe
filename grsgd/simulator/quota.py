"""Quota of the processor time that a simulated rank may use. In each period of the quota, a rank can compute at full
speed for a fraction (share) of the period. At the end of a period, quota that the rank has not used expires.

Linux also enforces quotas of processor time in periods (kernel documentation, CFS bandwidth control). In this module,
``seconds`` of work are the seconds that the work takes at the average speed that the quota allows. On a whole core,
work takes only the fraction ``share`` of the seconds that it takes at this average speed.
"""

import math

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""Factor that lets the quota periods of different ranks begin at evenly spread moments."""


class Quota:
    """Quota of processor time of one rank: the fraction ``share`` of a core, in periods of ``period`` seconds. Period
    number n begins at the moment ``begin + n * period``.
    """

    def __init__(self, share: float, period: float, begin: float = 0.0):
        self.share, self.period, self.begin = share, period, begin
        self.number = -1
        """Number of the period in which the rank last used its quota."""
        self.unused = period
        """Seconds of work that the quota still allows in period number ``number``; negative if the rank has done more
        work than the quota allows."""
        self.free_at = 0.0
        """Moment in simulated seconds at which the rank will have done all work that was given to `compute` or `use` so
        far."""

    @classmethod
    def of_rank(cls, rank: int, share: float, period: float) -> "Quota":
        """Return the quota of processor time of rank ``rank``. The quota periods of different ranks begin at different
        times, as on different hosts."""
        return cls(share, period, period * (rank * GOLDEN_RATIO % 1.0))

    def since_refill(self, now: float) -> float:
        """Return the seconds from the beginning of the present quota period to ``now``."""
        return now - self._start(self._number(now))

    def compute(self, seconds: float, now: float) -> float:
        """Let the rank compute for ``seconds``, after all its earlier work. Return the seconds from ``now`` until the
        computation has ended."""
        begin = self._turn(now)
        self._refill(begin)
        at_once = min(self.unused, (self._start(self.number + 1) - begin) / self.share)
        if seconds > at_once:
            seconds -= at_once
            full = math.ceil(seconds / self.period) - 1
            seconds -= full * self.period
            self.number, self.unused = self.number + 1 + full, self.period
            begin = self._start(self.number)
        self.unused -= seconds
        self.free_at = begin + seconds * self.share
        return self.free_at - now

    def use(self, seconds: float, now: float) -> float:
        """Use up ``seconds`` of the quota for a message, after all earlier work of the rank. Return the seconds that
        the message must wait because the quota is used up. The result does not include the work on the message itself,
        because the network's latency includes it.
        """
        done = self.compute(seconds, now)
        self.free_at = max(self.free_at - seconds * self.share, now)
        return max(done - seconds * self.share, 0.0)

    def take(self, seconds: float, now: float):
        """Subtract ``seconds`` of work, which the rank has done in the present period, from the quota."""
        self._refill(self._turn(now))
        self.unused -= seconds

    def _turn(self, now: float) -> float:
        """Return the moment, ``now`` or later, at which the rank has done all earlier work and can begin further
        work."""
        return max(now, self.free_at)

    def _refill(self, now: float):
        """If a new period has begun, renew the quota. If the rank has used more than the quota of earlier
        periods, subtract the excess from the new quota."""
        periods = self._number(now) - self.number
        if periods > 0:
            self.number += periods
            self.unused = min(min(self.unused, 0.0) + periods * self.period, self.period)

    def _number(self, now: float) -> int:
        return math.floor((now - self.begin) / self.period)

    def _start(self, number: int) -> float:
        return self.begin + number * self.period
