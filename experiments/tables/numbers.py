"""Numbers of runs, how they compare, and how they are written."""

import math
import tomllib
from collections.abc import Callable, Iterable

import numpy as np

from grsgd.runs import numbers
from grsgd.runs.run_file import Run

# ---- numbers of a run


def each(value: Callable[[Run], float], runs: list[Run]) -> list[float]:
    """Return a number of each run; NaN before the last stage."""
    return [float(value(run)) for run in runs] or [math.nan]


def best_accuracy(run: Run) -> float:
    """Return the highest within the samples that the configuration says, and a step: ranks that do not wait go
    beyond."""
    epochs = tomllib.loads(run.attributes["config"])["train"].get("epochs", math.inf)
    most = epochs * run.attributes["train_samples"] + run.attributes["ranks"] * run.attributes["batch_size"]
    known = run.curve["test_accuracy"][~np.isnan(run.curve["test_accuracy"]) & (run.curve["samples"] <= most)]
    return float(known.max()) if known.size else math.nan


def part_of_a_step(run: Run, part: str) -> np.ndarray:
    """Return the seconds that each rank that trains spends on compute, communicate or wait, a step."""
    trains = run.ranks["steps"] > 0
    return run.ranks[f"{part}_seconds"][trains] / run.ranks["steps"][trains]


def best_rate(tried: dict[float, tuple[float, float]]) -> float | None:
    return min(tried, key=lambda rate: (nan_last(tried[rate][0]), -tried[rate][1])) if tried else None


def nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


# ---- numbers as text


def median_and_range(values: Iterable[float], form: str = ".3g") -> str:
    """Return median and range of the seeds: ``12 (11–13)``; those that are not known are counted."""
    return numbers.median_and_range(list(values), lambda value: format(value, form))


def median_or_nan(values: Iterable[float]) -> float:
    """Return the median of the seeds, of which one that is not known, a target that was not reached, is the most of
    all; NaN if the median is such a one, or there is none."""
    ordered = [nan_last(value) for value in values]
    median = float(np.median(ordered)) if ordered else math.inf
    return math.nan if math.isinf(median) else median


def saving(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """Return how much less ours is, by medians, in per cent.

    -inf if only theirs is known, because it reached the target; NaN if theirs is not.
    """
    a, b = median_or_nan(ours), median_or_nan(theirs)
    if math.isnan(b):
        return math.nan
    return -math.inf if math.isnan(a) else 100 * (1 - a / b)


def accuracy_gain(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """Return how much higher our accuracy is, by medians, in points of per cent, but for rounding errors."""
    return round(100 * (median_or_nan(ours) - median_or_nan(theirs)), 6)


NOT_REACHED = "no less (the target was not reached)"


def percent(value: float) -> str:
    """Return a saving in words."""
    if math.isnan(value):
        return "not known"
    return NOT_REACHED if math.isinf(value) else f"{abs(value):.1f} % {'less' if value >= 0 else 'more'}"


# ---- comparisons


def rises(values: list[float], tolerance: float = 0.0) -> bool | None:
    """Return whether no value is less than the one before, but for a share of it; None if one is not known."""
    if any(map(math.isnan, values)):
        return None
    return all(b >= (1 - tolerance) * a for a, b in zip(values, values[1:], strict=False))


def is_less(ours: Iterable[float], theirs: Iterable[float], by: float = 0.0) -> bool | None:
    """Return whether ours is less than theirs, by so many per cent at least; None if theirs is not known."""
    saved = saving(ours, theirs)
    return None if math.isnan(saved) else saved > by


def all_at_least(savings: Iterable[float], least: float) -> bool | None:
    """Return whether all that are known are so many per cent; None if none is."""
    known = [value for value in savings if not math.isnan(value)]
    return min(known) >= least if known else None
