"""Quota of processor time of a simulated rank. In each period a rank can compute at full speed for a share of the
period. Quota that the rank does not use expires.

Linux enforces quotas in periods, too (kernel documentation, CFS bandwidth control). All durations of work in this
module are the seconds that the work takes at the average speed that the quota allows. On a whole core, work of s
seconds takes only s times the quota's share of a core.
"""

import math

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""Factor that spreads the beginnings of different ranks' quota periods evenly."""


class Quota:
    """The quota of one rank: the fraction ``share`` of a core, in periods of ``period`` seconds. Period number n begins
    at the moment ``begin + n * period``.
    """

    def __init__(self, share: float, period: float, begin: float = 0.0):
        self.share, self.period, self.begin = share, period, begin
        self.number = -1
        """Number of the period in which quota was used last."""
        self.unused = period
        """Seconds of quota that are unused in period number ``number``; negative if the rank has used more than the
        period allows."""
        self.free_at = 0.0
        """Moment in simulated seconds at which the rank will have done all work that was given to `compute` or `use` so
        far."""

    @classmethod
    def of_rank(cls, rank: int, share: float, period: float) -> "Quota":
        """Return the quota of rank ``rank``. The quota periods of different ranks begin at different times, as on
        different hosts."""
        return cls(share, period, period * (rank * GOLDEN_RATIO % 1.0))

    def since_refill(self, now: float) -> float:
        """Return the seconds from the beginning of the present quota period to ``now``."""
        return now - self._start(self._number(now))

    def compute(self, seconds: float, now: float) -> float:
        """Compute for ``seconds``, after all earlier work of the rank. Return the seconds from ``now`` until this work
        is done."""
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
        """Use ``seconds`` of the quota for a message, after all earlier work of the rank. Return the seconds that the
        message must wait because the quota is used up. The returned seconds do not include the work on the message,
        because the network's latency includes this work.
        """
        done = self.compute(seconds, now)
        self.free_at = max(self.free_at - seconds * self.share, now)
        return max(done - seconds * self.share, 0.0)

    def take(self, seconds: float, now: float):
        """Subtract ``seconds``, which the rank has used in the present period, from the quota."""
        self._refill(self._turn(now))
        self.unused -= seconds

    def _turn(self, now: float) -> float:
        """Return the moment, ``now`` or later, at which the rank has done all earlier work and can begin further
        work."""
        return max(now, self.free_at)

    def _refill(self, now: float):
        """Restore the unused quota if a new period has begun. Subtract the seconds that the rank has used beyond the
        quota of earlier periods."""
        periods = self._number(now) - self.number
        if periods > 0:
            self.number += periods
            self.unused = min(min(self.unused, 0.0) + periods * self.period, self.period)

    def _number(self, now: float) -> int:
        return math.floor((now - self.begin) / self.period)

    def _start(self, number: int) -> float:
        return self.begin + number * self.period
