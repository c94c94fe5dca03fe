"""A number of each seed."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from grsgd.runs.run_file import Run


@dataclass(frozen=True)
class Sample:
    """values: by seed; None where not known. bounds: seeds whose value is a lower bound, such as the time at which a
    training ended before its target accuracy."""

    values: Mapping[int, float | None]
    bounds: frozenset[int] = frozenset()

    def __post_init__(self):
        if missing := [seed for seed in self.bounds if self.values.get(seed) is None]:
            raise ValueError(f"bounds of seeds that have no value: {missing}")

    @property
    def known(self) -> list[float]:
        """The values that are known and no bounds."""
        return [value for seed, value in self.values.items() if value is not None and seed not in self.bounds]

    def median(self) -> float | None:
        """Return the median, for which a bound is greater than all values; None if it is a bound, or if no value is
        known."""
        ordered = self.known + [math.inf] * len(self.bounds)
        median = float(np.median(ordered)) if ordered else math.inf
        return None if math.isinf(median) else median

    def text(self, form: str = ".3g") -> str:
        """Return median and range of the seeds, ``12 (11 to 13), 1 of 5 not reached``."""
        known, median = sorted(self.known), self.median()
        missed, unknown = len(self.bounds), sum(value is None for value in self.values.values())
        extent = f"{known[0]:{form}} to {known[-1]:{form}}" if known else ""
        parts = []
        if median is not None:
            parts.append(f"{median:{form}}" + f" ({extent})" * (len(known) > 1))
        if missed:
            parts.append(f"{missed} of {len(self.values)} not reached")
        if median is None and known:
            parts.append(f"the others {extent}")
        if unknown or not self.values:
            parts.append(f"{unknown} of {len(self.values)} not known" if len(self.values) > unknown else "not known")
        return ", ".join(parts)

    def map(self, function: Callable[[float], float]) -> "Sample":
        """Return the function of each value that is known; of a bound, where it rises, it is one again."""
        mapped = {seed: None if value is None else function(value) for seed, value in self.values.items()}
        return Sample(mapped, self.bounds)

    def scaled(self, factor: float) -> "Sample":
        """Return the values times a positive factor."""
        return self.map(lambda value: factor * value)


def of(runs: Iterable[Run], value: Callable[[Run], float | None]) -> Sample:
    """Return a number of each run, by the run's seed; one that is not finite is not known."""
    return Sample({int(run.attributes["seed"]): _finite(value(run)) for run in runs})


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
