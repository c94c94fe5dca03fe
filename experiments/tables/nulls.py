"""How often comparisons find something where there is nothing: false-positive rates of ``decide``, as a table.

    python -m experiments.tables.nulls [--draws 2000] [--seed 1]

Both sides are samples of five seeds from one distribution, like those of trainings: times to an accuracy vary by 6 to
10 %, accuracies by 0.6 to 1 point. Where a loss up to a margin is allowed, ours is lower by exactly that margin. So any
verdict but "inconclusive" is wrong. With normal deviations each of the two wrong verdicts has a probability of 2.5 %;
if one side alone is skewed, one of them has more of it: with skewness 1 and no spread on the other side, 5.8 %.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.random import Generator
from tabulate import tabulate

from experiments.tables import decide
from experiments.tables.outcome import REFUTED, SUPPORTED, Case
from experiments.tables.sample import Sample

SEEDS = 5
CONDITIONS, BASELINES = 4, 4
"""Of a finding with many cases; under each condition, all baselines are compared with the same sample."""
MARGIN = 1.0
"""Points of accuracy that may be lost."""

Pair = tuple[Sample, Sample]
Compare = Callable[[Sample, Sample], Case]
Draw = Callable[[Generator], list[Pair]]
"""Draws the pairs of samples of one finding."""

# ---- rates


@dataclass(frozen=True)
class Rates:
    """Per cent of findings with a case that is supported, and with one that is refuted."""

    supported: float
    refuted: float


def rates(compare: Compare, findings: Iterable[Sequence[Pair]]) -> Rates:
    """Return how often findings come to a verdict; each has a case for each of its pairs of samples."""
    verdicts = [{case.verdict for case in decide.corrected([compare(*pair) for pair in pairs])} for pairs in findings]
    supported = sum(SUPPORTED in found for found in verdicts)
    refuted = sum(REFUTED in found for found in verdicts)
    return Rates(100 * supported / len(verdicts), 100 * refuted / len(verdicts))


def halves(values: Sequence[float], draws: int, random: Generator, seeds: int = SEEDS) -> Iterator[list[Pair]]:
    """Yield so many findings of one pair, for runs of one algorithm: some of its seeds against others.

    values: of runs with different seeds, at least twice as many as ``seeds``; the findings share them.
    """
    for _ in range(draws):
        drawn = random.choice(values, 2 * seeds, replace=False)
        yield [(_sample(drawn[:seeds]), _sample(drawn[seeds:]))]


# ---- deviations, of mean 0 and standard deviation 1


def normal(random: Generator) -> np.ndarray:
    return random.normal(size=SEEDS)


def skewed(random: Generator) -> np.ndarray:
    """Return deviations of skewness 1, by a gamma distribution."""
    return (random.gamma(4, size=SEEDS) - 4) / 2


def heavy_tailed(random: Generator) -> np.ndarray:
    """Return deviations by Student's t distribution with 3 degrees of freedom."""
    return random.standard_t(3, SEEDS) / np.sqrt(3)


def with_outliers(random: Generator) -> np.ndarray:
    """Return deviations of which one in ten is far above the others."""
    far = 3 * ((random.random(SEEDS) < 0.1) - 0.1)
    return (far + 0.4 * random.normal(size=SEEDS)) / np.sqrt(9 * 0.09 + 0.16)


# ---- samples like those of trainings


def times(deviations: np.ndarray, variation: float = 0.1, end: float = np.inf, grid: float = 0.0) -> Sample:
    """Return seconds to a target; their logarithms have these deviations.

    variation: their coefficient of variation. end: when trainings end that have not reached it. grid: distance of the
    snapshots, as a share of the time, where crossings are not interpolated.
    """
    logarithms = variation * deviations
    seconds = np.exp(grid * np.ceil(logarithms / grid) if grid else logarithms)
    return _sample(np.minimum(seconds, end), frozenset(np.flatnonzero(seconds > end).tolist()))


def accuracies(deviations: np.ndarray, points: float = 0.8, images: int = 10_000) -> Sample:
    """Return accuracies in per cent. points: their standard deviation. images: of the test set."""
    return _sample(np.round(images * (0.9 - points / 100 * deviations)) / images * 100)


def _sample(values: np.ndarray, bounds: frozenset[int] = frozenset()) -> Sample:
    return Sample(dict(enumerate(map(float, values))), bounds)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm's numbers. correlation: of the deviations of two sides with the same seed."""

    name: str
    sample: Callable[[np.ndarray], Sample]
    deviations: Callable[[Generator], np.ndarray] = normal
    correlation: float = 0.0

    def samples(self, random: Generator, sides: int) -> list[Sample]:
        """Return the samples of several sides with the same seeds."""
        common = np.sqrt(self.correlation) * self.deviations(random)
        own = np.sqrt(1 - self.correlation)
        return [self.sample(common + own * self.deviations(random)) for _ in range(sides)]


