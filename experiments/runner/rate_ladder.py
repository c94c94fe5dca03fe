"""The learning rates that a tuner tries.

A tuner tries a grid, and rates beyond the grid as long as the best rate is the lowest or highest tried one.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple


class RateLadder(NamedTuple):
    """The learning rates that a tuner may try, and the order in which it tries them.

    grid: learning rates in increasing order. factor: ratio of neighbouring rates beyond the grid. most_beyond:
    greatest number of rates beyond the grid on either side. highest: the greatest allowed rate.
    """

    grid: Sequence[float]
    factor: float
    most_beyond: int
    highest: float = math.inf

    def next_rate(self, tried: Collection[float], best: float) -> float | None:
        """Return the next learning rate to try if ``best`` is the lowest or the highest in ``tried``, else None."""
        lowest, *_, highest = rates = self.rates()
        if best == min(tried) and best > lowest:
            return max(rate for rate in rates if rate < best)
        if best == max(tried) and best < min(highest, self.highest):
            return min(rate for rate in rates if rate > best)
        return None

    def rates(self) -> list[float]:
        """Return all learning rates that the tuner may try, in increasing order."""
        steps = range(1, self.most_beyond + 1)
        below = [self.grid[0] / self.factor**step for step in reversed(steps)]
        return [*below, *self.grid, *(self.grid[-1] * self.factor**step for step in steps)]


def is_an_end(rate: float, tried: Collection[float]) -> bool:
    """Return True if ``rate`` is the lowest or the highest in ``tried``, so that a better rate may lie beyond."""
    return rate in (min(tried), max(tried))
