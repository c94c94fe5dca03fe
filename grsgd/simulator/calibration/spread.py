"""Median or mean, and quartiles, of several measurements of the same duration."""

import statistics
from typing import NamedTuple

import numpy as np

FAR_OUT = 3
"""Distance above the upper quartile beyond which a measurement is an outlier. `FAR_OUT` is in units of the difference
between upper and lower quartile.
"""


class Spread(NamedTuple):
    """Median, lower quartile and upper quartile of several measurements of the same duration in seconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values) -> "Spread":
        """Return the `Spread` of ``values``, which are differences between two times. Negative differences count as
        0."""
        low, median, high = statistics.quantiles([max(value, 0.0) for value in values], n=4)
        return cls(median, low, high)


def mean_and_quartiles(values) -> Spread:
    """Return a `Spread` of ``values`` that has the mean of the values in place of the median, because the mean takes
    rare long delays into account.

    In the mean, values above a limit count as the limit: the upper quartile plus `FAR_OUT` times the difference between
    the quartiles. Without the limit, a single moment in which the whole machine stood still could dominate the mean of
    some dozens of values.
    """
    spread = Spread.of(values)
    far_out = spread.high + FAR_OUT * (spread.high - spread.low)
    return spread._replace(median=max(float(np.minimum(values, far_out).mean()), 0.0))
