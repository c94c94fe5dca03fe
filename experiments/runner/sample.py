"""Samples for statistical comparisons.

A sample has one number per seed, such as the time of each run to the target accuracy.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from grsgd.config import Config
from grsgd.runs.run_file import Run


@dataclass(frozen=True)
class Sample:
    """One number per seed, from runs of one setting.

    values: the numbers by seed; None for an unknown number. bounds: seeds whose number is a lower bound, such as the
    time at which a training ended before its target accuracy. upper: seeds whose number is an upper bound, such as the
    time of the first snapshot if it had reached the target. algorithms: labels of the algorithms whose runs gave the
    numbers.
    """

    values: Mapping[int, float | None]
    bounds: frozenset[int] = frozenset()
    upper: frozenset[int] = frozenset()
    algorithms: frozenset[str] = frozenset()

    def __post_init__(self):
        if missing := [seed for seed in self.bounds | self.upper if self.values.get(seed) is None]:
            raise ValueError(f"bounds of seeds that have no value: {missing}")
        if both := self.bounds & self.upper:
            raise ValueError(f"seeds whose value is a lower and an upper bound: {sorted(both)}")

    @property
    def exact(self) -> dict[int, float]:
        """Return the known numbers that are not bounds, by seed."""
        inexact = self.bounds | self.upper
        return {seed: value for seed, value in self.values.items() if value is not None and seed not in inexact}

    @property
    def known(self) -> list[float]:
        """Return the known numbers that are not bounds."""
        return list(self.exact.values())

    def median(self) -> float | None:
        """Return the median.

        Lower bounds count as greater than all numbers, and upper bounds as less than all numbers. Returns None if the
        median is a bound, or if no number is known.
        """
        ordered = [-math.inf] * len(self.upper) + self.known + [math.inf] * len(self.bounds)
        middle = ordered and sorted(ordered)[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
        return float(np.mean(middle)) if middle and all(map(math.isfinite, middle)) else None

    def text(self, form: str = ".3g") -> str:
        """Return the median and the range of the numbers as text, such as ``12 (11 to 13), 1 of 5 not reached``."""
        known, median = sorted(self.known), self.median()
        missed, early = len(self.bounds), len(self.upper)
        unknown = sum(value is None for value in self.values.values())
        extent = f"{known[0]:{form}} to {known[-1]:{form}}" if known else ""
        parts = []
        if median is not None:
            parts.append(f"{median:{form}}" + f" ({extent})" * (len(known) > 1))
        if missed:
            parts.append(f"{missed} of {len(self.values)} not reached")
        if early:
            most = max(self.values[seed] for seed in self.upper)
            parts.append(f"{early} of {len(self.values)} at most {most:{form}}")
        if median is None and known:
            parts.append(f"the others {extent}")
        if unknown or not self.values:
            parts.append(f"{unknown} of {len(self.values)} not known" if len(self.values) > unknown else "not known")
        return ", ".join(parts)

    def map(self, function: Callable[[float], float]) -> "Sample":
        """Return the sample with ``function``, which should be increasing, applied to each known number.

        Lower bounds remain lower bounds, and upper bounds remain upper bounds.
        """
        mapped = {seed: None if value is None else function(value) for seed, value in self.values.items()}
        return replace(self, values=mapped)

    def scaled(self, factor: float) -> "Sample":
        """Return the sample with its numbers multiplied by ``factor``, which is positive."""
        return self.map(lambda value: factor * value)


def geometric_mean(samples: Sequence[Sample]) -> Sample:
    """Return the geometric mean of several samples for each seed that all samples have.

    The mean of a seed is a bound if one of its numbers is a bound. The mean of a seed is None if one of its numbers is
    unknown, or if both lower and upper bounds are among them.
    """
    shared = sorted(set.intersection(*(set(each.values) for each in samples)))
    lower = {seed for seed in shared if any(seed in each.bounds for each in samples)}
    upper = {seed for seed in shared if any(seed in each.upper for each in samples)}
    values = {seed: [each.values[seed] for each in samples] for seed in shared}
    unknown = {seed for seed in shared if None in values[seed]} | lower & upper
    means = {seed: None if seed in unknown else float(stats.gmean(values[seed])) for seed in shared}
    return Sample(means, frozenset(lower - unknown), frozenset(upper - unknown), algorithms_of(samples))


def algorithms_of(samples: Iterable[Sample]) -> frozenset[str]:
    """Return the labels of all algorithms whose runs gave the numbers of ``samples``."""
    return frozenset().union(*(each.algorithms for each in samples))


def of(runs: Iterable[Run], value: Callable[[Run], float | None]) -> Sample:
    """Return the sample of ``value``, a function from a run to a number.

    An infinite number or NaN counts as unknown.
    """
    runs = list(runs)
    values = {int(run.attributes["seed"]): _finite(value(run)) for run in runs}
    return Sample(values, algorithms=labels_of(runs))


def labels_of(runs: Iterable[Run]) -> frozenset[str]:
    """Return the labels of the algorithms of runs, as `label_of` makes them."""
    configs = ((run, tomllib.loads(run.attributes["config"])["algorithm"]) for run in runs)
    return frozenset(
        _label(str(run.attributes["label"]), options, int(run.attributes["ranks"])) for run, options in configs
    )


def label_of(loaded: Config, ranks: int) -> str:
    """Return the label of a configuration's algorithm on ``ranks`` ranks.

    Variants of an algorithm that are compared with each other have different labels. The label of an algorithm
    includes the redundancy with the number of ranks, on which its effect depends, or the rule for exchanges.
    """
    return _label(loaded.traits.label, loaded.algorithm_options.model_dump(exclude_none=True), ranks)


def _label(algorithm: str, options: Mapping[str, object], ranks: int) -> str:
    if "r" in options:
        return f"{algorithm} r={options['r']} n={ranks}"
    if "adaptive" not in options:
        return algorithm
    if options["adaptive"]:
        return f"adaptive {algorithm}"
    return f"{algorithm} every " + ("step" if options["period"] == 1 else f"{options['period']} steps")


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
