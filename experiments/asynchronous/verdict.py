"""Verdicts on the claim that synchronous methods are nearly as fast as the fastest possible method.

The claim (Begunov, Tyurin 2026, arXiv 2602.03802) is that in many settings, but not in all, m-synchronous SGD is
optimal up to logarithmic factors. If each worker takes a fixed time per gradient and the noise of gradients dominates,
m-synchronous SGD takes less than 1 + ln n times as long as the optimum
(`experiments.asynchronous.points.throughput_ratio`). This module compares the measured ratio of times with 1 + ln n on
every distribution of workers' times.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from experiments.asynchronous.plan import Results, finalists, select_compared
from experiments.asynchronous.points import (
    ASYNCHRONOUS,
    BASELINE,
    CONTROL,
    DISTRIBUTIONS,
    FINAL_SEEDS,
    SEEDS,
    WORKERS,
    StrategyRun,
    throughput_ratio,
)
from experiments.asynchronous.tuning import fastest
from experiments.runner import outcome
from experiments.runner.decide import ZONE_PERCENT, corrected, less
from experiments.runner.outcome import AT_LEAST, AT_MOST, INCONCLUSIVE, REFUTED, SUPPORTED, Case
from experiments.runner.sample import Sample

FACTOR = 1 + math.log(WORKERS)
"""Greatest ratio of the synchronous to the asynchronous method's time with which the claim holds."""
FASTER, SLOWER, ALIKE, UNCLEAR = "faster", "slower", f"as fast, within {ZONE_PERCENT:g} %", "undecided"
WORDS = {SUPPORTED: FASTER, REFUTED: SLOWER, outcome.ALIKE: ALIKE, INCONCLUSIVE: UNCLEAR}
"""Words that compare the synchronous method's speed with the asynchronous one's, by verdict of the comparison."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of the best synchronous with the best asynchronous method on one distribution of times.

    case: the time that the synchronous method saves over the asynchronous method, with a p value corrected for the
    number of distributions.
    """

    distribution: str
    synchronous: str
    asynchronous: str
    case: Case

    @property
    def ratio(self) -> float:
        """Return the synchronous method's seconds to the target, divided by the asynchronous method's seconds.

        The ratio is the geometric mean over pairs of runs with the same seed. The ratio is NaN if the comparison has
        no estimate.
        """
        return math.nan if self.case.estimate is None else 1 - self.case.estimate / 100

    @property
    def low(self) -> float:
        """Return the lower end of the 95 % interval of `ratio`."""
        return -math.inf if self.case.high is None else 1 - self.case.high / 100

    @property
    def high(self) -> float:
        """Return the upper end of the 95 % interval of `ratio`."""
        return math.inf if self.case.low is None else 1 - self.case.low / 100

    @property
    def word(self) -> str:
        """Return "faster", "slower", "as fast" or "undecided", which describes the synchronous method."""
        return WORDS[self.case.verdict]

    def text(self) -> str:
        """Return the ratio of the two methods' times with its interval, as text."""
        note = f"; {self.case.note}" if self.case.note else ""
        if self.case.estimate is None:
            return f"not known{note}"
        # a bound of the saved time becomes the opposite bound of the ratio
        bound = {AT_LEAST: "at most ", AT_MOST: "at least "}.get(self.case.bound, "")
        seeds = f"{self.case.seeds} seeds{note}"
        return f"{bound}{self.ratio:.2f} times as long ({self.low:.2f} to {self.high:.2f}, {seeds})"


def sample(results: Results, distribution: str, method: str, rate: float) -> Sample:
    """Return the seconds to the target accuracy by seed, as a sample.

    If a run missed the target, the sample has the duration of the run as a lower bound.
    """
    points = {seed: StrategyRun(distribution, method, rate, seed) for seed in FINAL_SEEDS}
    found = {seed: results[point] for seed, point in points.items() if point in results}
    missed = frozenset(seed for seed, result in found.items() if math.isnan(result.seconds))
    return Sample({seed: r.ended if seed in missed else r.seconds for seed, r in found.items()}, missed)


def compare(results: Results, distribution: str) -> Comparison | None:
    """Return the comparison on one distribution of times; None unless two methods have runs with `FINAL_SEEDS`."""
    sides = [
        (method, sample(results, distribution, method, rate))
        for method, rate in finalists(distribution, results).items()
    ]
    if len(sides) < 2 or not all(seconds.values for _, seconds in sides):
        return None
    (synchronous, ours), (asynchronous, theirs) = sides
    case = less(ours, theirs, DISTRIBUTIONS[distribution].title, asynchronous, pairs=True)
    return Comparison(distribution, synchronous, asynchronous, case)


def comparisons(results: Results) -> list[Comparison]:
    """Return the comparisons on all distributions of times.

    The verdicts of the comparisons are corrected for the number of comparisons.
    """
    found = [each for name in DISTRIBUTIONS if (each := compare(results, name)) is not None]
    cases = corrected([each.case for each in found])
    return [replace(each, case=case) for each, case in zip(found, cases, strict=True)]


