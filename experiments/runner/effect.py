"""Effects: mean differences of two samples (values by seed), paired or unpaired, with their 95 % intervals.

The 95 % interval of an effect is Student's t interval, with Welch's approximation for unpaired samples. If the
distribution of a sample is skewed, its 95 % interval misses the true mean more often than in 5 % of experiments. A
sample of few seeds does not reveal that its distribution is skewed. With five seeds and a skewness of 2, the whole
interval lies on one side of the true mean in 12 % of experiments. The significance test of an effect is therefore
stricter than the 95 % interval (`level`). The level of the t test is 0.9 % for up to ten seeds, and 0.09 % more for
each seed beyond ten. With a level of 0.9 % for ten seeds, the test declares a wrong effect in at most 5 % of
experiments in each direction. The bound of 5 % holds if the data are tested once or twice, and for a skewness of up to
2.

Simulated times are computed from a few calibrations, and seeds that use the same calibration are not independent. The
variance between calibrations, as far as it exceeds the variance between seeds, is added to the variance of the
effect's mean. The added variance between calibrations has one degree of freedom less than there are calibrations.

A training that ended before it reached its target accuracy would need more time than it took. A training that had
reached its target at its first snapshot may have needed less time. Differences of times that are not known exactly are
bounds of the effect.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from experiments.runner.outcome import AT_LEAST, AT_MOST
from experiments.runner.sample import Sample

SIGNIFICANCE = 0.05
"""Two-sided level of significance of all tests."""
LEVEL_PER_SEED = 0.0009
"""Level of the stricter t test, per seed of a comparison.

A comparison of fewer than ten seeds is tested at the level for ten seeds.
"""
FEWEST_SEEDS, MAX_SEEDS, POWER = 5, 1000, 0.8
"""Least and greatest number of planned seeds, and probability with which planned seeds should decide a claim."""
DECIMALS = 10
"""Number of decimals that count in a difference; further decimals are rounding errors."""
BOTH_WAYS = "at least and at most"
"""Value of an effect's ``bound`` if some differences are lower bounds and other differences are upper bounds."""


@dataclass(frozen=True)
class Effect:
    """The effect in a comparison: the mean difference of two samples (values by seed).

    mean: the mean difference; None if it is unknown. error: standard error of ``mean``; None if there are too few
    values for an interval. freedom: degrees of freedom of ``error``. seeds: number of pairs, or number of seeds of the
    smaller sample. bound: ``AT_LEAST`` or ``AT_MOST`` if ``mean`` is a bound, ``BOTH_WAYS`` if nothing is known, "" if
    ``mean`` is exact. note: text about the values that are left out. spread: least and greatest mean over the
    calibrations; None if there is only one.
    """

    mean: float | None
    error: float | None = None
    freedom: float = 0.0
    seeds: int = 0
    bound: str = ""
    note: str = ""
    spread: tuple[float, float] | None = None

    def interval(self) -> tuple[float | None, float | None]:
        """Return the lower and the upper limit of the 95 % interval.

        A limit of the interval is None if the effect has no limit in this direction. If all values of the sample are
        equal, both limits of the interval are the mean.
        """
        if self.error is None:
            return None, None
        half = self.error and self.error * special.stdtrit(self.freedom, 1 - SIGNIFICANCE / 2)
        low, high = float(self.mean - half), float(self.mean + half)
        return None if self.bound == AT_MOST else low, None if self.bound == AT_LEAST else high

    def p(self, reference: float = 0.0) -> float | None:
        """Return the two-sided p value of the hypothesis that the mean is ``reference``.

        The p value is scaled so that it is below 0.05 if the unscaled p value is below `level`.
        """
        if self.error is None:
            return None
        if not self.error:
            return float(self.mean == reference)
        p = 2 * special.stdtr(self.freedom, -abs(self.mean - reference) / self.error)
        return float(min(1.0, p * SIGNIFICANCE / level(self.seeds)))


def level(seeds: int) -> float:
    """Return the two-sided level of the t test.

    At the returned level, the test errs in at most 5 % of experiments per side if one sample has a skewness of 2.
    """
    return min(SIGNIFICANCE, LEVEL_PER_SEED * max(10, seeds))


