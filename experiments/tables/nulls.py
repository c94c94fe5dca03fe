"""Measures how often ``decide`` finds an effect between samples that do not differ, as a table of false-positive rates.

    python -m experiments.tables.nulls [--draws 2000] [--seed 1]

The two compared samples are drawn from one distribution, and are similar to samples of trainings. The drawn times to
an accuracy vary by 6 to 10 %, and the drawn accuracies vary by 0.6 to 1 point. The comparisons have no equivalence
zone, which would make wrong verdicts rarer. In comparisons that allow a loss up to a margin, ``ours`` is lower than
``theirs`` by exactly this margin. In comparisons with a number of the paper, the number is the true effect. Any
verdict on a direction is therefore wrong, and so is any result for the paper's number except "agrees". In some rows of
the table, only one sample is skewed, or trainings miss their target or reach it before their first snapshot. In some
rows, the number of seeds may be doubled after a first look at the data.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.random import Generator
from scipy import stats
from tabulate import tabulate

from experiments.runner import decide
from experiments.runner.occasions import CALIBRATIONS
from experiments.runner.outcome import LESS, MORE, REFUTED, SUPPORTED, Case
from experiments.runner.sample import Sample, geometric_mean
from experiments.tables import sequential

SEEDS, MANY_SEEDS = 5, 20
"""Default number of seeds of a sample, and number of seeds of a large sample."""
TWO_LOOKS = 10, 20
"""Numbers of seeds that samples have in the second of two looks at the data."""
CONDITIONS, BASELINES = 4, 4
"""Numbers of conditions and of baselines in a finding; all baselines of a condition are compared with one sample."""
NODES = 3
"""Number of samples, each for a different number of nodes, of which the geometric mean is taken."""
MARGIN = 1.0
"""Greatest loss of accuracy, in percentage points, that the comparison ``no_worse`` allows."""
SAVING, POINTS = 30.0, 3.29
"""The paper's numbers in rows where they are the true effect: a saving in per cent, and a gain in percentage points."""
AGAIN = 10
"""Factor by which more findings are drawn to estimate the greatest rates anew."""
CALIBRATION_ERRORS = (0.05, 0.2)
"""Relative standard deviations of the times, due to calibrations that are made at different times."""

Pair = tuple[Sample, Sample]
Compare = Callable[[Sample, Sample], Case]
Draw = Callable[[Generator], list[Pair]]
"""Function that draws the pairs of samples for one finding (the comparisons on one claim)."""


@dataclass(frozen=True)
class Rates:
    """Per cent of findings with a wrong comparison: above the number (or supported), and below it (or refuted)."""

    above: float
    below: float


def rates(compare: Compare, findings: Iterable[Sequence[Pair]]) -> Rates:
    """Return the rates of wrong results over ``findings``, each of which has several pairs of samples."""
    answers = [
        {answer for case in decide.corrected([compare(*pair) for pair in pairs]) for answer in answers_of(case)}
        for pairs in findings
    ]
    above, below = (sum(bool(found & wrong) for found in answers) for wrong in ({SUPPORTED, MORE}, {REFUTED, LESS}))
    return Rates(100 * above / len(answers), 100 * below / len(answers))


def answers_of(case: Case) -> list[str]:
    """Return a comparison's position relative to the paper's number, or its verdict if there is no number."""
    return [case.on_number if case.number is not None else case.verdict]


def halves(values: Sequence[float], draws: int, random: Generator, seeds: int = SEEDS) -> Iterator[list[Pair]]:
    """Yield ``draws`` findings with one pair of samples each, from runs of one algorithm with different seeds.

    values: numbers of at least 2 * ``seeds`` runs with different seeds, from which all samples are drawn.
    """
    for _ in range(draws):
        drawn = random.choice(values, 2 * seeds, replace=False)
        yield [(_sample(drawn[:seeds]), _sample(drawn[seeds:]))]


# ---- functions that draw the deviations of seeds, with mean 0 and standard deviation 1


def normal(random: Generator, seeds: int) -> np.ndarray:
    return random.normal(size=seeds)


def skewed(random: Generator, seeds: int, skewness: float = 1.0) -> np.ndarray:
    """Draw deviations with the given skewness from a gamma distribution."""
    shape = 4 / skewness**2
    return (random.gamma(shape, size=seeds) - shape) / np.sqrt(shape)


def heavy_tailed(random: Generator, seeds: int) -> np.ndarray:
    """Draw deviations from Student's t distribution with 3 degrees of freedom, which has heavy tails."""
    return random.standard_t(3, seeds) / np.sqrt(3)


