"""What several measurements of one time say together: a median or mean, and quartiles."""

import statistics
from typing import NamedTuple

import numpy as np

FAR_OUT = 3
"""Distances of the quartiles, above the upper one, from which on a value is far out."""


class Spread(NamedTuple):
    """The median, and the quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values) -> "Spread":
        """Return that of differences, of which none can be less than 0."""
        low, median, high = statistics.quantiles([max(value, 0.0) for value in values], n=4)
        return cls(median, low, high)


def mean_and_quartiles(values) -> Spread:
    """Return the mean in the place of the median: what happens rarely and takes long counts, too. But a value that is
    far out, by three times the distance of the quartiles, counts as one that is just so far: of some dozens, one in
    which the whole machine stood still would be all of the mean."""
    spread = Spread.of(values)
    far_out = spread.high + FAR_OUT * (spread.high - spread.low)
    return spread._replace(median=max(float(np.minimum(values, far_out).mean()), 0.0))
