"""A quota of the processor: a rank has a share of a core, kept over a period, and what it leaves of that is lost.

All times are those of a rank that has nothing left, and so computes with its share alone: what takes it s seconds takes
s times the share of a whole core. A rank that has left some of its quota computes at full speed until that is used up,
and one that has used more than it has, for messages while it waits, stands still until it is paid for. Linux keeps
quotas so (kernel documentation, CFS bandwidth control), but in steps of its periods.
"""


class Quota:
    """That of one rank: ``share`` of a core, kept over ``period`` seconds."""

    def __init__(self, share: float, period: float):
        self.share, self.period = share, period
        self.paid_at = 0.0
        """When all that has been used is paid for; what is not used after that is left."""

    def unused(self, now: float) -> float:
        """Return how many seconds of its quota the rank has not used; less than 0 if some is not paid for."""
        return min(now - self.paid_at, self.period)

    def use(self, seconds: float, now: float) -> float:
        """Use so much of it; returns for how many seconds the rank then stands still."""
        self.paid_at = now - self.unused(now) + seconds
        return max(self.paid_at - now, 0.0)

    def compute(self, seconds: float, now: float) -> float:
        """Compute for so many seconds; returns how many it takes."""
        unused = self.unused(now)
        saved = min(unused, seconds * (1 - self.share))
        end = now + seconds - saved
        self.paid_at = end - max(unused - saved, 0.0)
        return end - now