def with_outliers(random: Generator, seeds: int) -> np.ndarray:
    """Draw deviations of which about one in ten is far above all others."""
    far = 3 * ((random.random(seeds) < 0.1) - 0.1)
    return (far + 0.4 * random.normal(size=seeds)) / np.sqrt(9 * 0.09 + 0.16)


# ---- functions that make samples similar to samples of trainings


def times(
    deviations: np.ndarray, variation: float = 0.1, missed: float = 0.0, early: float = 0.0, grid: float = 0.0
) -> Sample:
    """Return a sample of seconds to a target accuracy, whose logarithms deviate by ``deviations``.

    variation: coefficient of variation of the seconds. missed: fraction of the trainings that end before they reach
    their target. early: fraction of the trainings that have reached their target at the first snapshot. grid: distance
    of snapshots relative to the time; 0 if crossings of the target are interpolated.
    """
    logarithms = variation * deviations
    first = variation * stats.norm.ppf(early) if early else -np.inf
    end = variation * stats.norm.ppf(1 - missed) if missed else np.inf
    bounds, upper = (frozenset(np.flatnonzero(which).tolist()) for which in (logarithms > end, logarithms < first))
    seconds = np.exp(grid * np.ceil(logarithms / grid) if grid else np.clip(logarithms, first, end))
    return _sample(seconds, bounds, upper)


def accuracies(deviations: np.ndarray, points: float = 0.8, images: int = 10_000) -> Sample:
    """Return a sample of accuracies in per cent. points: standard deviation. images: number of test images."""
    return _sample(np.round(images * (0.9 - points / 100 * deviations)) / images * 100)


def _sample(values: np.ndarray, *bounds: frozenset[int]) -> Sample:
    return Sample(dict(enumerate(map(float, values))), *bounds)


@dataclass(frozen=True)
class Algorithm:
    """An imagined algorithm, which draws numbers. correlation: of runs with one seed; if not 0, runs form pairs."""

    name: str
    sample: Callable[[np.ndarray], Sample]
    deviations: Callable[[Generator, int], np.ndarray] = normal
    correlation: float = 0.0
    seeds: int = SEEDS

    def samples(self, random: Generator, sides: int) -> list[Sample]:
        """Draw one sample for each of ``sides`` algorithms, all from one distribution and with the same seeds."""
        common = np.sqrt(self.correlation) * self.deviations(random, self.seeds)
        own = np.sqrt(1 - self.correlation)
        return [self.sample(common + own * self.deviations(random, self.seeds)) for _ in range(sides)]


TIMES = (
    Algorithm("times, 6 %", partial(times, variation=0.06)),
    Algorithm("times, 10 %", times),
    Algorithm("times, 10 %, 3 seeds", times, seeds=3),
    Algorithm("times, 10 %, 20 seeds", times, seeds=20),
    Algorithm("times, 10 %, in pairs", times, correlation=0.7),
    Algorithm("times, 10 %, skewness 1", times, skewed),
    Algorithm("times, 10 %, skewness 2", times, partial(skewed, skewness=2.0)),
    Algorithm("times, 10 %, heavy tails", times, heavy_tailed),
    Algorithm("times, 10 %, one in ten far off", times, with_outliers),
    Algorithm("times, 10 %, at snapshots each 7 %", partial(times, grid=0.07)),
)
ACCURACIES = (
    Algorithm("accuracies, 0.6 points", partial(accuracies, points=0.6)),
    Algorithm("accuracies, 1 point", partial(accuracies, points=1.0)),
    Algorithm("accuracies, 0.8 points, in pairs", accuracies, correlation=0.7),
    Algorithm("accuracies, 0.8 points, skewness 1", accuracies, skewed),
    Algorithm("accuracies, 0.8 points, heavy tails", accuracies, heavy_tailed),
    Algorithm("accuracies, 0.8 points, one in ten far off", accuracies, with_outliers),
    Algorithm("accuracies, 0.8 points, of 500 images", partial(accuracies, images=500)),
)
SHARES = (0.1, 0.3, 0.5)
"""Fractions of the trainings that miss their target, or that have reached it at their first snapshot."""


def missing(share: float, correlation: float = 0.0) -> Algorithm:
    """Return an imagined algorithm, whose trainings miss their target with the probability ``share``."""
    return Algorithm(f"{100 * share:.0f} % miss their target", partial(times, missed=share), correlation=correlation)


def beside(spread: float, seeds: int) -> tuple[str, Algorithm, Algorithm]:
    """Return a description, times of skewness 2, and unskewed times with ``spread`` times their standard deviation."""
    ours = Algorithm("", times, partial(skewed, skewness=2.0), seeds=seeds)
    theirs = Algorithm("", partial(times, variation=0.1 * spread), seeds=seeds)
    return f"skewness 2 on one side, {spread:g} of its spread on the other, {seeds} seeds", ours, theirs