def paired(minuend: Sample, subtrahend: Sample, calibrations: int = 1) -> Effect:
    """Return the mean difference between runs with the same seed as an effect.

    A pair is left out if a value is unknown. A pair is left out, too, if both values are lower bounds or both are upper
    bounds, because their difference is then unknown.
    calibrations: number of calibrations; a run with seed i used the calibration with the number i mod calibrations.
    """
    seeds = sorted(minuend.values.keys() | subtrahend.values.keys())
    values, bounds = {}, set()
    for seed in seeds:
        a, b = minuend.values.get(seed), subtrahend.values.get(seed)
        bound = _bounds(minuend, subtrahend, [seed])
        if a is None or b is None or len(bound) == 2:
            continue
        values[seed] = 0.0 if a == b else round(a - b, DECIMALS)
        bounds |= bound
    left_out = f"{len(seeds) - len(values)} of {len(seeds)} seeds not known" if len(values) < len(seeds) else ""
    return _effect([_Side(values)], bounds, left_out, calibrations)


def unpaired(minuend: Sample, subtrahend: Sample, calibrations: int = 1) -> Effect:
    """Return the difference of the means of two samples as an effect, if their runs share no random numbers.

    calibrations: number of calibrations; a run with seed i used the calibration with the number i mod calibrations.
    """
    both = [{seed: value for seed, value in side.values.items() if value is not None} for side in (minuend, subtrahend)]
    unknown = [value is None for side in (minuend, subtrahend) for value in side.values.values()]
    left_out = f"{sum(unknown)} of {len(unknown)} runs not known" if any(unknown) else ""
    bounds = _bounds(minuend, subtrahend, minuend.values.keys() | subtrahend.values.keys())
    return _effect([_Side(both[0]), _Side(both[1], -1)], bounds, left_out, calibrations)


def of_one(sample: Sample, calibrations: int = 1) -> Effect:
    """Return the mean of one sample (values by seed) as an effect."""
    return paired(sample, Sample(dict.fromkeys(sample.values, 0.0)), calibrations)


def seeds_to_decide(effect: Effect, zone: float) -> int | None:
    """Return the number of seeds that decide a claim with probability ``POWER``, given the effect's mean and spread.

    If the mean lies outside the equivalence zone, enough seeds are needed to distinguish the effect from 0. If the
    mean lies inside the equivalence zone, enough seeds are needed for the whole 95 % interval to lie in the zone.
    Returns None if more than ``MAX_SEEDS`` seeds are needed, or if more seeds would not decide the claim.
    """
    if not effect.error or effect.bound:
        return None
    spread, sides = effect.error * math.sqrt(effect.seeds), max(1.0, effect.freedom / (effect.seeds - 1))
    planned = range(FEWEST_SEEDS, MAX_SEEDS + 1)
    found = bisect_left(planned, POWER, key=lambda seeds: _power(seeds, sides, abs(effect.mean), spread, zone))
    return planned[found] if found < len(planned) else None


def _power(seeds: int, sides: float, away: float, spread: float, zone: float) -> float:
    """Return the probability that ``seeds`` seeds decide a claim.

    The deviations from the mean are assumed to be normally distributed.

    sides: number of samples that vary independently (1 for pairs, up to 2). The distribution of the t statistic is
    approximated by a normal distribution (Johnson and Welch 1940).
    """
    freedom, error = sides * (seeds - 1), spread / math.sqrt(seeds)
    if away <= zone:
        half = special.stdtrit(freedom, 1 - SIGNIFICANCE / 2)
        return 2 * float(special.stdtr(freedom, (zone - away) / error - half)) - 1
    limit = special.stdtrit(freedom, 1 - level(seeds) / 2)
    deviate = (away / error - limit * (1 - 1 / (4 * freedom))) / math.sqrt(1 + limit**2 / (2 * freedom))
    return float(special.ndtr(min(deviate, (away - zone) / error)))


# ---- functions that compute an effect and its standard error


def _untransformed(transformed: float, skewness: float | np.ndarray) -> np.ndarray:
    """Return the t statistic whose value under Hall's transformation for skewed samples is ``transformed``."""
    is_none = np.abs(skewness) < 1e-6
    skewness = np.where(is_none, 1, skewness)
    return np.where(is_none, transformed, 3 / skewness * (np.cbrt(1 + skewness * (transformed - skewness / 6)) - 1))


