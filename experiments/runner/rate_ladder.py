"""The learning rates that a tuner tries: a grid, and further rates as long as the best one is an end of the tried ones.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple


class RateLadder(NamedTuple):
    """The rates that may be tried.

    grid: increasing rates. factor: between the rates beyond the grid. most_beyond: greatest number of rates beyond the
    grid on either side. highest: the greatest allowed rate.
    """

    grid: Sequence[float]
    factor: float
    most_beyond: int
    highest: float = math.inf

    def next_rate(self, tried: Collection[float], best: float) -> float | None:
        """Return the next rate if ``best``, the best of the ``tried`` rates, is an end of them; else None."""
        lowest, *_, highest = rates = self.rates()
        if best == min(tried) and best > lowest:
            return max(rate for rate in rates if rate < best)
        if best == max(tried) and best < min(highest, self.highest):
            return min(rate for rate in rates if rate > best)
        return None

    def rates(self) -> list[float]:
        """Return all rates that may be tried, in increasing order."""
        steps = range(1, self.most_beyond + 1)
        below = [self.grid[0] / self.factor**step for step in reversed(steps)]
        return [*below, *self.grid, *(self.grid[-1] * self.factor**step for step in steps)]


def is_an_end(rate: float, tried: Collection[float]) -> bool:
    """Return whether a rate is the first or the last one tried, so that a better one may lie beyond."""
    return rate in (min(tried), max(tried))
