"""Verdicts on the claim that synchronous methods are nearly optimal.

The claim (Begunov, Tyurin 2026, arXiv 2602.03802): m-synchronous SGD is optimal up to logarithmic factors in many
settings, and not in all. Where workers take fixed times and the noise of gradients decides, the factor is less than
1 + ln n (`experiments.asynchronous.points.throughput_ratio`), to which all settings are held here.
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
FASTER, SLOWER, ALIKE, UNCLEAR = "faster", "slower", f"as fast, within {ZONE_PERCENT:g} %", "undecided"
WORDS = {SUPPORTED: FASTER, REFUTED: SLOWER, outcome.ALIKE: ALIKE, INCONCLUSIVE: UNCLEAR}
"""What the synchronous method is beside the asynchronous one, by the verdict of their case."""


@dataclass(frozen=True)
class Comparison:
    """The best synchronous and the best asynchronous method on one distribution.

    case: how much less time the synchronous one takes, decided as in all tables, as one of so many distributions.
    """

    distribution: str
    synchronous: str
    asynchronous: str
    case: Case

    @property
    def ratio(self) -> float:
        """Seconds of the synchronous over those of the asynchronous one, the geometric mean over pairs; NaN where not
        known."""
        return math.nan if self.case.estimate is None else 1 - self.case.estimate / 100

    @property
    def low(self) -> float:
        """Lower end of the ratio's 95 % interval."""
        return -math.inf if self.case.high is None else 1 - self.case.high / 100

    @property
    def high(self) -> float:
        """Upper end of it."""
        return math.inf if self.case.low is None else 1 - self.case.low / 100

    @property
    def word(self) -> str:
        """Return whether the synchronous one is faster or slower, as fast, or whether that is not decided."""
        return WORDS[self.case.verdict]

    def text(self) -> str:
        """Return the ratio with its interval."""
        note = f"; {self.case.note}" if self.case.note else ""
        if self.case.estimate is None:
            return f"not known{note}"
        bound = {AT_LEAST: "at most ", AT_MOST: "at least "}.get(self.case.bound, "")  # of time saved, not of the ratio
        seeds = f"{self.case.seeds} seeds{note}"
        return f"{bound}{self.ratio:.2f} times as long ({self.low:.2f} to {self.high:.2f}, {seeds})"


def sample(results: Results, distribution: str, method: str, rate: float) -> Sample:
    """Return the seconds to the target by seed; of a run that did not reach it those until its end, as a bound."""
    points = {seed: StrategyRun(distribution, method, rate, seed) for seed in FINAL_SEEDS}
    found = {seed: results[point] for seed, point in points.items() if point in results}
    missed = frozenset(seed for seed, result in found.items() if math.isnan(result.seconds))
    return Sample({seed: r.ended if seed in missed else r.seconds for seed, r in found.items()}, missed)


def compare(results: Results, distribution: str) -> Comparison | None:
    """Return the comparison; None unless both sides have runs with further seeds."""
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
    """Return those of all distributions that have them, corrected for their number: which of them differ is said."""
    found = [each for name in DISTRIBUTIONS if (each := compare(results, name)) is not None]
    cases = corrected([each.case for each in found])
    return [replace(each, case=case) for each, case in zip(found, cases, strict=True)]


def verdicts(results: Results) -> Iterator[str]:
    """Iterate over a line for each distribution, one on the claim, and those on what is held against it."""
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
    """Return what one distribution says."""
    distribution = DISTRIBUTIONS[comparison.distribution]
    sides = f"the best m-synchronous ({comparison.synchronous}) against {comparison.asynchronous}"
    said = f"{distribution.title}: {sides}: "
    said += f"{comparison.word}, {comparison.text()}"
    if (fixed := distribution.fixed_seconds) is not None:
        said += f"; by throughput alone {throughput_ratio(fixed):.2f} times"
    return said + "."


def on_the_claim(found: list[Comparison]) -> str:
    """Return whether m-synchronous SGD is within the factor everywhere."""
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
    """Return what asynchrony is worth, within the factor or not."""
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
    """Return how much longer the baseline takes than the best asynchronous method, by medians; None if not known."""
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
    """Return how far the baseline is from itself by another strategy; None if that was not run."""
    pairs = [
        (result, results[twin])
        for point, result in results.items()
        if point.method == CONTROL and (twin := point._replace(method=BASELINE)) in results
    ]
    if not pairs:
        return None
    same = sum(np.array_equal(a[:-1], b[:-1], equal_nan=True) for a, b in pairs)  # but the time on this machine
    return f"Control: {CONTROL} and {BASELINE} have equal times, gradients and updates in {same} of {len(pairs)} runs."
