"""The learning rates that a tuner tries: a grid, and rates beyond it while the best rate is the lowest or highest.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple


class RateLadder(NamedTuple):
    """The learning rates that a tuner may try.

    grid: increasing rates. factor: ratio of neighbouring rates beyond the grid. most_beyond: greatest number of rates
    beyond the grid on either side. highest: the greatest allowed rate.
    """

    grid: Sequence[float]
    factor: float
    most_beyond: int
    highest: float = math.inf

    def next_rate(self, tried: Collection[float], best: float) -> float | None:
        """Return the next rate to try if ``best`` is the lowest or the highest of the ``tried`` rates; else None."""
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
    """Return whether a rate is the lowest or the highest of the ``tried`` rates; a better one may lie beyond it."""
    return rate in (min(tried), max(tried))