# ---- functions that make the table


def less(ours: Sample, theirs: Sample, **options) -> Case:
    return decide.less(ours, theirs, "", "", zone=0.0, **options)


def more(ours: Sample, theirs: Sample, **options) -> Case:
    return decide.more(ours, theirs, "", "", zone=0.0, **options)


def no_worse(ours: Sample, theirs: Sample, **options) -> Case:
    """Return the comparison of ``ours``, lowered by exactly the margin, with ``theirs``."""
    return decide.no_worse(ours.map(lambda value: value - MARGIN), theirs, "", "", MARGIN, **options)


def less_by_number(ours: Sample, theirs: Sample, **options) -> Case:
    """Return the comparison of ``ours``, lowered by exactly the saving that is the paper's number, with ``theirs``."""
    return less(ours.scaled(1 - SAVING / 100), theirs, number=SAVING, **options)


def more_by_number(ours: Sample, theirs: Sample, **options) -> Case:
    """Return the comparison of ``ours``, raised by exactly the points that are the paper's number, with ``theirs``."""
    return more(ours.map(lambda value: value + POINTS), theirs, number=POINTS, **options)


def in_two_looks(compare: Compare) -> Compare:
    """Return a comparison that uses half of the seeds, or all seeds if only all of them may decide."""

    def looked(ours: Sample, theirs: Sample) -> Case:
        half = len(ours.values) // sequential.LOOKS
        first = compare(*(Sample({seed: side.values[seed] for seed in range(half)}) for side in (ours, theirs)))
        return compare(ours, theirs) if sequential.takes_second_look(first) else first

    return looked


def on_occasions(error: float, seeds: int, pairs: bool) -> Draw:
    """Return a function that draws two samples of times from one distribution, each with its own calibrations."""
    algorithm = replace(TIMES[1], seeds=seeds, correlation=0.7 * pairs)

    def draw(random: Generator) -> list[Pair]:
        sides = algorithm.samples(random, 2)
        factors = np.exp(error * random.normal(size=(2, CALIBRATIONS)))
        return [tuple(_calibrated(side, by.tolist()) for side, by in zip(sides, factors, strict=True))]

    return draw


def _calibrated(times: Sample, factors: Sequence[float]) -> Sample:
    return Sample({seed: value * factors[seed % len(factors)] for seed, value in times.values.items()})


def one_case(ours: Algorithm, theirs: Algorithm | None = None) -> Draw:
    """Return a function that draws a pair of samples, both by ``ours``, or one by ``ours`` and one by ``theirs``."""
    if theirs is None:
        return lambda random: [tuple(ours.samples(random, 2))]
    return lambda random: [(ours.samples(random, 1)[0], theirs.samples(random, 1)[0])]


def many_cases(algorithm: Algorithm) -> Draw:
    def draw(random: Generator) -> list[Pair]:
        drawn = [algorithm.samples(random, 1 + BASELINES) for _ in range(CONDITIONS)]
        return [(ours, theirs) for ours, *others in drawn for theirs in others]

    return draw


def over_nodes(algorithm: Algorithm) -> Draw:
    """Return a function that draws a pair of samples, each the geometric mean over several numbers of nodes."""

    def draw(random: Generator) -> list[Pair]:
        drawn = [algorithm.samples(random, 2) for _ in range(NODES)]
        return [tuple(map(geometric_mean, zip(*drawn, strict=True)))]

    return draw


@dataclass(frozen=True)
class Null:
    """A row of the table: texts on the comparison and its samples, and functions that compare and draw samples."""

    comparison: str
    compared: str
    compare: Compare
    draw: Draw


def nulls() -> list[Null]:
    """Return all rows of the table of false-positive rates."""
    return [*plain(), *bounded(), *uneven(), *several(), *numbers(), *looked_twice(), *occasions()]


def plain() -> Iterator[Null]:
    """Yield the rows for samples without bounds, in which every training reaches its target."""
    for name, compare, algorithms in (
        ("less", less, TIMES),
        ("more", more, ACCURACIES),
        ("no worse", no_worse, ACCURACIES),
    ):
        for each in algorithms:
            yield Null(name, each.name, partial(compare, pairs=bool(each.correlation)), one_case(each))


