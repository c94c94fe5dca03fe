"""Summaries of a number over runs that differ only in the seed: the median and range, or the mean and its 95 %
interval."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

import numpy as np

from grsgd.runs.numbers import UNKNOWN, known_values, median_and_range

Values = Sequence[tuple[object, float]]
"""List of pairs (seed, number), one per run. A number that is not known is NaN."""
EXACT_QUANTILES = {1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445, 5: 2.570582, 6: 2.446912}
"""0.975 quantiles of Student's t distribution for 1 to 6 degrees of freedom. `t_quantile` uses a series for more
degrees of freedom. For 1 to 6 degrees of freedom the series of `t_quantile` is not exact enough."""
NORMAL_QUANTILE = 1.959964


class MedianAndRange:
    """Summary of a number by the median over all runs, with the least and the greatest value."""

    note = "median (least–greatest)"

    def text(self, values: Values, text: Callable[[float], str]) -> str:
        """Return the summary of ``values`` as text. ``text`` is the function that formats one number."""
        return median_and_range([value for _, value in values], text)

    def numbers(self, values: Values) -> dict[str, float | None]:
        """Return a dictionary with the numbers of the summary. Each key of the returned dictionary is a suffix
        that is added to the column's name."""
        known = known_values([value for _, value in values])
        middle = float(np.median(known)) if known else None
        return {"": middle, "_least": min(known, default=None), "_greatest": max(known, default=None)}


class MeanAndInterval:
    """Summary of a number by the mean over the seeds, with half of the mean's 95 % interval, by Student's t
    distribution.

    Runs with the same seed are not independent samples. So the mean of a seed's runs counts as one value.
    """

    note = "mean ± half of its 95 % interval, by Student's t over the seeds"

    def text(self, values: Values, text: Callable[[float], str]) -> str:
        """Return the summary of ``values`` as text. ``text`` is the function that formats one number."""
        of_seeds = by_seed(values)
        if not of_seeds:
            return UNKNOWN
        half = half_interval(of_seeds)
        shown = text(fmean(of_seeds)) + (f" ± {text(half)}" if half else "")
        known = len(known_values([value for _, value in values]))
        return shown if known == len(values) else f"{shown}, {known} of {len(values)}"

    def numbers(self, values: Values) -> dict[str, float | None]:
        """Return a dictionary with the numbers of the summary. Each key of the returned dictionary is a suffix
        that is added to the column's name."""
        of_seeds = by_seed(values)
        return {"": fmean(of_seeds) if of_seeds else None, "_half_interval": half_interval(of_seeds)}


MEDIAN, MEAN = MedianAndRange(), MeanAndInterval()
SPREADS = {"median": MEDIAN, "mean": MEAN}
Spread = MedianAndRange | MeanAndInterval


def by_seed(values: Values) -> list[float]:
    """Return a list with the mean of the known numbers of each seed."""
    seeds: dict[object, list[float]] = {}
    for seed, value in values:
        if not math.isnan(value):
            seeds.setdefault(seed, []).append(float(value))
    return [fmean(of_seed) for of_seed in seeds.values()]


def half_interval(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of the mean of the independent ``values``; None for fewer than two values."""
    if len(values) < 2:
        return None
    return t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def t_quantile(degrees: int) -> float:
    """Return the 0.975 quantile of Student's t distribution, to four digits.

    Above 6 ``degrees`` of freedom, the quantile comes from a series in powers of 1 / ``degrees``. The series is
    equation 3.4 of Fisher and Cornish (1960), "The Percentile Points of Distributions Having Known Cumulants".
    """
    if degrees in EXACT_QUANTILES:
        return EXACT_QUANTILES[degrees]
    z, v = NORMAL_QUANTILE, degrees
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )
