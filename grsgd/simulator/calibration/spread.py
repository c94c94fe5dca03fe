"""Summary of several measurements of one duration: median or mean, and quartiles."""

import statistics
from typing import NamedTuple

import numpy as np

FAR_OUT = 3
"""Distance above the upper quartile beyond which a measurement is an outlier. The unit is the distance between the
quartiles.
"""


class Spread(NamedTuple):
    """Median, lower quartile and upper quartile of several measurements of one duration."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values) -> "Spread":
        """Return the spread of ``values``, which are differences of times. Negative values count as 0."""
        low, median, high = statistics.quantiles([max(value, 0.0) for value in values], n=4)
        return cls(median, low, high)


def mean_and_quartiles(values) -> Spread:
    """Return a `Spread` of ``values`` that has their mean in place of the median, because the mean includes rare long
    delays.

    Values have an upper limit: the upper quartile plus `FAR_OUT` times the distance between the quartiles. In the mean,
    larger values count as this limit. Without the limit, a single moment in which the whole machine stood still could
    dominate the mean of some dozens of values.
    """
    spread = Spread.of(values)
    far_out = spread.high + FAR_OUT * (spread.high - spread.low)
    return spread._replace(median=max(float(np.minimum(values, far_out).mean()), 0.0))