class _Side:
    """One of the two samples of an effect, or the paired differences, by seed.

    sign: 1, or -1 for the sample that is subtracted.
    """

    def __init__(self, by_seed: Mapping[int, float], sign: int = 1):
        self.values, self.sign = np.round(np.array(list(by_seed.values()), dtype=float), DECIMALS), sign
        self.of_seed, self.seeds = np.array(list(by_seed), dtype=int), len(by_seed)
        self.constant = len(set(self.values.tolist())) == 1

    def mean(self) -> float:
        return float(self.values[0] if self.constant else np.mean(self.values))

    def variance(self) -> float:
        """Return the variance of the mean of the sample's values."""
        return 0.0 if self.constant else float(np.var(self.values, ddof=1)) / self.seeds

    def by_calibration(self, calibrations: int) -> list[np.ndarray]:
        return [self.values[self.of_seed % calibrations == number] for number in range(calibrations)]


def _effect(sides: Sequence[_Side], bounds: Iterable[str], note: str, calibrations: int) -> Effect:
    """Return the effect from one sample of paired differences, or from two samples that are not paired."""
    seeds, kinds = min(side.seeds for side in sides), sorted(bounds)
    bound = BOTH_WAYS if len(kinds) == 2 else "".join(kinds)
    if not seeds or bound == BOTH_WAYS:
        return Effect(None, seeds=seeds, bound=bound, note=note)
    means = [side.mean() for side in sides]
    mean = 0.0 if len(means) == 2 and means[0] == means[1] else sum(side.sign * side.mean() for side in sides)
    if mean == -math.inf or not all(side.constant or np.isfinite(side.values).all() for side in sides):
        no_ratio = "one side is zero, so there is no ratio"
        return Effect(None, seeds=seeds, note="; ".join(filter(None, [note, no_ratio])))
    if math.isinf(mean) or seeds < 2:
        return Effect(mean, 0.0 if seeds > 1 else None, seeds=seeds, bound=bound, note=note)
    mean = round(mean, DECIMALS) + 0.0
    between, spread = _between_calibrations(sides, calibrations)
    parts = [(side.variance(), side.seeds - 1) for side in sides] + [(between, calibrations - 1)]
    error = math.sqrt(sum(variance for variance, _ in parts))
    if not error:
        return Effect(mean, 0.0, seeds=seeds, bound=bound, note=note, spread=spread)
    freedom = error**4 / sum(variance**2 / degrees for variance, degrees in parts if variance)
    return Effect(mean, error, freedom, seeds, bound, note, spread)


def _between_calibrations(sides: Sequence[_Side], calibrations: int) -> tuple[float, tuple[float, float] | None]:
    """Return the part of the mean's variance that calibrations cause, and the least and greatest mean of a calibration.

    The part that calibrations cause is the excess over the variance that seeds cause.
    """
    if not all(np.isfinite(side.values).all() for side in sides):
        return 0.0, None
    groups = [side.by_calibration(calibrations) for side in sides]
    there = [number for number in range(calibrations) if all(len(of[number]) for of in groups)]
    if len(there) < 2:
        return 0.0, None
    means = [sum(side.sign * np.mean(of[number]) for side, of in zip(sides, groups, strict=True)) for number in there]
    spread = float(min(means)), float(max(means))
    degrees = [side.seeds - sum(len(group) > 0 for group in of) for side, of in zip(sides, groups, strict=True)]
    if not all(degrees):
        # if each calibration has one seed, the variance between seeds contains that between calibrations
        return 0.0, spread
    within = [
        sum(float(np.sum((group - np.mean(group)) ** 2)) for group in of if len(group)) / free
        for of, free in zip(groups, degrees, strict=True)
    ]
    by_chance = [sum(var / len(of[number]) for var, of in zip(within, groups, strict=True)) for number in there]
    return max(0.0, float(np.var(means, ddof=1) - np.mean(by_chance))) / len(there), spread


def _bounds(minuend: Sample, subtrahend: Sample, seeds: Iterable[int]) -> set[str]:
    """Return the kinds of bound of the difference: ``AT_LEAST``, ``AT_MOST``, or both.

    A difference is a bound if values of ``seeds`` in one of the samples are bounds.
    """
    seeds = set(seeds)
    found = {AT_LEAST: minuend.bounds | subtrahend.upper, AT_MOST: minuend.upper | subtrahend.bounds}
    return {bound for bound, of in found.items() if of & seeds}
