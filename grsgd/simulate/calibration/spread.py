"""The summary of several measurements of one time: median or mean, and quartiles."""

import statistics
from typing import NamedTuple

import numpy as np

FAR_OUT = 3
"""Distance above the upper quartile, in units of the distance between the quartiles, from which a value is an outlier.
"""


class Spread(NamedTuple):
    """Median, lower quartile and upper quartile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values) -> "Spread":
        """Return the spread of ``values``, differences of times, in which negative values count as 0."""
        low, median, high = statistics.quantiles([max(value, 0.0) for value in values], n=4)
        return cls(median, low, high)


def mean_and_quartiles(values) -> Spread:
    """Return a `Spread` with the mean in place of the median, so that rare and long delays count, too.

    A value above the upper quartile by more than `FAR_OUT` times the distance of the quartiles counts as that limit.
    Else one moment in which the whole machine stood still would decide the mean of some dozens of values.
    """
    spread = Spread.of(values)
    far_out = spread.high + FAR_OUT * (spread.high - spread.low)
    return spread._replace(median=max(float(np.minimum(values, far_out).mean()), 0.0))