def bounded() -> Iterator[Null]:
    """Yield the rows for trainings that miss their target, or that have reached it at their first snapshot."""
    for share in SHARES:
        each, in_pairs, all_reach = missing(share), missing(share, 0.7), TIMES[1]
        early = Algorithm("", partial(times, early=share))
        ours, both, pairs = f"times, of ours {each.name}", f"times, of both {each.name}", partial(less, pairs=True)
        at_first = f"times, of ours {100 * share:.0f} % are there at the first snapshot"
        yield Null("less", ours, less, one_case(each, all_reach))
        yield Null("less", both, less, one_case(each))
        yield Null("less", f"{both}, in pairs", pairs, one_case(in_pairs))
        yield Null("mean over nodes", both, less, over_nodes(each))
        yield Null("mean over nodes", f"{ours}, in pairs", pairs, over_nodes(in_pairs))
        yield Null("less", at_first, less, one_case(early, all_reach))


def uneven() -> Iterator[Null]:
    """Yield the rows for pairs of samples of which only one is skewed."""
    for seeds in (SEEDS, 10, 20):
        for spread in (0.0, 0.3, 1.0):
            words, ours, theirs = beside(spread, seeds)
            yield Null("less", f"times, {words}", less, one_case(ours, theirs))
    ours = Algorithm("", partial(accuracies, points=1.0), partial(skewed, skewness=2.0))
    for name, compare in (("more", more), ("no worse", no_worse)):
        yield Null(name, "accuracies, skewness 2 on one side", compare, one_case(ours, ACCURACIES[0]))


def several() -> Iterator[Null]:
    """Yield the rows for findings with several comparisons."""
    words = f"finding of {CONDITIONS * BASELINES} cases: "
    for name, compare, each in (
        ("less", less, TIMES[1]),
        ("more", more, ACCURACIES[1]),
        ("no worse", no_worse, ACCURACIES[1]),
    ):
        yield Null(words + name, each.name, compare, many_cases(each))


def numbers() -> Iterator[Null]:
    """Yield the rows in which the true effect is exactly the paper's number."""
    for each in TIMES[:7]:
        yield Null("less, the number", each.name, partial(less_by_number, pairs=bool(each.correlation)), one_case(each))
    for each in ACCURACIES[:4]:
        yield Null("more, the number", each.name, partial(more_by_number, pairs=bool(each.correlation)), one_case(each))


def looked_twice() -> Iterator[Null]:
    """Yield the rows in which the number of seeds may be doubled after a first look at the data."""
    for seeds in TWO_LOOKS:
        for each in (TIMES[1], *TIMES[5:8]):
            words, doubled = f"{each.name}, {seeds} seeds", one_case(replace(each, seeds=seeds))
            yield Null("less, two looks", words, in_two_looks(less), doubled)
            yield Null("less, two looks, the number", words, in_two_looks(less_by_number), doubled)
        for spread in (0.0, 0.3):
            words, ours, theirs = beside(spread, seeds)
            yield Null("less, two looks", f"times, {words}", in_two_looks(less), one_case(ours, theirs))


def occasions() -> Iterator[Null]:
    """Yield the rows in which the two samples come from one distribution of times, but from different calibrations."""
    for error in CALIBRATION_ERRORS:
        for seeds in (SEEDS, MANY_SEEDS):
            for pairs in (False, True):
                words = (
                    f"times, 10 %, {seeds} {'pairs' if pairs else 'seeds'}, calibrations differ by {100 * error:.0f} %"
                )
                yield Null("less, occasions", words, partial(less, pairs=pairs), on_occasions(error, seeds, pairs))


def table(draws: int, seed: int) -> list[tuple[str, str, float, float]]:
    """Return the rows of the table: comparison, samples, and the two `Rates` in per cent of ``draws`` findings."""
    random = np.random.default_rng(seed)
    found = []
    for null in nulls():
        wrong = rates(null.compare, (null.draw(random) for _ in range(draws)))
        found.append((null.comparison, null.compared, wrong.above, wrong.below))
    return found


def greatest(draws: int, seed: int) -> Rates:
    """Return the greatest rates of wrong results over all rows of the table (nulls).

    The greatest of many estimates is too great by chance. Therefore, ``draws`` findings per row only find the two worst
    rows, and the rates of these two rows are estimated anew, from ``AGAIN`` times as many findings.
    """
    rows = list(zip(nulls(), table(draws, seed), strict=True))
    worst = [max(rows, key=lambda row: row[1][column])[0] for column in (-2, -1)]
    random = np.random.default_rng((seed, AGAIN))
    above, below = (rates(null.compare, (null.draw(random) for _ in range(AGAIN * draws))) for null in worst)
    return Rates(above.above, below.below)


def main(arguments: Sequence[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=2000, help="number of findings per row")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    given = parser.parse_args(arguments)
    headers = ["comparison", "of samples that do not differ", "supported, or above [%]", "refuted, or below [%]"]
    print(f"Wrong answers, in per cent of {given.draws} findings:\n")
    print(tabulate(table(given.draws, given.seed), headers, "github", floatfmt=".1f"))


if __name__ == "__main__":
    main()