def verdicts(results: Results) -> Iterator[str]:
    """Yield a sentence per distribution of times, then sentences on the claim and on objections to the claim."""
    found = comparisons(results)
    for comparison in found:
        yield line(comparison)
    if found:
        yield on_the_claim(found)
        yield on_asynchrony(found)
    if waiting := on_waiting_for_all(results):
        yield waiting
    if control := on_the_control(results):
        yield control


def line(comparison: Comparison) -> str:
    """Return a sentence with the result of the comparison on one distribution of times."""
    distribution = DISTRIBUTIONS[comparison.distribution]
    sides = f"the best m-synchronous ({comparison.synchronous}) against {comparison.asynchronous}"
    said = f"{distribution.title}: {sides}: "
    said += f"{comparison.word}, {comparison.text()}"
    if (fixed := distribution.fixed_seconds) is not None:
        said += f"; by throughput alone {throughput_ratio(fixed):.2f} times"
    return said + "."


def on_the_claim(found: list[Comparison]) -> str:
    """Return a sentence that says on which distributions m-synchronous SGD takes at most `FACTOR` times as long."""
    known = [each for each in found if each.case.estimate is not None]
    said = f"The claim, that m-synchronous SGD is optimal up to a logarithm, held to 1 + ln n = {FACTOR:.2f}: "
    if not known:
        return said + f"{UNCLEAR}."
    worst = max(known, key=lambda each: each.ratio)
    where = f"the most is {worst.text()} on {DISTRIBUTIONS[worst.distribution].title}"
    beyond = [each for each in known if each.low > FACTOR]
    if beyond:
        names = ", ".join(DISTRIBUTIONS[each.distribution].title for each in beyond)
        return said + f"does not hold on {len(beyond)} of {len(found)} distributions ({names}): {where}."
    within = sum(each.high <= FACTOR for each in known)
    left = "" if within == len(found) else f", {UNCLEAR} on the others"
    return said + f"holds on {within} of {len(found)} distributions{left}; {where}."


def on_asynchrony(found: list[Comparison]) -> str:
    """Return a sentence that says on which distributions the asynchronous method saves time, and how much."""
    said = "What asynchrony is worth beyond that: "
    slower = sorted((each for each in found if each.word == SLOWER), key=lambda each: -each.ratio)
    others = [each for each in found if each.word in (ALIKE, FASTER)]
    parts = [f"{DISTRIBUTIONS[each.distribution].title}, {1 - 1 / each.ratio:.0%} less time" for each in slower]
    if others:
        titles = "; ".join(DISTRIBUTIONS[each.distribution].title for each in others)
        parts.append(f"nothing on {len(others)} of {len(found)} ({titles})")
    if unclear := [DISTRIBUTIONS[each.distribution].title for each in found if each.word == UNCLEAR]:
        parts.append(f"{UNCLEAR} on {len(unclear)} ({'; '.join(unclear)})")
    return said + ("; ".join(parts) or UNCLEAR) + "."


def on_waiting_for_all(results: Results) -> str | None:
    """Return a sentence with the ratio of the baseline's time to the best asynchronous method's time.

    Returns None if no ratio is known. The compared times are medians over the seeds `SEEDS`.
    """
    ratios = {}
    for distribution in DISTRIBUTIONS:
        seconds = {
            method: [result.seconds for result in select_compared(distribution, method, results).values()]
            for method in (BASELINE, *ASYNCHRONOUS)
        }
        seconds = {method: values for method, values in seconds.items() if len(values) == len(SEEDS)}
        best = fastest({method: values for method, values in seconds.items() if method in ASYNCHRONOUS})
        if best is not None and not np.isnan(seconds.get(BASELINE, math.nan)).any():
            ratios[distribution] = float(np.median(seconds[BASELINE]) / np.nanmedian(seconds[best]))
    if not ratios:
        return None
    said = ", ".join(f"{DISTRIBUTIONS[name].title} {ratio:.2f}" for name, ratio in ratios.items())
    return f"{BASELINE}, which waits for all, over the best asynchronous one, by medians of {len(SEEDS)} seeds: {said}."


def on_the_control(results: Results) -> str | None:
    """Return a sentence that says in how many runs baseline and control agree; None without the control."""
    pairs = [
        (result, results[twin])
        for point, result in results.items()
        if point.method == CONTROL and (twin := point._replace(method=BASELINE)) in results
    ]
    if not pairs:
        return None
    # the last field of StrategyNumbers, the real seconds of the simulation, is not compared
    same = sum(np.array_equal(a[:-1], b[:-1], equal_nan=True) for a, b in pairs)
    return f"Control: {CONTROL} and {BASELINE} have equal times, gradients and updates in {same} of {len(pairs)} runs."