TIMES = (
    Algorithm("times, 6 %", partial(times, variation=0.06)),
    Algorithm("times, 10 %", times),
    Algorithm("times, 10 %, correlated by seed", times, correlation=0.7),
    Algorithm("times, 10 %, skewed", times, skewed),
    Algorithm("times, 10 %, heavy tails", times, heavy_tailed),
    Algorithm("times, 10 %, one in ten far off", times, with_outliers),
    Algorithm("times, 10 %, at snapshots each 7 %", partial(times, grid=0.07)),
    Algorithm("times, 10 %, target missed by one in five", partial(times, end=np.exp(0.1 * 0.84))),
    Algorithm("times, 10 %, target missed by half", partial(times, end=1.0)),
)
ACCURACIES = (
    Algorithm("accuracies, 0.6 points", partial(accuracies, points=0.6)),
    Algorithm("accuracies, 1 point", partial(accuracies, points=1.0)),
    Algorithm("accuracies, 0.8 points, correlated by seed", accuracies, correlation=0.7),
    Algorithm("accuracies, 0.8 points, skewed", accuracies, skewed),
    Algorithm("accuracies, 0.8 points, heavy tails", accuracies, heavy_tailed),
    Algorithm("accuracies, 0.8 points, one in ten far off", accuracies, with_outliers),
    Algorithm("accuracies, 0.8 points, of 500 images", partial(accuracies, images=500)),
)
UNEVEN = Algorithm("accuracies, 1 point, skewed", partial(accuracies, points=1.0), skewed), ACCURACIES[0]
"""Two algorithms with the same mean; skewness of one side alone moves the error to one of the two verdicts."""

# ---- the table


def less(ours: Sample, theirs: Sample) -> Case:
    return decide.less(ours, theirs, "", "", zone=0.0)


def more(ours: Sample, theirs: Sample) -> Case:
    return decide.more(ours, theirs, "", "")


def no_worse(ours: Sample, theirs: Sample) -> Case:
    """Compare where ours is worse by the margin."""
    return decide.no_worse(ours.map(lambda value: value - MARGIN), theirs, "", "", MARGIN)


def one_case(algorithm: Algorithm) -> Draw:
    return lambda random: [tuple(algorithm.samples(random, 2))]


def many_cases(algorithm: Algorithm) -> Draw:
    def draw(random: Generator) -> list[Pair]:
        drawn = [algorithm.samples(random, 1 + BASELINES) for _ in range(CONDITIONS)]
        return [(ours, theirs) for ours, *others in drawn for theirs in others]

    return draw


def uneven(ours: Algorithm, theirs: Algorithm) -> Draw:
    return lambda random: [(ours.samples(random, 1)[0], theirs.samples(random, 1)[0])]


def nulls() -> list[tuple[str, str, Compare, Draw]]:
    """Return the rows of the table: the comparison, what is compared, how, and what draws the pairs of a finding."""
    kinds = [("less", less, TIMES), ("more", more, ACCURACIES), ("no worse", no_worse, ACCURACIES)]
    many = f"finding of {CONDITIONS * BASELINES} cases: "
    found = [(name, one.name, compare, one_case(one)) for name, compare, algorithms in kinds for one in algorithms]
    found += [(name, f"{UNEVEN[0].name}; theirs 0.6", compare, uneven(*UNEVEN)) for name, compare, _ in kinds[1:]]
    return found + [(many + name, one.name, compare, many_cases(one)) for name, compare, (_, _, one, *_) in kinds]


def table(draws: int, seed: int) -> list[tuple[str, str, float, float]]:
    """Return the rows: the comparison, what is compared, per cent supported and refuted of so many findings."""
    random = np.random.default_rng(seed)
    found = []
    for name, compared, compare, draw in nulls():
        wrong = rates(compare, (draw(random) for _ in range(draws)))
        found.append((name, compared, wrong.supported, wrong.refuted))
    return found


def main(arguments: Sequence[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=2000, help="number of findings per row")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers")
    given = parser.parse_args(arguments)
    headers = ["comparison", "of samples that do not differ", "supported [%]", "refuted [%]"]
    print(f"Wrong verdicts, in per cent of {given.draws} findings:\n")
    print(tabulate(table(given.draws, given.seed), headers, "github", floatfmt=".1f"))


if __name__ == "__main__":
    main()
