"""Quota of processor time. In each period a rank can compute at full speed for a share of the period. Time that the
rank does not use expires.

Linux enforces quotas in this way (kernel documentation, CFS bandwidth control). All durations of work in this module
are the seconds that the work takes at the average speed of the rank's share. On a whole core, work of s seconds takes
only s times the share.
"""

import math

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""Factor that spreads the beginnings of the ranks' periods evenly."""


class Quota:
    """The quota of one rank: ``share`` of a core, in periods of ``period`` seconds that begin at ``begin`` + n periods.
    """

    def __init__(self, share: float, period: float, begin: float = 0.0):
        self.share, self.period, self.begin = share, period, begin
        self.number = -1
        """Number of the period in which quota was used last."""
        self.unused = period
        """Seconds of quota that are unused in period number ``number``; negative if the rank has used more than the
        period allows."""
        self.free_at = 0.0
        """Moment, in simulated seconds, at which the rank will have done all work that it was given so far."""

    @classmethod
    def of_rank(cls, rank: int, share: float, period: float) -> "Quota":
        """Return the quota of a rank; periods of different ranks begin at different times, as on different hosts."""
        return cls(share, period, period * (rank * GOLDEN_RATIO % 1.0))

    def since_refill(self, now: float) -> float:
        """Return the seconds since the beginning of the present period."""
        return now - self._start(self._number(now))

    def compute(self, seconds: float, now: float) -> float:
        """Compute for ``seconds``, after earlier work; return the seconds until this work is done."""
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
        """Use ``seconds`` of the quota for a message, after earlier work. Return the seconds that the message must wait
        because the quota is used up. The time of the work itself is not returned, because it is part of the network's
        latency.
        """
        done = self.compute(seconds, now)
        self.free_at = max(self.free_at - seconds * self.share, now)
        return max(done - seconds * self.share, 0.0)

    def take(self, seconds: float, now: float):
        """Subtract ``seconds``, which the rank has used in the present period, from the quota."""
        self._refill(self._turn(now))
        self.unused -= seconds

    def _turn(self, now: float) -> float:
        """Return the moment at which the rank can begin further work."""
        return max(now, self.free_at)

    def _refill(self, now: float):
        """Restore the quota if a new period has begun. Subtract the seconds that the rank has used beyond earlier
        quotas."""
        periods = self._number(now) - self.number
        if periods > 0:
            self.number += periods
            self.unused = min(min(self.unused, 0.0) + periods * self.period, self.period)

    def _number(self, now: float) -> int:
        return math.floor((now - self.begin) / self.period)

    def _start(self, number: int) -> float:
        return self.begin + number * self.period
