"""A quota of the processor: a rank may use so much of it in each period, at full speed, and what it does not is lost.

Linux keeps quotas so (kernel documentation, CFS bandwidth control). All times are those of a rank that computes without
a break, and so with its share alone: what takes it s seconds takes s times the share of a whole core.
"""

import math

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


class Quota:
    """That of one rank: ``share`` of a core, kept over ``period`` seconds, which begin at multiples of that and at the
    time ``begin``."""

    def __init__(self, share: float, period: float, begin: float = 0.0):
        self.share, self.period, self.begin = share, period, begin
        self.number = -1
        """Of the period in which some of it was used last."""
        self.unused = period
        """Seconds that were not used in that one; less than 0 if more were taken than there were."""
        self.free_at = 0.0
        """When it has done all that it was given so far."""

    @classmethod
    def of_rank(cls, rank: int, share: float, period: float) -> "Quota":
        """Return that of a rank. Periods of ranks begin at times of their own, as those of hosts do, evenly spread."""
        return cls(share, period, period * (rank * GOLDEN_RATIO % 1.0))

    def since_refill(self, now: float) -> float:
        """Return for how many seconds the period that runs now has done so."""
        return now - self._start(self._number(now))

    def compute(self, seconds: float, now: float) -> float:
        """Compute for so many seconds, after what it does already; returns how many it takes until that is done."""
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
        """Use so much of it for a message, after what the rank does already; returns for how many seconds that stands
        still. What the message takes besides is in the latency."""
        done = self.compute(seconds, now)
        self.free_at = max(self.free_at - seconds * self.share, now)
        return max(done - seconds * self.share, 0.0)

    def take(self, seconds: float, now: float):
        """Take what was used in the period so far."""
        self._refill(self._turn(now))
        self.unused -= seconds

    def _turn(self, now: float) -> float:
        """Return when the rank can do more than it does already."""
        return max(now, self.free_at)

    def _refill(self, now: float):
        """A period that begins brings all of it back, less what was taken beyond it."""
        periods = self._number(now) - self.number
        if periods > 0:
            self.number += periods
            self.unused = min(min(self.unused, 0.0) + periods * self.period, self.period)

    def _number(self, now: float) -> int:
        return math.floor((now - self.begin) / self.period)

    def _start(self, number: int) -> float:
        return self.begin + number * self.period
